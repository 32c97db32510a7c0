"""How many more devices are in use when training runs on those that a service does not need?

Question. A service's load rises and falls within a day. How many more devices are in use with
elastic jobs next to it, how often do these lose devices, does one fail, and how soon are devices in
use again when the load falls?

Method. A day on 64 devices, simulated with the policy of a fleet. The load is a daily wave times
the requests of an hour of a real service (Azure's conversation trace, sums of 10 s), with twelve
bursts; policy/serving.py decides how many replicas run, with a fall delay of five minutes. Jobs of
the Philly trace, up to 8 devices wide, are elastic, with a minimum of one device, or of none if
they have one; there are more of them than devices for them. Replicas are premium, jobs standard.
Starting takes 20 s, suspending 1 s, resuming and resizing 5 s; the growth delay is 30 s.

Noise. None: the wave is given, and bursts and the choice of jobs have a seed.

Estimate before measuring. The service needs two thirds of the devices at its peak, half of that on
average. Without training two thirds of the fleet are idle, so the gain is some 60 %, much more than
EasyScale's 17.1 %: its fleet served more. A replica that starts takes one device from one job: some
hundred starts a day, and as many preemptions; devices that are free again are used in the next
decision, or after the growth delay.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from benchmarks import report
from benchmarks.report import Figure
from rankfold.paths import REPOSITORY
from rankfold.policy.incremental import Changes, Incremental
from rankfold.policy.serving import Replicas, needed, scaled
from rankfold.policy.sizes import largest, useful
from rankfold.policy.vocabulary import Guaranteed, Job, Rules
from rankfold.simulator.costs import Costs
from rankfold.simulator.events import Simulation
from rankfold.simulator.runs import Events
from rankfold.simulator.trace import Kind, TraceJob

DATA = REPOSITORY / "tests/simulate/data"
AZURE, PHILLY = DATA / "azure-llm/conv.csv.gz", DATA / "philly/jobs.csv.gz"
DAY_S, BIN_S = 86400, 10
DEVICES = 64
FALL_DELAY_S, GROWTH_DELAY_S = 300.0, 30.0
COSTS = Costs(start=20.0, suspend=1.0, resume=5.0, resize=5.0)
BURSTS, WIDEST, LONGEST_S = 12, 8, 6 * 3600
SEED = 20231116


def requests(path: Path) -> list[float]:
    """Requests in each bin of the trace, over their mean."""
    bins: dict[int, float] = {}
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            at = int(row["second"]) // BIN_S
            bins[at] = bins.get(at, 0.0) + float(row["requests"])
    found = [bins.get(at, 0.0) for at in range(max(bins))]
    mean = sum(found) / len(found)
    return [each / mean for each in found]


def load_of_a_day(hour: Sequence[float], random: Random) -> list[float]:
    """The load in each bin of a day; its mean is about 1."""
    starts = [random.uniform(0, DAY_S) for _ in range(BURSTS)]
    bursts = [(start, start + random.uniform(300, 900)) for start in starts]
    found = []
    for at in range(DAY_S // BIN_S):
        second = at * BIN_S
        wave = 1 - 0.5 * math.cos(2 * math.pi * (second - 4 * 3600) / DAY_S)
        burst = 1.3 if any(start <= second < end for start, end in bursts) else 1.0
        smooth = sum(hour[(at - back) % len(hour)] for back in range(6)) / 6  # of a minute
        found.append(wave * burst * smooth)
    return found


def replicas_of(loads: Sequence[float], most: int) -> list[int]:
    """How many replicas run in each bin. most: at the peak of the load."""
    per_replica = max(loads) / most
    state: Replicas | None = None
    found = []
    for at, load in enumerate(loads):
        wanted = needed(load, per_replica, 1, most)
        state = scaled(state, wanted, at * BIN_S, FALL_DELAY_S)
        found.append(state.number)
    return found


def serving_jobs(numbers: Sequence[int]) -> Iterator[TraceJob]:
    """A job for each time in which a replica runs."""
    for replica in range(max(numbers)):
        since: int | None = None
        for at, number in enumerate([*numbers, 0]):
            if number > replica and since is None:
                since = at
            elif number <= replica and since is not None:
                seconds = (at - since) * BIN_S
                work = max(1.0, seconds - COSTS.start - COSTS.suspend)
                name = f"web-{replica}-{since}"
                yield TraceJob(name, since * BIN_S, 1, 1, 1, work, tier="premium")
                since = None


def training_jobs(
    path: Path, at_first: int, device_seconds: float, random: Random
) -> list[TraceJob]:
    """Jobs that need so many device-seconds together: some at first, the others within the day."""
    with gzip.open(path, "rt") as file:
        rows = [
            (int(row["gpus"]), float(row["duration_s"]))
            for row in csv.DictReader(file)
            if int(row["gpus"]) <= WIDEST and 60 <= float(row["duration_s"]) <= LONGEST_S
        ]
    found: list[TraceJob] = []
    while device_seconds > 0:
        gpus, seconds = random.choice(rows)
        device_seconds -= gpus * seconds
        arrival = random.uniform(0, DAY_S) if len(found) >= at_first else 0.0
        least = 1 if gpus > 1 else 0
        found.append(TraceJob(f"t{len(found)}", arrival, gpus, least, gpus, seconds))
    return found


class Followed:
    """A scheduler of the simulator that adds up who has devices, and counts what jobs lose."""

    def __init__(self, scheduler: Incremental, devices: int):
        self._scheduler, self._devices = scheduler, devices
        self._held: dict[str, int] = {}
        self._there: dict[str, Job] = {}
        self._since, self._idle_since = 0.0, math.inf
        self.serving = self.training = 0.0  # device-seconds in the day
        self.preemptions = self.suspensions = self.growth = 0
        self.refills: list[float] = []  # for how long devices were idle that a job could use

    def arrive(self, job: Job) -> None:
        self._there[job.name] = job
        self._scheduler.arrive(job)

    def end(self, name: str, now: float) -> Guaranteed | None:
        self._pass(now)
        self._held.pop(name, None)
        self._there.pop(name, None)
        return self._scheduler.end(name, now)

    def changes(self, now: float) -> Changes:
        self._pass(now)
        found = self._scheduler.changes(now)
        for name, decision in found.items():
            before, number = self._held.get(name, 0), len(decision.devices or ())
            if now < DAY_S and before and not name.startswith("web"):
                self.preemptions += number < before
                self.suspensions += not number
                self.growth += number > before
            self._held[name] = number
        idle = self._devices - sum(self._held.values())
        if not any(self._uses(job, idle) for job in self._there.values()):
            if self._idle_since < now <= DAY_S:
                self.refills.append(now - self._idle_since)
            self._idle_since = math.inf
        elif self._idle_since == math.inf:
            self._idle_since = now
        return found

    def _pass(self, now: float) -> None:
        seconds = max(0.0, min(now, DAY_S) - max(0.0, self._since))
        for name, number in self._held.items():
            if name.startswith("web"):
                self.serving += number * seconds
            else:
                self.training += number * seconds
        self._since = now

    def _uses(self, job: Job, idle: int) -> bool:
        """Whether idle devices would make a job faster."""
        held = self._held.get(job.name, 0)
        sizes = useful(job.world_size, max(1, job.guarantee or 0), job.devices)
        return bool(idle) and largest(sizes, held + idle) > held

    def wakes(self, now: float) -> float:
        return self._scheduler.wakes(now)

    def expect(self, name: str, remaining: float, now: float, pause: float = 0.0) -> None:
        self._scheduler.expect(name, remaining, now, pause)


def measure(devices: int) -> dict[str, Figure]:
    """A service that needs up to two thirds of the devices, and training."""
    random = Random(SEED)
    numbers = replicas_of(load_of_a_day(requests(AZURE), random), devices * 11 // 16)
    serving = list(serving_jobs(numbers))
    left = sum(devices - number for number in numbers) * BIN_S
    training = training_jobs(PHILLY, devices, 1.1 * left, random)
    jobs = sorted([*serving, *training], key=lambda job: (job.arrival, job.name))
    rules = Rules(1 << 30, growth_delay=GROWTH_DELAY_S)
    kinds = [Kind("gpu", devices)]
    followed = Followed(Events(jobs, kinds, COSTS, {}, rules)._scheduler("tiers"), devices)
    result = Simulation(jobs, kinds, followed, COSTS).run()
    whole = devices * DAY_S
    ended = sum(not each.name.startswith("web") for each in result.jobs)
    how = f"{len(serving)} starts of replicas, {len(training)} jobs, {devices} devices, a day"
    return {
        "serving_allocation": Figure(
            followed.serving / whole, "of all devices", None, "higher", f"without training; {how}"
        ),
        "serving_gain": Figure(
            followed.training / whole,
            "of all devices",
            0.171,
            "higher",
            "what training had in addition; EasyScale: 0.171 of a fleet of 3,000 GPUs",
        ),
        "serving_preemptions": Figure(
            followed.preemptions,
            "a day",
            None,
            "lower",
            f"a job lost devices; {followed.suspensions} of them lost all; EasyScale: 362",
        ),
        "serving_growth": Figure(followed.growth, "a day", None, "lower", "a job moved to grow"),
        "serving_failed_jobs": Figure(
            len(training) - ended, "jobs", 0, "lower", "jobs that did not end; EasyScale: 0"
        ),
        "serving_refill_s": Figure(
            max(followed.refills, default=0.0),
            "s",
            300,
            "lower",
            "longest time for which a device was idle that a job could use; EasyScale: 5 min",
        ),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.serving", description=__doc__)
    parser.add_argument("--devices", type=int, default=DEVICES)
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    options = parser.parse_args(arguments)
    machine = report.machine()
    found = measure(options.devices)
    print(report.table(found), flush=True)
    print(report.write("serving", machine, found, options.out))


if __name__ == "__main__":
    main()
