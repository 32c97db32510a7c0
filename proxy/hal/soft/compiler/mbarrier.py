"""Barriers in shared memory: mbarrier, and arrivals by cp.async. PTX ISA, 9.7.13.15.

Shared memory belongs to one worker, so a plain read, change and write is atomic there. Copies
complete when they are issued (async_copy.py), so nothing has to wait for them. A thread lets the
others of its block run before it tests a barrier (flow.py). A block is its own cluster.

The 64 bits are, from the lowest: 20 for the arrivals that the phase still expects, 20 for those
that the next one will expect, 21 for the bytes that are announced and have not arrived (signed),
and the phase's parity as the highest one. A token is the word before the arrival.
"""

from __future__ import annotations

from rankfold.proxy.ptx.model import Instr, Int, Mem, Operand, Sink

from .emit import Value, const
from .memory import SPACES, MemoryContext, pointer
from .ops import Context, Unsupported

_COUNT_BITS, _TX_BITS = 20, 21
_EXPECTED, _TX, _PHASE = _COUNT_BITS, 2 * _COUNT_BITS, 63
_WORDS = frozenset(("relaxed", "acquire", "release", "cta", "cluster", "b64"))


def _barrier(c: Context, instr: Instr, where: Operand, *known: str) -> Value:
    """Returns the host address of the barrier; a word that is not in `known` is unsupported."""
    space = ""
    for word in instr.op[1:]:
        if SPACES.get(word) == "shared":
            space = "shared"
        elif word not in _WORDS and word not in known:
            raise Unsupported
    m: MemoryContext = c  # type: ignore[assignment]
    if not isinstance(where, Mem):
        raise Unsupported
    return pointer(m, space, where, 8)


def _load(c: Context, address: Value) -> Value:
    return c.e.op("i64", f"load i64, ptr {address.ref}, align 8")


def _store(c: Context, address: Value, word: Value) -> None:
    c.e.do(f"store i64 {word.ref}, ptr {address.ref}, align 8")


def _masked(c: Context, value: Value, bits: int, place: int = 0) -> Value:
    """Returns the low bits of a value, shifted to a place in a word."""
    low = c.e.bin("and", value, const("i64", (1 << bits) - 1))
    return c.e.bin("shl", low, const("i64", place)) if place else low


def _count(c: Context, operands: tuple[Operand, ...]) -> Value:
    operand = operands[0] if operands else Int(1)
    return c.e.resize(c.read(operand, "u32"), "i64")


class _Word:
    """The parts of a barrier's word, while an instruction changes them."""

    def __init__(self, c: Context, at: Value):
        self.c, self.at, e = c, at, c.e
        self.old = _load(c, at)
        self.pending = _masked(c, self.old, _COUNT_BITS)
        self.expected = _masked(c, e.bin("lshr", self.old, const("i64", _EXPECTED)), _COUNT_BITS)
        self.tx = _masked(c, e.bin("lshr", self.old, const("i64", _TX)), _TX_BITS)
        self.phase = e.bin("lshr", self.old, const("i64", _PHASE))

    def arrive(self, count: Value) -> None:
        self.pending = self.c.e.bin("sub", self.pending, count)

    def drop(self, count: Value) -> None:
        self.expected = self.c.e.bin("sub", self.expected, count)

    def expect(self, nbytes: Value) -> None:
        self.tx = self.c.e.bin("add", self.tx, nbytes)

    def complete(self, nbytes: Value) -> None:
        self.tx = self.c.e.bin("sub", self.tx, nbytes)

    def store(self) -> None:
        """Stores the word; begins the next phase if all threads and all bytes have arrived."""
        c, e = self.c, self.c.e
        pending, tx = _masked(c, self.pending, _COUNT_BITS), _masked(c, self.tx, _TX_BITS)
        expected = _masked(c, self.expected, _COUNT_BITS)
        done = e.cmp("icmp eq", e.bin("or", pending, tx), const("i64", 0))
        word = e.select(done, expected, pending)
        word = e.bin("or", word, _masked(c, expected, _COUNT_BITS, _EXPECTED))
        word = e.bin("or", word, _masked(c, tx, _TX_BITS, _TX))
        phase = e.bin("xor", self.phase, e.resize(done, "i64"))
        _store(c, self.at, e.bin("or", word, _masked(c, phase, 1, _PHASE)))


