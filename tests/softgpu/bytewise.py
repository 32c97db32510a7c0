"""Kernels written in PTX whose rows work on memory: 32 bytes in, 32 bytes out, for each thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.elementwise import Array
from softgpu.harness import Space

THREADS = 64
SLOT = 32  # bytes
DYNAMIC = THREADS * SLOT


@dataclass(frozen=True)
class Row:
    """`code` finds the addresses of the thread's slots in registers: %in and %out (global), %sh and
    %lo (shared and local, 32 bits), %dyn (dynamic shared); the same as generic addresses: %gin,
    %gout, %gsh, %glo. `reference`: the input's bytes to the output's; missing ones are zero."""

    code: str
    reference: Callable[[bytes], bytes]


def first_bytes(count: int, before: int = 0) -> Callable[[bytes], bytes]:
    """The input's first bytes, after some zeros."""
    return lambda data: bytes(before) + data[:count]


def always(wanted: bytes) -> Callable[[bytes], bytes]:
    return lambda _: wanted


def source(rows: list[Row], declarations: str = "") -> str:
    parts = []
    for index, row in enumerate(rows):
        parts.append(f"""
    add.u64 %out, %first, {index * THREADS * SLOT};
    cvta.global.u64 %gout, %out;
    {{ {row.code} }}""")
    body = "".join(parts)
    return f"""
.version 8.6
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 dynamic[];
{declarations}
.visible .entry bytes(.param .u64 in, .param .u64 out, .param .align 16 .b8 struct[{SLOT}])
{{
    .shared .align 16 .b8 slots[{THREADS * SLOT}];
    .local .align 16 .b8 own[{SLOT}];
    .reg .b32 %me, %sh, %lo, %dyn;
    .reg .b64 %in, %out, %first, %offset, %gin, %gout, %gsh, %glo;
    mov.u32 %me, %tid.x;
    mul.wide.u32 %offset, %me, {SLOT};
    ld.param.u64 %in, [in];
    add.u64 %in, %in, %offset;
    cvta.global.u64 %gin, %in;
    ld.param.u64 %first, [out];
    add.u64 %first, %first, %offset;
    mov.u32 %sh, slots;
    mad.lo.u32 %sh, %me, {SLOT}, %sh;
    cvt.u64.u32 %gsh, %sh;
    cvta.shared.u64 %gsh, %gsh;
    mov.u32 %dyn, dynamic;
    mad.lo.u32 %dyn, %me, {SLOT}, %dyn;
    mov.u32 %lo, own;
    cvt.u64.u32 %glo, %lo;
    cvta.local.u64 %glo, %glo;
    {body}
    ret;
}}
"""


def inputs() -> st.SearchStrategy[Array]:
    """Random bytes, in every fourth row one byte throughout."""

    def made(seed: int, liked: int) -> Array:
        rng = np.random.default_rng(seed)
        data = rng.integers(0, 256, (THREADS, SLOT), np.uint8)
        data[::4] = rng.choice(np.array([0, 0xFF, 0x80, 0x7F, liked], np.uint8), (THREADS // 4, 1))
        return data

    return st.builds(made, st.integers(0, 2**32 - 1), st.integers(0, 255))


def check(
    kernels: Loader, space: Space, rows: list[Row], data: Array, declarations: str = ""
) -> None:
    """The kernel's third parameter is the first thread's input."""
    text = source(rows, declarations)
    module = kernels.module(text.encode(), 1)
    function = kernels.function(module, "bytes")
    variables = space.put(np.frombuffer(module.globals_image, np.uint8))
    out = space.put(np.zeros((len(rows), THREADS, SLOT), np.uint8))
    struct = data[0].tobytes()
    space.launch(
        function, 1, THREADS, space.put(data), out, struct, shared=DYNAMIC, globals_addr=variables
    )
    space.check()
    got = space.read(out, len(rows) * THREADS * SLOT, np.uint8).reshape(len(rows), THREADS, SLOT)
    for row, lines in zip(rows, got, strict=True):
        for before, after in zip(data, lines, strict=True):
            wanted = row.reference(before.tobytes()).ljust(SLOT, b"\0")
            assert after.tobytes() == wanted, (
                f"{row.code}\nof {before.tobytes().hex()} gave {after.tobytes().hex()}, "
                f"not {wanted.hex()}"
            )
