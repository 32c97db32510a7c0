"""The host memory that folded jobs may need, and the number of ranks that a device serves."""

from __future__ import annotations

from collections.abc import Mapping


class Ledger:
    """The bytes of host memory that each job may need, and their sum. changes: how often one has
    changed."""

    def __init__(self, needs: Mapping[str, int], limit: int, ranks_on_a_device: int):
        self._needs = dict(needs)
        self._sum = sum(self._needs.values())
        self.changes = 0
        self._limit, self._ranks_on_a_device = limit, ranks_on_a_device

    def note(self, name: str, need: int) -> None:
        before = self._needs.get(name, 0)
        if need != before:
            self._sum += need - before
            self._needs[name] = need
            self.changes += 1

    def others(self, name: str) -> int:
        return self._sum - self._needs.get(name, 0)

    def allows(self, name: str, world_size: int, memory: int, devices: int, before: int) -> bool:
        """Whether a job may be folded onto this many devices, 0 to suspend it. before: what it may
        need now; it may always need less."""
        if 0 < devices * self._ranks_on_a_device < world_size:
            return False
        if not memory or world_size <= devices:
            return True
        need = (world_size - devices) * memory
        return need <= before or self.others(name) + need <= self._limit


def host_need(world_size: int, memory: int, devices: int) -> int:
    """Bytes of host memory that a job may need at most: all its ranks' memory less its devices'."""
    return (world_size - devices) * memory if world_size > devices else 0


def too_many(world_size: int, devices: int, ranks_on_a_device: int) -> bool:
    """Whether this many devices cannot serve this many ranks."""
    return devices > 0 and world_size > devices * ranks_on_a_device
