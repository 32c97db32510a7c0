"""What each PTX instruction means, except memory (memory.py) and control flow (lower.py).

Instructions are found by their first word. A handler raises Unsupported for a form that it does
not implement; nothing is approximated in silence. PTX ISA, chapter 9.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .emit import BITS, Emitter, Value, const, float_bits, is_float, is_signed, llvm_type
from .ptx import TYPE_BYTES, Instr, Int, Not, Operand, Pair, Reg, Sink, Vec


class Unsupported(Exception):
    """This form of the instruction is not implemented."""


class Context(Protocol):
    """What handlers need of the segment that is being written."""

    e: Emitter

    def read(self, operand: Operand, kind: str) -> Value: ...
    def write(self, operand: Operand, value: Value, signed: bool = False) -> None: ...
    def kind_of(self, operand: Operand) -> str: ...


Handler = Callable[[Context, Instr], None]
OPS: dict[str, Handler] = {}
ROUNDINGS = frozenset(("rn", "rz", "rm", "rp"))
INTEGER_ROUNDINGS = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def op(*names: str) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for name in names:
            OPS[name] = handler
        return handler

    return register


def allow(instr: Instr, *known: str) -> set[str]:
    """The modifiers between the name and the type; one that is not `known` is unsupported."""
    words = set(instr.op[1:-1])
    if words - set(known):
        raise Unsupported
    return words


# ---- floating-point values ------------------------------------------------------------------


def read_float(c: Context, operand: Operand, kind: str) -> Value:
    """As a value to compute with: 16-bit floats become float, exactly."""
    value = c.read(operand, kind)
    if kind == "f16":
        return c.e.cast("fpext", c.e.bitcast(value, "half"), "float")
    if kind == "bf16":
        return c.e.bitcast(c.e.bin("shl", c.e.resize(value, "i32"), const("i32", 16)), "float")
    return value


def pack_float(c: Context, value: Value, kind: str) -> Value:
    """A computed value rounded to the type, as a register keeps it."""
    if kind == "f16":
        return c.e.bitcast(c.e.cast("fptrunc", value, "half"), "i16")
    if kind == "bf16":
        return c.e.call("i16", "rf_to_bf16", value)
    return value


def _halves(c: Context, operand: Operand, kind: str) -> tuple[Value, Value]:
    whole = c.read(operand, "b32")
    parts = []
    for shift in (0, 16):
        bits = c.e.cast("trunc", c.e.bin("lshr", whole, const("i32", shift)), "i16")
        if kind == "f16x2":
            parts.append(c.e.cast("fpext", c.e.bitcast(bits, "half"), "float"))
        else:
            wide = c.e.bin("shl", c.e.resize(bits, "i32"), const("i32", 16))
            parts.append(c.e.bitcast(wide, "float"))
    return parts[0], parts[1]


def _join(c: Context, low: Value, high: Value) -> Value:
    wide = c.e.bin("shl", c.e.resize(high, "i32"), const("i32", 16))
    return c.e.bin("or", wide, c.e.resize(low, "i32"))


def flush(c: Context, value: Value, words: set[str] | tuple[str, ...]) -> Value:
    return (
        c.e.call("float", "rf_flush", value) if "ftz" in words and value.type == "float" else value
    )


def saturate(c: Context, value: Value) -> Value:
    """To [0, 1]; NaN becomes 0."""
    zero, one = const(value.type, 0), const(value.type, 1)
    low = c.e.select(c.e.cmp("fcmp ogt", value, zero), value, zero)
    return c.e.select(c.e.cmp("fcmp olt", low, one), low, one)


def float_op(c: Context, instr: Instr, words: set[str], compute: Callable[..., Value]) -> None:
    """d = compute(sources) for one float type, its packed pair too; with ftz, sat and relu."""
    kind = instr.op[-1]
    half = kind in ("f16", "f16x2")

    def one(values: list[Value]) -> Value:
        if "ftz" in words and half:
            values = [c.e.call("float", "rf_flush_half", value) for value in values]
            result = compute(*values)
            rounded = c.e.cast("fpext", c.e.cast("fptrunc", result, "half"), "float")
            result = c.e.call("float", "rf_flush_half", rounded)
        else:
            result = flush(c, compute(*[flush(c, value, words) for value in values]), words)
        if "sat" in words:
            result = saturate(c, result)
        if "relu" in words:
            result = c.e.select(c.e.cmp("fcmp olt", result, const(result.type, 0)),
                                const(result.type, 0), result)  # fmt: skip
        return result

    if kind.endswith("x2"):
        pairs = [_halves(c, operand, kind) for operand in instr.args[1:]]
        single = kind[:-2]
        low = pack_float(c, one([pair[0] for pair in pairs]), single)
        high = pack_float(c, one([pair[1] for pair in pairs]), single)
        c.write(instr.args[0], _join(c, low, high))
    else:
        values = [read_float(c, operand, kind) for operand in instr.args[1:]]
        c.write(instr.args[0], pack_float(c, one(values), kind))


def _rounding(words: set[str]) -> str:
    found = words & ROUNDINGS
    return found.pop() if found else "rn"


# ---- addition, multiplication -----------------------------------------------------------------


@op("add", "sub", "mul")
def _arithmetic(c: Context, instr: Instr) -> None:
    kind, name = instr.op[-1], instr.op[0]
    if not is_float(kind):
        _integer_arithmetic(c, instr)
        return
    words = allow(instr, "ftz", "sat", "rn", "rz", "rm", "rp")
    mode = _rounding(words)
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
        b = c.e.op("float", f"fneg float {b.ref}")
    return c.e.call("float", helper, a, const("float", 1), b)


def _integer_arithmetic(c: Context, instr: Instr) -> None:
    name, kind = instr.op[0], instr.op[-1]
    if kind in ("u16x2", "s16x2"):
        words = allow(instr, "sat")
        if name != "add":
            raise Unsupported
        saturating = ("s" if is_signed(kind) else "u") + "add.sat"
        _in_halves(c, instr, lambda x, y: c.e.intrinsic(saturating, x, y) if "sat" in words
                   else c.e.bin("add", x, y))  # fmt: skip
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
        _with_carry(c, instr, const("i1", 0))
    else:
        c.write(instr.args[0], c.e.bin(name, a, b))


def _in_halves(c: Context, instr: Instr, compute: Callable[[Value, Value], Value]) -> None:
    """Both 16-bit halves of two words, each for itself."""
    words = [c.read(operand, "b32") for operand in instr.args[1:3]]
    parts = []
    for shift in (0, 16):
        a, b = (c.e.cast("trunc", c.e.bin("lshr", w, const("i32", shift)), "i16") for w in words)
        parts.append(compute(a, b))
    c.write(instr.args[0], _join(c, parts[0], parts[1]))


def _product(c: Context, a: Value, b: Value, kind: str) -> Value:
    wide = f"i{2 * BITS[a.type]}"
    signed = is_signed(kind)
    return c.e.bin("mul", c.e.resize(a, wide, signed), c.e.resize(b, wide, signed))


def _high(c: Context, wide: Value, type_: str) -> Value:
    return c.e.cast("trunc", c.e.bin("lshr", wide, const(wide.type, BITS[type_])), type_)


def _with_carry(c: Context, instr: Instr, carry: Value) -> None:
    """add/sub with carry in, and carry out if the instruction says .cc."""
    kind = instr.op[-1]
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    wide = f"i{2 * BITS[a.type]}"
    name = "sub" if instr.op[0].startswith("sub") else "add"
    total = c.e.bin(name, c.e.resize(a, wide), c.e.resize(b, wide))
    total = c.e.bin(name, total, c.e.resize(carry, wide))
    c.write(instr.args[0], c.e.resize(total, a.type))
    if "cc" in instr.op:
        _write_carry(c, total, a.type)


def _write_carry(c: Context, total: Value, type_: str) -> None:
    above = _high(c, total, type_)
    bit = c.e.cast("trunc", above, "i1")
    c.write(Reg("%cc"), bit)


@op("addc", "subc")
def _carry_chain(c: Context, instr: Instr) -> None:
    allow(instr, "cc")
    _with_carry(c, instr, c.read(Reg("%cc"), "pred"))


@op("mad", "madc")
def _mad(c: Context, instr: Instr) -> None:
    kind = instr.op[-1]
    if is_float(kind):
        _fma(c, instr)
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


@op("fma")
def _fma(c: Context, instr: Instr) -> None:
    kind = instr.op[-1]
    words = allow(instr, "ftz", "sat", "relu", "rn", "rz", "rm", "rp")
    mode = _rounding(words)
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        # float's own rounding must not round twice: to odd first
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


@op("mul24", "mad24")
def _mul24(c: Context, instr: Instr) -> None:
    words, kind = allow(instr, "lo", "hi"), instr.op[-1]
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
        result = c.e.bin("add", result, c.read(instr.args[3], kind))
    c.write(instr.args[0], result)


@op("sad")
def _sad(c: Context, instr: Instr) -> None:
    kind = instr.op[-1]
    a, b, addend = (c.read(x, kind) for x in instr.args[1:4])
    less = c.e.cmp("icmp slt" if is_signed(kind) else "icmp ult", a, b)
    gap = c.e.select(less, c.e.bin("sub", b, a), c.e.bin("sub", a, b))
    c.write(instr.args[0], c.e.bin("add", addend, gap))


@op("dp4a", "dp2a")
def _dot(c: Context, instr: Instr) -> None:
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


@op("div", "rem")
def _division(c: Context, instr: Instr) -> None:
    name, kind = instr.op[0], instr.op[-1]
    if is_float(kind):
        words = allow(instr, "approx", "full", "ftz", "rn", "rz", "rm", "rp")
        if kind not in ("f32", "f64"):
            raise Unsupported
        mode = _rounding(words)
        float_op(c, instr, words, lambda a, b: _quotient(c, mode, a, b))
        return
    allow(instr)
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    c.write(instr.args[0], _divide(c.e, name, a, b, is_signed(kind)))


def _quotient(c: Context, mode: str, a: Value, b: Value) -> Value:
    if mode == "rn":
        return c.e.bin("fdiv", a, b)
    return c.e.call(a.type, f"rf_div_{mode}_{a.type}", a, b)


def _divide(e: Emitter, name: str, a: Value, b: Value, signed: bool) -> Value:
    """As NVIDIA's devices: x / 0 is all ones, x % 0 is x, and the quotient wraps."""
    zero = e.cmp("icmp eq", b, const(b.type, 0))
    safe = e.select(zero, const(b.type, 1), b)
    by_zero = const(a.type, -1) if name == "div" else a
    if not signed:
        result = e.bin("u" + name, a, safe)
    else:
        minus = e.cmp("icmp eq", b, const(b.type, -1))
        safe = e.select(minus, const(b.type, 1), safe)
        wrapped = e.neg_int(a) if name == "div" else const(a.type, 0)
        result = e.select(minus, wrapped, e.bin("s" + name, a, safe))
    return e.select(zero, by_zero, result)


