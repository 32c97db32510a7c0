"""How long does the policy decide, with tiers, ranges of devices and guaranteed fractions?

Question. The planner decides on all jobs in each turn. How much CPU time does that take for 1,000
jobs on 10,000 devices and for 10,000 on 100,000, if none has a device yet, and at an event: a job
arrives, or another one ends?

Method. Equal devices in one group; jobs need twelve at least for ten that exist. A third of the
jobs is of each tier, half have a range, a fifth have one device; premium jobs are guaranteed 0.95,
standard ones 0.7. `decide` is called on jobs that all wait. Then follow events, ten seconds apart:
in turn, a job arrives and one ends. Each decision is carried out before the next event, and what
jobs with a fraction have had is counted, as the planner does. CPU time of the thread; the shortest
of several runs of each decision, and of the events' times the median and the 99th percentile.

Noise. Pure Python on one core: other load only adds time to the clock, and some to CPU time.

Estimate before measuring. The planner takes 0.15 s for 1,000 jobs on 10,000 devices, most of it for
its index and messages: a third of that here, and ten times as much for ten times the fleet.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from benchmarks import report
from benchmarks.report import Figure
from rankfold.policy.decide import decide
from rankfold.policy.fractions import admit, counted, rate_of
from rankfold.policy.vocabulary import TIERS, Decision, Fleet, Group, Job, Rules

DEVICES_PER_JOB = 10
RULES = Rules(1 << 30, fractions=(0.0, 0.7, 0.95), growth_delay=30.0)
SECONDS = {1_000: 0.5, 10_000: 3.0}  # targets
EVENT_S = 0.05
EVENTS, SECONDS_BETWEEN = 200, 10.0


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


def carried_out(job: Job, decision: Decision, now: float, until: float) -> Job:
    """The job with the devices that it gets at `now`, and what it has of its fraction `until`
    then."""
    devices = decision.devices or ()
    guaranteed = (job.guaranteed or admit(job, RULES, now)) if decision.admitted else None
    if guaranteed is not None:
        rate = rate_of(guaranteed, job.world_size, len(devices))
        job = replace(job, guaranteed=counted(guaranteed, rate, until))
    if devices == job.own:
        return job
    return replace(
        job,
        own=devices,
        placed=len(devices),
        on_devices=bool(devices),
        begun=job.begun or bool(devices),
        since=now,
        waits_since=now if job.own else job.waits_since,
    )


def event_times(number: int, runs: int, events: int) -> list[float]:
    """CPU seconds of the decision at each event, ascending."""
    fleet, now = fleet_for(number), 0.0
    jobs, found = {job.name: job for job in jobs_for(number)}, []
    more = jobs_for(number + events)[number:]
    for event in range(-1, events):
        if event >= 0 and event % 2 == 0:
            jobs[more[event].name] = replace(more[event], created=now)
        elif event >= 0:
            del jobs[sorted(jobs)[event * 7919 % len(jobs)]]
        if event >= 0:
            found.append(timed(fleet, list(jobs.values()), now, runs))
        decisions, until = decide(fleet, jobs.values(), RULES, now), now + SECONDS_BETWEEN
        jobs = {n: carried_out(job, decisions[n], now, until) for n, job in jobs.items()}
        fleet = fleet_for(number, frozenset(at for job in jobs.values() for at in job.own))
        now = until
    return sorted(found)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.policy", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small fleet: only shows it works")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    options = parser.parse_args(arguments)
    machine, runs = report.machine(), 1 if options.quick else 3
    found = {}
    events = 4 if options.quick else EVENTS
    for number, target in ({20: 0.5, 100: 3.0} if options.quick else SECONDS).items():
        first = timed(fleet_for(number), jobs_for(number), 0.0, runs)
        times = event_times(number, runs, events)
        how = f"CPU time of {number} jobs on {number * DEVICES_PER_JOB} devices, least of {runs}"
        size = "small" if target < 1 else "large"
        found[f"policy_first_{size}_s"] = Figure(first, "s", target, "lower", f"all wait; {how}")
        limit = EVENT_S if size == "large" else None
        how = f"of {events} events; {how}"
        middle, high = times[len(times) // 2], times[math.ceil(len(times) * 0.99) - 1]
        found[f"policy_event_{size}_s"] = Figure(middle, "s", None, "lower", f"median {how}")
        found[f"policy_event_{size}_p99_s"] = Figure(high, "s", limit, "lower", f"99 % {how}")
    print(report.table(found), flush=True)
    print(report.write("policy", machine, found, options.out))


if __name__ == "__main__":
    main()
