"""Tracks which addresses the registers of a kernel can hold: the arithmetic of sets.py."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from . import origins as og
from .flows import GRID
from .model import (
    TYPE_BYTES,
    Function,
    Instr,
    Int,
    Mem,
    Module,
    Operand,
    Reg,
    Special,
    Sym,
    Vec,
    registers_of,
)
from .origins import NOTHING, WHOLE, Origin, Origins, Part, Place
from .parameters import Flat

LOW_MASK_MAX = 255  # buffers are aligned to more than this
HEAP = "%heap"  # represents shared and local memory among the registers
PLACES_MAX = 16  # distinct addresses in a parameter that are tracked
FLOATS = frozenset(("f16", "f16x2", "bf16", "bf16x2", "f32", "f32x2", "f64", "tf32"))


class Use(enum.IntFlag):
    """How a word of the parameters or a variable is used (enum proxy_use).

    VALUE: the bits of the address matter other than for accessing memory: they are compared,
    stored, computed with. LOW_BITS: only the lowest eight of them.
    """

    READ = 1
    WRITTEN = 2
    ATOMIC = 4
    VALUE = 8
    LOW_BITS = 16


@dataclass
class Heap:
    """The origins stored in one kind of the launch's own memory, by the bytes of a store."""

    stored: dict[int, Origins] = field(default_factory=dict)

    def add_origins(self, size: int, origins: Origins) -> bool:
        """Add origins; True if that changed something."""
        old = self.stored.get(size, NOTHING)
        if origins <= old:
            return False
        self.stored[size] = old | origins
        return True

    def get(self, size: int) -> Origins:
        """The origins of a load. A store of another size may be a piece of it, or contain it."""
        out = self.stored.get(size, NOTHING)
        for other, origins in self.stored.items():
            if other != size:
                out |= og.mixed(origins)
        return out


def _shifted(place: Place, by: int | None) -> Place:
    known = by is not None and place.offset is not None
    return place._replace(offset=place.offset + by if known else None)  # type: ignore[operator]


def _limited(origins: Origins) -> Origins:
    """Replace many addresses in parameters, as from a loop, by one of unknown offset.

    That one also stands for addresses in its parameter that are added later.
    """
    places = {o.at for o in origins if isinstance(o.at, Place)}
    if not places:
        return origins
    anywhere = {Origin("place", Place(place.param, None)) for place in places}
    if len(places) < PLACES_MAX:
        anywhere &= origins
    exact = {
        o
        for o in origins
        if isinstance(o.at, Place)
        and o.at.offset is not None
        and Origin("place", Place(o.at.param, None)) in anywhere
    }
    return (origins - exact) | anywhere


def _pointers(origins: Origins) -> Origins:
    """The origins that must be tracked for values from which no address is made."""
    if not origins:
        return origins
    return frozenset(
        o for o in origins if (o.kind in og.POINTERS or _is_known(o.at)) and o.shape in _POINTERS
    )


def _is_known(place: object) -> bool:
    """True for a part of the parameters at a known offset."""
    return isinstance(place, Part) and place != og.ANYWHERE


_POINTERS = (WHOLE, og.LOW, og.HIGH)


def _lower_half(origins: Origins) -> Origins:
    """The lower half of a 64-bit value; a 4-byte part of the parameters already is that."""
    parts = frozenset(o for o in origins if isinstance(o.at, Part) and o.at.bytes == 4)
    return parts | og.lower_half(origins - parts)


