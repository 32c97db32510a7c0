"""The host memory that folded jobs may need, and the number of ranks that a device serves."""

from __future__ import annotations

from collections.abc import Mapping


class Ledger:
    """The bytes of host memory that each job may need, and their sum."""

    def __init__(self, needs: Mapping[str, int], limit: int, ranks_on_a_device: int):
        self._needs = dict(needs)
        self._sum = sum(self._needs.values())
        self._limit, self._ranks_on_a_device = limit, ranks_on_a_device

    def note(self, name: str, need: int) -> None:
        self._sum += need - self._needs.get(name, 0)
        self._needs[name] = need

    def others(self, name: str) -> int:
        return self._sum - self._needs.get(name, 0)

    def allows(self, name: str, world_size: int, memory: int, devices: int, before: int) -> bool:
        """Whether a job may be folded onto this many devices, 0 to suspend it. before: what it may
        need now; it may always need less."""
        if too_many(world_size, devices, self._ranks_on_a_device):
            return False
        need = host_need(world_size, memory, devices)
        return self.others(name) + need <= self._limit or need <= before


def host_need(world_size: int, memory: int, devices: int) -> int:
    """Bytes of host memory that a job may need at most: all its ranks' memory less its devices'."""
    return max(0, world_size - devices) * memory


def too_many(world_size: int, devices: int, ranks_on_a_device: int) -> bool:
    """Whether this many devices cannot serve this many ranks."""
    return devices > 0 and world_size > devices * ranks_on_a_device