@op("rcp", "sqrt", "rsqrt")
def _roots(c: Context, instr: Instr) -> None:
    name = instr.op[0]
    words = allow(instr, "approx", "ftz", "rn", "rz", "rm", "rp")
    mode = _rounding(words)
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


@op("ex2", "lg2", "sin", "cos", "tanh")
def _approximate(c: Context, instr: Instr) -> None:
    words = allow(instr, "approx", "ftz")
    if instr.op[-1] == "f64":
        raise Unsupported
    float_op(c, instr, words, lambda x: c.e.call("float", "rf_" + instr.op[0], x))


# ---- sign, minimum, bits ------------------------------------------------------------------------


@op("neg", "abs")
def _sign(c: Context, instr: Instr) -> None:
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
            float_op(c, instr, words, lambda x: e.op(x.type, f"fneg {x.type} {x.ref}"))
        else:
            float_op(c, instr, words, lambda x: e.intrinsic("fabs", x))
    else:
        value = c.read(instr.args[1], kind)
        negative = e.neg_int(value)
        if name == "abs":
            below = e.cmp("icmp slt", value, const(value.type, 0))
            negative = e.select(below, negative, value)
        c.write(instr.args[0], negative)


@op("min", "max")
def _extreme(c: Context, instr: Instr) -> None:
    name, kind = instr.op[0], instr.op[-1]
    if is_float(kind):
        words = allow(instr, "ftz", "NaN")
        # a number wins over a NaN, -0 is less than +0; with .NaN a NaN wins
        which = f"{name}imum" if "NaN" in words else f"{name}imumnum"

        def compute(*values: Value) -> Value:
            result = values[0]
            for value in values[1:]:
                result = c.e.intrinsic(which, result, value)
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
    which = ("s" if is_signed(kind) else "u") + name

    def pick(a: Value, b: Value) -> Value:
        result = c.e.intrinsic(which, a, b)
        return c.e.intrinsic("smax", result, const(a.type, 0)) if "relu" in words else result

    if kind in ("u16x2", "s16x2"):
        _in_halves(c, instr, pick)
    else:
        c.write(instr.args[0], pick(c.read(instr.args[1], kind), c.read(instr.args[2], kind)))


