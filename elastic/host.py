"""One process of a run: its logical workers, and what connects it to the other processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
import torch.distributed as dist

from . import context, determinism, gpu
from .errors import NotSupported
from .order import ring_sum
from .stage import Stage
from .turns import Meetings, Turns


def blocks(world: int, processes: int) -> list[list[int]]:
    """The ranks of each process: consecutive, and as even as they can be."""
    bounds = [world * each // processes for each in range(processes + 1)]
    return [list(range(a, b)) for a, b in pairwise(bounds)]


class GlooLink:
    """Messages between processes over their gloo group. See order.Link."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._sent: list[Any] = []

    def send(self, values: torch.Tensor, process: int) -> None:
        self._sent.append(self._group.send([values], process, 0))

    def receive(self, values: torch.Tensor, process: int) -> None:
        self._group.recv([values], process, 0).wait()

    def flush(self) -> None:
        for work in self._sent:
            work.wait()
        self._sent = []


class Parks(Protocol):
    """Gradients of one worker's model."""

    def park(self) -> None:
        """The worker waits: if they are on a GPU, they are in host memory from now on."""

    def restore(self) -> bool:
        """They are where they were. Returns whether any were not."""


class Host:
    """Process `index` of `processes`, with its part of `world` logical workers."""

    def __init__(self, stage: Stage, index: int, store: Any) -> None:
        self.stage = stage
        self.world = stage.world
        self.blocks = blocks(stage.world, stage.processes)
        self.ranks = self.blocks[index]
        self.index = index
        self._pid = os.getpid()
        self.gpu = stage.gpus[index % len(stage.gpus)] if stage.gpus else None
        self._store = store
        self._defaults: dict[str, Any] | None = None  # when the first worker began its first step
        self.turns = Turns(self.ranks)
        self.meetings = Meetings(self.ranks, self._wait, self.turns)
        several = stage.processes > 1
        self.gloo = dist.ProcessGroupGloo(store, index, stage.processes) if several else None
        self._link = GlooLink(self.gloo) if self.gloo else None
        self._saved: Path | None = None
        # While state is saved: of a rank that has, in the file of that rank.
        self.saved_gradients: dict[int, list[torch.Tensor | None]] = {}
        self.parks: dict[int, list[Parks]] = {rank: [] for rank in self.ranks}
        self.at_exit: list[Callable[[], None]] = []

    @property
    def alone(self) -> bool:
        """Whether each worker has its own process: gloo itself is then their process group."""
        return self.gloo is not None and self.stage.processes == self.world

    @property
    def forked(self) -> bool:
        """Whether this is a process that the script has forked: it has no other worker's thread."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Raises NotSupported in a forked process, which would wait forever, save state, and take
        batches of the process that it was forked from."""
        if self.forked:
            raise NotSupported(
                "training in a process that the script has forked: end it with os._exit"
            )

    def check_defaults(self) -> None:
        """Raises NotSupported if a worker has changed a default of the process since the first step
        of any: others would have it amid their steps."""
        gpu.check_deterministic()
        now = context.defaults()
        if self._defaults is None:
            self._defaults = now
        if changed := [name for name in now if now[name] != self._defaults[name]]:
            raise NotSupported(
                f"{', '.join(changed)}: a default of the whole process that changes after the "
                "first step. Set it before the loops, in all ranks"
            )

    def start_gpu(self) -> None:
        """Called by each worker when it begins. Raises NotSupported for a GPU that the run cannot
        use with its level of determinism."""
        if self.gpu is None:
            return
        if determinism.pinned():
            raise NotSupported("--determinism D2 on a GPU: no comparison covers two types of GPU")
        if not gpu.started():
            gpu.start(self.gpu)
            if self.stage.keeps_bits:
                gpu.check_covered(self.stage.covered)
                self._check_kinds()
        gpu.seed_generators()

    def _check_kinds(self) -> None:
        """All processes of the run have the same type of GPU."""
        mine = gpu.kind()
        self._store.set(f"GPU of process {self.index}", mine)
        its = self._store.get("GPU of process 0").decode()
        if its != mine:
            raise NotSupported(
                f"several types of GPU: process 0 has {its}, process {self.index} {mine}. Bits "
                "would differ"
            )

    def saved(self) -> Path:
        """The folder with the state from which the scripts continue. Waits until it is there."""
        if self._saved is None:
            self._saved = self.stage.wait_for_state(self.index)
        return self._saved

    def _wait(self, rank: int, subject: str) -> None:
        """Other workers run. They leave nothing of theirs in this worker's context."""
        saved = context.save()
        if not self.saved_gradients:  # else other workers compare theirs with those of this one
            self._park(rank)
        self.stage.cut.waits(rank, True)
        self.turns.wait(rank, subject)
        self.stage.cut.runs(self.index, rank)
        self.stage.cut.waits(rank, False)
        context.load(saved)
        for each in self.parks[rank]:
            each.restore()

    def _park(self, rank: int) -> None:
        for each in self.parks[rank]:
            each.park()

    def all_have_saved(self) -> None:
        """Called by the worker that has the turn. The others wait: no one reads their gradients."""
        self.saved_gradients.clear()
        for rank in self.ranks:
            if rank != self.turns.running:
                self._park(rank)

    @contextlib.contextmanager
    def _for_processes(self) -> Iterator[None]:
        """The worker that has the turn waits for other processes meanwhile."""
        rank = self.turns.running
        if self.gloo is None or rank is None:
            yield
            return
        self.stage.cut.waits(rank, True)
        yield
        self.stage.cut.waits(rank, False)

    def exit(self) -> NoReturn:
        """Ends the process where it is: the state of the scripts is saved."""
        for function in list(self.at_exit):
            function()
        self.stage.send(f"ended {self.index}")
        os._exit(0)

    def added(self, mine: dict[int, torch.Tensor]) -> torch.Tensor:
        """The sum of the flat tensors of all ranks, given those of this process."""
        if self.stage.keeps_bits:
            with self._for_processes():
                return ring_sum(mine, self.blocks, self.index, self._link)
        first, *others = mine.values()
        total = first.clone()
        for each in others:
            total.add_(each)
        if self.gloo is not None:
            with self._for_processes():
                self.gloo.allreduce([total]).wait()
        return total

    def gathered(self, mine: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        """The flat tensors of all ranks, given those of this process."""
        if self.gloo is None:
            return [mine[rank] for rank in self.ranks]
        most = max(map(len, self.blocks))
        rows = [mine[rank] for rank in self.ranks]
        sent = torch.stack(rows + rows[:1] * (most - len(rows)))
        received = [torch.empty_like(sent) for _ in self.blocks]
        with self._for_processes():
            self.gloo.allgather([received], [sent]).wait()
        return [
            rows[position]
            for rows, block in zip(received, self.blocks, strict=True)
            for position in range(len(block))
        ]

    def broadcast(self, source: torch.Tensor | None, like: torch.Tensor, root: int) -> torch.Tensor:
        """A copy of the tensor of rank `root`, which is `source` if that rank is here."""
        sent = (like if source is None else source).detach().clone()
        if self.gloo is None:
            return sent
        options = dist.BroadcastOptions()
        options.rootRank = next(i for i, block in enumerate(self.blocks) if root in block)
        options.rootTensor = 0
        with self._for_processes():
            self.gloo.broadcast([sent], options).wait()
        return sent
