"""Determinism levels: under which changes a run keeps its bits.

D0: same number of processes. D1: any number of processes. D2: also any type of CPU, because the
libraries are limited to one code path. This module is imported before PyTorch, which reads the
variables when it is loaded.
"""

from __future__ import annotations

import os
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
    lines = (line for line in cpuinfo.read_text().splitlines() if line.startswith("flags"))
    flags = next(lines, "").split()
    if missing := [each for each in NEEDED if each not in flags]:
        raise NotPinned(f"this CPU has no {' and no '.join(missing)}")
    os.environ.update(CODE_PATH)


def check(capability: str) -> None:
    """`capability`: as PyTorch reports it. Raises NotPinned."""
    if capability != CAPABILITY:
        raise NotPinned(f"PyTorch uses {capability}, not {CAPABILITY}")
