"""Video instructions on parts of their operands, against the ISA's pseudo-code in exact integers.
PTX ISA, 9.7.16 and 9.7.17. (Packed ones on whole operands: test_integer_rows.py.)"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.elementwise import Array
from softgpu.harness import Space
from softgpu.rows import EXAMPLES, Row, check, operands, signed

THREE = ("b32",) * 3
KINDS = [(d, a, b) for d in ("u32", "s32") for a in ("u32", "s32") for b in ("u32", "s32")]
PARTS = ("", ".b0", ".b1", ".b2", ".b3", ".h0", ".h1")
WIDTH = {"": 32, "b": 8, "h": 16}
TESTS = ("eq", "ne", "lt", "le", "gt", "ge")


def average(x: int, y: int) -> int:
    """A half goes away from zero."""
    total = x + y
    return (abs(total) + 1) // 2 * (1 if total >= 0 else -1)


SCALAR: dict[str, Callable[[int, int], int]] = {
    "vadd": operator.add,
    "vsub": operator.sub,
    "vabsdiff": lambda x, y: abs(x - y),
    "vmin": min,
    "vmax": max,
}


def place_of(part: str) -> tuple[int, int]:
    """The first bit of a part, and its number of bits."""
    bits = WIDTH[part[1:2]]
    return (int(part[2:]) * bits if part else 0), bits


def taken(value: int, part: str, kind: str) -> int:
    place, bits = place_of(part)
    found = value >> place & (1 << bits) - 1
    return signed(found, bits) if kind == "s32" else found


def limited(value: int, kind: str, bits: int) -> int:
    low = -1 << (bits - 1) if kind == "s32" else 0
    return max(low, min(low + (1 << bits) - 1, value))


def finished(value: int, c: int, kind: str, sat: bool, second: str, into: str) -> int:
    place, bits = place_of(into)
    if sat:
        value = limited(value, kind, bits)
    if second == "add":
        return value + c
    if second:
        pair = (value % 2**32, c)
        if kind == "s32":
            pair = (signed(pair[0], 32), signed(c, 32))
        return min(pair) if second == "min" else max(pair)
    mask = (1 << bits) - 1 << place
    return (c & ~mask if into else 0) | value << place & mask


def endings() -> Iterator[tuple[str, str, str]]:
    """.sat, the second operation and the part of d, over and over."""
    second = [("", into) for into in PARTS] + [(s, "") for s in ("add", "min", "max")]
    return itertools.cycle(
        (sat, operation, into) for operation, into in second for sat in ("", ".sat")
    )


def scalar_row(
    name: str,
    kinds: tuple[str, str, str],
    parts: tuple[str, str],
    ending: tuple[str, str, str],
    one: Callable[[int, int], int],
    middle: str = "",
) -> Row:
    to, a_kind, b_kind = kinds
    a_part, b_part = parts
    sat, second, into = ending

    def reference(a: int, b: int, c: int) -> int:
        value = one(taken(a, a_part, a_kind), taken(b, b_part, b_kind))
        return finished(value, c, to, bool(sat), second, into)

    words = f"{sat}{middle}{'.' + second if second else ''}"
    last = ", {c}" if second or into else ""
    code = f"{name}{words} {{d}}{into}, {{a}}{a_part}, {{b}}{b_part}{last};"
    return Row(code, "b32", THREE, reference)


def scalar() -> list[Row]:
    rows = []
    ends, parts = endings(), itertools.cycle(itertools.product(PARTS, reversed(PARTS)))
    for name, one in SCALAR.items():
        for kinds in KINDS * 3:
            code = f"{name}.{'.'.join(kinds)}"
            rows.append(scalar_row(code, kinds, next(parts), next(ends), one))
    return rows


def shifts() -> list[Row]:
    rows = []
    ends, parts = endings(), itertools.cycle(itertools.product(PARTS, reversed(PARTS)))
    for name, mode, to, kind in itertools.product(
        ("vshl", "vshr"), ("clamp", "wrap"), ("u32", "s32"), ("u32", "s32")
    ):

        def shifted(a: int, b: int, name: str = name, mode: str = mode) -> int:
            count = min(b, 32) if mode == "clamp" else b & 31
            return a << count if name == "vshl" else a >> count

        for _ in range(4):
            kinds = (to, kind, "u32")
            code = ".".join((name, *kinds))
            rows.append(scalar_row(code, kinds, next(parts), next(ends), shifted, f".{mode}"))
    return rows


def comparisons() -> list[Row]:
    rows = []
    ends, parts = endings(), itertools.cycle(itertools.product(PARTS, reversed(PARTS)))
    for test, a_kind, b_kind in itertools.product(TESTS, ("u32", "s32"), ("u32", "s32")):
        code = f"vset.{a_kind}.{b_kind}.{test}"
        ending = ("", *next(ends)[1:])
        next(ends)
        rows.append(
            scalar_row(code, ("u32", a_kind, b_kind), next(parts), ending, getattr(operator, test))
        )
    return rows


def products() -> list[Row]:
    """Negation is by complement, and one more."""
    rows = []
    parts = itertools.cycle(itertools.product(PARTS, reversed(PARTS)))
    modes = [
        ("", "", "", ""),
        (".po", "", "", ""),
        ("", "-", "", ""),
        ("", "", "-", ""),
        ("", "", "", "-"),
    ]
    for (po, minus_a, minus_b, minus_c), a_kind, b_kind, sat, scale in itertools.product(
        modes, ("u32", "s32"), ("u32", "s32"), ("", ".sat"), ("", ".shr7", ".shr15")
    ):
        a_part, b_part = next(parts)
        less = minus_a != minus_b
        sign = "s32" if less or minus_c or "s32" in (a_kind, b_kind) else "u32"

        def reference(
            a: int,
            b: int,
            c: int,
            kinds: tuple[str, str] = (a_kind, b_kind),
            of: tuple[str, str] = (a_part, b_part),
            less: bool = less,
            sign: str = sign,
            minus_c: str = minus_c,
            po: str = po,
            sat: str = sat,
            scale: str = scale,
        ) -> int:
            product = taken(a, of[0], kinds[0]) * taken(b, of[1], kinds[1])
            product = ~product if less else product
            c = c ^ 0xFFFFFFFF if minus_c else c
            total = product + (signed(c, 32) if sign == "s32" else c)
            total += bool(po or less or minus_c)
            total >>= int(scale[4:] or 0)
            return limited(total, sign, 32) if sat else total

        code = (
            f"vmad.{sign}.{a_kind}.{b_kind}{po}{sat}{scale} {{d}}, {minus_a}{{a}}{a_part}, "
            f"{minus_b}{{b}}{b_part}, {minus_c}{{c}};"
        )
        rows.append(Row(code, "b32", THREE, reference))
    return rows


# ---- packed, with masks and selectors ------------------------------------------------------------

MASKS = {
    2: ("", ".h0", ".h1", ".h10"),
    4: ("", *(f".b{''.join(d)}" for n in range(1, 5) for d in itertools.combinations("3210", n))),
}
SELECTORS = {
    2: ("", ".h23", ".h00", ".h31", ".h12"),
    4: ("", ".b0123", ".b7777", ".b6420", ".b0715"),
}


def packed(count: int) -> list[Row]:
    bits, rows = 32 // count, []
    full = (1 << bits) - 1
    masks, extras = itertools.cycle(MASKS[count]), itertools.cycle(("", ".sat", ".add"))
    chosen = itertools.cycle(itertools.product(SELECTORS[count], repeat=2))

    def row(
        name: str, kinds: tuple[str, str], extra: str, to: str, one: Callable[[int, int], int]
    ) -> Row:
        mask, (asel, bsel) = next(masks), next(chosen)
        wanted = [int(d) for d in mask[2:]] or list(range(count))
        first = [int(d) for d in reversed(asel[2:])] or list(range(count))
        second = [int(d) for d in reversed(bsel[2:])] or list(range(count, 2 * count))

        def reference(a: int, b: int, c: int) -> int:
            def part(n: int, kind: str) -> int:
                found = (b << 32 | a) >> bits * n & full
                return signed(found, bits) if kind == "s32" else found

            results = [
                one(part(x, kinds[0]), part(y, kinds[1]))
                for x, y in zip(first, second, strict=True)
            ]
            if extra == ".sat":
                results = [limited(r, to, bits) for r in results]
            if extra == ".add":
                return c + sum(results[i] for i in wanted)
            return sum(
                (results[i] & full if i in wanted else c >> bits * i & full) << bits * i
                for i in range(count)
            )

        return Row(
            f"{name}{extra} {{d}}{mask}, {{a}}{asel}, {{b}}{bsel}, {{c}};", "b32", THREE, reference
        )

    for name, one in {**SCALAR, "vavrg": average}.items():
        for a_kind, b_kind in itertools.product(("u32", "s32"), repeat=2):
            to = "s32" if "s32" in (a_kind, b_kind) else "u32"
            code = f"{name}{count}.{to}.{a_kind}.{b_kind}"
            rows.append(row(code, (a_kind, b_kind), next(extras), to, one))
    for test, extra in itertools.product(TESTS, ("", ".add")):
        code = f"vset{count}.u32.s32.{test}"
        rows.append(row(code, ("u32", "s32"), extra, "u32", getattr(operator, test)))
    return rows


FAMILIES: dict[str, list[Row]] = {
    "scalar": scalar(),
    "shifts": [*shifts(), *comparisons()],
    "products": products(),
    "half-words": packed(2),
    "bytes": packed(4),
}


@pytest.mark.usual("bytes", "half-words")
@pytest.mark.parametrize("family", FAMILIES)
@EXAMPLES
@given(bits=operands())
def test_video_instructions(kernels: Loader, space: Space, family: str, bits: Array) -> None:
    check(kernels, space, FAMILIES[family], bits)
