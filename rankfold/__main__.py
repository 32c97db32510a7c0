"""`rankfold`, also as `python -m rankfold`."""

from __future__ import annotations

import gc
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Ctrl-C while modules are being imported exits without a traceback."""
    gc.disable()  # until the command's modules are imported: see Commands in cli.py
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rankfold.reconciler import cli

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
