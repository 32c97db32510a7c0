"""A store that hangs, is slow or is gone: the job continues, who waits hears why, and all continues
when it is back. A server that speaks S3, and between it and the fleet a line that can be cut."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rankfold import control
from rankfold.checkpoint import store as stores
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.plan.saving import QUERY_STORE_AGAIN_S
from support import privileges, s3
from support.command import Rankfold, Specs
from support.patience import scaled
from support.s3 import Line

from .conftest import RANKS, Trained, watched

ANSWERS_S = 5.0  # the reconciler, whatever hangs
TROUBLES = ["silent", pytest.param("gone", marks=pytest.mark.slow)]
STUCK_S = round(scaled(10))  # an upload starts Python first


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3.server() as options:
        yield options["endpoint_url"]


@pytest.fixture
def line(server: str) -> Iterator[Line]:
    found = Line(server)
    yield found
    if found.state != "gone":
        found.close()


# Before the program begins, however long a store hangs.
TICKING = """\
until [ -e go ]; do
    echo >>ticks-$RANK
    sleep 0.1
done
exec "$@"
"""


class Far:
    """A job whose store is at the other end of a line."""

    def __init__(self, job: Trained, line: Line):
        self.job, self.line, self.rankfold = job, line, job.rankfold
        self.url = f"s3://bucket/{job.rankfold.state.folder.name}"
        self.rankfold.environment |= {
            "FSSPEC_S3_ENDPOINT_URL": line.url,
            "FSSPEC_S3_KEY": "k",
            "FSSPEC_S3_SECRET": "s",
            "AWS_DEFAULT_REGION": "us-east-1",
            "RANKFOLD_STUCK": str(STUCK_S),
        }
        job.specs.store(self.url)

    def condition(self, reason: str) -> Any:
        found = [c for c in self.job.status["conditions"] if c["reason"] == reason]
        return found[0]["message"] if found else ""

    def says(self, reason: str) -> None:
        """That names the store and what is wrong, while the reconciler answers whoever asks."""

        def is_reported() -> bool:
            self.answers()
            return self.url in self.condition(reason)

        self.rankfold.until(is_reported)

    def answers(self) -> None:
        began = time.monotonic()
        control.call(Layout(self.rankfold.state.path).socket, "state", timeout=scaled(ANSWERS_S))
        assert time.monotonic() - began < scaled(ANSWERS_S)

    def ticks(self) -> None:
        """The job begins, and does not end until it gets the word."""
        self.job.wrapper = ["sh", "-c", TICKING, "sh"]
        self.job.apply(gpus=1)

    def continues(self) -> None:
        ticks = [self.job.folder / f"ticks-{rank}" for rank in range(RANKS)]
        sizes = [file.stat().st_size for file in ticks]
        self.rankfold.until(
            lambda: all(f.stat().st_size > s for f, s in zip(ticks, sizes, strict=True))
        )

    def results(self) -> dict[str, bytes]:
        (self.job.folder / "go").touch()
        return self.job.results()


@pytest.fixture
def far(job: Trained, line: Line) -> Far:
    return Far(job, line)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_store_that_hangs_during_an_upload(
    trouble: str, far: Far, undisturbed: dict[str, bytes]
) -> None:
    job, rankfold = far.job, far.rankfold
    far.ticks()
    far.line.becomes(trouble)
    waiting = rankfold.start("checkpoint", job.name, "--wait")
    far.says("UploadFailed")
    far.continues()
    job.apply(gpus=2, wait=False)  # the change is made while the store is unreachable
    rankfold.until(lambda: len({rank["device"] for rank in job.status["ranks"]}) == 2)
    assert waiting.poll() is None
    far.line.becomes("through")
    out, err = waiting.communicate(timeout=scaled(120))
    assert waiting.returncode == 0, err
    assert far.url in err and "it will be retried" in err
    assert [each["id"] for each in job.status["checkpoints"]] == [out.strip()]
    assert not far.condition("UploadFailed")
    assert far.results() == undisturbed


@pytest.mark.slow
def test_a_store_that_is_slow_is_waited_for(far: Far, undisturbed: dict[str, bytes]) -> None:
    far.rankfold.environment["RANKFOLD_STUCK"] = "60"  # many requests, and then the first byte
    far.ticks()
    far.line.slow_s = 0.1
    far.line.becomes("slow")
    out, err = far.rankfold.start("checkpoint", far.job.name, "--wait").communicate(
        timeout=scaled(200)
    )
    assert [each["id"] for each in far.job.status["checkpoints"]] == [out.strip()], err
    assert far.results() == undisturbed
    assert "killed" not in far.rankfold("events", far.job.name)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_store_that_hangs_when_its_checkpoint_is_needed(
    trouble: str, far: Far, undisturbed: dict[str, bytes]
) -> None:
    job, rankfold = far.job, far.rankfold
    job.apply(gpus=1)
    job.reaches(3)
    rankfold("checkpoint", job.name, "--wait")
    far.line.becomes(trouble)
    os.kill(job.status["ranks"][1]["pid"], signal.SIGKILL)
    far.says("RestoreFailed")
    refused = rankfold.run("store", "check", far.url)
    assert refused.returncode == 1 and far.url in refused.stderr
    far.line.becomes("through")
    assert job.results() == undisturbed
    assert job.status["restarts"] == 1


@pytest.mark.slow
def test_a_watchdog_sees_nothing_of_a_store_that_hangs(
    far: Far, undisturbed: dict[str, bytes]
) -> None:
    """It bites after 5 s, and a job that is to rest in the store stands still until it is there."""
    job, rankfold = far.job, far.rankfold
    job.wrapper = watched(5)
    job.apply(gpus=2)
    job.reaches(10)
    far.line.becomes("silent")
    rankfold("suspend", job.name, "--store", "--override")
    far.says("UploadFailed")
    assert STUCK_S > 5 and job.status["suspendedIn"] == "memory"
    far.line.becomes("through")
    rankfold.until(lambda: job.status["suspendedIn"] == "store")
    rankfold("resume", job.name, "--override")
    assert job.results() == undisturbed


@pytest.mark.slow
def test_a_fleet_that_starts_while_its_store_hangs(far: Far, undisturbed: dict[str, bytes]) -> None:
    """A store that is new is refused by name, within a time. One that the fleet has already delays
    nothing."""
    job, rankfold = far.job, far.rankfold
    job.folder.mkdir()
    far.line.becomes("silent")
    refused = rankfold.run("apply", "-f", str(job.specs.folder))
    assert refused.returncode == 65
    assert f"policy.yaml:4: spec.checkpointStore: {far.url}: timed out" in refused.stderr
    far.line.becomes("through")
    far.ticks()
    far.line.becomes("silent")
    os.kill(rankfold.reconciler_pid(), signal.SIGKILL)
    folder = str(job.specs.folder)
    for command in (("validate", folder), ("plan", "-f", folder), ("status",), ("doctor",)):
        began = time.monotonic()
        assert rankfold.run(*command).returncode in (0, 1)
        assert time.monotonic() - began < scaled(2 * ANSWERS_S), command
    job.apply(gpus=2)
    far.answers()
    far.continues()
    assert far.results() == undisturbed


@pytest.mark.slow
def test_a_store_that_is_gone_is_queried_ever_later(far: Far) -> None:
    """Whether its jobs that run continue elsewhere: they continue here, and a line says so each
    time."""
    log = Layout(far.rankfold.state.path).log

    def unknown_count() -> int:
        return log.read_text().count("it is unknown whether jobs were taken over")

    far.ticks()
    far.rankfold("checkpoint", far.job.name, "--wait")
    far.line.becomes("gone")
    far.rankfold.until(unknown_count)
    time.sleep(QUERY_STORE_AGAIN_S)
    assert unknown_count() == 1
    far.continues()
    assert far.rankfold.until(lambda: unknown_count() > 1) and unknown_count() == 2
    assert far.url in log.read_text()


# A folder is read-only for what runs in it, root's too, and no mount is left.
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'


def test_a_store_that_cannot_be_written_is_refused_with_its_policy(
    rankfold: Rankfold, specs: Specs
) -> None:
    privileges.need_namespaces()
    store = rankfold.state.folder / "store"
    stores.open(str(store), "fleet")
    before = sorted(store.rglob("*"))
    specs.store(store)
    inside = ("unshare", "--mount", "sh", "-c", READ_ONLY, str(store))
    held = Rankfold(rankfold.state, rankfold.environment, inside)
    held("store", "adopt", str(store))
    refused = held.run("apply", "-f", str(specs.folder))
    assert refused.returncode == 65
    why = f"policy.yaml:4: spec.checkpointStore: {store}: cannot be written: Read-only file system"
    assert why in refused.stderr and "name another URL" in refused.stderr
    assert sorted(store.rglob("*")) == before
    held("stop")
    rankfold("apply", "-f", str(specs.folder))
    assert [each for each in store.rglob("*") if each.is_file()] == [store / "store.json"]


@pytest.mark.slow
def test_a_job_that_ends_leaves_no_upload_behind(far: Far, undisturbed: dict[str, bytes]) -> None:
    job, rankfold = far.job, far.rankfold
    far.ticks()
    far.line.becomes("silent")
    waiting = rankfold.start("checkpoint", job.name, "--wait")
    saves = Layout(rankfold.state.path).job(job.name) / "saves"
    rankfold.until(lambda: list(saves.glob("*/lock")))
    assert far.results() == undisturbed
    _, err = waiting.communicate(timeout=scaled(60))
    assert waiting.returncode == 1 and "ended before it was saved" in err
    assert not list(saves.iterdir()), "it would never be removed"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wait_for_a_store_that_does_not_come_back_reports_so(
    far: Far,
) -> None:
    """After eight attempts, whose distances double; and the next save is tried anyway."""
    job, rankfold = far.job, far.rankfold
    far.ticks()
    far.line.becomes("silent")
    waiting = rankfold.start("checkpoint", job.name, "--wait")
    out, err = waiting.communicate(timeout=scaled(800))
    assert waiting.returncode == 1 and not out
    assert f"{job.name} was not saved: its upload is stuck repeatedly: {far.url}" in err
    assert far.url in far.condition("SaveFailed") and job.status["phase"] == "Running"
    far.line.becomes("through")
    assert rankfold("checkpoint", job.name, "--wait").strip() == "1-1"
