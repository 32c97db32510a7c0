"""The library that joins devices, for engines of several devices in one process.

It adds in the order of a ring, which is not the tree's; it is as slow as it wants, and each step of
it may fail. Members that do not make the same calls in the same order fail the test.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

BUSY, OPENED, NAMED, CONNECTED, FAILED = range(5)  # enum hal_link_state
SLOTS, SLOT = 4, 4 << 20
LINKS = 1 << 63  # here and above is memory of links
VERSION = 22703


@dataclass(frozen=True)
class Wishes:
    """Which devices have such a library; those whose calls fail, and at which step; versions and
    GPUs that are not those of the others."""

    allowed: bool = True
    none: frozenset[int] = frozenset()
    fails: dict[int, int] = field(default_factory=dict)  # device: the state that is not reached
    versions: dict[int, int] = field(default_factory=dict)
    gpus: dict[int, int] = field(default_factory=dict)


NO_LINKS = Wishes(allowed=False)


class World:
    """The members of one id."""

    def __init__(self, members: int) -> None:
        self.members = members
        self.links: dict[int, Link] = {}

    def whole(self) -> bool:
        return len(self.links) == self.members


class Link:
    def __init__(self, device: Any, number: int) -> None:
        self.device, self.number = device, number
        self.state, self.text, self.id = BUSY, "", bytes(128)
        self.address = LINKS + number * SLOTS * SLOT
        self.world: World | None = None
        self.calls: list[tuple[int, int, int, int]] = []
        self.computed = self.done = 0
        self.closed = self.now = False


class Links:
    """The links of one device, by number; each change is seen at some time."""

    worlds: dict[bytes, World]

    def __init__(self, device: Any, number: int) -> None:
        self.device, self.number = device, number
        self.open: dict[int, Link] = {}
        self.memory: dict[int, Any] = {}
        self.decided: list[tuple[int, int, str]] = []
        self.used = 0  # sums

    @property
    def cluster(self) -> Any:
        return self.device.cluster

    def _link(self, pointer: Any) -> Link:
        return self.open[int(self.cluster.ffi.cast("uintptr_t", pointer))]

    def _reach(self, link: Link, state: int) -> None:
        """At some time; or the call fails."""

        def over() -> None:
            if link.closed or link.now:
                return
            link.state = state
            if self.cluster.links.fails.get(self.number) == state:
                link.state, link.text = FAILED, f"device {self.number} does not get to {state}"
            self._turn()

        self.cluster.due.append(over)

    def break_all(self, text: str) -> None:
        for link in list(self.open.values()):
            link.state, link.text = FAILED, text
        self._turn()

    def _turn(self) -> None:
        self.cluster.lib.coll_links_turn(self.device.coll)

    def on_link_open(self, _: Any, text: Any, size: int) -> Any:
        self.cluster.opened += 1
        link = Link(self, self.cluster.opened)
        self.open[link.number] = link
        self._reach(link, OPENED)
        return self.cluster.ffi.cast("struct hal_link *", link.number)

    def on_link_state(self, _: Any, pointer: Any, facts: Any, done: Any) -> int:
        link = self._link(pointer)
        wishes = self.cluster.links
        if facts:
            facts.version = wishes.versions.get(self.number, VERSION)
            gpu = wishes.gpus.get(self.number, self.number)
            facts.gpu = gpu.to_bytes(16, "little")
            facts.id = link.id
            facts.memory = link.address
            facts.text = link.text.encode()
        if done:
            done[0] = link.done
        return link.state

    def on_link_name(self, _: Any, pointer: Any) -> None:
        link = self._link(pointer)
        assert link.state == OPENED
        self.cluster.opened += 1
        link.id = self.cluster.opened.to_bytes(128, "little")
        self._reach(link, NAMED)

    def on_link_connect(self, _: Any, pointer: Any, id_: Any, members: int, member: int) -> None:
        link = self._link(pointer)
        name = bytes(self.cluster.ffi.buffer(id_, 128))
        assert link.world is None and link.state in (OPENED, NAMED) and any(name)
        world = self.cluster.worlds.setdefault(name, World(members))
        assert world.members == members and member < members and member not in world.links
        block = self.cluster.ffi.new("uint8_t[]", SLOTS * SLOT)
        self.memory[link.address] = (block, SLOTS * SLOT)
        link.world = world
        if self.cluster.links.fails.get(self.number) == CONNECTED:
            self._reach(link, CONNECTED)
            return  # the others wait
        world.links[member] = link
        if world.whole():
            for each in world.links.values():
                each.device._reach(each, CONNECTED)

    def on_link_sum(self, _: Any, pointer: Any, addr: int, count: int, dtype: int, op: int) -> None:
        link = self._link(pointer)
        assert link.state == CONNECTED and len(link.calls) - link.done < SLOTS and op < 4
        assert (addr - link.address) % SLOT == 0 and 0 <= addr - link.address < SLOTS * SLOT
        link.calls.append((addr, count, dtype, op))
        self.cluster.due.append(lambda: self._compute(link))

    def _compute(self, link: Link) -> None:
        """The next sum of all members, if all have called it; each one's end is seen later."""
        world = link.world
        assert world
        links = [world.links[i] for i in range(world.members)]
        number = link.computed
        if any(len(each.calls) <= number for each in links) or any(each.now for each in links):
            return
        assert len({each.calls[number][1:] for each in links}) == 1, "members differ"
        _, count, dtype, op = link.calls[number]
        parts = [each.device.array(each.calls[number][0], count, dtype) for each in links]
        results = [ring([part.copy() for part in parts], op)] * len(links)
        for each, part, result in zip(links, parts, results, strict=True):
            part[:] = result
            each.computed += 1
            self.cluster.due.append(lambda each=each: each.device._finish(each))

    def array(self, addr: int, count: int, dtype: int) -> Any:
        return self.device._array((0, addr), count, dtype)

    def _finish(self, link: Link) -> None:
        if link.now or link.done == link.computed:
            return
        link.done += 1
        self.used += 1
        self._turn()

    def on_link_cancel(self, _: Any, pointer: Any) -> None:
        """Its memory stays: work that was submitted may use it."""
        link = self._link(pointer)
        link.now, link.state, link.text = True, FAILED, "it was cancelled"

    def on_link_close(self, _: Any, pointer: Any, now: bool) -> None:
        link = self._link(pointer)
        assert now or link.done == len(link.calls)
        link.closed, link.now = True, now
        del self.open[link.number]
        self.memory.pop(link.address, None)

    def on_link_decided(self, _: Any, nranks: int, version: int, why: Any) -> None:
        words = self.cluster.ffi.string(why).decode()
        self.decided.append((nranks, version, words))


def ring(parts: list[Any], op: int) -> Any:
    """Range c of the elements begins with member c."""
    function = {0: np.add, 1: np.multiply, 2: np.maximum, 3: np.minimum}[op]
    n, count = len(parts), len(parts[0])
    size = -(-count // n)
    result = np.empty_like(parts[0])
    for first in range(n):
        span = slice(first * size, (first + 1) * size)
        total = parts[first][span].copy()
        for i in range(1, n):
            with np.errstate(all="ignore"):
                total = function(total, parts[(first + i) % n][span])
        result[span] = total
    return result
