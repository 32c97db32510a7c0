"""Each instruction against NumPy or Python's integers, on random and on nasty operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.elementwise import DTYPE, Array, Case, run
from softgpu.harness import Space

COUNT = 1000
BITS = {
    "u8": 8,
    "s8": 8,
    "u16": 16,
    "s16": 16,
    "u32": 32,
    "s32": 32,
    "b32": 32,
    "u64": 64,
    "s64": 64,
    "b64": 64,
}


def operands(kind: str, seed: int) -> Array:
    """Random values and the ones at the edges, in a random order."""
    rng = np.random.default_rng(seed)
    if kind in BITS:
        bits = BITS[kind]
        edges = [
            0,
            1,
            2,
            3,
            31,
            32,
            33,
            63,
            64,
            127,
            128,
            255,
            (1 << bits) - 1,
            1 << (bits - 1),
            (1 << (bits - 1)) - 1,
        ]
        wide = (
            rng.integers(0, 1 << bits, COUNT, dtype=np.uint64, endpoint=False)
            if bits < 64
            else (
                rng.integers(0, 1 << 63, COUNT, dtype=np.uint64) * 2
                + rng.integers(0, 2, COUNT, dtype=np.uint64)
            )
        )
        shift = rng.integers(0, bits, COUNT).astype(np.uint64)
        wide = np.where(rng.random(COUNT) < 0.5, wide, wide >> shift)
        values = np.array([e & ((1 << bits) - 1) for e in edges], np.uint64)
        wide[rng.permutation(COUNT)[: 20 * len(values)]] = np.tile(values, 20)
        return wide.astype(f"uint{bits}").view(DTYPE[kind])
    return _floats(kind, rng)


def _floats(kind: str, rng: np.random.Generator) -> Array:
    float_type: Any = DTYPE[kind]
    info = np.finfo(float_type)
    edges = [
        0.0,
        1.0,
        0.5,
        1.5,
        2.5,
        np.inf,
        info.max,
        info.tiny,
        info.smallest_subnormal,
        info.tiny / 2,
        2.0**31,
        2.0**32,
        1e9,
        255.5,
        65504,
        0.1,
    ]
    edges += [-edge for edge in edges] + [np.nan]
    with np.errstate(all="ignore"):
        values = rng.standard_normal(COUNT) * np.exp2(rng.uniform(-12, 12, COUNT))
        values = values.astype(float_type)
        nasty = np.tile(np.array(edges).astype(float_type), 10)
        values[rng.permutation(COUNT)[: len(nasty)]] = nasty
    return values


Reference = Callable[..., Any]


def check(kernels: Loader, space: Space, table: list[tuple[Case, Reference]]) -> None:
    """Integers and bits exactly; floats exactly, NaN for NaN."""
    cases = [case for case, _ in table]
    inputs = [[operands(k, 7 * i + 1) for i, k in enumerate(case.operands)] for case in cases]
    results = run(kernels, space, cases, inputs)
    for (case, reference), arrays, got in zip(table, inputs, results, strict=True):
        with np.errstate(all="ignore"):
            if case.result in BITS or case.result == "pred":
                bits = BITS.get(case.result, 32)
                rows = zip(*(a.tolist() for a in arrays), strict=True)
                wanted = np.array(
                    [int(reference(*row)) & ((1 << bits) - 1) for row in rows], np.uint64
                )
                wanted = wanted.astype(f"uint{bits}")
                same = got.view(wanted.dtype) == wanted
            else:
                wanted = np.asarray(reference(*arrays)).astype(DTYPE[case.result])
                unsigned = f"uint{8 * wanted.itemsize}"
                same = (got.view(unsigned) == wanted.view(unsigned)) | (
                    np.isnan(got) & np.isnan(wanted)
                )
        if not same.all():
            where = int(np.argmin(same))
            raise AssertionError(
                f"{case.code}: {[a[where] for a in arrays]} gave {got[where]}, not {wanted[where]} "
                f"({(~same).sum()} wrong)"
            )


def _clamped_shift(x: int, n: int, bits: int) -> int:
    return x << n if n < bits else 0


def _c_div(a: int, b: int) -> int:
    if b == 0:
        return -1
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _c_rem(a: int, b: int) -> int:
    return -1 if b == 0 else a - b * _c_div(a, b)


def _integers(kind: str) -> list[tuple[Case, Reference]]:
    bits, one, two, three = BITS[kind], (kind,), (kind, kind), (kind, kind, kind)
    b = f"b{bits}"
    table: list[tuple[Case, Reference]] = [
        (Case(f"add.{kind} {{d}}, {{a}}, {{b}};", kind, two), lambda x, y: x + y),
        (Case(f"sub.{kind} {{d}}, {{a}}, {{b}};", kind, two), lambda x, y: x - y),
        (Case(f"mul.lo.{kind} {{d}}, {{a}}, {{b}};", kind, two), lambda x, y: x * y),
        (Case(f"mul.hi.{kind} {{d}}, {{a}}, {{b}};", kind, two), lambda x, y: (x * y) >> bits),
        (
            Case(f"mad.lo.{kind} {{d}}, {{a}}, {{b}}, {{c}};", kind, three),
            lambda x, y, z: x * y + z,
        ),
        (
            Case(f"mad.hi.{kind} {{d}}, {{a}}, {{b}}, {{c}};", kind, three),
            lambda x, y, z: ((x * y) >> bits) + z,
        ),
        (Case(f"div.{kind} {{d}}, {{a}}, {{b}};", kind, two), _c_div),
        (Case(f"rem.{kind} {{d}}, {{a}}, {{b}};", kind, two), _c_rem),
        (Case(f"min.{kind} {{d}}, {{a}}, {{b}};", kind, two), min),
        (Case(f"max.{kind} {{d}}, {{a}}, {{b}};", kind, two), max),
        (
            Case(f"sad.{kind} {{d}}, {{a}}, {{b}}, {{c}};", kind, three),
            lambda x, y, z: z + abs(x - y),
        ),
        (Case(f"and.{b} {{d}}, {{a}}, {{b}};", kind, two), lambda x, y: x & y),
        (Case(f"or.{b} {{d}}, {{a}}, {{b}};", kind, two), lambda x, y: x | y),
        (Case(f"xor.{b} {{d}}, {{a}}, {{b}};", kind, two), lambda x, y: x ^ y),
        (Case(f"not.{b} {{d}}, {{a}};", kind, one), lambda x: ~x),
        (
            Case(f"shl.{b} {{d}}, {{a}}, {{b}};", kind, (kind, "u32")),
            lambda x, n: _clamped_shift(x, n, bits),
        ),
        (
            Case(f"shr.{kind} {{d}}, {{a}}, {{b}};", kind, (kind, "u32")),
            lambda x, n: x >> min(n, 64),
        ),
        (Case(f"shr.{kind} {{d}}, {{a}}, 5;", kind, one), lambda x: x >> 5),
        (Case(f"selp.{b} {{d}}, {{a}}, {{b}}, %end;", kind, two), lambda x, y: y),
        (Case(f"cnot.{b} {{d}}, {{a}};", kind, one), lambda x: x == 0),
    ]
    tests = {
        "eq": "__eq__",
        "ne": "__ne__",
        "lt": "__lt__",
        "le": "__le__",
        "gt": "__gt__",
        "ge": "__ge__",
    }
    for name, method in tests.items():
        table.append(
            (Case(f"setp.{name}.{kind} {{p}}, {{a}}, {{b}};", "pred", two), getattr(int, method))
        )
    if kind[0] == "s":
        table += [
            (Case(f"abs.{kind} {{d}}, {{a}};", kind, one), abs),
            (Case(f"neg.{kind} {{d}}, {{a}};", kind, one), lambda x: -x),
        ]
    if bits <= 32:
        wide = f"{kind[0]}{2 * bits}"
        table += [
            (Case(f"mul.wide.{kind} {{d}}, {{a}}, {{b}};", wide, two), lambda x, y: x * y),
            (
                Case(f"mad.wide.{kind} {{d}}, {{a}}, {{b}}, {{c}};", wide, (kind, kind, wide)),
                lambda x, y, z: x * y + z,
            ),
        ]
    return table


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_integer_arithmetic(kernels: Loader, space: Space, kind: str) -> None:
    check(kernels, space, _integers(kind))


def _signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) & 1 else x


def _field(bits: int, *numbers: int) -> list[int]:
    """Positions and lengths: of 32 bits the lowest byte counts, of 64 all of it."""
    return [number & 255 if bits == 32 else min(number, 200) for number in numbers]


def _bfe(bits: int, signed: bool) -> Reference:
    def reference(x: int, position: int, length: int) -> int:
        position, length = _field(bits, position, length)
        if length == 0:
            return 0
        field = (
            (x >> min(position, 200)) if signed else ((x & ((1 << bits) - 1)) >> min(position, 200))
        )
        if length >= bits:
            return field
        field &= (1 << length) - 1
        return _signed(field, length) if signed else field

    return reference


def _bfi(bits: int) -> Reference:
    def reference(a: int, b: int, position: int, length: int) -> int:
        position, length = _field(bits, position, length)
        mask = (((1 << min(length, bits)) - 1) << position) & ((1 << bits) - 1)
        return (b & ~mask) | ((a << position) & mask)

    return reference


def _prmt(a: int, b: int, selector: int) -> int:
    both = (b << 32 | a).to_bytes(8, "little")
    out = 0
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = both[nibble & 7]
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        out |= byte << 8 * i
    return out


def _dp4a(a: int, b: int, c: int, signed: bool = True) -> int:
    def parts(x: int) -> list[int]:
        return [_signed(v, 8) if signed else v for v in (x & 0xFFFFFFFF).to_bytes(4, "little")]

    return c + sum(x * y for x, y in zip(parts(a), parts(b), strict=True))


def test_bit_instructions(kernels: Loader, space: Space) -> None:
    u, uuu = ("u32",), ("u32", "u32", "u32")
    table: list[tuple[Case, Reference]] = [
        (Case("popc.b32 {d}, {a};", "u32", u), int.bit_count),
        (Case("popc.b64 {d}, {a};", "u32", ("u64",)), int.bit_count),
        (Case("clz.b32 {d}, {a};", "u32", u), lambda x: 32 - x.bit_length()),
        (Case("clz.b64 {d}, {a};", "u32", ("u64",)), lambda x: 64 - x.bit_length()),
        (Case("brev.b32 {d}, {a};", "u32", u), lambda x: int(f"{x:032b}"[::-1], 2)),
        (Case("brev.b64 {d}, {a};", "u64", ("u64",)), lambda x: int(f"{x:064b}"[::-1], 2)),
        (Case("bfind.u32 {d}, {a};", "u32", u), lambda x: x.bit_length() - 1),
        (
            Case("bfind.s32 {d}, {a};", "u32", ("s32",)),
            lambda x: (x if x >= 0 else ~x).bit_length() - 1,
        ),
        (Case("bfe.u32 {d}, {a}, {b}, {c};", "u32", uuu), _bfe(32, False)),
        (Case("bfe.s32 {d}, {a}, {b}, {c};", "s32", ("s32", "u32", "u32")), _bfe(32, True)),
        (Case("bfe.u64 {d}, {a}, {b}, {c};", "u64", ("u64", "u32", "u32")), _bfe(64, False)),
        (Case("bfi.b32 {d}, {a}, {b}, {c}, 8;", "u32", uuu), lambda a, b, c: _bfi(32)(a, b, c, 8)),
        (Case("bfi.b32 {d}, {a}, {b}, 5, {c};", "u32", uuu), lambda a, b, c: _bfi(32)(a, b, 5, c)),
        (
            Case("bfi.b64 {d}, {a}, {b}, {c}, 32;", "u64", ("u64", "u64", "u32")),
            lambda a, b, c: _bfi(64)(a, b, c, 32),
        ),
    ]
    check(kernels, space, table)


def test_words_of_several_parts(kernels: Loader, space: Space) -> None:
    u, uu, uuu = ("u32",), ("u32", "u32"), ("u32", "u32", "u32")
    table: list[tuple[Case, Reference]] = [
        (Case("prmt.b32 {d}, {a}, {b}, {c};", "u32", uuu), _prmt),
        (Case("prmt.b32 {d}, {a}, {b}, 0x5410;", "u32", uu), lambda a, b: _prmt(a, b, 0x5410)),
        (Case("lop3.b32 {d}, {a}, {b}, {c}, 0x96;", "u32", uuu), lambda a, b, c: a ^ b ^ c),
        (
            Case("lop3.b32 {d}, {a}, {b}, {c}, 0xCA;", "u32", uuu),
            lambda a, b, c: (a & b) | (~a & c),
        ),
        (
            Case("shf.l.wrap.b32 {d}, {a}, {b}, {c};", "u32", uuu),
            lambda a, b, c: (b << 32 | a) << (c & 31) >> 32,
        ),
        (
            Case("shf.r.wrap.b32 {d}, {a}, {b}, {c};", "u32", uuu),
            lambda a, b, c: (b << 32 | a) >> (c & 31),
        ),
        (
            Case("shf.l.clamp.b32 {d}, {a}, {b}, {c};", "u32", uuu),
            lambda a, b, c: (b << 32 | a) << min(c, 32) >> 32,
        ),
        (
            Case("shf.r.clamp.b32 {d}, {a}, {b}, {c};", "u32", uuu),
            lambda a, b, c: (b << 32 | a) >> min(c, 32),
        ),
        (
            Case("mul24.lo.u32 {d}, {a}, {b};", "u32", uu),
            lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
        ),
        (
            Case("mul24.hi.u32 {d}, {a}, {b};", "u32", uu),
            lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 16,
        ),
        (
            Case("mad24.lo.s32 {d}, {a}, {b}, {c};", "s32", ("s32", "s32", "s32")),
            lambda a, b, c: _signed(a & 0xFFFFFF, 24) * _signed(b & 0xFFFFFF, 24) + c,
        ),
        (Case("dp4a.s32.s32 {d}, {a}, {b}, {c};", "s32", ("s32", "s32", "s32")), _dp4a),
        (
            Case("dp4a.u32.u32 {d}, {a}, {b}, {c};", "u32", uuu),
            lambda a, b, c: _dp4a(a, b, c, False),
        ),
        (
            Case("add.cc.u32 {t}, {a}, {b}; addc.u32 {d}, {c}, 0;", "u32", uuu),
            lambda a, b, c: c + ((a + b) >> 32),
        ),
        (
            Case("sub.cc.u32 {t}, {a}, {b}; subc.u32 {d}, {c}, 0;", "u32", uuu),
            lambda a, b, c: c - (a < b),
        ),
        (
            Case("add.sat.s32 {d}, {a}, {b};", "s32", ("s32", "s32")),
            lambda a, b: max(-(2**31), min(2**31 - 1, a + b)),
        ),
        (
            Case("slct.u32.s32 {d}, {a}, {b}, {c};", "u32", ("u32", "u32", "s32")),
            lambda a, b, c: a if c >= 0 else b,
        ),
        (Case("set.lt.u32.s32 {d}, {a}, {b};", "u32", ("s32", "s32")), lambda a, b: -(a < b)),
        (Case("setp.lt.and.u32 {p}|{q}, {a}, {b}, !%end;", "pred", uu), lambda a, b: a < b),
        (Case("setp.lt.xor.u32 {q}|{p}, {a}, {b}, %end;", "pred", uu), lambda a, b: not a < b),
        (Case("setp.lo.u32 {p}, {a}, {b};", "pred", uu), lambda a, b: a < b),
        (
            Case("{{ .reg .b16 l, h; mov.b32 {{l, h}}, {a}; mov.b32 {d}, {{h, l}}; }}", "u32", u),
            lambda x: x << 16 | x >> 16,
        ),
    ]
    check(kernels, space, table)


def test_the_address_of_an_element(kernels: Loader, space: Space) -> None:
    declared = ".local .align 4 .b16 l[4]; .reg .b64 x;"
    body = "mov.u64 x, l[2]; st.local.u32 [x], {a}; ld.local.u32 {d}, [l+4];"
    row = Case(f"{{{{ {declared} {body} }}}}", "u32", ("u32",))
    check(kernels, space, [(row, lambda x: x)])


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_float_arithmetic(kernels: Loader, space: Space, kind: str) -> None:
    one, two = (kind,), (kind, kind)
    table: list[tuple[Case, Reference]] = [
        (Case(f"add.rn.{kind} {{d}}, {{a}}, {{b}};", kind, two), np.add),
        (Case(f"sub.{kind} {{d}}, {{a}}, {{b}};", kind, two), np.subtract),
        (Case(f"mul.{kind} {{d}}, {{a}}, {{b}};", kind, two), np.multiply),
        (
            Case(f"mul.{kind} {{t}}, {{a}}, {{b}}; add.{kind} {{d}}, {{t}}, {{a}};", kind, two),
            lambda a, b: a * b + a,
        ),
        (Case(f"div.rn.{kind} {{d}}, {{a}}, {{b}};", kind, two), np.divide),
        (Case(f"sqrt.rn.{kind} {{d}}, {{a}};", kind, one), np.sqrt),
        (Case(f"rcp.rn.{kind} {{d}}, {{a}};", kind, one), lambda a: a.dtype.type(1) / a),
        (Case(f"neg.{kind} {{d}}, {{a}};", kind, one), np.negative),
        (Case(f"abs.{kind} {{d}}, {{a}};", kind, one), np.abs),
        (Case(f"copysign.{kind} {{d}}, {{a}}, {{b}};", kind, two), lambda a, b: np.copysign(b, a)),
        (Case(f"cvt.rzi.{kind}.{kind} {{d}}, {{a}};", kind, one), np.trunc),
        (Case(f"cvt.rni.{kind}.{kind} {{d}}, {{a}};", kind, one), np.rint),
        (Case(f"cvt.rmi.{kind}.{kind} {{d}}, {{a}};", kind, one), np.floor),
        (Case(f"cvt.rpi.{kind}.{kind} {{d}}, {{a}};", kind, one), np.ceil),
        (
            Case(f"cvt.sat.{kind}.{kind} {{d}}, {{a}};", kind, one),
            lambda a: np.where(a > 0, np.minimum(a, 1), 0),
        ),
    ]
    comparisons = {
        "eq": np.equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }
    for name, function in comparisons.items():
        table.append((Case(f"setp.{name}.{kind} {{p}}, {{a}}, {{b}};", "pred", two), function))
        table.append(
            (
                Case(f"setp.{name}u.{kind} {{p}}, {{a}}, {{b}};", "pred", two),
                lambda a, b, f=function: f(a, b) or a != a or b != b,
            )
        )
    table += [
        (Case(f"setp.ne.{kind} {{p}}, {{a}}, {{b}};", "pred", two), lambda a, b: a < b or a > b),
        (Case(f"setp.neu.{kind} {{p}}, {{a}}, {{b}};", "pred", two), lambda a, b: a != b),
        (
            Case(f"setp.num.{kind} {{p}}, {{a}}, {{b}};", "pred", two),
            lambda a, b: a == a and b == b,
        ),
        (Case(f"setp.nan.{kind} {{p}}, {{a}}, {{b}};", "pred", two), lambda a, b: a != a or b != b),
    ]
    check(kernels, space, table)


def _extreme(a: Array, b: Array, larger: bool) -> Array:
    """A number wins over a NaN; -0 is below +0."""
    pick = np.fmax(a, b) if larger else np.fmin(a, b)
    zeros = (a == 0) & (b == 0)
    positive = (~np.signbit(a) | ~np.signbit(b)) if larger else (~np.signbit(a) & ~np.signbit(b))
    return np.where(zeros, np.where(positive, 0.0, -0.0), pick).astype(a.dtype)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_minimum_and_maximum(kernels: Loader, space: Space, kind: str) -> None:
    two = (kind, kind)
    table = [
        (Case(f"max.{kind} {{d}}, {{a}}, {{b}};", kind, two), lambda a, b: _extreme(a, b, True)),
        (Case(f"min.{kind} {{d}}, {{a}}, {{b}};", kind, two), lambda a, b: _extreme(a, b, False)),
    ]
    if kind == "f32":
        table.append(
            (
                Case("max.NaN.f32 {d}, {a}, {b};", kind, two),
                lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, _extreme(a, b, True)),
            )
        )
    check(kernels, space, table)


def _fraction_fma(mode: str) -> Reference:
    """Exact by Python's fractions, then rounded."""
    from fractions import Fraction

    def one(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
        plain = np.float64(a) * np.float64(b) + np.float64(c)
        if not np.isfinite(plain):
            return np.float32(plain)
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        if exact == 0:
            if mode == "rm" and np.signbit(np.float64(a) * np.float64(b)) != np.signbit(c):
                return np.float32(-0.0)
            return np.float32(plain)
        near = np.float32(float(exact))
        down, up = near, near
        if np.isinf(near) or Fraction(float(near)) > exact:
            down = (
                np.nextafter(near, np.float32(-np.inf)) if near > 0 or not np.isinf(near) else near
            )
        if np.isinf(near) or Fraction(float(near)) < exact:
            up = np.nextafter(near, np.float32(np.inf)) if near < 0 or not np.isinf(near) else near
        if mode == "rm":
            return np.float32(down)
        if mode == "rp":
            return np.float32(up)
        return np.float32(down if exact > 0 else up)

    return lambda a, b, c: np.array([one(x, y, z) for x, y, z in zip(a, b, c, strict=True)])


def test_directed_rounding(kernels: Loader, space: Space) -> None:
    three = ("f32", "f32", "f32")
    table: list[tuple[Case, Reference]] = [
        (Case(f"fma.{mode}.f32 {{d}}, {{a}}, {{b}}, {{c}};", "f32", three), _fraction_fma(mode))
        for mode in ("rm", "rp", "rz")
    ]
    check(kernels, space, table)


def test_fused_multiply_add_rounds_once(kernels: Loader, space: Space) -> None:
    wide = np.longdouble
    table: list[tuple[Case, Reference]] = [
        (
            Case("fma.rn.f32 {d}, {a}, {b}, {c};", "f32", ("f32", "f32", "f32")),
            lambda a, b, c: (a.astype(wide) * b.astype(wide) + c.astype(wide)).astype(np.float32),
        ),
    ]
    check(kernels, space, table)


@pytest.mark.parametrize(
    ("name", "function", "low", "high", "relative", "absolute"),
    [
        ("ex2.approx.f32", np.exp2, -140, 127, 2e-7, 1e-44),
        ("ex2.approx.ftz.f32", np.exp2, -120, 127, 2e-7, 0),
        ("lg2.approx.f32", np.log2, 1e-30, 1e30, 3e-7, 3e-7),
        ("lg2.approx.f32", np.log2, 0.5, 2, 3e-7, 3e-7),
        ("sin.approx.f32", np.sin, -50, 50, 1e-6, 1e-7),
        ("cos.approx.f32", np.cos, -50, 50, 1e-6, 1e-7),
        ("tanh.approx.f32", np.tanh, -12, 12, 2e-7, 1e-12),
        ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x), 1e-30, 1e30, 2e-7, 0),
        ("rcp.approx.f32", lambda x: 1 / x, 1e-30, 1e30, 1e-7, 0),
        ("sqrt.approx.f32", np.sqrt, 0, 1e30, 1e-7, 0),
    ],
)
def test_approximate_functions(
    kernels: Loader,
    space: Space,
    name: str,
    function: Reference,
    low: float,
    high: float,
    relative: float,
    absolute: float,
) -> None:
    case = Case(f"{name} {{d}}, {{a}};", "f32", ("f32",))
    x = np.random.default_rng(3).uniform(low, high, COUNT).astype(np.float32)
    (got,) = run(kernels, space, [case], [[x]])
    np.testing.assert_allclose(got, function(x.astype(np.float64)), rtol=relative, atol=absolute)


