"""The first code of the executable that `tools/dist.py` makes (PEX calls it the preamble).

PEX unpacks the executable below the home directory. Where that cannot be written, PEX would choose
a temporary folder, and remove it when the command ends, while processes of a fleet still need it.
"""

import os
import stat
import sys


def _writable(folder: str) -> bool:
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    return os.path.isdir(folder) and os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _choose_folder() -> None:
    """Set PEX_ROOT if the default cannot be written and the user has set none."""
    chosen = os.environ.get("PEX_ROOT")
    folder = chosen or os.path.expanduser("~/.local/share/rankfold")
    if _writable(os.path.abspath(folder)):
        return
    trouble = f"{folder} cannot be written"
    if not chosen:
        folder = f"/var/tmp/rankfold-{os.getuid()}"
        try:
            _make_private(folder)
        except OSError as error:
            trouble += f", nor can {folder}: {error.strerror or error}"
        else:
            os.environ["PEX_ROOT"] = folder
            os.environ["_PEX_ROOT_CHOSEN"] = "1"  # rankfold/executable.py removes both
            return
    sys.exit(
        f"rankfold: cannot unpack itself: {trouble}. Set PEX_ROOT to a folder of yours, on a disk"
    )


def _make_private(folder: str) -> None:
    os.makedirs(folder, mode=0o700, exist_ok=True)
    about = os.lstat(folder)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise PermissionError("it belongs to another user")


_choose_folder()
