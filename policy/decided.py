"""The decisions of one moment so far. turn.py adds the decision on each job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rankfold.policy.causes import LITTLE_MEMORY, cause_of, of_drained
from rankfold.policy.free import Free
from rankfold.policy.host_memory import Ledger, host_need
from rankfold.policy.precedence import Precedence
from rankfold.policy.vocabulary import Cause, Decision, Disturbance, Group, Job, Outcome

if TYPE_CHECKING:
    from rankfold.policy.lending import Lending


class Move(NamedTuple):
    """A job that moves, its new devices, and why."""

    job: Job
    devices: tuple[int, ...]
    reason: str


class Option(NamedTuple):
    """A place in which a job may be: all groups of a node or domain, or of the fleet; those from
    which it may get devices now; its own devices that are there; and how many are free."""

    all: Sequence[int]
    groups: Sequence[int]
    own: Sequence[int]
    free: int


class Decided:
    """The decisions of one moment so far, and what is left for later ones: free devices and host
    memory.

    claimed: groups whose free devices a job that waits has a claim on, with its precedence; if
        there are several such jobs, that of the last.
    lending: the devices that jobs give up, once a job lacks some.
    moved: jobs that move, so that another one is placed in one node or domain.
    changes: how often devices, claims or loans have changed.
    """

    def __init__(self, groups: Sequence[Group], memory: Ledger):
        self.groups, self.memory = groups, memory
        self.decisions: dict[str, Decision] = {}
        self.free = Free(groups)
        self.claimed: dict[int, Precedence] = {}
        self.lending: Lending | None = None
        self.moved: dict[str, Move] = {}
        self.changes = 0

    def place(
        self,
        job: Job,
        devices: tuple[int, ...],
        outcome: Outcome = "granted",
        free: int = 0,
        *,
        cause: Cause | None = None,
        reason: str = "",
    ) -> None:
        """cause: why its placement changes, if it does; None: as `cause_of` finds."""
        found = cause_of(job, devices)
        cause = found and (cause or found)
        if cause == "drain":
            reason = reason or of_drained(job)
        stops = cause is not None and job.on_devices
        disturbs = (Disturbance(job.name, job.pause),) if stops else ()
        number = len(devices)
        self.decisions[job.name] = Decision(
            devices, outcome, False, free, 0, number, cause, reason, disturbs, "", job.admitted
        )
        self.note(job, number)

    def stay(
        self,
        job: Job,
        outcome: Outcome = "granted",
        free: int = 0,
        others: int = 0,
        number: int = 0,
        reason: str = "",
    ) -> None:
        self.decisions[job.name] = Decision(
            job.own,
            outcome,
            True,
            free,
            others,
            number,
            reason=LITTLE_MEMORY if outcome == "memory" else reason,
            admitted=job.admitted,
        )
        self.note(job, job.placed)

    def refuse(
        self,
        job: Job,
        outcome: Outcome = "devices",
        free: int = 0,
        others: int = 0,
        number: int = 0,
        reason: str = "",
    ) -> None:
        """Decide that a job has no place."""
        self.decisions[job.name] = Decision(
            None, outcome, False, free, others, number, reason=reason, admitted=job.admitted
        )

    def move(self) -> None:
        """Decide on the jobs that move."""
        for each in self.moved.values():
            self.place(each.job, each.devices, cause="defragmentation", reason=each.reason)

    def note(self, job: Job, devices: int) -> None:
        needed = job.rank_memory and (devices or job.in_memory)
        need = host_need(job.world_size, job.rank_memory, devices) if needed else 0
        self.memory.note(job.name, need)

    def memory_allows(self, job: Job, devices: int) -> bool:
        return self.memory.allows(job.name, job.world_size, job.rank_memory, devices, job.need)

    def could_have(self, groups: Sequence[int]) -> int:
        return sum(self.groups[group].to_come for group in groups)

    def units(self, job: Job) -> Sequence[tuple[int, ...]]:
        """The groups of each node or domain in which a job may be."""
        return (job.groups,) if self.free.places is None else self.free.places.units_of(job)

    def unit_with(self, job: Job, own: Sequence[int]) -> tuple[int, ...] | None:
        """The groups of the node or domain that all these devices are in; None if there is none."""
        if self.free.places is None or job.locality == "any":
            return job.groups
        has = self.free.places.counts(own)
        return next((each for each in self.units(job) if has.keys() <= set(each)), None)