def test_approximate_functions_at_the_edges(kernels: Loader, space: Space) -> None:
    names = [
        "ex2.approx.f32",
        "lg2.approx.f32",
        "tanh.approx.f32",
        "rsqrt.approx.f32",
        "sin.approx.f32",
    ]
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0], np.float32)
    wanted = np.array(
        [
            [1, 1, np.inf, 0, np.nan, 0.5],
            [-np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan],
            [0, -0.0, 1, -1, np.nan, np.tanh(np.float32(-1))],
            [np.inf, -np.inf, 0, np.nan, np.nan, np.nan],
            [0, -0.0, np.nan, np.nan, np.nan, np.sin(-1)],
        ],
        np.float32,
    )
    cases = [Case(f"{name} {{d}}, {{a}};", "f32", ("f32",)) for name in names]
    got = run(kernels, space, cases, [[x]] * len(cases))
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.parametrize("how", ["approx", "approx.ftz"])
def test_fast_division_by_what_is_huge(kernels: Loader, space: Space, how: str) -> None:
    """By more than 2^126 it gives nothing, as the reciprocal is none; NaN of an infinity."""
    huge = np.float32(2.0**126)
    b = np.array([huge, np.nextafter(huge, np.inf), -2 * huge, 3.4e38, np.inf, np.nan], np.float32)
    a = np.array([1, -1, 3.4e38, 0, np.inf, -np.inf, np.nan], np.float32)
    a, b = (each.ravel() for each in np.meshgrid(a, b))
    too_large = (np.abs(b) > huge) & np.isfinite(b)
    with np.errstate(invalid="ignore"):
        wanted = np.where(too_large, a * np.copysign(np.float32(0), b), a / b)
    if how == "approx.ftz":
        wanted[np.abs(wanted) < np.finfo(np.float32).smallest_normal] *= 0
    case = Case(f"div.{how}.f32 {{d}}, {{a}}, {{b}};", "f32", ("f32", "f32"))
    (got,) = run(kernels, space, [case], [[a, b]])
    assert np.isnan(got).tolist() == np.isnan(wanted).tolist()
    real = ~np.isnan(wanted)
    assert got[real].view(np.uint32).tolist() == wanted[real].view(np.uint32).tolist()


