"""`rankfold`, also as `python -m rankfold`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line. Ctrl-C while modules are being imported exits without a traceback."""
    _open_streams()
    gc.disable()  # until the command's modules are imported: see Commands in cli.py
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rankfold.reconciler import cli

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


def _open_streams() -> None:
    """Open /dev/null in place of each standard stream that the caller closed. Otherwise the next
    file or socket gets its number, and what is printed goes there."""
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


if __name__ == "__main__":
    main()
