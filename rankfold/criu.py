"""Finds CRIU and nft, which save and restore a rank's processes. `tools/criu` fetches them."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from rankfold import distribution, paths

NEEDED = (4, 2)  # older versions cannot dump TCP sockets from Linux 6.16 on
FETCHED = paths.REPOSITORY / "build" / "criu" / "bin"

# CRIU keeps what it finds out about the kernel in `_CACHE`, but only on a tmpfs, since the file
# must not outlive that kernel. Where /run is not a tmpfs, as in containers, CRIU examines the
# kernel again each time. So `_CACHE` becomes a link to a file on a tmpfs that no other user can
# write to; after a reboot the link dangles.
_CACHE, _SHARED_CACHE = Path("/run/criu.kdat"), Path("/dev/criu.kdat")
_KEEP = """
is_tmpfs() { [ "$(stat -f -c %T "$1")" = tmpfs ]; }
is_tmpfs /dev && ! is_tmpfs /run && mount -t tmpfs -o mode=0700,size=1m criu /run || exit 1
"$1" check && mv "$2" "$3"
"""


class Missing(Exception):
    """The program is missing; the message says what to do."""


@functools.cache
def command() -> str:
    """The path of a usable CRIU: the system's, otherwise the fetched one.

    The system's must be new enough and, if we are root, its check of the kernel must succeed.
    `tools/criu` follows the same rule. Raises Missing.
    """
    theirs = shutil.which("criu")
    found_version = version(theirs) if theirs else None
    new = found_version is not None and found_version >= NEEDED
    if theirs and new and (os.geteuid() != 0 or not _trouble_of(theirs)):
        return theirs
    if (FETCHED / "criu").exists():
        return str(FETCHED / "criu")
    installed = (
        f"{theirs} is {'.'.join(map(str, found_version))}" if found_version else "none is installed"
    )
    if new:
        installed = f"{theirs} says: {_trouble_of(str(theirs))}"
    raise Missing(
        f"no CRIU {'.'.join(map(str, NEEDED))} or newer ({installed}): {_remedy('https://criu.org')}"
    )


@functools.cache
def nft() -> str:
    """The path of nft: the system's, otherwise the fetched one. Raises Missing."""
    path = shutil.which("nft") or shutil.which(str(FETCHED / "nft"))
    if not path:
        raise Missing(f"no nft: {_remedy('the package nftables')}")
    return path


def _remedy(source: str) -> str:
    """The remedy for a missing program. Only a checkout can fetch it."""
    if distribution.generated():
        return f"install it (from {source})"
    return f"run {paths.REPOSITORY}/tools/criu"


def version(path: str) -> tuple[int, ...] | None:
    """The version that the program reports; None if it reports none."""
    try:
        done = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"^Version: (\d+)\.(\d+)", done.stdout, re.MULTILINE)
    return (int(match[1]), int(match[2])) if match else None


def trouble() -> str:
    """Why CRIU cannot work here, in its own words; empty if it can. Raises Missing."""
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
    lines = [*done.stderr.splitlines(), *done.stdout.splitlines()]  # stdout: about capabilities
    version_text = next((line for line in lines if "Error" in line), lines[0] if lines else "")
    return version_text[:300].strip() or "its check fails"


def _keep() -> None:
    """Let CRIU keep its findings about the kernel, which take half of the time of a dump."""
    if _CACHE.exists() or os.geteuid() != 0:
        return
    argv = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        _KEEP,
        "sh",
        command(),
        str(_CACHE),
        str(_SHARED_CACHE),
    ]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(argv, capture_output=True, timeout=30, check=False)
        if done.returncode == 0:
            _CACHE.unlink(missing_ok=True)  # a dangling link
            _CACHE.symlink_to(_SHARED_CACHE)
