"""The built-in schedulers for a simulator: they are notified of each job that arrives or ends, and
return only the decisions that change a placement. The decisions are those of `decide`; a test
compares them. An event takes time for the jobs that start or stop, and for the different numbers
of devices that jobs request, but not for all jobs and devices.

They assume what a simulated fleet keeps: each job is for devices of one group and requests a fixed
number of them, all are of one tier and priority, every device works, and host memory is not
limited.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Mapping
from typing import Protocol

from rankfold.policy import srtf
from rankfold.policy.free import Free
from rankfold.policy.host_memory import Ledger
from rankfold.policy.lending import Wanting
from rankfold.policy.precedence import AlikeJobs
from rankfold.policy.ranked import Ranked
from rankfold.policy.srtf import Rank, rank_of
from rankfold.policy.turn import Turn
from rankfold.policy.vocabulary import Decision, Disturbance, Fleet, Guaranteed, Job, Rules

Changes = dict[str, Decision]  # in the order in which they were decided


class Incremental(Protocol):
    """A scheduler that follows a fleet. Jobs hold no device when they arrive."""

    def arrive(self, job: Job) -> None: ...

    def end(self, name: str, now: float) -> Guaranteed | None:
        """A job ended or left; its devices are free. Returns what was guaranteed to it."""

    def changes(self, now: float) -> Changes:
        """The decisions that change a placement, at `now` seconds."""

    def wakes(self, now: float) -> float:
        """When, at `now` or later, it may decide otherwise although no job arrives or ends;
        infinity: never."""

    def expect(self, name: str, remaining: float, now: float, pause: float = 0.0) -> None:
        """A job that `changes` has started or stopped ends in `remaining` seconds, pauses included,
        if it has all its devices from `now` on; it makes no progress in the first `pause`."""


class Queue:
    """First come, first served; with backfill, jobs that fit pass those that do not."""

    def __init__(self, fleet: Fleet, rules: Rules, backfill: bool):
        self._turn = Turn(fleet, Ledger({}, fleet.host_memory, rules.ranks_on_a_device), backfill)
        # Jobs that request the same are one list: if its first does not fit, none does.
        self._waiting: dict[tuple[int, int], list[tuple[float, str]]] = {}
        self._jobs: dict[str, Job] = {}
        self._alike_jobs = AlikeJobs()
        self._devices: dict[str, tuple[int, ...]] = {}

    def arrive(self, job: Job) -> None:
        self._jobs[job.name] = job
        insort(self._waiting.setdefault(_kind(job), []), (job.created, job.name))

    def end(self, name: str, now: float) -> None:
        job = self._jobs.pop(name)
        if name in self._devices:
            self._turn.free.put(job.groups[0], self._devices.pop(name))
        else:
            waiting = self._waiting[_kind(job)]
            del waiting[bisect_left(waiting, (job.created, job.name))]

    def changes(self, now: float) -> Changes:
        turn = self._turn
        turn.begin()
        changes: Changes = {}
        heads = [(waiting[0], kind) for kind, waiting in self._waiting.items() if waiting]
        heapq.heapify(heads)
        while heads:
            (_, name), kind = heapq.heappop(heads)
            job = self._jobs[name]
            turn.give(Wanting(job, (), self._alike_jobs.of(job)))
            decision = turn.decisions[name]
            if decision.devices is None:
                continue
            changes[name] = decision
            self._devices[name] = decision.devices
            waiting = self._waiting[kind]
            del waiting[0]
            if waiting:
                heapq.heappush(heads, (waiting[0], kind))
        return changes

    def wakes(self, now: float) -> float:
        return math.inf

    def expect(self, name: str, remaining: float, now: float, pause: float = 0.0) -> None:
        pass


def _kind(job: Job) -> tuple[int, int]:
    return (job.groups[0], job.devices)


class Shortest:
    """Shortest remaining time first. Groups have no job in common, so each is on its own."""

    def __init__(self, fleet: Fleet, rules: Rules):
        self._free = Free(fleet.groups)
        self._groups = [_Group(len(group.free)) for group in fleet.groups]
        self._jobs: dict[str, Job] = {}
        self._devices: dict[str, tuple[int, ...]] = {}

    def arrive(self, job: Job) -> None:
        self._jobs[job.name] = job
        self._groups[job.groups[0]].wait(job.name, rank_of(job), job.devices)

    def end(self, name: str, now: float) -> None:
        job = self._jobs.pop(name)
        group = self._groups[job.groups[0]]
        if name in self._devices:
            group.stop(name)
            self._free.put(job.groups[0], self._devices.pop(name))
        else:
            group.leave(name)

    def changes(self, now: float) -> Changes:
        changes: Changes = {}
        for number, group in enumerate(self._groups):
            started, stopped = group.settle(now)
            if started or stopped:
                self._change(changes, number, started, stopped)
        return changes

    def wakes(self, now: float) -> float:
        return math.inf

    def expect(self, name: str, remaining: float, now: float, pause: float = 0.0) -> None:
        job = self._jobs[name]
        group, rank = self._groups[job.groups[0]], (remaining, job.created, job.name)
        if name in self._devices:
            group.stop(name)
            group.run(name, rank, job.devices, now)
        else:
            group.leave(name)
            group.wait(name, rank, job.devices)

    def _change(
        self,
        changes: Changes,
        number: int,
        started: list[tuple[Rank, str]],
        stopped: list[tuple[Rank, str]],
    ) -> None:
        """Record decisions. started, stopped: jobs of a group with their ranks, ascending."""
        for _, name in stopped:
            self._free.put(number, self._devices.pop(name))
            changes[name] = Decision(
                (), "devices", cause="order", reason="jobs that end sooner run"
            )
        victims: dict[str, list[Disturbance]] = {}
        firsts = [rank for rank, _ in started]
        for rank, name in stopped:
            if before := bisect_left(firsts, rank):
                disturbance = Disturbance(name, self._jobs[name].pause)
                victims.setdefault(started[before - 1][1], []).append(disturbance)
        for _, name in started:
            changes[name] = srtf.grant(self._jobs[name], self._free, victims.get(name, ()))
            self._devices[name] = changes[name].devices or ()


class _Group:
    """The jobs of one group: those that run, by when they will end, and those that wait, by how
    long they will take."""

    def __init__(self, devices: int):
        self._left = devices  # those that no job has
        self._all = devices
        self._running = Ranked()
        self._ends: dict[str, Rank] = {}  # job that runs → its rank, with its end for what remains
        self._waiting: dict[int, list[Rank]] = {}  # number of devices → ranks
        self._ranks: dict[str, tuple[int, Rank]] = {}  # job that waits → its number, its rank

    def wait(self, name: str, rank: Rank, devices: int) -> None:
        self._ranks[name] = (devices, rank)
        insort(self._waiting.setdefault(devices, []), rank)

    def leave(self, name: str) -> None:
        devices, rank = self._ranks.pop(name)
        waiting = self._waiting[devices]
        del waiting[bisect_left(waiting, rank)]

    def run(self, name: str, rank: Rank, devices: int, now: float) -> None:
        end = (now + rank[0], *rank[1:])
        self._ends[name] = end
        self._running.add(end, devices)
        self._left -= devices

    def stop(self, name: str) -> int:
        devices = self._running.remove(self._ends.pop(name))
        self._left += devices
        return devices

    def settle(self, now: float) -> tuple[list[tuple[Rank, str]], list[tuple[Rank, str]]]:
        """Start and stop jobs until each runs that those before it leave enough devices for.
        Returns jobs that start and jobs that stop, each with its rank, ascending."""
        started: dict[str, Rank] = {}
        stopped: dict[str, Rank] = {}
        while (first := self._first_that_fits(now)) is not None:
            rank, devices = first
            self.leave(rank[2])
            self._start(rank, devices, now)
            if stopped.pop(rank[2], None) is None:
                started[rank[2]] = rank
            while self._left < 0:
                end, devices = self._running.last()
                name = end[2]
                rank = (end[0] - now, *end[1:])
                self.stop(name)
                self.wait(name, rank, devices)
                if started.pop(name, None) is None:
                    stopped[name] = rank
        return _ascending(started), _ascending(stopped)

    def _start(self, rank: Rank, devices: int, now: float) -> None:
        self.run(rank[2], rank, devices, now)

    def _first_that_fits(self, now: float) -> tuple[Rank, int] | None:
        """The first job that waits although those before it leave enough devices. Of jobs that
        request the same number, the first has the fewest before it."""
        best: tuple[Rank, int] | None = None
        for devices, waiting in self._waiting.items():
            if not waiting or (best is not None and waiting[0] > best[0]):
                continue
            rank = waiting[0]
            if devices > self._left:
                before = self._running.before((now + rank[0], *rank[1:]))
                if devices > self._all - before:
                    continue
            best = (rank, devices)
        return best


def _ascending(ranks: Mapping[str, Rank]) -> list[tuple[Rank, str]]:
    return sorted((rank, name) for name, rank in ranks.items())


BACKFILL = {"fifo": False, "tiers": False, "backfill": True}
INCREMENTAL = (*BACKFILL, "srtf")


def incremental(fleet: Fleet, rules: Rules) -> Incremental:
    """The scheduler of the rules. Raises KeyError if it is not one of `INCREMENTAL`."""
    if rules.scheduler == "srtf":
        return Shortest(fleet, rules)
    return Queue(fleet, rules, BACKFILL[rules.scheduler])
