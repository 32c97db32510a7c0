"""Computes how far from its parameters' addresses a kernel reads and writes.

The result is a program of steps (steps.py), which a proxy runs at each launch with the launch's
shape and parameters. It computes the range of each address (ranges.py). The words of an address
that may be anything are taken to reach a whole buffer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .arithmetic import Use
from .model import TYPE_BYTES, Instr, Int, Mem, Sym, Vec
from .ranges import VISITS_MAX, Context, Ranges
from .steps import Bounds, Reached, Slot, TooLong, operands_of
from .values import MemoryInstr, Value, Values


@dataclass(frozen=True)
class Access:
    """An instruction's access to memory through words of the parameters, slots and variables.

    `place`: which of its operands in memory.
    """

    instr: Instr
    place: int
    words: tuple[int, ...]
    slots: tuple[int, ...]
    variables: tuple[str, ...]
    use: int


@dataclass
class Load:
    """A value of so many bytes that is loaded from an address among the parameters.

    `first`, `last`: offsets of the words of the parameter; `begin`, `end`: of its bytes. `instrs`:
    the loads, by their ids. `use`: if it has 8 bytes, how it is used as an address.
    """

    value: Value
    bytes: int
    first: int
    last: int
    begin: int
    end: int
    instrs: dict[int, Instr] = field(default_factory=dict)
    use: int = 0


def _inside(
    seen: Mapping[int, list[MemoryInstr]], accesses: list[Access], sizes: Mapping[str, int]
) -> tuple[str, ...]:
    """The variables that are only accessed at constant offsets within them."""
    names, left = set[str](), set[str]()
    for access in accesses:
        names |= set(access.variables)
        size, where = bytes_of(access.instr), memory_of(access.instr)[access.place]
        for each in seen.get(id(access.instr), ()):
            place = each.bases[access.place].about
            if not (isinstance(place, Sym) and access.variables == (place.name,)):
                left |= set(access.variables)
                continue
            low = place.offset + where.offset
            if not (size and 0 <= low <= sizes[place.name] - size):
                left.add(place.name)
    return tuple(sorted(names - left))


def sides_of(use: int) -> list[Use]:
    """Split a use into reads and writes: an atomic operation writes, and reads what it finds."""
    sides = [Use.READ] if use & Use.READ else []
    return [*sides, Use.WRITTEN] if use & (Use.WRITTEN | Use.ATOMIC) else sides


class AccessRanges(Ranges):
    """Finds the bounds of a kernel's accesses: first `place`, then `bounds`."""

    def __init__(self, values: Values, param_bytes: int):
        super().__init__(values, param_bytes)
        self._slots: list[Slot] = []
        self._loads: dict[tuple[int, int], None] = {}
        self._seen: dict[int, list[MemoryInstr]] = {}
        for each in values.memory_instrs:
            self._seen.setdefault(id(each.instr), []).append(each)

    def place(self, loads: list[Load]) -> dict[int, int]:
        """Find where among the parameters these loads are.

        Returns the numbers of the slots, by those of the values; a load that cannot be placed has
        none. One that is no address has no slot: then the number is -1.
        """
        places = dict[int, int]()
        for load in loads:
            try:
                steps = self._places(load)
            except TooLong:
                continue
            if not steps or any(self._is_any(step) for step in steps):
                continue
            self._loads |= dict.fromkeys((step, load.bytes) for step in steps)
            places[load.value.number] = len(self._slots) if load.use else -1
            if load.use:
                self._slots += [Slot(step, load.use, 0, load.first, load.last) for step in steps]
        return places

    def _places(self, load: Load) -> list[int]:
        """The steps that compute the address of a load, of each instruction that makes it."""
        steps = dict[int, None]()
        for instr in load.instrs.values():
            for access in self._seen.get(id(instr), ()):
                context = self._of(access)
                place = self.place_of(load.value, context, {})
                steps[self._if_executed(place, context)] = None
        return list(steps)

    def _of(self, access: MemoryInstr) -> Context:
        """Return the facts that hold where an instruction is executed."""
        context = self._block(access.block)
        return (
            self._with(context, access.pred, not access.instr.negated) if access.pred else context
        )

    def bounds(
        self, accesses: list[Access], sizes: Mapping[str, int], parts: list[tuple[int, int]]
    ) -> Bounds:
        """The bounds of a closed kernel whose instructions make these accesses, and that reads
        these parts of its parameters. `sizes`: bytes of variables."""
        reached = list[Reached]()
        unknown = {Use.READ: set[int](), Use.WRITTEN: set[int]()}
        lost = Use(0)
        for access in accesses:
            found = self._reached(access) if access.words or access.slots else []
            for each in found or ():
                reached.append(each)
            if found is None:
                for use in sides_of(access.use):
                    unknown[use] |= set(access.words)
                    lost |= use if access.slots else Use(0)
        words = {word for access in accesses for word in access.words}
        read, written = words - unknown[Use.READ], words - unknown[Use.WRITTEN]
        bounded = (Use.READ | Use.WRITTEN) & ~lost
        kept = {r for r in reached if r.slots or (read | written) & set(r.words)}
        return _pruned(
            Bounds(
                tuple(self.steps.steps),
                tuple(sorted(kept)),
                tuple(sorted(read)),
                tuple(sorted(written)),
                _inside(self._seen, accesses, sizes),
                tuple(slot._replace(bounded=int(bounded)) for slot in self._slots),
                tuple(self._loads),
                tuple(parts),
            )
        )

    def _reached(self, access: Access) -> list[Reached] | None:
        """The ranges of an access; None: unknown."""
        size, reached = bytes_of(access.instr), []
        offset = memory_of(access.instr)[access.place].offset
        for seen in self._seen.get(id(access.instr), ()):
            context = self._of(seen)
            try:
                step = self.range(seen.bases[access.place], context, {})
                step = self._if_executed(step, context)
            except TooLong:
                return None
            if not size or self._is_any(step) or self.visits >= VISITS_MAX:
                return None
            reached.append(Reached(step, access.use, offset, size, access.words, access.slots))
        return reached


