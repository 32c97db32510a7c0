"""Requests to a fleet while jobs run on it. A request that is refused changes nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda import PROGRAMS, build

from support import disk, leaks
from support.command import Rankfold, Specs
from support.fleet import KIND
from support.leaks import State
from support.patience import scaled

from .neighbour import NAME, Neighbour

MiB = 1 << 20


def test_a_refused_change_leaves_the_fleet_unchanged(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour, state: State
) -> None:
    specs.pool(2)
    neighbour.describe(gpus=2)
    job = (specs.folder / f"{NAME}.yaml").read_text()
    wrong = {
        "apiVersion: [": "broken.yaml:",
        job: "metadata.name",  # a second of its name
        job.replace(NAME, "big").replace("gpus: 2", "gpus: 3"): "spec.gpus",
    }
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: neighbour.devices() == {f"local/{KIND}-0", f"local/{KIND}-1"})
        before = neighbour.pids()
        revision = rankfold.status()["revision"]
        for text, reason in wrong.items():
            specs.write("broken.yaml", text)
            neighbour.describe(gpus=1)  # valid by itself, but not next to an invalid file

            def messages() -> str:
                conditions = rankfold.status()["source"]["conditions"]
                return str([c["message"] for c in conditions if c["status"] == "False"])

            rankfold.until(lambda: reason in messages() and "broken.yaml" in messages())  # noqa: B023
            assert rankfold.status()["revision"] == revision
        second = subprocess.run(
            [sys.executable, "-m", "rankfold.reconciler.daemon", "--state", str(state.path)],
            env=rankfold.environment,
            capture_output=True,
            text=True,
            timeout=scaled(60),
        )
        assert second.returncode == 1 and "another reconciler runs on" in second.stderr
        other = Specs(state.folder / "other")
        done = rankfold.run("apply", "-f", str(other.folder))
        assert done.returncode == 1 and str(specs.folder) in done.stderr
        assert len(neighbour.devices()) == 2 and neighbour.pids() == before
        (specs.folder / "broken.yaml").unlink()
        rankfold.until(lambda: len(neighbour.devices()) == 1)
        neighbour.finish()


@pytest.mark.slow
def test_a_suspended_job_leaves_its_device_to_another_and_outlives_the_rest(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    specs.pool(1, "64MiB")
    neighbour.apply(gpus=1)
    neighbour.continues()
    pids = neighbour.pids()
    neighbour.apply(gpus=1, extra="suspend: true")
    assert [device["used"] for device in rankfold.status()["devices"]] == [0]
    guest = str(build(PROGRAMS / "large_state.cu"))
    out = rankfold("run", "--world-size", "1", "--", guest, "3", "56", "4")
    assert len(out.splitlines()) >= 3, "56 of 64 MiB were the guest's"
    rankfold("stop")
    os.kill(rankfold.proxy_pid(f"local/{KIND}-0"), signal.SIGKILL)
    assert neighbour.pids() == pids, "the ranks rest"
    neighbour.apply(gpus=1)
    assert neighbour.pids() == pids
    neighbour.finish()


# ---- full disks ----------------------------------------------------------------------------


@pytest.fixture
def small_disk(state: State) -> Iterator[Path]:
    """Used before `rankfold`, so that it outlives the fleet."""
    with disk.small_disk(state) as place:
        yield place


@pytest.mark.slow
def test_a_full_state_directory_stops_changes_but_no_job(
    small_disk: Path, state: State, rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    disk.hold_state(state, small_disk)
    specs.pool(2)
    neighbour.describe(gpus=2)
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: len(neighbour.devices()) == 2)
        neighbour.continues()  # its module is kept in the state directory
        ballast = disk.fill(small_disk)
        neighbour.describe(gpus=1)
        done = rankfold.run("apply", "-f", str(specs.folder), "--wait")
        assert done.returncode == 1 and "cannot be written: database or disk is full" in done.stderr
        neighbour.continues()
        assert len(neighbour.devices()) == 2
        ballast.unlink()
        rankfold.until(lambda: len(neighbour.devices()) == 1)  # without another request
    neighbour.finish()


@pytest.mark.parametrize("reserved", [True, False])
def test_jobs_are_cancelled_though_the_disk_is_full(
    small_disk: Path, state: State, rankfold: Rankfold, specs: Specs, reserved: bool
) -> None:
    """One of them may fill it. With the reserve that is recorded at once, else when there is
    room; none that waits for a device starts."""
    disk.hold_state(state, small_disk)
    specs.pool(1)
    specs.job("gpt", gpus=1, ranks=2)
    started = specs.folder / "started"
    specs.program(["touch", str(started)], "waits")
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job("gpt")["phase"] == "Running")
    ranks = [rank["pid"] for rank in rankfold.job("gpt")["ranks"]]
    if not reserved:
        (small_disk / "reserve").unlink()
    ballast = disk.fill(small_disk)
    assert "is full" in rankfold.status()["reconciler"]["message"]
    assert "is full" in rankfold.run("status").stderr
    if reserved:
        rankfold("stop", "--cancel")
    else:
        cancelled = rankfold.run("cancel", "gpt", "--override")
        assert cancelled.returncode == 0 and "recorded only when there is space" in cancelled.stderr
        stopped = rankfold.run("stop", "--cancel")
        assert stopped.returncode == 1 and "then run `rankfold stop`" in stopped.stderr
    assert all(leaks.has_ended(pid, scaled(leaks.GRACE_S)) for pid in ranks)
    ballast.unlink()
    jobs = ("gpt", "waits")
    rankfold.until(lambda: all(rankfold.job(name)["phase"] == "Failed" for name in jobs))
    assert all("Cancelled" in rankfold("events", name) for name in jobs)
    assert not started.exists()


@pytest.mark.slow
def test_a_job_whose_modules_cannot_be_stored_waits_at_its_cut(
    small_disk: Path, state: State, rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    (state.path / "modules").symlink_to(small_disk)
    ballast = disk.fill(small_disk)
    specs.pool(2)
    neighbour.apply(gpus=2)
    neighbour.continues()
    neighbour.describe(gpus=1)
    rankfold("apply", "-f", str(specs.folder))

    def mentions(where: str, what: str) -> bool:
        return f"modules cannot be stored in {state.path}/modules" in str(where) and what in where

    def conditions() -> str:
        return str([c["message"] for c in rankfold.job(NAME)["conditions"]])

    rankfold.until(lambda: mentions(conditions(), "until there is space"))
    assert all(mentions(each["message"], "No space") for each in rankfold.status()["devices"])
    assert rankfold.job(NAME)["phase"] == "Running"
    ballast.unlink()
    rankfold.until(lambda: len(neighbour.devices()) == 1)
    neighbour.finish()


def test_full_logs_lose_lines_but_not_the_job(
    small_disk: Path, state: State, rankfold: Rankfold, specs: Specs
) -> None:
    """How a rank ended is reported when there is space again."""
    (state.path / "jobs").symlink_to(small_disk)
    gate = specs.folder / "gate"
    program = str(build(PROGRAMS / "one_launch.cu"))
    script = f"until [ -e {gate} ]; do sleep 0.02; done; {program}; touch {gate}.$RANK; exit 3"
    once = "restart: {maxRestarts: 0}"
    specs.program(["sh", "-c", script], "logger", gpus=1, extra=once, ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    ballast = disk.fill(small_disk)
    gate.touch()
    rankfold.until(lambda: all((specs.folder / f"gate.{r}").exists() for r in range(2)))
    ballast.unlink()
    rankfold.until(lambda: rankfold.job("logger")["phase"] == "Failed")
    message = rankfold.job("logger")["message"]  # of the rank whose end was seen first
    assert message in (f"rank {rank} exited with status 3" for rank in range(2))


# ---- devices that change -------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_keeps_its_compute_capability_on_devices_that_have_more(
    rankfold: Rankfold, specs: Specs
) -> None:
    """Its code is chosen by what it was given, wherever it is, and wherever it is moved."""
    flags = [f"-gencode=arch=compute_{n},code=compute_{n}" for n in (75, 80, 90)]
    program = str(build(PROGRAMS / "architecture.cu", args=flags))
    gate = specs.folder / "gate"

    def pool(*capabilities: str) -> None:
        devices = ", ".join(
            f'{{type: soft, memory: 64MiB, computeCapability: "{cc}"}}' for cc in capabilities
        )
        specs.write("pool.yaml", POOL.format(devices))

    pool("8.0", "9.0")
    specs.program([program], "mixed", gpus=2, ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    rankfold.until(lambda: rankfold.job("mixed")["phase"] == "Succeeded")
    assert rankfold("logs", "mixed").count("cudaSuccess 800 800\n") == 2
    (specs.folder / "mixed.yaml").unlink()
    pool("8.0")  # the reconciler may have ended, and of two devices either may be back first
    specs.program([program, str(gate)], "moved", gpus=1, ranks=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    assert rankfold.job("moved")["placement"] == {"0": f"local/{KIND}-0"}
    pool("9.0", "9.0")
    rankfold("apply", "-f", str(specs.folder))
    gate.touch()
    rankfold.until(lambda: rankfold.job("moved")["phase"] == "Succeeded")
    assert rankfold("logs", "moved") == "cudaSuccess 800 800\n"
    rankfold("apply", "-f", str(specs.folder), "--wait")
    again = rankfold("run", "--world-size", "1", "--", program)
    assert again == "cudaSuccess 900 900\n", "the device was free: now it has what its pool says"


POOL = """\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {{name: local}}
spec:
  devices: [{}]
"""
