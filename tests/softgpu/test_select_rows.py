"""Comparisons, selections, moves and integer conversions. PTX ISA, 9.7.6, 9.7.7, 9.7.9."""

from __future__ import annotations

import itertools
import math
import operator
import struct
from collections.abc import Callable

import pytest
from hypothesis import given

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.elementwise import Array
from softgpu.harness import Space
from softgpu.rows import EXAMPLES, Row, bits_of, check, clamp, operands, operation, signed

Test = Callable[[float, float], bool]
ORDERED: dict[str, Test] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
UNSIGNED: dict[str, Test] = {
    "lo": operator.lt,
    "ls": operator.le,
    "hi": operator.gt,
    "hs": operator.ge,
}
BOOL = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")


# ---- integers ---------------------------------------------------------------------------------


def comparisons_of(kind: str) -> dict[str, Test]:
    if kind[0] == "b":
        return {name: ORDERED[name] for name in ("eq", "ne")}
    return ORDERED | (UNSIGNED if kind[0] == "u" else {})


def integer_comparisons() -> list[Row]:
    rows = []
    for kind in (*INTEGERS, "b16", "b32", "b64"):
        two = (kind, kind)
        for name, test in comparisons_of(kind).items():
            rows.append(operation(f"setp.{name}.{kind}", two, test, "pred"))
    for kind in INTEGERS:
        two = (kind, kind)
        rows += [
            operation(f"set.lt.u32.{kind}", two, lambda a, b: -(a < b), "u32"),
            operation(f"set.ne.s32.{kind}", two, lambda a, b: -(a != b), "s32"),
            operation(f"set.ge.f32.{kind}", two, lambda a, b: 0x3F800000 * (a >= b), "b32"),
        ]
    return rows


def combined() -> list[Row]:
    """With a third predicate, c is odd; both results."""
    odd = "{{ .reg .b32 m; and.b32 m, {c}, 1; setp.eq.u32 {q}, m, 1; }} "
    kinds, rows = ("s32", "s32", "u32"), []
    for name, both in BOOL.items():

        def first(a: int, b: int, c: int, both: Test = both) -> int:
            return both(a < b, bool(c & 1))

        def second(a: int, b: int, c: int, both: Test = both) -> int:
            return both(not a < b, not c & 1)

        rows += [
            Row(f"{odd}setp.lt.{name}.s32 {{p}}, {{a}}, {{b}}, {{q}};", "pred", kinds, first),
            Row(f"{odd}setp.lt.{name}.s32 {{p}}|{{q}}, {{a}}, {{b}}, {{q}};", "pred", kinds, first),
            Row(
                f"{odd}setp.lt.{name}.s32 {{q}}|{{p}}, {{a}}, {{b}}, !{{q}};", "pred", kinds, second
            ),
            Row(
                f"{{{{ .reg .pred o; and.b32 {{t}}, {{c}}, 1; setp.eq.u32 o, {{t}}, 1;"
                f" set.lt.{name}.u32.s32 {{d}}, {{a}}, {{b}}, o; }}}}",
                "u32",
                kinds,
                lambda a, b, c, f=first: -f(a, b, c),
            ),
        ]
    return rows


def selections() -> list[Row]:
    rows = []
    for kind in ("b16", "b32", "b64", *INTEGERS, "f32", "f64"):
        stored = {"f32": "b32", "f64": "b64"}.get(kind, kind)
        rows += [
            Row(
                f"setp.lt.u32 {{p}}, {{c}}, 99; selp.{kind} {{d}}, {{a}}, {{b}}, {{p}};",
                stored,
                (stored, stored, "u32"),
                lambda a, b, c: a if c < 99 else b,
            ),
            operation(
                f"slct.{kind}.s32",
                (stored, stored, "s32"),
                lambda a, b, c: a if c >= 0 else b,
                stored,
            ),
            operation(
                f"slct.{kind}.f32",
                (stored, stored, "f32"),
                lambda a, b, c: a if number("f32", c) >= 0 else b,
                stored,
            ),
        ]
    flushing = operation(
        "slct.ftz.u32.f32",
        ("u32", "u32", "f32"),
        lambda a, b, c: a if flushed("f32", c) >= 0 else b,
    )
    return [*rows, flushing]


# ---- floating point ---------------------------------------------------------------------------

FORMAT = {"f16": "<e", "f32": "<f", "f64": "<d"}
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
LEAST_NORMAL = {"f16": 2.0**-14, "bf16": 2.0**-126, "f32": 2.0**-126, "f64": 2.0**-1022}


def number(kind: str, bits: int) -> float:
    if kind == "bf16":
        kind, bits = "f32", bits << 16
    return float(struct.unpack(FORMAT[kind], bits.to_bytes(BYTES[kind], "little"))[0])


