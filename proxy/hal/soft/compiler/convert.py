"""PTX instructions that move values between registers and convert them. PTX ISA, 9.7.9."""

from __future__ import annotations

from rankfold.proxy.ptx.model import TYPE_BYTES, Instr, Operand, Sink, Vec

from .emit import BITS, Value, const, is_float, is_signed, llvm_type
from .ops import (
    Context,
    Unsupported,
    flush,
    halves,
    join,
    pack_float,
    read_float,
    relu,
    rounding,
    saturate,
)

INTEGER_ROUNDINGS = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def mov(c: Context, instr: Instr) -> None:
    kind, target, source = instr.op[-1], instr.args[0], instr.args[1]
    if instr.op[1] in ("v2", "v4"):
        _move_vector(c, instr)
    elif isinstance(source, Vec) and isinstance(target, Vec):
        _unpack(c, target, _pack(c, source, kind), kind)
    elif isinstance(source, Vec):
        c.write(target, _pack(c, source, kind))
    elif isinstance(target, Vec):
        _unpack(c, target, c.read(source, kind), kind)
    else:
        c.write(target, c.read(source, kind))


def _move_vector(c: Context, instr: Instr) -> None:
    """Moves element by element; all are read before one is written."""
    target, source = instr.args
    if not isinstance(target, Vec) or not isinstance(source, Vec):
        raise Unsupported
    if len(target.items) != len(source.items) or len(target.items) != int(instr.op[1][1]):
        raise Unsupported
    values = [c.read(item, instr.op[-1]) for item in source.items]
    for item, value in zip(target.items, values, strict=True):
        c.write(item, value)


def _pack(c: Context, source: Vec, kind: str) -> Value:
    whole = llvm_type(kind)
    part = BITS[whole] // len(source.items)
    result = const(whole, 0)
    for index, item in enumerate(source.items):
        bits = c.e.resize(c.read(item, f"b{part}"), whole)
        result = c.e.bin("or", result, c.e.bin("shl", bits, const(whole, part * index)))
    return result


def _unpack(c: Context, target: Vec, value: Value, kind: str) -> None:
    value = c.e.coerce(value, f"i{8 * TYPE_BYTES[kind]}")
    part = BITS[value.type] // len(target.items)
    for index, item in enumerate(target.items):
        if not isinstance(item, Sink):
            moved = c.e.bin("lshr", value, const(value.type, part * index))
            c.write(item, c.e.cast("trunc", moved, f"i{part}"))


def parameter_move(c: Context, instr: Instr) -> None:
    """Moves a parameter of an inlined call: like a store and a load of the type."""
    kind = instr.op[-1]
    c.write(instr.args[0], c.read(instr.args[1], kind), is_signed(kind))


def cvt(c: Context, instr: Instr) -> None:
    words = set(instr.op[1:-2])
    to, source = instr.op[-2], instr.op[-1]
    if instr.op[1] == "pack":
        _pack_integers(c, instr)
        return
    if to in _FLOAT8 or source in _FLOAT8:
        _cvt_float8(c, instr, words)
        return
    if to == "tf32":
        _cvt_tf32(c, instr, words)
        return
    if words - {
        "rn",
        "rz",
        "rm",
        "rp",
        "rni",
        "rzi",
        "rmi",
        "rpi",
        "sat",
        "ftz",
        "relu",
        "satfinite",
    }:
        raise Unsupported
    if "satfinite" in words and (to not in _LARGEST_HALF or source != "f32"):
        raise Unsupported
    if to in ("f16x2", "bf16x2") and source == "f32":
        _cvt_pair(c, instr, to, words)
    elif to not in TYPE_BYTES or source not in TYPE_BYTES:
        raise Unsupported
    elif is_float(source) and is_float(to):
        value = _float_to_float(c, read_float(c, instr.args[1], source), to, source, words)
        c.write(instr.args[0], value)
    elif is_float(source):
        c.write(instr.args[0], _float_to_int(c, instr.args[1], to, source, words), is_signed(to))
    elif is_float(to):
        c.write(instr.args[0], _int_to_float(c, c.read(instr.args[1], source), to, source, words))
    else:
        c.write(
            instr.args[0],
            _int_to_int(c, c.read(instr.args[1], source), to, source, words),
            is_signed(to),
        )


