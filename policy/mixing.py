"""Idle devices for jobs that may use several types at once. Only simulated jobs do so far.

Such a job is as fast as Eq. 1 says (mapping.py). As with one type (growth.py), devices go to the
job whose speed grows by the largest factor per device; each step adds devices of one group.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction

from msgspec import Struct

from rankfold.policy.growth import GAIN
from rankfold.policy.mapping import DeviceType, best_mapping

Counts = tuple[int, ...]  # devices of each group


class Mixed(Struct, eq=False):
    """A job that may grow.

    groups: those that it may use; counts: its devices of each; most: of all together.
    speed: with numbers of devices of each group; above 0 if it has any.
    """

    groups: tuple[int, ...]
    counts: Counts
    most: int
    speed: Callable[[Counts], float]

    def more(self, at: int, devices: int) -> Counts:
        """Its numbers with devices more of one group."""
        return (*self.counts[:at], self.counts[at] + devices, *self.counts[at + 1 :])


@functools.lru_cache(maxsize=1 << 16)
def eq_1(ranks: int, capabilities: tuple[float, ...], counts: Counts) -> float:
    """Steps per second; 0 without devices. capabilities: those that a device of each group makes
    with one rank, above 0."""
    pairs = zip(counts, capabilities, strict=True)
    found = best_mapping(ranks, [DeviceType(number, Fraction(each)) for number, each in pairs])
    return 0.0 if found is None else float(1 / found.step)


def share(jobs: Sequence[Mixed], free: dict[int, int]) -> None:
    """Choose the numbers of devices of each job. free: how many of each group are idle, and then
    how many are left. Jobs that are equal get devices in their order."""
    users = Counter(group for job in jobs for group in job.groups)
    line: list[tuple[float, int, int, int]] = []

    def offer(place: int) -> None:
        """The best next step of a job, as in growth.py; of equal ones, that of the group that the
        fewest jobs may use."""
        job, best = jobs[place], None
        now, left = job.speed(job.counts), job.most - sum(job.counts)
        for at, group in enumerate(job.groups):
            for added in range(1, min(left, free[group]) + 1):
                gain = math.log(job.speed(job.more(at, added)) / now)
                step = (-gain / added, -added, users[group], at)
                if gain > GAIN and (best is None or step < best):
                    best = step
        if best is not None:
            heapq.heappush(line, (best[0], best[1], place, best[3]))

    for place in range(len(jobs)):
        offer(place)
    while line:
        _, added, place, at = heapq.heappop(line)
        job = jobs[place]
        if -added <= free[job.groups[at]]:
            free[job.groups[at]] += added
            job.counts = job.more(at, -added)
        offer(place)
