"""Arithmetic on integers and floats. PTX ISA, chapters 9.7.1 to 9.7.5."""

from __future__ import annotations

import math
from collections.abc import Callable

from rankfold.proxy.ptx.model import Instr, Reg

from .emit import BITS, Emitter, Value, const, float_bits, is_float, is_signed, llvm_type
from .ops import Context, Unsupported, allow, float_op, join, rounding

# ---- addition, multiplication -----------------------------------------------------------------


def add_sub_mul(c: Context, instr: Instr) -> None:
    kind, name = instr.op[-1], instr.op[0]
    if not is_float(kind):
        _integer_arithmetic(c, instr)
        return
    words = allow(instr, "ftz", "sat", "rn", "rz", "rm", "rp")
    mode = rounding(words)
    if mode == "rn":
        float_op(c, instr, words, lambda a, b: c.e.bin("f" + name, a, b))
    elif kind == "f32":
        float_op(c, instr, words, lambda a, b: _directed(c, name, mode, a, b))
    elif kind == "f64":
        helper = f"rf_{name}_{mode}_double"
        float_op(c, instr, words, lambda a, b: c.e.call("double", helper, a, b))
    else:
        raise Unsupported


def _directed(c: Context, name: str, mode: str, a: Value, b: Value) -> Value:
    helper = f"rf_fma_{mode}"
    if name == "mul":
        wide = c.e.bin("fmul", c.e.cast("fpext", a, "double"), c.e.cast("fpext", b, "double"))
        return c.e.call("float", f"rf_narrow_{mode}", wide)
    if name == "sub":
        b = c.e.neg(b)
    return c.e.call("float", helper, a, const("float", 1), b)


def _integer_arithmetic(c: Context, instr: Instr) -> None:
    name, kind = instr.op[0], instr.op[-1]
    if kind in ("u16x2", "s16x2"):
        words = allow(instr, "sat")
        if name == "mul":
            raise Unsupported
        saturating = ("s" if is_signed(kind) else "u") + f"{name}.sat"
        in_halves(
            c,
            instr,
            lambda x, y: c.e.intrinsic(saturating, x, y) if "sat" in words else c.e.bin(name, x, y),
        )
        return
    words = allow(instr, "lo", "hi", "wide", "sat", "cc")
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    if name == "mul" and "wide" in words:
        c.write(instr.args[0], _product(c, a, b, kind))
    elif name == "mul" and "hi" in words:
        c.write(instr.args[0], _high(c, _product(c, a, b, kind), a.type))
    elif "sat" in words:
        if kind != "s32" or name == "mul":
            raise Unsupported
        c.write(instr.args[0], c.e.intrinsic(f"s{name}.sat", a, b))
    elif "cc" in words:
        if name == "mul":
            raise Unsupported
        _with_carry(c, instr, const("i1", name == "sub"))
    else:
        c.write(instr.args[0], c.e.bin(name, a, b))


def in_halves(c: Context, instr: Instr, compute: Callable[[Value, Value], Value]) -> None:
    """Computes both 16-bit halves of two words separately."""
    words = [c.read(operand, "b32") for operand in instr.args[1:3]]
    parts = []
    for shift in (0, 16):
        a, b = (c.e.cast("trunc", c.e.bin("lshr", w, const("i32", shift)), "i16") for w in words)
        parts.append(compute(a, b))
    c.write(instr.args[0], join(c, parts[0], parts[1]))


def _product(c: Context, a: Value, b: Value, kind: str) -> Value:
    wide = f"i{2 * BITS[a.type]}"
    signed = is_signed(kind)
    return c.e.bin("mul", c.e.resize(a, wide, signed), c.e.resize(b, wide, signed))


def _high(c: Context, wide: Value, type_: str) -> Value:
    return c.e.cast("trunc", c.e.bin("lshr", wide, const(wide.type, BITS[type_])), type_)


def _with_carry(c: Context, instr: Instr, carry: Value) -> None:
    """Adds or subtracts with carry in, and with carry out if the instruction has .cc. A device
    subtracts by adding the complement: its carry means that nothing was borrowed, and nvcc's
    128-bit division continues from it with addc."""
    kind = instr.op[-1]
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    wide = f"i{2 * BITS[a.type]}"
    if instr.op[0].startswith("sub"):
        b = c.e.bin("xor", b, const(b.type, -1))
    total = c.e.bin("add", c.e.resize(a, wide), c.e.resize(b, wide))
    total = c.e.bin("add", total, c.e.resize(carry, wide))
    c.write(instr.args[0], c.e.resize(total, a.type))
    if "cc" in instr.op:
        _write_carry(c, total, a.type)


