"""The free devices of each group, which are given in ascending order of their positions; if there
are several nodes, best-fit (places.py)."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Sequence, Set
from typing import TYPE_CHECKING

from rankfold.policy.vocabulary import Group

if TYPE_CHECKING:
    from rankfold.policy.places import Places


class Free:
    """Lists in ascending order: taking and returning a few devices moves memory, and takes no time
    in proportion to the fleet that would be noticed."""

    def __init__(self, groups: Sequence[Group]):
        self._groups = [list(group.free) for group in groups]
        self.places: Places | None = None  # if there are several nodes
        if len({(group.domain, group.node) for group in groups}) > 1:
            from rankfold.policy.places import Places  # here: commands start faster without it

            self.places = Places(groups)

    def count(self, groups: Collection[int]) -> int:
        if len(groups) == 1:
            (group,) = groups
            return len(self._groups[group])
        return sum(len(self._groups[group]) for group in groups)

    def of(self, group: int) -> int:
        """How many devices of a group are free."""
        return len(self._groups[group])

    def take_from(self, parts: Iterable[tuple[int, int]]) -> list[int]:
        """The first devices of some groups, ascending. parts: a group, and how many of its own."""
        taken: list[int] = []
        for group, number in parts:
            taken += self._groups[group][:number]
            del self._groups[group][:number]
        return sorted(taken)

    def any(self) -> bool:
        """Whether any device is free."""
        return any(self._groups)

    def any_of(self, devices: Set[int]) -> bool:
        """Whether any of these devices is free."""
        return any(not devices.isdisjoint(each) for each in self._groups)

    def take(self, groups: Sequence[int], number: int) -> list[int]:
        """`number` devices of these groups, ascending: the first ones of all, or of the nodes that
        they are taken from. Raises ValueError if there are fewer."""
        if number < 1:
            return []
        if self.places is not None and len(groups) > 1:
            if number > (there := self.count(groups)):
                raise ValueError(f"requested: {number}, free: {there}")
            return self.take_from(self.places.best_fit(groups, number, self.of))
        lists = [self._groups[group] for group in groups]
        if len(lists) == 1:
            taken = lists[0][:number]
        else:
            taken = list(itertools.islice(heapq.merge(*lists), number))
        if len(taken) < number:
            raise ValueError(f"requested: {number}, free: {len(taken)}")
        for each in lists:
            del each[: bisect_right(each, taken[-1])]
        return taken

    def first(self, group: int, number: int) -> tuple[int, ...]:
        """The first `number` devices of a group, or all if there are fewer."""
        return tuple(self._groups[group][:number])

    def put(self, group: int, devices: Iterable[int]) -> None:
        """Return devices to their group."""
        for position in devices:
            insort(self._groups[group], position)

    def remove(self, devices: Collection[int]) -> None:
        """Devices are not free after all."""
        if devices:
            self._groups = [
                [position for position in each if position not in devices] for each in self._groups
            ]
