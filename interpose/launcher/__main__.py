"""``python -m rankfold.interpose.launcher``: see ``start.py``."""

import sys

from rankfold.interpose.launcher.start import main

if __name__ == "__main__":
    sys.exit(main())