def _cvt_pair(c: Context, instr: Instr, to: str, words: set[str]) -> None:
    """cvt.rn.f16x2.f32 d, a, b: a becomes the upper half."""
    mode = rounding(words)
    if "sat" in words or mode not in ("rn", "rz"):
        raise Unsupported
    parts = []
    for operand in (instr.args[2], instr.args[1]):
        value = c.read(operand, "f32")
        if "relu" in words:
            value = relu(c, value)
        half = pack_directed(c, value, to[:-2], mode)
        parts.append(_finite(c, half, to) if "satfinite" in words else half)
    c.write(instr.args[0], join(c, parts[0], parts[1]))


_LARGEST_HALF = {"f16": 0x7BFF, "f16x2": 0x7BFF, "bf16": 0x7F7F, "bf16x2": 0x7F7F}


def _finite(c: Context, half: Value, kind: str) -> Value:
    """Replaces infinity by the largest finite half of the sign; NaN becomes 0x7FFF."""
    e, largest = c.e, _LARGEST_HALF[kind]
    magnitude = e.bin("and", half, const("i16", 0x7FFF))
    sign = e.bin("and", half, const("i16", 0x8000))
    finite = e.bin("or", e.intrinsic("umin", magnitude, const("i16", largest)), sign)
    is_nan = e.cmp("icmp ugt", magnitude, const("i16", largest + 1))
    return e.select(is_nan, const("i16", 0x7FFF), finite)


# 8-bit floats: bits of the fraction, bias of the exponent, bits of the largest finite value.
_FLOAT8 = {"e4m3x2": (3, 7, 0x7E), "e5m2x2": (2, 15, 0x7B)}


def _cvt_float8(c: Context, instr: Instr, words: set[str]) -> None:
    """Converts two floats or halves to two 8-bit floats, the first one in the upper byte; or
    back to two halves."""
    to, source = instr.op[-2], instr.op[-1]
    if to == "f16x2" and source in _FLOAT8 and words <= {"rn", "relu"}:
        pair = c.e.resize(c.read(instr.args[1], "b16"), "i32")
        low, high = (
            _half_of(c, c.e.bin("lshr", pair, const("i32", 8 * n)), source, words) for n in (0, 1)
        )
        c.write(instr.args[0], join(c, low, high))
        return
    if source not in ("f32", "f16x2") or not {"rn", "satfinite"} <= words <= {
        "rn",
        "satfinite",
        "relu",
    }:
        raise Unsupported
    if source == "f32":
        values = (c.read(instr.args[2], "f32"), c.read(instr.args[1], "f32"))
    else:
        values = halves(c, instr.args[1], "f16x2")
    low, high = (_float8_of(c, relu(c, v) if "relu" in words else v, to) for v in values)
    both = c.e.bin("or", low, c.e.bin("shl", high, const("i32", 8)))
    c.write(instr.args[0], c.e.cast("trunc", both, "i16"))


def _float8_of(c: Context, value: Value, kind: str) -> Value:
    """Rounds to nearest even, at most to the largest finite value; NaN is 0x7F. An i32."""
    e = c.e
    fraction, bias, largest = _FLOAT8[kind]
    shift = 23 - fraction
    bits = e.bitcast(value, "i32")
    magnitude = e.bin("and", bits, const("i32", 0x7FFFFFFF))
    odd = e.bin("and", e.bin("lshr", magnitude, const("i32", shift)), const("i32", 1))
    rounded = e.bin("add", e.bin("add", magnitude, const("i32", (1 << (shift - 1)) - 1)), odd)
    normal = e.bin(
        "sub", e.bin("lshr", rounded, const("i32", shift)), const("i32", (127 - bias) << fraction)
    )
    # subnormal: adding this rounds to a multiple of the smallest value, found in the low bits
    magic = const("float", 2.0 ** (24 - bias - fraction))
    size = e.bitcast(magnitude, "float")
    sum_ = e.bitcast(e.bin("fadd", size, magic), "i32")
    subnormal = e.bin("sub", sum_, e.bitcast(magic, "i32"))
    is_small = e.cmp("fcmp olt", size, const("float", 2.0 ** (1 - bias)))
    code = e.intrinsic("umin", e.select(is_small, subnormal, normal), const("i32", largest))
    sign = e.bin("and", e.bin("lshr", bits, const("i32", 24)), const("i32", 0x80))
    return e.select(e.cmp("fcmp uno", value, value), const("i32", 0x7F), e.bin("or", code, sign))


