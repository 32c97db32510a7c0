"""Determinism levels: under which changes a run keeps its bits.

D0: same number of processes. D1: any number of processes. D2: also any type of CPU, because the
libraries are limited to one code path. This module is imported before PyTorch, which reads the
variables when it is loaded.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

LEVELS = ("D0", "D1", "D2")
# Each library chooses its code by the CPU unless these limit it. MKL has only this path for CPUs of
# all makers. NumPy ignores names that its version does not have.
CODE_PATH = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX X86_V4 AVX512_ICL AVX512_SPR",
}
# glibc's mathematical functions have other bits without fma.
NEEDED = ("avx2", "fma")
CAPABILITY = "AVX2"  # as PyTorch reports it


class NotPinned(Exception):
    """This process cannot use the code path of D2."""


def pin(cpuinfo: Path = Path("/proc/cpuinfo")) -> None:
    """Limits the libraries that this process imports from now on. Raises NotPinned."""
    for name in ("torch", "numpy"):
        if name in sys.modules:
            raise NotPinned(f"{name} was imported before the level was known")
    if found := missing(cpuinfo):
        raise NotPinned(f"this CPU has no {' and no '.join(found)}")
    os.environ.update(CODE_PATH)


def missing(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The instructions of D2 that this CPU does not have."""
    lines = (line for line in cpuinfo.read_text().splitlines() if line.startswith("flags"))
    flags = next(lines, "").split()
    return [each for each in NEEDED if each not in flags]


def code_path(capability: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Everything on which the bits of a process at D1 depend, as a text: the type of CPU, the
    instructions that PyTorch uses (`capability`, as it reports them), and variables that limit
    libraries. "D2" where these are the ones of D2: the type makes no difference then."""
    limits = {name: os.environ[name] for name in CODE_PATH if name in os.environ}
    if limits == CODE_PATH:
        return "D2"
    first = cpuinfo.read_text().partition("\n\n")[0]  # of several equal processors
    fields = dict(re.findall(r"^([^\t:]+)\t*: (.*)$", first, re.MULTILINE))
    names = ("vendor_id", "cpu family", "model")
    words = [fields[each] for each in names if each in fields] + [capability]
    return " ".join(words + [f"{name}={value}" for name, value in limits.items()])


def pinned() -> bool:
    """Whether this process uses the code path of D2."""
    return all(os.environ.get(name) == value for name, value in CODE_PATH.items())


def check(capability: str) -> None:
    """`capability`: as PyTorch reports it. Raises NotPinned."""
    if capability != CAPABILITY:
        raise NotPinned(f"PyTorch uses {capability}, not {CAPABILITY}")
