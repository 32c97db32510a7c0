"""PTX's approximate functions and directed roundings, as LLVM IR.

They do not use a C library, so the same program produces the same bits on every machine. The code
is straight-line and uses correctly rounded operations only (add, multiply, fma, divide, square
root), so it can be vectorised without changing the result. Errors are below those that the PTX ISA
allows (2^-22 relative for ex2, lg2 and rsqrt; 2^-20.9 absolute for sin and cos in [-pi, pi]; 2^-11
relative for tanh).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .emit import Emitter, Value, const, float_bits, float_const

F, D = "float", "double"


def _poly(e: Emitter, x: Value, coefficients: list[float]) -> Value:
    """Evaluates a polynomial by Horner's scheme; the highest power comes first."""
    value = float_const(x.type, coefficients[0])
    for coefficient in coefficients[1:]:
        value = e.intrinsic("fma", value, x, float_const(x.type, coefficient))
    return value


def _exp2_coefficients(degree: int) -> list[float]:
    return [math.log(2) ** k / math.factorial(k) for k in range(degree, -1, -1)]


def _nearest(e: Emitter, x: Value) -> tuple[Value, Value]:
    """Returns the integer nearest to x (ties to even), as float and as integer; |x| below 2^22, for
    double 2^51. Adding 1.5·2^23 puts it into the low bits, and can be vectorised, unlike
    conversions with a defined result for NaN. For a NaN the integer is meaningless."""
    magic = const(x.type, 1.5 * 2.0 ** (23 if x.type == F else 52))
    shifted = e.bin("fadd", x, magic)
    integer = "i32" if x.type == F else "i64"
    number = e.bin("sub", e.bitcast(shifted, integer), e.bitcast(magic, integer))
    return e.bin("fsub", shifted, magic), number


def _ex2(e: Emitter, x: Value) -> Value:
    """Computes 2^x, including subnormal results."""
    low = e.select(e.cmp("fcmp olt", x, const(F, -160)), const(F, -160), x)
    clamped = e.select(e.cmp("fcmp ogt", low, const(F, 130)), const(F, 130), low)
    whole, number = _nearest(e, clamped)
    value = _poly(e, e.bin("fsub", clamped, whole), _exp2_coefficients(7))
    half = e.bin("ashr", number, const("i32", 1))
    rest = e.bin("sub", number, half)
    return e.bin("fmul", e.bin("fmul", value, _power2(e, half)), _power2(e, rest))


def _power2(e: Emitter, n: Value) -> Value:
    """Returns 2^n as float, n an i32 in [-126, 127]."""
    return e.bitcast(e.bin("shl", e.bin("add", n, const("i32", 127)), const("i32", 23)), F)


def _lg2(e: Emitter, x: Value) -> Value:
    tiny = e.cmp("fcmp olt", x, float_bits(0x00800000))
    scaled = e.select(tiny, e.bin("fmul", x, const(F, 2.0**23)), x)
    bits = e.bitcast(scaled, "i32")
    # the exponent that puts the mantissa into [sqrt(1/2), sqrt(2))
    offset = e.bin("sub", bits, const("i32", 0x3F3504F3))
    exponent = e.bin("ashr", offset, const("i32", 23))
    mantissa = e.bitcast(e.bin("sub", bits, e.bin("shl", exponent, const("i32", 23))), F)
    s = e.bin("fdiv", e.bin("fsub", mantissa, const(F, 1)), e.bin("fadd", mantissa, const(F, 1)))
    square = e.bin("fmul", s, s)
    series = _poly(e, square, [2 / math.log(2) / k for k in (11, 9, 7, 5, 3, 1)])
    whole = e.bin("fadd", e.cast("sitofp", exponent, F), e.select(tiny, const(F, -23), const(F, 0)))
    value = e.intrinsic("fma", s, series, whole)
    value = e.select(e.cmp("fcmp oeq", x, float_bits(0x7F800000)), x, value)
    value = e.select(e.cmp("fcmp oeq", x, const(F, 0)), float_bits(0xFF800000), value)
    return e.select(e.cmp("fcmp ult", x, const(F, 0)), float_bits(0x7FFFFFFF), value)


def _quadrant(e: Emitter, x: Value) -> tuple[Value, Value]:
    """Returns quadrant and rest of x = quadrant * pi/2 + rest, in double."""
    wide = e.cast("fpext", x, D)
    number = e.intrinsic("roundeven", e.bin("fmul", wide, const(D, 2 / math.pi)))
    high = math.pi / 2
    low = 6.123233995736766e-17  # pi/2 - high
    rest = e.intrinsic("fma", number, const(D, -high), wide)
    return number, e.intrinsic("fma", number, const(D, -low), rest)