@op("copysign")
def _copysign(c: Context, instr: Instr) -> None:
    """copysign d, a, b: the sign of a, the magnitude of b."""
    kind = instr.op[-1]
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    c.write(instr.args[0], c.e.intrinsic("copysign", b, a))


@op("testp")
def _testp(c: Context, instr: Instr) -> None:
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
        result = e.bin("and", e.cmp("fcmp oge", size, least), e.cmp("fcmp olt", size, infinity))
    elif test == "subnormal":
        small = e.cmp("fcmp olt", size, least)
        result = e.bin("and", small, e.cmp("fcmp one", size, const(kind_type, 0)))
    else:
        raise Unsupported
    c.write(instr.args[0], result)


@op("and", "or", "xor")
def _logic(c: Context, instr: Instr) -> None:
    a, b = c.read(instr.args[1], instr.op[-1]), c.read(instr.args[2], instr.op[-1])
    c.write(instr.args[0], c.e.bin(instr.op[0], a, b))


@op("not")
def _not(c: Context, instr: Instr) -> None:
    c.write(instr.args[0], c.e.not_(c.read(instr.args[1], instr.op[-1])))


@op("cnot")
def _cnot(c: Context, instr: Instr) -> None:
    value = c.read(instr.args[1], instr.op[-1])
    c.write(instr.args[0], c.e.resize(c.e.cmp("icmp eq", value, const(value.type, 0)), value.type))


