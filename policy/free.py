"""The free devices of each group, which are given in ascending order of their positions."""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Sequence

from rankfold.policy.vocabulary import Group


class Free:
    """Lists in ascending order: taking and returning a few devices moves memory, and takes no time
    in proportion to the fleet that would be noticed."""

    def __init__(self, groups: Sequence[Group]):
        self._groups = [list(group.free) for group in groups]

    def count(self, groups: Collection[int]) -> int:
        if len(groups) == 1:
            (group,) = groups
            return len(self._groups[group])
        return sum(len(self._groups[group]) for group in groups)

    def any(self) -> bool:
        """Whether any device is free."""
        return any(self._groups)

    def take(self, groups: Sequence[int], number: int) -> list[int]:
        """The first `number` devices of these groups together, ascending. Raises ValueError if
        there are fewer."""
        if number < 1:
            return []
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