def _sine(e: Emitter, x: Value, shift: int) -> Value:
    number, rest = _quadrant(e, x)
    square = e.bin("fmul", rest, rest)
    sine = [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, -1, -1)]
    cosine = [(-1) ** k / math.factorial(2 * k) for k in range(6, -1, -1)]
    odd = e.bin("fmul", _poly(e, square, sine), rest)
    even = _poly(e, square, cosine)
    quadrant = e.call("i32", "llvm.fptosi.sat.i32.f64", number)
    if shift:
        quadrant = e.bin("add", quadrant, const("i32", shift))
    swap = e.cmp("icmp ne", e.bin("and", quadrant, const("i32", 1)), const("i32", 0))
    flip = e.cmp("icmp ne", e.bin("and", quadrant, const("i32", 2)), const("i32", 0))
    value = e.select(swap, even, odd)
    value = e.cast("fptrunc", e.select(flip, e.neg(value), value), F)
    return value if shift else e.select(e.cmp("fcmp oeq", x, const(F, 0)), x, value)  # including -0


def _tanh(e: Emitter, x: Value) -> Value:
    """Computes (2^y - 1) / (2^y + 1) with y = 2x / ln 2, in double."""
    wide = e.cast("fpext", x, D)
    y = e.bin("fmul", wide, const(D, 2 / math.log(2)))
    y = e.select(e.cmp("fcmp olt", y, const(D, -60)), const(D, -60), y)
    y = e.select(e.cmp("fcmp ogt", y, const(D, 60)), const(D, 60), y)
    whole, number = _nearest(e, y)
    power = _poly(e, e.bin("fsub", y, whole), _exp2_coefficients(11))
    scale = e.bin("shl", e.bin("add", number, const("i64", 1023)), const("i64", 52))
    power = e.bin("fmul", power, e.bitcast(scale, D))
    value = e.bin("fdiv", e.bin("fsub", power, const(D, 1)), e.bin("fadd", power, const(D, 1)))
    small = e.cmp("fcmp olt", e.intrinsic("fabs", x), const(F, 1e-5))  # tanh x = x - x^3/3
    return e.select(small, x, e.cast("fptrunc", value, F))


def _step(e: Emitter, nearest: Value, above: Value, below: Value, mode: str) -> Value:
    """Returns a directed rounding, given the float nearest to an exact value and whether that
    float is above or below it: down ("rm"), up ("rp"), to zero ("rz"), or to odd ("ro": safe
    to round again)."""
    bits = e.bitcast(nearest, "i32")
    negative = e.cmp("icmp slt", bits, const("i32", 0))
    one, minus = const("i32", 1), const("i32", -1)  # in magnitude
    down, up = e.select(negative, one, minus), e.select(negative, minus, one)
    if mode == "rz":
        need_down = e.bin("and", above, e.not_(negative))
        need_up = e.bin("and", below, negative)
    elif mode == "ro":
        even = e.cmp("icmp eq", e.bin("and", bits, one), const("i32", 0))
        need_down, need_up = e.bin("and", above, even), e.bin("and", below, even)
    else:
        need_down = above if mode == "rm" else const("i1", 0)
        need_up = below if mode == "rp" else const("i1", 0)
    step = e.select(need_down, down, e.select(need_up, up, const("i32", 0)))
    result = e.bin("add", bits, step)
    # around zero the sign changes
    is_zero = e.cmp("fcmp oeq", nearest, const(F, 0))
    around = e.select(need_down, const("i32", 0x80000001), e.select(need_up, one, bits))
    return e.bitcast(e.select(is_zero, around, result), F)


def _directed(e: Emitter, value: Value, error: Value, mode: str) -> Value:
    """Rounds value + error to float according to `mode` (both double, |error| at most half a
    unit of value's last place)."""
    nearest = e.cast("fptrunc", value, F)
    back = e.cast("fpext", nearest, D)
    same = e.cmp("fcmp oeq", back, value)
    above_error = e.bin("and", same, e.cmp("fcmp olt", error, const(D, 0)))
    below_error = e.bin("and", same, e.cmp("fcmp ogt", error, const(D, 0)))
    above = e.bin("or", e.cmp("fcmp ogt", back, value), above_error)
    below = e.bin("or", e.cmp("fcmp olt", back, value), below_error)
    return _step(e, nearest, above, below, mode)