def _float_to_int(to: str, source: str, rounding: Reference) -> Reference:
    bits, signed = BITS[to], to[0] == "s"
    low = -(1 << (bits - 1)) if signed else 0
    high = (1 << (bits - 1)) - 1 if signed else (1 << bits) - 1

    def reference(x: float) -> int:
        if x != x:
            return 1 << (bits - 1) if source == "f64" or bits == 64 else 0
        if np.isinf(x):
            return high if x > 0 else low
        return max(low, min(high, int(rounding(x))))

    return reference


@pytest.mark.parametrize("source", ["f32", "f64"])
def test_float_to_integer(kernels: Loader, space: Space, source: str) -> None:
    roundings: dict[str, Reference] = {
        "rzi": np.trunc,
        "rni": np.rint,
        "rmi": np.floor,
        "rpi": np.ceil,
    }
    table = [
        (
            Case(f"cvt.{mode}.{to}.{source} {{d}}, {{a}};", to, (source,)),
            _float_to_int(to, source, function),
        )
        for to in ("s32", "u32", "s64", "u64", "s16", "u16")
        for mode, function in roundings.items()
    ]
    check(kernels, space, table)


def test_integer_to_float_and_between(kernels: Loader, space: Space) -> None:
    table: list[tuple[Case, Reference]] = []
    for source in ("s32", "u32", "s64", "u64", "s16", "u16"):
        for to in ("f32", "f64"):
            table.append(
                (
                    Case(f"cvt.rn.{to}.{source} {{d}}, {{a}};", to, (source,)),
                    lambda a, to=to: a.astype(DTYPE[to]),
                )
            )
        for target in ("s32", "u32", "s64", "u64", "s16", "u16"):
            table.append(
                (Case(f"cvt.{target}.{source} {{d}}, {{a}};", target, (source,)), lambda a: a)
            )
    table += [
        (Case("cvt.s32.s8 {d}, {a};", "s32", ("s32",)), lambda a: _signed(a & 255, 8)),
        (Case("cvt.u32.u8 {d}, {a};", "u32", ("u32",)), lambda a: a & 255),
        (Case("cvt.sat.s16.s32 {d}, {a};", "s16", ("s32",)), lambda a: max(-32768, min(32767, a))),
        (Case("cvt.sat.u8.s32 {d}, {a};", "u32", ("s32",)), lambda a: max(0, min(255, a))),
        (
            Case("cvt.rz.f32.s32 {d}, {a};", "f32", ("s32",)),
            lambda a: np.where(
                np.abs(a.astype("f").astype(float)) > np.abs(a.astype(float)),
                np.nextafter(a.astype("f"), np.float32(0)),
                a.astype("f"),
            ),
        ),
    ]
    check(kernels, space, table)