def _named(instr: Instr, *names: str) -> str:
    """Returns which of `names` an instruction on a barrier's 64 bits is."""
    if len(instr.op) < 3 or instr.op[1] not in names or instr.op[-1] != "b64":
        raise Unsupported
    return instr.op[1]


def init(c: Context, instr: Instr) -> None:
    """init barrier, count"""
    address = _barrier(c, instr, instr.args[0], _named(instr, "init"))
    count = _masked(c, _count(c, instr.args[1:]), _COUNT_BITS)
    _store(c, address, c.e.bin("or", count, c.e.bin("shl", count, const("i64", _EXPECTED))))


def invalidate(c: Context, instr: Instr) -> None:
    """inval barrier"""
    _store(c, _barrier(c, instr, instr.args[0], _named(instr, "inval")), const("i64", 0))


def transfer(c: Context, instr: Instr) -> None:
    """expect_tx, complete_tx barrier, bytes"""
    name = _named(instr, "expect_tx", "complete_tx")
    word = _Word(c, _barrier(c, instr, instr.args[0], name))
    (word.expect if name == "expect_tx" else word.complete)(_count(c, instr.args[1:]))
    word.store()


def arrive(c: Context, instr: Instr) -> None:
    """arrive[_drop][.noComplete|.expect_tx] token, barrier[, count or bytes]; the token is
    optional."""
    args = (Sink(), *instr.args) if isinstance(instr.args[0], Mem) else instr.args
    name = _named(instr, "arrive", "arrive_drop")
    word = _Word(c, _barrier(c, instr, args[1], name, "noComplete", "expect_tx"))
    count = _count(c, args[2:])
    if "expect_tx" in instr.op:
        word.expect(count)
        count = const("i64", 1)
    elif "noComplete" in instr.op and len(args) < 3:
        raise Unsupported
    if name == "arrive_drop":
        word.drop(count)
    word.arrive(count)
    word.store()
    c.write(args[0], word.old)


def wait(c: Context, instr: Instr) -> None:
    """Tests whether the phase of this token, or of this parity, has completed. A time limit is
    ignored, because a test takes no time."""
    address = _barrier(c, instr, instr.args[1], "test_wait", "try_wait", "parity")
    phase = c.e.bin("lshr", _load(c, address), const("i64", _PHASE))
    if "parity" in instr.op:
        awaited = _masked(c, c.e.resize(c.read(instr.args[2], "u32"), "i64"), 1)
    else:
        awaited = c.e.bin("lshr", c.read(instr.args[2], "b64"), const("i64", _PHASE))
    c.write(instr.args[0], c.e.cmp("icmp ne", phase, awaited))


def pending_count(c: Context, instr: Instr) -> None:
    """pending_count.b64 count, token"""
    if instr.op != ("mbarrier", "pending_count", "b64"):
        raise Unsupported
    pending = _masked(c, c.read(instr.args[1], "b64"), _COUNT_BITS)
    c.write(instr.args[0], c.e.resize(pending, "i32"))


def arrive_when_copied(c: Context, instr: Instr) -> None:
    """cp.async.mbarrier.arrive[.noinc]: the thread's copies are done, so it arrives. Without .noinc
    the phase also expects one more arrival, for this one: nothing changes."""
    address = _barrier(c, instr, instr.args[0], "async", "mbarrier", "arrive", "noinc")
    word = _Word(c, address)
    if "noinc" in instr.op:
        word.arrive(const("i64", 1))
        word.store()


def complete(c: Context, where: Operand, nbytes: Value) -> None:
    """Records that announced bytes have arrived."""
    m: MemoryContext = c  # type: ignore[assignment]
    if not isinstance(where, Mem):
        raise Unsupported
    word = _Word(c, pointer(m, "shared", where, 8))
    word.complete(nbytes)
    word.store()
