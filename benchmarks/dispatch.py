"""Measures the cost of a CUDA call through the proxy, and the speed of the software GPU's kernels.

Question. A program under rankfold communicates with a server instead of calling a driver. How much
time does a call cost the program, how much longer does a training step become, and is the software
GPU fast enough (compared with the same loops compiled by gcc -O3) for such ratios to be meaningful?

Method. Everything runs as in production: a proxy process with one soft device and one kernel
worker, a launcher, an unmodified program with our libraries preloaded.
  calls   dispatch_calls.cu measures each call with the CPU's cycle counter.
  steps   The same executable runs through the proxy and over the same soft device in its own
          process (dispatch_inprocess.c: the same machine code and worker, no proxy), alternately.
          Steps end where the program flushes its line of output. There is one rank: in-process its
          all-reduce does nothing, so its cost through the proxy counts as overhead.
  kernels The kernel on the device (submitted and waited for) and the C loop in this process,
          alternately, on the same memory sizes; gcc -O3 for the same CPU as the device's code.
Ratios are taken per round, both sides next to each other in time; the median ratio counts.

Noise. Others may use the machine, which has few cores: three busy threads on two cores. Other load
only ever adds time, so `calls` reports the quietest of several runs (the one with the lowest
median); ratios are medians over rounds, and the plot shows every round.

Estimate before measuring. A record of 192 bytes into a ring in shared memory: 20-40 ns, plus two
atomic operations for the lock and one fence (20 ns each), plus packing: ~100 ns. A round trip: 0.35
µs for a bare ring, plus a turn of the loop on each side: ~1 µs. A step of the GPT has some 60
launches and 5-10 ms of kernels on one core: overhead below 1 %, if the loop's thread does not take
the worker's core away.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda
import numpy as np
from softgpu.harness import CHUNK, DEV_BASE, Device, Space, ffi, loader

from benchmarks import report
from benchmarks.inprocess import (
    CORES,
    GPT,
    HERE,
    KERNEL_CACHE,
    LAUNCH_BOUND,
    LAUNCHES_PER_STEP,
    Place,
    inprocess_libraries,
    kernel_library,
    place,
    step_time,
    timed,
    workers_of,
)
from benchmarks.report import Figure
from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.soft.compiler import objects
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.fatbin import IMAGE_PTX

# Iterations of the loop in its kernels, and the share of the usual steps. The first has a target;
# real GPUs take 2 µs or more to start a kernel, so their programs do not reach the last rate.
LAUNCH_RATES = {
    "launch_bound": (1200, 0.05),
    "launch_30k": (400, 0.1),
    "launch_100k": (100, 0.2),
    "launch_flood": (0, 1),
}


@dataclass(frozen=True)
class Effort:
    """How much is measured: the usual run, or a quick one that only shows that everything works."""

    call_runs: int
    launch_rounds: int
    sync_rounds: int
    step_rounds: int
    gpt_steps: int
    bound_steps: int
    kernel_rounds: int


USUAL = Effort(5, 2000, 50000, 13, 60, 300, 21)
QUICK = Effort(1, 200, 2000, 2, 12, 20, 5)


# ---- calls ----------------------------------------------------------------------------------


def quietest(runs: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    return min(runs, key=lambda run: float(np.median(run)))


def measure_calls(
    where: Place, kind: str, rounds: int, runs: int
) -> tuple[np.ndarray[Any, Any], float]:
    """Nanoseconds per call in the quietest run, and the server's wake-ups per 1000 calls."""
    program = cuda.build(HERE / "dispatch_calls.cu")
    out = where.folder / "calls"
    found, before = [], where.status()["wakeups"]
    for _ in range(runs):
        where.run([str(program), kind, str(rounds)], {"DISPATCH_CALLS": str(out)})
        found.append(np.fromfile(out, np.float32))
    calls = sum(len(run) for run in found)
    return quietest(found), 1000 * (where.status()["wakeups"] - before) / calls


def system_calls(where: Place, kind: str, rounds: int) -> float | None:
    """System calls of the program per 1000 calls, by strace, from the difference of two runs."""
    if not shutil.which("strace"):
        return None
    program, out = cuda.build(HERE / "dispatch_calls.cu"), where.folder / "strace"
    totals = []
    for factor in (1, 3):
        command = ["strace", "-f", "-c", "-o", str(out), str(program), kind, str(factor * rounds)]
        try:
            where.run(command, {"DISPATCH_CALLS": str(where.folder / "calls")})
        except RuntimeError:
            return None  # tracing is not permitted here
        totals.append(int(out.read_text().splitlines()[-1].split()[2]))
    calls = 2 * rounds * (64 if kind == "launch" else 1)
    return 1000 * (totals[1] - totals[0]) / calls


