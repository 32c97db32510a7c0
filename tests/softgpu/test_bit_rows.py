"""Bits: logic, shifts, fields, counts, permutations; each type and mode. PTX ISA, 9.7.1, 9.7.8."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.elementwise import Array
from softgpu.harness import Space
from softgpu.rows import EXAMPLES, Row, bits_of, check, operands, operation, signed

WORD = (1 << 32) - 1


def logic(kind: str) -> list[Row]:
    two = (kind, kind)
    return [
        operation(f"and.{kind}", two, operator.and_),
        operation(f"or.{kind}", two, operator.or_),
        operation(f"xor.{kind}", two, operator.xor),
        operation(f"not.{kind}", kind, operator.inv),
        operation(f"cnot.{kind}", kind, operator.not_),
    ]


def on_predicates() -> list[Row]:
    """p is a's lowest bit, q is b's."""
    two = ("u32", "u32")
    test = "setp.ne.u32 {p}, {a}, 0; setp.lt.u32 {q}, {a}, {b}; "
    rows = [
        Row(
            test + f"{name}.pred {{p}}, {{p}}, {{q}};",
            "pred",
            two,
            lambda a, b, f=function: f(a != 0, a < b),
        )
        for name, function in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor))
    ]
    move = "mov.pred {p}, {q};"
    return [
        *rows,
        Row(test + "not.pred {p}, {q};", "pred", two, lambda a, b: not a < b),
        Row(test + move, "pred", two, lambda a, b: a < b),
    ]


def shifts(bits: int) -> list[Row]:
    b, u, s = f"b{bits}", f"u{bits}", f"s{bits}"

    def right(a: int, n: int) -> int:
        return a >> min(n, 64)

    return [
        operation(f"shl.{b}", (b, "u32"), lambda a, n: a << n if n < bits else 0),
        operation(f"shr.{b}", (b, "u32"), right),
        operation(f"shr.{u}", (u, "u32"), right),
        operation(f"shr.{s}", (s, "u32"), right),
        operation(f"shl.{b}", b, lambda a: a << 7, tail=", 7"),
        operation(f"shl.{b}", b, lambda a: 0, tail=", 64"),
        operation(f"shr.{u}", u, lambda a: a >> 7, tail=", 7"),
        operation(f"shr.{s}", s, lambda a: a >> 64, tail=", 64"),
    ]


def funnels() -> list[Row]:
    def shift(mode: str, left: bool) -> Callable[[int, int, int], int]:
        def reference(low: int, high: int, n: int) -> int:
            n = n & 31 if mode == "wrap" else min(n, 32)
            both = high << 32 | low
            return both << n >> 32 if left else both >> n

        return reference

    return [
        operation(f"shf.{side}.{mode}.b32", ("u32",) * 3, shift(mode, side == "l"))
        for side in "lr"
        for mode in ("wrap", "clamp")
    ]


def place(number: int, bits: int) -> int:
    """A position or length: of 32 bits the lowest byte counts, of 64 all of it."""
    return number & 255 if bits == 32 else min(number, 255)


def bfe(kind: str) -> Callable[[int, int, int], int]:
    bits = bits_of(kind)

    def reference(a: int, position: int, length: int) -> int:
        position, length = place(position, bits), place(length, bits)
        if length == 0:
            return 0
        sign = a >> min(position + length - 1, bits - 1) & 1 if kind[0] == "s" else 0
        field = [
            (a >> position + i & 1) if i < length and position + i < bits else sign
            for i in range(bits)
        ]
        return sum(bit << i for i, bit in enumerate(field))

    return reference


def bfi(bits: int) -> Callable[[int, int, int, int], int]:
    def reference(a: int, b: int, position: int, length: int) -> int:
        for i in range(place(length, bits)):
            at = place(position, bits) + i
            if i < bits and at < bits:
                b = b & ~(1 << at) | (a >> i & 1) << at
        return b

    return reference


def fields(bits: int) -> list[Row]:
    b = f"b{bits}"
    kinds = (f"u{bits}", f"s{bits}")
    extract = [operation(f"bfe.{kind}", (kind, "u32", "u32"), bfe(kind)) for kind in kinds]
    insert = [
        operation(
            f"bfi.{b}", (b, b, "u32"), lambda x, y, p, n=n: bfi(bits)(x, y, p, n), tail=f", {n}"
        )
        for n in (0, 1, 8, bits - 1, bits, 255)
    ]
    computed = Row(
        f"bfi.{b} {{d}}, {{a}}, {{b}}, 5, {{c}};",
        b,
        (b, b, "u32"),
        lambda x, y, n: bfi(bits)(x, y, 5, n),
    )
    return [*extract, *insert, computed]


def highest(a: int, bits: int, amount: bool) -> int:
    """bfind: of a value that is not negative, else of its complement."""
    a = a if a >= 0 else ~a
    if a == 0:
        return WORD
    return bits - a.bit_length() if amount else a.bit_length() - 1


def counts(bits: int) -> list[Row]:
    b = f"b{bits}"
    rows = [
        operation(f"popc.{b}", b, int.bit_count, "u32"),
        operation(f"clz.{b}", b, lambda a: bits - a.bit_length(), "u32"),
        operation(f"brev.{b}", b, lambda a: int(f"{a:0{bits}b}"[::-1], 2)),
    ]
    for kind in (f"u{bits}", f"s{bits}"):
        rows += [
            operation(f"bfind.{kind}", kind, lambda a: highest(a, bits, False), "u32"),
            operation(f"bfind.shiftamt.{kind}", kind, lambda a: highest(a, bits, True), "u32"),
        ]
    return rows


def prmt(table: list[str]) -> Callable[[int, int, int], int]:
    def reference(a: int, b: int, selector: int) -> int:
        both = (b << 32 | a).to_bytes(8, "little")
        return int.from_bytes(bytes(both[int(place)] for place in table[selector & 3]), "big")

    return reference


def general(a: int, b: int, selector: int) -> int:
    both, out = (b << 32 | a).to_bytes(8, "little"), 0
    for i in range(4):
        byte = both[selector >> 4 * i & 7]
        if selector >> 4 * i & 8:
            byte = 0xFF if byte & 0x80 else 0
        out |= byte << 8 * i
    return out


# The tables of the ISA's page on prmt, by the selector's low two bits, byte 3 first.
PRMT = {
    "f4e": ["3210", "4321", "5432", "6543"],
    "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"],
    "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"],
    "rc16": ["1010", "3232", "1010", "3232"],
}


def permutations() -> list[Row]:
    three = ("u32",) * 3
    modes = [operation(f"prmt.b32.{mode}", three, prmt(table)) for mode, table in PRMT.items()]
    return [
        operation("prmt.b32", three, general),
        operation("prmt.b32", ("u32", "u32"), lambda a, b: general(a, b, 0x5410), tail=", 0x5410"),
        *modes,
    ]


def bmsk(a: int, b: int, wrap: bool) -> int:
    position, length = (a & 31, b & 31) if wrap else (a, b)
    if position >= 32:
        return 0
    return ((1 << min(length, 32)) - 1) << position


def szext(kind: str, wrap: bool) -> Callable[[int, int], int]:
    def reference(a: int, n: int) -> int:
        n = n & 31 if wrap else min(n, 32)
        if n == 0:
            return 0
        return signed(a, n) if kind == "s32" else a & ((1 << n) - 1)

    return reference


def fns(mask: int, base: int, offset: int) -> int:
    offset = signed(offset, 32)
    order = range(base, 32) if offset > 0 else range(base, -1, -1)
    if offset == 0:
        return base if mask >> base & 1 else WORD
    found = [place for place in order if mask >> place & 1]
    return found[abs(offset) - 1] if abs(offset) <= len(found) else WORD


def masks() -> list[Row]:
    two = ("u32", "u32")
    rows = []
    for mode in ("clamp", "wrap"):
        wrap = mode == "wrap"
        rows.append(operation(f"bmsk.{mode}.b32", two, lambda a, b, w=wrap: bmsk(a, b, w)))
        rows += [operation(f"szext.{mode}.{k}", (k, "u32"), szext(k, wrap)) for k in ("u32", "s32")]
    search = "and.b32 {t}, {b}, 31; "  # a base above 31 has no meaning
    return [
        *rows,
        Row(
            search + "fns.b32 {d}, {a}, {t}, {c};",
            "u32",
            ("u32",) * 3,
            lambda a, b, c: fns(a, b & 31, c),
        ),
        Row(
            search + "and.b32 {u}, {c}, 15; sub.s32 {u}, {u}, 8; fns.b32 {d}, {a}, {t}, {u};",
            "u32",
            ("u32",) * 3,
            lambda a, b, c: fns(a, b & 31, (c & 15) - 8),
        ),
    ]


def lookup(table: int) -> Callable[[int, int, int], int]:
    def reference(a: int, b: int, c: int) -> int:
        return sum(
            (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i
            for i in range(32)
        )

    return reference


def tables(which: range | tuple[int, ...]) -> list[Row]:
    return [
        operation("lop3.b32", ("u32",) * 3, lookup(table), tail=f", {table:#x}") for table in which
    ]


def with_predicate() -> list[Row]:
    """lop3.bool: d is not zero, or (and) c < b."""
    test = "setp.lt.u32 {q}, {c}, {b}; "
    return [
        Row(
            f"{test}lop3.{name}.b32 {target}|{{p}}, {{a}}, {{b}}, {{c}}, {table:#x}, {{q}};",
            "pred",
            ("u32",) * 3,
            lambda a, b, c, f=function, t=table: f(lookup(t)(a, b, c) != 0, c < b),
        )
        for name, function in (("and", operator.and_), ("or", operator.or_))
        for target, table in (("{d}", 0x80), ("_", 0x24))
    ]


FAMILIES: dict[str, list[Row]] = {
    "logic": [*on_predicates(), *(row for kind in ("b16", "b32", "b64") for row in logic(kind))],
    "shifts": [*shifts(16), *shifts(32), *shifts(64), *funnels()],
    "fields": [*fields(32), *fields(64), *masks()],
    "counts": [*counts(32), *counts(64), *permutations()],
    "lop3": [*tables((0x00, 0x01, 0x17, 0x3C, 0x80, 0x96, 0xCA, 0xFE, 0xFF)), *with_predicate()],
}


@pytest.mark.parametrize("family", FAMILIES)
@EXAMPLES
@given(bits=operands())
def test_bits(kernels: Loader, space: Space, family: str, bits: Array) -> None:
    check(kernels, space, FAMILIES[family], bits)


@pytest.mark.slow
@EXAMPLES
@given(bits=operands())
def test_every_table_of_lop3(kernels: Loader, space: Space, bits: Array) -> None:
    check(kernels, space, tables(range(256)), bits)


SHIFTED = """.version 9.0
.target sm_90
.address_size 64
.visible .entry shifted(.param .u64 out)
{
    .reg .b32 %me, %left, %right; .reg .b64 %out, %at, %index, %wide;
    mov.u32 %me, %tid.x;
    ld.param.u64 %out, [out];
    mul.wide.u32 %at, %me, 16;
    add.u64 %out, %out, %at;
    shl.b32 %left, %me, -100;
    shr.s32 %right, -5, -1;
    cvt.s64.s32 %wide, %me;
    add.u64 %wide, %out, %wide;
    shl.b64 %index, %wide, -2;
    add.u64 %out, %out, %index;
    st.global.v2.u32 [%out], {%left, %right};
    st.global.u64 [%out+8], %index;
    ret;
}
"""


def test_a_negative_constant_shifts_everything_out(kernels: Loader, space: Space) -> None:
    """A shift count is unsigned, and clamped."""
    function = kernels.function(kernels.module(SHIFTED.encode(), 1), "shifted")
    out = space.put(np.full(64 * 4, 7, np.uint32))
    space.launch(function, 1, 64, out)
    space.check()
    got = space.read(out, 64 * 4, np.uint32).reshape(64, 4)
    assert (got == [0, 0xFFFFFFFF, 0, 0]).all()
