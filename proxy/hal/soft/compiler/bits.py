"""Bitwise PTX instructions: logic, shifts, bit fields, permutations. PTX ISA, 9.7.1 and 9.7.8."""

from __future__ import annotations

from collections.abc import Callable

from rankfold.proxy.ptx.model import Instr, Int, Operand, Pair

from .emit import BITS, Emitter, Value, const, is_signed
from .ops import Context, Unsupported, allow


def logic(c: Context, instr: Instr) -> None:
    a, b = c.read(instr.args[1], instr.op[-1]), c.read(instr.args[2], instr.op[-1])
    c.write(instr.args[0], c.e.bin(instr.op[0], a, b))


def complement(c: Context, instr: Instr) -> None:
    c.write(instr.args[0], c.e.not_(c.read(instr.args[1], instr.op[-1])))


def logical_not(c: Context, instr: Instr) -> None:
    value = c.read(instr.args[1], instr.op[-1])
    c.write(instr.args[0], c.e.resize(c.e.cmp("icmp eq", value, const(value.type, 0)), value.type))


def lop3(c: Context, instr: Instr) -> None:
    """lop3[.bool].b32 d[|p], a, b, c, table[, q]: the disjunction of the table's set rows. p =
    (d != 0) bool q."""
    words = allow(instr, "and", "or")
    table = instr.args[4]
    if instr.op[-1] != "b32" or not isinstance(table, Int):
        raise Unsupported
    e = c.e
    sources = [c.read(operand, "b32") for operand in instr.args[1:4]]
    result = const("i32", 0)
    for row in range(8):
        if table.value >> row & 1:
            term = const("i32", -1)
            for source, bit in zip(sources, (4, 2, 1), strict=True):
                term = e.bin("and", term, source if row & bit else e.not_(source))
            result = e.bin("or", result, term)
    if not words:
        c.write(instr.args[0], result)
        return
    target = instr.args[0]
    assert isinstance(target, Pair)
    some = e.cmp("icmp ne", result, const("i32", 0))
    holds = e.bin(words.pop(), some, c.read(instr.args[5], "pred"))
    c.write(target.first, result)
    c.write(target.second, holds)


def shift(c: Context, instr: Instr) -> None:
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


def funnel_shift(c: Context, instr: Instr) -> None:
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


def count(c: Context, instr: Instr) -> None:
    e, value = c.e, c.read(instr.args[1], instr.op[-1])
    if instr.op[0] == "popc":
        c.write(instr.args[0], e.resize(e.intrinsic("ctpop", value), "i32"))
    elif instr.op[0] == "clz":
        counted = e.call(value.type, f"llvm.ctlz.{value.type}", value, const("i1", 0))
        c.write(instr.args[0], e.resize(counted, "i32"))
    else:
        c.write(instr.args[0], e.intrinsic("bitreverse", value))


def bfind(c: Context, instr: Instr) -> None:
    """Finds the highest set bit (signed: the highest bit that differs from the sign); -1 if
    none."""
    kind = instr.op[-1]
    e, value = c.e, c.read(instr.args[1], kind)
    bits = BITS[value.type]
    if is_signed(kind):
        value = e.bin("xor", value, e.bin("ashr", value, const(value.type, bits - 1)))
    zeros = e.call(value.type, f"llvm.ctlz.{value.type}", value, const("i1", 0))
    none = e.cmp("icmp eq", value, const(value.type, 0))
    position = zeros if "shiftamt" in instr.op else e.bin("sub", const(value.type, bits - 1), zeros)
    c.write(instr.args[0], e.resize(e.select(none, const(value.type, -1), position), "i32"))


def _up_to(c: Context, operand: Operand, bits: int) -> Value:
    """Returns a position or length. It should be below 256; of larger values NVIDIA GPUs use the
    lowest byte for 32-bit words, and the whole number for 64-bit words."""
    value = c.read(operand, "u32")
    if bits == 32:
        value = c.e.bin("and", value, const("i32", 255))
    return c.e.intrinsic("umin", value, const("i32", bits))


def bfe(c: Context, instr: Instr) -> None:
    """bfe d, a, position, length; bits beyond the word are the sign (or zero)."""
    kind = instr.op[-1]
    e, value = c.e, c.read(instr.args[1], kind)
    bits = BITS[value.type]
    wide = f"i{2 * bits}"
    position, length = (_up_to(c, operand, bits) for operand in instr.args[2:])
    signed = is_signed(kind)
    shift = "ashr" if signed else "lshr"
    moved = e.bin(shift, e.resize(value, wide, signed), e.resize(position, wide))
    rest = e.resize(e.bin("sub", const("i32", 2 * bits), length), wide)
    empty = e.cmp("icmp eq", length, const("i32", 0))
    safe = e.select(empty, const(wide, 0), rest)
    field = e.bin(shift, e.bin("shl", moved, safe), safe)
    result = e.select(empty, const(wide, 0), field)
    c.write(instr.args[0], e.cast("trunc", result, value.type))


def bfi(c: Context, instr: Instr) -> None:
    """bfi d, a, b, position, length: inserts the low bits of a into b."""
    e = c.e
    kind = instr.op[-1]
    a, b = c.read(instr.args[1], kind), c.read(instr.args[2], kind)
    bits = BITS[a.type]
    wide = f"i{2 * bits}"
    position, length = (_up_to(c, operand, bits) for operand in instr.args[3:])
    one = const(wide, 1)
    mask = e.bin("sub", e.bin("shl", one, e.resize(length, wide)), one)
    mask = e.cast("trunc", e.bin("shl", mask, e.resize(position, wide)), a.type)
    moved = e.cast("trunc", e.bin("shl", e.resize(a, wide), e.resize(position, wide)), a.type)
    kept = e.bin("and", b, e.not_(mask))
    c.write(instr.args[0], e.bin("or", kept, e.bin("and", moved, mask)))


