"""Pollux workloads: what a job's configuration is, and which files are refused. Whole simulations
are compared in tests/policy/test_published.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from rankfold.policy.vocabulary import Decision, Fleet, Job
from rankfold.reconciler.cli import cli
from rankfold.reconciler.commands.common import EXIT_INVALID
from rankfold.simulator.costs import Costs
from rankfold.simulator.pollux import (
    Application,
    NotMeasured,
    PolluxJob,
    Training,
    read_workload,
)
from rankfold.simulator.runs import Ticks
from rankfold.simulator.table import BadTrace
from rankfold.simulator.ticks import Nodes

pytestmark = pytest.mark.unit

DATA = Path(__file__).parent / "data/pollux"
APPLICATIONS = DATA / "applications"
HEAD = "name,time,application,num_replicas,batch_size\n"


@pytest.fixture(scope="module")
def cifar() -> Application:
    return Application(APPLICATIONS / "cifar10")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with one application, whose files a test may change."""
    folder = tmp_path / "applications"
    shutil.copytree(APPLICATIONS / "bert", folder / "bert")
    return folder


def job(application: Application, devices: int, batch: int) -> PolluxJob:
    return PolluxJob("a", 0.0, application, devices, batch)


# ---- configurations


def test_a_batch_is_divided_among_the_devices(cifar: Application) -> None:
    assert (cifar.initial, cifar.largest) == (128, 4096)
    assert job(cifar, 4, 2048).parts(4, accumulate=False) == (512, 0)
    assert job(cifar, 3, 2048).parts(3, accumulate=False) == (683, 0)


def test_a_part_that_is_too_large_is_computed_in_several_goes(cifar: Application) -> None:
    assert cifar.local_max == 1024
    assert job(cifar, 2, 4096).parts(2, accumulate=False) == (1024, 1)


def test_one_device_accumulates_a_batch_above_the_smallest(cifar: Application) -> None:
    assert job(cifar, 1, 256).parts(1, accumulate=False) == (128, 1)
    assert job(cifar, 1, 128).parts(1, accumulate=False) == (128, 0)
    assert job(cifar, 1, 128).parts(1, accumulate=True) == (64, 1)


def test_a_placement_counts_as_the_least_of_its_rotations(cifar: Application) -> None:
    assert cifar.times((2, 1), 128) == cifar.times((1, 2), 128)
    assert cifar.times((3, 1, 2), 128) == cifar.times((1, 2, 3), 128)
    assert cifar.times((1, 2), 128) != cifar.times((3,), 128)


def test_times_between_measurements_are_interpolated(cifar: Application) -> None:
    low, high = cifar.times((1,), 32), cifar.times((1,), 45)
    step, sync = cifar.times((1,), 40)
    assert step == pytest.approx(low[0] + (high[0] - low[0]) * 8 / 13)
    assert sync == pytest.approx(low[1] + (high[1] - low[1]) * 8 / 13)


def test_unmeasured_configurations_are_refused(cifar: Application) -> None:
    with pytest.raises(NotMeasured, match=r"cifar10: on devices 1\+2, each with 1 sample"):
        cifar.times((2, 1), 1)
    with pytest.raises(NotMeasured, match="cifar10: a batch of 8192 samples"):
        cifar.statistics(8192, 0)


def test_a_larger_batch_makes_less_progress_per_sample(cifar: Application) -> None:
    small, large = Training(job(cifar, 1, 128)), Training(job(cifar, 4, 512))
    small.advance((1,), 10.0)
    large.advance((4,), 10.0)
    step = {devices: cifar.times((devices,), 128)[0] for devices in (1, 4)}
    samples = {1: 128 * 10 / step[1], 4: 512 * 10 / step[4]}
    assert small.progress == pytest.approx(samples[1] / 128)
    assert 0.25 * samples[4] / 128 < large.progress < samples[4] / 128


def test_a_job_ends_at_a_whole_second_and_returns_what_is_left(cifar: Application) -> None:
    training = Training(job(cifar, 4, 2048))
    seconds = 0.0
    while not training.done:
        left = training.advance((4,), 60.0)
        seconds += 60.0 - left
    assert left > 0 and seconds == round(seconds)


def test_its_nodes_are_the_placement() -> None:
    nodes = Nodes(3, 4)
    assert nodes.fleet().nodes == ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
    assert nodes.placement((5, 6, 0, 1, 2, 8)) == (2, 3, 1)


@pytest.mark.parametrize("pause", [30, 200])
def test_a_changed_placement_costs_a_pause(cifar: Application, pause: int) -> None:
    """One that is part of a step of 60 s, and one that takes several."""
    jobs = [job(cifar, 4, 512)]
    free, dear = (
        Ticks(jobs, Nodes(1, 4), Costs(start=start), {}).run("fifo").jobs[0] for start in (0, pause)
    )
    assert free.start == dear.start == 60
    assert abs(dear.end - free.end - pause) <= 2, "each epoch ends at a whole second"


def test_a_policy_gets_its_notes_back(cifar: Application) -> None:
    notes = []

    def count(fleet: Fleet, jobs: list[Job], now: float) -> dict[str, Decision]:
        notes.append(jobs[0].note)
        return {jobs[0].name: Decision((0, 1, 2, 3), "granted", note=str(len(notes)))}

    Ticks([job(cifar, 4, 512)], Nodes(1, 4), Costs(), {"count": count}).run("count")
    assert notes == ["", *map(str, range(1, len(notes)))] and len(notes) > 2


