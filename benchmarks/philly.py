"""Do tiers keep their fractions on real jobs, and does that leave devices idle?

Question. How long does a simulation of all Philly jobs with tiers and ranges on 100,000 devices
take? In how many periods does an admitted job have less than its fraction, at different loads? How
busy are the devices, and how long do premium jobs wait, compared with a fleet in which each tier
has its own devices?

Method. A fifth of the jobs is premium (0.95), three fifths standard (0.7), a fifth basic. Every
other job of several devices may run on half of them. Starting, resuming and resizing take 5 s,
suspending 1 s. The times of arrivals are scaled: the load is the work of all jobs over what the
devices could do until the last one arrives. All jobs on 100,000 devices at load 0.9; then
on a small fleet at several loads, without those that are wider than an eighth of it. Then the same
jobs in a fleet of three parts without ranges, fractions and loans: each tier has devices in
proportion to its work. Utilisation counts from the first arrival to the last one.

Noise. None, except in CPU time and memory.

Estimate before measuring. The large fleet has devices for all jobs whenever they arrive, so each
event takes time for one job: 160,000 times 50 us. On the small fleet, half a millisecond for each
of half a million events. The share of devices in use is the load, if that is below 1; a static
fleet is as busy on average, but jobs wait in one part while another is idle.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from benchmarks import report
from benchmarks.report import Figure
from rankfold.paths import REPOSITORY
from rankfold.policy.vocabulary import TIERS, Tier
from rankfold.simulator.costs import Costs
from rankfold.simulator.formats import read_philly
from rankfold.simulator.result import Result
from rankfold.simulator.runs import Events
from rankfold.simulator.trace import Kind, TraceJob
from rankfold.simulator.whole import RULES

PHILLY = REPOSITORY / "tests/simulate/data/philly/jobs.csv.gz"
COSTS = Costs(start=5.0, suspend=1.0, resume=5.0, resize=5.0)
GUARANTEES = replace(RULES, fractions=(0.0, 0.7, 0.95))
ORDER: tuple[Tier, ...] = ("standard", "premium", "standard", "standard", "basic")
LARGE, LARGE_LOAD = 100_000, 0.9
SMALL, LOADS = 64, (0.5, 1.0, 1.5)


def jobs_for(devices: int, load: float, count: int | None = None) -> list[TraceJob]:
    """The first jobs of the trace, or all, with tiers and ranges."""
    found = read_philly(PHILLY, [Kind("gpu", LARGE)])[:count]
    jobs = [
        replace(
            job,
            tier=ORDER[number % len(ORDER)],
            min=max(1, job.max // 2) if number % 2 else job.max,
        )
        for number, job in enumerate(found)
        if job.max <= devices // 8
    ]
    first, last = jobs[0].arrival, jobs[-1].arrival
    scale = work_of(jobs) / devices / load / (last - first)
    return [replace(job, arrival=(job.arrival - first) * scale) for job in jobs]


def work_of(jobs: Sequence[TraceJob]) -> float:
    """Device-seconds."""
    return sum(job.work * job.max for job in jobs)


def simulated(jobs: Sequence[TraceJob], devices: int) -> Result:
    return Events(jobs, [Kind("gpu", devices)], COSTS, {}, GUARANTEES).run("tiers")


def static(jobs: Sequence[TraceJob], devices: int) -> list[Result]:
    """Each tier has devices of its own, in proportion to its work, and no guarantee."""
    results, left = [], devices
    for tier in TIERS:
        its = [replace(job, min=job.max) for job in jobs if job.tier == tier]
        share = round(devices * work_of(its) / work_of(jobs)) if tier != TIERS[-1] else left
        share = max(share, *(job.max for job in its))
        left -= share
        results.append(Events(its, [Kind("gpu", share)], COSTS, {}).run("backfill"))
    return results


def busy(results: Sequence[Result], until: float) -> float:
    """Device-seconds of jobs until that time."""
    return sum(
        max(0.0, min(span.end, until) - span.start) * span.devices
        for result in results
        for span in result.spans
    )


def waited(results: Sequence[Result], tier: str) -> float:
    """Hours for which jobs of a tier waited for their first devices, on average."""
    found = [job for result in results for job in result.jobs if job.tier == tier]
    return sum(job.start - job.arrival for job in found) / len(found) / 3600


def violated(result: Result) -> tuple[int, int]:
    """Periods in which an admitted job had less than its fraction, and all periods of such jobs."""
    tiers = result.json()["tiers"].values()
    return sum(t.get("violated", 0) for t in tiers), sum(t.get("periods", 0) for t in tiers)


def measure_large(jobs: Sequence[TraceJob], devices: int) -> dict[str, Figure]:
    start = time.thread_time()
    result = simulated(jobs, devices)
    took = time.thread_time() - start
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    wrong, periods = violated(result)
    how = f"{len(jobs)} jobs, {devices} devices, load {LARGE_LOAD}"
    return {
        "philly_large_s": Figure(took, "s", 600, "lower", f"CPU time; {how}"),
        "philly_large_gib": Figure(gib, "GiB", 4, "lower", f"memory of the process; {how}"),
        "philly_large_violated": Figure(wrong, "periods", 0, "lower", f"of {periods}; {how}"),
    }


def measure_small(jobs: Sequence[TraceJob], devices: int, load: float) -> dict[str, Figure]:
    start = time.thread_time()
    result = simulated(jobs, devices)
    took = time.thread_time() - start
    parts, until = static(jobs, devices), jobs[-1].arrival
    wrong, periods = violated(result)
    how = f"{len(jobs)} jobs, {devices} devices, load {load}"
    every = devices * until
    name = f"philly_{load:.1f}".replace(".", "_")
    moved = sum(job.disturbances for job in result.jobs)
    return {
        f"{name}_s": Figure(took, "s", None, "lower", f"CPU time; {how}"),
        f"{name}_violated": Figure(
            wrong, "periods", 0, "lower", f"of {periods}; {moved} disturbances; {how}"
        ),
        f"{name}_used": Figure(busy([result], until) / every, "of devices", None, "higher", how),
        f"{name}_used_static": Figure(
            busy(parts, until) / every, "of devices", None, "higher", "a part for each tier"
        ),
        f"{name}_wait_h": Figure(
            waited([result], "premium"), "h", None, "lower", f"mean wait of premium jobs; {how}"
        ),
        f"{name}_wait_static_h": Figure(
            waited(parts, "premium"), "h", None, "lower", "the same, a part for each tier"
        ),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.philly", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few jobs: only shows it works")
    parser.add_argument("--jobs", type=int, help="the first ones, on the small fleet; else all")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    options = parser.parse_args(arguments)
    machine = report.machine()
    count, few = (200, 30) if options.quick else (None, options.jobs)
    found = measure_large(jobs_for(LARGE, LARGE_LOAD, count), LARGE)
    for load in (1.0,) if options.quick else LOADS:
        found |= measure_small(jobs_for(SMALL, load, few), SMALL, load)
    print(report.table(found), flush=True)
    print(report.write("philly", machine, found, options.out))


if __name__ == "__main__":
    main()
