"""Programs over streams, events and the host, what the check of order says of them, and what is so:
each pair of operations, by the arrows between them, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from support import native

ROOM = native.CORE / "order"
SOURCES = [ROOM / "order.c", ROOM / "clock.c"]
LEGACY, BLOCKING, FREE = range(3)
READ, ATOMIC, WRITE = range(3)
KINDS = {1: LEGACY, 2: BLOCKING, 3: BLOCKING, 4: FREE, 5: FREE}  # of the streams that begin
BYTES = 16
RACES_MAX = 32

Step = tuple[Any, ...]


class Access(NamedTuple):
    at: int
    bytes: int
    use: int
    whole: bool = True

    def within(self, other: Access) -> bool:
        return other.at <= self.at and self.at + self.bytes <= other.at + other.bytes


class Race(NamedTuple):
    """Two operations by their places in the program."""

    first: int
    second: int
    certain: bool


def load(folder: Path, changed: Path | None = None) -> Any:
    """The module under test; a changed file takes the place of the one with its name."""
    sources = [changed if changed and s.name == changed.name else s for s in SOURCES]
    library = native.build(folder, sources, "order", warnings=changed is None)
    return native.load(library, ROOM / "order.h")


def races_of(library: Any, program: Sequence[Step]) -> list[Race]:
    """The races that the check finds in a program."""
    ffi, lib = library
    found: list[Race] = []

    def report(_to: Any, race: Any) -> None:
        found.append(Race(race.first.number, race.second.number, bool(race.certain)))

    callback = ffi.callback("order_report", report)
    order = lib.order_open(callback, ffi.NULL)
    for stream, kind in KINDS.items():
        lib.order_stream(order, stream, kind)
    marks: dict[int, Any] = {}
    try:
        for number, (what, *rest) in enumerate(program):
            if what in ("run", "turn"):
                stream, accesses, *key = rest
                lib.order_operation(order, stream, b"operation %d" % number, number)
                if key:
                    lib.order_in_turn(order, stream, key[0])
                for a in accesses:
                    lib.order_access(order, a.at, a.bytes, a.use, a.whole)
            elif what == "record":
                event, stream = rest
                if event in marks:
                    lib.order_mark_free(marks[event])
                marks[event] = lib.order_mark(order, stream)
            elif what == "wait":
                stream, event = rest
                lib.order_wait(order, stream, marks.get(event, ffi.NULL))
            elif what == "see":
                lib.order_host_saw(order, marks.get(rest[0], ffi.NULL))
            elif what == "see stream":
                lib.order_host_saw_stream(order, *rest)
            elif what == "see all":
                lib.order_host_saw_all(order)
            elif what == "create":
                lib.order_stream(order, *rest)
            elif what == "destroy":
                lib.order_stream_destroyed(order, *rest)
            else:
                assert what == "forget", what
                lib.order_forget(order, *rest)
        assert lib.order_ended(order) == ffi.NULL
    finally:
        for mark in marks.values():
            lib.order_mark_free(mark)
        lib.order_close(order)
    return found


@dataclass
class Node:
    """Something in a stream; `before`: the nodes that are ordered before it, itself among them."""

    stream: int
    kind: int
    before: set[int]


@dataclass
class Model:
    """Which nodes are before which: nothing but the arrows, followed one after another."""

    nodes: list[Node] = field(default_factory=list)
    kinds: dict[int, int] = field(default_factory=lambda: dict(KINDS))
    seen: set[int] = field(default_factory=set)  # by the host
    events: dict[int, int] = field(default_factory=dict)  # the node of the last record
    turns: dict[int, int] = field(default_factory=dict)
    operations: dict[int, tuple[int, list[tuple[Access, set[int]]]]] = field(default_factory=dict)

    def put(self, stream: int, *behind: int) -> int:
        """A node in a stream."""
        kind, number = self.kinds[stream], len(self.nodes)
        arrows = list(behind)
        for n, node in enumerate(self.nodes):
            if (
                node.stream == stream
                or (kind == LEGACY and node.kind == BLOCKING)
                or (kind == BLOCKING and node.kind == LEGACY)
            ):
                arrows.append(n)
        before = {number} | self.seen
        for n in arrows:
            before |= self.nodes[n].before
        self.nodes.append(Node(stream, kind, before))
        return number

    def step(self, number: int, what: str, *rest: Any) -> None:
        if what in ("run", "turn"):
            stream, accesses, *key = rest
            behind = [self.turns[k] for k in key if k in self.turns]
            node = self.put(stream, *behind)
            self.turns.update(dict.fromkeys(key, node))
            there = [(a, set(range(a.at, a.at + a.bytes))) for a in accesses]
            self.operations[number] = (node, there)
        elif what == "record":
            event, stream = rest
            self.events[event] = self.put(stream)
        elif what == "wait":
            stream, event = rest
            if event in self.events:
                self.put(stream, self.events[event])
        elif what == "see":
            if rest[0] in self.events:
                self.seen |= self.nodes[self.events[rest[0]]].before
        elif what == "see stream":
            kind = self.kinds[rest[0]]
            for each in self.nodes:
                if each.stream == rest[0] or (kind == LEGACY and each.kind == BLOCKING):
                    self.seen |= each.before
        elif what == "see all":
            self.seen = set(range(len(self.nodes)))
        elif what == "create":
            self.kinds[rest[0]] = rest[1]
        elif what == "destroy":
            pass
        else:
            at, count = rest
            for _node, there in self.operations.values():
                for _access, left in there:
                    left -= set(range(at, at + count))

    def races(self, second: int) -> tuple[set[Race], bool]:
        """Races of the newest operation with all earlier ones; and whether one is between two
        accesses that both have no gaps."""
        found: set[Race] = set()
        whole = False
        node, mine = self.operations[second]
        for first, (other, theirs) in self.operations.items():
            if first == second or other in self.nodes[node].before:
                continue
            for x, x_left in theirs:
                for y, y_left in mine:
                    if x_left & y_left and (x.use != y.use or x.use == WRITE):
                        certain = (
                            (x.whole and y.whole)
                            or (x.whole and y.within(x))
                            or (y.whole and x.within(y))
                        )
                        found.add(Race(first, second, certain))
                        whole |= x.whole and y.whole
        return found, whole


def expected_races(program: Sequence[Step]) -> dict[int, tuple[set[Race], bool]]:
    """For each operation that races with an earlier one: as `Model.races`."""
    model, found = Model(), {}
    for number, (what, *rest) in enumerate(program):
        model.step(number, what, *rest)
        if what in ("run", "turn") and (races := model.races(number))[0]:
            found[number] = races
    return found


def check(library: Any, program: Sequence[Step]) -> None:
    """All that is reported is so; and what races with something older is reported, with one of
    these."""
    says, is_so = races_of(library, program), expected_races(program)
    for race in says:
        there = is_so.get(race.second, (set(), False))[0]
        assert race in there or (not race.certain and race._replace(certain=True) in there), race
    assert len(set(says)) == len(says)
    if max(sum(r.certain == c for r in says) for c in (True, False)) == RACES_MAX:
        return
    assert {race.second for race in says} == set(is_so)
    certain = {race.second for race in says if race.certain}
    assert certain >= {second for second, (_races, whole) in is_so.items() if whole}
