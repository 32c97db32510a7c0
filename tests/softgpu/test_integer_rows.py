"""Integer arithmetic, each instruction and type. PTX ISA, 9.7.1 and 9.7.2."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
from hypothesis import given

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.elementwise import Array
from softgpu.harness import Space
from softgpu.rows import EXAMPLES, Row, bits_of, check, clamp, operands, operation, signed

KINDS = ("u16", "s16", "u32", "s32", "u64", "s64")


def quotient(a: int, b: int) -> int:
    """As the devices do: x / 0 is all ones."""
    if b == 0:
        return -1
    size = abs(a) // abs(b)
    return size if (a < 0) == (b < 0) else -size


def remainder(a: int, b: int) -> int:
    """x % 0 is all ones, too."""
    return -1 if b == 0 else a - b * quotient(a, b)


def arithmetic(kind: str) -> list[Row]:
    bits, two, three = bits_of(kind), (kind,) * 2, (kind,) * 3
    rows = [
        operation(f"add.{kind}", two, operator.add),
        operation(f"sub.{kind}", two, operator.sub),
        operation(f"mul.lo.{kind}", two, operator.mul),
        operation(f"mul.hi.{kind}", two, lambda a, b: a * b >> bits),
        operation(f"mad.lo.{kind}", three, lambda a, b, c: a * b + c),
        operation(f"mad.hi.{kind}", three, lambda a, b, c: (a * b >> bits) + c),
        operation(f"sad.{kind}", three, lambda a, b, c: c + abs(a - b)),
        operation(f"div.{kind}", two, quotient),
        operation(f"rem.{kind}", two, remainder),
        operation(f"min.{kind}", two, min),
        operation(f"max.{kind}", two, max),
        operation(f"add.{kind}", kind, lambda a: a - 7, tail=", -7"),
        operation(f"mul.lo.{kind}", kind, lambda a: a * 100, tail=", 100"),
        operation(f"div.{kind}", kind, lambda a: quotient(a, 7), tail=", 7"),
    ]
    if kind[0] == "s":
        rows += [operation(f"abs.{kind}", kind, abs), operation(f"neg.{kind}", kind, operator.neg)]
    if bits < 64:
        wide = f"{kind[0]}{2 * bits}"
        rows += [
            operation(f"mul.wide.{kind}", two, operator.mul, wide),
            operation(f"mad.wide.{kind}", (kind, kind, wide), lambda a, b, c: a * b + c, wide),
        ]
    return rows


def saturating() -> list[Row]:
    two, three = ("s32",) * 2, ("s32",) * 3
    return [
        operation("add.sat.s32", two, lambda a, b: clamp(a + b, "s32")),
        operation("sub.sat.s32", two, lambda a, b: clamp(a - b, "s32")),
        operation("mad.hi.sat.s32", three, lambda a, b, c: clamp((a * b >> 32) + c, "s32")),
        operation(
            "mad24.hi.sat.s32",
            three,
            lambda a, b, c: clamp(signed(product24("s32", a, b) >> 16, 32) + c, "s32"),
        ),
        operation("min.relu.s32", two, lambda a, b: max(min(a, b), 0)),
        operation("max.relu.s32", two, lambda a, b: max(a, b, 0)),
    ]


def product24(kind: str, a: int, b: int) -> int:
    if kind == "s32":
        return signed(a, 24) * signed(b, 24)
    return (a & 0xFFFFFF) * (b & 0xFFFFFF)


def of_24_bits(kind: str) -> list[Row]:
    two, three = (kind,) * 2, (kind,) * 3
    return [
        operation(f"mul24.lo.{kind}", two, lambda a, b: product24(kind, a, b)),
        operation(f"mul24.hi.{kind}", two, lambda a, b: product24(kind, a, b) >> 16),
        operation(f"mad24.lo.{kind}", three, lambda a, b, c: product24(kind, a, b) + c),
        operation(f"mad24.hi.{kind}", three, lambda a, b, c: (product24(kind, a, b) >> 16) + c),
    ]


def carries(kind: str) -> list[Row]:
    """The carry of the first instruction is seen through the second one, that of the second through
    a third: {t}, {u} are the words below."""
    bits = bits_of(kind)
    full, three = 1 << bits, (kind,) * 3

    def chain(first: str, second: str, value: Callable[[int, int, int], int]) -> Row:
        """Two words (b:a) op (c:b), and the carry of that, in one number."""
        name = first.split(".")[0]
        third = f"{'addc' if name != 'sub' else 'subc'}.{kind} {{d}}, 0, 0;"
        code = (
            f"{first}.{kind} {{t}}, {{a}}, {{b}}; {second}.cc.{kind} {{u}}, {{b}}, {{c}}; {third}"
            f" shl.b{bits} {{u}}, {{u}}, 3; xor.b{bits} {{d}}, {{d}}, {{u}};"
            f" xor.b{bits} {{d}}, {{d}}, {{t}};"
        )

        def reference(a: int, b: int, c: int) -> int:
            a, b, c = (x % full for x in (a, b, c))
            total = value(b << bits | a, c << bits | b, 2 * bits)
            low, high = total % full, (total >> bits) % full
            carry = total >> 2 * bits
            return carry ^ high << 3 ^ low

        return Row(code, kind, three, reference)

    def carried(a: int, b: int, c: int) -> int:
        return c + (a % full >= b % full)

    def borrowed(a: int, b: int, c: int) -> int:
        return c - (a % full + b % full < full)

    return [
        chain("add.cc", "addc", lambda x, y, _: x + y),
        chain("sub.cc", "subc", lambda x, y, _: x - y),
        # The two kinds mixed, as nvcc's 128-bit division has them: a borrow is no carry.
        Row(
            f"sub.cc.{kind} {{t}}, {{a}}, {{b}}; addc.{kind} {{d}}, {{c}}, 0;", kind, three, carried
        ),
        Row(
            f"add.cc.{kind} {{t}}, {{a}}, {{b}}; subc.{kind} {{d}}, {{c}}, 0;",
            kind,
            three,
            borrowed,
        ),
        *products(kind),
    ]


def products(kind: str) -> list[Row]:
    """mad.cc, madc.lo, madc.hi: a * b + c with the carry into the upper word."""
    bits, three = bits_of(kind), (kind,) * 3
    full = 1 << bits

    def high(a: int, b: int, c: int) -> int:
        return (a * b >> bits) + (((a * b) % full + c % full) >> bits)

    def low(a: int, b: int, c: int) -> int:
        carry = ((a * b >> bits) % full + c % full) >> bits
        return a * b + c + carry

    def out(a: int, b: int, c: int) -> int:
        carry = ((a * b) % full + c % full) >> bits
        return ((a * b >> bits) % full + c % full + carry) >> bits

    first = f"mad.lo.cc.{kind} {{t}}, {{a}}, {{b}}, {{c}};"
    return [
        Row(f"{first} madc.hi.{kind} {{d}}, {{a}}, {{b}}, 0;", kind, three, high),
        Row(
            f"mad.hi.cc.{kind} {{t}}, {{a}}, {{b}}, {{c}};"
            f" madc.lo.{kind} {{d}}, {{a}}, {{b}}, {{c}};",
            kind,
            three,
            low,
        ),
        Row(
            f"{first} madc.hi.cc.{kind} {{t}}, {{a}}, {{b}}, {{c}}; addc.{kind} {{d}}, 0, 0;",
            kind,
            three,
            out,
        ),
    ]


def parts(value: int, bits: int, kind: str) -> list[int]:
    cut = [value >> place & ((1 << bits) - 1) for place in range(0, 32, bits)]
    return [signed(x, bits) for x in cut] if kind[0] == "s" else cut


def dot(bits: int, a: str, b: str, first: int = 0) -> Callable[[int, int, int], int]:
    """z + x's parts of so many bits times as many bytes of y, from the first one on."""

    def reference(x: int, y: int, z: int) -> int:
        pairs = zip(parts(x, bits, a), parts(y, 8, b)[first:], strict=False)
        return z + sum(one * other for one, other in pairs)

    return reference


