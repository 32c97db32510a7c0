"""When jobs that wait are expected to start is when they start; new jobs are tried without a change
of the fleet."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold import paths
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.report.differences import plan_json, plan_lines
from rankfold.reconciler.report.forecast import (
    Outlook,
    effect_lines,
    effects,
    in_words,
    outlook,
    resumes,
    starts,
)
from support.command import Rankfold, Specs
from support.simulated import Fleet

from .test_ranges import fleet, job, on, wish

VALID = jsonschema.Draft202012Validator(json.loads(paths.schema("forecast").read_text()))
LIMIT = 10_000
STEP = 500.0  # of simulated time, between two looks at the fleet


def expected(place: Fleet) -> Outlook:
    return outlook(place.desired, place.records, place.observed(), place.now)


def one_device(name: str, number: int, **fields: object) -> Job:
    return replace(job(name, 1, 1, created=float(number)), **fields)


# ---- on a simulated fleet


@pytest.mark.unit
def test_the_state_of_a_fleet_is_where_it_begins() -> None:
    a = job("a", 4, 2, time_limit_s=LIMIT)  # each device has two ranks
    place = fleet(2, a, one_device("b", 1))
    place.converge()
    place.now += 4000.0
    of = expected(place)
    assert of.devices("a") == ["local/soft-0", "local/soft-1"] and of.waiting() == ["b"]
    assert of.end("a") == of.start("b") == pytest.approx(6000.0, abs=100.0)
    assert of.devices("b") == ["local/soft-0"] and of.end("b") is None
    assert of.without_limit == ()


@pytest.mark.unit
def test_a_job_on_an_unresponsive_device_is_not_expected_to_end() -> None:
    place = fleet(1, one_device("a", 0, time_limit_s=LIMIT), one_device("b", 1))
    place.converge()
    place.silent = frozenset({"local/soft-0"})
    of = expected(place)
    assert of.start("b") is None and of.end("a") is None


@pytest.mark.unit
def test_a_job_that_lacks_host_memory_is_not_expected_to_start() -> None:
    folded = job("folded", 4, 1)
    place = fleet(1, folded)
    place.host_memory = 0
    place.converge()
    of = expected(place)
    assert of.start("folded") is None and of.stalled == {"folded"}
    place.host_memory = 1 << 40
    assert expected(place).start("folded") == 0.0


@st.composite
def jobs(draw: st.DrawFn) -> list[Job]:
    """Jobs with different time limits, so that no two of them end at the same time."""
    found = []
    limits = draw(st.permutations([3000, 7000, 12_000, 19_000, 31_000]))
    for number, limit in enumerate(limits[: draw(st.integers(2, 5))]):
        ranks = draw(st.integers(1, 3))
        gpus = draw(st.integers(1, ranks))
        least = draw(st.one_of(st.none(), st.integers(0, gpus - 1)))
        tier = draw(st.sampled_from(["basic", "standard", "premium"]))
        fields = {"time_limit_s": limit, "tier": tier}
        found.append(replace(job(f"j{number}", ranks, gpus, least, float(number)), **fields))
    return found


@pytest.mark.unit
@settings(max_examples=25)
@given(wanted=jobs(), devices=st.integers(3, 4))
def test_jobs_start_when_they_are_expected_to(wanted: list[Job], devices: int) -> None:
    place = fleet(devices, *wanted)
    place.converge()
    of, began = expected(place), place.now
    ahead = {name: start for name in of.jobs if (start := of.start(name)) is not None}
    assert set(ahead) == {each.name for each in wanted}, "every job has a time limit"
    started = {name: 0.0 for name, number in on(place).items() if number}
    for _ in range(400):
        if len(started) == len(wanted):
            break
        place.now += STEP
        place.converge()
        for name, number in on(place).items():
            if number:
                started.setdefault(name, place.now - began)
    # A turn takes a second there; each job that ends before delays what follows by a step.
    assert started == {
        name: pytest.approx(start, abs=len(wanted) * (STEP + 100.0))
        for name, start in ahead.items()
    }


# ---- what is shown


def shown(place: Fleet, new: Job) -> tuple[list[str], Json]:
    now = expected(place)
    then = replace(place.desired, jobs={**place.desired.jobs, new.name: new})
    after = outlook(then, place.records, place.observed(), place.now)
    data = effects([new.name], after, now, 0.0)
    assert json.loads(json.dumps(data)) == data
    VALID.validate(data)
    return effect_lines(data), data


@pytest.mark.unit
def test_new_jobs_disturb_and_delay_others() -> None:
    place = fleet(2, one_device("a", 0, time_limit_s=LIMIT), one_device("b", 1, tier="basic"))
    place.converge()
    wish(place, *place.desired.jobs.values(), one_device("q", 2, tier="basic"))
    place.converge()
    record = place.records["b"]
    place.records["b"] = replace(record, pauses={"suspend": 0.25, "resume": 0.5})
    new = one_device("new", 3, tier="premium")
    lines, data = shown(place, new)
    assert [each["name"] for each in data["jobs"]] == ["new", "q"]
    assert lines[1].split()[:4] == ["new", "(new)", "local/soft-1", "now"]
    assert lines[2].startswith("q          -             unknown  -    needs 1 device of any kind")
    assert lines[3].startswith("! Job/q: starts in 2.7")
    assert lines[4].startswith(
        "! Job/b: 1 → 0 devices (gives up 1 device for new (premium)); it stands still for 0.75 s; "
        "has devices again: in 2.7"
    )
    assert lines[5:] == [
        "unknown: new has no timeLimit, so it is not known when devices become free"
    ]


@pytest.mark.unit
def test_a_new_job_that_never_fits_has_the_reason() -> None:
    place = fleet(2, one_device("a", 0))
    place.converge()
    lines, data = shown(place, job("big", 3, 3, created=5.0))
    assert data["jobs"][0]["stalled"] and data["disturbed"] == []
    assert lines[1].endswith("needs 3 devices of any kind; the pools have 2 that fit it")
    assert len(lines) == 2


@pytest.mark.unit
def test_a_new_job_that_is_suspended_does_not_wait() -> None:
    place = fleet(1)
    place.converge()
    (_, line), data = shown(place, one_device("new", 1, suspend=True))
    assert line.split() == ["new", "(new)", "-", "-", "-", "it", "is", "suspended"]
    assert data["jobs"][0]["stalled"]
    (_, line), _ = shown(place, one_device("web-1", 1, idle=True))
    assert line.endswith("its service needs fewer replicas now")


@pytest.mark.unit
def test_a_plan_says_when_waiting_jobs_start() -> None:
    place = fleet(1, one_device("a", 0, time_limit_s=LIMIT), one_device("b", 1))
    place.converge()
    data = plan_json([], place.plan(), "r", place.records, starts(expected(place)))
    (waits,) = data["waiting"]
    assert waits["job"] == "b" and waits["start"] == pytest.approx(LIMIT, abs=100.0)
    (line,) = (line for line in plan_lines(data) if line.startswith("! Job/b"))
    assert line.startswith(
        "! Job/b waits: needs 1 device of any kind; free for it now: 0; start: in"
    )


@pytest.mark.unit
def test_a_plan_says_when_a_job_that_is_suspended_has_devices_again() -> None:
    place = fleet(1, one_device("low", 0, tier="basic"))
    place.converge()
    wish(
        place,
        *place.desired.jobs.values(),
        one_device("high", 1, tier="premium", time_limit_s=LIMIT),
    )
    planned = place.plan()
    found = resumes(expected(place))
    data = plan_json([], planned, "r", place.records, resumes=found)
    (low,) = data["disturbed"]
    assert low["job"] == "low" and low["resumes"] == pytest.approx(LIMIT, abs=100.0)
    (line,) = (line for line in plan_lines(data) if line.startswith("! Job/low"))
    assert line.endswith("and waits until devices are idle; it has devices again: in 2.78 h")


@pytest.mark.unit
def test_moments_have_a_unit() -> None:
    seconds = (0.4, 1.0, 59.6, 60.0, 3599.0, 7200.0, 86_400.0 * 3)
    assert [in_words(each) for each in seconds] == [
        "now", "in 1 s", "in 60 s", "in 1 min", "in 60 min", "in 2 h", "in 3 d",
    ]  # fmt: skip


# ---- the commands, on a fleet of real processes


NEW = """\
apiVersion: rankfold/v1alpha1
kind: Job
metadata: {name: new}
spec: {command: [sleep, "100"], worldSize: 1, gpus: 1, tier: premium}
"""


def check_effects(rankfold: Rankfold, new: Path) -> None:
    data = json.loads(rankfold("simulate", "-f", str(new), "--from-state", "-o", "json"))
    VALID.validate(data)
    starts = [(each["name"], each["start"]) for each in data["jobs"]]
    assert starts == [("new", 0), ("later", None)]
    assert data["jobs"][0]["devices"] == ["local/soft-0"]
    assert 3000 < data["jobs"][1]["startWithout"] < 3600
    assert [(each["job"], each["to"]) for each in data["disturbed"]] == [("gpt", 0)]
    assert "start:        in " in rankfold("describe", "later")


def test_new_jobs_are_tried_with_and_without_a_reconciler(
    rankfold: Rankfold, specs: Specs, tmp_path: Path
) -> None:
    new = tmp_path / "new.yaml"
    new.write_text(NEW)
    assert (
        "has no fleet; `rankfold apply"
        in rankfold.run("simulate", "-f", str(new), "--from-state").stderr
    )
    specs.pool(1)
    specs.job("gpt", 1, "timeLimit: 1h", ranks=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    specs.job("later", 1, ranks=1)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job("later")["queue"])
    before = rankfold.status()
    check_effects(rankfold, new)
    os.kill(rankfold.reconciler_pid(), signal.SIGKILL)
    rankfold.until(lambda: not rankfold.status()["reconciler"]["running"])
    check_effects(rankfold, new)
    after = rankfold.status()
    assert [each["name"] for each in after["jobs"]] == ["gpt", "later"], "nothing was changed"
    assert after["revision"] == before["revision"] and after["jobs"][0]["epoch"] == 1
    (specs.folder / "new.yaml").write_text(NEW.replace("premium", "standard"))
    planned = json.loads(rankfold("plan", "-f", str(specs.folder), "-o", "json"))
    assert {each["job"]: each["start"] is None for each in planned["waiting"]} == {
        "later": False, "new": True,
    }, "a new job is behind those that wait"  # fmt: skip


def test_objects_that_are_no_new_jobs_are_refused(
    rankfold: Rankfold, specs: Specs, tmp_path: Path
) -> None:
    specs.pool(1)
    specs.job("gpt", 1, ranks=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    place = str(specs.folder)
    refused = rankfold.run("simulate", "-f", place, "--from-state")
    assert refused.returncode == 65 and refused.stdout == ""
    lines = refused.stderr.splitlines()
    assert lines[0].endswith(
        "gpt.yaml:3: metadata.name: the fleet has a job of this name; choose another one, or use "
        "`rankfold plan`"
    )
    assert ": kind: --from-state adds jobs to the fleet as it is" in lines[1]
    new = tmp_path / "new.yaml"
    new.write_text(NEW.replace("tier: premium", "quota: research"))
    refused = rankfold.run("simulate", "-f", str(new), "--from-state")
    assert refused.returncode == 65
    assert f"{new}:4: spec.quota: there is no quota 'research'" in refused.stderr
    for arguments in (
        ("-f", place),
        ("--from-state",),
        ("-f", place, "--from-state", "--nodes", "1"),
        (str(new), "-f", place, "--from-state"),
        (),
    ):
        assert rankfold.run("simulate", *arguments).returncode == 64
