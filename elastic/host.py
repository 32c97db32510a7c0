"""One process of a run: its logical workers, and the gloo group of the processes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from . import context
from .turns import Meetings, Turns


def blocks(world: int, processes: int) -> list[list[int]]:
    """The ranks of each process: consecutive, and as even as they can be."""
    bounds = [world * each // processes for each in range(processes + 1)]
    return [list(range(a, b)) for a, b in pairwise(bounds)]


class Host:
    """Process `index` of `processes`, with its part of `world` logical workers."""

    def __init__(self, world: int, processes: int, index: int, store: Any) -> None:
        self.world = world
        self.processes = processes
        self.blocks = blocks(world, processes)
        self.ranks = self.blocks[index]
        self.index = index
        self.store = store
        self.turns = Turns(self.ranks)
        self.meetings = Meetings(self.ranks, self._wait, self.turns)
        # With one worker per process, workers use a stock group instead.
        self._group = None
        if 1 < processes < world:
            self._group = dist.ProcessGroupGloo(store, index, processes)

    @property
    def stock(self) -> bool:
        """Whether each worker has its own process. Gloo then connects them directly."""
        return self.processes == self.world

    def _wait(self, rank: int, subject: str) -> None:
        """Other workers run. They leave nothing of theirs in this worker's context."""
        saved = context.save()
        self.turns.wait(rank, subject)
        context.load(saved)

    def gathered(self, mine: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        """The flat tensors of all ranks, given those of this process."""
        if self._group is None:
            return [mine[rank] for rank in self.ranks]
        most = max(map(len, self.blocks))
        rows = [mine[rank] for rank in self.ranks]
        sent = torch.stack(rows + rows[:1] * (most - len(rows)))
        received = [torch.empty_like(sent) for _ in self.blocks]
        self._group.allgather([received], [sent]).wait()
        return [
            rows[position]
            for rows, block in zip(received, self.blocks, strict=True)
            for position in range(len(block))
        ]

    def broadcast(self, source: torch.Tensor | None, like: torch.Tensor, root: int) -> torch.Tensor:
        """The tensor of rank `root`, which is `source` if that rank is here."""
        if self._group is None:
            assert source is not None
            return source
        sent = (like if source is None else source).detach().clone()
        options = dist.BroadcastOptions()
        options.rootRank = next(i for i, block in enumerate(self.blocks) if root in block)
        options.rootTensor = 0
        self._group.broadcast([sent], options).wait()
        return sent
