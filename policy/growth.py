"""Which elastic jobs get the devices that are left.

Devices go to the job whose speed grows by the largest factor per device, step by step; then jobs
that got some exchange them as long as the product of all speeds grows. speed.py says how fast each
job is; none gets devices with which it would not be faster.
"""

from __future__ import annotations

import functools
import heapq
import math
from bisect import bisect_right
from collections.abc import Sequence

from msgspec import Struct

from rankfold.policy.speed import Speed

GAIN = 1e-9  # less is none
EXCHANGED_MAX = 16  # jobs: the exchange takes time in proportion to the square of their number


class Growing(Struct, eq=False):
    """A job that may grow.

    sizes: numbers of devices, ascending; the first is what it has.
    speeds: with each, up to a factor of the job.
    at: the chosen size, as an index.
    """

    sizes: tuple[int, ...]
    speeds: tuple[float, ...]
    at: int = 0

    @property
    def size(self) -> int:
        return self.sizes[self.at]

    def within(self, devices: int) -> int:
        """The largest size that is at most `devices`; as an index."""
        return bisect_right(self.sizes, devices) - 1

    def factor(self, at: int) -> float:
        """By how much the speed is higher with another size, as a logarithm."""
        return math.log(self.speeds[at] / self.speeds[self.at])


def growing(speed: Speed, have: int, sizes: Sequence[int], free: int) -> Growing:
    """have: devices that it has; sizes: numbers with which it is worth running, ascending; free:
    devices that are left for all. Of the sizes that are too large, only the first is considered."""
    return Growing(*_options(speed, have, tuple(sizes), free))


@functools.lru_cache(maxsize=4096)  # many jobs are alike
def _options(
    speed: Speed, have: int, sizes: tuple[int, ...], free: int
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """`Growing.sizes` and `Growing.speeds`."""
    options = (have, *sizes[bisect_right(sizes, have) : bisect_right(sizes, have + free) + 1])
    return options, tuple(map(speed.on, options))


def share(jobs: Sequence[Growing], devices: int) -> None:
    """Choose the size of each job, so that they have at most so many devices more. Jobs that are
    equal get devices in their order."""
    left = _greedy(jobs, devices)
    if sum(len(job.sizes) > 1 for job in jobs) <= EXCHANGED_MAX:
        _exchange(jobs, left)


def _greedy(jobs: Sequence[Growing], left: int) -> int:
    """Returns the devices that are left."""
    line: list[tuple[float, int, int, int]] = []

    def offer(place: int) -> None:
        """The best next step of a job: what it gains per device, then more devices, then age."""
        job = jobs[place]
        if job.at + 1 == len(job.sizes) or job.sizes[job.at + 1] > job.sizes[job.at] + left:
            return
        steps = range(job.at + 1, job.within(job.size + left) + 1)
        offers = ((job.sizes[at] - job.size, at) for at in steps if job.factor(at) > GAIN)
        best = min(
            ((-job.factor(at) / added, -added, place, at) for added, at in offers), default=None
        )
        if best is not None:
            heapq.heappush(line, best)

    for place in range(len(jobs)):
        offer(place)
    while line and left:
        _, added, place, at = heapq.heappop(line)
        if -added <= left:
            left += added
            jobs[place].at = at
        offer(place)
    return left


def _exchange(jobs: Sequence[Growing], left: int) -> None:
    """Let one job have fewer of its new devices and another one more, while that is better."""
    for _ in jobs:
        best = max(_exchanges(jobs, left), default=None)
        if best is None:
            return
        _, giver, lower, taker, upper = best
        left += jobs[-giver].size - jobs[-giver].sizes[lower]
        left -= jobs[-taker].sizes[upper] - jobs[-taker].size
        jobs[-giver].at, jobs[-taker].at = lower, upper


def _exchanges(jobs: Sequence[Growing], left: int) -> list[tuple[float, int, int, int, int]]:
    """Exchanges that are better: by how much, who gives and takes (negative: the first is the
    greatest), and their sizes."""
    found = []
    for giver, gives in enumerate(jobs):
        for lower in range(gives.at):
            freed = left + gives.size - gives.sizes[lower]
            for taker, takes in enumerate(jobs):
                upper = takes.within(takes.size + freed)
                if taker != giver and upper > takes.at:
                    gain = takes.factor(upper) + gives.factor(lower)
                    if gain > GAIN:
                        found.append((gain, -giver, lower, -taker, upper))
    return found
