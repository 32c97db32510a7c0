"""Copies between global and shared memory that a thread starts: cp.async. PTX ISA, 9.7.9.25.

They complete when they are issued, which is a legal order, so groups and barriers never have to
wait for them. Tensors, several blocks and reductions are refused.
"""

from __future__ import annotations

from rankfold.proxy.ptx.model import Instr, Int, Mem, Not, Operand, Reg

from . import mbarrier
from .emit import Value, const
from .memory import SHARED_WINDOW, SPACES, MemoryContext, pointer
from .ops import Context, Unsupported


def copy(c: Context, instr: Instr) -> None:
    """Copies immediately, which is a legal order; groups then need no waiting."""
    m: MemoryContext = c  # type: ignore[assignment]
    if instr.op[1:2] != ("async",):
        raise Unsupported
    if "bulk" in instr.op:
        _copy_bulk(c, instr)
        return
    if "mbarrier" in instr.op:
        mbarrier.arrive_when_copied(c, instr)
        return
    if "commit_group" in instr.op or "wait_group" in instr.op or "wait_all" in instr.op:
        return
    dst, src, size = instr.args[:3]
    assert isinstance(dst, Mem) and isinstance(src, Mem) and isinstance(size, Int)
    to, source = pointer(m, "shared", dst, size.value), pointer(m, "global", src, size.value)
    wanted = _wanted_bytes(c, instr, size.value)
    for index in range(0, size.value, 4):
        at, into = (
            c.e.op("ptr", f"getelementptr i8, ptr {p.ref}, i64 {index}") for p in (source, to)
        )
        if wanted is None:
            word = c.e.op("i32", f"load i32, ptr {at.ref}, align 4")
        else:
            word = _first_bytes(c, at, into, c.e.intrinsic("usub.sat", wanted, const("i32", index)))
        c.e.do(f"store i32 {word.ref}, ptr {into.ref}, align 4")


def _wanted_bytes(c: Context, instr: Instr, size: int) -> Value | None:
    """Returns the number of source bytes to use, if the instruction gives one; the rest is zero."""
    options = instr.args[3 : -1 if "L2_cache_hint" in instr.op else None]
    if not options:
        return None
    option = options[0]
    if isinstance(option, Not) or (isinstance(option, Reg) and c.kind_of(option) == "pred"):
        return c.e.select(c.read(option, "pred"), const("i32", 0), const("i32", size))
    return c.read(option, "u32")


def _first_bytes(c: Context, at: Value, instead: Value, count: Value) -> Value:
    """Returns the first `count` bytes of a word, the others zero. With a count of 0 nothing is
    read, because the address may be invalid."""
    e = c.e
    none = e.cmp("icmp eq", count, const("i32", 0))
    safe = e.select(none, instead, at)
    word = e.op("i32", f"load i32, ptr {safe.ref}, align 4")
    bits = e.bin("shl", e.intrinsic("umin", count, const("i32", 4)), const("i32", 3))
    ones = e.bin("sub", e.bin("shl", const("i64", 1), e.resize(bits, "i64")), const("i64", 1))
    return e.bin("and", word, e.cast("trunc", ones, "i32"))


# ---- bulk copies --------------------------------------------------------------------------------

_SHARED_BYTES = 256 << 10  # SOFT_SHARED_BYTES
_BULK = 16  # alignment of addresses and sizes
_GROUPS = (("commit_group",), ("wait_group",), ("wait_group", "read"))


def _copy_bulk(c: Context, instr: Instr) -> None:
    """cp.async.bulk.to.from.done [to], [from], bytes[, [barrier]][, policy]: one of the two
    spaces is shared memory, and `done` is bulk_group or mbarrier::complete_tx::bytes."""
    words = tuple(word for word in instr.op[3:] if word != "L2_cache_hint")
    if words in _GROUPS:
        return
    to, source, completion = words if len(words) == 3 else ("", "", "")
    spaces = {SPACES.get(to), SPACES.get(source)}
    ends = {"bulk_group": 3, "mbarrier_complete_tx_bytes": 4}
    if completion not in ends or "shared" not in spaces or not spaces <= {"shared", "global"}:
        raise Unsupported
    nbytes = c.e.resize(c.read(instr.args[2], "u32"), "i64")
    at = _bulk(c, SPACES[to], instr.args[0], nbytes)
    there = _bulk(c, SPACES[source], instr.args[1], nbytes)
    limited = c.e.intrinsic("umin", nbytes, const("i64", _SHARED_BYTES))
    c.e.declared.add("declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)")
    c.e.do(
        f"call void @llvm.memmove.p0.p0.i64(ptr {at.ref}, ptr {there.ref}, i64 {limited.ref}, "
        "i1 false)"
    )
    if ends[completion] == 4:
        mbarrier.complete(c, instr.args[3], nbytes)


def _bulk(c: Context, space: str, where: Operand, nbytes: Value) -> Value:
    """Returns the host address of the bytes; unmapped if there are more than shared memory
    holds."""
    m: MemoryContext = c  # type: ignore[assignment]
    if not isinstance(where, Mem):
        raise Unsupported
    place = pointer(m, space, where, _BULK)
    if space != "shared":
        return place
    fits = c.e.cmp("icmp ule", nbytes, const("i64", _SHARED_BYTES))
    return c.e.select(fits, place, pointer(m, space, Mem(Int(SHARED_WINDOW)), _BULK))