@op("lop3")
def _lop3(c: Context, instr: Instr) -> None:
    """The truth table's rows that are set, or-ed."""
    if instr.op[1:] != ("b32",) or not isinstance(instr.args[4], Int):
        raise Unsupported
    e = c.e
    sources = [c.read(operand, "b32") for operand in instr.args[1:4]]
    result = const("i32", 0)
    for row in range(8):
        if instr.args[4].value >> row & 1:
            term = const("i32", -1)
            for source, bit in zip(sources, (4, 2, 1), strict=True):
                term = e.bin("and", term, source if row & bit else e.not_(source))
            result = e.bin("or", result, term)
    c.write(instr.args[0], result)


@op("shl", "shr")
def _shift(c: Context, instr: Instr) -> None:
    kind = instr.op[-1]
    value = c.read(instr.args[1], kind)
    bits = BITS[value.type]
    name = "shl" if instr.op[0] == "shl" else "ashr" if is_signed(kind) else "lshr"
    amount = instr.args[2]
    e = c.e
    if isinstance(amount, Int):
        number = amount.value & 0xFFFFFFFF
        if number >= bits and name != "ashr":
            c.write(instr.args[0], const(value.type, 0))
        else:
            c.write(instr.args[0], e.bin(name, value, const(value.type, min(number, bits - 1))))
        return
    count = c.read(amount, "u32")
    if name == "ashr":
        count = e.intrinsic("umin", count, const("i32", bits - 1))
        c.write(instr.args[0], e.bin(name, value, e.resize(count, value.type)), True)
        return
    inside = e.cmp("icmp ult", count, const("i32", bits))
    shifted = e.bin(name, value, e.resize(e.bin("and", count, const("i32", bits - 1)), value.type))
    c.write(instr.args[0], e.select(inside, shifted, const(value.type, 0)))


