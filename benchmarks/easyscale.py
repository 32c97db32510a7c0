"""How much sooner do jobs end that can have any number of devices, on EasyScale's workload?

Question. EasyScale (SC '23, section 5.2) compares its schedulers with one job at a time, which
holds the cluster: jobs complete 8.32 times as fast with the devices that they prefer, and the last
one ends 2.46 times as soon. How does the policy of a fleet do, and fixed numbers of devices?

Method. 32 V100, 16 P100 and 16 T4, each job on the type that it prefers. Each start and each change
of devices takes 20 s. As in EasyScale's simulator, everything is decided every 60 s, for the
baseline, too, which so loses half a minute with each job; and again at each event, without that.
`elastic`: jobs have one device or more, by the policy of a fleet with a growth delay of 60 s.
`optimus` gives them to the job that then saves the most time. `fifo`, `backfill`, `las` and `srtf`
give each job all of its devices; `optimus` and `srtf` know how long jobs take.
`heter`: jobs that keep their bits on all types of devices may use several at once.
The workload has no licence, so it is read where a user has it: --workload. Without it there are
only eight workloads with the same margins: 62 jobs in 78 minutes, 4 to 32 ranks, lengths of mean
3.65 and deviation 1.94 of their natural logarithms.

Noise. None: the workloads have seeds.

Estimate before measuring. An independent simulation of EasyScale's own greedy policy gave 8.1 and
2.34, with mixed types 13.5 and 2.76. Ours gives devices by the factor per device, and exchanges
them: the same or a little more.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

from msgspec.structs import replace

from benchmarks import report
from benchmarks.report import Figure
from rankfold.policy.incremental import Changes, Incremental, incremental
from rankfold.policy.vocabulary import Guaranteed, Job, Rules
from rankfold.simulator.costs import Costs
from rankfold.simulator.easyscale import TYPES, read_easyscale
from rankfold.simulator.events import Simulation, fleet_of
from rankfold.simulator.published import PUBLISHED, Published
from rankfold.simulator.runs import built_in
from rankfold.simulator.trace import Kind, TraceJob
from rankfold.simulator.whole import RULES, Whole

KINDS = [Kind(name, devices) for name, devices in zip(TYPES, (32, 16, 16), strict=True)]
PAUSE_S, TICK_S, GROWTH_DELAY_S = 20.0, 60.0, 60.0
COSTS = Costs(start=PAUSE_S, resume=PAUSE_S, resize=PAUSE_S)
SEEDS, JOBS, LAST_S = range(8), 62, 4700.0
WIDTHS, PREFERRED = {4: 1, 8: 11, 16: 18, 32: 38}, (52, 13, 3)  # how many of the workload's rows
TARGETS = {"jct": 7.47, "makespan": 2.25}
MIXED_TARGETS = {"jct": 11.88, "makespan": 2.52}
Means = dict[str, float]  # seconds: the mean time to completion, and that of all jobs


class Ticked:
    """A scheduler that decides every TICK_S, if something has happened."""

    def __init__(self, inner: Incremental):
        self._inner, self._changed = inner, False

    def arrive(self, job: Job) -> None:
        self._changed = True
        self._inner.arrive(job)

    def end(self, name: str, now: float) -> Guaranteed | None:
        self._changed = True
        return self._inner.end(name, now)

    def changes(self, now: float) -> Changes:
        if now % TICK_S:
            return {}
        self._changed = False
        return self._inner.changes(now)

    def wakes(self, now: float) -> float:
        if self._changed:
            return (math.floor(now / TICK_S) + 1) * TICK_S
        wakes = self._inner.wakes(now)
        return wakes if wakes == math.inf else math.ceil(wakes / TICK_S) * TICK_S

    def expect(self, name: str, remaining: float, now: float, pause: float = 0.0) -> None:
        self._inner.expect(name, remaining, now, pause)


def one_at_a_time(jobs: Sequence[TraceJob], ticks: bool) -> Means:
    end, total = 0.0, 0.0
    for job in jobs:
        start = max(end, job.arrival)
        start = math.ceil(start / TICK_S) * TICK_S if ticks else start
        end = start + PAUSE_S + job.seconds(min(job.max, KINDS[job.kind].devices), 1.0)
        total += end - job.arrival
    return {"jct": total / len(jobs), "makespan": end - jobs[0].arrival}


def simulated(jobs: Sequence[TraceJob], scheduler: str, ticks: bool) -> Means:
    """scheduler: of `BUILT_IN` or `PUBLISHED`, or "elastic"."""
    chosen: Incremental
    if scheduler == "elastic":
        rules = replace(RULES, growth_delay=GROWTH_DELAY_S)
        chosen = Whole(fleet_of(KINDS), built_in("tiers", rules), rules)
    elif scheduler in PUBLISHED:
        chosen = Published(scheduler, built_in(scheduler), KINDS, COSTS)
    else:
        jobs = [replace(job, min=job.max) for job in jobs]
        chosen = incremental(fleet_of(KINDS), Rules(RULES.ranks_on_a_device, scheduler))
    done = Simulation(jobs, KINDS, Ticked(chosen) if ticks else chosen, COSTS).run().json()
    return {"jct": done["jct"]["mean"], "makespan": done["makespan"]}


def drawn(seed: int) -> list[TraceJob]:
    """A workload with the margins of EasyScale's."""
    random, jobs = Random(seed), []
    for number in range(JOBS):
        width = random.choices([*WIDTHS], [*WIDTHS.values()])[0]
        kind = random.choices(range(len(KINDS)), PREFERRED)[0]
        arrival, work = random.uniform(0, LAST_S), random.lognormvariate(3.65, 1.94)
        jobs.append(TraceJob(f"j{number}", arrival, width, 1, width, work, kind))
    return sorted(jobs, key=lambda job: job.arrival)


