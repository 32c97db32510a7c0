"""Loads, stores, atomics and address conversions.

A global address is checked to be in the rank's window and translated; other addresses are checked
to be in their areas. An address outside is redirected to unmapped memory, so no address reaches
foreign memory. A global or generic address that is not a multiple of the access's size is
redirected to another unmapped place, if the size is 8 bytes or more: checking smaller accesses
costs some 5 % where little else is done. A generic address outside of the window identifies one of
the areas by its bits above 2^40.
"""

from __future__ import annotations

from typing import Protocol

from rankfold.proxy.ptx.model import TYPE_BYTES, Instr, Mem, Operand, Reg, Sink, Sym, Vec

from .emit import BITS, Value, const, is_float, is_signed, llvm_type
from .ops import Context, Unsupported, pack_float

DEV_BASE, WINDOW_BYTES = 0x200000000000, 1 << 40  # channel.h
BASE_SLACK = 1 << 37  # a base may be this far outside of the window
IMMEDIATE_MAX = 1 << 35  # an offset that the slack covers
NOWHERE = WINDOW_BYTES + (1 << 37)  # SOFT_NOWHERE: never mapped
MISALIGNED = WINDOW_BYTES + (1 << 38) + (1 << 37)  # SOFT_MISALIGNED: the same
CHECKED_BYTES = 8  # accesses of this size or more must be aligned
LOW_MASK = (1 << 40) - 1  # of a generic address: the offset in its area
SHARED_WINDOW = 1 << 32  # SOFT_SHARED_WINDOW: nothing is mapped after a block's own memory
GRID_MASK = 63  # SOFT_GRID_BYTES - 1
TAGS = {"shared": 0x10, "local": 0x11, "param": 0x12, "grid": 0x13}
SPACES = {  # a block is its own cluster
    "global": "global",
    "shared": "shared",
    "shared_cta": "shared",
    "shared_cluster": "shared",
    "local": "local",
    "param": "param",
    "param_entry": "param",
    "param_func": "param",
    "const": "global",
}
_WEAK = frozenset(
    (
        "weak",
        "nc",
        "ca",
        "cg",
        "cs",
        "lu",
        "cv",
        "wb",
        "wt",
        "L1_evict_normal",
        "L1_evict_unchanged",
        "L1_evict_first",
        "L1_evict_last",
        "L1_no_allocate",
        "L2_cache_hint",
        "L2_evict_last",
        "L2_evict_normal",
        "L2_evict_first",
        "L2_64B",
        "L2_128B",
        "L2_256B",
        "unified",
    )
)
_STRONG = frozenset(("relaxed", "acquire", "release", "acq_rel", "mmio"))
_SCOPES = frozenset(("cta", "gpu", "sys", "cluster"))


class MemoryContext(Context, Protocol):
    generic: set[str]
    pointers: dict[str, str]
    local_stride: int
    param_bytes: int

    def constant_ranges(self) -> list[tuple[Value, int]]: ...
    def param(self, offset: int, kind: str) -> Value: ...
    def address_of(self, where: Mem) -> Value: ...
    def variable_space(self, name: str) -> str: ...
    def branch_to(self, label: str) -> None: ...
    def start(self, label: str) -> None: ...
    def split_address(self, name: str) -> tuple[Value, Value, int] | None: ...
    @property
    def current(self) -> str: ...


def split(instr: Instr, *extra: str) -> tuple[str, set[str]]:
    """Returns the state space ("" generic) and the modifiers; unknown ones are unsupported."""
    space, words = "", set()
    for word in instr.op[1:-1]:
        if word in SPACES:
            space = SPACES[word]
        elif word in _WEAK or word in _SCOPES:
            continue
        elif word in _STRONG or word in ("volatile", "v2", "v4", "v8", *extra):
            words.add(word)
        else:
            raise Unsupported
    return space, words


# ---- addresses --------------------------------------------------------------------------------


