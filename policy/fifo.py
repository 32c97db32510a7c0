"""First come, first served, with or without backfill: which job gets which devices.

Jobs first keep what they have; then free devices are given in the order of creation. The first job
that waits has a claim on the free devices that it could use, so that no later one overtakes it;
with backfill it has none. A job that has begun continues with fewer devices than it requests if
only bad devices are missing: if those were usable and free, it would have enough.
"""

from __future__ import annotations

from collections.abc import Iterable

from rankfold.plural import count
from rankfold.policy.free import Free
from rankfold.policy.host_memory import Ledger, host_need
from rankfold.policy.vocabulary import (
    Cause,
    Decision,
    Disturbance,
    Fleet,
    Job,
    Outcome,
    Rules,
)


def decide(
    fleet: Fleet, jobs: Iterable[Job], rules: Rules, now: float, *, backfill: bool = False
) -> dict[str, Decision]:
    """As decide.decide. First come, first served needs no `now`. Takes time in proportion to jobs
    and devices."""
    found = list(jobs)
    needs = {job.name: job.need for job in found}
    turn = Turn(fleet, Ledger(needs, fleet.host_memory, rules.ranks_on_a_device), backfill)
    taken: set[int] = set()
    wanted = _own(turn, sorted(found, key=lambda job: (job.created, job.name)), taken)
    turn.free.remove(taken)
    # A job that has started goes before one that has not: it uses host memory already. A job
    # that cannot start (its folder is missing) goes last: its devices would be idle.
    wanted.sort(key=lambda each: (not each[0].begun, each[0].blocked))
    for job, own in wanted:
        turn.give(job, own)
    return turn.decisions


def _own(turn: Turn, jobs: list[Job], taken: set[int]) -> list[tuple[Job, list[int]]]:
    """Jobs that want devices, and which of its devices each keeps."""
    wanted: list[tuple[Job, list[int]]] = []
    for job in jobs:
        if job.wants == "none":
            turn.place(job, ())
        elif job.wants == "nothing":
            taken.update(job.own)
            if job.on_devices:
                turn.stay(job)
        elif job.wants == "devices":
            own = [at for at in dict.fromkeys(job.own) if at not in taken][: job.devices]
            taken.update(own)
            wanted.append((job, own))
    return wanted


class Turn:
    """The decisions of one moment, job by job. `begin` starts another one with the devices that
    are free then; incremental.py does.

    claimed: groups whose free devices a job that waits has a claim on.
    """

    def __init__(self, fleet: Fleet, memory: Ledger, backfill: bool):
        self.decisions: dict[str, Decision] = {}
        self.free = Free(fleet.groups)
        self.claimed: set[int] = set()
        self._groups, self._memory, self._backfill = fleet.groups, memory, backfill

    def begin(self) -> None:
        self.decisions = {}
        self.claimed.clear()

    def give(self, job: Job, own: list[int]) -> None:
        """Decide on a job that wants devices and keeps `own`."""
        groups = [at for at in job.groups if at not in self.claimed]
        fewest = fewest_of(job, sum(self._groups[at].bad for at in job.groups))
        free_count = self.free.count(groups)
        there = min(job.devices, len(own) + free_count)
        held = min(job.devices, job.placed) if job.on_devices else 0
        if there < max(fewest, held):
            if job.on_devices:
                self.stay(job, "devices", free_count)
            elif own and self._memory_allows(job, len(own)):
                # In the middle of a move, another job got the devices: it continues as before.
                self.place(job, tuple(own), "devices", free_count)
            else:
                reason = _too_few(job, free_count)
                self.decisions[job.name] = Decision(None, "devices", free=free_count, reason=reason)
            if not self._backfill and self._could_have(job) >= fewest:
                self.claimed.update(job.groups)  # the first in line is not overtaken
            return
        if not self._memory_allows(job, there):
            others = self._memory.others(job.name)
            if job.on_devices:
                self.stay(job, "memory", free_count, others, there)
            else:
                self.decisions[job.name] = Decision(
                    None, "memory", False, free_count, others, there, reason=_LITTLE_MEMORY
                )
            return
        new = self.free.take(groups, there - len(own))
        outcome: Outcome = "granted" if there == job.devices else "fewer"
        self.place(job, tuple(sorted([*own, *new])), outcome, free_count)

    def _could_have(self, job: Job) -> int:
        return sum(self._groups[at].to_come for at in job.groups)

    def _memory_allows(self, job: Job, devices: int) -> bool:
        return self._memory.allows(job.name, job.world_size, job.rank_memory, devices, job.need)

    def place(
        self, job: Job, devices: tuple[int, ...], outcome: Outcome = "granted", free: int = 0
    ) -> None:
        cause = cause_of(job, devices)
        stops = cause is not None and job.on_devices
        self.decisions[job.name] = Decision(
            devices,
            outcome,
            free=free,
            number=len(devices),
            cause=cause,
            reason=_too_few(job, free) if outcome == "devices" else "",
            disturbs=(Disturbance(job.name, job.pause),) if stops else (),
        )
        self._note(job, len(devices))

    def stay(
        self,
        job: Job,
        outcome: Outcome = "granted",
        free: int = 0,
        others: int = 0,
        number: int = 0,
    ) -> None:
        reason = _too_few(job, free) if outcome == "devices" else ""
        self.decisions[job.name] = Decision(
            job.own,
            outcome,
            True,
            free,
            others,
            number,
            reason=_LITTLE_MEMORY if outcome == "memory" else reason,
        )
        self._note(job, job.placed)

    def _note(self, job: Job, devices: int) -> None:
        needed = devices or job.in_memory
        need = host_need(job.world_size, job.rank_memory, devices) if needed else 0
        self._memory.note(job.name, need)


_LITTLE_MEMORY = "its ranks would need too much host memory"


def _too_few(job: Job, free: int) -> str:
    return f"needs {count(job.devices, 'device')}; free for it now: {free}"


def cause_of(job: Job, devices: tuple[int, ...]) -> Cause | None:
    """Why a job is placed on these devices, if that changes its placement."""
    if len(devices) == job.placed and set(devices) == set(job.own):
        return None
    lost = len(job.own) < min(job.placed, job.devices)
    return "fault" if job.wants == "devices" and lost else "spec"


def fewest_of(job: Job, bad: int) -> int:
    """The fewest devices with which a job starts, or continues, while `bad` devices are bad."""
    return max(1, job.devices - bad) if job.shrinks else job.devices