def flushed(kind: str, bits: int) -> float:
    value = number(kind, bits)
    return math.copysign(0.0, value) if abs(value) < LEAST_NORMAL[kind] else value


def with_nan(test: Test, unordered: bool) -> Test:
    return lambda a, b: unordered if math.isnan(a) or math.isnan(b) else test(a, b)


FLOAT_TESTS = {
    **{name: with_nan(test, False) for name, test in ORDERED.items()},
    **{name + "u": with_nan(test, True) for name, test in ORDERED.items()},
    "num": with_nan(lambda a, b: True, False),
    "nan": with_nan(lambda a, b: False, True),
}


def float_comparisons(kind: str) -> list[Row]:
    stored = "b16" if BYTES[kind] == 2 else kind
    two, rows = (stored, stored), []
    for name, test in FLOAT_TESTS.items():

        def plain(a: int, b: int, test: Test = test) -> bool:
            return test(number(kind, a), number(kind, b))

        def ftz(a: int, b: int, test: Test = test) -> bool:
            return test(flushed(kind, a), flushed(kind, b))

        rows.append(operation(f"setp.{name}.{kind}", two, plain, "pred"))
        if kind in ("f16", "f32"):
            rows.append(operation(f"setp.{name}.ftz.{kind}", two, ftz, "pred"))
        for to in ("u32", "s16") if stored == "b16" else ("u32",):
            rows.append(
                operation(f"set.{name}.{to}.{kind}", two, lambda a, b, f=plain: -f(a, b), to)
            )
    return rows


def half_pairs(kind: str) -> list[Row]:
    """p of the lower halves, q of the upper ones; the third predicate is a < b as integers."""
    third = "setp.lt.u32 {q}, {a}, {b}; "
    two, rows, single = ("u32", "u32"), [], kind[:-2]
    for name, test in FLOAT_TESTS.items():

        def low(a: int, b: int, test: Test = test) -> bool:
            return test(number(single, a & 0xFFFF), number(single, b & 0xFFFF))

        def high(a: int, b: int, low: Callable[[int, int], bool] = low) -> bool:
            return low(a >> 16, b >> 16)

        rows += [
            Row(f"setp.{name}.{kind} {{p}}|{{q}}, {{a}}, {{b}};", "pred", two, low),
            Row(
                f"{third}setp.{name}.xor.{kind} {{q}}|{{p}}, {{a}}, {{b}}, {{q}};",
                "pred",
                two,
                lambda a, b, f=high: f(a, b) != (a < b),
            ),
        ]
    return rows


CLASSES: dict[str, Callable[[float, float], bool]] = {
    "finite": lambda x, _: math.isfinite(x),
    "infinite": lambda x, _: math.isinf(x),
    "number": lambda x, _: not math.isnan(x),
    "notanumber": lambda x, _: math.isnan(x),
    "normal": lambda x, least: math.isfinite(x) and (x == 0 or abs(x) >= least),  # as devices do
    "subnormal": lambda x, least: 0 < abs(x) < least,
}


def classes(kind: str) -> list[Row]:
    sign, mask = 1 << bits_of(kind) - 1, (1 << bits_of(kind)) - 1
    rows = [
        operation(
            f"testp.{name}.{kind}",
            kind,
            lambda a, f=test: f(number(kind, a), LEAST_NORMAL[kind]),
            "pred",
        )
        for name, test in CLASSES.items()
    ]
    return [
        *rows,
        operation(f"copysign.{kind}", (kind, kind), lambda a, b: a & sign | b & (mask ^ sign)),
    ]


# ---- moves and conversions ----------------------------------------------------------------------


def between_integers() -> list[Row]:
    kinds = ("u8", "s8", *INTEGERS)
    rows = []
    for to, source in itertools.product(kinds, kinds):
        if to == source:
            continue
        rows.append(operation(f"cvt.{to}.{source}", source, lambda a: a, to))
        if any(clamp(edge, to) != edge for edge in range_of(source)):  # else .sat is no PTX
            rows.append(
                operation(f"cvt.sat.{to}.{source}", source, lambda a, to=to: clamp(a, to), to)
            )
    return rows


def range_of(kind: str) -> tuple[int, int]:
    far = 1 << 70
    return clamp(-far, kind), clamp(far, kind)


