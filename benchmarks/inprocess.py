"""Runs programs through a proxy, and the same programs over the software GPU in their own process.

Shared by the benchmarks that compare the two: a proxy to run on, the runtime that replaces CUDA's
and NCCL's (dispatch_inprocess.c), the kernels that it runs, and the times of steps.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda
import numpy as np

from rankfold import paths
from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.soft.compiler import cache
from rankfold.proxy.hal.soft.compiler.objects import kernel_source, key_of
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.fatbin import IMAGE_PTX
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State, Watch

HERE = REPOSITORY / "benchmarks"
KERNEL_CACHE = REPOSITORY / "build/bench/kernels"
GPT = REPOSITORY / "examples/gpt/train_gpt.cu"
LAUNCH_BOUND = REPOSITORY / "tests/programs/launch_bound.cu"
LAUNCHES_PER_STEP = 400  # in launch_bound.cu

# One core may be 15 % slower than another, where others use what it shares. So both sides of a
# comparison run their worker on the same core, first on one, then on another.
CORES = (min(os.sched_getaffinity(0)), max(os.sched_getaffinity(0)))


def workers_of(pid: int) -> set[int]:
    """The threads of a process that run kernels; waits until there are any."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = set()
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has just ended
                if (task / "comm").read_text() == "soft-worker\n":
                    found.add(int(task.name))
        if found:
            return found
    raise RuntimeError(f"process {pid} has no worker")


@dataclass
class Place:
    """A fleet, initially with one device, and the number of programs that have run on it."""

    fleet: Fleet
    folder: Path
    memory: list[int]  # of each device
    started: int = 0

    def add(self, memory: int, **switches: str) -> int:
        """Add a device with `memory` bytes; returns its index."""
        index, kind = len(self.memory), self.fleet.names[0].split("/")[1].split("-")[0]
        self.fleet.names.append(f"local/{kind}-{index}")
        self.memory.append(memory)
        self.fleet.memory = memory  # for the proxies that it starts
        os.environ.update(switches)
        self.fleet.start_proxy(self.fleet.names[index])
        for name in switches:
            del os.environ[name]
        until(lambda: self.fleet.answers(self.fleet.names[index]), what="the proxy answers")
        return index

    def remove(self, device: int) -> None:
        name = self.fleet.names[device]
        self.fleet.request(name, "shutdown")
        self.fleet.processes[name].wait(10)

    def run(
        self,
        command: Sequence[str],
        env: dict[str, str],
        ranks: int = 1,
        device: int | Sequence[int] = 0,
        under_way: Callable[[RunningJob], bool] = lambda _job: True,
    ) -> list[str]:
        """Run the program through a proxy, all its ranks on one device, or each on its own; returns
        what each rank printed.

        `under_way` is called repeatedly until it is true.
        """
        self.started += 1
        devices = [device] * ranks if isinstance(device, int) else list(device)
        job = self.fleet.start(
            f"bench-{self.started}",
            list(command),
            devices,
            env=env,
            workdir=GPT.parent,
            memory=self.memory[devices[0]],
        )
        until(lambda: under_way(job) or job.exit_status(0) is not None, 300.0, "it begins")
        statuses = job.wait(300.0, every=0.05)  # as Popen polls: polling uses their core
        job.detach(discard=True)
        for rank, status in enumerate(statuses):
            if status:
                raise RuntimeError(f"{command}: exit status {status}: {job.errors(rank)}")
        return [job.output(rank) for rank in range(ranks)]

    def status(self, device: int = 0) -> dict[str, Any]:
        return dict(self.fleet.status(self.fleet.names[device]))


@contextlib.contextmanager
def place(
    kind: str = "soft",
    memory: int = 256 * MiB,
    proxies: AbstractContextManager[Any] | None = None,
    capability: str = "8.0",
) -> Iterator[Place]:
    """A proxy in its own state directory, which is removed afterwards.

    `proxies`: a context in which they are started.
    """
    folder = Path(tempfile.mkdtemp(prefix="rankfold-bench-", dir="/tmp"))
    os.environ.update(
        RANKFOLD_STATE=str(folder / "state"),
        RANKFOLD_RUNTIME=str(folder / "run"),
        RANKFOLD_CACHE=str(KERNEL_CACHE),
    )
    state = State(folder, folder / "state", folder / "run", Watch(folder))
    state.path.mkdir()
    try:
        with contextlib.ExitStack() as stack:
            with proxies or contextlib.nullcontext():
                made = Fleet(state, memory=memory, workers=1, kinds=(kind,), capability=capability)
                fleet = stack.enter_context(made)
            yield Place(fleet, folder, [memory])
    finally:
        state.watch.settle()
        state.watch.clean()
        shutil.rmtree(folder, ignore_errors=True)


