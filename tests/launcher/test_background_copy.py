"""A rank's image that is copied for a snapshot while the rank continues: the snapshot is that of
the cut; who dies or hangs over it costs that snapshot and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from cuda import build

from rankfold.checkpoint import store as stores
from rankfold.checkpoint.snapshot import Snapshot, Unfit, images_being_copied, write
from rankfold.control import call
from support import leaks, privileges
from support.disk import fill, small_disk
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State
from support.patience import scaled

from .test_saved_jobs import GPT, SUBJECTS, kill, pid_of, restore

LITTLE = 20 * MiB  # for one of the GPT's ranks at a time
STEPS = "400"  # more than are made


def begin(fleet: Fleet, ranks: int = 2, steps: str = STEPS) -> RunningJob:
    privileges.need_criu()
    command = [str(build(GPT)), "--steps", steps, *SUBJECTS[0][1][2:]]
    job = fleet.start("job", command, [0] * ranks)
    until(lambda: len(job.output(0).splitlines()) > 5)
    return job


def each(job: RunningJob, op: str, **arguments: str | bool | int) -> None:
    for rank in range(job.world_size):
        call(job.launcher(rank), op, timeout=scaled(60), **arguments)


def still(job: RunningJob, folder: Path) -> None:
    """Saved, and standing at its cut."""
    job.stop()
    job.save()
    each(job, "freeze")
    written_down(job, folder)


def written_down(job: RunningJob, folder: Path) -> None:
    for rank in range(job.world_size):
        where = str(folder / f"rank-{rank}")
        call(job.launcher(rank), "snapshot", folder=where, beside=True, timeout=scaled(60))


def continues(job: RunningJob) -> None:
    each(job, "thaw")
    job.continue_running()


def folders(job: RunningJob, saved: Path) -> list[Path]:
    return [saved / f"rank-{rank}" for rank in range(job.world_size)]


def copied(job: RunningJob, saved: Path) -> None:
    until(lambda: not images_being_copied(folders(job, saved)))


def halted(job: RunningJob, saved: Path) -> int:
    """Saved, going on, and who copies the first rank's image has stopped in the middle; its pid."""
    launcher = pid_of(job, 0)
    while True:
        still(job, saved)
        before = leaks.below(launcher)
        continues(job)
        while (saved / "rank-0/image.part").exists():
            for pid in leaks.below(launcher) - before:
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    os.kill(pid, signal.SIGSTOP)
                    until(lambda pid=pid: leaks.processes().get(pid, (0, "X"))[1] in "TZX")
                    if (saved / "rank-0/image.part").exists():
                        return pid
                    os.kill(pid, signal.SIGCONT)
        copied(job, saved)  # it was too late


def through_a_store(job: RunningJob, saved: Path) -> Path:
    """The snapshots as they come back: each whole, though one rank's image has much of the others'
    memory."""
    store = stores.open(f"file://{saved.parent}/store", "fleet")
    store.begin_incarnation("job", 1)
    save = store.begin("job", 1)
    for rank, folder in enumerate(folders(job, saved)):
        Snapshot(folder).add_to(save, rank)
    checkpoint, back = store.checkpoint("job", save.finish().id), saved.parent / "back"
    write(checkpoint, {rank: back / f"rank-{rank}" for rank in range(job.world_size)})
    return back


def computes(job: RunningJob) -> None:
    size = len(job.output(0))
    until(lambda: len(job.output(0)) > size)


@pytest.mark.usual("False")
@pytest.mark.parametrize("moves", [False, True])
def test_a_job_that_swaps_continues_from_it_with_the_same_bits(
    state: State, monkeypatch: pytest.MonkeyPatch, moves: bool
) -> None:
    """Each turn of a rank moves all of the other's memory over what is being copied; and it may go
    to another device meanwhile."""
    monkeypatch.setenv("RANKFOLD_SHARE", "0")

    def swapped(device: int = 0) -> int:
        return int(fleet.request(fleet.names[device], "status")["swapped_out"])

    with Fleet(state, 3, memory=LITTLE) as fleet:
        job = begin(fleet, steps="60")
        saved = state.folder / "saved"
        pid = halted(job, saved)
        size, before = len(job.output(0)), swapped()
        if moves:
            job.stop()
            job.detach()
            job.place([fleet.names[1]] * 2)
            before = swapped(1)
        until(lambda: swapped(int(moves)) > before + 4 * LITTLE)
        os.kill(pid, signal.SIGCONT)
        copied(job, saved)
        assert job.wait() == [0, 0]
        expected = [job.output(rank) for rank in (0, 1)]
        assert len(expected[0]) > size
        again = restore(job, through_a_store(job, saved), "again")
        again.place([fleet.names[1], fleet.names[2]])
        each(again, "thaw")
        assert again.wait() == [0, 0], again.errors(0)
        assert [again.output(rank) for rank in (0, 1)] == expected
        whole = [(folder / "image").exists() for folder in folders(job, saved)]
        assert whole == [True, True], "who copies is no part of the rank, whose files are set back"


