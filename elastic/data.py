"""Batches of a map-style DataLoader, from any batch on, with the samples and the random numbers
that a stock loader has.

A stock loader gives batch b to data worker b mod n, which has generators of its own. Here the
logical workers of a process share n data processes: process j is data worker j of each of them,
with a copy of its dataset and with its generators, whose states come back with each batch. So
another process can continue: it skips the batches that were used, and sets the states.
"""

from __future__ import annotations

import os
import queue
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import context, current, private
from .errors import NotSupported

if TYPE_CHECKING:
    from .worker import Worker

PARENT_CHECK_S = 5.0


class Saved(NamedTuple):
    """A reader's state between two batches."""

    before: tuple[context.Generators, list[torch.Tensor]]  # when it began
    position: int  # batches that were used
    again: bool  # whether data workers are those of an earlier pass (persistent_workers)
    seed: int  # of its data workers
    states: list[context.Generators | None]  # of its data workers; None: no batch yet


def _own_generators(loader: Any) -> list[torch.Generator]:
    """Those that the script has given to a loader and its samplers."""
    owners = [loader, loader.sampler, loader.batch_sampler]
    owners.append(getattr(loader.batch_sampler, "sampler", None))
    generators = {
        id(g): g for each in owners if (g := getattr(each, "generator", None)) is not None
    }
    return [each for each in generators.values() if isinstance(each, torch.Generator)]


def check(loader: Any) -> None:
    """Raises NotSupported for a loader that cannot be continued."""
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise NotSupported(f"elastic.steps of a {type(loader).__name__}: pass a DataLoader")
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        raise NotSupported("an iterable dataset: its position cannot be restored")
    if hasattr(loader, "load_state_dict"):
        name = type(loader).__name__
        raise NotSupported(f"a {name}: its state would not know the position; pass a DataLoader")
    method = loader.multiprocessing_context
    if method is not None and method.get_start_method() != "fork":
        raise NotSupported(f"data workers started with {method.get_start_method()}: use fork")
    if not loader.in_order:
        raise NotSupported("a DataLoader with in_order=False: the order of batches would vary")


class Reader:
    """One logical worker's pass over a loader."""

    def __init__(self, worker: Worker, loader: Any, saved: Saved | None = None) -> None:
        self._loader = loader
        self._rank = worker.rank
        self._count = loader.num_workers
        self._pool: Pool | None = None
        if saved is not None:
            self._set_generators(saved)
        before = self._generators()
        self._base = private.loader_iterator(loader)
        self._states: list[context.Generators | None] = [None] * self._count
        if saved is not None:
            private.set_seed(self._base, saved.seed)
            self._states = saved.states
            if saved.again:
                self._set_generators(saved)
                private.restart(self._base, loader)
        if self._count:
            self._pool = self._shared(worker, loader.worker_init_fn)
        else:
            self._fetch = private.fetcher(self._base)
        self._begin(before, saved is not None and saved.again, saved.position if saved else 0)
        if saved is not None:
            self.has_next()  # it was called before the state was saved, and may draw a number

    def _generators(self) -> tuple[context.Generators, list[torch.Tensor]]:
        own = [each.get_state() for each in _own_generators(self._loader)]
        return context.save_generators(), own

    def _set_generators(self, saved: Saved) -> None:
        context.load_generators(saved.before[0])
        for generator, state in zip(_own_generators(self._loader), saved.before[1], strict=True):
            generator.set_state(state)

    def _begin(
        self, before: tuple[context.Generators, list[torch.Tensor]], again: bool, position: int
    ) -> None:
        self._before = before
        self._again = again
        self._indices = private.indices(self._base)
        self._issued: dict[int, Any] = {}  # by number of the batch, what was taken from the sampler
        self._next = self.position = position
        for _ in range(position):
            next(self._indices)
        for _ in range(self._count * (self._loader.prefetch_factor or 0)):
            self._issue()

    def restart(self) -> None:
        """Begins another pass with the same data workers."""
        assert self._pool is not None
        for number in list(self._issued):
            self._states[number % self._count] = self._pool.get(self._rank, number)[1]
        before = self._generators()
        private.restart(self._base, self._loader)
        self._begin(before, True, 0)

    def _shared(self, worker: Worker, init: Any) -> Pool:
        """The data processes of all logical workers of this process, which call this together."""
        part = Part(worker, context.save(), self._base, init, self._states)
        pool: Pool = worker.bring_next("data workers", part, Pool)()
        return pool

    def _issue(self) -> None:
        index = next(self._indices, self)
        if index is self:
            return
        self._issued[self._next] = index
        if self._pool is not None:
            self._pool.submit(self._rank, self._next, index)
        self._next += 1

    def has_next(self) -> bool:
        if not self._issued:
            self._issue()
        return bool(self._issued)

    def next(self) -> Any:
        """The next batch. Raises what the dataset raises."""
        number = self.position
        index = self._issued.pop(number)
        if self._pool is None:
            data = self._fetch.fetch(index)
        else:
            data, self._states[number % self._count] = self._pool.get(self._rank, number)
            self._issue()
        self.position += 1
        if isinstance(data, private.ExceptionWrapper):
            data.reraise()
        return private.pinned(self._base, data)

    def saved(self) -> Saved:
        seed = private.seed(self._base)
        return Saved(self._before, self.position, self._again, seed, list(self._states))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.release(self._rank)
            self._pool = None