class Registers:
    """The origins of every register, and the findings of the analysis.

    There is a method for each way in which an instruction computes (flows.py).
    """

    def __init__(self, module: Module, kernel: Function, flat: Flat, fixed_code: bool):
        self.module, self.flat, self.fixed_code = module, flat, fixed_code
        self.params = {p.name: p for p in kernel.params}
        self.param_bytes = kernel.param_bytes
        self.registers: dict[str, Origins] = {}
        self.heaps: dict[str, Heap] = defaultdict(Heap)
        self.words: dict[int, Use] = defaultdict(lambda: Use(0))
        self.slots: dict[int, Use] = defaultdict(lambda: Use(0))
        self.variables: dict[str, Use] = defaultdict(lambda: Use(0))
        self.reasons: dict[str, str] = {}
        self.addressing: set[str] = set()  # registers from which addresses are made
        self.changed: set[str] = set()  # in this round
        self._valued: set[Origins] = set()  # what value() has recorded

    # ---- state

    def open(self, reason: str, instr: Instr) -> None:
        self.reasons.setdefault(reason, instr.text or ".".join(instr.op))

    def add_origins(self, to: Operand, origins: Origins) -> None:
        if not origins:
            return
        for name in registers_of(to):
            known = origins if name in self.addressing else _pointers(origins)
            old = self.registers.get(name, NOTHING)
            if known <= old:
                continue
            new = _limited(old | known)
            if new != old:
                self.registers[name] = new
                self.changed.add(name)

    def is_wide(self, to: Operand) -> bool:
        return isinstance(to, Reg) and TYPE_BYTES.get(self.flat.registers.get(to.name, "")) == 8

    def add_to_heap(self, space: str, size: int, origins: Origins) -> None:
        if self.heaps[space].add_origins(size, origins):
            self.changed.add(HEAP)

    def of(self, operand: Operand) -> Origins:
        """The origins of an operand's value; for a memory operand, of its address."""
        if isinstance(operand, Reg):
            return self.registers.get(operand.name, NOTHING)
        if isinstance(operand, Sym):
            return self._symbol(operand)
        if isinstance(operand, Special):
            return frozenset([Origin("own", "grid")]) if operand.name in GRID else NOTHING
        if isinstance(operand, Mem):
            return self._displaced(self.of(operand.base), operand.offset)
        if isinstance(operand, Vec):
            return NOTHING.union(*map(self.of, operand.items))
        names = registers_of(operand)
        return og.mixed(NOTHING.union(*(self.registers.get(n, NOTHING) for n in names)))

    def _symbol(self, symbol: Sym) -> Origins:
        name = symbol.name
        if name == "WARP_SZ":
            return NOTHING
        if name in self.params:
            return frozenset([Origin("place", Place(name, symbol.offset))])
        if variable := self.flat.variables.get(name) or self.module.variables.get(name):
            if variable.space in ("global", "const"):
                return frozenset([Origin("variable", name)])
            return frozenset([Origin("own", variable.space)])
        return frozenset([Origin("function", name)])

    def _displaced(self, origins: Origins, by: int | None) -> Origins:
        """Add a number to addresses in parameters; None: unknown number."""
        if by == 0 or not any(o.kind == "place" for o in origins):
            return origins
        return frozenset(
            o._replace(at=_shifted(o.at, by)) if isinstance(o.at, Place) else o for o in origins
        )

    def value(self, origins: Origins) -> None:
        """Record that the bits of these values matter."""
        if origins not in self._valued:
            self._valued.add(origins)
            self._use(origins, Use.VALUE)

    def _use(self, origins: Iterable[Origin], use: Use) -> None:
        for kind, place, _shape in origins:
            if kind == "word" and isinstance(place, int):
                self.words[place] |= use
            elif kind == "slot" and isinstance(place, int):
                self.slots[place] |= use
            elif kind == "variable" and isinstance(place, str):
                self.variables[place] |= use
            elif isinstance(place, Part) and _is_known(place) and use & (Use.VALUE | Use.LOW_BITS):
                # A part of a word tells of the word.
                end = min(place.start + place.bytes, self.param_bytes - 7)
                for word in range(max(place.start // 4 * 4 - 4, 0), end, 4):
                    self.words[word] |= Use.VALUE

    # ---- arithmetic

    def move(self, i: Instr) -> None:
        to, what = i.args[:2]
        if isinstance(what, Vec) and not isinstance(to, Vec):
            parts = [self.of(item) for item in what.items]
            if len(parts) == 2 and TYPE_BYTES.get(i.op[-1]) == 8:
                self.add_origins(to, og.joined(*parts))
            else:
                self.add_origins(to, og.mixed(NOTHING.union(*parts)))
        elif isinstance(to, Vec) and not isinstance(what, Vec):
            origins = self.of(what)
            halves = len(to.items) == 2 and TYPE_BYTES.get(i.op[-1]) == 8
            for n, item in enumerate(to.items):
                self.add_origins(
                    item,
                    (og.upper_half if n else og.lower_half)(origins)
                    if halves
                    else og.mixed(origins),
                )
        elif isinstance(to, Vec) and isinstance(what, Vec):
            for item, source in zip(to.items, what.items, strict=False):
                self.add_origins(item, self.of(source))
        else:
            self.add_origins(to, self.of(what))

    def move_first(self, i: Instr) -> None:
        self.add_origins(i.args[0], self.of(i.args[1]))
        for operand in i.args[2:]:
            self.value(self.of(operand))

    def choose(self, i: Instr) -> None:
        self.add_origins(i.args[0], self.of(i.args[1]) | self.of(i.args[2]))
        self.value(self.of(i.args[3]))

    def _is_float(self, i: Instr) -> bool:
        return i.op[-1] in FLOATS

    def add(self, i: Instr) -> None:
        if self._is_float(i):
            self.mix(i)
            return
        left, right = i.args[1:3]
        a, b = self.of(left), self.of(right)
        if i.op[0] in ("sub", "subc") and a and b:
            self.value(a | b)
        by = None
        if i.op[0] == "add":
            by = next((x.value for x in (left, right) if isinstance(x, Int)), None)
        elif i.op[0] == "sub" and isinstance(right, Int):
            by = -right.value
        self.add_origins(i.args[0], self._displaced(a | b, by))

    def extreme(self, i: Instr) -> None:
        if self._is_float(i):
            self.mix(i)
            return
        origins = NOTHING.union(*map(self.of, i.args[1:]))
        if len(i.args) > 2:
            self.value(origins)
        self.add_origins(i.args[0], self._displaced(origins, None))

    def _product(self, i: Instr) -> Origins:
        left, right = i.args[1:3]
        a, b = self.of(left), self.of(right)
        self.value(a | b)
        if "hi" in i.op:
            return og.mixed(a | b)
        if "wide" in i.op:
            a, b = og.bounded(a), og.bounded(b)
        by = right.value if isinstance(right, Int) else None
        return og.scaled(a, by) | og.scaled(b, left.value if isinstance(left, Int) else None)

    def multiply(self, i: Instr) -> None:
        if self._is_float(i):
            self.mix(i)
        else:
            self.add_origins(i.args[0], self._product(i))

    def multiply_add(self, i: Instr) -> None:
        if self._is_float(i):
            self.mix(i)
            return
        self.add_origins(i.args[0], self._product(i) | self._displaced(self.of(i.args[3]), None))

    def shift_up(self, i: Instr) -> None:
        value, by = self.of(i.args[1]), i.args[2]
        self.value(value | self.of(by))
        known = isinstance(by, Int) and 0 <= by.value < 64
        self.add_origins(
            i.args[0],
            og.scaled(value, 1 << by.value) if isinstance(by, Int) and known else og.mixed(value),
        )

    def shift_down(self, i: Instr) -> None:
        value, by = self.of(i.args[1]), i.args[2]
        if TYPE_BYTES.get(i.op[-1]) != 8 or not isinstance(by, Int):
            self.value(value | self.of(by))
            self.add_origins(i.args[0], og.divided(value))
            return
        if by.value != 32:
            self.value(value)
        self.add_origins(i.args[0], og.lowered(value, by.value))

    def divide(self, i: Instr) -> None:
        if self._is_float(i):
            self.mix(i)
            return
        a, b = self.of(i.args[1]), self.of(i.args[2])
        self.value(a | b)
        self.add_origins(i.args[0], og.divided(a | b))

    def and_(self, i: Instr) -> None:
        left, right = i.args[1:3]
        constant = right if isinstance(right, Int) else left
        origins = self.of(left) | self.of(right)
        if not isinstance(constant, Int) or not origins:
            self.bits(i)
            return
        size = TYPE_BYTES.get(i.op[-1], 8)
        mask = constant.value & ((1 << 8 * size) - 1)
        low = mask & -mask
        if mask <= LOW_MASK_MAX:  # the position in a line of memory
            whole = frozenset(o for o in origins if o.shape in (WHOLE, og.LOW))
            self._use(whole, Use.LOW_BITS)
            self.value(origins - whole)
            rest = og.bounded(og.mixed(origins))
            self.add_origins(
                i.args[0], frozenset(o for o in rest if o.kind not in ("word", "slot"))
            )
        elif size == 8 and mask < 1 << 32:
            self.value(origins)
            self.add_origins(i.args[0], og.bounded(og.mixed(origins)))
        elif size == 8 and mask + low == 1 << 64:  # rounding down to a boundary
            self._use(origins, Use.LOW_BITS if low <= LOW_MASK_MAX + 1 else Use.VALUE)
            self.add_origins(i.args[0], self._displaced(origins, None))
        else:
            self.bits(i)

    def bits(self, i: Instr) -> None:
        origins = NOTHING.union(*map(self.of, i.args[1:]))
        self.value(origins)
        self.add_origins(i.args[0], og.bitwise(origins))

    def convert(self, i: Instr) -> None:
        kinds = [word for word in i.op[1:] if word in TYPE_BYTES]
        origins = NOTHING.union(*map(self.of, i.args[1:]))
        if not origins:
            return
        if len(kinds) != 2 or kinds[1] in FLOATS or kinds[0] in FLOATS or len(i.args) != 2:
            self.mix(i)
            return
        to, source = (TYPE_BYTES[kind] for kind in kinds)
        if to < 8 and source == 8:
            origins = og.narrowed(origins, 8 * to)
        elif to == 8 and source < 8:
            self.value(origins)
            origins = og.bounded(origins)
        elif to != source:
            self.value(origins)
            origins = og.bitwise(origins)
        self.add_origins(i.args[0], origins)

    def insert(self, i: Instr) -> None:
        """bfi: joins the low halves of two values."""
        if i.op[-1] == "b64" and i.args[3:] == (Int(32), Int(32)):
            low, high = (_lower_half(self.of(i.args[n])) for n in (2, 1))
            self.add_origins(i.args[0], og.joined(low, high))
        else:
            self.mix(i)

    def mix(self, i: Instr) -> None:
        origins = NOTHING.union(*map(self.of, i.args[1:]))
        if origins:
            self.value(origins)
            self.add_origins(i.args[0], og.mixed(origins))

    def compare(self, i: Instr) -> None:
        a, b = i.args[1:3]
        zero = any(isinstance(operand, Int) and operand.value == 0 for operand in (a, b))
        whole = TYPE_BYTES.get(i.op[-1]) == 8 and len(i.args) == 3
        if not (zero and whole and i.op[1] in ("eq", "ne")):  # a buffer's address is never 0
            self.small(i)

    def small(self, i: Instr) -> None:
        for operand in i.args[1:]:
            self.value(self.of(operand))

    def nothing(self, i: Instr) -> None:
        if i.op[0] in ("brx", "bar", "barrier"):
            for operand in i.args:
                self.value(self.of(operand))
