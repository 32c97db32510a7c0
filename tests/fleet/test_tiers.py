"""Jobs of three tiers on a fleet get what a simulation of them gets, in its order, with the same
bits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cuda import PROGRAMS, build

from rankfold.policy.incremental import Changes
from rankfold.policy.vocabulary import Guaranteed, Job
from rankfold.simulator.costs import Costs
from rankfold.simulator.events import Simulation
from rankfold.simulator.runs import Events
from rankfold.simulator.trace import Kind, TraceJob
from support.command import Rankfold, Specs

from .neighbour import Neighbour

POLICY = """\
apiVersion: rankfold/v1alpha1
kind: Policy
metadata: {name: default}
spec: {growthDelay: 0s}
"""
DEVICES = 4
Grant = tuple[str, int]  # a job, and how many devices it has from then on


def job(name: str, arrival: float, ranks: int, work: float, tier: str, **fields: int) -> TraceJob:
    least = fields.pop("min", ranks)
    return TraceJob(name, arrival, ranks, least, ranks, work, tier=tier, **fields)  # type: ignore[arg-type]


# They end in this order: prm, sml, sta, std, bas, low.
JOBS = [
    job("low", 0, 4, 1000, "basic", min=1),
    job("std", 10, 2, 60, "standard"),
    job("bas", 20, 1, 30, "basic"),
    job("prm", 30, 2, 70, "premium"),
    job("sta", 40, 1, 80, "standard", priority=1),
    job("sml", 50, 1, 60, "premium", min=0),
]


@dataclass
class Step:
    """One moment: a job arrives or ends; then devices are taken and given."""

    arrives: str = ""
    ends: str = ""
    grants: list[Grant] = field(default_factory=list)


class Followed:
    """A scheduler of the simulator that records its decisions."""

    def __init__(self, jobs: Sequence[TraceJob]):
        events = Events(jobs, [Kind("soft", DEVICES)], Costs(), {})
        self._scheduler, self.steps = events._scheduler("fifo"), list[Step]()

    def arrive(self, job: Job) -> None:
        self.steps.append(Step(arrives=job.name))
        self._scheduler.arrive(job)

    def end(self, name: str, now: float) -> Guaranteed | None:
        self.steps.append(Step(ends=name))
        return self._scheduler.end(name, now)

    def changes(self, now: float) -> Changes:
        found = self._scheduler.changes(now)
        self.steps[-1].grants += [(name, len(each.devices or ())) for name, each in found.items()]
        return found

    def wakes(self, now: float) -> float:
        return self._scheduler.wakes(now)

    def expect(self, name: str, remaining: float, now: float, pause: float = 0.0) -> None:
        self._scheduler.expect(name, remaining, now, pause)


def simulated() -> list[Step]:
    followed = Followed(JOBS)
    Simulation(JOBS, [Kind("soft", DEVICES)], followed, Costs()).run()
    return followed.steps


def granted(rankfold: Rankfold) -> list[Grant]:
    """The numbers of devices that jobs got, 0 for those that lost all, as the events say."""
    found: list[Grant] = []
    for event in json.loads(rankfold("events", "-o", "json")):
        name = event["object"].removeprefix("Job/")
        if event["reason"] == "Placed":
            found.append((name, event["message"].count("local/")))
        elif event["reason"] == "Suspended":
            found.append((name, 0))
    return found


@pytest.mark.slow
def test_six_jobs_of_three_tiers_get_what_the_simulator_gives_them(
    rankfold: Rankfold, specs: Specs
) -> None:
    steps = simulated()
    assert [each.ends for each in steps if each.ends] == ["prm", "sml", "sta", "std", "bas", "low"]
    specs.pool(DEVICES)
    specs.write("policy.yaml", POLICY)
    program: Path = build(PROGRAMS / "until_told.cu")
    jobs = {
        each.name: Neighbour(rankfold, specs, program, each.world_size, each.name) for each in JOBS
    }
    described = {each.name: each for each in JOBS}
    before = 0
    for step in steps:
        if step.arrives:
            its = described[step.arrives]
            extra = f"tier: {its.tier}\n  priority: {its.priority}"
            jobs[its.name].describe(f"{{min: {its.min}, max: {its.max}}}", extra)
            rankfold("apply", "-f", str(specs.folder))
        else:
            jobs[step.ends].finish()
        after = before + len(step.grants)
        rankfold.until(lambda: len(granted(rankfold)) >= after)  # noqa: B023
        found = granted(rankfold)[before:]
        assert sorted(found) == sorted(step.grants), step
        assert [number > 0 for _, number in found] == sorted(number > 0 for _, number in found)
        for name, number in step.grants:
            if number:
                jobs[name].continues(2)
        before = after
    assert len(granted(rankfold)) == before, "no job was disturbed in between"
    check_usage(rankfold, {each.name: str(each.tier) for each in JOBS})


def check_usage(rankfold: Rankfold, tiers: dict[str, str]) -> None:
    """Every job used devices, of its tier only, and as long as its status says."""
    found = json.loads(rankfold("usage", "-o", "json"))
    assert {(row["job"], row["tier"]) for row in found["jobs"]} == set(tiers.items())
    for name in tiers:
        rows = [row for row in found["jobs"] if row["job"] == name]
        used = sum(row["deviceSeconds"] for row in rows)
        assert used == pytest.approx(rankfold.job(name)["gpuSeconds"], abs=0.01) and used > 0
    causes = {row["cause"] for row in found["jobs"] if row["job"] == "low"}
    assert causes == {"spec", "tier", "order", "growth"}
    assert rankfold("usage", "-o", "csv").splitlines()[0] == "job,tier,cause,deviceSeconds"