class Part(NamedTuple):
    """The arguments of data processes for one logical worker."""

    worker: Worker
    begins: context.Context
    base: Any  # the loader's iterator
    init: Any  # worker_init_fn
    states: list[context.Generators | None]


class Pool:
    """Data processes 0 … n−1 that all logical workers of a process share."""

    def __init__(self, parts: dict[int, Part]) -> None:
        counts = {len(part.states) for part in parts.values()}
        if len(counts) > 1:
            raise NotSupported(f"loaders with different num_workers: {sorted(counts)}")
        self._users = set(parts)
        self._at_exit = next(iter(parts.values())).worker.host.at_exit
        self._at_exit.append(self.kill)
        self._arrived: dict[tuple[int, int], Any] = {}
        self._tasks: list[Any] = []
        self._results: list[Any] = []
        self._processes: list[Any] = []
        fork = torch.multiprocessing.get_context("fork")
        for number in range(counts.pop()):
            tasks = fork.Queue()
            results, sender = fork.Pipe(duplex=False)
            arguments = (number, parts, tasks, sender)
            process = fork.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            sender.close()
            self._tasks.append(tasks)
            self._results.append(results)
            self._processes.append(process)

    def submit(self, rank: int, number: int, index: Any) -> None:
        self._tasks[number % len(self._tasks)].put((rank, number, index))

    def get(self, rank: int, number: int) -> tuple[Any, context.Generators]:
        """The batch, or an ExceptionWrapper, and the state of the data worker's generators."""
        process = number % len(self._results)
        while (rank, number) not in self._arrived:
            try:
                its_rank, its_number, *result = self._results[process].recv()
            except (EOFError, ConnectionError):
                self._processes[process].join()
                code = self._processes[process].exitcode
                raise RuntimeError(f"data worker {process} exited with {code}") from None
            self._arrived[its_rank, its_number] = result
        data, generators = self._arrived.pop((rank, number))
        return data, generators

    def release(self, rank: int) -> None:
        """The processes end when all logical workers have called this."""
        self._users.discard(rank)
        if not self._users:
            self.kill()

    def kill(self) -> None:
        """Ends the processes."""
        self._at_exit.remove(self.kill)
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


def _serve(number: int, parts: dict[int, Part], tasks: Any, results: Any) -> None:
    """Data process `number`."""
    torch.set_num_threads(1)
    serving = {}
    for rank, part in parts.items():
        current.begin(part.worker)
        context.load(part.begins)
        info = private.start_data_worker(part.base, number)
        failure = None
        try:
            if part.init is not None:
                part.init(number)
        except Exception:  # noqa: BLE001  (the script's own; it is raised in its worker)
            failure = private.ExceptionWrapper(where=f"in DataLoader worker process {number}")
        fetcher = private.fetcher(part.base)
        state = part.states[number]
        if state is not None:
            context.load_generators(state)
        serving[rank] = [context.save(), info, fetcher, failure]
    parent = os.getppid()
    while os.getppid() == parent:
        try:
            rank, batch, index = tasks.get(timeout=PARENT_CHECK_S)
        except queue.Empty:
            continue
        saved, info, fetcher, data = serving[rank]
        current.begin(parts[rank].worker)
        context.load(saved)
        private.set_data_worker(info)
        if data is None:
            try:
                data = fetcher.fetch(index)
            except Exception:  # noqa: BLE001
                data = private.ExceptionWrapper(where=f"in DataLoader worker process {number}")
        serving[rank] = [context.save(), info, fetcher, None]
        results.send((rank, batch, data, context.save_generators()))
