"""A simulated job that drives the proxies' own barrier.c, in any order of events.

Ranks run programs (lists of records). Devices, message queues, streams and clients take turns by
weights that a seed chooses, so some are very slow. Nothing here decides anything about the cut:
the simulation only obeys the answers of the transition function and keeps its own books, against
which `check_cut` holds them.

A rank may abort a communicator at any moment, also while it waits for it. Operations that others
have begun there may never complete; each of them hears of the abort at some moment, and aborts,
too, if it waits for an operation that never completes.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

STEADY, STOPPING, CUT = 0, 1, 2
WORLD = 1  # the communicator of all sends
PAIRS = 1_000_000  # keys of channels between two ranks begin here


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
        return PAIRS + self.src * 1000 + self.dst


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


def comm_of(key: int) -> int:
    return WORLD if key >= PAIRS else key


@dataclass(eq=False)
class Gathering:
    """Ranks that join one communicator, or split one. Refused to all once one gives it up."""

    parent: int
    members: tuple[int, ...]  # that must call it
    called: dict[int, Init] = field(default_factory=dict)
    refused: bool = False

    @property
    def complete(self) -> bool:
        return len(self.called) == len(self.members)


@dataclass
class Rank:
    number: int
    device: int
    program: list[Record]
    at: int = 0
    work: int = 0
    syncing: bool = False
    joining: dict[int, Gathering] = field(default_factory=dict)  # by communicator
    joined: set[int] = field(default_factory=set)
    without: set[int] = field(default_factory=set)  # aborted, or joining them was refused
    heard: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))  # who aborted it
    ending: list[int] = field(default_factory=list)  # aborted operations, by key
    pending: dict[int, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    issued: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    rounds: int = 0  # collectives issued
    exited: bool = False

    @property
    def busy(self) -> bool:
        waits = self.work or self.syncing or self.joining or self.ending
        return bool(waits or any(self.pending.values()))

    def keys(self, comm: int, others: Iterable[int]) -> list[int]:
        """The barrier's keys of one communicator: its own, and of channels with these ranks."""
        pairs = [(self.number, o) for o in others if o != self.number] if comm == WORLD else []
        return [comm, *(Transfer(*p).key for p in pairs), *(Transfer(b, a).key for a, b in pairs)]


