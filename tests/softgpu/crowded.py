"""Loads kernels into an address space that leaves no two free places near each other.

Usage: crowded.py CACHE SOCKET. After each kernel a reservation of 3 GiB takes what is below,
and what is free above is filled except for one page: a kernel's code does not fit there, its
constants do. Prints how many kernels were loaded.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from softgpu.harness import loader

KERNELS = 4
PTX = """.version 8.0
.target sm_75
.address_size 64
.visible .entry k{number}(.param .u64 p)
{{
    .reg .b64 %rd<2>; .reg .f64 %f<2>;
    ld.param.u64 %rd1, [p];
    ld.global.f64 %f1, [%rd1];
    fma.rn.f64 %f1, %f1, %f1, 0d40091EB85{number:X}1EB852;
    {body}
    st.global.f64 [%rd1], %f1;
    ret;
}}
"""
NO_ACCESS, PRIVATE_ANONYMOUS_NORESERVE, PAGE = 0, 0x4022, 4096

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def reserve(size: int) -> int:
    return int(libc.mmap(None, size, NO_ACCESS, PRIVATE_ANONYMOUS_NORESERVE, -1, 0))


def crowd() -> None:
    """Take 3 GiB, fill what is free above them, and give one page back."""
    low = reserve(3 << 30)
    size = 64 << 20
    while size > 2 * PAGE:
        at = reserve(size)
        if at < low:
            libc.munmap(at, size)
            size //= 2
    libc.munmap(low + (3 << 30) - PAGE, PAGE)


def main() -> None:
    body = "mul.rn.f64 %f1, %f1, %f1;\n" * 4000  # some pages of code
    with loader(Path(sys.argv[1]), Path(sys.argv[2])) as kernels:
        for number in range(KERNELS):
            module = kernels.module(PTX.format(number=number, body=body).encode(), 2)
            assert kernels.function(module, f"k{number}").address
            crowd()
    print(KERNELS)


if __name__ == "__main__":
    main()
