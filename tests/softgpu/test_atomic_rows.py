"""Atomics and reductions: every operation, type, space and meaning. PTX ISA, 9.7.13."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.bytewise import Row, check, inputs
from softgpu.elementwise import Array
from softgpu.harness import Space
from softgpu.rows import EXAMPLES, bits_of, signed

Operation = Callable[[int, int], int]
BITWISE: dict[str, Operation] = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
# an operation and its types on integers; their values are patterns
OPERATIONS: list[tuple[str, tuple[str, ...], Operation]] = [
    ("add", ("u32", "s32", "u64"), operator.add),
    ("min", ("u32", "u64", "s32", "s64"), min),
    ("max", ("u32", "u64", "s32", "s64"), max),
    ("inc", ("u32",), lambda old, b: 0 if old >= b else old + 1),
    ("dec", ("u32",), lambda old, b: b if old == 0 or old > b else old - 1),
    *((name, ("b32", "b64"), function) for name, function in BITWISE.items()),
]
# how a space is written in the instruction, and where the slot is; two are generic addresses
SPACES = (
    (".global", "%out"),
    (".shared", "%sh"),
    ("", "%gout"),
    ("", "%gsh"),
    (".shared::cta", "%sh"),
)


def of_type(data: bytes, kind: str) -> int:
    value = int.from_bytes(data, "little")
    return signed(value, bits_of(kind)) if kind[0] == "s" else value


def changed(
    kind: str, size: int, place: int, new: Callable[[bytes, bytes, bytes], bytes], old: bool
) -> Callable[[bytes], bytes]:
    """From the input (what is there, b, c, each in 8 bytes) to the output: what is left at
    `place`, and what was found at 16."""

    def reference(data: bytes) -> bytes:
        before, b, c = (data[at : at + size] for at in (0, 8, 16))
        out = bytearray(32)
        out[place : place + size] = new(before, b, c)
        if old:
            out[16 : 16 + size] = before
        return bytes(out)

    return reference


def row(
    instruction: str,
    kind: str,
    new: Callable[[bytes, bytes, bytes], bytes],
    dot: str = ".global",
    slot: str = "%out",
    operands: str = "b",
) -> Row:
    """One atomic on the thread's slot. `instruction` without type: ``atom.global.add``."""
    size = {"f16": 2, "bf16": 2, "f16x2": 4, "bf16x2": 4}.get(kind) or bits_of(kind) // 8
    bits = f"b{8 * size}"
    declared = kind if kind in ("f32", "f64") else bits
    atom = instruction.startswith("atom")
    code = f".reg .{declared} o, b, c; .reg .{bits} x; ld.global.{bits} x, [%in];"
    code += f" ld.global.{declared} b, [%in+8]; ld.global.{declared} c, [%in+16];"
    code += f" st{dot}.{bits} [{slot}], x; {instruction}.{kind} "
    code += f"{'o, ' if atom else ''}[{slot}], {operands};"
    code += f" ld{dot}.{bits} x, [{slot}]; st.global.{bits} [%out], x;"
    if atom:
        code += f" st.global.{declared} [%out+16], o;"
    return Row(code, changed(kind, size, 0, new, atom))


def on_integers(which: str) -> list[Row]:
    """atom or red, in every space."""
    rows = []
    for dot, slot in SPACES:
        for name, kinds, function in OPERATIONS:
            for kind in kinds:
                size = bits_of(kind) // 8

                def new(
                    old: bytes,
                    b: bytes,
                    _c: bytes,
                    f: Operation = function,
                    k: str = kind,
                    n: int = size,
                ) -> bytes:
                    value = f(of_type(old, k), of_type(b, k))
                    return (value % (1 << 8 * n)).to_bytes(n, "little")

                rows.append(row(f"{which}{dot}.{name}", kind, new, dot, slot))
    return rows


def if_equal(old: bytes, b: bytes, c: bytes) -> bytes:
    return c if old == b else old


def exchanges() -> list[Row]:
    rows = []
    for dot, slot in SPACES:
        for kind in ("b32", "b64"):
            rows.append(row(f"atom{dot}.exch", kind, lambda old, b, c: b, dot, slot))
        for kind in ("b16", "b32", "b64"):
            rows.append(row(f"atom{dot}.cas", kind, if_equal, dot, slot, "b, c"))
    return [*rows, *wide()]