def _two_sum(e: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """Knuth's two-sum: returns s = a + b rounded, and the exact error."""
    total = e.bin("fadd", a, b)
    of_b = e.bin("fsub", total, a)
    of_a = e.bin("fsub", total, of_b)
    error = e.bin("fadd", e.bin("fsub", a, of_a), e.bin("fsub", b, of_b))
    finite = e.cmp("fcmp oeq", e.bin("fsub", error, error), const(error.type, 0))
    return total, e.select(finite, error, const(error.type, 0))


def _fma(mode: str) -> Callable[..., Value]:
    """Returns a builder for fma. The nearest result comes from the machine's own fma. Its error is
    compared without rounding: nearest - (the larger of product and addend) always fits a double,
    and is compared with the smaller. (If nearest is within a factor of 2 of the larger one, by
    Sterbenz; otherwise the two cancelled, and the difference has at most the 48 bits of the
    product.)"""

    def build(e: Emitter, a: Value, b: Value, c: Value) -> Value:
        if mode == "rm":  # x - x is -0 when rounding down: -(-x + x)
            opposite = e.intrinsic("fma", e.neg(a), b, e.neg(c))
            nearest = e.neg(opposite)
        else:
            nearest = e.intrinsic("fma", a, b, c)
        product = e.bin("fmul", e.cast("fpext", a, D), e.cast("fpext", b, D))  # exact
        addend = e.cast("fpext", c, D)
        of_product = e.cmp("fcmp oge", e.intrinsic("fabs", product), e.intrinsic("fabs", addend))
        larger, smaller = (
            e.select(of_product, product, addend),
            e.select(of_product, addend, product),
        )
        rest = e.bin("fsub", e.cast("fpext", nearest, D), larger)
        above, below = e.cmp("fcmp ogt", rest, smaller), e.cmp("fcmp olt", rest, smaller)
        return _step(e, nearest, above, below, mode)

    return build


def _narrow(mode: str) -> Callable[..., Value]:
    def build(e: Emitter, value: Value) -> Value:
        return _directed(e, value, const(D, 0), mode)

    return build


MXCSR = {"rn": 0x1F80, "rm": 0x3F80, "rp": 0x5F80, "rz": 0x7F80}
_FUSED = "vfmadd213s{0} $3, $2, $0"
_ASM = {
    "add": "vadds{0} $2, $1, $0",
    "sub": "vsubs{0} $2, $1, $0",
    "mul": "vmuls{0} $2, $1, $0",
    "div": "vdivs{0} $2, $1, $0",
    "sqrt": "vsqrts{0} $1, $1, $0",
    "fma": _FUSED,
}


_OPERANDS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "sqrt": 1, "fma": 3}


def _hardware(name: str, mode: str) -> Callable[..., Value]:
    """Returns a builder for one instruction under another rounding mode, as one piece of
    assembly, so that nothing can be scheduled in between. For operations that would be slow
    to round in software: double, and quotients and roots."""

    def build(e: Emitter, *operands: Value) -> Value:
        type_ = operands[0].type
        for each in (mode, "rn"):
            e.declared.add(f"@rf_mxcsr_{each} = private unnamed_addr constant i32 {MXCSR[each]}")
        here, back = len(operands) + 1, len(operands) + 2
        code = _ASM[name].format("s" if type_ == F else "d")
        code = f"vldmxcsr ${here}\\0A{code}\\0Avldmxcsr ${back}"
        inputs = ["0" if name == "fma" else "x", *["x"] * (len(operands) - 1)]
        constraints = ",".join(["=&x", *inputs, "*m", "*m"])
        values = ", ".join(f"{type_} {o.ref}" for o in operands)
        modes = ", ".join(f"ptr elementtype(i32) @rf_mxcsr_{each}" for each in (mode, "rn"))
        return e.op(type_, f'call {type_} asm "{code}", "{constraints}"({values}, {modes})')

    return build


def _sum(mode: str) -> Callable[..., Value]:
    """Returns a builder that rounds the exact sum of two doubles to float."""

    def build(e: Emitter, a: Value, b: Value) -> Value:
        return _directed(e, *_two_sum(e, a, b), mode)

    return build