@op("shf")
def _funnel(c: Context, instr: Instr) -> None:
    """shf.{l,r}.{wrap,clamp}.b32 d, low, high, amount."""
    e = c.e
    low, high, amount = (c.read(x, "u32") for x in instr.args[1:4])
    if "wrap" in instr.op:
        amount = e.bin("and", amount, const("i32", 31))
    else:
        amount = e.intrinsic("umin", amount, const("i32", 32))
    wide = e.bin("or", e.bin("shl", e.resize(high, "i64"), const("i64", 32)), e.resize(low, "i64"))
    count = e.resize(amount, "i64")
    if instr.op[1] == "l":
        wide = e.bin("lshr", e.bin("shl", wide, count), const("i64", 32))
    else:
        wide = e.bin("lshr", wide, count)
    c.write(instr.args[0], e.cast("trunc", wide, "i32"))


@op("popc", "clz", "brev")
def _count(c: Context, instr: Instr) -> None:
    e, value = c.e, c.read(instr.args[1], instr.op[-1])
    if instr.op[0] == "popc":
        c.write(instr.args[0], e.resize(e.intrinsic("ctpop", value), "i32"))
    elif instr.op[0] == "clz":
        counted = e.call(value.type, f"llvm.ctlz.{value.type}", value, const("i1", 0))
        c.write(instr.args[0], e.resize(counted, "i32"))
    else:
        c.write(instr.args[0], e.intrinsic("bitreverse", value))


@op("bfind")
def _bfind(c: Context, instr: Instr) -> None:
    """The highest bit that is set (signed: that differs from the sign); -1 if none."""
    kind = instr.op[-1]
    e, value = c.e, c.read(instr.args[1], kind)
    bits = BITS[value.type]
    if is_signed(kind):
        value = e.bin("xor", value, e.bin("ashr", value, const(value.type, bits - 1)))
    zeros = e.call(value.type, f"llvm.ctlz.{value.type}", value, const("i1", 0))
    none = e.cmp("icmp eq", value, const(value.type, 0))
    position = zeros if "shiftamt" in instr.op else e.bin("sub", const(value.type, bits - 1), zeros)
    c.write(instr.args[0], e.resize(e.select(none, const(value.type, -1), position), "i32"))


@op("bfe")
def _bfe(c: Context, instr: Instr) -> None:
    """bfe d, a, position, length; what lies beyond the word is the sign (or zero)."""
    kind = instr.op[-1]
    e, value = c.e, c.read(instr.args[1], kind)
    bits = BITS[value.type]
    wide = f"i{2 * bits}"
    mask = const("i32", 255)
    position = e.bin("and", c.read(instr.args[2], "u32"), mask)
    length = e.bin("and", c.read(instr.args[3], "u32"), mask)
    signed = is_signed(kind)
    position = e.intrinsic("umin", position, const("i32", bits))
    length = e.intrinsic("umin", length, const("i32", bits))
    shift = "ashr" if signed else "lshr"
    moved = e.bin(shift, e.resize(value, wide, signed), e.resize(position, wide))
    rest = e.resize(e.bin("sub", const("i32", 2 * bits), length), wide)
    empty = e.cmp("icmp eq", length, const("i32", 0))
    safe = e.select(empty, const(wide, 0), rest)
    field = e.bin(shift, e.bin("shl", moved, safe), safe)
    result = e.select(empty, const(wide, 0), field)
    c.write(instr.args[0], e.cast("trunc", result, value.type))