def wide() -> list[Row]:
    """128 bits: the slot is 16 bytes; x is what is there and, for cas, what is expected if the
    input's last byte is even."""
    rows = []
    regs = (
        ".reg .b128 x, o, n; .reg .b64 l, h; .reg .b32 w; .reg .pred p; ld.global.b128 x, [%in];"
        " ld.global.b128 n, [%in+16]; ld.global.u8 w, [%in+31]; and.b32 w, w, 1;"
    )
    for space, slot in (("global", "%out"), ("shared", "%sh"), ("", "%gout")):
        dot = f".{space}" if space else ""
        end = f" ld{dot}.b128 x, [{slot}]; st.global.b128 [%out+16], o; st.global.b128 [%out], x;"
        put = f" st{dot}.b128 [{slot}], x;"
        expected = " mov.b128 {l, h}, x; cvt.u64.u32 l, w; @p mov.b128 x, {l, h};"
        rows += [
            Row(
                f"{regs}{put} atom{dot}.exch.b128 o, [{slot}], n; {end}", lambda d: d[16:] + d[:16]
            ),
            Row(
                f"{regs}{put} setp.eq.u32 p, w, 1; {expected}"
                f" atom{dot}.cas.b128 o, [{slot}], x, n; {end}",
                expected_or_not,
            ),
        ]
    return rows


def expected_or_not(data: bytes) -> bytes:
    odd = data[31] & 1
    same = not odd or data[:8] == bytes([1]) + bytes(7)
    return (data[16:] if same else data[:16]) + data[:16]


# ---- floating point: added with one rounding -------------------------------------------------

NUMPY = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def add_floats(kind: str) -> Callable[[bytes, bytes, bytes], bytes]:
    single = kind.removesuffix("x2")
    size = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}[single]

    def one(a: bytes, b: bytes) -> bytes:
        if single == "bf16":
            x, y = (struct.unpack("<f", b"\0\0" + v)[0] for v in (a, b))
            return bfloat(np.float32(x) + np.float32(y))
        x, y = (np.frombuffer(v, NUMPY[single])[0] for v in (a, b))
        return (x + y).tobytes()  # type: ignore[no-any-return]

    def new(old: bytes, b: bytes, _c: bytes) -> bytes:
        with np.errstate(all="ignore"):
            return b"".join(
                one(old[i : i + size], b[i : i + size]) for i in range(0, len(old), size)
            )

    return new


def bfloat(value: np.float32) -> bytes:
    """To the nearest, ties to even."""
    bits = int(value.view(np.uint32))
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 & 0xFFFF).to_bytes(2, "little")


def on_floats(which: str) -> list[Row]:
    rows = []
    for dot, slot in SPACES:
        for kind in ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2"):
            noftz = ".noftz" if "16" in kind else ""
            rows.append(row(f"{which}{dot}.add{noftz}", kind, add_floats(kind), dot, slot))
    return rows