def ratios(
    workloads: Sequence[Sequence[TraceJob]], of: Callable[[Sequence[TraceJob]], Means], ticks: bool
) -> Means:
    """How many times as soon as one at a time: the medians."""
    found = [(one_at_a_time(jobs, ticks), of(jobs)) for jobs in workloads]
    return {name: median(base[name] / new[name] for base, new in found) for name in TARGETS}


def measure(
    name: str, workloads: Sequence[Sequence[TraceJob]], targets: Mapping[str, float]
) -> dict[str, Figure]:
    """name: of the workloads."""
    figures: dict[str, Figure] = {}
    for ticks in (True, False):
        for scheduler in ("elastic", "srtf", "optimus", "backfill", "las", "fifo"):
            found = ratios(workloads, partial(simulated, scheduler=scheduler, ticks=ticks), ticks)
            when = f"decisions {f'every {TICK_S:g} s' if ticks else 'at each event'}"
            how = f"{scheduler}, over one job at a time; {when}; {name}"
            for figure, ratio in found.items():
                promised = scheduler == "elastic" and ticks
                target = targets.get(figure) if promised else None
                key = f"{figure}_over_baseline_{name}"
                if not promised:
                    key += f"_{scheduler}_{'ticks' if ticks else 'events'}"
                figures[key] = Figure(ratio, "×", target, "higher", how)
    return figures


def mixed(path: Path) -> dict[str, Figure]:
    """Jobs on several types of devices at once, over the same baseline."""
    figures: dict[str, Figure] = {}
    jobs, apart = read_easyscale(path, KINDS, mixed=True), read_easyscale(path, KINDS)
    for ticks in (True, False):
        base, new = one_at_a_time(apart, ticks), simulated(jobs, "elastic", ticks)
        when = f"decisions {f'every {TICK_S:g} s' if ticks else 'at each event'}"
        for name, target in MIXED_TARGETS.items():
            key = f"{name}_over_baseline_heter" + ("" if ticks else "_elastic_events")
            how = f"elastic, types mixed, over one job at a time; {when}"
            figures[key] = Figure(
                base[name] / new[name], "×", target if ticks else None, "higher", how
            )
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.easyscale", description=__doc__)
    parser.add_argument("--workload", type=Path, help="test.csv of EasyScale's simulator")
    parser.add_argument("--quick", action="store_true", help="one workload: only shows it works")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    options = parser.parse_args(arguments)
    machine = report.machine()
    figures: dict[str, Figure] = {}
    if options.workload is not None:
        figures |= measure("homo", [read_easyscale(options.workload, KINDS)], TARGETS)
        figures |= mixed(options.workload)
    figures |= measure("drawn", [drawn(seed) for seed in SEEDS[: 1 if options.quick else None]], {})
    print(report.table(figures), flush=True)
    print(report.write("easyscale", machine, figures, options.out))


if __name__ == "__main__":
    main()