def bench_calls(where: Place, effort: Effort) -> tuple[dict[str, Figure], dict[str, Any]]:
    figures, plots = {}, {}
    kinds = (
        ("launch", "async_launch_ns", "ns", 1.0, effort.launch_rounds, (150.0, 1000.0)),
        ("sync", "sync_roundtrip_us", "µs", 1e-3, effort.sync_rounds, (2.0, 10.0)),
    )
    for kind, name, unit, scale, rounds, targets in kinds:
        ns, wakeups = measure_calls(where, kind, rounds, effort.call_runs)
        traced = system_calls(where, kind, 200 if kind == "launch" else 2000)
        how = (
            f"quietest of {effort.call_runs} runs of {len(ns)} calls; {wakeups:.2f} wake-ups of "
            f"the server per 1000 calls, start included; "
            + (
                "no strace here"
                if traced is None
                else f"{traced:.2f} system calls of the program per 1000 calls, under strace"
            )
        )
        for percent, target in zip((50, 99), targets, strict=True):
            value = float(np.percentile(ns, percent)) * scale
            figures[f"{name}_p{percent}"] = Figure(value, unit, target, "lower", how)
        plots[name] = ns * scale
    return figures, plots


# ---- steps ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """Milliseconds per step on each side, one number per round."""

    proxied: list[float]
    inprocess: list[float]

    @property
    def overhead(self) -> float:
        ratios = [p / i for p, i in zip(self.proxied, self.inprocess, strict=True)]
        return statistics.median(ratios) - 1