def dots() -> list[Row]:
    rows = []
    for a in ("u32", "s32"):
        for b in ("u32", "s32"):
            total = "s32" if "s32" in (a, b) else "u32"
            kinds = ("u32", "u32", total)
            rows += [
                operation(f"dp4a.{a}.{b}", kinds, dot(8, a, b), total),
                operation(f"dp2a.lo.{a}.{b}", kinds, dot(16, a, b), total),
                operation(f"dp2a.hi.{a}.{b}", kinds, dot(16, a, b, 2), total),
            ]
    return rows


def packed(kind: str) -> list[Row]:
    """u16x2, s16x2: both halves, each for itself."""

    def halves(one: Callable[[int, int], int]) -> Callable[[int, int], int]:
        def reference(a: int, b: int) -> int:
            low, high = map(one, parts(a, 16, kind), parts(b, 16, kind))
            return (high & 0xFFFF) << 16 | low & 0xFFFF

        return reference

    two = ("u32", "u32")
    rows = [
        operation(f"add.{kind}", two, halves(operator.add)),
        operation(f"min.{kind}", two, halves(min)),
        operation(f"max.{kind}", two, halves(max)),
    ]
    if kind == "s16x2":
        rows += [
            operation("min.relu.s16x2", two, halves(lambda a, b: max(min(a, b), 0))),
            operation("max.relu.s16x2", two, halves(lambda a, b: max(a, b, 0))),
        ]
    return rows


