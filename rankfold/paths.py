"""Where built and installed files are; no other module knows.

All code that needs a native library, a generated header or a JSON Schema gets its path here.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
REPOSITORY = _PACKAGE.parent
JOB_LIMITS = _PACKAGE / "proxy/core/job_limits.h"  # in a checkout, and in a wheel


def native(name: str) -> Path:
    """The path of the built file `name` (``lib/librankfold.so``, ``include/nccl.h`` …).

    `RANKFOLD_NATIVE` names another build (sanitizers). Raises FileNotFoundError, with what to do,
    if the file does not exist.
    """
    root = os.environ.get("RANKFOLD_NATIVE")
    for folder in [Path(root)] if root else [_PACKAGE / "native", REPOSITORY / "build/native"]:
        if (folder / name).exists():
            return folder / name
    if (REPOSITORY / "Makefile").exists():
        raise FileNotFoundError(f"{name} has not been built: run `make native` in {REPOSITORY}")
    raise FileNotFoundError(f"{_PACKAGE / 'native' / name} is missing: install rankfold again")


def schema(kind: str) -> Path:
    """The JSON Schema of a desired-state kind (``Job``, ``Pool``, ``Policy``), or of ``status``."""
    for folder in (_PACKAGE / "schemas", REPOSITORY / "schemas"):
        if (folder / f"{kind.lower()}.schema.json").exists():
            return folder / f"{kind.lower()}.schema.json"
    raise FileNotFoundError(f"no schema for kind {kind}")


def default_state() -> Path:
    """`$RANKFOLD_STATE`, else `$XDG_STATE_HOME/rankfold`, else `~/.local/state/rankfold`."""
    if explicit := os.environ.get("RANKFOLD_STATE"):
        return Path(explicit).absolute()
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    return Path(base) / "rankfold"


def kernel_cache(state: Path) -> Path:
    """The folder of compiled kernels: `$RANKFOLD_CACHE`, otherwise in the state directory.

    Its entries are named by content and checked when read, so that fleets may share one.
    """
    return Path(os.environ.get("RANKFOLD_CACHE") or state / "cache" / "kernels")


def sockets(state: Path) -> Path:
    """A short private folder for the Unix sockets of the fleet in `state`.

    A socket's path may have at most 108 bytes, so sockets cannot be in the state directory itself.
    The folder is created with mode 0700 and checked to be ours.
    """
    digest = hashlib.sha256(str(state.resolve()).encode()).hexdigest()[:12]
    base = Path(os.environ.get("RANKFOLD_RUNTIME") or f"/tmp/rankfold-{os.getuid()}")
    folder = base / digest
    private(base)
    private(folder)
    return folder


def private_again(folder: Path) -> None:
    """As `private`, for a folder that may be gone together with those above it. Also checks that
    only root or we can replace any of them. Raises OSError, PermissionError."""
    above = folder.parent
    if not above.exists():
        private_again(above)
    info = above.stat()
    shared = info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX  # /tmp is sticky
    if info.st_uid not in (0, os.getuid()) or shared:
        raise PermissionError(f"other users may change files in {above}")
    private(folder)


def private(folder: Path) -> None:
    """Make sure that a folder exists, is ours, and is closed to other users, since in /tmp any user
    may have made it. Raises OSError, PermissionError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    info = folder.lstat()
    if folder.is_symlink() or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise PermissionError(f"{folder} must be a folder of your own with mode 0700")