def address_of(c: MemoryContext, where: Mem) -> Value:
    """Returns the address as i64."""
    if isinstance(where.base, Reg) and c.kind_of(where.base) not in ("b64", "u64", "s64"):
        value = c.e.resize(c.read(where.base, "u32"), "i64")
        if where.offset:
            value = c.e.bin("add", value, const("i64", where.offset))
        return c.e.bin("and", value, const("i64", 0xFFFFFFFF))
    value = c.read(where.base, "u64")
    return c.e.bin("add", value, const("i64", where.offset)) if where.offset else value


def _gep(c: MemoryContext, base: str, offset: Value) -> Value:
    return c.e.op("ptr", f"getelementptr i8, ptr {base}, i64 {offset.ref}")


def pointer(c: MemoryContext, space: str, where: Mem, size: int) -> Value:
    """Returns the host address of a device address for an access of `size` bytes."""
    if isinstance(where.base, Sym) and not space:
        space = c.variable_space(where.base.name)
    if space == "global" and isinstance(where.base, Reg) and abs(where.offset) < IMMEDIATE_MAX:
        parts = c.split_address(where.base.name)
        if parts:
            return _of_parts(c, parts, where.offset, size)
    address = address_of(c, where)
    place_ = _in_space(c, space, address)
    if size < CHECKED_BYTES or space not in ("", "global"):
        return place_
    nowhere = _gep(c, c.pointers["base"], const("i64", MISALIGNED))
    return c.e.select(_aligned(c, address, size), place_, nowhere)


def _aligned(c: MemoryContext, address: Value, size: int) -> Value:
    low = c.e.bin("and", address, const("i64", size - 1))
    return c.e.cmp("icmp eq", low, const("i64", 0))


def _of_parts(
    c: MemoryContext, parts: tuple[Value, Value, int], immediate: int, size: int
) -> Value:
    """Returns the same for a sum. If the second part is always aligned, only the first one is
    checked, which is often the same for all threads."""
    first, second, multiple = parts
    place = _offset(c, first, BASE_SLACK)
    if size >= CHECKED_BYTES:
        address = c.e.bin("add", first, const("i64", immediate)) if immediate else first
        if multiple % size:
            address = c.e.bin("add", address, second)
        place = c.e.select(_aligned(c, address, size), place, const("i64", MISALIGNED))
    at = _gep(c, _gep(c, c.pointers["base"], place).ref, second)
    return _gep(c, at.ref, const("i64", immediate)) if immediate else at


def _offset(c: MemoryContext, address: Value, slack: int) -> Value:
    """Returns the offset from the window's base; NOWHERE if more than `slack` bytes outside."""
    offset = c.e.bin("sub", address, const("i64", DEV_BASE))
    moved = c.e.bin("add", offset, const("i64", slack)) if slack else offset
    inside = c.e.cmp("icmp ult", moved, const("i64", WINDOW_BYTES + 2 * slack))
    return c.e.select(inside, offset, const("i64", NOWHERE))


def _below(c: MemoryContext, base: str, address: Value, limit: int) -> Value:
    """Returns the place in an area of `limit` bytes, or NOWHERE."""
    inside = c.e.cmp("icmp ult", address, const("i64", limit))
    place = _gep(c, base, address)
    return c.e.select(inside, place, _gep(c, c.pointers["base"], const("i64", NOWHERE)))


def _in_space(c: MemoryContext, space: str, address: Value) -> Value:
    e = c.e
    if space == "shared":
        limit = const("i64", SHARED_WINDOW)
        return _gep(c, c.pointers["shared"], e.intrinsic("umin", address, limit))
    if space == "local":
        return _below(c, c.pointers["local"], address, c.local_stride)
    if space == "param":
        return _below(c, c.pointers["params"], address, c.param_bytes)
    if space == "grid":
        return _gep(c, c.pointers["grid"], e.bin("and", address, const("i64", GRID_MASK)))
    result = _gep(c, c.pointers["base"], _offset(c, address, 0))
    if space == "global":
        return result
    top = e.bin("lshr", address, const("i64", 40))
    for other in sorted(c.generic):
        inside = e.cmp("icmp eq", top, const("i64", TAGS[other]))
        low = e.bin("and", address, const("i64", LOW_MASK))
        result = e.select(inside, _in_space(c, other, low), result)
    return result


