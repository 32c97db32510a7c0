"""Measures the cost of several ranks on one device, against a device in each rank's process.

Question. Ranks of one job that share a device take turns, share equal content of their memory, and
do once what all of them would do. How long is a mini-batch, how much memory does it take, how many
bytes does it move, how often does the device switch ranks, and how long does a switch take?

Method. `programs`: the reference is the same executable as n processes without a proxy, each with
its own soft device (dispatch_inprocess.c: the same machine code), whose all-reduce adds in shared
memory along the same tree. The output of both sides, the bits of their losses, must be equal. The
workers of all devices, the reference's and the proxy's, are bound to one core: both sides have the
same core for kernels, and the rest of the machine for everything else. Sides alternate, ABBA. A
mini-batch is the mean over the ranks, and over the steps after the first ones, in which kernels are
loaded and ranks learn which others to wait for; the median of the rounds' ratios counts.
  fold_…            the device has memory for all ranks
  fold_one_…        it has memory for one rank, and an eighth: the peak of a rank alone
  fold_nosquash_…   as fold_…, but each rank does all of its own work; one round
  fold_one_noprepare_…   as fold_one_…, but no rank's memory is prefetched before its turn; one
                    round of eight ranks
Counters are the proxy's own, from the first lines of output to the end of the run. The proxy also
records which pages it swaps (RANKFOLD_SWAPS), and the program where its buffers are: of those,
moved_stable_… counts parameters and moments, and moved_alike_… content that another rank also held,
which includes sums of gradients.
  switch   Two ranks with endless kernels, whose time slice is zero: the device switches as often as
           it can. Their time beyond that of the same launches in whole slices, per switch.
  memory   Chunks in use, on the device and in images, sampled every few milliseconds.
  resize   Four ranks go from one device to two and back, eight times a run, on devices where ranks
           share and on devices where they do not. Seconds to stop, save and place; a suspension
           is the first two.
  tandem, versions, order   Builds in which each call from outside into some files is timed: the
           barrier's; those that keep versions, and compute what a launch reads and writes; those of
           the check of a program's order, which is off.

With --device nvidia there is no such reference: NCCL does not let two ranks share a GPU. Only
programs run, and sides are compared with n times the mini-batch of one rank alone (gpu_fold_…;
gpu_fold_shared_… with RANKFOLD_SHARE=1).

Noise. Two busy threads on two cores, and others may use the machine. Starting ranks takes longer
than the measured part, so there are few rounds; the plot shows every one.

Estimate before measuring. Without sharing, n ranks in turns do the reference's work on the same
core: 1.0, minus what n processes lose by preempting one another in the middle of their kernels,
plus n-1 switches of some 20 µs. With memory for one rank each switch moves all of it both ways, 0.2
ms per MiB: twice the time of the large state's step. Squashing removes n-1 of n updates, 6 ms each
of a large state's 55, and n-1 of n copies of the all-reduce's result, 3 ms each.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from softgpu.harness import loader

from benchmarks import report, splicing_parts
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
from support.fleet import MiB, RunningJob, free_port
from support.ring_client import CHUNK

SHARED_BYTES = 4096 + 2 * 8 * (4 * MiB)  # struct shared of dispatch_inprocess.c
EVERYBODY = 4096 * MiB  # memory for all ranks
LINE, FIRST_LINES = "step ", 2  # in the output: one per mini-batch
LEARNING = 12  # mini-batches: kernels are loaded, and ranks learn which to wait for; or half of all
COUNTERS = (
    "switches",
    "swapped_in",
    "swapped_out",
    "swapped_alike",
    "kernels",
    "squashed",
    "spared",
    "copies",
    "prepared",
)
TARGETS = {"fold_large_state_4": 0.95, "fold_one_large_state_4": 0.95}


@dataclass(frozen=True)
class Program:
    """A program to measure.

    `before` and `behind`: arguments before and after the number of steps; eight ranks run `steps`
    of them. `stable`: its parameters and moments, as indices among the buffers with the size of the
    first.
    """

    source: Path
    steps: int
    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    stable: tuple[int, ...] = ()
    more: int = 0  # extra rounds of the reference and `fold`: its mini-batches are the shortest

    def command(self, executable: Path, steps: int) -> list[str]:
        return [str(executable), *self.before, str(steps), *self.behind]


MLP = HERE / "splicing_mlp.cu"
PROGRAMS = {
    "mlp": Program(MLP, 30, (), ("64", "0", "64", "256", "256", "16"), (0, 1, 2), 4),
    "gpt": Program(GPT, 24, ("--steps",), (), (0, 2, 3)),
    "conv": Program(HERE / "splicing_conv.cu", 8, stable=(0, 2, 3)),
    "launch_bound": Program(LAUNCH_BOUND, 8, behind=("1200",)),
    "large_state": Program(MLP, 16, (), ("32", "6144", "1024", "1408", "1024"), (0, 1, 2)),
}


@dataclass(frozen=True)
class Effort:
    ranks: tuple[int, ...]
    rounds: int
    large: int  # rounds of the program with the longest runs
    share: float  # of the usual steps


USUAL = Effort((2, 4, 8), 3, 2, 1.0)
QUICK = Effort((2,), 1, 1, 0.25)
USUAL_ON_GPU = Effort((2, 4), 1, 1, 1.0)
ON_GPU = 4  # times as many steps, which take less time there
COMPARED = {"fold_nosquash": 1, "fold_one_noprepare": 1}  # sides for comparison; their rounds
UNPREPARED = "fold_one_noprepare"  # with one number of ranks only


@dataclass
class Measured:
    """One program with n ranks: a number per round and side, and the counters of its last run."""

    milliseconds: dict[str, list[float]] = field(default_factory=dict)
    counters: dict[str, dict[str, float]] = field(default_factory=dict)  # per mini-batch

    def ratios(self, side: str) -> list[float]:
        sides = zip(self.milliseconds[side], self.milliseconds["reference"], strict=False)
        return [mine / reference for mine, reference in sides]


# ---- the two sides --------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """The programs with a device in each process."""

    libraries: Path
    folder: Path
    kernels: Path  # of this program

    def run(self, command: Sequence[str], ranks: int, core: int) -> list[str]:
        shared = os.memfd_create("shared")
        os.ftruncate(shared, SHARED_BYTES)
        env = {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.libraries),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "DISPATCH_KERNELS": str(self.kernels),
            "DISPATCH_MEMORY": str(1024 * MiB),
            "DISPATCH_SHARED": f"/proc/{os.getpid()}/fd/{shared}",
            "DISPATCH_STEPS": str(self.folder / "steps"),
        }
        outputs = [self.folder / f"reference-{rank}.out" for rank in range(ranks)]
        try:
            processes = []
            for rank, path in enumerate(outputs):
                with path.open("wb") as out:
                    processes.append(
                        subprocess.Popen(
                            list(command),
                            env={**env, "RANK": str(rank)},
                            cwd=GPT.parent,
                            stdout=out,
                        )
                    )
            for process in processes:
                for worker in workers_of(process.pid):
                    os.sched_setaffinity(worker, {core})
            for rank, process in enumerate(processes):
                if process.wait(300):
                    raise RuntimeError(
                        f"{command} in-process: rank {rank} ended with {process.returncode}"
                    )
        finally:
            os.close(shared)
            for process in processes:
                process.kill()
                process.wait()
        return [path.read_text() for path in outputs]


@dataclass
class Folded:
    """The programs on a device of the fleet, whose proxy writes to `moves` what it swaps."""

    where: Place
    device: int
    moves: Path | None = None
    counted: dict[str, float] = field(default_factory=dict)  # per mini-batch, in the last run
    moved: list[str] = field(default_factory=list)  # in the counted mini-batches
    counted_for: int = 0  # mini-batches

    def run(self, command: Sequence[str], ranks: int, core: int) -> list[str]:
        fleet = self.where.fleet
        if fleet.names[self.device].startswith("local/soft"):
            for worker in workers_of(fleet.processes[fleet.names[self.device]].pid):
                os.sched_setaffinity(worker, {core})
        env = {"DISPATCH_STEPS": str(self.where.folder / "steps")}
        begun: dict[str, float] = {}
        lines = moved = 0

        def under_way(job: RunningJob) -> bool:
            nonlocal lines, moved
            lines = job.output(0).count(LINE)
            if lines >= FIRST_LINES:
                begun.update(self.counters())
                moved = len(self.moves.read_text().splitlines()) if self.moves else 0
            return bool(begun)

        printed = self.where.run(command, env, ranks, self.device, under_way)
        self.counted_for = max(1, printed[0].count(LINE) - lines)
        self.counted = {
            name: (value - begun.get(name, 0)) / self.counted_for
            for name, value in self.counters().items()
        }
        moves = self.moves.read_text().splitlines() if self.moves else []
        self.moved = moves[moved:]
        counted = self.counters()
        if self.moves and len(moves) * CHUNK != counted["swapped_in"] + counted["swapped_out"]:
            raise RuntimeError(f"{self.moves} has not all that was swapped")
        return printed

    def moved_of(self, program: Program, rank: int) -> float:
        """Bytes of a rank's parameters and moments that were swapped, per mini-batch."""
        buffers = np.loadtxt(Path(f"{self.where.folder / 'steps'}.{rank}.buffers"), np.uint64)
        alike = buffers[buffers[:, 1] == buffers[0, 1]]
        stable = [(int(at) // CHUNK, int(at + size - 1) // CHUNK) for at, size in alike]
        pages = [
            int(line.split()[2], 16) // CHUNK for line in self.moved if int(line.split()[1]) == rank
        ]
        found = sum(
            any(stable[n][0] <= page <= stable[n][1] for n in program.stable) for page in pages
        )
        return found * CHUNK / self.counted_for

    def counters(self) -> dict[str, float]:
        """The counters of its proxy so far."""
        status = self.where.status(self.device)
        return {name: status[name] for name in status if name in COUNTERS}


def minibatch(folder: Path, ranks: int) -> float:
    return statistics.mean(step_time(folder / "steps", rank, LEARNING) for rank in range(ranks))


def measure(
    program: Program,
    executable: Path,
    sides: dict[str, Reference | Folded],
    ranks: int,
    effort: Effort,
    folder: Path,
) -> Measured:
    steps = max(5, int(effort.share * program.steps * 8 / ranks))
    command = program.command(executable, steps)
    found = Measured({name: [] for name in sides})
    rounds = effort.large if program is PROGRAMS["large_state"] else effort.rounds
    more = program.more if effort is USUAL else 0
    for number in range(rounds + more):
        printed: dict[str, list[str]] = {}
        order = [name for name in sides if number < COMPARED.get(name, rounds + more)]
        order = order if number % 2 == 0 else list(reversed(order))
        for name in order:
            side = sides[name]
            printed[name] = side.run(command, ranks, CORES[number // 2 % 2])
            found.milliseconds[name].append(minibatch(folder, ranks))
            if isinstance(side, Folded):
                stable = sum(side.moved_of(program, rank) for rank in range(ranks))
                found.counters[name] = {**side.counted, "stable": stable}
            if printed[name] != printed[order[0]]:
                raise RuntimeError(f"{command}: {name} and {order[0]} print different lines")
    return found


def one_rank(where: Place, program: Program, executable: Path) -> splicing_parts.Peak:
    """The memory of a rank alone; afterwards the proxy has its kernels."""
    with splicing_parts.Peak(where, 0) as peak:
        where.run(program.command(executable, 4), {}, 1, 0)
    return peak


# ---- figures --------------------------------------------------------------------------------


def program_figures(name: str, ranks: int, found: Measured) -> dict[str, Figure]:
    figures = {}
    reference = statistics.median(found.milliseconds["reference"])
    for side, times in found.milliseconds.items():
        if side == "reference":
            continue
        key, counted = f"{side}_{name}_{ranks}", found.counters[side]
        moved = counted["swapped_in"] + counted["swapped_out"]
        ratios = found.ratios(side)
        how = (
            f"median of {len(ratios)} rounds ({', '.join(f'{each:.3f}' for each in ratios)}): "
            f"{statistics.median(times):.2f} ms a mini-batch, reference {reference:.2f} ms; "
            f"a mini-batch: {counted['switches']:.1f} switches, {moved / MiB:.2f} MiB moved, "
            f"{counted['kernels']:.0f} kernels, {counted['squashed']:.0f} operations squashed, "
            f"{counted['copies']:.1f} chunks copied, {counted['prepared']:.1f} prepared, "
            f"{counted['spared'] / MiB:.2f} MiB not swapped"
        )
        if name == "launch_bound":
            how += f"; {LAUNCHES_PER_STEP * ranks / reference * 1e3:.0f} launches a second"
        target = TARGETS.get(key, 1.02)
        figures[key] = Figure(statistics.median(ratios), "of 1", target, "lower", how)
        if side == "fold":
            how = "from the first lines to the end; memory for all ranks"
            figures[f"switches_{name}_{ranks}"] = Figure(
                counted["switches"], "a mini-batch", ranks, "lower", how
            )
        if side == "fold_one":
            how = "in and out; memory for one rank and an eighth"
            figures[f"moved_{name}_{ranks}"] = Figure(moved / MiB, "MiB", None, "lower", how)
            figures[f"moved_alike_{name}_{ranks}"] = Figure(
                counted["swapped_alike"] / MiB,
                "MiB",
                None,
                "lower",
                f"{how}; of pages that another rank held alike at the same address",
            )
            if PROGRAMS[name].stable:
                figures[f"moved_stable_{name}_{ranks}"] = Figure(
                    counted["stable"] / MiB,
                    "MiB",
                    0.0,
                    "lower",
                    f"{how}; of pages of parameters and moments",
                )
    return figures


def bench_program(
    where: Place, apart: int, made: Any, name: str, effort: Effort
) -> tuple[dict[str, Figure], dict[int, Measured]]:
    program, folder = PROGRAMS[name], where.folder
    executable = timed(program.source)
    peak = one_rank(where, program, executable)
    room = splicing_parts.capacity_for_one(peak.used)
    moves = folder / f"moves-{name}"
    small = where.add(room, RANKFOLD_SWAPS=str(moves))
    no_prefetch = where.add(room, RANKFOLD_PREFETCH="0")
    libraries = folder / "inprocess"
    sides: dict[str, Reference | Folded] = {
        "reference": Reference(
            libraries if libraries.exists() else inprocess_libraries(folder),
            folder,
            kernel_library(made, program.source, folder),
        ),
        "fold": Folded(where, 0),
        "fold_one": Folded(where, small, moves),
        "fold_nosquash": Folded(where, apart),
        UNPREPARED: Folded(where, no_prefetch),
    }
    for device in (small, no_prefetch, apart):
        where.run(program.command(executable, 2), {}, 1, device)  # loads its kernels
    figures, plots = {}, {}
    for ranks in effort.ranks:
        some = effort.ranks[-1]
        mine = {each: side for each, side in sides.items() if each != UNPREPARED or ranks == some}
        plots[ranks] = measure(program, executable, mine, ranks, effort, folder)
        found = program_figures(name, ranks, plots[ranks])
        print(report.table(found), flush=True)
        figures.update(found)
    if name == "large_state":
        figures.update(memory_figures(where, program, executable, small, peak, effort))
    where.remove(small)
    where.remove(no_prefetch)
    return figures, plots


def bench_on_gpu(where: Place, shared: int, name: str, effort: Effort) -> dict[str, Figure]:
    """The mini-batch of n ranks on one GPU, divided by n mini-batches of one rank there."""
    program, figures = PROGRAMS[name], dict[str, Figure]()
    executable = timed(program.source)
    peak = one_rank(where, program, executable)
    small = where.add(splicing_parts.capacity_for_one(peak.used))
    sides = {
        "fold": Folded(where, 0),
        "fold_one": Folded(where, small),
        "fold_shared": Folded(where, shared),
    }
    steps = max(4, int(effort.share * program.steps * ON_GPU))
    command = program.command(executable, steps)
    sides["fold"].run(command, 1, 0)
    alone = minibatch(where.folder, 1)
    for ranks in effort.ranks:
        for side, folded in sides.items():
            folded.run(command, ranks, 0)
            milliseconds, counted = minibatch(where.folder, ranks), folded.counted
            moved = counted["swapped_in"] + counted["swapped_out"]
            figures[f"gpu_{side}_{name}_{ranks}"] = Figure(
                milliseconds / ranks / alone,
                "of n",
                None,
                "lower",
                f"{milliseconds:.2f} ms a mini-batch, one rank alone {alone:.2f} ms, "
                f"{peak.used // MiB} MiB; a mini-batch: {counted['switches']:.1f} switches, "
                f"{moved / MiB:.2f} MiB moved, {counted['kernels']:.0f} kernels, "
                f"{counted['squashed']:.0f} operations squashed, {counted['copies']:.1f} chunks "
                f"copied, {counted['prepared']:.1f} prepared, "
                f"{counted['spared'] / MiB:.2f} MiB not swapped",
            )
    print(report.table(figures), flush=True)
    where.remove(small)
    return figures


def memory_figures(
    where: Place,
    program: Program,
    executable: Path,
    small: int,
    alone: splicing_parts.Peak,
    effort: Effort,
) -> dict[str, Figure]:
    """The memory's peak. Nearly all of it is parameters, optimizer and gradients."""

    def begun(job: RunningJob) -> bool:
        if job.output(3).count(LINE) < FIRST_LINES:
            return False
        peak.continue_running()
        return True

    with splicing_parts.Peak(where, small) as peak:
        where.run(program.command(executable, max(4, int(8 * effort.share))), {}, 4, small, begun)
    how = (
        f"{peak.held // MiB} MiB at the peak of {peak.looks} looks, {alone.used // MiB} MiB for "
        f"one rank; on the device ({where.memory[small] // MiB} MiB) and in images, activations "
        f"included; {peak.later // MiB} MiB at the peak behind the second mini-batch"
    )
    found = {"memory_4_ranks": Figure(peak.held / alone.used, "of one", 1.15, "lower", how)}
    print(report.table(found), flush=True)
    return found


def bench_switch(made: Any, effort: Effort) -> dict[str, Figure]:
    value, how = splicing_parts.switch_us(made, 3 if effort is QUICK else 9)
    found = {"switch_us": Figure(value, "µs", 100.0, "lower", how)}
    print(report.table(found), flush=True)
    return found


def bench_resize(where: Place, effort: Effort) -> dict[str, Figure]:
    """Time resizes. Both sides alternate, ABBA; their output must be equal."""
    program = PROGRAMS["large_state"]
    executable = timed(program.source)
    pairs = {  # devices, by whether ranks share
        switch: (
            where.add(EVERYBODY, RANKFOLD_SHARE=switch),
            where.add(EVERYBODY, RANKFOLD_SHARE=switch),
        )
        for switch in ("1", "0")
    }
    found: dict[str, list[splicing_parts.Resizes]] = {switch: [] for switch in pairs}
    printed = []
    for device in (*pairs["1"], *pairs["0"]):
        where.run(program.command(executable, 2), {}, 1, device)  # loads its kernels
    for switch in ("1", "0") if effort is QUICK else ("1", "0", "0", "1"):
        first, second = pairs[switch]
        names = where.fleet.names[first], where.fleet.names[second]
        resizes = splicing_parts.Resizes(names, LINE, FIRST_LINES)
        printed.append(where.run(program.command(executable, 28), {}, 4, first, resizes))
        found[switch].append(resizes)
        if printed[-1] != printed[0]:
            raise RuntimeError("resized with RANKFOLD_SHARE=0 and 1: they print different lines")
    for device in (*pairs["1"], *pairs["0"]):
        where.remove(device)
    medians, suspended, parted = {}, {}, []
    for switch, runs in found.items():
        suspended[switch] = statistics.median(
            stop + save
            for run in runs
            for stop, save in zip(run.parts["stop"], run.parts["save"], strict=True)
        )
        medians[switch] = statistics.median(each for run in runs for each in run.seconds)
        parts = {
            name: statistics.median(each for run in runs for each in run.parts[name])
            for name in runs[0].parts
        }
        each = ", ".join(f"{name} {value:.3f}" for name, value in parts.items())
        parted.append(f"RANKFOLD_SHARE={switch}: {medians[switch]:.3f} s ({each})")
    how = (
        f"large_state, four ranks, from one device to two and back: medians of "
        f"{sum(len(run.seconds) for run in found['1'])} each; {'; '.join(parted)}"
    )
    figures = {
        f"{name}_shared_over_apart": Figure(of["1"] / of["0"], "of 1", 1.0, "lower", how)
        for name, of in (("resize", medians), ("suspend", suspended))
    }
    print(report.table(figures), flush=True)
    return figures


def time_in(
    name: str,
    files: Sequence[str],
    runs: Sequence[tuple[str, int]],
    effort: Effort,
    launches_a_second: float | None = None,
) -> tuple[float, str]:
    """The largest share of a mini-batch that is spent in these files, and how it was found.

    `runs`: programs, with numbers of ranks. `launches_a_second`: scales the share to that rate.
    """
    shares, how = [], []
    sums = KERNEL_CACHE.parent / f"hooks-{os.getpid()}"
    with place(memory=EVERYBODY, proxies=splicing_parts.timed_proxies(sums, name, files)) as where:
        for program, ranks in runs:
            executable = timed(PROGRAMS[program].source)
            steps = max(4, int(effort.share * 8 * PROGRAMS[program].steps / ranks))
            command = PROGRAMS[program].command(executable, steps)
            warm = PROGRAMS[program].command(executable, 4)
            where.run(warm, {}, ranks)  # loads its kernels
            begun: list[int] = []  # nanoseconds, calls, lines

            def under_way(job: RunningJob, begun: list[int] = begun) -> bool:
                lines = job.output(0).count(LINE)
                if lines >= FIRST_LINES:
                    begun.extend((*splicing_parts.sums_of(sums), lines))
                return bool(begun)

            where.run(command, {"DISPATCH_STEPS": str(where.folder / "steps")}, ranks, 0, under_way)
            nanoseconds, calls = splicing_parts.sums_of(sums)
            nanoseconds, calls, rest = nanoseconds - begun[0], calls - begun[1], steps - begun[2]
            milliseconds = minibatch(where.folder, ranks)
            shares.append(nanoseconds / 1e6 / rest / milliseconds)
            how.append(
                f"{program}, {ranks} ranks: {shares[-1]:.5f} of {milliseconds:.1f} ms, "
                f"{calls / rest:.0f} calls"
            )
            if program == "launch_bound":
                launches = LAUNCHES_PER_STEP * ranks / milliseconds * 1e3
                how[-1] += f", {launches:.0f} launches a second"
                if launches_a_second:
                    shares[-1] *= launches_a_second / launches
                    how[-1] += f": {shares[-1]:.5f} at {launches_a_second:.0f}"
    sums.unlink()
    return max(shares), "; ".join(how) + "; from the first lines to the end"


def bench_tandem(effort: Effort) -> dict[str, Figure]:
    """Measure the programs with the most collectives and launches."""
    runs = [("gpt", 2), ("launch_bound", 2)]
    value, how = time_in("barrier", splicing_parts.BARRIER, runs, effort)
    how = f"time in the barrier's code over a mini-batch's: {how}, and idle turns of the loop"
    found = {"tandem_overhead": Figure(value, "of 1", 0.005, "lower", how)}
    print(report.table(found), flush=True)
    return found


def bench_versions(effort: Effort) -> dict[str, Figure]:
    runs = [("launch_bound", 1), ("launch_bound", 4)]
    value, how = time_in("versions", splicing_parts.VERSIONS, runs, effort, 10_000.0)
    how = f"time in the code of versions, read and write sets over a mini-batch's: {how}"
    found = {"versions_overhead": Figure(value, "of 1", 0.01, "lower", how)}
    print(report.table(found), flush=True)
    return found


def bench_order(effort: Effort) -> dict[str, Figure]:
    runs = [("launch_bound", 1)]
    value, how = time_in("order", splicing_parts.ORDER, runs, effort, 10_000.0)
    how = f"time in the code of --check-order, which is off, over a mini-batch's: {how}"
    found = {"unchecked_overhead": Figure(value, "of 1", 0.001, "lower", how)}
    print(report.table(found), flush=True)
    return found


def plot(path: Path, programs: dict[str, dict[int, Measured]]) -> None:
    """Plot each round's ratio, by program and number of ranks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1, len(programs), figsize=(3.2 * len(programs), 4), squeeze=False
    )
    for axis, (name, found) in zip(axes[0], programs.items(), strict=True):
        labels = set()
        for ranks, measured in found.items():
            sides = [side for side in measured.milliseconds if side != "reference"]
            for at, side in enumerate(sides):
                ratios = measured.ratios(side)
                label = None if side in labels else side
                labels.add(side)
                places = [ranks * (1 + 0.08 * (at - len(sides) / 2))] * len(ratios)
                axis.plot(places, ratios, "o", color=f"C{at}", label=label)
        axis.axhline(1.02, linestyle=":", color="grey")
        axis.set(title=name, xlabel="ranks", xscale="log", ylim=(0, None))
        axis.set_xticks(list(found), [str(ranks) for ranks in found])
        axis.minorticks_off()
    axes[0][0].set(ylabel="mini-batch, over the reference's")
    axes[0][0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.splicing", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds: only shows that it works")
    parser.add_argument("--only", default=".", help="a regular expression of programs and parts")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    parser.add_argument("--device", default="soft", choices=["soft", "nvidia"])
    options = parser.parse_args(arguments)
    on_gpu = options.device == "nvidia"
    usual = USUAL_ON_GPU if on_gpu else USUAL
    effort, machine = QUICK if options.quick else usual, report.machine()
    figures: dict[str, Figure] = {}
    plots: dict[str, dict[int, Measured]] = {}
    try:
        if on_gpu:
            os.environ["RANKFOLD_NVIDIA_SHARE"] = "1"  # all devices are the one GPU
            with place("nvidia", EVERYBODY) as where:
                shared = where.add(EVERYBODY, RANKFOLD_SHARE="1")
                for name in PROGRAMS:
                    if re.search(options.only, name):
                        figures.update(bench_on_gpu(where, shared, name, effort))
            return
        with (
            place(memory=EVERYBODY) as where,
            loader(KERNEL_CACHE, where.folder / "c.sock") as made,
        ):
            apart = where.add(EVERYBODY, RANKFOLD_SQUASH="0")
            for name in PROGRAMS:
                if re.search(options.only, name):
                    found, plots[name] = bench_program(where, apart, made, name, effort)
                    figures.update(found)
            if re.search(options.only, "switch"):
                figures.update(bench_switch(made, effort))
            if re.search(options.only, "resize"):
                figures.update(bench_resize(where, effort))
        if re.search(options.only, "tandem"):
            figures.update(bench_tandem(effort))
        if re.search(options.only, "versions"):
            figures.update(bench_versions(effort))
        if re.search(options.only, "order"):
            figures.update(bench_order(effort))
    finally:  # keep what was measured before a failure
        kind = "-nvidia" if on_gpu else ""
        path = report.write(f"splicing{kind}", machine, figures, options.out)
        if plots:
            plot(path.with_suffix(".png"), plots)
        print(path)


if __name__ == "__main__":
    main()
