"""How long does the policy decide, with tiers, ranges of devices and guaranteed fractions?

Question. The planner decides on all jobs in each turn. How much CPU time does that take for 1,000
jobs on 10,000 devices and for 10,000 on 100,000, if none has a device yet, and if all are placed
and one more arrives?

Method. Equal devices in one group; jobs need twelve at least for ten that exist. A third of the
jobs is of each tier, half have a range, a fifth have one device; premium jobs are guaranteed 0.95,
standard ones 0.7. `decide` is called on jobs that all wait; then on the same jobs with the devices
that they got, and one premium job more. CPU time of the thread; the shortest of several runs.

Noise. Pure Python on one core: other load only adds time to the clock, and some to CPU time.

Estimate before measuring. The planner takes 0.15 s for 1,000 jobs on 10,000 devices, most of it for
its index and messages: a third of that here, and ten times as much for ten times the fleet.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from benchmarks import report
from benchmarks.report import Figure
from rankfold.policy.decide import decide
from rankfold.policy.fractions import admit
from rankfold.policy.vocabulary import TIERS, Fleet, Group, Job, Rules

DEVICES_PER_JOB = 10
RULES = Rules(1 << 30, fractions=(0.0, 0.7, 0.95), growth_delay=30.0)
SECONDS = {1_000: 0.5, 10_000: 3.0}  # targets
EVENT_S = 0.05


def jobs_for(number: int) -> list[Job]:
    """Jobs that all wait, with different numbers of devices; the fewest are 12 on average."""
    found = []
    for at in range(number):
        devices = 1 if at % 5 == 0 else DEVICES_PER_JOB // 2 + at % 30
        found.append(
            Job(
                f"j{at}",
                devices + at % 8,
                devices,
                float(at),
                (0,),
                guarantee=max(1, devices // 2) if at % 2 else None,
                tier=TIERS[at % 3],  # type: ignore[arg-type]
                pause=1.0,
            )
        )
    return found


def fleet_for(number: int, held: frozenset[int] = frozenset()) -> Fleet:
    devices = tuple(range(number * DEVICES_PER_JOB))
    free = tuple(at for at in devices if at not in held)
    return Fleet((Group(free, len(devices), members=devices),), 0)


def timed(fleet: Fleet, jobs: list[Job], now: float, runs: int) -> float:
    """CPU seconds of one decision."""
    took = []
    for _ in range(runs):
        start = time.thread_time()
        decide(fleet, jobs, RULES, now)
        took.append(time.thread_time() - start)
    return min(took)


def placed(jobs: list[Job], fleet: Fleet) -> list[Job]:
    """The jobs with the devices that they get."""
    decisions = decide(fleet, jobs, RULES, 0.0)
    found = []
    for job in jobs:
        devices = decisions[job.name].devices or ()
        found.append(
            replace(
                job,
                own=devices,
                placed=len(devices),
                on_devices=bool(devices),
                begun=bool(devices),
                guaranteed=admit(job, RULES, 0.0) if decisions[job.name].admitted else None,
            )
        )
    return found


def measure(number: int, runs: int) -> tuple[float, float]:
    """CPU seconds of the first decision, and of one when a job more arrives."""
    fleet, jobs = fleet_for(number), jobs_for(number)
    first = timed(fleet, jobs, 0.0, runs)
    settled = placed(jobs, fleet)
    held = frozenset(at for job in settled for at in job.own)
    more = replace(jobs[2], name="more", created=float(number))
    return first, timed(fleet_for(number, held), [*settled, more], 60.0, runs)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.policy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small fleet: only shows it works")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    options = parser.parse_args(arguments)
    machine, runs = report.machine(), 1 if options.quick else 5
    found = {}
    for number, target in ({20: 0.5, 100: 3.0} if options.quick else SECONDS).items():
        first, event = measure(number, runs)
        how = f"CPU time of {number} jobs on {number * DEVICES_PER_JOB} devices, least of {runs}"
        size = "small" if target < 1 else "large"
        found[f"policy_first_{size}_s"] = Figure(first, "s", target, "lower", f"all wait; {how}")
        limit = EVENT_S if size == "large" else None
        found[f"policy_event_{size}_s"] = Figure(event, "s", limit, "lower", f"one arrives; {how}")
    print(report.table(found), flush=True)
    print(report.write("policy", machine, found, options.out))


if __name__ == "__main__":
    main()