def moves() -> list[Row]:
    """Registers taken apart and put together in another order."""

    def shuffled(bits: int, count: int, item: str) -> Row:
        part = bits // count
        names = [f"v{i}" for i in range(count)]
        code = (
            f"{{{{ .reg .{item} {', '.join(names)}; mov.b{bits} {{{{{', '.join(names)}}}}}, {{a}};"
            f" mov.b{bits} {{d}}, {{{{{', '.join(reversed(names))}}}}}; }}}}"
        )

        def reference(a: int) -> int:
            cut = [a >> part * i & ((1 << part) - 1) for i in range(count)]
            return sum(x << part * i for i, x in enumerate(reversed(cut)))

        return Row(code, f"b{bits}", (f"b{bits}",), reference)

    wide = (
        "{{ .reg .b128 w; .reg .b64 l, h; mov.b128 w, {{{a}, {b}}}; mov.b128 {{l, h}}, w;"
        " xor.b64 {d}, l, 1; add.u64 {d}, {d}, h; }}"
    )
    upper = "{{ .reg .b32 h; mov.b64 {{_, h}}, {a}; mov.b32 {d}, h; }}"
    return [
        shuffled(32, 2, "b16"),
        shuffled(64, 2, "b32"),
        shuffled(64, 4, "b16"),
        Row(upper, "b32", ("b64",), lambda a: a >> 32),
        Row(wide, "b64", ("b64", "b64"), lambda a, b: (a ^ 1) + b),
        *vector_moves(),
        *(
            operation(f"mov.{kind}", kind, lambda a: a)
            for kind in ("b16", "b32", "f32", "b64", "f64", *INTEGERS)
        ),
        Row("mov.u32 {d}, WARP_SZ;", "u32", ("u32",), lambda a: 32),
    ]


def vector_moves() -> list[Row]:
    """Vectors from element to element, and packed as a whole."""
    regs = "{{ .reg .v4 .b16 h; .reg .v2 .b32 v, w; .reg .v2 .f32 f; .reg .b32 x, y; "
    apart = regs + "mov.b64 v, {a}; "
    together = " mov.b64 {d}, {{x, y}}; }}"

    def swapped(a: int) -> int:
        return a >> 32 | a << 32

    two = [
        ("mov.v2.b32 {{x, y}}, v;", lambda a: a),
        ("mov.v2.u32 w, v; mov.b32 x, w.y; mov.b32 y, w.x;", swapped),
        ("mov.v2.b32 {{x, y}}, v; mov.v2.b32 {{x, y}}, {{y, x}};", swapped),
        ("mov.v2.b32 v, {{v.y, v.x}}; mov.v2.b32 {{x, y}}, v;", swapped),
        (
            "mov.b32 x, v.x; mov.v2.u32 v, {{x, 7}}; mov.v2.b32 {{x, y}}, v;",
            lambda a: a & 0xFFFFFFFF | 7 << 32,
        ),
        ("mov.b32 y, 9; mov.v2.b32 {{x, _}}, v;", lambda a: a & 0xFFFFFFFF | 9 << 32),
        (
            "mov.b32 f.x, v.x; mov.b32 f.y, v.y; mov.v2.f32 {{f.y, f.x}}, f;"
            " mov.b32 x, f.x; mov.b32 y, f.y;",
            swapped,
        ),
    ]
    turned = "mov.b64 h, {a}; mov.v4.b16 {{h.y, h.z, h.w, h.x}}, h; mov.b64 {d}, h; }}"
    return [
        *(Row(apart + code + together, "b64", ("b64",), reference) for code, reference in two),
        Row(regs + turned, "b64", ("b64",), lambda a: a << 16 | a >> 48),
    ]


def packing() -> list[Row]:
    def pack(bits: int, low: int, high: int) -> Callable[..., int]:
        def reference(a: int, b: int, c: int = 0) -> int:
            first, second = (max(low, min(high, signed(x, 32))) % (1 << bits) for x in (a, b))
            return c << 2 * bits | first << bits | second

        return reference

    rows = []
    for bits in (2, 4, 8, 16):
        for kind, low, high in (
            ("u", 0, (1 << bits) - 1),
            ("s", -1 << bits - 1, (1 << bits - 1) - 1),
        ):
            operands = ("s32", "s32") if bits == 16 else ("s32", "s32", "u32")
            name = f"cvt.pack.sat.{kind}{bits}.s32" + (".b32" if bits < 16 else "")
            rows.append(operation(name, operands, pack(bits, low, high), "u32"))
    return rows


FAMILIES: dict[str, list[Row]] = {
    "integers": integer_comparisons(),
    "combined": [*combined(), *selections()],
    **{kind: float_comparisons(kind) for kind in ("f16", "bf16", "f32", "f64")},
    "pairs": [*half_pairs("f16x2"), *half_pairs("bf16x2"), *classes("f32"), *classes("f64")],
    "conversions": between_integers(),
    "moves": [*moves(), *packing()],
}


@pytest.mark.usual("combined", "conversions", "f64", "integers", "moves")
@pytest.mark.parametrize("family", FAMILIES)
@EXAMPLES
@given(bits=operands())
def test_compare_select_move(kernels: Loader, space: Space, family: str, bits: Array) -> None:
    check(kernels, space, FAMILIES[family], bits)