@pytest.mark.parametrize("who", ["copies", "launches"])
def test_a_process_killed_during_it_costs_that_snapshot_only(state: State, who: str) -> None:
    with Fleet(state, 1) as fleet:
        job = begin(fleet)
        saved = state.folder / "saved"
        pid = halted(job, saved)
        assert images_being_copied(folders(job, saved))
        if who == "launches":
            kill(job)
        else:
            os.kill(pid, signal.SIGKILL)
        copied(job, saved)
        with pytest.raises(Unfit, match="rank-0: has no image: the snapshot is incomplete"):
            Snapshot(saved / "rank-0")
        if who == "copies":
            assert Snapshot(saved / "rank-1").image
            computes(job)
            still(job, state.folder / "next")
            continues(job)
            copied(job, state.folder / "next")
            assert all(Snapshot(folder).image for folder in folders(job, state.folder / "next"))


def test_a_disk_that_is_full_is_named(state: State) -> None:
    """The job continues."""
    with small_disk(state) as disk, Fleet(state, 1) as fleet:
        job = begin(fleet)
        still(job, disk / "saved")
        fill(disk)
        continues(job)
        copied(job, disk / "saved")
        with pytest.raises(Unfit, match=r"has no image: .*No space left on device"):
            Snapshot(disk / "saved/rank-0")
        computes(job)


@pytest.mark.usual("before-signal", "before-vacate", "forever-vacate", "while-signal")
@pytest.mark.parametrize("how", ["vacate", "signal"])
@pytest.mark.parametrize("when", ["before", "while", "forever"])
def test_a_rank_that_is_ended_is_there_until_it_is_copied(
    state: State, how: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher keeps the rank until its image is copied, because the snapshot would be lost
    otherwise; but it does not wait forever."""
    monkeypatch.setenv("RANKFOLD_CRIU_STUCK", "2" if when == "forever" else "60")
    with Fleet(state, 1) as fleet:
        job = begin(fleet)
        saved = state.folder / "saved"
        if when == "before":
            still(job, saved)
            each(job, "thaw")
        else:
            pid = halted(job, saved)
        if when == "while":
            threading.Timer(0.3, os.kill, (pid, signal.SIGCONT)).start()
        if how == "vacate":
            each(job, "vacate")
            each(job, "end")
        else:
            each(job, "signal", signum=signal.SIGKILL)
            for rank in (1, 0):  # what becomes of the job without it is no matter
                until(lambda rank=rank: job.exit_status(rank) is not None)
                assert job.exit_status(rank) == -signal.SIGKILL
        whole = [(folder / "image").exists() for folder in folders(job, saved)]
        assert whole == [when != "forever", True]
        assert not images_being_copied(folders(job, saved))


def test_the_next_snapshot_waits_for_it(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copying process that makes no progress is killed, so the launcher does not wait forever."""
    monkeypatch.setenv("RANKFOLD_CRIU_STUCK", "2")
    with Fleet(state, 1) as fleet:
        job = begin(fleet)
        saved, following = state.folder / "saved", state.folder / "next"
        pid = halted(job, saved)
        computes(job)
        freezing = time.monotonic()
        still(job, following)
        assert leaks.has_ended(pid, 0) and time.monotonic() > freezing
        assert not (saved / "rank-0/image").exists()
        continues(job)
        copied(job, following)
        assert all(Snapshot(folder).image for folder in folders(job, following))


def test_one_that_may_not_continue_is_written_anew(state: State) -> None:
    """As by a reconciler that was killed between its snapshots and their record."""
    with Fleet(state, 1) as fleet:
        job = begin(fleet)
        saved, following = state.folder / "saved", state.folder / "next"
        still(job, saved)
        written_down(job, following)
        continues(job)
        copied(job, following)
        assert all(Snapshot(folder).image for folder in folders(job, following))
        assert not images_being_copied(folders(job, saved))


def test_one_that_may_hardly_continue_is_copied_before_the_next(state: State) -> None:
    with Fleet(state, 1) as fleet:
        job = begin(fleet)
        saved, following = state.folder / "saved", state.folder / "next"
        still(job, saved)
        each(job, "thaw")
        each(job, "freeze")
        written_down(job, following)
        assert all(Snapshot(folder).image for folder in folders(job, saved))
        continues(job)
        copied(job, following)
        assert all(Snapshot(folder).image for folder in folders(job, following))
