"""The nodes and domains of a fleet: which groups of devices are in one, and in which of them
devices are given.

They fill best-fit: a job gets devices of the domain, and there of the node, that has the fewest
free ones of those that have enough. If none has enough, it gets all of the one that has the most,
and the rest in the same way.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from rankfold.policy.vocabulary import Group, Job, Locality

Units = tuple[tuple[int, ...], ...]  # groups of each node or domain, in the order of the first


class Places:
    """Several nodes or domains, and the groups that are in each."""

    def __init__(self, groups: Sequence[Group]):
        self._groups = groups
        self._units: dict[tuple[tuple[int, ...], Locality], Units] = {}

    def units(self, groups: tuple[int, ...], locality: Locality) -> Units:
        """Those of these groups that are in each node, or in each domain; all of them together, if
        the locality is "any"."""
        key = (groups, locality)
        if (found := self._units.get(key)) is None:
            by_place: dict[tuple[str, ...], list[int]] = {}
            for at in groups:
                by_place.setdefault(self._place(at, locality), []).append(at)
            found = self._units[key] = tuple(map(tuple, by_place.values()))
        return found

    @functools.cached_property
    def _at(self) -> dict[int, int]:
        """Device → its group."""
        return {
            device: at
            for at, group in enumerate(self._groups)
            for device in group.members or group.free
        }

    def counts(self, devices: Sequence[int]) -> Counter[int]:
        """How many of these devices each group has."""
        return Counter(map(self._at.__getitem__, devices))

    def within(self, devices: Sequence[int], groups: Collection[int]) -> list[int]:
        """Those of these devices that are of these groups."""
        at = self._at
        return [device for device in devices if at[device] in groups]

    def units_of(self, job: Job) -> Units:
        """The groups of each node or domain in which a job may be."""
        return self.units(job.groups, job.locality)

    def name(self, unit: Sequence[int], locality: Locality) -> str:
        """The name of a node or domain; empty if it has none."""
        return self._place(unit[0], locality)[-1] if locality != "any" else ""

    def best_fit(
        self, groups: Sequence[int], number: int, free: Callable[[int], int]
    ) -> list[tuple[int, int]]:
        """Groups from which a job gets `number` devices of these groups, and how many of each.
        free: number of free devices of a group; these groups have enough."""
        found: list[tuple[int, int]] = []

        def counted(units: Units) -> list[tuple[int, tuple[int, ...]]]:
            found = ((sum(map(free, unit)), unit) for unit in units)
            return [(there, unit) for there, unit in found if there]

        for domain, part in _filled(counted(self.units(tuple(groups), "domain")), number):
            for node, its in _filled(counted(self.units(domain, "node")), part):
                for at in node:
                    if some := min(its, free(at)):
                        found.append((at, some))
                        its -= some
        return found

    def _place(self, at: int, locality: Locality) -> tuple[str, ...]:
        group = self._groups[at]
        return {
            "any": (),
            "domain": (group.domain,),
            "node": (group.domain, group.node),
        }[locality]


def places_of(groups: Sequence[Group]) -> Places | None:
    """None if all devices are of one node."""
    if len({(group.domain, group.node) for group in groups}) < 2:
        return None
    return Places(groups)


def _filled(
    units: list[tuple[int, tuple[int, ...]]], number: int
) -> list[tuple[tuple[int, ...], int]]:
    """Units that give `number` devices together, and how many each gives. units: with the free
    devices of each."""
    found = []
    while number:
        enough = [each for each in units if each[0] >= number]
        best = (
            min(enough, key=lambda each: each[0])
            if enough
            else max(units, key=lambda each: each[0])
        )
        units.remove(best)
        part = min(best[0], number)
        found.append((best[1], part))
        number -= part
    return found
