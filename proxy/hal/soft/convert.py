"""PTX instructions that move values between registers and convert them. PTX ISA, 9.7.9."""

from __future__ import annotations

from .emit import BITS, Value, const, is_float, is_signed, llvm_type
from .ops import Context, Unsupported, flush, join, op, pack_float, read_float, rounding, saturate
from .ptx import TYPE_BYTES, Instr, Operand, Sink, Vec

INTEGER_ROUNDINGS = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


@op("mov")
def _mov(c: Context, instr: Instr) -> None:
    kind, target, source = instr.op[-1], instr.args[0], instr.args[1]
    if isinstance(source, Vec):
        c.write(target, _pack(c, source, kind))
    elif isinstance(target, Vec):
        _unpack(c, target, c.read(source, kind), kind)
    else:
        c.write(target, c.read(source, kind))


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


@op("pmov")
def _parameter_move(c: Context, instr: Instr) -> None:
    """A parameter of an inlined call: like a store and a load of the type."""
    kind = instr.op[-1]
    c.write(instr.args[0], c.read(instr.args[1], kind), is_signed(kind))


@op("cvt")
def _cvt(c: Context, instr: Instr) -> None:
    words = set(instr.op[1:-2])
    to, source = instr.op[-2], instr.op[-1]
    if instr.op[1] == "pack":
        _pack_integers(c, instr)
        return
    if words - {"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "sat", "ftz", "relu"}:
        raise Unsupported
    if to in ("f16x2", "bf16x2") and source == "f32":
        _cvt_pair(c, instr, to, words)
    elif to not in TYPE_BYTES or source not in TYPE_BYTES or "tf32" in (to, source) or (
        {to, source} & {"e4m3", "e5m2"}
    ):  # fmt: skip
        raise Unsupported
    elif is_float(source) and is_float(to):
        value = _float_to_float(c, read_float(c, instr.args[1], source), to, source, words)
        c.write(instr.args[0], value)
    elif is_float(source):
        c.write(instr.args[0], _float_to_int(c, instr.args[1], to, source, words), is_signed(to))
    elif is_float(to):
        c.write(instr.args[0], _int_to_float(c, c.read(instr.args[1], source), to, source, words))
    else:
        c.write(instr.args[0], _int_to_int(c, c.read(instr.args[1], source), to, source, words),
                is_signed(to))  # fmt: skip


def _cvt_pair(c: Context, instr: Instr, to: str, words: set[str]) -> None:
    """cvt.rn.f16x2.f32 d, a, b: a becomes the upper half."""
    mode = rounding(words)
    if "sat" in words or mode not in ("rn", "rz"):
        raise Unsupported
    parts = []
    for operand in (instr.args[2], instr.args[1]):
        value = c.read(operand, "f32")
        if "relu" in words:
            value = c.e.intrinsic("maximumnum", value, const("float", 0))
        parts.append(pack_directed(c, value, to[:-2], mode))
    c.write(instr.args[0], join(c, parts[0], parts[1]))


_PACKED_BITS = {"u16": 16, "s16": 16, "u8": 8, "s8": 8, "u4": 4, "s4": 4, "u2": 2, "s2": 2}


def _pack_integers(c: Context, instr: Instr) -> None:
    """cvt.pack.sat.to.s32[.b32] d, a, b[, c]: c moves up for the clamped a and b."""
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
    """pack_float, in any rounding mode."""
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
            e.cast("fptrunc", value, "float") if exact == "rn"
            else e.call("float", f"rf_narrow_{exact}", value)
        )  # fmt: skip
    elif to == "f64" and value.type == "float":
        value = e.cast("fpext", value, "double")
    value = flush(c, value, words)
    if "sat" in words:
        value = saturate(c, value)
    if "relu" in words:
        value = e.intrinsic("maximumnum", value, const(value.type, 0))
    return pack_directed(c, value, to, mode if narrowing else "rn")


def _float_to_int(c: Context, operand: Operand, to: str, source: str, words: set[str]) -> Value:
    """Out of range gives the nearest integer of the type, NaN gives 0."""
    e = c.e
    value = flush(c, read_float(c, operand, source), words)
    for word, name in INTEGER_ROUNDINGS.items():
        if word in words:
            value = e.intrinsic(name, value)
    suffix = "f32" if value.type == "float" else "f64"
    name = "fptosi" if is_signed(to) else "fptoui"
    type_ = llvm_type(to)
    return e.call(type_, f"llvm.{name}.sat.{type_}.{suffix}", value)


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


@op("nanosleep", "prefetch", "prefetchu", "discard", "applypriority", "griddepcontrol", "pmevent")
def _nothing(c: Context, instr: Instr) -> None:
    """Hints."""