@op("bfi")
def _bfi(c: Context, instr: Instr) -> None:
    """bfi d, a, b, position, length: the low bits of a put into b."""
    e = c.e
    kind = instr.op[-1]
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    bits = BITS[a.type]
    wide = f"i{2 * bits}"
    byte = const("i32", 255)
    position = e.intrinsic(
        "umin", e.bin("and", c.read(instr.args[3], "u32"), byte), const("i32", bits)
    )
    length = e.intrinsic(
        "umin", e.bin("and", c.read(instr.args[4], "u32"), byte), const("i32", bits)
    )
    one = const(wide, 1)
    mask = e.bin("sub", e.bin("shl", one, e.resize(length, wide)), one)
    mask = e.cast("trunc", e.bin("shl", mask, e.resize(position, wide)), a.type)
    moved = e.cast("trunc", e.bin("shl", e.resize(a, wide), e.resize(position, wide)), a.type)
    kept = e.bin("and", b, e.not_(mask))
    c.write(instr.args[0], e.bin("or", kept, e.bin("and", moved, mask)))


@op("prmt")
def _prmt(c: Context, instr: Instr) -> None:
    if instr.op[1:] != ("b32",):
        raise Unsupported
    e = c.e
    a, b, selector = (c.read(x, "b32") for x in instr.args[1:4])
    both = e.bin("or", e.bin("shl", e.resize(b, "i64"), const("i64", 32)), e.resize(a, "i64"))
    result = const("i32", 0)
    for index in range(4):
        nibble = e.bin("lshr", selector, const("i32", 4 * index))
        place = e.bin("shl", e.bin("and", nibble, const("i32", 7)), const("i32", 3))
        byte = e.cast("trunc", e.bin("lshr", both, e.resize(place, "i64")), "i8")
        signs = e.bin("ashr", byte, const("i8", 7))
        replicate = e.cmp("icmp ne", e.bin("and", nibble, const("i32", 8)), const("i32", 0))
        byte = e.select(replicate, signs, byte)
        moved = e.bin("shl", e.resize(byte, "i32"), const("i32", 8 * index))
        result = e.bin("or", result, moved)
    c.write(instr.args[0], result)


# ---- comparison and selection -----------------------------------------------------------------

_INTEGER = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
            "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}  # fmt: skip
_FLOAT = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge",
          "equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge",
          "num": "ord", "nan": "uno"}  # fmt: skip


def _compare(c: Context, instr: Instr, kind: str, a: Operand, b: Operand) -> Value:
    test = instr.op[1]
    if is_float(kind):
        if kind.endswith("x2"):
            raise Unsupported
        x, y = (read_float(c, o, kind) for o in (a, b))
        if "ftz" in instr.op and kind == "f16":
            x, y = (c.e.call("float", "rf_flush_half", v) for v in (x, y))
        x, y = (flush(c, v, instr.op) for v in (x, y))
        return c.e.cmp("fcmp " + _FLOAT[test], x, y)
    name = _INTEGER[test]
    if name in ("lt", "le", "gt", "ge"):
        name = ("s" if is_signed(kind) else "u") + name
    return c.e.cmp("icmp " + name, c.read(a, kind), c.read(b, kind))


def _predicate(c: Context, operand: Operand) -> Value:
    if isinstance(operand, Not):
        return c.e.not_(c.read(operand.operand, "pred"))
    return c.read(operand, "pred")