def test_half(kernels: Loader, space: Space) -> None:
    h, hh, hhh = ("f16",), ("f16", "f16"), ("f16", "f16", "f16")
    table: list[tuple[Case, Reference]] = [
        (Case("add.f16 {d}, {a}, {b};", "f16", hh), np.add),
        (Case("sub.f16 {d}, {a}, {b};", "f16", hh), np.subtract),
        (Case("mul.f16 {d}, {a}, {b};", "f16", hh), np.multiply),
        (Case("fma.rn.f16 {d}, {a}, {b}, {c};", "f16", hhh), _half_fma),
        (Case("neg.f16 {d}, {a};", "f16", h), np.negative),
        (Case("max.f16 {d}, {a}, {b};", "f16", hh), lambda a, b: _extreme(a, b, True)),
        (Case("cvt.f32.f16 {d}, {a};", "f32", h), lambda a: a.astype(np.float32)),
        (Case("cvt.f64.f16 {d}, {a};", "f64", h), lambda a: a.astype(np.float64)),
        (Case("cvt.rn.f16.f32 {d}, {a};", "f16", ("f32",)), lambda a: a.astype(np.float16)),
        (Case("cvt.rn.f16.f64 {d}, {a};", "f16", ("f64",)), lambda a: a.astype(np.float16)),
        (Case("cvt.rn.f32.f64 {d}, {a};", "f32", ("f64",)), lambda a: a.astype(np.float32)),
        (Case("cvt.rn.f16.s32 {d}, {a};", "f16", ("s32",)), lambda a: a.astype(np.float16)),
        (Case("setp.lt.f16 {p}, {a}, {b};", "pred", hh), lambda a, b: a < b),
    ]
    check(kernels, space, table)