def _narrow16(kind: str, mode: str) -> Callable[..., Value]:
    """Returns a builder for the bits of a float as half or bfloat16, rounded down, up or to
    zero."""

    def build(e: Emitter, x: Value) -> Value:
        if kind == "f16":
            nearest = e.bitcast(e.cast("fptrunc", x, "half"), "i16")
            back = e.cast("fpext", e.bitcast(nearest, "half"), F)
        else:
            nearest = _to_bf16(e, x)
            back = e.bitcast(e.bin("shl", e.resize(nearest, "i32"), const("i32", 16)), F)
        above, below = e.cmp("fcmp ogt", back, x), e.cmp("fcmp olt", back, x)
        negative = e.cmp("icmp slt", e.bitcast(x, "i32"), const("i32", 0))
        positive = e.not_(negative)
        # x and nearest have the same sign: a step up or down is one in magnitude
        toward = {
            "rz": e.select(negative, below, above),
            "rm": e.bin("and", above, positive),
            "rp": e.bin("and", below, negative),
        }[mode]
        away = {
            "rz": const("i1", 0),
            "rm": e.bin("and", above, negative),
            "rp": e.bin("and", below, positive),
        }[mode]
        step = e.bin("sub", e.resize(away, "i16"), e.resize(toward, "i16"))
        return e.bin("add", nearest, step)

    return build


def _flush_half(e: Emitter, x: Value) -> Value:
    """As _flush, for a float that represents a half."""
    small = e.cmp("fcmp olt", e.intrinsic("fabs", x), const(F, 2.0**-14))
    return e.select(small, e.intrinsic("copysign", const(F, 0), x), x)


def _flush(e: Emitter, x: Value) -> Value:
    """Replaces a subnormal by a zero of its sign (.ftz)."""
    small = e.cmp("fcmp olt", e.intrinsic("fabs", x), float_bits(0x00800000))
    return e.select(small, e.intrinsic("copysign", const(F, 0), x), x)


def _rsqrt(e: Emitter, x: Value) -> Value:
    return e.bin("fdiv", const(x.type, 1), e.intrinsic("sqrt", x))


def _to_bf16(e: Emitter, x: Value) -> Value:
    """Rounds to nearest even; returns i16."""
    bits = e.bitcast(x, "i32")
    odd = e.bin("and", e.bin("lshr", bits, const("i32", 16)), const("i32", 1))
    rounded = e.bin("add", e.bin("add", bits, const("i32", 0x7FFF)), odd)
    nan = e.cmp("fcmp uno", x, x)
    rounded = e.select(nan, const("i32", 0x7FFF0000), rounded)
    return e.cast("trunc", e.bin("lshr", rounded, const("i32", 16)), "i16")


_HELPERS: dict[str, tuple[str, list[str], Callable[..., Value]]] = {
    "rf_ex2": (F, [F], _ex2),
    "rf_lg2": (F, [F], _lg2),
    "rf_sin": (F, [F], lambda e, x: _sine(e, x, 0)),
    "rf_cos": (F, [F], lambda e, x: _sine(e, x, 1)),
    "rf_tanh": (F, [F], _tanh),
    "rf_rsqrt": (F, [F], _rsqrt),
    "rf_rsqrt_f64": (D, [D], _rsqrt),
    "rf_flush": (F, [F], _flush),
    "rf_flush_half": (F, [F], _flush_half),
    "rf_to_bf16": ("i16", [F], _to_bf16),
    **{
        f"rf_{name}_{mode}_{type_}": (type_, [type_] * _OPERANDS[name], _hardware(name, mode))
        for name in _ASM
        for mode in ("rm", "rp", "rz")
        for type_ in ((F, D) if name in ("div", "sqrt") else (D,))
    },
    **{f"rf_sum_{m}": (F, [D, D], _sum(m)) for m in ("rm", "rp", "rz", "ro")},
    **{
        f"rf_to_{kind}_{m}": ("i16", [F], _narrow16(kind, m))
        for kind in ("f16", "bf16")
        for m in ("rm", "rp", "rz")
    },
    **{f"rf_fma_{m}": (F, [F, F, F], _fma(m)) for m in ("rm", "rp", "rz", "ro")},
    **{f"rf_narrow_{m}": (F, [D], _narrow(m)) for m in ("rm", "rp", "rz", "ro")},
}


def definitions(names: set[str]) -> tuple[list[str], set[str]]:
    """Returns the helpers' IR, and the declarations that it needs."""
    text: list[str] = []
    declared: set[str] = set()
    for name in sorted(names):
        result, kinds, build = _HELPERS[name]
        emitter = Emitter()
        arguments = [Value(kind, f"%a{i}") for i, kind in enumerate(kinds)]
        value = build(emitter, *arguments)
        signature = ", ".join(f"{a.type} {a.ref}" for a in arguments)
        text.append(f"define internal {result} @{name}({signature}) alwaysinline nounwind {{")
        text += [*emitter.lines, f"  ret {value.type} {value.ref}", "}"]
        declared |= emitter.declared
    return text, declared
