"""The entry point of the executable that `make dist` builds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from rankfold import __main__


def main() -> NoReturn:
    """`rankfold`, without the changes that PEX makes to the environment, which ranks inherit."""
    entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    before = dict(each.split(b"=", 1) for each in entries if b"=" in each)
    os.environ.pop("VIRTUAL_ENV", None)  # PEX sets it in this process
    if b"VIRTUAL_ENV" in before:
        os.environb[b"VIRTUAL_ENV"] = before[b"VIRTUAL_ENV"]
    if "_PEX_ROOT_CHOSEN" in os.environ:  # by tools/executable_start.py
        del os.environ["PEX_ROOT"]
    for name in [*os.environ]:
        if name == "PEX" or name.startswith(("_PEX_", "__PEX_")):
            del os.environ[name]
    __main__.main()