# the byte of {b, a} that each mode takes for the result's bytes 0 to 3, by the selector's low bits
_PERMUTE: dict[str, Callable[[int, int], int]] = {
    "f4e": lambda s, i: s + i,
    "b4e": lambda s, i: (s - i) & 7,
    "rc8": lambda s, i: s,
    "ecl": lambda s, i: max(s, i),
    "ecr": lambda s, i: min(s, i),
    "rc16": lambda s, i: 2 * (s & 1) + (i & 1),
}


def prmt(c: Context, instr: Instr) -> None:
    words = allow(instr, "b32", *_PERMUTE)
    e = c.e
    a, b, selector = (c.read(x, "b32") for x in instr.args[1:4])
    both = e.bin("or", e.bin("shl", e.resize(b, "i64"), const("i64", 32)), e.resize(a, "i64"))
    mode = (words | {instr.op[-1]}) & _PERMUTE.keys()
    result = const("i32", 0)
    for index in range(4):
        nibble = e.bin("lshr", selector, const("i32", 4 * index))
        if mode:
            nibble = _place(e, selector, _PERMUTE[next(iter(mode))], index)
        place = e.bin("shl", e.bin("and", nibble, const("i32", 7)), const("i32", 3))
        byte = e.cast("trunc", e.bin("lshr", both, e.resize(place, "i64")), "i8")
        if not mode:
            signs = e.bin("ashr", byte, const("i8", 7))
            replicate = e.cmp("icmp ne", e.bin("and", nibble, const("i32", 8)), const("i32", 0))
            byte = e.select(replicate, signs, byte)
        moved = e.bin("shl", e.resize(byte, "i32"), const("i32", 8 * index))
        result = e.bin("or", result, moved)
    c.write(instr.args[0], result)


def _place(e: Emitter, selector: Value, place: Callable[[int, int], int], index: int) -> Value:
    """Looks up the byte that a mode takes in a word of four nibbles."""
    table = sum(place(s, index) << 4 * s for s in range(4))
    low = e.bin("and", selector, const("i32", 3))
    return e.bin("lshr", const("i32", table), e.bin("shl", low, const("i32", 2)))


def bmsk(c: Context, instr: Instr) -> None:
    """bmsk.mode.b32 d, position, length: as many ones from the position on, as far as they fit."""
    e, words = c.e, allow(instr, "clamp", "wrap")
    position, length = (_bit_count(c, x, words) for x in instr.args[1:3])
    ones = e.bin("sub", e.bin("shl", const("i64", 1), length), const("i64", 1))
    c.write(instr.args[0], e.cast("trunc", e.bin("shl", ones, position), "i32"))


def _bit_count(c: Context, operand: Operand, words: set[str]) -> Value:
    """Returns a count of at most 32 (clamp), or modulo 32 (wrap); as i64."""
    value = c.read(operand, "u32")
    if "wrap" in words:
        return c.e.resize(c.e.bin("and", value, const("i32", 31)), "i64")
    return c.e.resize(c.e.intrinsic("umin", value, const("i32", 32)), "i64")


def szext(c: Context, instr: Instr) -> None:
    """szext.mode.type d, a, length: the low bits of a, extended; 0 for length 0."""
    e, signed = c.e, is_signed(instr.op[-1])
    length = _bit_count(c, instr.args[2], allow(instr, "clamp", "wrap"))
    rest = e.bin("sub", const("i64", 64), length)
    none = e.cmp("icmp eq", length, const("i64", 0))
    safe = e.select(none, const("i64", 0), rest)
    raised = e.bin("shl", e.resize(c.read(instr.args[1], "u32"), "i64"), safe)
    field = e.bin("ashr" if signed else "lshr", raised, safe)
    c.write(instr.args[0], e.cast("trunc", e.select(none, const("i64", 0), field), "i32"))


def fns(c: Context, instr: Instr) -> None:
    """fns.b32 d, mask, base, offset: the position of the offset-th set bit, from base upwards
    (offset > 0) or downwards; all ones if there is none."""
    e = c.e
    mask, base, offset = (c.read(x, "u32") for x in instr.args[1:4])
    zero = const("i32", 0)
    down = e.cmp("icmp slt", offset, zero)
    here = e.cmp("icmp eq", offset, zero)
    wanted = e.select(here, const("i32", 1), e.call("i32", "llvm.abs.i32", offset, const("i1", 0)))
    left, result = wanted, const("i32", -1)
    for step in range(32):
        away = const("i32", step)
        place = e.select(down, e.bin("sub", base, away), e.bin("add", base, away))
        inside = e.cmp("icmp ult", place, const("i32", 32))
        bit = e.bin("lshr", mask, e.bin("and", place, const("i32", 31)))
        hit = e.bin("and", e.cast("trunc", bit, "i1"), inside)
        if step:
            hit = e.bin("and", hit, e.not_(here))
        left = e.bin("sub", left, e.resize(hit, "i32"))
        found = e.bin("and", hit, e.cmp("icmp eq", left, zero))
        result = e.select(found, place, result)
    c.write(instr.args[0], result)
