"""PTX's packed video instructions, on all parts of whole operands. PTX ISA, 9.7.17.

nvcc makes them of intrinsics such as __vabsdiffu4. Selectors and masks are refused.
"""

from __future__ import annotations

from .emit import Value, const, is_signed
from .ops import Context, Unsupported, op
from .ptx import Instr

_NAMES = ("vadd", "vsub", "vabsdiff", "vmin", "vmax")


@op(*(name + count for name in _NAMES for count in "24"))
def _packed(c: Context, instr: Instr) -> None:
    """vop.dtype.atype.btype[.sat|.add] d, a, b, c: each part, or (add) c plus all of them."""
    to, a, b = instr.op[1:4]
    extra = instr.op[4:]
    if extra not in ((), ("sat",), ("add",)):
        raise Unsupported
    results = []
    for x, y in _parts(c, instr, a, b):
        result = _combine(c, instr.op[0][:-1], x, y)
        results.append(_saturated(c, result, is_signed(to), instr) if "sat" in extra else result)
    _finish(c, instr, results, "add" in extra)


@op("vset2", "vset4")
def _set(c: Context, instr: Instr) -> None:
    """vset.atype.btype.cmp[.add] d, a, b, c: 1 in each part where the comparison holds."""
    a, b, test = instr.op[1:4]
    if instr.op[4:] not in ((), ("add",)) or test not in ("eq", "ne", "lt", "le", "gt", "ge"):
        raise Unsupported
    test = test if test in ("eq", "ne") else "s" + test  # the parts are exact as i32
    holds = [c.e.cmp("icmp " + test, x, y) for x, y in _parts(c, instr, a, b)]
    _finish(c, instr, [c.e.resize(h, "i32") for h in holds], instr.op[-1] == "add")


def _bits(instr: Instr) -> int:
    return 32 // int(instr.op[0][-1])


def _parts(c: Context, instr: Instr, *kinds: str) -> list[tuple[Value, ...]]:
    """The parts of both operands, extended to i32."""
    bits, found = _bits(instr), []
    words = [c.read(operand, "b32") for operand in instr.args[1:3]]
    for place in range(0, 32, bits):
        pair = []
        for word, kind in zip(words, kinds, strict=True):
            raised = c.e.bin("shl", word, const("i32", 32 - bits - place))
            shift = "ashr" if is_signed(kind) else "lshr"
            pair.append(c.e.bin(shift, raised, const("i32", 32 - bits)))
        found.append(tuple(pair))
    return found


def _combine(c: Context, name: str, x: Value, y: Value) -> Value:
    e = c.e
    if name in ("vadd", "vsub"):
        return e.bin(name[1:], x, y)
    if name in ("vmin", "vmax"):
        return e.intrinsic("s" + name[1:], x, y)
    return e.call("i32", "llvm.abs.i32", e.bin("sub", x, y), const("i1", 0))


def _saturated(c: Context, value: Value, signed: bool, instr: Instr) -> Value:
    bits = _bits(instr)
    low = -1 << (bits - 1) if signed else 0
    value = c.e.intrinsic("smax", value, const("i32", low))
    return c.e.intrinsic("smin", value, const("i32", low + (1 << bits) - 1))


def _finish(c: Context, instr: Instr, results: list[Value], add: bool) -> None:
    e, bits = c.e, _bits(instr)
    if add:
        total = c.read(instr.args[3], "b32")
        for result in results:
            total = e.bin("add", total, result)
        c.write(instr.args[0], total)
        return
    word = const("i32", 0)
    for index, result in enumerate(results):
        part = e.bin("and", result, const("i32", (1 << bits) - 1))
        word = e.bin("or", word, e.bin("shl", part, const("i32", bits * index)))
    c.write(instr.args[0], word)