def _write_carry(c: Context, total: Value, type_: str) -> None:
    above = _high(c, total, type_)
    bit = c.e.cast("trunc", above, "i1")
    c.write(Reg("%cc"), bit)


def carry_chain(c: Context, instr: Instr) -> None:
    allow(instr, "cc")
    _with_carry(c, instr, c.read(Reg("%cc"), "pred"))


def mad(c: Context, instr: Instr) -> None:
    kind = instr.op[-1]
    if is_float(kind):
        fma(c, instr)
        return
    words = allow(instr, "lo", "hi", "wide", "sat", "cc")
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    if "wide" in words:
        wide = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}[kind]
        addend = c.read(instr.args[3], wide)
        c.write(instr.args[0], c.e.bin("add", _product(c, a, b, kind), addend))
        return
    addend = c.read(instr.args[3], kind)
    part = _high(c, _product(c, a, b, kind), a.type) if "hi" in words else c.e.bin("mul", a, b)
    if "cc" in words or instr.op[0] == "madc":
        wide = f"i{2 * BITS[a.type]}"
        total = c.e.bin("add", c.e.resize(part, wide), c.e.resize(addend, wide))
        if instr.op[0] == "madc":
            total = c.e.bin("add", total, c.e.resize(c.read(Reg("%cc"), "pred"), wide))
        c.write(instr.args[0], c.e.resize(total, a.type))
        if "cc" in words:
            _write_carry(c, total, a.type)
    elif "sat" in words:
        if kind != "s32" or "hi" not in words:
            raise Unsupported
        c.write(instr.args[0], c.e.intrinsic("sadd.sat", part, addend))
    else:
        c.write(instr.args[0], c.e.bin("add", part, addend))


def fma(c: Context, instr: Instr) -> None:
    kind = instr.op[-1]
    words = allow(instr, "ftz", "sat", "relu", "rn", "rz", "rm", "rp")
    mode = rounding(words)
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        # to odd first, so that float's own rounding does not round twice
        mode = "ro" if mode == "rn" else "?"
    if mode == "rn":
        float_op(c, instr, words, lambda a, b, d: c.e.intrinsic("fma", a, b, d))
    elif mode == "?":
        raise Unsupported
    elif kind == "f64":
        helper = f"rf_fma_{mode}_double"
        float_op(c, instr, words, lambda a, b, d: c.e.call("double", helper, a, b, d))
    else:
        float_op(c, instr, words, lambda a, b, d: c.e.call("float", f"rf_fma_{mode}", a, b, d))


def mul24(c: Context, instr: Instr) -> None:
    words, kind = allow(instr, "lo", "hi", "sat"), instr.op[-1]
    shift = const("i32", 8)
    narrow = []
    for operand in instr.args[1:3]:
        value = c.e.bin("shl", c.read(operand, kind), shift)
        narrow.append(c.e.bin("ashr" if is_signed(kind) else "lshr", value, shift))
    wide = _product(c, narrow[0], narrow[1], kind)
    if "hi" in words:
        wide = c.e.bin("lshr", wide, const("i64", 16))
    result = c.e.cast("trunc", wide, "i32")
    if instr.op[0] == "mad24":
        addend = c.read(instr.args[3], kind)
        saturating = "sat" in words
        result = (
            c.e.intrinsic("sadd.sat", result, addend)
            if saturating
            else c.e.bin("add", result, addend)
        )
    c.write(instr.args[0], result)


def sad(c: Context, instr: Instr) -> None:
    kind = instr.op[-1]
    a, b, addend = (c.read(x, kind) for x in instr.args[1:4])
    less = c.e.cmp("icmp slt" if is_signed(kind) else "icmp ult", a, b)
    gap = c.e.select(less, c.e.bin("sub", b, a), c.e.bin("sub", a, b))
    c.write(instr.args[0], c.e.bin("add", addend, gap))


