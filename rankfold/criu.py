"""Where CRIU and nft are: what saves and restores a rank's processes. `tools/criu` fetches them."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from rankfold import paths

NEEDED = (4, 2)  # older ones dump no TCP socket from Linux 6.16 on
FETCHED = paths.REPOSITORY / "build" / "criu" / "bin"

# What CRIU finds out about the kernel it keeps in `_FOUND`, but only on a tmpfs, since it must not
# outlive that kernel: where /run is none, as in containers, it begins anew each time. The
# link leads to one that is no one else's to write to; the next kernel finds it dangling.
_FOUND, _KEPT = Path("/run/criu.kdat"), Path("/dev/criu.kdat")
_KEEP = """
is_tmpfs() { [ "$(stat -f -c %T "$1")" = tmpfs ]; }
is_tmpfs /dev && ! is_tmpfs /run && mount -t tmpfs -o mode=0700,size=1m criu /run || exit 1
"$1" check && mv "$2" "$3"
"""


class Missing(Exception):
    """It is not here; the message says what to do."""


@functools.cache
def command() -> str:
    """The path of a CRIU that is new enough, and finds the kernel good where we are root: the
    system's, or else the fetched one. `tools/criu` has the same rule. Raises Missing.
    """
    theirs = shutil.which("criu")
    found = version(theirs) if theirs else None
    new = found is not None and found >= NEEDED
    if theirs and new and (os.geteuid() != 0 or not _trouble_of(theirs)):
        return theirs
    if (FETCHED / "criu").exists():
        return str(FETCHED / "criu")
    seen = f"{theirs} is {'.'.join(map(str, found))}" if found else "there is none"
    if new:
        seen = f"{theirs} says: {_trouble_of(str(theirs))}"
    raise Missing(
        f"no CRIU {'.'.join(map(str, NEEDED))} or newer ({seen}): run {paths.REPOSITORY}/tools/criu"
    )


@functools.cache
def nft() -> str:
    """The path of nft: the system's, or else the fetched one. Raises Missing."""
    found = shutil.which("nft") or shutil.which(str(FETCHED / "nft"))
    if not found:
        raise Missing(f"no nft: run {paths.REPOSITORY}/tools/criu")
    return found


def version(path: str) -> tuple[int, ...] | None:
    """As that program says; None if it says none."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"^Version: (\d+)\.(\d+)", done.stdout, re.MULTILINE)
    return (int(match[1]), int(match[2])) if match else None


def trouble() -> str:
    """Why CRIU cannot work here: its own words; empty if it can. Raises Missing."""
    _keep()
    return _trouble_of(command())


def _trouble_of(path: str) -> str:
    try:
        done = subprocess.run(
            [path, "check"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    lines = [*done.stderr.splitlines(), *done.stdout.splitlines()]  # the latter of capabilities
    told = next((line for line in lines if "Error" in line), lines[0] if lines else "")
    return told[:300].strip() or "its check fails"


def _keep() -> None:
    """Let CRIU keep what it finds out about the kernel: half of the time that a dump takes."""
    if _FOUND.exists() or os.geteuid() != 0:
        return
    argv = ["unshare", "--mount", "sh", "-c", _KEEP, "sh", command(), str(_FOUND), str(_KEPT)]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(argv, capture_output=True, timeout=30, check=False)
        if done.returncode == 0:
            _FOUND.unlink(missing_ok=True)  # it leads nowhere
            _FOUND.symlink_to(_KEPT)