@pytest.mark.parametrize("scheduler", ["fifo", "backfill"])
def test_built_in_schedulers_run_a_workload(scheduler: str) -> None:
    jobs = read_workload(DATA / "workloads/workload-3.csv", APPLICATIONS, 64)[:15]
    result = Ticks(jobs, Nodes(16, 4), Costs(), {}).run(scheduler)
    assert {done.name for done in result.jobs} == {each.name for each in jobs}
    assert result.json()["disturbances"] == 0


# ---- files

REFUSED = {
    "unknown application": (
        "a,0,gpt,1,12\n",
        "2:5: application: must be one of bert, cifar10, ncf, imagenet, deepspeech2, yolov3, "
        "not 'gpt'",
    ),
    "batch not measured": (
        "a,0,bert,1,385\n",
        "2:12: batch_size: must be from 12 to 384 for bert, not 385",
    ),
    "too many devices": (
        "a,0,bert,65,24\n",
        "2:10: num_replicas: needs 65; the fleet has 64 devices",
    ),
    "unsorted": (
        "a,1,bert,1,24\nb,0,bert,1,24\n",
        "3:3: time: is before that of line 2: sort the file by time",
    ),
    "same name": ("a,1,bert,1,24\na,1,bert,1,24\n", "3:1: name: 'a' is also the name of line 2"),
    "no jobs": ("", "1:1: -: the trace has no jobs"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_workload_is_refused(case: str, tmp_path: Path) -> None:
    text, reason = REFUSED[case]
    path = tmp_path / "w.csv"
    path.write_text(HEAD + text)
    with pytest.raises(BadTrace) as refused:
        read_workload(path, APPLICATIONS, 64)
    assert refused.value.faults == [f"{path}:{reason}"]


def damaged(folder: Path, name: str, old: str, new: str) -> list[str]:
    path = folder / "bert" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(BadTrace) as refused:
        Application(folder / "bert")
    return refused.value.faults


def test_wrong_measurements_are_refused(copied: Path) -> None:
    path = copied / "bert/placements.csv"
    zero = damaged(copied, "placements.csv", "1,4,0.45532354712486267,", "1,4,0,")
    assert zero == [f"{path}:2:5: step_time: must be a number above 0 and at most 1e+06, not '0'"]


def test_a_placement_without_devices_on_a_node_is_refused(copied: Path) -> None:
    path = copied / "bert/placements.csv"
    assert damaged(copied, "placements.csv", "\n1,4,", "\n101,4,")[0] == (
        f"{path}:2:1: placement: must not have a node with no device"
    )


def test_too_few_epochs_are_refused(copied: Path) -> None:
    path = copied / "bert/validation-12.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with pytest.raises(BadTrace) as refused:
        Application(copied / "bert")
    assert refused.value.faults == [
        f"{path}:2:1: -: ends after epoch 1 of 2: the file may be truncated"
    ]


def test_progress_that_does_not_increase_is_refused(copied: Path) -> None:
    path = copied / "bert/validation-12.csv"
    faults = damaged(copied, "validation-12.csv", "14774.0,", "7387.0,")
    assert faults == [f"{path}:3:1: progress: is not above that of the line before"]


def test_a_missing_file_is_named(copied: Path) -> None:
    (copied / "bert/scalability.csv").unlink()
    with pytest.raises(BadTrace, match=r"scalability\.csv:1:1: -: cannot be read: No such file"):
        Application(copied / "bert")
    for path in (copied / "bert").glob("validation-*"):
        path.unlink()
    with pytest.raises(BadTrace, match=r"has no validation-BATCH\.csv for two batches"):
        Application(copied / "bert")


# ---- the command


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., Result]:
    (tmp_path / "w.csv").write_text(HEAD + "a,10,cifar10,4,512\n")

    def run(*arguments: str | Path) -> Result:
        words = ["simulate", str(tmp_path / "w.csv"), *map(str, arguments)]
        return CliRunner().invoke(cli, words, standalone_mode=False)

    return run


GPUS: tuple[Any, ...] = ("--nodes", "1", "--gpus-per-node", "4")


def test_a_workload_is_recognised_by_its_header(simulate: Callable[..., Result]) -> None:
    done = simulate(*GPUS, "--applications", APPLICATIONS, "-o", "json", "--tick", "30")
    found = json.loads(done.stdout)
    assert found["devices"] == {"gpu": 4}
    assert found["schedulers"]["fifo"]["jobs"][0]["start"] == 30


@pytest.mark.parametrize(
    "arguments", [GPUS, ("--applications", APPLICATIONS, "--fleet", "."), ("--applications", "x")]
)
def test_a_workload_needs_nodes_and_applications(
    arguments: tuple[Any, ...], simulate: Callable[..., Result]
) -> None:
    assert isinstance(simulate(*arguments).exception, click.UsageError)


def test_options_of_workloads_are_refused_for_other_traces(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("name,arrival,worldSize,min,max,tier,work\na,0,1,1,1,basic,1\n")
    words = ["simulate", str(trace), *GPUS, "--tick", "60"]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert isinstance(done.exception, click.UsageError)
    assert "--tick is only for traces of format pollux" in str(done.exception)


def test_a_wrong_workload_ends_the_command(simulate: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text(HEAD + "a,10,cifar10,5,512\n")
    done = simulate(*GPUS, "--applications", APPLICATIONS)
    assert done.return_value == EXIT_INVALID
    assert done.stderr.endswith("num_replicas: needs 5; the fleet has 4 devices\n")