def dot(c: Context, instr: Instr) -> None:
    """dp4a.atype.btype d, a, b, c; dp2a.{lo,hi}.atype.btype takes 16-bit parts of a."""
    e = c.e
    kinds = instr.op[-2:]
    a, b, total = (
        c.read(instr.args[1], "b32"),
        c.read(instr.args[2], "b32"),
        c.read(instr.args[3], "b32"),
    )
    count, bits = (4, 8) if instr.op[0] == "dp4a" else (2, 16)
    first = 2 if "hi" in instr.op else 0

    def part(value: Value, index: int, width: int, kind: str) -> Value:
        cut = e.cast("trunc", e.bin("lshr", value, const("i32", index * width)), f"i{width}")
        return e.resize(cut, "i32", is_signed(kind))

    for index in range(count):
        x = part(a, index, bits, kinds[0])
        y = part(b, first + index if count == 2 else index, 8, kinds[1])
        total = e.bin("add", total, e.bin("mul", x, y))
    c.write(instr.args[0], total)


# ---- division ------------------------------------------------------------------------------


def division(c: Context, instr: Instr) -> None:
    name, kind = instr.op[0], instr.op[-1]
    if is_float(kind):
        words = allow(instr, "approx", "full", "ftz", "rn", "rz", "rm", "rp")
        if kind not in ("f32", "f64"):
            raise Unsupported
        if "approx" in words and kind == "f32":
            float_op(c, instr, words, lambda a, b: _fast_quotient(c.e, a, b))
            return
        mode = rounding(words)
        float_op(c, instr, words, lambda a, b: _quotient(c, mode, a, b))
        return
    allow(instr)
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    c.write(instr.args[0], _divide(c.e, name, a, b, is_signed(kind)))


def _quotient(c: Context, mode: str, a: Value, b: Value) -> Value:
    if mode == "rn":
        return c.e.bin("fdiv", a, b)
    return c.e.call(a.type, f"rf_div_{mode}_{a.type}", a, b)


def _fast_quotient(e: Emitter, a: Value, b: Value) -> Value:
    """If 1/b would be subnormal, it is treated as 0: the result is 0, or NaN for an infinity (PTX
    ISA)."""
    size = e.intrinsic("fabs", b)
    huge = e.bin(
        "and",
        e.cmp("fcmp ogt", size, const(b.type, 2.0**126)),
        e.cmp("fcmp olt", size, const(b.type, math.inf)),
    )
    nothing = e.bin("fmul", a, e.bin("fmul", b, const(b.type, 0.0)))
    return e.select(huge, nothing, e.bin("fdiv", a, b))


def _divide(e: Emitter, name: str, a: Value, b: Value, signed: bool) -> Value:
    """Divides as NVIDIA GPUs do: x / 0 and x % 0 are all ones, and the quotient wraps."""
    zero = e.cmp("icmp eq", b, const(b.type, 0))
    safe = e.select(zero, const(b.type, 1), b)
    if not signed:
        result = e.bin("u" + name, a, safe)
    else:
        minus = e.cmp("icmp eq", b, const(b.type, -1))
        safe = e.select(minus, const(b.type, 1), safe)
        wrapped = e.neg_int(a) if name == "div" else const(a.type, 0)
        result = e.select(minus, wrapped, e.bin("s" + name, a, safe))
    return e.select(zero, const(a.type, -1), result)


def roots(c: Context, instr: Instr) -> None:
    name = instr.op[0]
    words = allow(instr, "approx", "ftz", "rn", "rz", "rm", "rp")
    mode = rounding(words)
    if instr.op[-1] not in ("f32", "f64"):
        raise Unsupported

    def compute(x: Value) -> Value:
        if name == "rcp":
            return _quotient(c, mode, const(x.type, 1), x)
        if name == "sqrt" and mode != "rn":
            return c.e.call(x.type, f"rf_sqrt_{mode}_{x.type}", x)
        if name == "sqrt":
            return c.e.intrinsic("sqrt", x)
        return c.e.call(x.type, "rf_rsqrt" if x.type == "float" else "rf_rsqrt_f64", x)

    float_op(c, instr, words, compute)


def approximate(c: Context, instr: Instr) -> None:
    words = allow(instr, "approx", "ftz")
    if instr.op[-1] == "f64":
        raise Unsupported
    float_op(c, instr, words, lambda x: c.e.call("float", "rf_" + instr.op[0], x))


# ---- sign, minimum, bits ------------------------------------------------------------------------


