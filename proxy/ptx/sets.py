"""Determines what a kernel reads and writes, from its PTX, before it runs.

For each kernel it finds through which words of its parameters, and through which variables of its
module, the kernel reads and writes memory, in every possible launch. A kernel for which that cannot
be determined is *open*, with the reasons. Every access of a closed kernel to device memory is in
the same buffer as an address that one of the words contained at the launch, or in one of the
variables, if these rules of C hold: a number that is added to an address does not lead to another
buffer, and the result of a multiplication is a number and not an address. Where they do not hold (a
write past the end of a buffer), no list of words would be sufficient.

The analysis ignores the order of instructions: it determines which values a register can ever have.
Origins (origins.py) are propagated from the parameters through registers, shared and local memory,
until nothing new is found. docs/sets.md explains the rules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import origins as og
from .arithmetic import HEAP, Registers, Use
from .bounds import Access, AccessRanges, Load, memory_of
from .errors import ModuleError
from .flows import GRID, STEADY, WHY_OPEN, Flow, flow_of
from .inline import flatten
from .model import (
    TYPE_BYTES,
    Function,
    Instr,
    Mem,
    Module,
    Operand,
    Param,
    Special,
    Sym,
    Vec,
    registers_of,
)
from .origins import ANYWHERE, FOUND, INDEX, NOTHING, POINTERS, WHOLE, Origin, Origins, Part, Place
from .parameters import Flat
from .single import Single
from .steps import Bounds
from .values import Values

ROUNDS_MAX = 100
INSTRS_MAX = 20_000
WORD_BYTES = 8
SPACES = {
    "global": "global",
    "const": "global",
    "shared": "shared",
    "shared_cta": "shared",
    "shared_cluster": "shared",
    "local": "local",
    "param": "param",
    "param_entry": "param",
    "param_func": "param",
}
UNREADABLE = "has an instruction that cannot be read"
_READS_HEAP = (Flow.LOAD, Flow.ATOMIC, Flow.COPY, Flow.LOAD_TILE)
_NO_OPERANDS = frozenset(("commit_group", "wait_all"))  # of cp.async


@dataclass(frozen=True)
class Reason:
    """Why a kernel is open, and the instruction as in the PTX, except for whitespace."""

    what: str
    instr: str


@dataclass(frozen=True)
class Sets:
    """The memory that a kernel reads and writes.

    Words: by their offsets in the parameters, 8 bytes each. Variables: by their names. Only those
    through which memory is accessed; a word that may only be a number that is added to an address
    is included. `reasons`: why the kernel is open; empty: it is closed. `bounds`: how far from its
    words' addresses a closed kernel accesses memory.
    """

    words: tuple[tuple[int, Use], ...] = ()
    variables: tuple[tuple[str, Use], ...] = ()
    reasons: tuple[Reason, ...] = ()
    bounds: Bounds = field(default=Bounds(), compare=False)

    @property
    def closed(self) -> bool:
        return not self.reasons

    @property
    def why_open(self) -> str:
        """The first reason, for people; "" for a closed kernel."""
        return f"it {self.reasons[0].what}: {self.reasons[0].instr}" if self.reasons else ""

    def plain(self) -> dict[str, list[Any]]:
        """The content as JSON."""
        return self.bounds.plain() | {
            name: [list(item) for item in items]
            for name, items in (
                ("words", self.words),
                ("variables", self.variables),
                ("reasons", [(r.what, r.instr) for r in self.reasons]),
            )
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, list[Any]]) -> Sets:
        return cls(
            tuple((int(offset), Use(use)) for offset, use in plain["words"]),
            tuple((str(name), Use(use)) for name, use in plain["variables"]),
            tuple(Reason(str(reason), str(instr)) for reason, instr in plain["reasons"]),
            Bounds.of_plain(plain),
        )


def sets_of(module: Module, kernel: Function, fixed_code: bool, flat: Flat | None = None) -> Sets:
    """The sets of one kernel; open if its code cannot be resolved.

    `fixed_code`: a device function has the same address wherever the module is loaded, and a
    function that is called by its address is one of those in the kernel's list. Otherwise code that
    uses such addresses makes the kernel open. `flat`: what flatten() returned, if it was called.
    """
    try:
        return analyse(module, kernel, flat or flatten(module, kernel), fixed_code)
    except ModuleError as error:
        return Sets(reasons=(Reason(f"cannot be resolved ({error.message})", error.about),))


def analyse(module: Module, kernel: Function, flat: Flat, fixed_code: bool) -> Sets:
    """The sets of a kernel that already is one list of instructions."""
    values = _values(kernel, flat)
    analysis = _Analysis(module, kernel, Single(values) if values else flat, fixed_code)
    analysis.run()
    reasons = tuple(Reason(reason, text) for reason, text in analysis.reasons.items())
    bounds = Bounds()
    if values and not reasons:
        sizes = {v.name: v.size for v in module.variables.values()}
        ranges = AccessRanges(values, kernel.param_bytes)
        analysis.resolve(ranges.place(analysis.loads()))
        bounds = ranges.bounds(analysis.accesses(), sizes, analysis.parts())
    else:
        analysis.resolve({})
    accessed = Use.READ | Use.WRITTEN
    words = [
        (offset, use)
        for offset, use in sorted(analysis.words.items())
        if use & accessed or any(slot.may_be(offset) for slot in bounds.slots)
    ]
    names = [(name, use) for name, use in sorted(analysis.variables.items()) if use & accessed]
    return Sets(tuple(words), tuple(names), reasons, bounds)


def _values(kernel: Function, flat: Flat) -> Values | None:
    """The values of its registers; None: there are too many, or a branch has no target."""
    if len(flat.instrs) > INSTRS_MAX:
        return None
    try:
        return Values(flat, {p.name: p.offset for p in kernel.params})
    except KeyError:
        return None


@dataclass
class _Noted:
    """An operand in memory: the words, slots and variables that its address may come from."""

    instr: Instr
    words: set[int] = field(default_factory=set)
    slots: set[int] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    use: int = 0


class _Analysis(Registers):
    """`code`: with a register for each value, if the kernel's values are known."""

    def __init__(self, module: Module, kernel: Function, code: Single | Flat, fixed_code: bool):
        single = code if isinstance(code, Single) else None
        flat = code.flat if isinstance(code, Single) else code
        super().__init__(module, kernel, flat, fixed_code)
        self._original = single.original if single else {}
        self._fetched = single.fetched if single else {}
        self._noted: dict[tuple[int, int], _Noted] = {}
        self._loads: dict[int, Load] = {}  # by the number of a value: that of a slot
        self._parts: set[tuple[int, int]] = set()
        self.doing = {
            Flow.MOVE: self.move,
            Flow.MOVE_FIRST: self.move_first,
            Flow.CHOOSE: self.choose,
            Flow.ADD: self.add,
            Flow.EXTREME: self.extreme,
            Flow.MULTIPLY: self.multiply,
            Flow.MULTIPLY_ADD: self.multiply_add,
            Flow.SHIFT_UP: self.shift_up,
            Flow.SHIFT_DOWN: self.shift_down,
            Flow.DIVIDE: self.divide,
            Flow.AND: self.and_,
            Flow.OR: self.add,
            Flow.BITS: self.bits,
            Flow.CONVERT: self.convert,
            Flow.INSERT: self.insert,
            Flow.MIX: self.mix,
            Flow.COMPARE: self.compare,
            Flow.SMALL: self.small,
            Flow.LOAD: self.load,
            Flow.STORE: self.store,
            Flow.ATOMIC: self.atomic,
            Flow.COPY: self.copy,
            Flow.BARRIER: self.barrier,
            Flow.LOAD_TILE: self.load_tile,
            Flow.STORE_TILE: self.store_tile,
            Flow.DISCARD: self.discard,
            Flow.NOTHING: self.nothing,
            Flow.OPEN: self.open_,
        }

    def run(self) -> None:
        steps = []
        for instr in self.flat.instrs:
            flow = flow_of(instr.op)
            if flow is None:
                self.open(f"has the instruction {instr.op[0]}, which is not known", instr)
                continue
            self._look_at_operands(instr)
            if instr.args or flow is Flow.OPEN:
                uses = {name for a in instr.args for name in registers_of(a)}
                if flow in _READS_HEAP:
                    uses.add(HEAP)
                steps.append((self.doing[flow], instr, uses))
            elif flow is not Flow.NOTHING and not set(instr.op) & _NO_OPERANDS:
                self.open(UNREADABLE, instr)
        self.addressing = _addressing([instr for _, instr, _ in steps])
        reasons, self.reasons = self.reasons, {}
        for do, instr, _ in steps:
            do(instr)
        for _ in range(ROUNDS_MAX):
            before, self.changed = self.changed, set()
            if not before:
                break
            for do, instr, uses in steps:
                if not (uses.isdisjoint(before) and uses.isdisjoint(self.changed)):
                    do(instr)
        else:
            self.open("is too involved", self.flat.instrs[0])
            return
        # The origins of all addresses are complete only now.
        self.reasons = reasons
        for do, instr, _ in steps:
            do(instr)

    def _look_at_operands(self, instr: Instr) -> None:
        for operand in instr.args:
            inner: Operand = operand.base if isinstance(operand, Mem) else operand
            if isinstance(inner, Special) and inner.name not in STEADY and inner.name not in GRID:
                self.open(f"reads %{inner.name}", instr)
            elif isinstance(inner, Sym) and self._is_function(inner.name):
                if not self.fixed_code:
                    self.open("takes the address of a function", instr)
        if "mmio" in instr.op:
            self.open("accesses what is not memory", instr)

    def _is_function(self, name: str) -> bool:
        """True for a function's name. The kernel's parameters and variables hide functions."""
        is_variable = name in self.params or name in self.flat.variables
        return name in self.module.functions and not is_variable

    def open_(self, i: Instr) -> None:
        self.open(WHY_OPEN.get(i.op[0], f"has {i.op[0]}, which is not resolved"), i)

    # ---- memory

    def _space(self, i: Instr, base: Operand) -> str:
        """The state space of an access; "": any."""
        space = next((SPACES[word] for word in i.op[1:] if word in SPACES), "")
        if not space and isinstance(base, Sym):
            space = {"own": "own", "variable": "global", "place": "param"}.get(
                next(iter(self.of(base))).kind, ""
            )
        return space

    def _reach(
        self, i: Instr, where: Mem, space: str, use: Use
    ) -> tuple[bool, frozenset[str], Origins]:
        """The memory that may be at an address: whether device memory; which heaps; places in the
        parameters.

        Records the access.
        """
        origins = self.of(where)
        if space in ("shared", "local"):
            return False, frozenset([space]), NOTHING
        places = frozenset(o for o in origins if o.kind == "place")
        own = frozenset(str(o.at) for o in origins if o.kind == "own")
        if space == "param":
            if not places:
                self.open("reads parameters at an address that is not known", i)
            return False, frozenset(), places
        rest = (
            origins - places
            if space == "global"
            else frozenset(o for o in origins if o.kind not in ("own", "place"))
        )
        if space == "global":
            own, places = frozenset(), NOTHING
        pointing = [o for o in rest if o.kind in POINTERS and o.shape == WHOLE]
        if not pointing and (own or places) and all(o.shape >= INDEX for o in rest):
            return False, own, places
        self._note(i, where, rest, pointing, use)
        return True, own, places

    def _note(
        self, i: Instr, where: Mem, origins: Origins, pointing: list[Origin], use: Use
    ) -> None:
        """Record an access to device memory."""
        wrong = {why for o in origins if (why := self._why_not(o))}
        if not pointing and not wrong:
            wrong = {"has an address that comes from no parameter and no variable"}
        for why in sorted(wrong):
            self.open(why, i)
        self._use(origins, use)
        place = memory_of(i).index(where)
        noted = self._noted.setdefault((id(i), place), _Noted(i))
        for o in origins:
            if o.kind == "variable":
                noted.names.add(str(o.at))
            elif isinstance(o.at, int):
                (noted.words if o.kind == "word" else noted.slots).add(o.at)
        noted.use |= use

    def loads(self) -> list[Load]:
        """The loads from addresses among the parameters."""
        for number, load in self._loads.items():
            load.use = self.slots[number]
        return list(self._loads.values())

    def resolve(self, slots: Mapping[int, int]) -> None:
        """Take all words of a parameter for a slot that is not one of these. `slots`: numbers, by
        those of the values."""
        for number, load in self._loads.items():
            if number in slots:
                continue
            words = range(load.first, load.last + 1, WORD_BYTES)
            self._parts.add((load.begin, load.end - load.begin))
            for word in words if self.slots[number] else ():
                self.words[word] |= self.slots[number]
            for noted in self._noted.values():
                if number in noted.slots:
                    noted.words |= set(words)
        for noted in self._noted.values():
            noted.slots = {slots[number] for number in noted.slots if number in slots}

    def accesses(self) -> list[Access]:
        """The accesses to device memory by the kernel's instructions, once all is resolved."""
        return [
            Access(
                self._original[id(noted.instr)],
                place,
                tuple(sorted(noted.words)),
                tuple(sorted(noted.slots)),
                tuple(sorted(noted.names)),
                noted.use,
            )
            for (_, place), noted in self._noted.items()
        ]

    def parts(self) -> list[tuple[int, int]]:
        """The parts of the parameters at known offsets that are read: offsets and bytes."""
        result: list[tuple[int, int]] = []
        for offset, size in sorted(self._parts):
            start, length = result[-1] if result else (0, 0)
            if result and offset <= start + length:
                result[-1] = (start, max(length, offset + size - start))
            else:
                result.append((offset, size))
        return result

    def _why_not(self, o: Origin) -> str:
        """Why an address may not have this origin; "": it may."""
        if o.kind == "function":
            return "uses the address of a function as one of memory"
        if o.kind == "variable" and self.module.variables[str(o.at)].managed:
            return "reaches managed memory"
        if o.shape >= INDEX or (o.shape == WHOLE and o.kind in POINTERS):
            return ""
        if o.kind == "memory":
            return "reads pointers from memory"
        if o.kind == "part":
            return "makes an address of parts of parameters"
        return "makes an address of the bits of another one"

    def _read_param(self, i: Instr, item: int, places: Origins, size: int) -> Origins:
        """The origins of the `size` bytes that an item of a load gets from the parameters.

        If one of several addresses is beyond the parameters, it comes from a loop that ends before
        it gets there: the read may be anywhere in the parameter.
        """
        origins: set[Origin] = set()
        beyond = 0
        for place in places:
            assert isinstance(place.at, Place)
            param = self.params[place.at.param]
            if place.at.offset is not None and place.shape == WHOLE:
                start = param.offset + place.at.offset + item * size
                if 0 <= start <= self.param_bytes - size:
                    part = Part(start, size)
                    origins.add(Origin("word", start) if size == 8 else Origin("part", part))
                    self._parts.add((start, size))
                    continue
                beyond += 1
            origins |= self._somewhere(i, item, param, size)
        if beyond and beyond == len(places):
            self.open("reads beyond its parameters", i)
        return frozenset(origins)

    def _somewhere(self, i: Instr, item: int, param: Param, size: int) -> set[Origin]:
        """The origins of what an item of a load gets from an unknown place in a parameter."""
        first = (param.offset + WORD_BYTES - 1) // WORD_BYTES * WORD_BYTES
        last = param.offset + param.bytes - WORD_BYTES
        value = self._fetched.get(id(i), {}).get(item)
        if value is None or first > last:
            self._parts.add((param.offset, param.bytes))
        else:
            begin, end = param.offset, param.offset + param.bytes
            new = Load(value, size, first, last, begin, end)
            load = self._loads.setdefault(value.number, new)
            load.first, load.last = min(load.first, first), max(load.last, last)
            load.begin, load.end = min(load.begin, begin), max(load.end, end)
            load.instrs[id(self._original[id(i)])] = self._original[id(i)]
        if size != WORD_BYTES:
            return {Origin("part", ANYWHERE)}
        if value is not None and first <= last:
            return {Origin("slot", value.number)}
        return {Origin("word", start) for start in range(first, last + 1, WORD_BYTES)}

    def load(self, i: Instr) -> None:
        to, where = i.args[:2]
        if not isinstance(where, Mem):
            self.open(UNREADABLE, i)
            return
        size = TYPE_BYTES.get(i.op[-1], 0)
        space = self._space(i, where.base)
        outside, heaps, places = self._reach(i, where, space, Use.READ)
        origins = FOUND if outside else NOTHING
        for heap in heaps:
            origins |= self.heaps[heap].get(size)
        for n, item in enumerate(to.items if isinstance(to, Vec) else (to,)):
            value = origins | self._read_param(i, n, places, size)
            self.add_origins(item, og.bounded(value) if size < 8 and self.is_wide(item) else value)

    def _write(self, i: Instr, where: Mem, source: Origins, size: int, use: Use) -> Origins:
        """Write; returns what may have been there, in the launch's own memory and elsewhere."""
        outside, heaps, places = self._reach(i, where, self._space(i, where.base), use)
        if places:
            self.open("writes to its parameters", i)
        if outside:
            self.value(source)
        for heap in heaps:
            self.add_to_heap(heap, size, source)
        stored = NOTHING.union(*(self.heaps[heap].get(size) for heap in heaps))
        return stored | FOUND if outside else stored

    def store(self, i: Instr) -> None:
        where, source = i.args[:2]
        if not isinstance(where, Mem) or len(i.op) < 2 or "async" in i.op or "bulk" in i.op:
            self.open(UNREADABLE, i)
            return
        size = TYPE_BYTES.get(i.op[-1], 0)
        self._write(i, where, self.of(source), size, Use.WRITTEN)

    def atomic(self, i: Instr) -> None:
        first = 1 if i.op[0] == "atom" else 0
        where = i.args[first] if len(i.args) > first else None
        if not isinstance(where, Mem) or "async" in i.op:
            self.open(UNREADABLE, i)
            return
        source = NOTHING.union(*map(self.of, i.args[first + 1 :]))
        if "exch" not in i.op:
            self.value(source)
            source = source if "cas" in i.op else og.mixed(source)
        use = Use.READ | Use.WRITTEN | Use.ATOMIC
        stored = self._write(i, where, source, TYPE_BYTES.get(i.op[-1], 0), use)
        if first:
            self.add_origins(i.args[0], stored)

    def copy(self, i: Instr) -> None:
        """cp: the spaces are those of its addresses, destination first."""
        where = [a for a in i.args if isinstance(a, Mem)]
        spaces = [SPACES[word] for word in i.op if word in SPACES]
        if not where and "wait_group" in i.op:
            return
        if "mbarrier" in i.op:
            self.barrier(i)
        elif "tensor" in i.op or len(i.op) < 3 or not where:
            self.open("copies as a descriptor in memory describes", i)
        elif "prefetch" in i.op:
            return
        elif len(spaces) != 2 or len(where) < 2 or "param" in spaces or "local" in spaces:
            self.open(UNREADABLE, i)
        else:
            use = Use.READ | Use.WRITTEN | Use.ATOMIC if "reduce" in i.op else Use.WRITTEN
            stored = FOUND
            if spaces[1] == "global":
                self._reach(i, where[1], "global", Use.READ)
            else:
                stored = NOTHING.union(*(h for h in self.heaps["shared"].stored.values()))
            if spaces[0] == "global":
                self._reach(i, where[0], "global", use)
                self.value(stored)
            else:
                self.add_to_heap("shared", 0, og.mixed(stored))

    def barrier(self, i: Instr) -> None:
        """mbarrier: its result is a state or a condition."""
        for operand in i.args:
            if isinstance(operand, Mem):
                use = Use.READ | Use.WRITTEN | Use.ATOMIC
                _, _, places = self._reach(i, operand, self._space(i, operand.base), use)
                if places:
                    self.open("writes to its parameters", i)

    def load_tile(self, i: Instr) -> None:
        where = i.args[1]
        if not isinstance(where, Mem):
            self.open(UNREADABLE, i)
            return
        space = "shared" if i.op[0] == "ldmatrix" else self._space(i, where.base)
        outside, heaps, places = self._reach(i, where, space, Use.READ)
        if places:
            self.open("reads parameters at an address that is not known", i)
        origins = NOTHING.union(*(self.heaps[heap].get(0) for heap in heaps))
        self.add_origins(i.args[0], og.mixed(origins | FOUND if outside else origins))

    def store_tile(self, i: Instr) -> None:
        where = i.args[0]
        if not isinstance(where, Mem):
            self.open(UNREADABLE, i)
            return
        space = "shared" if i.op[0] == "stmatrix" else self._space(i, where.base)
        outside, heaps, places = self._reach(i, where, space, Use.WRITTEN)
        if places:
            self.open("writes to its parameters", i)
        source = og.mixed(NOTHING.union(*map(self.of, i.args[1:])))
        if outside:
            self.value(source)
        for heap in heaps:
            self.add_to_heap(heap, 0, source)

    def discard(self, i: Instr) -> None:
        where = i.args[0]
        if isinstance(where, Mem):
            self._reach(i, where, self._space(i, where.base), Use.WRITTEN)
        else:
            self.open(UNREADABLE, i)


def _addressing(instrs: list[Instr]) -> set[str]:
    """The registers from which an address in device memory or in the parameters may be made.

    Only for them it matters whether they contain values from memory.
    """
    made_of: dict[str, list[str]] = defaultdict(list)
    todo: list[str] = []
    for instr in instrs:
        values = [name for a in instr.args if not isinstance(a, Mem) for name in registers_of(a)]
        inside = {SPACES[word] for word in instr.op if word in SPACES}
        if inside != {"global"} and flow_of(instr.op) in (Flow.STORE, Flow.STORE_TILE, Flow.ATOMIC):
            made_of[HEAP] += values
        if inside != {"shared"} and inside != {"local"}:
            todo += [name for a in instr.args if isinstance(a, Mem) for name in registers_of(a)]
        if instr.args and not isinstance(instr.args[0], Mem):
            if flow_of(instr.op) in _READS_HEAP and inside != {"global"}:
                values.append(HEAP)
            for name in registers_of(instr.args[0]):
                made_of[name] += values
    names: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in names:
            names.add(name)
            todo += made_of[name]
    return names
