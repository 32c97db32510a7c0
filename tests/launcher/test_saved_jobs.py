"""A job of real CUDA programs that is saved while it continues, killed, and restored elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cuda import PROGRAMS, build

from rankfold.control import call
from rankfold.paths import REPOSITORY
from support import leaks, privileges
from support.fleet import Fleet, RunningJob, until
from support.leaks import State
from support.patience import scaled

GPT = REPOSITORY / "examples/gpt/train_gpt.cu"
SUBJECTS = [
    (GPT, ["--steps", "40", "--data", str(REPOSITORY / "examples/gpt/text/genesis.txt")], 2),
    (PROGRAMS / "mlp_sharded.cu", ["60"], 3),
]


def save(job: RunningJob, folder: Path) -> None:
    """As a checkpoint is made: the job continues from where it was saved."""
    job.stop()
    job.save()
    ranks = [job.launcher(rank) for rank in range(job.world_size)]
    for path in ranks:
        call(path, "freeze")
    for rank, path in enumerate(ranks):
        call(path, "snapshot", folder=str(folder / f"rank-{rank}"), timeout=scaled(60))
    for path in ranks:
        call(path, "thaw")
    job.continue_running()


def kill(job: RunningJob) -> None:
    """All launchers and so all ranks; who serves them finds out."""
    for rank in range(job.world_size):
        lock = job.folder / f"logs/rank-{rank}.launcher.log"
        pid = pid_of(job, rank)
        os.kill(pid, signal.SIGKILL)
        assert leaks.has_ended(pid, 20) and lock.exists()
        for path in (job.launcher(rank), f"{job.launcher(rank)}.c"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def pid_of(job: RunningJob, rank: int) -> int:
    """The launcher's. It has children that look like it, for a while."""
    found = [
        pid
        for pid in leaks.below(os.getpid())
        if f"{job.folder}/rank-" in _text(pid, "cmdline")
        and _text(pid, "comm") == f"launcher {rank}\n"
    ]
    live = leaks.processes()  # a child may have exited since
    (pid,) = (pid for pid in found if pid in live and live[pid][0] not in found)
    return pid


def _text(pid: int, name: str) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_text()
    return ""


def restore(job: RunningJob, folder: Path, name: str) -> RunningJob:
    """Under fresh launchers, in another folder, as a job of another name."""
    again = RunningJob(job.fleet, name, job.world_size, job.folder.parent / name)
    job.fleet.jobs.append(again)
    shutil.copytree(job.folder / "logs", again.folder / "logs")
    for rank in range(job.world_size):
        config = json.loads((job.folder / f"rank-{rank}.json").read_text())
        config |= {
            "job": name,
            "empty": True,
            "logs": str(again.folder / "logs"),
            "socket": again.launcher(rank),
            "client_socket": f"{again.launcher(rank)}.c",
            "exit_file": str(again.folder / f"rank-{rank}.exit"),
            "hidden": [str(again.folder)],
        }
        path = again.folder / f"rank-{rank}.json"
        path.write_text(json.dumps(config))
        subprocess.run(
            [sys.executable, "-m", "rankfold.interpose.launcher", "--config", str(path)],
            check=True,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        call(
            again.launcher(rank), "restore", folder=str(folder / f"rank-{rank}"), timeout=scaled(60)
        )
    return again


@pytest.mark.slow
@pytest.mark.parametrize(("source", "arguments", "ranks"), SUBJECTS, ids=["gpt", "mlp"])
def test_a_job_continues_from_its_snapshots_with_the_same_bits(
    state: State, source: Path, arguments: list[str], ranks: int
) -> None:
    privileges.need_criu()
    program = build(source)
    with Fleet(state, 3) as fleet:
        undisturbed = fleet.start("undisturbed", [str(program), *arguments], list(range(ranks)))
        assert undisturbed.wait() == [0] * ranks
        job = fleet.start(
            "job", [str(program), *arguments], list(range(ranks)), workdir=undisturbed.folder
        )
        until(lambda: len(job.output(0).splitlines()) > 12)
        save(job, state.folder / "saved")
        size = len(job.output(0))
        until(lambda: len(job.output(0)) > size)
        kill(job)
        again = restore(job, state.folder / "saved", "again")
        assert len(again.output(0)) <= size
        again.place([fleet.names[0]] * ranks)
        for rank in range(ranks):
            call(again.launcher(rank), "thaw")
        assert again.wait() == [0] * ranks, again.errors(0)
        for rank in range(ranks):
            assert again.output(rank) == undisturbed.output(rank)