class World:
    """One job: ranks on devices, each device with its barrier."""

    def __init__(
        self,
        native: tuple[Any, Any],
        programs: list[list[Record]],
        placement: list[int],
        device_count: int,
        seed: int,
    ) -> None:
        self.ffi, self.lib = native
        self.random = random.Random(seed)
        self.ranks = [Rank(n, placement[n], p) for n, p in enumerate(programs)]
        self.devices = device_count
        self.on_device = [[r for r in self.ranks if r.device == d] for d in range(device_count)]
        where = self.ffi.new("uint32_t[]", placement)
        self.barriers = [
            self.lib.barrier_new(d, device_count, len(programs), where) for d in range(device_count)
        ]
        self.queues: dict[tuple[int, int], deque[Any]] = defaultdict(deque)
        self.members: dict[int, tuple[int, ...]] = {}
        self.gatherings: dict[tuple[int, int], Gathering] = {}
        self.announce: list[tuple[int, Gathering]] = []
        self.aborts: list[tuple[int, int]] = []  # that happen at some moment: rank, communicator
        self.news: list[tuple[int, int, int]] = []  # rank, communicator, who has aborted it
        self.limits: dict[int, int] = {}  # from this number on a round may never complete
        self.lost: dict[tuple[int, int, int], bool] = {}  # does it? rank, key, number
        self.given_up: set[int] = set()  # where a split was complete before all had called it
        self.slow = [0.02, 0.2, 1.0, 1.0, 5.0]
        self.weights: dict[Any, float] = {}
        self.message = self.ffi.new("struct barrier_message *")
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
        for r in self.on_device[device]:
            if not r.exited:
                self.lib.barrier_idle(b, r.number, not r.busy)
        m = self.message
        while self.lib.barrier_next_message(b, m):
            copy = self.ffi.new("struct barrier_message *", m[0])
            self.queues[(device, m.to)].append(copy)
            taken = True
        error = self.lib.barrier_error(b)
        if error == self.ffi.NULL:
            error = self.lib.barrier_invalid(b)
        if error != self.ffi.NULL:
            raise Violation(self.ffi.string(error).decode())
        return taken

    def _may(self, rank: Rank, parts: tuple[Round | Transfer, ...]) -> bool:
        b = self._barrier(rank)
        for p in parts:
            if isinstance(p, Transfer):
                self.lib.barrier_pair(b, rank.number, p.key, p.src, p.dst)
                self.members[p.key] = (p.src, p.dst)
                if rank.heard[WORLD] & {p.src, p.dst}:
                    self.lib.barrier_broken(b, rank.number, p.key)
        keys = sorted(p.key for p in parts)
        return all(self.lib.barrier_may_issue(b, rank.number, k) for k in keys)

    def _issue(self, rank: Rank, part: Round | Transfer) -> None:
        self.lib.barrier_issue(
            self._barrier(rank),
            rank.number,
            part.key,
            part.signature if isinstance(part, Round) else 0,
        )
        rank.issued[part.key] += 1
        if isinstance(part, Round):
            rank.rounds += 1
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
            parts = tuple(p for p in record.parts if comm_of(p.key) not in rank.without)
            if not self._may(rank, parts):
                return False
            for part in sorted(parts, key=lambda p: p.key):
                self._issue(rank, part)
        elif isinstance(record, Init):
            if record.parent in rank.without:
                rank.without.add(record.key)
            elif not self._join(rank, record):
                return False
        elif isinstance(record, Destroy):
            if record.key not in rank.without:
                self.lib.barrier_comm_end(b, rank.number, record.key)
                rank.joined.discard(record.key)
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
        number = 0
        if record.parent:
            self._issue(rank, Round(record.parent, 7))
            number = rank.pending[record.parent].pop()  # complete when it has joined
        else:
            self.lib.barrier_joining(b, rank.number, record.key, len(record.members))
        who = self.members[record.parent] if record.parent else record.members
        new = Gathering(record.parent, who)
        g = self.gatherings.setdefault((record.parent or record.key, number), new)
        g.called[rank.number] = record
        rank.joining[record.key] = g
        self.members[record.key] = record.members
        if g.refused:
            self.announce.append((rank.number, g))
        elif g.complete:
            self.announce += [(m, g) for m in g.members]
        return True

    def _joins(self, rank: Rank, key: int) -> None:
        """It waits no longer to join: what the barrier counts of that ends."""
        if parent := rank.joining.pop(key).parent:
            if key in rank.without:
                self.given_up.add(parent)
            self.lib.barrier_complete(self._barrier(rank), rank.number, parent)
        elif key in rank.without:
            self.lib.barrier_comm_end(self._barrier(rank), rank.number, key)

    # ---- aborts

    def abort(self, rank: Rank, comm: int) -> bool:
        """Its client requests it, at any moment; at a cut it waits."""
        b = self._barrier(rank)
        here = comm in rank.joined or comm in rank.joining
        if not here or rank.exited or self.lib.barrier_state(b) == CUT:
            return False
        if not self.lib.barrier_may_consume(b, rank.number) and not rank.busy:
            return False
        rank.without.add(comm)
        for child in [c for c, g in rank.joining.items() if comm in (c, g.parent)]:
            rank.without.add(child)
            self._gives_up_joining(rank, child)
        if comm in rank.joined:
            rank.joined.discard(comm)
            self._leaves(rank, comm)
        return True

    def abort_now(self, number: int, comm: int) -> bool:
        rank = self.ranks[number]
        return self.abort(rank, comm) and (self._collect(rank.device) or True)

    def _gives_up_joining(self, rank: Rank, key: int) -> None:
        g = rank.joining[key]
        self._joins(rank, key)
        if g.complete and not g.refused:
            self._leaves(rank, key)  # all had called: it has joined, and has left at once
        elif not g.refused:
            g.refused = True
            self.announce += [(m, g) for m in g.called]
        self.announce = [a for a in self.announce if a != (rank.number, g)]

    def _leaves(self, rank: Rank, comm: int) -> None:
        members = self.members[comm]
        for key in rank.keys(comm, members):
            self.lib.barrier_abort(self._barrier(rank), rank.number, key)
            waiting = rank.pending.pop(key, deque())
            rank.ending += [key] * len(waiting)
            if key < PAIRS or self.members.get(key, (None,))[0] == rank.number:
                first = waiting[0] if waiting else rank.issued[key] + 1
                self.limits[key] = min(first, self.limits.get(key, first))
        self.news += [(m, comm, rank.number) for m in members if m != rank.number]

    def hear(self, rank: Rank, comm: int, by: int) -> None:
        rank.heard[comm].add(by)
        for key in rank.keys(comm, [by]):
            self.lib.barrier_broken(self._barrier(rank), rank.number, key)

    def _hopeless(self, rank: Rank, comm: int) -> bool:
        """Does it wait for what never comes, since others have aborted the communicator?"""
        if not rank.heard[comm] or comm in rank.without:
            return False
        if any(comm == g.parent for g in rank.joining.values()):
            return True
        return any(
            self._never(rank, key, number)
            for key, waiting in rank.pending.items()
            if comm_of(key) == comm
            for number in waiting
        )

    def _never(self, rank: Rank, key: int, number: int) -> bool:
        missing = [m for m in self._awaited(rank, key) if self.ranks[m].issued[key] < number]
        if any(comm_of(key) in self.ranks[m].without for m in missing):
            return True
        return self._is_lost(rank, key, number)

    def _is_lost(self, rank: Rank, key: int, number: int) -> bool:
        if number < self.limits.get(key, number + 1) or self._awaited(rank, key) == ():
            return False
        return self.lost.setdefault((rank.number, key, number), self.random.random() < 0.5)

    def complete(self, rank: Rank) -> bool:
        """One thing of the rank's streams comes to its end."""
        if rank.work and self.random.random() < 0.5:
            rank.work -= 1
            return True
        for key, waiting in rank.pending.items():
            if waiting and self._resolved(rank, key, waiting[0]):
                waiting.popleft()
                self.lib.barrier_complete(self._barrier(rank), rank.number, key)
                return True
        if rank.ending:
            self.lib.barrier_complete(self._barrier(rank), rank.number, rank.ending.pop())
            return True
        if rank.work:
            rank.work -= 1
            return True
        if rank.syncing and not any(rank.pending.values()):
            rank.syncing = False
            return True
        return False

    def _awaited(self, rank: Rank, key: int) -> tuple[int, ...]:
        """The ranks that must call for the rank's round to complete: a send waits for no rank."""
        if key < PAIRS:
            return self.members[key]
        source = self.members[key][0]
        return () if source == rank.number else (source,)

    def _resolved(self, rank: Rank, key: int, number: int) -> bool:
        there = all(self.ranks[m].issued[key] >= number for m in self._awaited(rank, key))
        return there and not self._is_lost(rank, key, number)

    def _announce(self) -> bool:
        if not self.announce:
            return False
        which = self.random.randrange(len(self.announce))
        number, g = self.announce.pop(which)
        rank, record = self.ranks[number], g.called[number]
        if g.refused:
            rank.without.add(record.key)
            self._joins(rank, record.key)
        else:
            members = self.ffi.new("uint32_t[]", list(record.members))
            self._joins(rank, record.key)
            self.lib.barrier_comm(
                self._barrier(rank), number, record.key, members, len(record.members), 0
            )
            rank.joined.add(record.key)
        self._collect(rank.device)
        return True

    def _hear_news(self) -> bool:
        """Deliver the news of one abort, in any order, to a rank that has joined the communicator.
        Returns whether there was news to deliver."""
        which = self.random.randrange(len(self.news))
        number, comm, by = self.news.pop(which)
        rank = self.ranks[number]
        if comm in rank.joining:
            self.news.append((number, comm, by))
            return False
        if comm in rank.joined and not rank.exited:
            self.hear(rank, comm, by)
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

    def turn(self, what: str, number: int) -> None:
        """A rank is looked at ("consume"), or one thing of it completes ("complete")."""
        if not self._act((what, number)):
            raise Violation(f"rank {number} has nothing to {what}")

    def settle(self) -> None:
        """Messages and news arrive, until none is under way."""
        while self.announce or self.news or any(self.queues.values()):
            for pair in list(self.queues):
                self.deliver_all(*pair)
            while self._announce() or (self.news and self._hear_news()):
                pass

    def _actors(self) -> list[Any]:
        actors: list[Any] = [("announce",)] if self.announce else []
        actors += [("news",)] if self.news else []
        actors += [("abort", rank, comm) for rank, comm in self.aborts]
        actors += [
            ("abort", r.number, comm)
            for r in self.ranks
            for comm in list(r.heard)
            if self._hopeless(r, comm)
        ]
        actors += [("deliver", p) for p, q in self.queues.items() if q]
        for r in self.ranks:
            if not r.exited:
                if not r.syncing and not r.joining:
                    actors.append(("consume", r.number))
                if r.busy:
                    actors.append(("complete", r.number))
        return actors

    def _weight(self, actor: Any) -> float:
        """How often it has its turn: drawn when it is first seen."""
        found = self.weights.get(actor)
        if found is None:
            found = self.weights[actor] = self.random.choice(self.slow)
        return found

    def _act(self, actor: Any) -> bool:
        if actor[0] == "deliver":
            return self._deliver(actor[1])
        if actor[0] == "announce":
            return self._announce()
        if actor[0] == "news":
            return self._hear_news()
        rank = self.ranks[actor[1]]
        if actor[0] == "abort":
            moved = self.abort(rank, actor[2])
        else:
            moved = self.consume(rank) if actor[0] == "consume" else self.complete(rank)
        return self._collect(rank.device) or moved

    def step(self) -> bool:
        """One event. False: nothing can happen any more."""
        actors = self._actors()
        weights = [self._weight(actor) for actor in actors]
        while actors:
            (which,) = self.random.choices(range(len(actors)), weights)
            if self._act(actors[which]):
                self.steps += 1
                return True
            del actors[which], weights[which]
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
        """Everyone stands at the same round of each communicator that it has not aborted, with
        nothing in flight, and all at one cut."""
        if len({int(self.lib.barrier_round(b)) for b in self.barriers}) > 1:
            raise Violation("devices stand at different cuts")
        for r in self.ranks:
            if r.busy:
                raise Violation(f"rank {r.number} has something in flight at the cut: {r}")
        for key, members in self.members.items():
            counts = {
                m: self.ranks[m].issued[key]
                for m in members
                if comm_of(key) not in self.ranks[m].without
            }
            gone = len(counts) < len(members) or any(self.ranks[m].exited for m in members)
            if key in self.given_up and gone:
                continue  # no rank waits for others in a split that a member abandoned
            if len(set(counts.values())) > 1 and (key < PAIRS or len(counts) == 2):
                raise Violation(f"the cut is not consistent on communicator {key}: {counts}")
        for g in self.gatherings.values():
            if g.called and not g.complete and not g.refused:
                raise Violation(f"a gathering is half complete at the cut: {g}")