def measure_steps(
    where: Place, made: Loader, source: Path, arguments: list[str], rounds: int, libraries: Path
) -> Steps:
    program, out = timed(source), where.folder / "steps"
    kernels = kernel_library(made, source, where.folder)
    alone = {
        **os.environ,
        "LD_LIBRARY_PATH": str(libraries),
        "DISPATCH_KERNELS": str(kernels),
        "DISPATCH_STEPS": str(out),
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
    }
    found = Steps([], [])
    where.run([str(program), *arguments], {"DISPATCH_STEPS": str(out)})  # loads its kernels
    proxy = where.fleet.processes[where.fleet.names[0]].pid
    for number in range(2 * rounds):
        core = {CORES[number // 2 % 2]}
        if number % 4 in (0, 3):  # ABBA: a slow drift favours neither
            for worker in workers_of(proxy):
                os.sched_setaffinity(worker, core)
            where.run([str(program), *arguments], {"DISPATCH_STEPS": str(out)})
            found.proxied.append(step_time(out))
        else:
            with subprocess.Popen(
                [str(program), *arguments], env=alone, cwd=GPT.parent, stdout=subprocess.DEVNULL
            ) as process:
                for worker in workers_of(process.pid):
                    os.sched_setaffinity(worker, core)
            assert process.returncode == 0, f"{program} in-process: {process.returncode}"
            found.inprocess.append(step_time(out))
    return found


def bench_steps(
    where: Place, made: Loader, effort: Effort
) -> tuple[dict[str, Figure], dict[str, Steps]]:
    libraries = inprocess_libraries(where.folder)
    gpt = measure_steps(
        where, made, GPT, ["--steps", str(effort.gpt_steps)], effort.step_rounds, libraries
    )
    found, extra = {"gpt": gpt}, {"gpt": ""}
    for name, (turns, share) in LAUNCH_RATES.items():
        arguments = [str(max(12, int(effort.bound_steps * share))), str(turns)]
        found[name] = measure_steps(
            where, made, LAUNCH_BOUND, arguments, effort.step_rounds, libraries
        )
        rate = LAUNCHES_PER_STEP / statistics.median(found[name].proxied) * 1e3
        extra[name] = f"; {rate:.0f} launches a second"
    how = "median of {} rounds: {:.3f} ms through the proxy, {:.3f} ms in-process; one worker"
    figures = {
        f"step_overhead_{name}": Figure(
            steps.overhead,
            "of 1",
            0.02,
            "lower",
            how.format(
                len(steps.proxied),
                statistics.median(steps.proxied),
                statistics.median(steps.inprocess),
            )
            + extra[name],
        )
        for name, steps in found.items()
    }
    return figures, found


# ---- kernels --------------------------------------------------------------------------------

ELEMENTS, ROWS, COLUMNS, MATRIX = 1 << 18, 256, 1024, 512
REPEATS = 64  # of a work in one measurement, so that waking the worker does not count
Work = Callable[[], None]


def seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def on_both_cores(workers: set[int], mine: Work, theirs: Work) -> tuple[float, float]:
    """Seconds that the device's worker and this thread take, each once on either core."""
    cores = os.sched_getaffinity(0)
    times = []
    for here, there in (CORES, CORES[::-1]):
        os.sched_setaffinity(0, {here})
        for worker in workers:
            os.sched_setaffinity(worker, {there})
        times.append((seconds(mine), seconds(theirs)))
    for thread in (0, *workers):
        os.sched_setaffinity(thread, cores)
    return times[0][0] + times[1][0], times[0][1] + times[1][1]


def host_library(folder: Path) -> ctypes.CDLL:
    target = folder / "host.so"
    flags = [
        "-O3",
        f"-march={objects.CPU}",
        "-shared",
        "-fPIC",
        f"-I{REPOSITORY}/interpose/channel",
        f"-I{REPOSITORY}/proxy/hal",
    ]
    subprocess.run(
        ["gcc", *flags, "-o", str(target), str(HERE / "dispatch_kernels.c"), "-lm"], check=True
    )
    return ctypes.CDLL(str(target))


def in_host_memory(address: int) -> int:
    """The host address at which a soft device's first space keeps this device address."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    window = min(int(line.partition("-")[0], 16) for line in maps if "rankfold-device" in line)
    return window + address - (DEV_BASE + CHUNK)


class Kernels:
    """The four kernels and their C versions, on the same memory.

    The choice of pages and the position of the arrays alone change the time of a loop by some 7 %
    if its arrays do not fit the nearer caches.
    """

    def __init__(self, made: Loader, space: Space, folder: Path):
        self.space, self.host = space, host_library(folder)
        module = made.module(cuda.ptx(HERE / "dispatch_kernels.cu").encode(), IMAGE_PTX)
        self.function = {name: made.function(module, name) for name in module.functions}
        draw = np.random.default_rng(1).random
        values = [draw(ELEMENTS, np.float32) for _ in range(4)]
        values.append(np.zeros(ELEMENTS, np.float32))
        self.device = [space.put(each) for each in values]
        self.values = values

    def work(self, name: str, grid: Any, block: Any, *args: Any) -> Work:
        work, buffer = self.space.kernel_work(self.function[name], grid, block, *args)
        device = self.space.device
        native = [
            ctypes.c_void_p(int(ffi.cast("uintptr_t", each)))
            for each in (ffi.addressof(device.hal), device.stream, work)
        ]

        def run(_keep: Any = (work, buffer)) -> None:
            self.host.device_run(*native, REPEATS)

        return run

    def pair(self, name: str) -> tuple[Work, Work, int]:
        """The device's work, the host's work, and the index of the array that both write."""
        a, b, m, v, to = (ctypes.c_void_p(in_host_memory(each)) for each in self.device)
        n, rate = ELEMENTS, ctypes.c_float(1e-3)
        da, db, dm, dv, dto = self.device
        blocks = (n + 255) // 256
        grid, device_args, host_args, index = {
            "vadd": (blocks, (da, db, dto, n), (a, b, to, n), 4),
            "softmax": (ROWS, (da, dto, COLUMNS), (a, to, ROWS, COLUMNS), 4),
            "layernorm": (ROWS, (da, db, dm, dto, COLUMNS), (a, b, m, to, ROWS, COLUMNS), 4),
            "adam": (blocks, (da, db, dm, dv, 1e-3, n), (a, b, m, v, rate, n), 0),
        }[name]
        host = getattr(self.host, f"host_{name}")

        def twin() -> None:
            for _ in range(REPEATS):
                host(*host_args)

        return self.work(name, grid, 256, *device_args), twin, index

    def check(self, mine: Work, theirs: Work, index: int) -> None:
        """Check that the device and C compute the same from the same input."""
        results = []
        for work in (mine, theirs):
            for address, values in zip(self.device, self.values, strict=True):
                self.space.write(address, values)
            work()
            self.space.check()
            results.append(self.space.read(self.device[index], ELEMENTS, np.float32))
        np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-5)  # sums in a different order


def bench_kernels(
    made: Loader, folder: Path, effort: Effort
) -> tuple[dict[str, Figure], dict[str, Any]]:
    figures: dict[str, Figure] = {}
    plots: dict[str, Any] = {}
    with Device(ring=ffi.NULL) as device:
        workers = workers_of(os.getpid())
        kernels = Kernels(made, device.space(), folder)
        for name in ("vadd", "softmax", "layernorm", "adam"):
            mine, theirs, index = kernels.pair(name)
            kernels.check(mine, theirs, index)
            rounds = range(effort.kernel_rounds)
            times = [on_both_cores(workers, mine, theirs) for _ in rounds]
            ratio = statistics.median(m / t for m, t in times)
            best = tuple(1e6 * min(side) / 2 / REPEATS for side in zip(*times, strict=True))
            how = (
                f"median ratio of {len(times)} rounds of {ELEMENTS} elements; best "
                f"{best[0]:.0f} µs, C {best[1]:.0f} µs"
            )
            figures[f"kernel_vs_gcc_{name}"] = Figure(ratio, "of 1", 1.0, "lower", how)
            plots[name] = [m / t for m, t in times]
        figures["matmul_gflops_per_core"] = matmul(kernels, effort)
    return figures, plots


def matmul(kernels: Kernels, effort: Effort) -> Figure:
    n = MATRIX
    a, b, _, _, to = kernels.device
    tiles = n // 32
    run = kernels.work("matmul", (tiles, tiles), (32, 32), a, b, to, n)
    run()
    kernels.space.check()
    left, right, got = (
        kernels.space.read(at, n * n, np.float32).reshape(n, n) for at in (a, b, to)
    )
    np.testing.assert_allclose(got, left @ right, rtol=1e-3, atol=1e-4)
    times = [seconds(run) for _ in range(effort.kernel_rounds)]
    value = REPEATS * 2 * n**3 / statistics.median(times) / 1e9
    how = f"median of {len(times)} products of {n}×{n} in 32×32 tiles, one worker"
    return Figure(value, "GFLOP/s", 4.0, "higher", how)


# ---- all of it ------------------------------------------------------------------------------


def plot(path: Path, calls: dict[str, Any], steps: dict[str, Steps], kernels: Any) -> None:
    """Plot distributions of calls, every round's step times, and the kernels' ratios."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(16, 4))
    for axis, (name, values) in zip(axes, calls.items(), strict=False):
        axis.plot(np.sort(values), np.linspace(0, 1, len(values)))
        axis.set(title=name, xscale="log", ylabel="share of calls", xlim=(None, None))
        for percent in (50, 99):
            axis.axvline(np.percentile(values, percent), linestyle=":", color="grey")
    for name, each in steps.items():
        for label, side in (("proxy", each.proxied), ("in-process", each.inprocess)):
            axes[2].plot(side, marker="." if label == "proxy" else "x", label=f"{name}, {label}")
    axes[2].set(title="step time", xlabel="round", ylabel="ms", ylim=(0, None))
    axes[2].legend(fontsize="small")
    axes[3].boxplot(list(kernels.values()), tick_labels=list(kernels))
    axes[3].axhline(1.0, linestyle=":", color="grey")
    axes[3].set(title="kernel time over gcc -O3's", ylim=(0, None))
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.dispatch", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds: only shows that it works")
    parser.add_argument("--only", default="calls|steps|kernels", help="a regular expression")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    parser.add_argument(
        "--device",
        default="soft",
        choices=["soft", "nvidia"],
        help="nvidia: the calls only, the rest compares with the software GPU",
    )
    options = parser.parse_args(arguments)
    if options.device == "nvidia":
        options.only = "calls"
    effort, machine = QUICK if options.quick else USUAL, report.machine()
    figures: dict[str, Figure] = {}
    plots: dict[str, Any] = {"calls": {}, "steps": {}, "kernels": {}}
    with place(options.device) as where, loader(KERNEL_CACHE, where.folder / "c.sock") as made:
        parts: dict[str, Callable[[], tuple[dict[str, Figure], Any]]] = {
            "calls": lambda: bench_calls(where, effort),
            "steps": lambda: bench_steps(where, made, effort),
            "kernels": lambda: bench_kernels(made, where.folder, effort),
        }
        for name, part in parts.items():
            if re.search(options.only, name):
                found, plots[name] = part()
                figures.update(found)
                print(report.table(found), flush=True)
    name = "dispatch" if options.device == "soft" else f"dispatch-{options.device}"
    path = report.write(name, machine, figures, options.out)
    if all(plots.values()):
        plot(path.with_suffix(".png"), plots["calls"], plots["steps"], plots["kernels"])
    print(path)


if __name__ == "__main__":
    main()
