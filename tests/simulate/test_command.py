"""`rankfold simulate`: what it prints, and what it refuses."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from click.testing import CliRunner, Result

from rankfold import paths
from rankfold.reconciler.cli import cli
from rankfold.reconciler.commands.common import EXIT_INVALID
from rankfold.reconciler.commands.simulate import _progress
from rankfold.reconciler.source.invalid import InvalidInput

pytestmark = pytest.mark.unit

TRACE = """\
name,arrival,worldSize,min,max,tier,work
long,0,1,1,1,standard,10
wide,1,2,2,2,standard,3
short,2,1,1,1,basic,4
"""
POOL = """\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {name: local}
spec: {devices: [{type: soft, count: 2}]}
"""
GPUS = ("--nodes", "1", "--gpus-per-node", "2")


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., Result]:
    (tmp_path / "trace.csv").write_text(TRACE)

    def run(*arguments: str | Path) -> Result:
        words = ["simulate", str(tmp_path / "trace.csv"), *map(str, arguments)]
        return CliRunner().invoke(cli, words, standalone_mode=False)

    return run


def output_of(done: Result) -> Any:
    assert done.exception is None and done.return_value == 0, done.output
    found = json.loads(done.stdout)
    jsonschema.Draft202012Validator(json.loads(paths.schema("simulation").read_text())).validate(
        found
    )
    return found


def test_json_has_the_figures_of_each_scheduler(simulate: Callable[..., Result]) -> None:
    found = output_of(simulate(*GPUS, "--scheduler", "fifo,srtf", "-o", "json"))
    assert found["jobs"] == 3 and found["devices"] == {"gpu": 2}
    assert list(found["schedulers"]) == ["fifo", "srtf"]
    fifo = found["schedulers"]["fifo"]
    assert fifo["jobs"] == [
        {"name": "long", "jct": 10, "start": 0, "end": 10, "disturbances": 0},
        {"name": "wide", "jct": 12, "start": 10, "end": 13, "disturbances": 0},
        {
            "name": "short",
            "jct": 4,
            "start": 2,
            "end": 6,
            "disturbances": 0,
        },  # `wide` could suspend it
    ]
    assert fifo["makespan"] == 13
    assert fifo["utilisation"] == pytest.approx(20 / 26)
    assert found["schedulers"]["srtf"]["jct"]["mean"] < fifo["jct"]["mean"]


def test_text_is_a_table(simulate: Callable[..., Result]) -> None:
    done = simulate(*GPUS)
    assert done.stdout.splitlines() == [
        "SCHEDULER  JCT MEAN     P50     P99  WAIT MEAN  MAKESPAN   USED  DISTURBED",
        "fifo          8.7 s  10.0 s  12.0 s      3.0 s    13.0 s  76.9%          0",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_shows_how_many_jobs_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with _progress(["fifo"], 3) as progress:
        progress("fifo", 2)
    assert "fifo" in shown.getvalue() and "2/3" in shown.getvalue()
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stderr", piped)
    with _progress(["fifo"], 3) as progress:
        progress("fifo", 2)
    assert piped.getvalue() == ""


def test_a_fleet_is_a_directory_of_pools(simulate: Callable[..., Result], tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(POOL)
    job = POOL.replace("Pool", "Job").replace("{devices: [{type: soft, count: 2}]}", "{}")
    (fleet / "job.yaml").write_text(job.replace("{}", "{command: [x], worldSize: 1}"))
    done = simulate("--fleet", fleet, "-o", "json")
    assert output_of(done)["devices"] == {"soft": 2}
    assert done.stderr == f"not simulated: 1 job of {fleet}\n"


def test_costs_are_read_from_a_file(simulate: Callable[..., Result], tmp_path: Path) -> None:
    costs = tmp_path / "costs.yaml"
    costs.write_text("start: 5\n")
    found = output_of(simulate(*GPUS, "--costs", costs, "-o", "json"))
    assert found["costs"] == {"start": 5, "suspend": 0, "resume": 0, "resize": 0}
    assert found["schedulers"]["fifo"]["lost"] == {"spec": 5 + 10 + 5}


def test_wrong_costs_are_refused(simulate: Callable[..., Result], tmp_path: Path) -> None:
    costs = tmp_path / "costs.yaml"
    costs.write_text("start: 5\nresume: -1\nstrat: 2\n")
    done = simulate(*GPUS, "--costs", costs)
    assert isinstance(done.exception, InvalidInput)
    assert [str(fault) for fault in done.exception.faults] == [
        f"{costs}:2: resume: must be at least 0, not -1. "
        "From getting devices again until the job computes.",
        f"{costs}:3: strat: there is no such field; did you mean start?",
    ]


def test_costs_that_cannot_be_read_are_refused(
    simulate: Callable[..., Result], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (
        ("pipe", "it is a pipe: save what it gives as a file, and give that"),
        (".", "it is a folder: give a file in it"),
        ("none", "No such file or directory"),
    ):
        done = simulate(*GPUS, "--costs", tmp_path / name)
        assert isinstance(done.exception, InvalidInput)
        fault = f"{tmp_path / name}:1: -: cannot be read: {reason}"
        assert [str(each) for each in done.exception.faults] == [fault]


def test_a_pipe_is_no_fleet(simulate: Callable[..., Result], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = simulate("--fleet", tmp_path / "pipe")
    assert isinstance(done.exception, InvalidInput)
    assert [each.reason for each in done.exception.faults] == ["is no file and no folder"]


def test_a_wrong_trace_is_refused(simulate: Callable[..., Result], tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text(TRACE.replace("long,0", "long,7"))
    done = simulate(*GPUS)
    assert done.return_value == EXIT_INVALID and done.stdout == ""
    assert done.stderr == (
        f"{trace}:3:6: arrival: is before that of line 2: sort the file by arrival\n"
    )


def test_the_tiers_of_a_fleet_hold_and_are_reported(
    simulate: Callable[..., Result], tmp_path: Path
) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(POOL)
    policy = POOL.replace("Pool", "Policy").partition("spec:")[0]
    (fleet / "policy.yaml").write_text(policy + "spec: {tiers: {standard: {fraction: 0.5}}}\n")
    found = output_of(simulate("--fleet", fleet, "--scheduler", "tiers,fifo", "-o", "json"))
    tiers = found["schedulers"]["tiers"]["tiers"]
    assert tiers == found["schedulers"]["fifo"]["tiers"], "a fleet serves first come, first served"
    assert tiers["standard"]["admitted"] == 2 and tiers["standard"]["violated"] == 0
    assert "admitted" not in tiers["basic"]


def test_a_fleet_without_devices_or_with_unequal_ones(
    simulate: Callable[..., Result], tmp_path: Path
) -> None:
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    unequal = "[{type: soft, count: 2}, {type: soft, speed: 0.5}]"
    for devices, words in (("[]", "there is no device"), (unequal, "have different speeds")):
        (fleet / "pool.yaml").write_text(POOL.replace("[{type: soft, count: 2}]", devices))
        done = simulate("--fleet", fleet)
        assert isinstance(done.exception, SystemExit) and done.exception.code == EXIT_INVALID
        assert words in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--nodes", "1"),
        ("--nodes", "1", "--gpus-per-node", "2", "--fleet", "."),
        (*GPUS, "--scheduler", "fastest"),
        (*GPUS, "--scheduler", ""),
        (*GPUS, "--growth-delay", "nan"),
        (*GPUS, "--growth-delay", "-1"),
        (*GPUS, "--deadline", "nan"),
    ],
)
def test_wrong_use(simulate: Callable[..., Result], arguments: tuple[str, ...]) -> None:
    assert isinstance(simulate(*arguments).exception, click.UsageError)