def sums(size: int, new: Callable[[bytes, bytes, bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda data: new(data[:size], data[16 : 16 + size], b"")


def with_old(total: Callable[[bytes], bytes], size: int) -> Callable[[bytes], bytes]:
    return lambda data: total(data).ljust(16, b"\0") + data[:size]


def of_vectors() -> list[Row]:
    rows = []
    for kind, count in (
        ("f32", 2),
        ("f32", 4),
        ("f16", 2),
        ("bf16", 4),
        ("f16x2", 2),
        ("bf16x2", 2),
        ("f16", 8),
    ):
        size = {"f16": 2, "bf16": 2, "f32": 4, "f16x2": 4, "bf16x2": 4}[kind]
        declared = kind if kind == "f32" else f"b{8 * size}"
        x, y, o = ("{" + ", ".join(f"{n}{i}" for i in range(count)) + "}" for n in "xyo")
        noftz = ".noftz" if "16" in kind else ""
        code = f".reg .{declared} " + ", ".join(v.strip("{}") for v in (x, y, o)) + ";"
        for i in range(count):
            code += f" ld.global.{declared} x{i}, [%in+{size * i}];"
            code += f" ld.global.{declared} y{i}, [%in+{16 + size * i}];"
            code += f" st.global.{declared} [%out+{size * i}], x{i};"
        red = code + f" red.global.add{noftz}.v{count}.{kind} [%out], {y};"
        atom = code + f" atom.global.add{noftz}.v{count}.{kind} {o}, [%out], {y};"
        for i in range(count):
            atom += f" st.global.{declared} [%out+{16 + size * i}], o{i};"
        total = sums(size * count, add_floats(kind))
        rows += [
            Row(red, total),
            Row(atom, with_old(total, size * count)),
        ]
    return rows


def tame(data: Array) -> Array:
    """Without NaNs, whose bits no rule promises: no format has its exponent full."""
    return data & np.uint8(0xBF)


# ---- order and scope -------------------------------------------------------------------------


def qualified() -> list[Row]:
    def total(old: bytes, b: bytes, _c: bytes) -> bytes:
        value = int.from_bytes(old, "little") + int.from_bytes(b, "little")
        return (value % (1 << 32)).to_bytes(4, "little")

    rows = []
    for scope in ("", ".cta", ".cluster", ".gpu", ".sys"):
        for order in ("", ".relaxed", ".acquire", ".release", ".acq_rel"):
            rows.append(row(f"atom{order}{scope}.global.add", "u32", total))
        for order in ("", ".relaxed", ".release"):
            rows.append(row(f"red{order}{scope}.shared.add", "u32", total, ".shared", "%sh"))
    policy = "createpolicy.fractional.L2::evict_last.b64 q, 1.0;"
    hinted = row("atom.global.add.L2::cache_hint", "u32", total, operands="b, q")
    return [*rows, Row(f".reg .b64 q; {policy} {{ {hinted.code} }}", hinted.reference)]


FAMILIES: dict[str, list[Row]] = {
    "atom": on_integers("atom"),
    "red": on_integers("red"),
    "exchange": [*exchanges(), *qualified()],
    "floats": [*on_floats("atom"), *on_floats("red"), *of_vectors()],
}


@pytest.mark.parametrize("family", FAMILIES)
@EXAMPLES
@given(data=inputs())
def test_atomics(kernels: Loader, space: Space, family: str, data: Array) -> None:
    if family == "exchange":
        data = data.copy()
        data[::3, 8:16] = data[::3, :8]  # where cas finds what it expects
    check(kernels, space, FAMILIES[family], tame(data) if family == "floats" else data)


CONTENDED = """
.version 8.6
.target sm_90
.address_size 64
.visible .entry contended(.param .u64 memory, .param .u64 seen)
{
    .shared .align 8 .b32 here[4];
    .reg .b32 %t, %n, %c, %x; .reg .b64 %m, %s, %o; .reg .f32 %f; .reg .pred %p;
    mov.u32 %t, %tid.x; mov.u32 %n, %ntid.x; mov.u32 %c, %ctaid.x;
    ld.param.u64 %m, [memory]; ld.param.u64 %s, [seen];
    setp.lt.u32 %p, %t, 4;
    @%p shl.b32 %x, %t, 2;
    @%p st.shared.b32 [%x], 0;
    bar.sync 0;
    mad.lo.u32 %n, %c, %n, %t;
    mul.wide.u32 %o, %n, 4;
    add.u64 %s, %s, %o;
    atom.global.add.u32 %x, [%m], 1;        // each number once
    st.global.u32 [%s], %x;
    red.global.max.u32 [%m+4], %n;
    red.global.or.b32 [%m+8], %n;
    cvt.rn.f32.u32 %f, %t;
    red.global.add.f32 [%m+12], %f;         // small integers: exact in any order
    atom.global.inc.u32 %x, [%m+16], 6;
    atom.shared.add.u32 %x, [here], %t;
    red.shared.xor.b32 [here+4], %t;
    bar.sync 0;
    setp.eq.u32 %p, %t, 0;
    @!%p bra END;
    ld.shared.u32 %x, [here];
    red.global.add.u32 [%m+20], %x;
    ld.shared.u32 %x, [here+4];
    red.global.xor.b32 [%m+24], %x;
END:
    ret;
}
"""


def test_many_threads_at_one_place(kernels: Loader, space: Space) -> None:
    blocks, threads = 7, 96
    count = blocks * threads
    memory, seen = space.put(np.zeros(8, np.uint32)), space.put(np.zeros(count, np.uint32))
    function = kernels.function(kernels.module(CONTENDED.encode(), 1), "contended")
    space.launch(function, blocks, threads, memory, seen)
    space.check()
    assert sorted(space.read(seen, count, np.uint32)) == list(range(count))
    got = space.read(memory, 8, np.uint32).tolist()
    total = blocks * math.comb(threads, 2)
    xor = 0
    for t in range(threads):
        xor ^= t
    each = xor if blocks % 2 else 0
    single = int(np.float32(total).view(np.uint32))
    assert got == [count, count - 1, 1023, single, count % 7, total, each, 0]
