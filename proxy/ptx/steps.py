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

STEPS_MAX = 1024  # BOUND_STEPS_MAX


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


SPECIAL_NAMES = [f"{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"]


class Sign(enum.IntEnum):
    """How the bits of operands are read."""

    NONE = 0
    SIGNED = 1
    UNSIGNED = 2


_OPERANDS = {
    0: (Op.ANY, Op.NUMBER, Op.UP_TO, Op.PARAMETER, Op.SPECIAL),
    1: (Op.AS,),
    3: (Op.RISING, Op.FALLING, Op.LOOP, Op.TURNS, Op.STRIDE),
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

    struct proxy_reached. `words`: offsets of the words through which it may be; `use`: Use.
    """

    step: int
    use: int
    offset: int
    bytes: int
    words: tuple[int, ...]


@dataclass(frozen=True)
class Bounds:
    """The bounds of a kernel's accesses.

    Reads through the words in `read`, and writes through the words in `written`, are within
    `reached`; those through other words may be anywhere. Likewise, accesses to the variables
    `inside` are within them.
    """

    steps: tuple[Step, ...] = ()
    reached: tuple[Reached, ...] = ()
    read: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    inside: tuple[str, ...] = ()

    def plain(self) -> dict[str, list[Any]]:
        """The content as JSON."""
        return {
            "steps": [list(s) for s in self.steps],
            "read": list(self.read),
            "written": list(self.written),
            "inside": list(self.inside),
            "reached": [[*r[:-1], list(r.words)] for r in self.reached],
        }

    @classmethod
    def of_plain(cls, plain: Mapping[str, list[Any]]) -> Bounds:
        return cls(
            tuple(Step(*map(int, step)) for step in plain["steps"]),
            tuple(
                Reached(int(step), int(use), int(offset), int(size), tuple(map(int, words)))
                for step, use, offset, size, words in plain["reached"]
            ),
            tuple(map(int, plain["read"])),
            tuple(map(int, plain["written"])),
            tuple(map(str, plain["inside"])),
        )

    def uses(self, word: int) -> int:
        """The uses of a word whose bounds are known: Use.READ, Use.WRITTEN."""
        return (word in self.read) * Use.READ | (word in self.written) * Use.WRITTEN

    def by_place(
        self, places: Mapping[int, int]
    ) -> tuple[list[tuple[int, int, int, int, int, int]], list[int]]:
        """The rows for struct proxy_reached, and the places of their words, one after another."""
        reached, words = [], list[int]()
        for r in self.reached:
            reached.append((r.step, r.use, len(words), len(r.words), r.offset, r.bytes))
            words += [places[word] for word in r.words]
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
        operands = [f"%{at}" for at in operands_of(step)]
        if step.op in (Op.NUMBER, Op.UP_TO, Op.PARAMETER):
            operands.append(str(step.number))
        elif step.op == Op.SPECIAL:
            operands.append(SPECIAL_NAMES[step.number])
        name = Op(step.op).name.lower().replace("_", "-")
        lines.append(f"%{n} = {name}.{kind} {', '.join(operands)}".rstrip())
    for r in bounds.reached:
        how = ", ".join(name for bit, name in ((1, "read"), (2, "written")) if r.use & bit)
        words = ", ".join(map(str, r.words))
        lines.append(
            f"{how}: {plural.count(r.bytes, 'byte')} at %{r.step}{r.offset:+} by word {words}"
        )
    return lines