@op("setp")
def _setp(c: Context, instr: Instr) -> None:
    """setp.op[.bool] p|q, a, b[, c]: p = (a op b) bool c, q = !(a op b) bool c."""
    e = c.e
    result = _compare(c, instr, instr.op[-1], instr.args[1], instr.args[2])
    other = e.not_(result)
    if len(instr.op) > 3 and instr.op[2] in ("and", "or", "xor"):
        third = _predicate(c, instr.args[3])
        result, other = e.bin(instr.op[2], result, third), e.bin(instr.op[2], other, third)
    target = instr.args[0]
    if isinstance(target, Pair):
        c.write(target.first, result)
        c.write(target.second, other)
    else:
        c.write(target, result)


@op("set")
def _set(c: Context, instr: Instr) -> None:
    """set.op[.bool][.ftz].dtype.stype."""
    target, kind = instr.op[-2], instr.op[-1]
    if kind in ("f16x2", "bf16x2"):
        _set_pair(c, instr, target, kind)
        return
    result = _compare(c, instr, kind, instr.args[1], instr.args[2])
    if instr.op[2] in ("and", "or", "xor"):
        result = c.e.bin(instr.op[2], result, _predicate(c, instr.args[3]))
    if target == "f32":
        c.write(instr.args[0], c.e.select(result, const("float", 1), const("float", 0)))
    elif target in ("f16", "bf16"):
        one = const("i16", 0x3C00 if target == "f16" else 0x3F80)
        c.write(instr.args[0], c.e.select(result, one, const("i16", 0)))
    elif target in ("u32", "s32"):
        c.write(instr.args[0], c.e.resize(result, "i32", True))
    else:
        raise Unsupported


def _set_pair(c: Context, instr: Instr, target: str, kind: str) -> None:
    """Each half: 1.0 or 0.0 of the type, or (u32) all ones or zeros."""
    if set(instr.op[1:-2]) - {instr.op[1]} or target not in (kind, "u32", "s32"):
        raise Unsupported
    one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(target, 0xFFFF)
    pairs = [_halves(c, operand, kind) for operand in instr.args[1:3]]
    parts = []
    for a, b in zip(*pairs, strict=True):
        holds = c.e.cmp("fcmp " + _FLOAT[instr.op[1]], a, b)
        parts.append(c.e.select(holds, const("i16", one), const("i16", 0)))
    c.write(instr.args[0], _join(c, parts[0], parts[1]))


@op("selp")
def _selp(c: Context, instr: Instr) -> None:
    kind = instr.op[-1]
    condition = _predicate(c, instr.args[3])
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    c.write(instr.args[0], c.e.select(condition, a, b))


@op("slct")
def _slct(c: Context, instr: Instr) -> None:
    """slct.dtype.ctype d, a, b, c: a if c >= 0, else b."""
    kind, test = instr.op[-2], instr.op[-1]
    value = c.read(instr.args[3], test)
    if test == "f32":
        value = flush(c, value, instr.op)
        condition = c.e.cmp("fcmp oge", value, const("float", 0))
    else:
        condition = c.e.cmp("icmp sge", value, const("i32", 0))
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    c.write(instr.args[0], c.e.select(condition, a, b))


# ---- moves and conversions --------------------------------------------------------------------


@op("mov")
def _mov(c: Context, instr: Instr) -> None:
    kind, target, source = instr.op[-1], instr.args[0], instr.args[1]
    if isinstance(source, Vec):
        c.write(target, _pack(c, source, kind))
    elif isinstance(target, Vec):
        _unpack(c, target, c.read(source, kind), kind)
    elif kind == "b128":
        raise Unsupported
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
    mode = _rounding(words)
    if "sat" in words or mode not in ("rn", "rz"):
        raise Unsupported
    parts = []
    for operand in (instr.args[2], instr.args[1]):
        value = c.read(operand, "f32")
        if "relu" in words:
            value = c.e.intrinsic("maximumnum", value, const("float", 0))
        parts.append(pack_directed(c, value, to[:-2], mode))
    c.write(instr.args[0], _join(c, parts[0], parts[1]))


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
    mode = _rounding(words)
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
    e, mode = c.e, _rounding(words)
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


@op("membar", "fence")
def _fence(c: Context, instr: Instr) -> None:
    c.e.do("fence seq_cst")
