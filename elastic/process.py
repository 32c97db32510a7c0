"""One process of a run: it runs the script once per logical worker, each in a thread."""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import os
import sys
import threading
import traceback
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from . import context, current, generators, imports, private, streams
from .errors import NotSupported, Stopped
from .group import Group
from .host import Host, blocks
from .progress import Enumerate
from .stage import Stage
from .worker import Worker

GLOO = (None, "gloo", "cpu:gloo", "cuda:gloo", "cpu:gloo,cuda:gloo")
MMAP_THRESHOLD = "MALLOC_MMAP_THRESHOLD_"  # with which users change it
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # of glibc's malloc.h
LARGEST_IN_HEAP, KEPT_BYTES = 1 << 25, 1 << 30  # the first is glibc's limit


class Script(NamedTuple):
    """`code`: of the file as it was when the run began, so that all processes of a run have the
    same, also if the file is edited meanwhile."""

    path: Path
    code: CodeType
    arguments: tuple[str, ...]
    logs: Path  # the folder with rank-<r>.out and .err


def _init_process_group(backend: str | None = None, *args: Any, **options: Any) -> None:
    """Instead of torch.distributed's: the workers of the run are the group."""
    worker = current.worker()
    assert worker is not None, "a thread of the script's own has no rank"
    if backend not in GLOO:
        raise NotSupported(f"backend {backend}: the elastic runtime has gloo only")
    if private.world().default_pg is not None:
        raise ValueError("the default process group exists already")
    worker.group = Group(worker)
    private.set_default(worker.group, f"elastic-{worker.rank}")


def _destroy_process_group(group: Any = None) -> None:
    private.unset_default()


def _new_group(*args: Any, **options: Any) -> None:
    raise NotSupported("dist.new_group: the elastic runtime has the default group only")


def _before_forward(model: Any) -> None:
    worker = current.worker()
    if worker is not None:
        worker.before_forward(model)


def _refuse_in_worker(what: str) -> None:
    if current.worker() is not None:
        raise NotSupported(f"{what}: see docs/elastic.md")


def _install() -> None:
    """Scripts find the run's process group in torch.distributed."""
    private.replace("init_process_group", _init_process_group)
    private.replace("destroy_process_group", _destroy_process_group)
    private.replace("new_group", _new_group)
    private.before_forward(_before_forward)
    private.refuse_graphs(_refuse_in_worker)


def _environment(rank: int, world: int, gpu: bool) -> None:
    """Sets the variables that torchrun sets on one machine. A process with a GPU sees one, so each
    rank is there as if alone on its machine: scripts use the device `cuda:$LOCAL_RANK`."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK="0" if gpu else str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE="1" if gpu else str(world),
    )


class _Threads:
    """The threads of the logical workers, and how their scripts ended."""

    def __init__(self, host: Host, script: Script, files: streams.Streams) -> None:
        self._host = host
        self._script = script
        self._streams = files
        self._first = context.save()
        self.statuses: dict[int, int] = {}

    def start(self) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self._work, args=(rank,), name=f"rank-{rank}", daemon=True)
            for rank in self._host.ranks
        ]
        for thread in threads:
            thread.start()
        return threads

    def _work(self, rank: int) -> None:
        log = streams.paths(self._script.logs, rank)
        worker = Worker(self._host, rank, log, lambda: self._write_to(worker))
        current.begin(worker)
        turns = self._host.turns
        try:
            turns.enter(rank)
            self._host.stage.cut.runs(self._host.index, rank)
            self._begin(worker)
            self.statuses[rank], reason = self._run(worker)
        except Stopped as stopped:
            worker.quiet = False
            reason = f"was stopped: {stopped}"
            print(f"rank {rank} {reason}", file=sys.stderr)
            self.statuses[rank] = 1
        except NotSupported as refused:
            worker.quiet = False
            traceback.print_exc()
            reason = f"uses what the elastic runtime refuses: {refused}"
            print(f"rank {rank} {reason}", file=sys.stderr)
            self.statuses[rank] = 1
        except BaseException as error:  # noqa: BLE001  (the script's own; it ends the run)
            worker.quiet = False
            reason = f"raised {traceback.format_exception_only(error)[-1].strip()}"
            traceback.print_exc()
            self.statuses[rank] = 1
        if self._host.forked:  # its end is no worker's
            self._streams.flush()
            os._exit(self.statuses[rank])
        if self.statuses[rank] != 0:
            turns.stop(f"rank {rank} {reason}")
            self._host.stage.send_failed(self._host.index, f"rank {rank} {reason}")
        turns.leave(rank)

    def _write_to(self, worker: Worker) -> None:
        context.write_to(self._streams.descriptors(worker.rank, worker.quiet))

    def _begin(self, worker: Worker) -> None:
        context.load(self._first)
        generators.begin()
        context.use_threads(self._host.stage.threads)
        self._write_to(worker)
        private.set_world(private.own_world())
        _environment(worker.rank, self._host.world, self._host.gpu is not None)
        self._host.start_gpu()
        # The end of a backward pass then waits in this thread and stops no other worker's.
        torch.autograd.set_multithreading_enabled(False)

    def _run(self, worker: Worker) -> tuple[int, str]:
        """Runs the script. Returns its exit status, also in words."""
        main = ModuleType("__main__")
        main.__file__ = str(self._script.path)
        sys.modules["__main__"] = main
        try:
            exec(self._script.code, main.__dict__)
        except SystemExit as ended:
            worker.quiet = False
            if ended.code is None or isinstance(ended.code, int):
                return ended.code or 0, f"exited with {ended.code or 0}"
            print(ended.code, file=sys.stderr)
            return 1, f"exited with 1 ({ended.code})"
        if worker.quiet:
            raise NotSupported("the script ended before the step at which its state was saved")
        return 0, "ended"


def _share_memory(workers: int) -> None:
    """All threads allocate from one heap. Otherwise glibc gives each worker one of its own: memory
    that one has freed is not used by the next, which then has new pages and an empty cache.

    A worker alone in its process keeps memory that it frees, for its next step. With several, that
    would cost more memory than it saves time."""
    with contextlib.suppress(AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(M_ARENA_MAX, 1)
        if workers == 1 and MMAP_THRESHOLD not in os.environ:
            libc.mallopt(M_MMAP_THRESHOLD, LARGEST_IN_HEAP)
            libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def work(stage: Stage, script: Script, index: int, rendezvous: Path) -> int:
    """Runs the scripts of process `index`. Returns 0, or the status of the first that failed."""
    _share_memory(len(blocks(stage.world, stage.processes)[index]))
    sys.argv = [str(script.path), *script.arguments]
    sys.path[0] = str(script.path.resolve().parent)
    imports.keep(script.path.resolve().parent, stage.folder / imports.FOLDER)
    store = dist.FileStore(str(rendezvous), stage.processes)
    host = Host(stage, index, store)
    _install()
    vars(builtins)["enumerate"] = Enumerate
    files = streams.Streams(script.logs, host.ranks, empty=not stage.continues)
    host.at_exit.append(files.flush)
    files.redirect()
    main = sys.modules["__main__"]
    threads = _Threads(host, script, files)
    started = threads.start()
    host.turns.begin()
    for thread in started:
        thread.join()
    sys.modules["__main__"] = main
    for function in list(host.at_exit):
        function()
    stage.send(f"ended {index}")
    return next((status for status in threads.statuses.values() if status), 0)