def cvta(c: Context, instr: Instr) -> None:
    kind = instr.op[-1]
    value = c.read(instr.args[1], kind)
    words = instr.op[1:-1]
    space = SPACES.get(words[-1])
    if space is None or kind not in ("u64", "b64"):
        raise Unsupported
    if space != "global":
        if words[0] == "to":
            value = c.e.bin("and", value, const("i64", LOW_MASK))
        else:
            value = c.e.bin("or", value, const("i64", TAGS[space] << 40))
    c.write(instr.args[0], value)


def isspacep(c: Context, instr: Instr) -> None:
    m: MemoryContext = c  # type: ignore[assignment]
    address = c.read(instr.args[1], "u64")
    top = c.e.bin("lshr", address, const("i64", 40))
    space = SPACES.get(instr.op[1])
    if space is None:
        raise Unsupported
    if space == "global":
        constant = _in_constants(m, address)
        low = c.e.cmp("icmp ult", top, const("i64", TAGS["shared"]))
        high = c.e.cmp("icmp ugt", top, const("i64", TAGS["param"]))
        anywhere = c.e.bin("and", c.e.bin("or", low, high), c.e.not_(constant))
        c.write(instr.args[0], constant if instr.op[1] == "const" else anywhere)
    else:
        c.write(instr.args[0], c.e.cmp("icmp eq", top, const("i64", TAGS[space])))


def _in_constants(m: MemoryContext, address: Value) -> Value:
    """Decides whether a .const variable is there; they are among the global ones."""
    inside = const("i1", 0)
    for start, size in m.constant_ranges():
        offset = m.e.bin("sub", address, start)
        inside = m.e.bin("or", inside, m.e.cmp("icmp ult", offset, const("i64", size)))
    return inside


def mapa(c: Context, instr: Instr) -> None:
    """mapa d, a, rank: the address in another block of the cluster; there is only this block."""
    kind = instr.op[-1]
    c.write(instr.args[0], c.read(instr.args[1], kind))


def cluster_rank(c: Context, instr: Instr) -> None:
    c.write(instr.args[0], const("i32", 0))


def policy(c: Context, instr: Instr) -> None:
    """Writes a cache policy. There are no caches."""
    c.write(instr.args[0], const("i64", 0))


# ---- loads and stores ----------------------------------------------------------------------------


def _flavour(words: set[str], kind: str, store: bool) -> tuple[str, str]:
    """Returns the text before the type, and the text after the pointer."""
    type_ = llvm_type(kind)
    align = f", align {TYPE_BYTES[kind]}"
    if "volatile" in words:
        return f"volatile {type_}", align
    if words & _STRONG:
        order = "release" if store else "acquire"
        return f"atomic {type_}", f" {order}{align}"
    return type_, align + ", !llvm.access.group !0"


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vec) else (operand,)


def load(c: Context, instr: Instr) -> None:
    where = instr.args[1]
    assert isinstance(where, Mem)
    m: MemoryContext = c  # type: ignore[assignment]
    space, words = split(instr)
    kind = instr.op[-1]
    if kind == "pred":
        raise Unsupported
    items = _items(instr.args[0])
    if space == "param" and isinstance(where.base, Sym):
        first = _constant(m, where)
        for index, item in enumerate(items):
            c.write(item, m.param(first + index * TYPE_BYTES[kind], kind), is_signed(kind))
        return
    base = pointer(m, space, where, TYPE_BYTES[kind] * len(items))
    before, after = _flavour(words, kind, store=False)
    values = []
    for index in range(len(items)):
        at = base
        if index:
            at = c.e.op("ptr", f"getelementptr i8, ptr {base.ref}, i64 {index * TYPE_BYTES[kind]}")
        values.append(c.e.op(llvm_type(kind), f"load {before}, ptr {at.ref}{after}"))
    for item, value in zip(items, values, strict=True):
        if not isinstance(item, Sink):
            c.write(item, value, is_signed(kind))


