"""How long does the reconciler plan before it acts?

Question. Once per turn the planner considers all jobs and devices and returns what to do next. How
long does that take for 1,000 jobs on 10,000 devices, and does it grow in proportion to the fleet or
faster?

Method. A simulated fleet (tests/support/crowd.py) goes through its life: all jobs start, and a
fifth too many wait; then jobs shrink, rest, are cancelled and fail; then devices are lost. Only the
time of `plan.plan` is measured at each turn: no process is queried, nothing is journalled. The
slowest turn counts. The growth is the ratio of two fleets' slowest turns per job, a small one and a
large one, both from the same run.

Noise. The planner is Python on one core and waits for nothing, so other load only adds time: the
whole life is repeated several times, and the shortest time of each turn counts.

Estimate before measuring. Some 20 look-ups for each of 10,000 devices and as many ranks, 0.1 µs
each: 50 ms, and as much again for messages and records. Growth: 1, a little more for the caches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import report
from benchmarks.report import Figure
from rankfold.reconciler import plan
from support.crowd import DEVICES_PER_JOB, crowd, moments

Turns = list[tuple[str, float]]  # the event, seconds of planning


def life(jobs: int) -> Turns:
    fleet, turns = crowd(jobs), []
    for moment in moments(fleet):
        observed = fleet.observed()
        start = time.perf_counter()
        plan.plan(fleet.desired, fleet.records, observed, fleet.now)
        turns.append((moment, time.perf_counter() - start))
    return turns


def quietest(jobs: int, lives: int) -> Turns:
    runs = [life(jobs) for _ in range(lives)]
    return [(each[0][0], min(seconds for _, seconds in each)) for each in zip(*runs, strict=True)]


def figures(sizes: Mapping[int, Turns], lives: int) -> dict[str, Figure]:
    few, many = min(sizes), max(sizes)
    slowest = {jobs: max(turns, key=lambda turn: turn[1]) for jobs, turns in sizes.items()}
    growth = (slowest[many][1] / many) / (slowest[few][1] / few)
    what = f"{many} jobs on {many * DEVICES_PER_JOB} devices"
    how = f"slowest of {len(sizes[many])} turns ({slowest[many][0]}), quietest of {lives} lives"
    found = {"plan_turn_s": Figure(slowest[many][1], "s", 1.0, "lower", f"{what}; {how}")}
    how = f"per job, {many} jobs to {few}: {slowest[few][1] * 1e3:.2f} ms for those"
    found["plan_growth"] = Figure(growth, "", 2.0, "lower", how)
    return found


def plot(path: Path, sizes: Mapping[int, Turns]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chart, axes = pyplot.subplots(figsize=(7, 4))
    for jobs, turns in sizes.items():
        label = f"{jobs} jobs on {jobs * DEVICES_PER_JOB} devices"
        axes.plot([seconds / jobs * 1e6 for _, seconds in turns], marker="o", label=label)
    axes.set(xlabel="turn", ylabel="µs of planning per job", ylim=(0, None))
    axes.legend()
    chart.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.plan", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small fleet: only shows it works")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    options = parser.parse_args(arguments)
    machine, lives = report.machine(), 1 if options.quick else 3
    sizes = {jobs: quietest(jobs, lives) for jobs in ((5, 20) if options.quick else (100, 1000))}
    found = figures(sizes, lives)
    print(report.table(found), flush=True)
    path = report.write("plan", machine, found, options.out)
    plot(path.with_suffix(".png"), sizes)
    print(path)


if __name__ == "__main__":
    main()