def timed(source: Path) -> Path:
    """Build the program of `source` with timed steps; its source is unchanged."""
    header = HERE / "dispatch_steps.h"
    digest = hashlib.sha256(header.read_bytes()).hexdigest()[:16]
    return cuda.build(source, args=["-include", str(header), f"-DDISPATCH_{digest}"])


def kernel_library(made: Loader, source: Path, folder: Path) -> Path:
    """All kernels of `source`, compiled as for the proxy, in a shared object."""
    module = made.module(cuda.ptx(source).encode(), IMAGE_PTX)
    rows, layouts, objects, declared = [], [], [], []
    for index, name in enumerate(module.functions):
        info = made.function(module, name)
        compiled = cache.load(made.cache_dir, key_of(kernel_source(module.ptx, name), name))
        assert compiled is not None
        for part, code in enumerate(compiled.objects):
            objects.append(folder / f"{source.stem}-{index}-{part}.o")
            objects[-1].write_bytes(code)
        params = ", ".join(f"{{{offset}, {size}}}" for offset, size in info.params)
        declared.append(f"extern const struct hal_function {compiled.symbol};")
        layouts.append(f"static const struct param p{index}[] = {{{params or '{0, 0}'}}};")
        rows.append(
            f'{{"{name}", &{compiled.symbol}, {info.param_bytes}, {len(info.params)}, p{index}}},'
        )
    table = folder / f"{source.stem}-table.c"
    table.write_text(
        "\n".join(
            [
                "struct hal_function; struct param { unsigned offset, bytes; };",
                "struct kernel { const char *name; const struct hal_function *function;",
                "unsigned param_bytes, param_count; const struct param *params; };",
                *declared,
                *layouts,
                "const struct kernel dispatch_kernels[] = {",
                *rows,
                "{0}};",
            ]
        )
    )
    target = folder / f"{source.stem}-kernels.so"
    gcc = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(target), str(table), *map(str, objects)]
    subprocess.run([*gcc, str(paths.native("lib/librankfold-proxy.so"))], check=True)
    return target


def inprocess_libraries(folder: Path) -> Path:
    """A folder with libcudart.so.13 and libnccl.so.2 that run kernels in the program itself."""
    native = paths.native("lib/librankfold-proxy.so")
    target = folder / "inprocess"
    target.mkdir()
    versions = folder / "versions.map"
    versions.write_text("libcudart.so.13 { global: cuda*; __cuda*; };\n")
    subprocess.run(
        [
            "gcc",
            "-shared",
            "-fPIC",
            "-O2",
            "-g",
            "-std=c11",
            "-D_GNU_SOURCE",
            "-fvisibility=hidden",
            "-Wall",
            "-Wextra",
            f"-I{REPOSITORY}/interpose/channel",
            f"-I{REPOSITORY}/proxy/hal",
            "-o",
            str(target / "libcudart.so.13"),
            str(HERE / "dispatch_inprocess.c"),
            str(native),
            f"-Wl,-rpath,{native.parent}",
            "-Wl,-soname,libcudart.so.13",
            f"-Wl,--version-script={versions}",
        ],
        check=True,
    )
    (target / "libnccl.so.2").symlink_to("libcudart.so.13")
    return target


def step_time(path: Path, rank: int = 0, first: int = 5) -> float:
    """Mean milliseconds per step of a rank that ran with DISPATCH_STEPS=`path`.

    The `first` steps, in which kernels are loaded, are excluded, or half of all if there are fewer.
    The mean, because a program that runs ahead of its device ends some steps early and others late.
    """
    mine = Path(f"{path}.{rank}")
    steps = np.loadtxt(mine, ndmin=1) / 1e6
    mine.unlink()
    return float(np.mean(steps[min(first, len(steps) // 2) :]))