def _half_of(c: Context, bits: Value, kind: str, words: set[str]) -> Value:
    """Returns the 8-bit float in the low byte as the bits of a half; NaN is 0x7FFF."""
    e = c.e
    fraction, bias, largest = _FLOAT8[kind]
    last = 0x7C if kind == "e5m2x2" else largest  # infinity; e4m3 has none
    magnitude = e.bin("and", bits, const("i32", 0x7F))
    is_nan = e.cmp("icmp ugt", magnitude, const("i32", last))
    sign = e.bin("and", e.bin("shl", bits, const("i32", 8)), const("i32", 0x8000))
    if "relu" in words:
        negative = e.cmp("icmp ne", sign, const("i32", 0))
        magnitude, sign = e.select(negative, const("i32", 0), magnitude), const("i32", 0)
    if kind == "e5m2x2":
        half = e.bin("shl", magnitude, const("i32", 8))
    else:
        exponents = e.bin(
            "add", e.bin("shl", magnitude, const("i32", 20)), const("i32", (127 - bias) << 23)
        )
        tiny = e.bin("fmul", e.cast("uitofp", magnitude, "float"), const("float", 2.0**-9))
        is_tiny = e.cmp("icmp ult", magnitude, const("i32", 1 << fraction))
        value = e.select(is_tiny, tiny, e.bitcast(exponents, "float"))
        half = e.resize(e.bitcast(e.cast("fptrunc", value, "half"), "i16"), "i32")
    result = e.select(is_nan, const("i32", 0x7FFF), e.bin("or", half, sign))
    return e.cast("trunc", result, "i16")


def _cvt_tf32(c: Context, instr: Instr, words: set[str]) -> None:
    """Converts to a float with a fraction of 10 bits: the other bits are zero."""
    e = c.e
    mode = words & {"rna", "rn", "rz"}
    if instr.op[-1] != "f32" or len(mode) != 1 or words - {"rna", "rn", "rz", "satfinite", "relu"}:
        raise Unsupported
    value = c.read(instr.args[1], "f32")
    if "relu" in words:
        value = relu(c, value)
    bits = e.bitcast(value, "i32")
    magnitude = e.bin("and", bits, const("i32", 0x7FFFFFFF))
    half = const("i32", {"rna": 0x1000, "rn": 0xFFF, "rz": 0}[mode.pop()])
    rounded = e.bin("add", magnitude, half)
    if "rn" in words:
        odd = e.bin("and", e.bin("lshr", magnitude, const("i32", 13)), const("i32", 1))
        rounded = e.bin("add", rounded, odd)
    rounded = e.bin("and", rounded, const("i32", ~0x1FFF))
    if "satfinite" in words:
        rounded = e.intrinsic("umin", rounded, const("i32", 0x7F7FE000))
    result = e.bin("or", rounded, e.bin("and", bits, const("i32", 1 << 31)))
    nan = e.cmp("fcmp uno", value, value)
    c.write(instr.args[0], e.select(nan, const("i32", 0x7FFFFFFF), result))


_PACKED_BITS = {"u16": 16, "s16": 16, "u8": 8, "s8": 8, "u4": 4, "s4": 4, "u2": 2, "s2": 2}


def _pack_integers(c: Context, instr: Instr) -> None:
    """cvt.pack.sat.to.s32[.b32] d, a, b[, c]: shifts c up and appends the clamped a and b."""
    e, to = c.e, instr.op[3]
    if instr.op[2] != "sat" or instr.op[4] != "s32":
        raise Unsupported
    bits = _PACKED_BITS[to]
    low, high = (-1 << (bits - 1), (1 << (bits - 1)) - 1) if is_signed(to) else (0, (1 << bits) - 1)
    result = const("i32", 0)
    if bits < 16:
        result = e.bin("shl", c.read(instr.args[3], "b32"), const("i32", 2 * bits))
    for place, operand in ((bits, instr.args[1]), (0, instr.args[2])):
        value = e.intrinsic("smax", c.read(operand, "s32"), const("i32", low))
        value = e.intrinsic("smin", value, const("i32", high))
        value = e.bin("and", value, const("i32", (1 << bits) - 1))
        result = e.bin("or", result, e.bin("shl", value, const("i32", place)))
    c.write(instr.args[0], result)


