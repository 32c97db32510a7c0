"""PTX instructions that compare and select. PTX ISA, 9.7.6 and 9.7.7."""

from __future__ import annotations

from rankfold.proxy.ptx.model import Instr, Not, Operand, Pair

from .emit import Value, const, is_float, is_signed, llvm_type
from .ops import Context, Unsupported, flush, halves, join, read_float

_INTEGER = {
    "eq": "eq",
    "ne": "ne",
    "lt": "lt",
    "le": "le",
    "gt": "gt",
    "ge": "ge",
    "lo": "ult",
    "ls": "ule",
    "hi": "ugt",
    "hs": "uge",
}
_FLOAT = {
    "eq": "oeq",
    "ne": "one",
    "lt": "olt",
    "le": "ole",
    "gt": "ogt",
    "ge": "oge",
    "equ": "ueq",
    "neu": "une",
    "ltu": "ult",
    "leu": "ule",
    "gtu": "ugt",
    "geu": "uge",
    "num": "ord",
    "nan": "uno",
}


def _compare(c: Context, instr: Instr, kind: str, a: Operand, b: Operand) -> Value:
    test = instr.op[1]
    if is_float(kind):
        x, y = (read_float(c, o, kind) for o in (a, b))
        if "ftz" in instr.op and kind == "f16":
            x, y = (c.e.call("float", "rf_flush_half", v) for v in (x, y))
        x, y = (flush(c, v, instr.op) for v in (x, y))
        return c.e.cmp("fcmp " + _FLOAT[test], x, y)
    name = _INTEGER[test]
    if name in ("lt", "le", "gt", "ge"):
        name = ("s" if is_signed(kind) else "u") + name
    return c.e.cmp("icmp " + name, c.read(a, kind), c.read(b, kind))


def _compare_halves(c: Context, instr: Instr) -> tuple[Value, Value]:
    kind = instr.op[-1]
    pairs = [halves(c, operand, kind) for operand in instr.args[1:3]]
    results = []
    for values in zip(*pairs, strict=True):
        if "ftz" in instr.op and kind == "f16x2":
            values = tuple(c.e.call("float", "rf_flush_half", v) for v in values)
        results.append(c.e.cmp("fcmp " + _FLOAT[instr.op[1]], *values))
    return results[0], results[1]


def _predicate(c: Context, operand: Operand) -> Value:
    if isinstance(operand, Not):
        return c.e.not_(c.read(operand.operand, "pred"))
    return c.read(operand, "pred")


def setp(c: Context, instr: Instr) -> None:
    """setp.op[.bool] p|q, a, b[, c]: p = (a op b) bool c, q = !(a op b) bool c."""
    e = c.e
    if instr.op[-1] in ("f16x2", "bf16x2"):  # one predicate for each half
        result, other = _compare_halves(c, instr)
    else:
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


def set_value(c: Context, instr: Instr) -> None:
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
    elif target in ("u16", "s16", "u32", "s32"):
        c.write(instr.args[0], c.e.resize(result, llvm_type(target), True))
    else:
        raise Unsupported


def _set_pair(c: Context, instr: Instr, target: str, kind: str) -> None:
    """Each half: 1.0 or 0.0 of the type, or (u32) all ones or zeros."""
    if target not in (kind, "u32", "s32"):
        raise Unsupported
    one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(target, 0xFFFF)
    parts = []
    for holds in _compare_halves(c, instr):
        if instr.op[2] in ("and", "or", "xor"):
            holds = c.e.bin(instr.op[2], holds, _predicate(c, instr.args[3]))
        parts.append(c.e.select(holds, const("i16", one), const("i16", 0)))
    c.write(instr.args[0], join(c, parts[0], parts[1]))


def selp(c: Context, instr: Instr) -> None:
    kind = instr.op[-1]
    condition = _predicate(c, instr.args[3])
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    c.write(instr.args[0], c.e.select(condition, a, b))


def slct(c: Context, instr: Instr) -> None:
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
