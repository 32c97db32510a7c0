"""A device that goes bad for good: its job continues with those that are there, and with the device
again when it is back, bit for bit."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfold.reconciler.layout import Layout
from support.command import Rankfold
from support.fleet import KIND

from .conftest import Trained

BAD = f"local/{KIND}-1"
# Its proxy does not start while the file is there.
PROXY = """\
case " $* " in *" --device {device} "*)
    if [ -e {bad} ]; then echo "the device fell off its bus" >&2; exit 1; fi
esac
exec {python} -m rankfold.proxy.server "$@"
"""


@pytest.fixture
def bad(rankfold: Rankfold, job: Trained) -> Iterator[Path]:
    """The file; of two devices one is bad while it is there."""
    folder = rankfold.state.folder
    file, script = folder / "bad", folder / "proxy.sh"
    python = shlex.quote(sys.executable)
    script.write_text(PROXY.format(device=BAD, bad=shlex.quote(str(file)), python=python))
    rankfold.environment["RANKFOLD_PROXY"] = shlex.join(["sh", str(script)])
    job.specs.pool(2)
    yield file
    if file.exists():  # else its proxy has removed this
        Layout(rankfold.state.path).proxy_socket(BAD).unlink()


def loses_its_device(rankfold: Rankfold, job: Trained, bad: Path) -> None:
    """In the middle of its run, after a checkpoint."""
    job.apply(gpus=2)
    job.reaches(10)
    rankfold("checkpoint", job.name, "--wait")
    job.reaches(len(job.lines()) + 5)
    bad.touch()
    os.kill(rankfold.proxy_pid(BAD), signal.SIGKILL)
    rankfold.until(lambda: job.status["devices"] == 1)


def degraded(job: Trained) -> Any:
    found = {c["type"]: c for c in job.status["conditions"]}
    return found.get("Degraded")


@pytest.mark.slow
def test_a_job_continues_with_the_devices_that_are_left(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes], bad: Path
) -> None:
    loses_its_device(rankfold, job, bad)
    for _ in range(2):  # with a reconciler, and without
        assert set(job.status["placement"].values()) == {f"local/{KIND}-0"}
        message = degraded(job)["message"]
        assert f"continues on 1 of 2 devices, because {BAD} went bad" in message
        assert "the device fell off its bus" in message
        folder = str(job.specs.folder)
        told = rankfold("plan", "-f", folder, "--detailed-exitcode")
        assert "Nothing to change." in told and f"Job/{job.name} is degraded" in told
        rankfold("stop")
    rankfold("suspend", job.name, "--override")
    job.is_in("Suspended")
    rankfold("resume", job.name, "--override")
    assert job.results() == undisturbed
    assert job.status["restarts"] == 1 and "DevicesBad" in rankfold("events", job.name)


@pytest.mark.slow
def test_a_job_returns_to_a_device_that_is_back(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes], bad: Path
) -> None:
    loses_its_device(rankfold, job, bad)
    job.reaches(len(job.lines()) + 5)
    bad.unlink()
    rankfold.until(lambda: job.status["devices"] == 2)
    assert degraded(job) is None
    assert job.results() == undisturbed
    assert job.status["restarts"] == 1
