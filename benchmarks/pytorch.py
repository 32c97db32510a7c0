"""Measures what unmodified PyTorch costs on fewer devices than ranks.

Question. PyTorch's programs launch many small kernels from Python, and one kernel of its optimizers
updates a list of parameters. How much does a step cost when the ranks share a device? How much
memory do the ranks need, what do they share, and how large is a checkpoint?

Method. The programs are in torch_programs.py: plain DistributedDataParallel and AdamW. There is no
CUDA device to compare with, so the reference is the same program with a device and a proxy for each
rank. Everything runs on one core: proxies, ranks, and this process. Sides alternate, ABBA; the bits
of all losses must be equal. The first steps, in which kernels are loaded and ranks learn, do not
count. The CPU time of a step is that of all ranks and proxies: unlike wall time, it depends little
on what else the machine does.
  fold_torch_…        CPU time of a step of n ranks on one device over that on n devices; the
                      median of the rounds. `how` has the same of wall time
  memory_torch_…      memory in use at its peak, on the device and in images: 4 ranks over one
  proxy_torch_…       CPU time of the proxy's threads except the one that runs kernels, over that of
                      a step, with one rank
  checkpoint_torch_…  bytes of a store that receives only the images of 4 ranks, over the bytes of
                      the file that torch.save writes: parameters and moments
  squashed_torch_…    operations per step that were not run because another rank's run served both
  shared_torch_…      chunks that several ranks share, at the most, of all that are in use

Noise. Starting a rank takes much longer than the measured steps, so there are few rounds.

Estimate before measuring. A step consists mostly of Python and of kernels, which both sides run:
1.0. Fewer processes take turns on the core, and there is a switch or two per rank: 0.95 to 1.0.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import checkpoint, report, splicing_parts
from benchmarks.inprocess import CORES, HERE, Place, place
from benchmarks.report import Figure
from rankfold import criu
from rankfold.paths import REPOSITORY
from support.fleet import MiB, RunningJob, until
from support.ring_client import CHUNK

PYTHON = REPOSITORY / "build/torch/python"
PROGRAM = HERE / "torch_programs.py"
PROGRAMS = ("mlp", "gpt", "resnet")
CAPABILITY = "9.0"  # PyTorch 2.6 uses all of its kernels there
MEMORY = 2048 * MiB
ENV = {"OMP_NUM_THREADS": "1"}
LINE = "step "
BETWEEN = 4  # steps at least between two readings: a proxy takes a millisecond to answer
LEARNING = 12  # steps that do not count, or half of all
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Effort:
    ranks: tuple[int, ...]
    rounds: int
    steps: int


USUAL = Effort((2, 4), 3, 40)
QUICK = Effort((2,), 1, 8)


def learning(steps: int) -> int:
    return min(LEARNING, steps // 2)


def command(program: str, steps: int, folder: Path, *more: str) -> list[str]:
    times = ("--times", str(folder / "times"))
    return [str(PYTHON), str(PROGRAM), program, "--steps", str(steps), *times, *more]


# ---- CPU time -------------------------------------------------------------------------------


def cpu_s(pid: int) -> tuple[float, float]:
    """CPU seconds of a proxy: of the thread that runs kernels, and of all others."""
    seconds = [0.0, 0.0]
    for task in Path(f"/proc/{pid}/task").iterdir():
        name, _, rest = (task / "stat").read_text().partition(" (")[2].rpartition(") ")
        fields = rest.split()
        seconds[name != "soft-worker"] += (int(fields[11]) + int(fields[12])) / TICKS
    return seconds[0], seconds[1]


@dataclass
class Side:
    """Ranks on these devices, and what a step of them took."""

    where: Place
    devices: list[int]
    wall: list[float] = field(default_factory=list)  # milliseconds; one per round, as below
    cpu: list[float] = field(default_factory=list)
    kernels: float = 0.0  # milliseconds of CPU time, of the last round
    proxy: float = 0.0
    squashed: float = 0.0  # operations
    copies: float = 0.0  # chunks
    shared: int = 0  # chunks, at most
    used: int = 0

    def run(self, program: str, steps: int) -> list[str]:
        """Returns what each rank printed."""
        first = learning(steps)
        seen: list[tuple[int, float, float, int, int]] = []  # of some of the counted steps

        def under_way(job: RunningJob) -> bool:
            lines = job.output(0).count(LINE)
            if lines < first or (seen and lines < min(seen[-1][0] + BETWEEN, steps - 1)):
                return False
            seen.append((lines, *self._now()))
            return lines >= steps - 1

        folder = self.where.folder
        printed = self.where.run(
            command(program, steps, folder), ENV, len(self.devices), self.devices, under_way
        )
        ranks = range(len(self.devices))
        times = np.array([np.loadtxt(f"{folder}/times.{rank}")[first:] for rank in ranks]) / 1e6
        begun, over = seen[0], seen[-1]
        counted = over[0] - begun[0]
        self.kernels = 1e3 * (over[1] - begun[1]) / counted
        self.proxy = 1e3 * (over[2] - begun[2]) / counted
        self.squashed = (over[3] - begun[3]) / counted
        self.copies = (over[4] - begun[4]) / counted
        self.wall.append(float(times[:, :, 0].mean()))
        self.cpu.append(float(times[:, :, 1].mean(axis=1).sum()) + self.kernels + self.proxy)
        return printed

    def _now(self) -> tuple[float, float, int, int]:
        """CPU seconds of kernels and of the rest of the proxies; squashed operations; copies."""
        fleet, worker, others, squashed, copies = self.where.fleet, 0.0, 0.0, 0, 0
        for device in sorted(set(self.devices)):
            own = cpu_s(fleet.processes[fleet.names[device]].pid)
            status = self.where.status(device)
            worker, others = worker + own[0], others + own[1]
            squashed, copies = squashed + status["squashed"], copies + status["copies"]
            shared = sum(job["shared"] for job in status["jobs"]) // CHUNK
            self.shared = max(self.shared, shared)
            self.used = max(self.used, status["used"] // CHUNK)
        return worker, others, squashed, copies


# ---- figures --------------------------------------------------------------------------------


def listed(values: Sequence[float]) -> str:
    return ", ".join(f"{each:.3f}" for each in values)


def fold_figures(where: Place, program: str, ranks: int, effort: Effort) -> dict[str, Figure]:
    folded, apart = Side(where, [0] * ranks), Side(where, list(range(ranks)))
    for number in range(effort.rounds):
        sides = [folded, apart] if number % 2 == 0 else [apart, folded]
        printed = [side.run(program, effort.steps) for side in sides]
        if printed[0] != printed[1]:
            raise RuntimeError(f"{program}, {ranks} ranks: folded, it prints different lines")
    cpu = [mine / other for mine, other in zip(folded.cpu, apart.cpu, strict=True)]
    wall = [mine / other for mine, other in zip(folded.wall, apart.wall, strict=True)]
    how = (
        f"median of {len(cpu)} rounds ({listed(cpu)}): {statistics.median(folded.cpu):.1f} ms of "
        f"CPU time a step, {folded.kernels:.1f} in kernels, {folded.proxy:.1f} in the rest of the "
        f"proxy; on {ranks} devices {statistics.median(apart.cpu):.1f} ms, {apart.kernels:.1f} and "
        f"{apart.proxy:.1f}. Wall time: {statistics.median(folded.wall):.1f} ms, "
        f"{statistics.median(wall):.3f} ({listed(wall)}); {folded.copies:.1f} chunks copied a step"
    )
    name = f"torch_{program}_{ranks}"
    return {
        f"fold_{name}": Figure(statistics.median(cpu), "of n", 1.05, "lower", how),
        f"squashed_{name}": Figure(folded.squashed, "a step", None, "higher", "in the last round"),
        f"shared_{name}": Figure(
            folded.shared, "chunks", None, "higher", f"{folded.used} chunks in use at the peak"
        ),
    }


def memory_figures(where: Place, steps: int) -> dict[str, Figure]:
    held, share = {}, Side(where, [0])
    for ranks in (1, 4):
        with splicing_parts.Peak(where, 0) as peak:
            where.run(command("gpt", steps, where.folder), ENV, ranks, 0)
        held[ranks] = peak.held
    share.run("gpt", steps)
    how = f"{held[4] // MiB} MiB, {held[1] // MiB} MiB for one rank"
    mine = f"{share.proxy:.2f} of {share.cpu[0]:.1f} ms a step; kernels {share.kernels:.1f} ms"
    return {
        "memory_torch_gpt_4": Figure(held[4] / held[1], "of one", 1.75, "lower", how),
        "proxy_torch_gpt": Figure(share.proxy / share.cpu[0], "of 1", 0.02, "lower", mine),
    }


def checkpoint_figures(steps: int) -> dict[str, Figure]:
    """A checkpoint of four ranks in the middle of their run."""
    with place(memory=MEMORY, capability=CAPABILITY) as where:
        file, saves = where.folder / "state.pt", where.folder / "save"
        job = where.fleet.start(
            "bench", command("gpt", steps, where.folder, "--save", str(file)), [0] * 4, env=ENV
        )
        until(lambda: job.output(0).count(LINE) >= steps // 2, 600, "half of the steps")
        checkpoint.saved(job, saves, {})
        checkpoint.ended(job)
        job.detach(discard=True)
        folders = [saves / f"rank-{rank}" for rank in range(4)]
        images = [
            checkpoint.image_of(each, where.folder / "images" / each.name) for each in folders
        ]
        stored, own = checkpoint.new_bytes(checkpoint.bare("device"), images), file.stat().st_size
        found = checkpoint.Measured()
        checkpoint.count(found, folders)
    how = (
        f"{stored} bytes stored, {own} by torch.save; one copy of each distinct live buffer has "
        f"{found.distinct} bytes, {found.alone:.0f} a rank in buffers that no other rank equals"
    )
    return {"checkpoint_torch_gpt_4": Figure(stored / own, "of 1", 1.05, "lower", how)}


def prepare(programs: Sequence[str]) -> None:
    """Compile all kernels, on all cores."""
    with place(memory=MEMORY, capability=CAPABILITY) as where:
        for program in programs:
            where.run(command(program, 2, where.folder), ENV, 2, 0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.pytorch", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only shows that it works")
    parser.add_argument("--only", default="mlp,gpt,resnet,memory,checkpoint")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    options = parser.parse_args(arguments)
    effort, only = QUICK if options.quick else USUAL, options.only.split(",")
    machine, figures = report.machine(), dict[str, Figure]()
    programs = [name for name in PROGRAMS if name in only]
    prepare(programs or ["gpt"])

    def add(found: dict[str, Figure]) -> None:
        print(report.table(found), flush=True)
        figures.update(found)

    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CORES[-1]})  # inherited by all processes that it starts
    try:
        with place(memory=MEMORY, capability=CAPABILITY) as where:
            for _ in range(1, effort.ranks[-1]):
                where.add(MEMORY)
            for name in programs:
                for ranks in effort.ranks:
                    add(fold_figures(where, name, ranks, effort))
            if "memory" in only:
                add(memory_figures(where, effort.steps))
        os.sched_setaffinity(0, usual)
        if "checkpoint" in only and not (trouble := criu.trouble()):
            add(checkpoint_figures(effort.steps))
        elif "checkpoint" in only:
            print(f"no checkpoint: {trouble}")
    finally:  # keep what was measured before a failure
        print(report.write("torch", machine, figures, options.out))


if __name__ == "__main__":
    main()
