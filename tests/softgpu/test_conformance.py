"""Floating-point instructions in all rounding modes, and packed ones, against exact arithmetic.

An instruction is one row. Operands are bit patterns that Hypothesis draws: subnormals, infinities
and NaNs among them. Results are computed as fractions and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.elementwise import DTYPE, Array, Case, run
from softgpu.harness import Space

COUNT = 64
FORMATS = {
    "f16": (11, -14, 15),
    "bf16": (8, -126, 127),
    "f32": (24, -126, 127),
    "f64": (53, -1022, 1023),
}
ROUND: dict[str, Callable[[Fraction], int]] = {
    "rn": round,
    "rz": math.trunc,
    "rm": math.floor,
    "rp": math.ceil,
}
MODES = ("rn", "rz", "rm", "rp")
Exact = Callable[..., Any]  # of floats: a Fraction, or a float where that is all there is


def largest(kind: str) -> Fraction:
    digits, _, top = FORMATS[kind]
    return (2 - Fraction(1, 2 ** (digits - 1))) * Fraction(2) ** top


def rounded(x: Fraction, kind: str, mode: str) -> float:
    """IEEE 754: to the nearest even, to zero, down, up."""
    digits, low, _ = FORMATS[kind]
    size, sign = abs(x), -1 if x < 0 else 1
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, low) - digits + 1)
    steps = x / unit
    whole = ROUND[mode](steps)
    result, limit = whole * unit, largest(kind)
    if abs(result) > limit:
        inward = mode == "rz" or (mode != "rn" and (mode == "rm") == (x > 0))
        return math.copysign(float(limit) if inward else math.inf, sign)
    return math.copysign(float(result), sign)


def apply(exact: Exact, kind: str, mode: str, values: tuple[float, ...]) -> float:
    result = exact(mode, *values)
    return rounded(result, kind, mode) if isinstance(result, Fraction) else float(result)


def finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def add(mode: str, a: float, b: float) -> Fraction | float:
    if not finite(a, b) or a == 0 == b:
        return a + b if not (mode == "rm" and a == 0 == b) else -0.0 if signs(a, b) else 0.0
    total = Fraction(a) + Fraction(b)
    return total if total else (-0.0 if mode == "rm" else 0.0)


def signs(*values: float) -> bool:
    return any(math.copysign(1, v) < 0 for v in values)


def sub(mode: str, a: float, b: float) -> Fraction | float:
    return add(mode, a, -b)


def mul(_mode: str, a: float, b: float) -> Fraction | float:
    return Fraction(a) * Fraction(b) if finite(a, b) and a and b else a * b


def fma(mode: str, a: float, b: float, c: float) -> Fraction | float:
    if not finite(a, b, c):
        return a * b + c if not finite(a, b) else c
    if not (a and b):
        return add(mode, a * b, c)
    total = Fraction(a) * Fraction(b) + Fraction(c)
    return total if total else (-0.0 if mode == "rm" else 0.0)


def div(_mode: str, a: float, b: float) -> Fraction | float:
    if finite(a, b) and a and b:
        return Fraction(a) / Fraction(b)
    with np.errstate(all="ignore"):
        return float(np.float64(a) / np.float64(b))


def rcp(mode: str, a: float) -> Fraction | float:
    return div(mode, 1.0, a)


def root(_mode: str, a: float) -> Fraction | float:
    if not finite(a) or a <= 0:
        return a if a == 0 or a == math.inf else math.nan
    x = Fraction(a)
    scale = 2 ** (2 * max(0, 80 - (x.numerator.bit_length() - x.denominator.bit_length()) // 2))
    whole = x * scale * scale
    digits = math.isqrt(math.floor(whole))
    inside = Fraction(1, 3) if digits * digits != whole else 0  # more digits, but no tie
    return Fraction(digits + Fraction(inside), scale)


def same(_mode: str, a: float) -> Fraction | float:
    return Fraction(a) if math.isfinite(a) and a else a


def flushed(x: float, kind: str) -> float:
    return math.copysign(0.0, x) if abs(x) < 2.0 ** FORMATS[kind][1] else x


Row = tuple[str, str, tuple[str, ...], Callable[..., float]]


def row(
    code: str,
    kind: str,
    sources: tuple[str, ...],
    exact: Exact,
    mode: str = "rn",
    after: Callable[[float], float] | None = None,
    ftz: bool = False,
) -> Row:
    def reference(*values: float) -> float:
        if ftz:
            values = tuple(flushed(v, kind) for v in values)
        result = apply(exact, kind, mode, values)
        result = flushed(result, kind) if ftz else result
        return after(result) if after else result

    operands = ", ".join("{" + x + "}" for x in "abc"[: len(sources)])
    return f"{code} {{d}}, {operands};", kind, sources, reference


def saturated(x: float) -> float:
    return min(x, 1.0) if x > 0 else 0.0


def relu(x: float) -> float:
    return 0.0 if x < 0 else x


def arithmetic(kind: str) -> list[Row]:
    two, three, rows = (kind,) * 2, (kind,) * 3, []
    wide = kind in ("f32", "f64")
    for mode in MODES if wide else ("rn",):
        rows += [
            row(f"{name}.{mode}.{kind}", kind, two, exact, mode)
            for name, exact in (("add", add), ("sub", sub), ("mul", mul))
        ]
        rows.append(row(f"fma.{mode}.{kind}", kind, three, fma, mode))
        if wide:
            rows += [
                row(f"div.{mode}.{kind}", kind, two, div, mode),
                row(f"rcp.{mode}.{kind}", kind, (kind,), rcp, mode),
                row(f"sqrt.{mode}.{kind}", kind, (kind,), root, mode),
            ]
    if kind in ("f32", "f16"):
        rows += [
            row(f"add.ftz.{kind}", kind, two, add, ftz=True),
            row(f"mul.ftz.{kind}", kind, two, mul, ftz=True),
            row(f"fma.rn.ftz.{kind}", kind, three, fma, ftz=True),
            row(f"add.sat.{kind}", kind, two, add, after=saturated),
            row(f"mul.ftz.sat.{kind}", kind, two, mul, after=saturated, ftz=True),
        ]
    if kind in ("f16", "bf16"):
        rows.append(row(f"fma.rn.relu.{kind}", kind, three, fma, after=relu))
    return rows


def conversions() -> list[Row]:
    rows = [
        row(f"cvt.{mode}.{to}.{source}", to, (source,), same, mode)
        for mode in MODES
        for to, source in (("f32", "f64"), ("f16", "f32"), ("bf16", "f32"), ("f16", "f64"))
    ]
    rows += [
        row(f"cvt.{mode}.{to}.{source}", to, (source,), same, mode)
        for mode in MODES
        for to in ("f16", "f32", "f64")
        for source in ("s32", "u32", "s64", "u64")
    ]
    rows += [
        row("cvt.f32.f16", "f32", ("f16",), same),
        row("cvt.f32.bf16", "f32", ("bf16",), same),
        row("cvt.f64.f32", "f64", ("f32",), same),
        row("cvt.rn.sat.f32.f64", "f32", ("f64",), same, after=saturated),
        row("cvt.rn.sat.f16.f32", "f16", ("f32",), same, after=saturated),
    ]
    return rows


def interpret(bits: Array, kind: str) -> Array:
    """Patterns of 64 bits as values of the kind: the array an instruction gets."""
    if kind == "bf16":
        return bits.astype(np.uint16)
    dtype = np.dtype(DTYPE[kind])
    return bits.astype(f"uint{8 * dtype.itemsize}").view(dtype)


def values(array: Array, kind: str) -> list[Any]:
    if kind == "bf16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return list(array.tolist())


def check(kernels: Loader, space: Space, rows: list[Row], bits: Array) -> None:
    cases = [
        Case(
            code,
            "b16" if kind == "bf16" else kind,
            tuple("b16" if s == "bf16" else s for s in sources),
        )
        for code, kind, sources, _ in rows
    ]
    inputs = [[interpret(bits[i], s) for i, s in enumerate(sources)] for _, _, sources, _ in rows]
    results = run(kernels, space, cases, inputs)
    for (code, kind, sources, reference), arrays, got in zip(rows, inputs, results, strict=True):
        operands = [values(a, s) for a, s in zip(arrays, sources, strict=True)]
        for *operand, result in zip(*operands, values(got, kind), strict=True):
            wanted = reference(*operand)
            equal = (result != result and wanted != wanted) or (
                result == wanted
                # the sign of a clamped zero is unspecified
                and ("relu" in code or math.copysign(1, result) == math.copysign(1, wanted))
            )
            assert equal, f"{code} of {operand} gave {result!r}, not {wanted!r}"


EDGES = [
    0,
    1 << 63,
    0x3FF0 << 48,
    0x7FF0 << 48,
    0x7FEF << 48,
    1,
    0x3F800000,
    0x7F800000,
    0x00800000,
    0x7F7FFFFF,
    0x3C00,
    0x7C00,
    0x0400,
    0x7BFF,
    0x8000,
    0x80000000,
    0xBC00,
    0xBF800000,
]


def patterns(width: int) -> Any:
    """Random bits, and in every fourth place an edge of some format or what Hypothesis likes."""

    def mixed(seed: int, liked: list[int]) -> Array:
        rng = np.random.default_rng(seed)
        bits = rng.integers(0, 2**64 - 1, (width, COUNT), np.uint64, endpoint=True)
        chosen = rng.choice(np.array([*EDGES, *liked], np.uint64), (width, COUNT))
        return np.where(rng.random((width, COUNT)) < 0.25, chosen, bits)

    liked = st.lists(st.integers(0, 2**64 - 1), max_size=8)
    return st.builds(mixed, st.integers(0, 2**32 - 1), liked)


FAMILIES = {
    **{kind: arithmetic(kind) for kind in FORMATS},
    "conversions": conversions(),
}


@pytest.mark.usual("bf16", "f32", "f64")
@pytest.mark.parametrize("family", FAMILIES)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(bits=patterns(3))
def test_rounded_once(kernels: Loader, space: Space, family: str, bits: Array) -> None:
    check(kernels, space, FAMILIES[family], bits)


# ---- packed integers and comparisons -----------------------------------------------------------


def halves(word: int, signed: bool) -> list[int]:
    parts = [word & 0xFFFF, word >> 16]
    return [p - (p >> 15 << 16) if signed else p for p in parts]


def packed(signed: bool, one: Callable[[int, int], int]) -> Callable[[int, int], int]:
    def reference(a: int, b: int) -> int:
        parts = map(one, halves(a, signed), halves(b, signed))
        low, high = (p & 0xFFFF for p in parts)
        return high << 16 | low

    return reference


def clamp(low: int, high: int) -> Callable[[int, int], int]:
    return lambda a, b: max(low, min(high, a + b))


PACKED: list[tuple[str, Callable[[int, int], int]]] = [
    ("add.u16x2", packed(False, lambda a, b: a + b)),
    ("add.s16x2", packed(True, lambda a, b: a + b)),
    ("add.sat.u16x2", packed(False, clamp(0, 65535))),
    ("add.sat.s16x2", packed(True, clamp(-32768, 32767))),
    ("min.u16x2", packed(False, min)),
    ("max.u16x2", packed(False, max)),
    ("min.s16x2", packed(True, min)),
    ("max.s16x2", packed(True, max)),
    ("max.relu.s16x2", packed(True, lambda a, b: max(a, b, 0))),
    ("set.lt.f16x2.f16x2", packed(False, lambda a, b: 0x3C00 * (half(a) < half(b)))),
    ("set.geu.u32.f16x2", packed(False, lambda a, b: -(not half(a) < half(b)))),
]


def half(bits: int) -> float:
    return float(np.uint16(bits & 0xFFFF).view(np.float16))


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(bits=patterns(2))
def test_packed_halves(kernels: Loader, space: Space, bits: Array) -> None:
    a, b = bits.astype(np.uint32)
    a, b = a ^ (bits[0] >> np.uint64(32)).astype(np.uint32), b
    cases = [Case(f"{name} {{d}}, {{a}}, {{b}};", "u32", ("u32", "u32")) for name, _ in PACKED]
    results = run(kernels, space, cases, [[a, b]] * len(cases))
    for (name, reference), got in zip(PACKED, results, strict=True):
        for x, y, result in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
            assert result == reference(x, y), f"{name} {x:#x} {y:#x}"