def _constant(m: MemoryContext, where: Mem) -> int:
    offset = m.read(where.base, "u64")
    return int(offset.ref) + where.offset


def store(c: Context, instr: Instr) -> None:
    where = instr.args[0]
    assert isinstance(where, Mem)
    m: MemoryContext = c  # type: ignore[assignment]
    space, words = split(instr)
    kind = instr.op[-1]
    if kind == "pred" or space == "param":
        raise Unsupported
    items = _items(instr.args[1])
    base = pointer(m, space, where, TYPE_BYTES[kind] * len(items))
    before, after = _flavour(words, kind, store=True)
    for index, item in enumerate(items):
        value = c.read(item, kind)
        at = base
        if index:
            at = c.e.op("ptr", f"getelementptr i8, ptr {base.ref}, i64 {index * TYPE_BYTES[kind]}")
        c.e.do(f"store {before} {value.ref}, ptr {at.ref}{after}")


# ---- atomics -------------------------------------------------------------------------------------

_RMW = {
    "add": "add",
    "and": "and",
    "or": "or",
    "xor": "xor",
    "exch": "xchg",
    "inc": "uinc_wrap",
    "dec": "udec_wrap",
}


def atomic(c: Context, instr: Instr) -> None:
    m: MemoryContext = c  # type: ignore[assignment]
    names = ("add", "and", "or", "xor", "exch", "inc", "dec", "min", "max", "cas")
    space, words = split(instr, "noftz", *names)
    kind = instr.op[-1]
    operations = [name for name in names if name in words]
    if len(operations) != 1 or kind not in TYPE_BYTES or (TYPE_BYTES[kind] > 8 and kind != "b128"):
        raise Unsupported
    first = 1 if instr.op[0] == "atom" else 0
    where = instr.args[first]
    assert isinstance(where, Mem)
    operands = instr.args[first + 1 : first + (3 if operations[0] == "cas" else 2)]
    base = pointer(m, space, where, TYPE_BYTES[kind] * len(_items(operands[0])))
    results = _items(instr.args[0]) if first else ()
    # for each element of a vector
    for index, values in enumerate(zip(*map(_items, operands), strict=True)):
        at = base
        if index:
            at = c.e.op("ptr", f"getelementptr i8, ptr {base.ref}, i64 {index * TYPE_BYTES[kind]}")
        old = _apply(m, space, operations[0], kind, at, [c.read(v, kind) for v in values])
        if first:
            c.write(results[index], old, is_signed(kind))


def _apply(
    m: MemoryContext, space: str, name: str, kind: str, at: Value, values: list[Value]
) -> Value:
    """Applies an atomic operation; returns the previous value."""
    if space == "shared":
        return _by_hand(m, name, kind, at, values)
    if kind in ("f16", "bf16", "f16x2", "bf16x2") or (is_float(kind) and name != "add"):
        return _exchange_loop(m, name, kind, at, values)
    return _locked(m, name, kind, at, values)


def _locked(c: MemoryContext, name: str, kind: str, at: Value, values: list[Value]) -> Value:
    type_ = values[0].type
    if name == "cas":
        bits = f"i{BITS[type_]}"
        old, new = (c.e.bitcast(v, bits).ref for v in values)
        pair = c.e.op("pair", f"cmpxchg ptr {at.ref}, {bits} {old}, {bits} {new} acq_rel acquire")
        return c.e.op(bits, f"extractvalue {{{bits}, i1}} {pair.ref}, 0")
    if kind in ("f32", "f64"):
        operation = "fadd"
    elif name in ("min", "max"):
        operation = ("" if is_signed(kind) else "u") + name
    else:
        operation = _RMW[name]
    return c.e.op(type_, f"atomicrmw {operation} ptr {at.ref}, {type_} {values[0].ref} acq_rel")


