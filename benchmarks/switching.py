"""Measures what a switch between ranks of one device costs, by the memory that the ranks have.

Question. At a switch the device shows the memory of the next rank in place of the last one's. On an
NVIDIA GPU that is a call of the driver for each piece of memory. How long does a switch take for
each GiB, when ranks have just got their memory, and when they have had it for some turns?

Method. switching.cu: two ranks on one device, which has memory for both. In each step a rank adds
one to a word of its memory and waits for the sum over the ranks, so that the device switches to the
other one. The program runs with little memory and with much. `switch_per_gib` is the difference of
the two step times, per switch and GiB. The proxy counts the switches; the program's steps are timed
where it flushes a line of output (dispatch_steps.h).
  switch_first_per_gib  over the steps 1 and 2, before chunks are joined
  switch_per_gib        the median over the second half of the steps
  switch_small          a switch with little memory: half of a step of the small run, at most

Noise. The median of the steps; with the software GPU, other load on its cores.

Estimate before measuring. An H200's driver takes 46 µs for a chunk of 2 MiB, 23 ms per GiB, and
42 µs for 32 MiB, 1.4 ms per GiB (docs/nvidia.md). The software GPU maps memory of its own: µs.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import report
from benchmarks.inprocess import HERE, Place, place, timed
from benchmarks.report import Figure
from support.fleet import MiB, RunningJob

SMALL = 64  # MiB of a rank
RANKS = 2
LINE = "step "
FIRST = slice(1, 3)  # steps in which no memory has been shown three times


class Run:
    """One run: milliseconds of each step (the mean over the ranks), and switches per step."""

    def __init__(self, where: Place, executable: Path, steps: int, mib: int):
        counted: list[tuple[int, int]] = []  # lines, switches

        def under_way(job: RunningJob) -> bool:
            lines = job.output(0).count(LINE)
            if lines >= 2:
                counted.append((lines, where.status()["switches"]))
            return len(counted) == 1

        times = where.folder / "steps"
        command = [str(executable), str(steps), str(mib)]
        printed = where.run(command, {"DISPATCH_STEPS": str(times)}, RANKS, 0, under_way)
        lines, switches = counted[0]
        left = max(1, printed[0].count(LINE) - lines)
        self.switches = (where.status()["switches"] - switches) / left
        each = [np.loadtxt(f"{times}.{rank}", ndmin=1) / 1e6 for rank in range(RANKS)]
        self.steps = np.mean(each, axis=0)

    @property
    def first(self) -> float:
        return float(np.mean(self.steps[FIRST]))

    @property
    def settled(self) -> float:
        return statistics.median(map(float, self.steps[len(self.steps) // 2 :]))


def figures(where: Place, steps: int, large: int) -> dict[str, Figure]:
    executable = timed(HERE / "switching.cu")
    Run(where, executable, 4, SMALL)  # loads the kernel
    small, much = (Run(where, executable, steps, mib) for mib in (SMALL, large))
    scale = max(much.switches, 1.0) * (large - SMALL) / 1024
    how = (
        f"{RANKS} ranks of {large} MiB and of {SMALL} MiB, {much.switches:.1f} switches a step; "
        f"a step: {much.first:.3f} ms at first and {much.settled:.3f} ms settled, "
        f"{small.first:.3f} and {small.settled:.3f} with {SMALL} MiB"
    )
    return {
        "switch_first_per_gib": Figure(
            (much.first - small.first) / scale, "ms", None, "lower", how
        ),
        "switch_per_gib": Figure((much.settled - small.settled) / scale, "ms", 10.0, "lower", how),
        "switch_small": Figure(small.settled / max(small.switches, 1.0), "ms", None, "lower", how),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.switching", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="little memory: shows that it works")
    parser.add_argument("--device", default="soft", choices=["soft", "nvidia"])
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    options = parser.parse_args(arguments)
    machine, found = report.machine(), dict[str, Figure]()
    steps, large = (8, 192) if options.quick else (40, 1088)
    try:
        with place(options.device, (RANKS * large + 64) * MiB) as where:
            found = figures(where, steps, large)
        print(report.table(found))
    finally:
        kind = "-nvidia" if options.device == "nvidia" else ""
        print(report.write(f"switching{kind}", machine, found, options.out))


if __name__ == "__main__":
    main()
