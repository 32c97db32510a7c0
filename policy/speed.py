"""How fast a job is on numbers of devices on which it has not been measured.

A step takes `f c + (1 - 1/n) a` seconds on n equal devices: f is the number of ranks of the device
that has the most, and c what one of them takes, which is Eq. 1 of EasyScale for one type of device
(mapping.py). The rest is an all-reduce, in which each device sends and receives 1 - 1/n of the data
twice. Where two numbers of devices were measured, a/c follows from them; before that, it is 0.

The model never replaces a measured rate: that on another number of devices is the rate on the
nearest smaller one that was measured, times what the model says of the two.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter, itemgetter

from msgspec import Struct

from rankfold.policy.sizes import folds
from rankfold.policy.vocabulary import Rate

LEAST, MOST = 1e-9, 1e9  # steps per second that are believed
DEVIATION = 0.1  # by which a rate differs from its estimate so that this is reported


class Speed(Struct, frozen=True):
    """points: numbers of devices with steps per second, the fewest first. all_reduce: a/c, 0 to
    `ranks`: with `ranks`, a step takes the same time on any number of devices."""

    ranks: int
    points: tuple[tuple[int, float], ...] = ()
    all_reduce: float = 0.0

    def on(self, devices: int) -> float:
        """Steps per second; if nothing was measured, per time that one rank takes for a step."""
        if not self.points:
            return 1.0 / self._cost(devices)
        at = bisect_right(self.points, devices, key=itemgetter(0)) - 1
        nearest, per_s = self.points[max(0, at)]
        if nearest == devices:
            return per_s
        return per_s * self._cost(nearest) / self._cost(devices)

    def _cost(self, devices: int) -> float:
        return folds(self.ranks, devices) + self.all_reduce * _shared(devices)


@functools.lru_cache(maxsize=4096)  # called for the same jobs at every turn
def speed(ranks: int, rates: tuple[Rate, ...], history: tuple[Rate, ...] = ()) -> Speed:
    """rates: those of the job; history: those of other jobs with the same program. Where history
    differs from the job's last rate, it is corrected by the same factor for all numbers."""
    own, past = _points(rates), _points(history)
    if own and past:
        last = max((each for each in rates if each.devices in own), key=attrgetter("at", "devices"))
        factor = own[last.devices] / _fitted(ranks, past).on(last.devices)
        past = {devices: per_s * factor for devices, per_s in past.items()}
    return _fitted(ranks, past | own)


def deviates(per_s: float, estimate: float) -> bool:
    """Whether a rate differs so much from its estimate that this is reported."""
    return abs(per_s - estimate) > DEVIATION * estimate


def _shared(devices: int) -> float:
    return 1.0 - 1.0 / devices


def _points(rates: Sequence[Rate]) -> dict[int, float]:
    """The last rate on each number of devices. Rates that no job can have do not count."""
    order = sorted(rates, key=attrgetter("at", "per_s"))
    return {
        each.devices: each.per_s
        for each in order
        if each.devices >= 1 and LEAST <= each.per_s <= MOST
    }


def _fitted(ranks: int, points: dict[int, float]) -> Speed:
    """Least squares of c x + a y = 1, for the relative error of each step."""
    order = tuple(sorted(points.items()))
    xs = [per_s * folds(ranks, devices) for devices, per_s in order]
    ys = [per_s * _shared(devices) for devices, per_s in order]
    xx, yy = sum(x * x for x in xs), sum(y * y for y in ys)
    xy = sum(x * y for x, y in zip(xs, ys, strict=True))
    determinant = xx * yy - xy * xy
    if len(order) < 2 or determinant <= 1e-12 * xx * yy:
        return Speed(ranks, order)
    c = sum(xs) * yy - sum(ys) * xy  # both times the determinant
    a = sum(ys) * xx - sum(xs) * xy
    all_reduce = 0.0 if a <= 0 else float(ranks) if c <= 0 else min(float(ranks), a / c)
    return Speed(ranks, order, all_reduce)
