"""A simulated job that drives the proxies' own barrier.c, in any order of events.

Ranks run programs (lists of records). Devices, message queues, streams and clients take turns by
weights that a seed chooses, so some are very slow. Nothing here decides anything about the cut:
the simulation only obeys the answers of the transition function and keeps its own books, against
which `check_cut` holds them.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

STEADY, STOPPING, CUT = 0, 1, 2


class Violation(AssertionError):
    """A property of the barrier does not hold."""


@dataclass(frozen=True)
class Work:
    """A launch: keeps the rank busy for a while."""


@dataclass(frozen=True)
class Sync:
    """The client waits for all earlier work before it sends more."""


@dataclass(frozen=True)
class Round:
    """One collective on one communicator."""

    key: int
    signature: int = 0


@dataclass(frozen=True)
class Transfer:
    """A send or a receive between two ranks on one communicator."""

    src: int
    dst: int

    @property
    def key(self) -> int:
        return 1_000_000 + self.src * 1000 + self.dst


@dataclass(frozen=True)
class Group:
    """The operations of one outermost group."""

    parts: tuple[Round | Transfer, ...]


@dataclass(frozen=True)
class Init:
    """Joins a communicator, through a unique id or (parent) by a split of another one."""

    key: int
    members: tuple[int, ...]
    parent: int = 0


@dataclass(frozen=True)
class Destroy:
    key: int


Record = Work | Sync | Group | Init | Destroy


@dataclass
class Rank:
    number: int
    device: int
    program: list[Record]
    at: int = 0
    work: int = 0
    syncing: bool = False
    joining: set[int] = field(default_factory=set)
    pending: dict[int, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    issued: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    rounds: int = 0  # collectives issued
    exited: bool = False

    @property
    def busy(self) -> bool:
        return bool(self.work or self.syncing or self.joining or any(self.pending.values()))


class World:
    """One job: ranks on devices, each device with its barrier."""

    def __init__(self, native: tuple[Any, Any], programs: list[list[Record]],
                 placement: list[int], device_count: int, seed: int) -> None:  # fmt: skip
        self.ffi, self.lib = native
        self.random = random.Random(seed)
        self.ranks = [Rank(n, placement[n], p) for n, p in enumerate(programs)]
        self.devices = device_count
        where = self.ffi.new("uint32_t[]", placement)
        self.barriers = [self.lib.barrier_new(d, device_count, len(programs), where)
                         for d in range(device_count)]  # fmt: skip
        self.queues: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.members: dict[int, tuple[int, ...]] = {}
        self.joined: dict[int, set[int]] = defaultdict(set)
        self.announce: list[tuple[int, Init]] = []
        self.slow = [0.02, 0.2, 1.0, 1.0, 5.0]
        self.weights: dict[Any, float] = {}
        self.steps = 0
        self.may_hurry = True
        for d in range(device_count):
            self._collect(d)

    def close(self) -> None:
        for b in self.barriers:
            self.lib.barrier_free(b)

    # ---- what the proxy's loop does

    def _barrier(self, rank: Rank) -> Any:
        return self.barriers[rank.device]

    def _collect(self, device: int) -> bool:
        """Tells what changed and takes the messages, as the loop does every turn. Any?"""
        taken = False
        b = self.barriers[device]
        for r in self.ranks:
            if r.device == device and not r.exited:
                self.lib.barrier_idle(b, r.number, not r.busy)
        m = self.ffi.new("struct barrier_message *")
        while self.lib.barrier_next_message(b, m):
            copy = self.ffi.new("struct barrier_message *", m[0])
            self.queues[(device, m.to)].append(copy)
            taken = True
        error = self.lib.barrier_error(b)
        if error != self.ffi.NULL:
            raise Violation(self.ffi.string(error).decode())
        return taken

    def _may(self, rank: Rank, parts: tuple[Round | Transfer, ...]) -> bool:
        b = self._barrier(rank)
        for p in parts:
            if isinstance(p, Transfer):
                self.lib.barrier_pair(b, rank.number, p.key, p.src, p.dst)
                self.members[p.key] = (p.src, p.dst)
        keys = sorted(p.key for p in parts)
        return all(self.lib.barrier_may_issue(b, rank.number, k) for k in keys)

    def _issue(self, rank: Rank, part: Round | Transfer) -> None:
        self.lib.barrier_issue(self._barrier(rank), rank.number, part.key,
                               part.signature if isinstance(part, Round) else 0)  # fmt: skip
        rank.issued[part.key] += 1
        if isinstance(part, Round):
            rank.rounds += 1
        if isinstance(part, Round) or part.dst == rank.number:
            rank.pending[part.key].append(rank.issued[part.key])

    def consume(self, rank: Rank) -> bool:
        """The server looks at the rank's next record. True: something moved."""
        b = self._barrier(rank)
        if rank.exited or rank.syncing or rank.joining:
            return False
        if rank.at == len(rank.program):
            if rank.busy:
                return False
            rank.exited = True
            self.lib.barrier_exited(b, rank.number)
            return True
        if not self.lib.barrier_may_consume(b, rank.number):
            return False
        record = rank.program[rank.at]
        if isinstance(record, Group):
            if not self._may(rank, record.parts):
                return False
            for part in sorted(record.parts, key=lambda p: p.key):
                self._issue(rank, part)
        elif isinstance(record, Init):
            if not self._join(rank, record):
                return False
        elif isinstance(record, Destroy):
            self.lib.barrier_comm_gone(b, rank.number, record.key)
        elif isinstance(record, Sync):
            rank.syncing = rank.busy
        else:
            rank.work += 1
        if self.lib.barrier_state(b) == CUT:
            raise Violation(f"rank {rank.number} was consumed at the cut")
        rank.at += 1
        return True

    def _join(self, rank: Rank, record: Init) -> bool:
        b = self._barrier(rank)
        if not self.lib.barrier_may_issue(b, rank.number, record.parent):
            return False
        if record.parent:
            self._issue(rank, Round(record.parent, 7))
        else:
            self.lib.barrier_joining(b, rank.number, record.key, len(record.members))
        rank.joining.add(record.key)
        self.joined[record.key].add(rank.number)
        self.members[record.key] = record.members
        if len(self.joined[record.key]) == len(record.members):
            self.announce += [(m, record) for m in record.members]
        return True

    def complete(self, rank: Rank) -> bool:
        """One thing of the rank's streams comes to its end."""
        if rank.work and self.random.random() < 0.5:
            rank.work -= 1
            return True
        for key, waiting in rank.pending.items():
            if waiting and self._resolved(key, waiting[0]):
                waiting.popleft()
                if key < 1_000_000:  # a receive is nobody's meta-allreduce
                    self.lib.barrier_complete(self._barrier(rank), rank.number, key)
                return True
        if rank.work:
            rank.work -= 1
            return True
        if rank.syncing and not any(rank.pending.values()):
            rank.syncing = False
            return True
        return False

    def _resolved(self, key: int, number: int) -> bool:
        if key >= 1_000_000:  # a receive: the send is there
            return self.ranks[self.members[key][0]].issued[key] >= number
        return all(self.ranks[m].issued[key] >= number for m in self.members[key])

    def _announce(self) -> bool:
        if not self.announce:
            return False
        which = self.random.randrange(len(self.announce))
        number, record = self.announce.pop(which)
        rank = self.ranks[number]
        members = self.ffi.new("uint32_t[]", list(record.members))
        self.lib.barrier_comm(self._barrier(rank), number, record.key, members,
                              len(record.members), 0)  # fmt: skip
        rank.joining.discard(record.key)
        self._collect(rank.device)
        return True

    def deliver_all(self, sender: int, to: int) -> None:
        while self._deliver((sender, to)):
            pass

    def _deliver(self, pair: tuple[int, int]) -> bool:
        if not self.queues[pair]:
            return False
        self.lib.barrier_receive(self.barriers[pair[1]], self.queues[pair].popleft())
        self._collect(pair[1])
        return True

    # ---- turns

    def _actors(self) -> list[Any]:
        actors: list[Any] = [("announce",)] if self.announce else []
        actors += [("deliver", p) for p, q in self.queues.items() if q]
        for r in self.ranks:
            if not r.exited:
                actors += [("consume", r.number), ("complete", r.number)]
        return actors

    def _act(self, actor: Any) -> bool:
        if actor[0] == "deliver":
            return self._deliver(actor[1])
        if actor[0] == "announce":
            return self._announce()
        rank = self.ranks[actor[1]]
        moved = self.consume(rank) if actor[0] == "consume" else self.complete(rank)
        return self._collect(rank.device) or moved

    def step(self) -> bool:
        """One event. False: nothing can happen any more."""
        actors = self._actors()
        while actors:
            weights = [self.weights.setdefault(a, self.random.choice(self.slow)) for a in actors]
            actor = self.random.choices(actors, weights)[0]
            if self._act(actor):
                self.steps += 1
                return True
            actors.remove(actor)
        return False

    # ---- what is seen from outside

    def state(self, device: int) -> int:
        return int(self.lib.barrier_state(self.barriers[device]))

    @property
    def at_cut(self) -> bool:
        return all(self.state(d) == CUT for d in range(self.devices))

    @property
    def cuts(self) -> int:
        """The number of the last cut any device has heard of."""
        return max(int(self.lib.barrier_round(b)) for b in self.barriers)

    @property
    def over(self) -> bool:
        return all(r.exited for r in self.ranks)

    @property
    def catch_up(self) -> int:
        return sum(int(self.lib.barrier_catch_up(b)) for b in self.barriers)

    def request(self, device: int) -> None:
        self.lib.barrier_request(self.barriers[device])
        self._collect(device)

    def withdraw(self, device: int) -> None:
        self.lib.barrier_withdraw(self.barriers[device])
        self._collect(device)

    def release(self, device: int) -> None:
        self.lib.barrier_release(self.barriers[device])
        self._collect(device)

    def hurry(self) -> None:
        for d in range(self.devices):
            self.lib.barrier_hurry(self.barriers[d])
            self._collect(d)

    def check_cut(self) -> None:
        """Everyone stands at the same round of each communicator, with nothing in flight."""
        for r in self.ranks:
            if r.busy:
                raise Violation(f"rank {r.number} has something in flight at the cut: {r}")
        for key, members in self.members.items():
            counts = {m: self.ranks[m].issued[key] for m in members}
            if len(set(counts.values())) > 1:
                raise Violation(f"the cut is not consistent on communicator {key}: {counts}")
            if 0 < len(self.joined[key]) < len(members):
                raise Violation(f"communicator {key} is half joined at the cut")