def pack_directed(c: Context, value: Value, kind: str, mode: str) -> Value:
    """As pack_float, in any rounding mode."""
    if mode == "rn" or kind not in ("f16", "bf16"):
        return pack_float(c, value, kind)
    return c.e.call("i16", f"rf_to_{kind}_{mode}", value)


def _float_to_float(c: Context, value: Value, to: str, source: str, words: set[str]) -> Value:
    e = c.e
    value = flush(c, value, words)
    for word, name in INTEGER_ROUNDINGS.items():
        if word in words:
            value = e.intrinsic(name, value)
    mode = rounding(words)
    narrowing = TYPE_BYTES[to] < TYPE_BYTES[source] or {to, source} == {"f16", "bf16"}
    if value.type == "double" and to != "f64":
        exact = mode if to == "f32" else "ro"
        value = (
            e.cast("fptrunc", value, "float")
            if exact == "rn"
            else e.call("float", f"rf_narrow_{exact}", value)
        )
    elif to == "f64" and value.type == "float":
        value = e.cast("fpext", value, "double")
    value = flush(c, value, words)
    if "sat" in words:
        value = saturate(c, value)
    if "relu" in words:
        value = relu(c, value)
    result = pack_directed(c, value, to, mode if narrowing else "rn")
    return _finite(c, result, to) if "satfinite" in words else result


def _float_to_int(c: Context, operand: Operand, to: str, source: str, words: set[str]) -> Value:
    """Converts to an integer. Out of range gives the nearest integer of the type; NaN gives 0,
    or only the highest bit if either side has 64 bits (PTX ISA, cvt)."""
    e = c.e
    value = flush(c, read_float(c, operand, source), words)
    for word, name in INTEGER_ROUNDINGS.items():
        if word in words:
            value = e.intrinsic(name, value)
    suffix = "f32" if value.type == "float" else "f64"
    name = "fptosi" if is_signed(to) else "fptoui"
    type_ = llvm_type(to)
    result = e.call(type_, f"llvm.{name}.sat.{type_}.{suffix}", value)
    if source != "f64" and TYPE_BYTES[to] < 8:
        return result
    highest = const(type_, -1 << (8 * TYPE_BYTES[to] - 1))
    return e.select(e.cmp("fcmp uno", value, value), highest, result)


def _int_to_float(c: Context, value: Value, to: str, source: str, words: set[str]) -> Value:
    e, mode = c.e, rounding(words)
    cast = "sitofp" if is_signed(source) else "uitofp"
    small = TYPE_BYTES[source] <= 4
    if to in ("f32", "f64") and (mode == "rn" or (to == "f64" and small)):
        result = e.cast(cast, value, llvm_type(to))
    elif to == "f16" and mode == "rn":
        result = e.cast(cast, value, "float")  # exact where half is finite
    elif small:
        helper = f"rf_narrow_{mode if to == 'f32' else 'ro'}"
        result = e.call("float", helper, e.cast(cast, value, "double"))
    else:  # two halves that are exact
        upper = e.bin("ashr" if is_signed(source) else "lshr", value, const("i64", 32))
        lower = e.bin("and", value, const("i64", 0xFFFFFFFF))
        high = e.bin("fmul", e.cast(cast, upper, "double"), const("double", 2.0**32))
        low = e.cast("uitofp", lower, "double")
        if to == "f64":
            result = e.call("double", f"rf_add_{mode}_double", high, low)
        else:
            result = e.call("float", f"rf_sum_{mode if to == 'f32' else 'ro'}", high, low)
    if "sat" in words:
        result = saturate(c, result)
    return pack_directed(c, result, to, mode)


def _int_to_int(c: Context, value: Value, to: str, source: str, words: set[str]) -> Value:
    e = c.e
    if "sat" not in words:
        return e.resize(value, llvm_type(to), is_signed(source))
    bits = 8 * TYPE_BYTES[to]
    low = -(1 << (bits - 1)) if is_signed(to) else 0
    high = (1 << (bits - 1)) - 1 if is_signed(to) else (1 << bits) - 1
    wide = e.resize(value, "i128", is_signed(source))
    wide = e.intrinsic("smin", e.intrinsic("smax", wide, const("i128", low)), const("i128", high))
    return e.cast("trunc", wide, llvm_type(to))