def _combine(c: MemoryContext, name: str, kind: str, old: Value, values: list[Value]) -> Value:
    """Returns the value that an atomic leaves in memory."""
    e, value = c.e, values[0]
    if name == "exch":
        return value
    if name == "cas":
        equal = e.cmp("icmp eq", old, value)
        return e.select(equal, values[1], old)
    if name == "inc":
        wrap = e.cmp("icmp uge", old, value)
        return e.select(wrap, const(old.type, 0), e.bin("add", old, const(old.type, 1)))
    if name == "dec":
        zero = e.cmp("icmp eq", old, const(old.type, 0))
        wrap = e.bin("or", zero, e.cmp("icmp ugt", old, value))
        return e.select(wrap, value, e.bin("sub", old, const(old.type, 1)))
    if name in ("min", "max") and not is_float(kind):
        return e.intrinsic(("s" if is_signed(kind) else "u") + name, old, value)
    if is_float(kind):
        return _combine_float(c, name, kind, old, value)
    return e.bin(name, old, value)


def _combine_float(c: MemoryContext, name: str, kind: str, old: Value, value: Value) -> Value:
    e = c.e
    if name not in ("add", "min", "max"):
        raise Unsupported

    def one(a: Value, b: Value) -> Value:
        if name == "add":
            return e.bin("fadd", a, b)
        return e.intrinsic(f"{name}imumnum", a, b)

    if kind in ("f32", "f64"):
        return one(old, value)
    single = kind[:-2] if kind.endswith("x2") else kind

    def widen(bits: Value) -> Value:
        if single == "f16":
            return e.cast("fpext", e.bitcast(bits, "half"), "float")
        return e.bitcast(e.bin("shl", e.resize(bits, "i32"), const("i32", 16)), "float")

    if kind == single:
        return pack_float(c, one(widen(old), widen(value)), single)
    result = const("i32", 0)
    for shift in (0, 16):
        parts = [
            e.cast("trunc", e.bin("lshr", v, const("i32", shift)), "i16") for v in (old, value)
        ]
        packed = pack_float(c, one(widen(parts[0]), widen(parts[1])), single)
        moved = e.bin("shl", e.resize(packed, "i32"), const("i32", shift))
        result = e.bin("or", result, moved)
    return result


def _by_hand(c: MemoryContext, name: str, kind: str, at: Value, values: list[Value]) -> Value:
    """Applies an atomic to shared memory, which belongs to one worker: read, change and write are
    atomic there."""
    type_ = values[0].type
    old = c.e.op(type_, f"load {type_}, ptr {at.ref}, align {TYPE_BYTES[kind]}")
    new = _combine(c, name, kind, old, values)
    c.e.do(f"store {type_} {new.ref}, ptr {at.ref}, align {TYPE_BYTES[kind]}")
    return old


def _exchange_loop(c: MemoryContext, name: str, kind: str, at: Value, values: list[Value]) -> Value:
    e, type_ = c.e, values[0].type
    bits = f"i{BITS[type_]}"
    first = e.op(bits, f"load atomic {bits}, ptr {at.ref} monotonic, align {TYPE_BYTES[kind]}")
    before, again, done = c.current, e.label(), e.label()
    old_bits, seen = e.name(), e.name()
    c.branch_to(again)
    c.start(again)
    place = len(e.lines)
    old = e.bitcast(Value(bits, old_bits), type_)
    new = e.bitcast(_combine(c, name, kind, old, values), bits)
    pair = e.op(
        "pair", f"cmpxchg ptr {at.ref}, {bits} {old_bits}, {bits} {new.ref} acq_rel acquire"
    )
    e.do(f"{seen} = extractvalue {{{bits}, i1}} {pair.ref}, 0")
    good = e.op("i1", f"extractvalue {{{bits}, i1}} {pair.ref}, 1")
    e.do(f"br i1 {good.ref}, label %{done}, label %{again}")
    phi = f"  {old_bits} = phi {bits} [ {first.ref}, %{before} ], [ {seen}, %{c.current} ]"
    e.lines.insert(place, phi)
    c.start(done)
    return old