def _half_fma(a: Array, b: Array, c: Array) -> Array:
    """long double holds the exact sum for all but the widest spans; those are rounded to odd."""
    from fractions import Fraction

    out = np.empty(len(a), np.float16)
    for i, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
        plain = float(x) * float(y) + float(z)
        if not np.isfinite(plain):
            out[i] = plain
            continue
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        near = float(exact)
        gap = exact - Fraction(near)
        if gap and not int(np.float64(near).view(np.uint64)) & 1:
            near = float(np.nextafter(near, np.inf if gap > 0 else -np.inf))
        out[i] = np.float16(near) if exact else np.float16(plain)
    return out


def _bfloat16(x: Array) -> Array:
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), 0x7FFF, rounded).astype(np.uint16)


def test_bfloat16(kernels: Loader, space: Space) -> None:
    x, y = operands("f32", 1), operands("f32", 2)
    a, b = _bfloat16(x), _bfloat16(y)
    wide = [v.astype(np.uint32) << 16 for v in (a, b)]
    fa, fb = wide[0].view(np.float32), wide[1].view(np.float32)
    cases = [
        Case("cvt.rn.bf16.f32 {d}, {a};", "b16", ("f32",)),
        Case("cvt.f32.bf16 {d}, {a};", "f32", ("b16",)),
        Case("add.bf16 {d}, {a}, {b};", "b16", ("b16", "b16")),
        Case("cvt.rn.bf16x2.f32 {d}, {a}, {b};", "u32", ("f32", "f32")),
        Case("max.bf16x2 {d}, {a}, {b};", "u32", ("u32", "u32")),
    ]
    pair_a = a.astype(np.uint32) << 16 | b
    pair_b = b.astype(np.uint32) << 16 | a
    got = run(kernels, space, cases, [[x], [a], [a, b], [x, y], [pair_a, pair_b]])
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got[0], a)
        np.testing.assert_array_equal(got[1], fa)
        np.testing.assert_array_equal(got[2], _bfloat16(fa + fb))
        np.testing.assert_array_equal(got[3], pair_a)
        larger = _bfloat16(_extreme(fa, fb, True)).astype(np.uint32)
        np.testing.assert_array_equal(got[4], larger << 16 | larger)
