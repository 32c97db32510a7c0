"""Programs that a proxy runs at each launch, to compute the range of a value in the kernel.

The result of a step is a range: all whole numbers from a lowest to a highest, perhaps relative to a
word of the parameters; or anything; or empty, for code that is never executed. A register of n bits
contains one of them, modulo 2^n. proxy/core/rank/bounds.c runs these steps; proxy/core/proxy.h
describes each.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rankfold import plural

from .arithmetic import Use

STEPS_MAX = 8192  # BOUND_STEPS_MAX


class Op(enum.IntEnum):
    """enum proxy_step_op"""

    ANY = 0
    NUMBER = 1
    UP_TO = 2
    PARAMETER = 3
    SPECIAL = 4
    AS = 5
    ADD = 6
    SUBTRACT = 7
    MULTIPLY = 8
    SHIFT_UP = 9
    SHIFT_DOWN = 10
    AND = 11
    OR = 12
    XOR = 13
    DIVIDE = 14
    REST = 15
    LEAST = 16
    MOST = 17
    JOIN = 18
    BOTH = 19
    BELOW = 20
    AT_MOST = 21
    ABOVE = 22
    AT_LEAST = 23
    EQUAL = 24
    OTHER = 25
    RISING = 26
    FALLING = 27
    LOOP = 28
    TURNS = 29
    STRIDE = 30
    IF = 31
    IF_SIGNED = 32
    DIVISOR = 33
    PLACE = 34
    FETCH = 35
    PART = 36


SPECIAL_NAMES = [f"{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]


class Sign(enum.IntEnum):
    """How the bits of operands are read."""

    NONE = 0
    SIGNED = 1
    UNSIGNED = 2


_OPERANDS = {
    0: (Op.ANY, Op.NUMBER, Op.UP_TO, Op.PARAMETER, Op.SPECIAL, Op.PLACE),
    1: (Op.AS, Op.FETCH),
    3: (Op.RISING, Op.FALLING, Op.LOOP, Op.TURNS, Op.STRIDE, Op.DIVISOR, Op.PART),
}
_COUNT = {op: count for count, ops in _OPERANDS.items() for op in ops}


class Step(NamedTuple):
    """struct proxy_step. a, b, c: numbers of earlier steps."""

    op: int
    bits: int
    sign: int
    a: int
    b: int
    c: int
    number: int


class Reached(NamedTuple):
    """Accesses to `bytes` bytes at `offset` from the address that a step computes.

    struct proxy_reached. `words`, `slots`: offsets of the words, and numbers of the slots, through
    which it may be; `use`: Use.
    """

    step: int
    use: int
    offset: int
    bytes: int
    words: tuple[int, ...]
    slots: tuple[int, ...] = ()


class Slot(NamedTuple):
    """A load of a word whose place among the parameters a step computes: struct proxy_slot.

    `first`, `last`: offsets of the words of its parameter; `bounded`: the uses whose bounds are
    known.
    """

    step: int
    use: int
    bounded: int
    first: int
    last: int

    def may_be(self, word: int) -> bool:
        return self.first <= word <= self.last and (word - self.first) % 8 == 0


@dataclass(frozen=True)
class Bounds:
    """The bounds of a kernel's accesses.

    Reads through the words in `read`, and writes through the words in `written`, are within
    `reached`; those through other words may be anywhere. Likewise, accesses to the variables
    `inside` are within them. Of its parameters it reads `parts`, each an offset and a number of
    bytes, and `loads`, each a step and a number of bytes; without any of both, it may read all.
    """

    steps: tuple[Step, ...] = ()
    reached: tuple[Reached, ...] = ()
    read: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    inside: tuple[str, ...] = ()
    slots: tuple[Slot, ...] = ()
    loads: tuple[tuple[int, int], ...] = ()
    parts: tuple[tuple[int, int], ...] = ()

    def plain(self) -> dict[str, list[Any]]:
        """The content as JSON."""
        return {
            "steps": [list(s) for s in self.steps],
            "read": list(self.read),
            "written": list(self.written),
            "inside": list(self.inside),
            "reached": [[*r[:4], list(r.words), list(r.slots)] for r in self.reached],
            "slots": [list(s) for s in self.slots],
            "loads": [list(each) for each in self.loads],
            "parts": [list(each) for each in self.parts],
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, list[Any]]) -> Bounds:
        return cls(
            tuple(Step(*map(int, step)) for step in plain["steps"]),
            tuple(
                Reached(int(a), int(b), int(c), int(d), tuple(words), tuple(slots))
                for a, b, c, d, words, slots in plain["reached"]
            ),
            tuple(map(int, plain["read"])),
            tuple(map(int, plain["written"])),
            tuple(map(str, plain["inside"])),
            tuple(Slot(*map(int, slot)) for slot in plain["slots"]),
            tuple((int(step), int(size)) for step, size in plain["loads"]),
            tuple((int(offset), int(size)) for offset, size in plain["parts"]),
        )

    def uses(self, word: int) -> int:
        """The uses of a word whose bounds are known: Use.READ, Use.WRITTEN."""
        return (word in self.read) * Use.READ | (word in self.written) * Use.WRITTEN

    def by_place(
        self, places: Mapping[int, int]
    ) -> tuple[list[tuple[int, int, int, int, int, int]], list[int]]:
        """The rows for struct proxy_reached, and the places of their words, one after another.

        Slots have the places after all words.
        """
        reached, words = [], list[int]()
        for r in self.reached:
            count = len(r.words) + len(r.slots)
            reached.append((r.step, r.use, len(words), count, r.offset, r.bytes))
            words += [places[word] for word in r.words]
            words += [len(places) + slot for slot in r.slots]
        return reached, words


class TooLong(Exception):
    """The program would have more steps than a proxy runs."""


@dataclass
class Steps:
    """A program under construction. Equal steps are stored once."""

    steps: list[Step] = field(default_factory=list)
    _known: dict[Step, int] = field(default_factory=dict)

    def add(
        self,
        op: Op,
        bits: int = 64,
        sign: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
        number: int = 0,
    ) -> int:
        """Add a step unless it exists; returns its number. Raises TooLong."""
        step = Step(op, bits, sign, a, b, c, number)
        if step not in self._known:
            if len(self.steps) >= STEPS_MAX:
                raise TooLong
            self._known[step] = len(self.steps)
            self.steps.append(step)
        return self._known[step]


def operands_of(step: Step) -> list[int]:
    return list(step[3 : 3 + _COUNT.get(Op(step.op), 2)])


def text_of(bounds: Bounds) -> list[str]:
    """The bounds for people: a line for each step and for each access."""
    lines = []
    for n, step in enumerate(bounds.steps):
        kind = f"{'bsu'[step.sign]}{step.bits}"
        operands = [f"%{number}" for number in operands_of(step)]
        if step.op in (Op.NUMBER, Op.UP_TO, Op.PARAMETER, Op.PLACE):
            operands.append(str(step.number))
        elif step.op == Op.SPECIAL:
            operands.append(SPECIAL_NAMES[step.number])
        name = Op(step.op).name.lower().replace("_", "-")
        lines.append(f"%{n} = {name}.{kind} {', '.join(operands)}".rstrip())
    for r in bounds.reached:
        how = ", ".join(name for bit, name in ((1, "read"), (2, "written")) if r.use & bit)
        places = [f"word {word}" for word in r.words] + [f"slot {slot}" for slot in r.slots]
        lines.append(
            f"{how}: {plural.count(r.bytes, 'byte')} at %{r.step}{r.offset:+} by "
            + ", ".join(places)
        )
    for n, slot in enumerate(bounds.slots):
        lines.append(f"slot {n}: the word at %{slot.step}, of {slot.first} to {slot.last}")
    return lines