def memory_of(instr: Instr) -> list[Mem]:
    return [a for a in instr.args if isinstance(a, Mem)]


def bytes_of(instr: Instr) -> int:
    """The number of bytes that an instruction accesses at each of its addresses; 0: unknown."""
    op = instr.op
    if op[0] in ("ld", "ldu", "st", "atom", "red"):
        items = [len(a.items) for a in instr.args if isinstance(a, Vec)]
        return TYPE_BYTES.get(op[-1], 0) * max(items, default=1)
    size = instr.args[2] if len(instr.args) > 2 else None
    if op[:2] == ("cp", "async") and not {"bulk", "reduce", "mbarrier"} & set(op):
        return size.value if isinstance(size, Int) else 0
    return 0


def _pruned(bounds: Bounds) -> Bounds:
    """Remove steps that are not needed, and combine accesses with one address."""
    together: dict[tuple[int, int, tuple[int, ...], tuple[int, ...]], tuple[int, int]] = {}
    for r in bounds.reached:
        key = (r.step, r.use, r.words, r.slots)
        low, high = together.get(key, (r.offset, r.offset + r.bytes))
        together[key] = (min(low, r.offset), max(high, r.offset + r.bytes))
    needed = set[int]()
    todo = [key[0] for key in together] + [slot.step for slot in bounds.slots]
    todo += [step for step, _ in bounds.loads]
    while todo:
        number = todo.pop()
        if number not in needed:
            needed.add(number)
            todo += operands_of(bounds.steps[number])
    order = sorted(needed)
    place = {old: new for new, old in enumerate(order)}
    steps = []
    for number in order:
        step, used = bounds.steps[number], operands_of(bounds.steps[number])
        moved = [place[n] for n in used] + [0] * (3 - len(used))
        steps.append(step._replace(a=moved[0], b=moved[1], c=moved[2]))
    reached = tuple(
        Reached(place[step], use, low, high - low, words, slots)
        for (step, use, words, slots), (low, high) in together.items()
    )
    return replace(
        bounds,
        steps=tuple(steps),
        reached=reached,
        slots=tuple(slot._replace(step=place[slot.step]) for slot in bounds.slots),
        loads=tuple((place[step], size) for step, size in bounds.loads),
    )
