"""The best mapping of a job's logical workers to devices of several types: Eq. 1 of EasyScale
(SC '23, section 3.4), computed exactly.

A global step has `workers` mini-batches. A device of type i computes C_i mini-batches per second,
and serves A_i logical workers. So a step takes f = max A_i / C_i seconds over the types that
are used, and the throughput is workers / f mini-batches per second. All-reduce time is not in the
model.

The printed equation omits the number N_i of devices in the sum of wasted capability. With it,

    waste = sum N_i (C_i - A_i / f) + (sum N_i A_i - workers) / f

and sum N_i C_i - waste = workers / f holds for any N_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from msgspec import Struct


class DeviceType(Struct, frozen=True):
    """devices: number of them; capability: mini-batches per second of each, above 0. A fraction,
    because a float may be on the wrong side of a boundary."""

    devices: int
    capability: Fraction


class Mapping(Struct, frozen=True):
    """slots: slots for logical workers on each device of a type; the sum over all devices may
    exceed the job's workers. step: seconds."""

    slots: tuple[int, ...]
    step: Fraction


def best_mapping(workers: int, types: Sequence[DeviceType]) -> Mapping | None:
    """The mapping with the shortest step; None if there is no device. Raises ValueError for a job
    without workers, a negative number of devices, or a capability of 0 or less.

    The shortest step is one of k / C_i, where k is at most `workers`. The slots increase with the
    step, so a binary search for each type finds the first k that suffices.
    """
    if workers < 1:
        raise ValueError(f"a job has at least 1 logical worker, not {workers}")
    for each in types:
        if each.devices < 0 or each.capability <= 0:
            raise ValueError(f"not a number of devices and a capability above 0: {each}")
    used = [each for each in types if each.devices]
    if not used:
        return None
    step = min(_shortest(workers, each.capability, used) for each in used)
    return Mapping(tuple(_slots(each, step) for each in types), step)


def throughput(workers: int, mapping: Mapping) -> Fraction:
    """Mini-batches per second of all devices together."""
    return workers / mapping.step


def waste(workers: int, types: Sequence[DeviceType], mapping: Mapping) -> Fraction:
    """Mini-batches per second that the devices could compute and do not: devices that wait for the
    slowest, and slots without a logical worker."""
    pairs = list(zip(types, mapping.slots, strict=True))
    idle = sum(
        (each.devices * (each.capability - slots / mapping.step) for each, slots in pairs),
        Fraction(0),
    )
    return idle + (sum(each.devices * slots for each, slots in pairs) - workers) / mapping.step


def _shortest(workers: int, capability: Fraction, types: Sequence[DeviceType]) -> Fraction:
    """The shortest step, among multiples of what a device of this capability takes for one
    mini-batch, in which all workers have slots. `workers` such multiples always suffice."""
    low, high = 1, workers
    while low < high:
        half = (low + high) // 2
        if sum(each.devices * _slots(each, half / capability) for each in types) >= workers:
            high = half
        else:
            low = half + 1
    return low / capability


def _slots(each: DeviceType, step: Fraction) -> int:
    return math.floor(step * each.capability) if each.devices else 0
