"""PTX's video instructions: scalar ones on one part of each operand, and packed ones on all
parts. PTX ISA, 9.7.16 and 9.7.17.

A part is a byte or half-word that a selector names (``r.b2``, ``r.h0``; packed ``r.b7530``,
where 4 to 7 are the second operand's bytes). The ISA leaves open the result for an
intermediate result of more than 32 bits that is neither clamped nor added; here it is the low
32 bits, interpreted as the result's type.
"""

from __future__ import annotations

from collections.abc import Callable

from rankfold.proxy.ptx.model import Instr, Operand, Part

from .emit import Value, const, is_signed
from .ops import Context, Unsupported

_NAMES = ("vadd", "vsub", "vabsdiff", "vmin", "vmax")
_TESTS = ("eq", "ne", "lt", "le", "gt", "ge")
_BITS = {"b": 8, "h": 16}
_SECOND = frozenset(("add", "min", "max"))


def _part_of(operand: Operand) -> tuple[Operand, str, bool]:
    """Returns the register, its selector, and whether it is negated."""
    if isinstance(operand, Part):
        return operand.register, operand.selector, operand.negated
    return operand, "", False


def _field(c: Context, word: Value, place: int, bits: int, kind: str) -> Value:
    """Extracts bits of a word, extended to its width."""
    wide = int(word.type[1:])
    raised = c.e.bin("shl", word, const(word.type, wide - bits - place))
    shift = "ashr" if is_signed(kind) else "lshr"
    return c.e.bin(shift, raised, const(word.type, wide - bits))


def _combine(c: Context, name: str, x: Value, y: Value) -> Value:
    e = c.e
    if name in ("vadd", "vsub"):
        return e.bin(name[1:], x, y)
    if name in ("vmin", "vmax"):
        return e.intrinsic("s" + name[1:], x, y)
    if name == "vabsdiff":
        return e.call(x.type, f"llvm.abs.{x.type}", e.bin("sub", x, y), const("i1", 0))
    total = e.bin("add", x, y)  # vavrg: halves are rounded away from zero
    up = e.cmp("icmp sge", total, const(total.type, 0))
    return e.bin("ashr", e.bin("add", total, e.resize(up, total.type)), const(total.type, 1))


def _clamped(c: Context, value: Value, bits: int, signed: bool) -> Value:
    low = -1 << (bits - 1) if signed else 0
    value = c.e.intrinsic("smax", value, const(value.type, low))
    return c.e.intrinsic("smin", value, const(value.type, low + (1 << bits) - 1))


def _holds(c: Context, test: str, x: Value, y: Value) -> Value:
    """Returns 0 or 1; the operands are exact as signed numbers."""
    if test not in _TESTS:
        raise Unsupported
    held = c.e.cmp("icmp " + (test if test in ("eq", "ne") else "s" + test), x, y)
    return c.e.resize(held, x.type)


# ---- on one part: exact in 128 bits -------------------------------------------------------------

_WIDE = "i128"


def _source(c: Context, operand: Operand, kind: str) -> Value:
    """partSelectSignExtend of the PTX ISA"""
    register, selector, _ = _part_of(operand)
    bits, place = 32, 0
    if selector:
        bits, place = _BITS[selector[0]], int(selector[1:]) * _BITS[selector[0]]
        if place + bits > 32:
            raise Unsupported
    word = c.e.resize(c.read(register, "b32"), _WIDE)
    return _field(c, word, place, bits, kind)


def scalar(c: Context, instr: Instr) -> None:
    """vop.dtype.atype.btype[.sat][.op2] d[.sel], a, b[, c]"""
    to, a_kind, b_kind = instr.op[1:4]
    a, b = _source(c, instr.args[1], a_kind), _source(c, instr.args[2], b_kind)
    _finish_scalar(c, instr, _combine(c, instr.op[0], a, b), to, instr.op[4:])


def scalar_set(c: Context, instr: Instr) -> None:
    """vset.atype.btype.cmp[.op2] d[.sel], a, b[, c]"""
    a_kind, b_kind, test = instr.op[1:4]
    a, b = _source(c, instr.args[1], a_kind), _source(c, instr.args[2], b_kind)
    _finish_scalar(c, instr, _holds(c, test, a, b), "u32", instr.op[4:])


def scalar_shift(c: Context, instr: Instr) -> None:
    """vop.dtype.atype.u32[.sat].mode[.op2] d[.sel], a, b[, c]"""
    e, (to, kind, _) = c.e, instr.op[1:4]
    words = [word for word in instr.op[4:] if word not in ("clamp", "wrap")]
    a, count = _source(c, instr.args[1], kind), _source(c, instr.args[2], "u32")
    if "wrap" in instr.op:
        count = e.bin("and", count, const(_WIDE, 31))
    elif "clamp" in instr.op:
        count = e.intrinsic("umin", count, const(_WIDE, 32))
    else:
        raise Unsupported
    result = e.bin("shl" if instr.op[0] == "vshl" else "ashr", a, count)
    _finish_scalar(c, instr, result, to, tuple(words))


