"""Where CRIU and nft are: what saves and restores a rank's processes. `tools/criu` fetches them."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess

from rankfold import paths

NEEDED = (4, 2)  # older ones dump no TCP socket from Linux 6.16 on
FETCHED = paths.REPOSITORY / "build" / "criu" / "bin"


class Missing(Exception):
    """It is not here; the message says what to do."""


@functools.cache
def command() -> str:
    """The path of a CRIU that is new enough: the system's, or else the fetched one.

    Raises Missing.
    """
    theirs = shutil.which("criu")
    found = version(theirs) if theirs else None
    if theirs and found and found >= NEEDED:
        return theirs
    if (FETCHED / "criu").exists():
        return str(FETCHED / "criu")
    seen = f"{theirs} is {'.'.join(map(str, found))}" if found else "there is none"
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
    try:
        done = subprocess.run(
            [command(), "check"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return next((line for line in done.stderr.splitlines() if "Error" in line), done.stderr)[:300]