def sign(c: Context, instr: Instr) -> None:
    name, kind = instr.op[0], instr.op[-1]
    words = allow(instr, "ftz")
    e = c.e
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        value = c.read(instr.args[1], "b32" if kind.endswith("x2") else "b16")
        mask = 0x80008000 if kind.endswith("x2") else 0x8000
        if name == "neg":
            c.write(instr.args[0], e.bin("xor", value, const(value.type, mask)))
        else:
            c.write(instr.args[0], e.bin("and", value, const(value.type, ~mask)))
    elif is_float(kind):
        if name == "neg":
            float_op(c, instr, words, e.neg)
        else:
            float_op(c, instr, words, lambda x: e.intrinsic("fabs", x))
    else:
        value = c.read(instr.args[1], kind)
        negative = e.neg_int(value)
        if name == "abs":
            below = e.cmp("icmp slt", value, const(value.type, 0))
            negative = e.select(below, negative, value)
        c.write(instr.args[0], negative)


def extreme(c: Context, instr: Instr) -> None:
    name, kind = instr.op[0], instr.op[-1]
    if is_float(kind):
        words = allow(instr, "ftz", "NaN", "xorsign", "abs")
        # a number is preferred to a NaN, -0 is less than +0; with .NaN, a NaN is preferred
        operation = f"{name}imum" if "NaN" in words else f"{name}imumnum"

        def compute(*values: Value) -> Value:
            if "xorsign" in words:
                return _xor_signs(c, operation, *values)
            result = values[0]
            for value in values[1:]:
                result = c.e.intrinsic(operation, result, value)
            nan = c.e.cmp("fcmp uno", result, result)
            quiet = float_bits(0x7FFFFFFF)
            if result.type == "double":
                quiet = Value("double", "bitcast (i64 9223372036854775807 to double)")
            return c.e.select(nan, quiet, result)

        float_op(c, instr, words, compute)
        return
    words = allow(instr, "relu")
    if "relu" in words and not is_signed(kind):
        raise Unsupported
    operation = ("s" if is_signed(kind) else "u") + name

    def pick(a: Value, b: Value) -> Value:
        result = c.e.intrinsic(operation, a, b)
        return c.e.intrinsic("smax", result, const(a.type, 0)) if "relu" in words else result

    if kind in ("u16x2", "s16x2"):
        in_halves(c, instr, pick)
    else:
        c.write(instr.args[0], pick(c.read(instr.args[1], kind), c.read(instr.args[2], kind)))


def _xor_signs(c: Context, operation: str, a: Value, b: Value) -> Value:
    """Computes .xorsign.abs: the extreme of the magnitudes, with the product's sign."""
    bits = c.e.bin("xor", c.e.bitcast(a, "i32"), c.e.bitcast(b, "i32"))
    size = c.e.intrinsic(operation, c.e.intrinsic("fabs", a), c.e.intrinsic("fabs", b))
    signed = c.e.intrinsic("copysign", size, c.e.bitcast(bits, a.type))
    return c.e.select(c.e.cmp("fcmp uno", size, size), float_bits(0x7FFFFFFF), signed)


def copysign(c: Context, instr: Instr) -> None:
    """copysign d, a, b: the sign of a, the magnitude of b."""
    kind = instr.op[-1]
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    c.write(instr.args[0], c.e.intrinsic("copysign", b, a))


def testp(c: Context, instr: Instr) -> None:
    test, kind = instr.op[1], instr.op[-1]
    e, x = c.e, c.read(instr.args[1], instr.op[-1])
    size = e.intrinsic("fabs", x)
    infinity = const(kind_type := llvm_type(kind), float("inf"))
    least = const(kind_type, 2.0**-126 if kind == "f32" else 2.0**-1022)
    if test in ("finite", "infinite"):
        result = e.cmp("fcmp olt" if test == "finite" else "fcmp oeq", size, infinity)
    elif test in ("number", "notanumber"):
        result = e.cmp("fcmp ord" if test == "number" else "fcmp uno", x, x)
    elif test == "normal":
        none = e.cmp("fcmp oeq", size, const(kind_type, 0))  # NVIDIA GPUs call zero normal
        large = e.bin("or", none, e.cmp("fcmp oge", size, least))
        result = e.bin("and", large, e.cmp("fcmp olt", size, infinity))
    elif test == "subnormal":
        small = e.cmp("fcmp olt", size, least)
        result = e.bin("and", small, e.cmp("fcmp one", size, const(kind_type, 0)))
    else:
        raise Unsupported
    c.write(instr.args[0], result)