def _finish_scalar(
    c: Context, instr: Instr, result: Value, to: str, words: tuple[str, ...]
) -> None:
    """Writes the result: clamped, then combined with c or inserted into c at the selector of d."""
    e, signed = c.e, is_signed(to)
    second = [word for word in words if word != "sat"]
    d, selector, _ = _part_of(instr.args[0])
    bits = _BITS[selector[0]] if selector else 32
    if len(second) > 1 or not _SECOND.issuperset(second) or (second and selector):
        raise Unsupported
    if "sat" in words:
        result = _clamped(c, result, bits, signed)
    word = e.resize(result, "i32")
    if second == ["add"]:
        word = e.bin("add", word, c.read(instr.args[3], "b32"))
    elif second:
        operation = ("s" if signed else "u") + second[0]
        word = e.intrinsic(operation, word, c.read(instr.args[3], "b32"))
    elif selector:
        word = _merged(c, word, int(selector[1:]) * bits, bits, c.read(instr.args[3], "b32"))
    c.write(d, word)


def _merged(c: Context, word: Value, place: int, bits: int, into: Value) -> Value:
    e, mask = c.e, (1 << bits) - 1
    part = e.bin("shl", e.bin("and", word, const("i32", mask)), const("i32", place))
    return e.bin("or", e.bin("and", into, const("i32", ~(mask << place))), part)


def multiply_add(c: Context, instr: Instr) -> None:
    """vmad.dtype.atype.btype[.po][.sat][.scale] d, [-]a, [-]b, [-]c: a value is negated by
    complementing it and adding one."""
    e, kinds, words = c.e, instr.op[2:4], set(instr.op[4:])
    if words - {"po", "sat", "shr7", "shr15"}:
        raise Unsupported
    a, b = (_source(c, x, k) for x, k in zip(instr.args[1:3], kinds, strict=True))
    register, selector, negated = _part_of(instr.args[3])
    if selector:
        raise Unsupported
    product, addend = e.bin("mul", a, b), c.read(register, "b32")
    less = _part_of(instr.args[1])[2] != _part_of(instr.args[2])[2]
    signed = less or negated or any(map(is_signed, kinds))
    if less:
        product = e.not_(product)
    if negated:
        addend = e.not_(addend)
    result = e.bin("add", product, e.resize(addend, _WIDE, signed))
    one = "po" in words or less or negated
    result = e.bin("add", result, const(_WIDE, int(one)))
    shift = 7 if "shr7" in words else 15 if "shr15" in words else 0
    result = e.bin("ashr", result, const(_WIDE, shift))
    if "sat" in words:
        result = _clamped(c, result, 32, signed)
    c.write(instr.args[0], e.resize(result, "i32"))


# ---- packed -------------------------------------------------------------------------------------


def packed(c: Context, instr: Instr) -> None:
    """vop.dtype.atype.btype[.sat|.add] d[.mask], a, b, c: each part, or (add) c plus all parts."""
    to, a, b = instr.op[1:4]
    extra = instr.op[4:]
    if extra not in ((), ("sat",), ("add",)):
        raise Unsupported

    def one(x: Value, y: Value) -> Value:
        result = _combine(c, instr.op[0][:-1], x, y)
        return _clamped(c, result, _bits(instr), is_signed(to)) if "sat" in extra else result

    _finish_packed(c, instr, (a, b), one, "add" in extra)


def packed_set(c: Context, instr: Instr) -> None:
    """vset.atype.btype.cmp[.add] d[.mask], a, b, c: 1 in each part where the comparison is true."""
    a, b, test = instr.op[1:4]
    if instr.op[4:] not in ((), ("add",)):
        raise Unsupported
    _finish_packed(c, instr, (a, b), lambda x, y: _holds(c, test, x, y), instr.op[-1] == "add")


def _bits(instr: Instr) -> int:
    return 32 // int(instr.op[0][-1])


def _places(instr: Instr, selector: str, default: range) -> list[int]:
    """Returns the parts that a selector names, the lowest first."""
    if not selector:
        return list(default)
    if _BITS[selector[0]] != _bits(instr):
        raise Unsupported
    return [int(digit) for digit in reversed(selector[1:])]


def _chosen(c: Context, instr: Instr, which: int, words: list[Value], kind: str) -> list[Value]:
    """Returns the parts of both operands that operand `which` (0 or 1) names, extended."""
    bits = _bits(instr)
    count = 32 // bits
    selector = _part_of(instr.args[1 + which])[1]
    places = _places(instr, selector, range(which * count, (which + 1) * count))
    if len(places) != count or max(places) >= 2 * count:
        raise Unsupported
    return [_field(c, words[n // count], n % count * bits, bits, kind) for n in places]


def _finish_packed(
    c: Context,
    instr: Instr,
    kinds: tuple[str, str],
    one: Callable[[Value, Value], Value],
    add: bool,
) -> None:
    """Writes the parts in d's mask: summed with c, or inserted into c."""
    e, bits = c.e, _bits(instr)
    d, mask, _ = _part_of(instr.args[0])
    wanted = _places(instr, mask, range(32 // bits))
    words = [c.read(_part_of(operand)[0], "b32") for operand in instr.args[1:3]]
    a, b = (_chosen(c, instr, i, words, kind) for i, kind in enumerate(kinds))
    result = c.read(instr.args[3], "b32") if add or mask else const("i32", 0)
    for place in wanted:
        part = one(a[place], b[place])
        result = e.bin("add", result, part) if add else _merged(c, part, place * bits, bits, result)
    c.write(d, result)
