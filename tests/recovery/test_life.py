"""A job is saved while it continues, rests in the store, and outlives the death of all it runs
on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rankfold.reconciler.layout import Layout
from support import leaks
from support.command import Rankfold
from support.patience import scaled

from .conftest import RANKS, Trained, watched

CLOCKS_S = 0.2  # by which the wall clock may have been set meanwhile


@pytest.mark.slow
def test_a_checkpoint_while_it_runs_changes_nothing(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    job.apply(gpus=1)
    job.reaches(10)
    id = rankfold("checkpoint", job.name, "--wait").strip()
    assert [each["id"] for each in job.status["checkpoints"]] == [id] == ["1-1"]
    assert job.status["phase"] == "Running" and job.status["restarts"] == 0
    assert job.results() == undisturbed


@pytest.mark.slow
def test_a_wait_for_a_checkpoint_of_a_stalled_job_reports_why(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    job.apply()
    job.reaches(10)
    pid = job.status["ranks"][1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    rankfold.until(lambda: job.status["ranks"][0]["at"] == "others")  # so that there is no cut
    asked = rankfold.start("checkpoint", job.name, "--wait")
    assert asked.stderr is not None
    said = next(line for line in asked.stderr if "is not saved yet" in line)
    assert "stopped by a signal" in said and f"(pid {pid}) of rank 1" in said
    job.pause(0.5)  # so that the job does not end while its checkpoint is uploaded
    os.kill(pid, signal.SIGCONT)
    _, errors = asked.communicate(timeout=scaled(120))
    assert asked.returncode == 0, errors
    assert job.results() == undisturbed


@pytest.mark.slow
def test_all_who_wait_for_a_checkpoint_hear_of_one(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    """A request during a save gets the next one; who is stopped meanwhile either
    has its answer, or hears that it came too late."""
    job.apply(gpus=1)
    job.reaches(10)
    stopped = rankfold.start("checkpoint", job.name, "--wait")
    rankfold.until(lambda: "SaveRequested" in rankfold("describe", job.name))
    stopped.send_signal(signal.SIGSTOP)
    waiting = [rankfold.start("checkpoint", job.name, "--wait") for _ in range(2)]
    ids = set()
    for each in waiting:
        out, err = each.communicate(timeout=scaled(120))
        assert each.returncode == 0, err
        ids.add(out.strip())
    assert ids <= {"1-1", "1-2", "1-3"}
    stopped.send_signal(signal.SIGCONT)
    _, err = stopped.communicate(timeout=scaled(120))
    assert stopped.returncode == 0 or "is no longer known" in err
    assert job.results() == undisturbed


def test_everything_is_killed_and_the_job_continues_from_its_checkpoint(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    job.apply(gpus=1)
    job.reaches(10)
    rankfold("checkpoint", job.name, "--wait")
    job.reaches(len(job.lines()) + 10)
    rankfold.kill_everything(job.name)
    job.apply(gpus=2)
    assert job.status["restarts"] == 1
    assert "back to checkpoint 1-1" in rankfold("describe", job.name)
    assert job.results() == undisturbed


def test_a_job_rests_in_the_store_and_continues_elsewhere(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    job.apply(gpus=2)
    job.reaches(10)
    rankfold("suspend", job.name, "--store", "--override")
    rankfold.until(lambda: job.status["suspendedIn"] == "store")
    printed = job.lines()
    assert all(rank["pid"] is None for rank in job.status["ranks"])
    assert all(device["used"] == 0 for device in rankfold.status()["devices"])
    rankfold("stop")
    assert job.lines() == printed
    rankfold("resume", job.name, "--override")
    assert job.results() == undisturbed
    assert job.status["restarts"] == 0


@pytest.mark.slow
def test_a_job_rests_on_the_nodes_disk_with_its_memory_free(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    """By default; repeatedly; over the end of what is left, and into the store."""
    del rankfold.environment["RANKFOLD_REST_SAVE_AFTER"]
    saves = Layout(rankfold.state.path).job(job.name) / "saves"
    job.apply(gpus=2)
    for times in range(1, 3):
        job.reaches(10 * times)
        rankfold("suspend", job.name, "--override")
        rankfold.until(lambda: job.status["suspendedIn"] == "node")
        assert all(rank["pid"] is None for rank in job.status["ranks"])
        assert all(device["used"] == 0 for device in rankfold.status()["devices"])
        assert len(list(saves.iterdir())) == 1 and job.status["checkpoints"] == []
        rankfold("stop")
        rankfold("resume", job.name, "--override")
        job.is_in("Running")
    assert not list(saves.iterdir())
    rankfold("suspend", job.name, "--override")
    rankfold.until(lambda: job.status["suspendedIn"] == "node")
    rankfold("suspend", job.name, "--store", "--override")
    rankfold.until(lambda: job.status["suspendedIn"] == "store")
    assert not list(saves.iterdir())
    rankfold("resume", job.name, "--override")
    assert job.results() == undisturbed
    assert job.status["restarts"] == 0 and not list(saves.iterdir())


@pytest.mark.slow
def test_a_checkpoint_is_made_of_a_job_that_rests_and_it_is_not_woken(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    """A checkpoint that is requested while the job rests in memory waits for the local snapshot,
    and is uploaded from there."""
    del rankfold.environment["RANKFOLD_REST_SAVE_AFTER"]
    store = Layout(rankfold.state.path).job(job.name) / "saves"
    job.apply(gpus=2)
    job.reaches(10)
    rankfold("suspend", job.name, "--override")
    id = rankfold("checkpoint", job.name, "--wait").strip()
    assert [each["id"] for each in job.status["checkpoints"]] == [id]
    assert job.status["suspendedIn"] == "node"
    assert rankfold("checkpoint", job.name, "--wait").strip() == id, "it is the same dump"
    rankfold("suspend", job.name, "--store", "--override")
    rankfold.until(lambda: job.status["suspendedIn"] == "store")
    assert rankfold("checkpoint", job.name, "--wait").strip() == id, "it rests there"
    assert [each["id"] for each in job.status["checkpoints"]] == [id]
    assert not list(store.iterdir()) and "Restored" not in rankfold("events", job.name)
    rankfold("resume", job.name, "--from", id, "--override")
    assert job.results() == undisturbed
    assert job.status["restarts"] == 0


@pytest.mark.slow
def test_a_job_that_stays_in_memory_is_saved_there(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    job.apply(gpus=2)
    job.reaches(10)
    ranks = [rank["pid"] for rank in job.status["ranks"]]
    rankfold("suspend", job.name, "--override")
    job.is_in("Suspended")
    id = rankfold("checkpoint", job.name, "--wait").strip()
    assert [each["id"] for each in job.status["checkpoints"]] == [id]
    assert job.status["suspendedIn"] == "memory"
    assert [rank["pid"] for rank in job.status["ranks"]] == ranks
    rankfold("resume", job.name, "--override")
    assert job.results() == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rest_save_after", "options", "where"),
    [("0", (), "node"), (None, (), "node"), (None, ("--store",), "store")],
    ids=["on-the-disk", "as-it-is-by-default", "in-the-store"],
)
def test_a_watchdog_sees_nothing_of_a_rest(
    rest_save_after: str | None,
    options: tuple[str, ...],
    where: str,
    rankfold: Rankfold,
    job: Trained,
    undisturbed: dict[str, bytes],
) -> None:
    """It bites after 5 s, and the job rests for 20: it sees the saving and the restoring alone, and
    what the job rests in memory before it is dumped."""
    del rankfold.environment["RANKFOLD_REST_SAVE_AFTER"]
    if rest_save_after is not None:
        rankfold.environment["RANKFOLD_REST_SAVE_AFTER"] = rest_save_after
    job.wrapper = watched(5)
    job.apply(gpus=2)
    job.reaches(10)
    ranks = [rank["pid"] for rank in job.status["ranks"]]
    of_job = [*ranks, *(leaks.parent(pid) for pid in ranks)]
    rankfold("suspend", job.name, *options, "--override")
    rankfold.until(lambda: job.status["suspendedIn"] == where)
    began = time.monotonic()
    assert all(leaks.has_ended(pid, scaled(leaks.GRACE_S)) for pid in of_job), (
        "memory that is not free"
    )
    assert all(device["used"] == 0 for device in rankfold.status()["devices"])
    time.sleep(20)
    rested = time.monotonic() - began
    rankfold("resume", job.name, "--override")
    assert job.results() == undisturbed
    for rank in range(RANKS):
        missed = float((job.folder / f"clocks-{rank}").read_text())
        assert missed > rested - CLOCKS_S, "its monotonic clock has seen some of it"


def cut_off(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 4096)


def flip_a_bit(file: Path) -> None:
    with file.open("r+b") as pages:
        byte = pages.read(1)[0]
        pages.seek(0)
        pages.write(bytes([byte ^ 1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "said"), [(cut_off, "img has"), (flip_a_bit, "img has content other")]
)
def test_a_damaged_local_snapshot_is_reported_and_the_last_checkpoint_taken(
    rankfold: Rankfold,
    job: Trained,
    undisturbed: dict[str, bytes],
    damage: Callable[[Path], None],
    said: str,
) -> None:
    rankfold.environment["RANKFOLD_REST_SAVE_AFTER"] = "0"
    job.apply(gpus=1)
    job.reaches(10)
    rankfold("checkpoint", job.name, "--wait")
    rankfold("suspend", job.name, "--override")
    rankfold.until(lambda: job.status["suspendedIn"] == "node")
    saves = Layout(rankfold.state.path).job(job.name) / "saves"
    (pages,) = saves.glob("*/rank-1/criu/pages-1.img")
    damage(pages)
    rankfold("resume", job.name, "--override")
    assert job.results() == undisturbed
    told = rankfold("describe", job.name)
    assert said in told and "back to checkpoint 1-1" in told
    assert not list(saves.iterdir())


@pytest.mark.slow
def test_a_job_goes_back_to_the_checkpoint_that_is_named(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    job.apply(gpus=1)
    job.reaches(5)
    rankfold("checkpoint", job.name, "--wait")
    saved = len(job.lines())
    job.reaches(saved + 10)
    done = rankfold.run("resume", job.name, "--from", "1-1", "--override")
    assert done.returncode == 1 and "suspend it first" in done.stderr
    rankfold("suspend", job.name, "--override")
    job.is_in("Suspended")
    done = rankfold.run("resume", job.name, "--from", "1-7", "--override")
    assert done.returncode == 1 and "no checkpoint 1-7" in done.stderr and "1-1" in done.stderr
    rankfold("resume", job.name, "--from", "1-1", "--override")
    assert job.results() == undisturbed
    assert job.status["restarts"] == 0 and "as requested" in rankfold("describe", job.name)


@pytest.mark.slow
def test_a_job_continues_in_another_state_directory_with_the_same_store(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    store = rankfold.state.folder / "store"
    job.specs.store(store)
    job.apply(gpus=1)
    job.reaches(10)
    rankfold("suspend", job.name, "--store", "--override")
    rankfold.until(lambda: job.status["suspendedIn"] == "store")
    (id,) = [each["id"] for each in job.status["checkpoints"]]
    rankfold("stop")

    elsewhere = replace(rankfold.state, path=rankfold.state.folder / "elsewhere")
    other = Rankfold(elsewhere, {**rankfold.environment, "RANKFOLD_STATE": str(elsewhere.path)})
    there = Trained(other, job.specs, job.program, job.folder)
    try:
        refused = other.run("apply", "-f", str(job.specs.folder))
        assert refused.returncode == 65 and "has the checkpoints of fleet" in refused.stderr
        other("store", "adopt", str(store))
        there.apply(gpus=2, extra="suspend: true")
        job.folder.rmdir()  # where the ranks are: it comes along
        other("resume", job.name, "--from", id, "--override")
        assert there.results() == undisturbed
    finally:
        other.end()


# Beside the program it writes a log and replaces a copy of it, again and again.
BUSY = """\
(
    n=0
    while :; do
        n=$((n + 1))
        echo $n >>log-$RANK
        cp log-$RANK half-$RANK
        mv half-$RANK copy-$RANK
        sleep 0.02
    done
) &
"$@"
status=$?
kill $!
exit $status
"""


@pytest.mark.slow
def test_files_are_those_of_the_checkpoint(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    job.wrapper = ["sh", "-c", BUSY, "sh"]
    job.apply(gpus=1)
    job.reaches(10)
    rankfold("checkpoint", job.name, "--wait")
    (job.folder / "of-others").write_text("theirs")
    for step in (20, 30):
        job.reaches(step)
        rankfold.kill_everything(job.name)
        job.apply(gpus=2)
        assert "back to checkpoint 1-1" in rankfold("describe", job.name)
    assert job.results() == undisturbed
    for rank in range(RANKS):
        numbers = (job.folder / f"log-{rank}").read_text().split()
        assert numbers == [str(number + 1) for number in range(len(numbers))]
    assert (job.folder / "of-others").read_text() == "theirs"


# Each rank has one file open to write on, and changes files that were there before the job.
LATE = """\
exec 9<>kept-$RANK
(
    until [ -e go ]; do sleep 0.02; done
    for n in 1 2 3 4; do echo changed >>old-$n; done
    rm -f removed
    mkdir made-$RANK
    touch made-$RANK/own
    mv made-$RANK moved-$RANK
    touch changed-$RANK
) &
exec "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize("point", ["", "restore.sent"], ids=["", "and-the-reconciler-dies"])
def test_files_that_a_restore_cannot_set_back_are_named(
    point: str, rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    """The condition names them even if the reconciler that restored them dies first."""
    dies = job.specs.folder.parent / "dies"
    if point:
        rankfold.environment["RANKFOLD_FAULT"] = f"{point}@{dies}"
    job.folder.mkdir()
    old = [job.folder / f"old-{n}" for n in range(1, 5)]
    for file in (*old, job.folder / "removed"):
        file.write_text("of old\n")
    job.wrapper = ["sh", "-c", LATE, "sh"]
    job.apply(gpus=1)
    job.reaches(10)
    rankfold("checkpoint", job.name, "--wait")
    (job.folder / "go").touch()
    rankfold.until(lambda: all((job.folder / f"changed-{n}").exists() for n in range(RANKS)))
    layout = Layout(rankfold.state.path)
    for rank in range(RANKS):  # what comes after the last entry of its journal is lost with it
        journal, last = layout.rank_file(job.name, rank, ".files"), f"/changed-{rank}"
        rankfold.until(lambda: last in journal.read_text())  # noqa: B023
    job.reaches(len(job.lines()) + 5)
    (job.folder / "go").unlink()
    rankfold.kill_everything(job.name)
    kept = job.folder / "kept-0"
    kept.rename(job.folder / "away")  # it comes back as another file
    (job.folder / "away").unlink()
    dies.touch()
    job.apply(gpus=2)
    assert dies.exists() == (not point), "the point was never reached"
    assert "back to checkpoint 1-1" in rankfold("describe", job.name)
    (told,) = [c["message"] for c in job.status["conditions"] if c["type"] == "FilesDiffer"]
    first = ", ".join(map(str, old[:3]))
    assert f"wrote to or removed them after the checkpoint: {first} and 2 more; " in told
    assert told.endswith(f"rollback journal): {kept}")
    assert told in rankfold("events", job.name)
    assert old[0].read_text() == "of old\n" + RANKS * "changed\n"
    assert not list(job.folder.glob("m*-*"))
    (job.folder / "go").touch()
    assert job.results() == undisturbed


@pytest.mark.slow
def test_a_job_is_saved_by_its_file_and_continues_when_a_rank_is_killed(
    rankfold: Rankfold, job: Trained, undisturbed: dict[str, bytes]
) -> None:
    job.apply(gpus=1, extra="checkpoint: {interval: 0s, everySteps: 100, keep: 1}")
    rankfold.until(lambda: [c["id"] for c in job.status["checkpoints"]] not in ([], ["1-1"]))
    assert len(job.status["checkpoints"]) == 1, "the last one is kept"
    os.kill(job.status["ranks"][1]["pid"], signal.SIGKILL)
    assert job.results() == undisturbed
    assert job.status["restarts"] == 1
