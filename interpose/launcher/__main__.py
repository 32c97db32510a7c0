"""``python -m rankfold.interpose.launcher``: see ``launcher.py``."""

import sys

from rankfold.interpose.launcher.launcher import main

if __name__ == "__main__":
    sys.exit(main())
