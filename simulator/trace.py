"""Jobs of traces, and the devices that they are for."""

from __future__ import annotations

import math
from collections import Counter

from msgspec import Struct

from rankfold.policy.vocabulary import Locality, Tier


class Kind(Struct, frozen=True):
    """The devices of one type. speed: relative; a device of speed 2 takes half the time.
    places: domain, node and number of devices of each node; (): all are of one."""

    type: str
    devices: int
    speed: float = 1.0
    places: tuple[tuple[str, str, int], ...] = ()

    def most(self, locality: Locality) -> int:
        """The devices of the node or domain that has the most."""
        found: Counter[tuple[str, ...]] = Counter()
        for domain, node, devices in self.places:
            found[(domain, node) if locality == "node" else (domain,)] += devices
        return self.devices if locality == "any" or not found else max(found.values())


class TraceJob(Struct, frozen=True):
    """A job of a trace.

    arrival: seconds since the trace began.
    min, max: fewest and most devices. It is elastic if they differ, or if min is 0: then it may
        lose all of them.
    work: seconds that it takes on `world_size` devices of speed 1.
    kind: index of the devices that it is for.
    quota: who pays for it; "" if the trace does not say.
    tier, priority: which jobs go first. min_runtime: seconds for which it loses no device to a job
        of its tier after it got its devices.
    demand: devices to which the fraction of its tier refers; 0: max.
    locality: within what all of its devices are.
    capabilities: how fast a device of each kind is for it; 0: it may not use these; (): it may use
        those of `kind` only, which are as fast as their kind says.
    """

    name: str
    arrival: float
    world_size: int
    min: int
    max: int
    work: float
    kind: int = 0
    tier: Tier = "standard"
    quota: str = ""
    priority: int = 0
    min_runtime: float = 0.0
    demand: int = 0
    locality: Locality = "any"
    capabilities: tuple[float, ...] = ()

    @property
    def elastic(self) -> bool:
        return self.min < self.max

    def folds(self, devices: int) -> int:
        """The ranks of the device that has the most."""
        return math.ceil(self.world_size / devices)

    def seconds(self, devices: int, speed: float) -> float:
        """How long all of its work takes on this many devices: the device with the most ranks
        runs them one after another."""
        return self.work * self.folds(devices) / speed