VIDEO: dict[str, Callable[[int, int], int]] = {
    "vadd": operator.add,
    "vsub": operator.sub,
    "vabsdiff": lambda x, y: abs(x - y),
    "vmin": min,
    "vmax": max,
}


def video(count: int) -> list[Row]:
    """On all parts of a and b: packed, clamped, or added to c."""
    bits, rows, three = 32 // count, [], ("u32",) * 3

    def of_parts(
        a_kind: str, b_kind: str, one: Callable[[int, int], int], total: bool
    ) -> Callable[[int, int, int], int]:
        def reference(a: int, b: int, c: int) -> int:
            results = list(map(one, parts(a, bits, a_kind), parts(b, bits, b_kind)))
            if total:
                return c + sum(results)
            return sum((r & ((1 << bits) - 1)) << bits * i for i, r in enumerate(results))

        return reference

    for a, b in (("u32", "u32"), ("s32", "s32"), ("u32", "s32")):
        for name, one in VIDEO.items():
            to = "s32" if "s32" in (a, b) else "u32"

            def clamped(x: int, y: int, one: Callable[[int, int], int] = one, to: str = to) -> int:
                return clamp(one(x, y), f"{to[0]}{bits}")

            code = f"{name}{count}.{to}.{a}.{b}"
            rows += [
                operation(code, three, of_parts(a, b, one, False)),
                operation(f"{code}.sat", three, of_parts(a, b, clamped, False)),
                operation(f"{code}.add", three, of_parts(a, b, one, True)),
            ]
        for test in ("eq", "ne", "lt", "le", "gt", "ge"):
            holds = getattr(operator, test)
            rows += [
                operation(f"vset{count}.{a}.{b}.{test}", three, of_parts(a, b, holds, False)),
                operation(f"vset{count}.{a}.{b}.{test}.add", three, of_parts(a, b, holds, True)),
            ]
    return rows


FAMILIES: dict[str, list[Row]] = {
    **{kind: arithmetic(kind) for kind in KINDS},
    "24 bits": [*of_24_bits("u32"), *of_24_bits("s32"), *saturating()],
    "carry": [row for kind in ("u32", "s32", "u64", "s64") for row in carries(kind)],
    "video": [*video(2), *video(4)],
    "parts": [*dots(), *packed("u16x2"), *packed("s16x2")],
}


@pytest.mark.usual("24 bits", "carry", "parts", "s16", "s32", "s64", "u16", "u32", "u64")
@pytest.mark.parametrize("family", FAMILIES)
@EXAMPLES
@given(bits=operands())
def test_integer_arithmetic(kernels: Loader, space: Space, family: str, bits: Array) -> None:
    check(kernels, space, FAMILIES[family], bits)
