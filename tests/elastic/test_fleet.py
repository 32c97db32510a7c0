"""A job of the elastic runtime in a fleet follows its file, and has the bits of stock processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic.conftest import FOLDER, LONG, LONG_FEATURES, Python
from support import leaks, privileges
from support.command import Git, Rankfold, Specs, job_environment
from support.leaks import State

pytestmark = pytest.mark.torch
SCRIPT = Path(__file__).parent / "features.py"
COMMAND = json.dumps([sys.executable, str(SCRIPT), *LONG_FEATURES])
WORLD = 3
EVERY = 20  # steps between checkpoints
POOL = """\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {name: local}
spec: {devices: [{type: cpu, count: 3}]}
"""
JOB = f"""\
apiVersion: rankfold/v1alpha1
kind: Job
metadata: {{name: train}}
spec:
  command: {COMMAND}
  env: {json.dumps({**LONG, "PYTHONPATH": str(FOLDER)})}
  runtime: elastic
  worldSize: {WORLD}
  gpus: GPUS
"""


@pytest.fixture
def rankfold(state: State) -> Iterator[Rankfold]:
    command = Rankfold(state, job_environment(), deadline_s=120.0)
    yield command
    command.end()


class Job:
    def __init__(self, rankfold: Rankfold, specs: Specs):
        self.rankfold, self.specs = rankfold, specs
        specs.write("pool.yaml", POOL)

    def apply(self, gpus: int | str, extra: str = "") -> None:
        self.specs.write("train.yaml", JOB.replace("GPUS", str(gpus)) + extra)
        self.rankfold("apply", "-f", str(self.specs.folder), "--wait")

    def now(self) -> Any:
        return self.rankfold.job("train")

    def ends(self) -> str:
        self.rankfold.until(lambda: self.now()["phase"] in ("Succeeded", "Failed"))
        phase: str = self.now()["phase"]
        return phase

    def went_back_to_a_checkpoint(self) -> bool:
        (lost,) = (c["message"] for c in self.now()["conditions"] if c["type"] == "Restarted")
        return "checkpoint" in lost and "from the beginning" not in lost

    def affinities(self) -> dict[str, set[tuple[int, ...]]]:
        """On which cores the threads of the process of each rank run. Each rank has a process."""
        (first,) = [each["pid"] for each in self.now()["ranks"] if each["rank"] == 0]
        processes = {name(pid): pid for pid in leaks.below(first)}
        return {
            f"rank-{rank}": {
                tuple(sorted(os.sched_getaffinity(int(thread.name))))
                for thread in Path(f"/proc/{processes[f'rank-{rank}']}/task").iterdir()
            }
            for rank in range(WORLD)
        }

    def cores(self) -> dict[str, set[tuple[int, ...]]]:
        """As `status` reports them, and the pool promises: each device has one, while there are."""
        all_cores = sorted(os.sched_getaffinity(0))
        devices = {each["name"]: each["cores"] for each in self.rankfold.status()["devices"]}
        promised = [[all_cores[each % len(all_cores)]] for each in range(WORLD)]
        assert devices == {f"local/cpu-{each}": promised[each] for each in range(WORLD)}
        assert f"local/cpu-0 core {promised[0][0]}" in self.rankfold("describe", "train")
        return {f"rank-{each['rank']}": {(*each["cores"],)} for each in self.now()["ranks"]}

    def output(self) -> dict[str, str]:
        logs = self.rankfold.state.path / "jobs/train/logs"
        found = [*logs.glob("rank-*.out"), *logs.glob("rank-*.err")]
        return {each.name: each.read_text() for each in sorted(found)}


@pytest.fixture
def job(python: Python, rankfold: Rankfold, tmp_path: Path) -> Job:
    return Job(rankfold, Specs(tmp_path / "specs"))


def test_changes_of_the_file_and_commands_change_no_bit(job: Job, long: dict[str, str]) -> None:
    job.apply(2)
    assert len(set(job.now()["placement"].values())) == 2
    job.apply(3)
    assert sorted(job.now()["placement"].values()) == [f"local/cpu-{each}" for each in range(3)]
    assert job.affinities() == job.cores()
    job.apply(1)
    assert set(job.now()["placement"].values()) == {"local/cpu-0"}
    job.rankfold("suspend", "train", "--override")
    job.rankfold.until(lambda: job.now()["phase"] == "Suspended")
    before = job.output()
    assert all(each["ranks"] == [] for each in job.rankfold.status()["devices"])
    job.rankfold("resume", "train", "--override")
    assert "collectives" in job.rankfold("describe", "train")
    assert job.ends() == "Succeeded"
    assert job.output() == long
    assert before != long, "it was suspended before its end"
    assert job.rankfold("logs", "train", "--rank", "1") == long["rank-1.out"]


@pytest.mark.slow
def test_a_killed_rank_continues_from_the_last_checkpoint(job: Job, long: dict[str, str]) -> None:
    job.apply(2)
    job.rankfold("checkpoint", "train", "--wait")
    (rank,) = [each for each in job.now()["ranks"] if each["rank"] == 0]
    os.kill(leaks.parent(rank["pid"]), signal.SIGKILL)
    assert job.ends() == "Succeeded"
    assert job.now()["restarts"] == 1
    assert job.went_back_to_a_checkpoint()
    assert job.output() == long


@pytest.mark.slow
def test_checkpoints_by_steps_need_no_criu_and_no_privileges(
    job: Job, long: dict[str, str]
) -> None:
    """All processes are killed: work since the last checkpoint is repeated."""
    if not shutil.which("setpriv"):
        privileges.missing("needs setpriv (util-linux)")
    job.rankfold.prefix = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    assert "CRIU needs to have the CAP_SYS_ADMIN" in job.rankfold("doctor")
    job.apply(2, f"  checkpoint: {{interval: 0s, everySteps: {EVERY}}}\n")
    assert [each["reason"] for each in job.now()["conditions"]] == ["AsDesired"]
    job.rankfold.until(lambda: len(job.now()["checkpoints"]) > 1)
    job.rankfold.kill_everything("train")
    job.apply(1, f"  checkpoint: {{interval: 0s, everySteps: {EVERY}}}\n")
    assert job.ends() == "Succeeded"
    assert job.now()["restarts"] == 1
    assert job.went_back_to_a_checkpoint()
    assert job.output() == long


@pytest.mark.slow
def test_a_killed_job_continues_from_a_checkpoint_by_time(job: Job, long: dict[str, str]) -> None:
    every = "  checkpoint: {interval: 1s}\n"
    job.apply(3, every)
    job.rankfold.until(lambda: job.now()["checkpoints"])
    job.rankfold.kill_everything("train")
    job.apply(2, every)
    assert job.ends() == "Succeeded"
    assert job.now()["restarts"] == 1
    assert job.went_back_to_a_checkpoint()
    assert job.output() == long


@pytest.mark.slow
def test_commits_change_the_number_of_processes(
    job: Job, rankfold: Rankfold, long: dict[str, str]
) -> None:
    """The last one has the job suspended before it ends, by `gpus: 0`."""
    repository = Git(job.specs.folder)
    repository("init", "--quiet", "--initial-branch", "main")

    def commit(gpus: int) -> None:
        job.specs.write("train.yaml", JOB.replace("GPUS", str(gpus)))
        repository.commit(str(gpus))
        rankfold.until(lambda: len(set(job.now().get("placement", {}).values())) == gpus)

    job.specs.write("train.yaml", JOB.replace("GPUS", "1"))
    repository.commit("1")
    with rankfold.start("watch", "--git", str(job.specs.folder)) as watching:
        rankfold.until(lambda: len(set(job.now().get("placement", {}).values())) == 1)
        for gpus in (3, 2, 0):
            commit(gpus)
        rankfold.until(lambda: job.now()["phase"] == "Suspended")
        assert job.output() != long, "it was suspended before its end"
        commit(3)
        assert job.ends() == "Succeeded"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) == 0
    assert job.now()["restarts"] == 0
    assert job.output() == long


@pytest.mark.slow
def test_the_policy_suspends_a_job_without_a_guarantee_and_resumes_it(
    job: Job, long: dict[str, str]
) -> None:
    job.apply("{min: 0, max: 3}")
    assert len(set(job.now()["placement"].values())) == 3
    other = JOB.replace("name: train", "name: urgent").replace("GPUS", "3")
    job.specs.write("urgent.yaml", other.replace('"EPOCHS": "40"', '"EPOCHS": "2"'))
    job.rankfold("apply", "-f", str(job.specs.folder))
    job.rankfold.until(lambda: not job.now()["placement"])
    assert job.now()["phase"] != "Succeeded"
    job.rankfold.until(lambda: job.rankfold.job("urgent")["phase"] == "Succeeded")
    assert job.ends() == "Succeeded"
    assert job.now()["restarts"] == 0
    assert job.output() == long


@pytest.mark.slow
def test_a_stopped_process_is_named_and_continues(job: Job, long: dict[str, str]) -> None:
    job.apply(2)
    (rank,) = [each for each in job.now()["ranks"] if each["rank"] == 0]
    (stopped,) = [pid for pid in leaks.below(rank["pid"]) if name(pid) == "ranks-1-2"]
    os.kill(stopped, signal.SIGSTOP)

    def reported() -> str:
        found = [c["message"] for c in job.now()["conditions"] if c["reason"] == "RankStopped"]
        return found[0] if found else ""

    message = job.rankfold.until(reported)
    assert f"stopped by a signal: ranks-1-2 (pid {stopped}) of rank 0" in message
    os.kill(stopped, signal.SIGCONT)
    assert job.ends() == "Succeeded"
    assert job.output() == long


def name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@pytest.mark.slow
def test_a_job_is_cancelled(job: Job) -> None:
    job.apply(2)
    job.rankfold("cancel", "train", "--override")
    assert job.ends() == "Failed"


def test_a_description_that_does_not_fit_the_runtime_is_refused(
    rankfold: Rankfold, tmp_path: Path
) -> None:
    specs = Specs(tmp_path / "specs")
    specs.write("pool.yaml", POOL)
    text = JOB.replace("GPUS", "1")
    specs.write("train.yaml", text.replace("runtime: elastic", "deviceTypes: [cpu]"))
    refused = rankfold.run("validate", str(specs.folder))
    assert refused.returncode == 65
    assert "spec.deviceTypes: runtime proxy has soft and nvidia, not cpu" in refused.stderr
    specs.write("train.yaml", text.replace(COMMAND, "[./train]"))
    refused = rankfold.run("validate", str(specs.folder))
    assert "spec.command: runtime elastic needs [python, SCRIPT.py, ARGUMENT…]" in refused.stderr
    specs.write("train.yaml", text.replace("runtime: elastic", ""))
    refused = rankfold.run("validate", str(specs.folder))
    assert "spec.gpus: requests 1 device; the pools have 0 of any kind" in refused.stderr
