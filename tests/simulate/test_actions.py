"""The actions of a simulation are all that changed, with costs that add up to what was lost."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rankfold.policy.vocabulary import TIERS
from rankfold.reconciler.cli import cli
from rankfold.reconciler.commands.simulate import _actions, _grants
from rankfold.simulator.costs import Costs
from rankfold.simulator.result import Action, Result
from rankfold.simulator.runs import BUILT_IN, Events
from rankfold.simulator.trace import Kind, TraceJob

pytestmark = pytest.mark.unit

COSTS = Costs(start=5.0, suspend=1.0, resume=3.0, resize=2.0)


def simulated(jobs: Sequence[TraceJob], devices: int, scheduler: str, costs: Costs) -> Result:
    return Events(jobs, [Kind("gpu", devices)], costs, {}).run(scheduler)


def test_each_action_has_its_cost_and_its_reason() -> None:
    low = TraceJob("low", 0.0, 2, 1, 2, 100.0, tier="basic")
    high = TraceJob("high", 10.0, 1, 1, 1, 20.0)
    found = simulated([low, high], 2, "fifo", COSTS)
    assert found.actions == [
        Action(0.0, "low", "start", 0, 2, 5.0, "spec"),
        Action(10.0, "low", "resize", 2, 1, 2.0, "tier", "gives up 1 device for high (standard)"),
        Action(10.0, "high", "start", 0, 1, 6.0, "spec"),  # 1 s until the device is free
        Action(36.0, "high", "end", 1, 0),
        Action(36.0, "low", "resize", 1, 2, 2.0, "growth", "devices are idle"),
        Action(121.0, "low", "end", 2, 0),
    ]


def test_a_job_that_is_suspended_resumes() -> None:
    low = TraceJob("low", 0.0, 1, 1, 1, 100.0, tier="basic")
    high = TraceJob("high", 10.0, 1, 1, 1, 20.0)
    found = simulated([low, high], 1, "fifo", COSTS)
    kinds = [(each.job, each.action, each.pause) for each in found.actions]
    assert kinds == [
        ("low", "start", 5.0),
        ("low", "suspend", 1.0),
        ("high", "start", 6.0),
        ("high", "end", 0.0),
        ("low", "resume", 3.0),
        ("low", "end", 0.0),
    ]


@st.composite
def traces(draw: st.DrawFn) -> list[TraceJob]:
    jobs, at = [], 0.0
    for number in range(draw(st.integers(1, 8))):
        at += draw(st.integers(0, 20))
        ranks = draw(st.integers(1, 4))
        least = draw(st.integers(0, ranks))
        work = float(draw(st.integers(1, 50)))
        tier = draw(st.sampled_from(TIERS))
        jobs.append(TraceJob(f"j{number}", at, ranks, least, ranks, work, tier=tier))  # type: ignore[arg-type]
    return jobs


@given(
    jobs=traces(),
    devices=st.integers(4, 6),
    scheduler=st.sampled_from(BUILT_IN),
    costs=st.sampled_from([Costs(), COSTS]),
)
def test_actions_lead_to_the_same_outcome(
    jobs: list[TraceJob], devices: int, scheduler: str, costs: Costs
) -> None:
    """The devices of each job over time follow from its actions, as do its disturbances and what
    was lost."""
    found = simulated(jobs, devices, scheduler, costs)
    held: dict[str, list[tuple[float, float, int]]] = {each.name: [] for each in jobs}
    has: dict[str, tuple[float, int, float]] = {}  # since when, how many, until when it pauses
    lost, disturbed = 0.0, dict.fromkeys(held, 0)
    for action in found.actions:
        since, number, pauses = has.pop(action.job, (0.0, 0, 0.0))
        assert action.before == number
        if number and action.time > since:
            held[action.job].append((since, action.time, number))
        lost += max(0.0, min(pauses, action.time) - since) * number
        disturbed[action.job] += action.action in ("suspend", "resize", "move")
        if action.devices:
            has[action.job] = (action.time, action.devices, action.time + action.pause)
    assert not has
    spans: dict[str, list[tuple[float, float, int]]] = {each.name: [] for each in jobs}
    for span in found.spans:
        spans[span.job].append((span.start, span.end, span.devices))
    assert held == spans
    assert lost == pytest.approx(sum(found.lost.values()))
    assert disturbed == {each.name: each.disturbances for each in found.jobs}


Outcome = dict[str, tuple[float, float]]  # job → when it first got devices, and when it ended


def of_actions(text: str, scheduler: str) -> Outcome:
    found: Outcome = {}
    for row in csv.DictReader(text.splitlines()):
        if row["scheduler"] == scheduler:
            time = float(row["time"])
            found[row["job"]] = (found.get(row["job"], (time,))[0], time)
    return found


def of_grants(text: str, scheduler: str) -> Outcome:
    found: Outcome = {}
    for row in csv.DictReader(text.splitlines()):
        if row["scheduler"] == scheduler:
            start, end = float(row["start"]), float(row["end"])
            found[row["job"]] = (found.get(row["job"], (start,))[0], end)
    return found


@given(jobs=traces(), devices=st.integers(4, 6), costs=st.sampled_from([Costs(), COSTS]))
def test_grants_only_lead_to_the_same_outcome(
    jobs: list[TraceJob], devices: int, costs: Costs
) -> None:
    """The times of each job in the report follow from its grants alone, as from its actions."""
    results = {name: simulated(jobs, devices, name, costs) for name in BUILT_IN}
    actions, grants = _actions(results), _grants(results)
    for name, result in results.items():
        outcome = {each.name: (each.start, each.end) for each in result.jobs}
        assert of_grants(grants, name) == outcome
        assert of_actions(actions, name) == outcome


def test_the_command_writes_a_table(tmp_path: Path) -> None:
    trace, actions = tmp_path / "trace.csv", tmp_path / "actions.csv"
    trace.write_text("name,arrival,worldSize,min,max,tier,work\n" + '"a,b",0,1,1,1,basic,10\n')
    grants = tmp_path / "grants.csv"
    words = ["simulate", str(trace), "--nodes", "1", "--gpus-per-node", "1"]
    words += ["--grants", str(grants), "--actions"]
    done = CliRunner().invoke(
        cli, [*words, str(actions), "--scheduler", "fifo,srtf"], standalone_mode=False
    )
    assert done.return_value == 0, done.output
    rows = list(csv.DictReader(actions.read_text().splitlines()))
    assert [(row["scheduler"], row["job"], row["action"]) for row in rows] == [
        ("fifo", "a,b", "start"),
        ("fifo", "a,b", "end"),
        ("srtf", "a,b", "start"),
        ("srtf", "a,b", "end"),
    ]
    assert list(csv.DictReader(grants.read_text().splitlines())) == [
        {
            "scheduler": scheduler,
            "job": "a,b",
            "tier": "basic",
            "quota": "",
            "start": "0.0",
            "end": "10.0",
            "devices": "1",
        }
        for scheduler in ("fifo", "srtf")
    ]
    for other in (tmp_path / "x.txt", grants):
        refused = CliRunner().invoke(cli, [*words, str(other)], standalone_mode=False)
        assert isinstance(refused.exception, click.UsageError)
    words[words.index(str(grants))] = str(trace)
    refused = CliRunner().invoke(cli, [*words, str(actions)], standalone_mode=False)
    assert isinstance(refused.exception, click.UsageError)
    assert "it would be overwritten" in refused.exception.message
