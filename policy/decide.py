"""First come, first served: which job gets which devices.

Jobs first keep what they have; then free devices are given in the order of creation. A job that has
begun continues with fewer devices than it requests if only bad devices are missing: if those were
usable and free, it would have enough.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable

from rankfold.policy.host_memory import Ledger, host_need
from rankfold.policy.vocabulary import Decision, Fleet, Job, Outcome, Rules


def decide(fleet: Fleet, jobs: Iterable[Job], rules: Rules, now: float) -> dict[str, Decision]:
    """The decision on each job. The order of `jobs` does not matter, and no job is on two devices
    or shares one. now: seconds, on the clock of `Job.created`; first come, first served does not
    need it. Takes time in proportion to jobs and devices."""
    return _Turn(fleet, list(jobs), rules).decisions


class _Turn:
    def __init__(self, fleet: Fleet, jobs: list[Job], rules: Rules):
        self.decisions: dict[str, Decision] = {}
        self._fleet = fleet
        needs = {job.name: job.need for job in jobs}
        self._memory = Ledger(needs, fleet.host_memory, rules.ranks_on_a_device)
        taken: set[int] = set()
        wanted = self._own(sorted(jobs, key=lambda job: (job.created, job.name)), taken)
        self._free = [deque(at for at in group.free if at not in taken) for group in fleet.groups]
        # A job that has started goes before one that has not: it uses host memory already. A job
        # that cannot start (its folder is missing) goes last: its devices would be idle.
        wanted.sort(key=lambda each: (not each[0].begun, each[0].blocked))
        for job, own in wanted:
            self._give(job, own)

    def _own(self, jobs: list[Job], taken: set[int]) -> list[tuple[Job, list[int]]]:
        """Jobs that want devices, and which of its devices each keeps."""
        wanted: list[tuple[Job, list[int]]] = []
        for job in jobs:
            if job.wants == "none":
                self._place(job, ())
            elif job.wants == "nothing":
                taken.update(job.own)
                if job.on_devices:
                    self._stay(job)
            elif job.wants == "devices":
                own = [at for at in dict.fromkeys(job.own) if at not in taken][: job.devices]
                taken.update(own)
                wanted.append((job, own))
        return wanted

    def _give(self, job: Job, own: list[int]) -> None:
        groups = [self._fleet.groups[at] for at in job.groups]
        free = [self._free[at] for at in job.groups]
        fewest = fewest_of(job, sum(group.bad for group in groups))
        free_count = sum(map(len, free))
        there = min(job.devices, len(own) + free_count)
        held = min(job.devices, job.placed) if job.on_devices else 0
        if there < max(fewest, held):
            if job.on_devices:
                self._stay(job, "devices", free_count)
            elif own and self._memory_allows(job, len(own)):
                # In the middle of a move, another job got the devices: it continues as before.
                self._place(job, tuple(own), "devices", free_count)
            else:
                self.decisions[job.name] = Decision(None, "devices", free=free_count)
            if sum(group.to_come for group in groups) >= fewest:
                for each in free:
                    each.clear()  # the first in line is not overtaken
            return
        if not self._memory_allows(job, there):
            others = self._memory.others(job.name)
            if job.on_devices:
                self._stay(job, "memory", free_count, others, there)
            else:
                self.decisions[job.name] = Decision(
                    None, "memory", free=free_count, others=others, number=there
                )
            return
        # Take the first of each group, so that they can be removed from the front of its deque.
        new = list(itertools.islice(heapq.merge(*free), there - len(own)))
        for each in free:
            while new and each and each[0] <= new[-1]:
                each.popleft()
        outcome: Outcome = "granted" if there == job.devices else "fewer"
        self._place(job, tuple(sorted([*own, *new])), outcome, free_count)

    def _memory_allows(self, job: Job, devices: int) -> bool:
        return self._memory.allows(job.name, job.world_size, job.rank_memory, devices, job.need)

    def _place(
        self, job: Job, devices: tuple[int, ...], outcome: Outcome = "granted", free: int = 0
    ) -> None:
        self.decisions[job.name] = Decision(devices, outcome, free=free, number=len(devices))
        self._note(job, len(devices))

    def _stay(
        self,
        job: Job,
        outcome: Outcome = "granted",
        free: int = 0,
        others: int = 0,
        number: int = 0,
    ) -> None:
        self.decisions[job.name] = Decision(job.own, outcome, True, free, others, number)
        self._note(job, job.placed)

    def _note(self, job: Job, devices: int) -> None:
        needed = devices or job.in_memory
        need = host_need(job.world_size, job.rank_memory, devices) if needed else 0
        self._memory.note(job.name, need)


def fewest_of(job: Job, bad: int) -> int:
    """The fewest devices with which a job starts, or continues, while `bad` devices are bad."""
    return max(1, job.devices - bad) if job.shrinks else job.devices
