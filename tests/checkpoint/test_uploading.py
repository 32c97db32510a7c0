"""`python -m rankfold.checkpoint.upload` and `fetch`: snapshots go to the store and come back;
interrupted anywhere they continue, and what is wrong is said."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rankfold.checkpoint import background, fetch, upload
from rankfold.checkpoint import store as stores
from rankfold.checkpoint.background import State, Task, Work, WorkFolder
from rankfold.checkpoint.store import Id, Store
from rankfold.interpose.launcher.snapshot.snapshot import fill
from support import disk as disks
from support.checkpoints import noise
from support.faulty import Disk, Killed
from support.leaks import State as Leaks
from support.leaks import has_ended
from support.patience import scaled
from support.snapshots import PAGE, files, image_with_module, processes, saved_image, whole

DEVICE = 0x2000_0000_0000
UPLOAD = Work(upload.upload, 0, True)
FETCH = Work(fetch.fetch, 0, False)


class Job:
    """A job's folder in a state directory, and its store."""

    def __init__(self, folder: Path, url: str | None = None):
        self.folder, self.url = folder / "jobs/gpt", url or f"file://{folder}/checkpoints"
        self.saves = 0

    def place(self, **changes: Any) -> Path:
        """A save's folder, with what is to be done."""
        self.saves += 1
        folder = self.folder / f"saves/{self.saves}"
        folder.mkdir(parents=True)
        task = Task(self.url, "fleet", "gpt", 1, [0, 1], {"step": self.saves}, 3)
        told = msgspec.structs.replace(task, **changes)
        (folder / "task.json").write_bytes(msgspec.json.encode(told))
        return folder

    def saved(self, seed: int = 0, size: int = PAGE, **changes: Any) -> Path:
        """One with snapshots of two ranks, each with so many bytes of its own."""
        folder = self.place(**changes)
        for rank in (0, 1):
            snapshot = folder / f"rank-{rank}"
            memory = {0x400000: noise("code", 9 * PAGE), 0x800000: noise((rank, seed), size)}
            processes(snapshot, memory, seed)
            buffers = {DEVICE: noise("parameters", 20_000), DEVICE + 65536: noise(seed, 3000)}
            saved_image(snapshot, buffers, {})
            whole(snapshot, rank=rank)
        return folder

    def store(self) -> Store:
        return stores.open(self.url, "fleet")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def state_of(folder: Path) -> State:
    return msgspec.json.decode((folder / "state.json").read_bytes(), type=State)


def does(work: Work, folder: Path) -> State:
    """In this process."""
    task = msgspec.json.decode((folder / "task.json").read_bytes(), type=Task)
    if work_folder := background.prepared(folder, task, work):
        background.run(work_folder, work)
    return state_of(folder)


def start(module: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"rankfold.checkpoint.{module}", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=scaled(60))


class Opened:
    """A folder, to be locked."""

    def __init__(self, folder: Path):
        self.fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def fileno(self) -> int:
        return self.fd

    def close(self) -> None:
        os.close(self.fd)


def busy(folder: Path) -> bool:
    """Whether a process works on it."""
    with (folder / "lock").open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def worker(folder: Path) -> int | None:
    """The process that works on it."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(folder) in words and b"-m" in words:
            return int(entry.name)
    return None


def wait(folder: Path) -> State:
    while busy(folder):
        if pid := worker(folder):
            assert has_ended(pid, 60)
    return state_of(folder)


def same(one: Path, other: Path) -> None:
    for rank in (0, 1):
        assert files(one / f"rank-{rank}") == files(other / f"rank-{rank}")
        assert memory(one / f"rank-{rank}") == memory(other / f"rank-{rank}")


def memory(folder: Path) -> list[bytes]:
    """Some of a device's, as a launcher takes it out of the folder."""
    with open(os.memfd_create("image"), "rb") as image:
        os.truncate(image.fileno(), (folder / "image").stat().st_size)
        fill(folder / "image", image.fileno())
        return [os.pread(image.fileno(), 20_000, at) for at in (0, 65536, 1 << 39)]


# ---- the way there and back --------------------------------------------------------------------


def test_snapshots_go_to_the_store_in_the_background_and_come_back(state: Leaks) -> None:
    job, other = Job(state.folder), Job(state.folder / "other")
    other.url = job.url
    folder, back = job.saved(), other.place(incarnation=2, id="1-1")
    assert start("upload", folder).returncode == 0
    done = wait(folder)
    assert (done.state, done.id, done.error) == ("done", "1-1", None)
    assert done.bytes == done.total > done.stored > 0
    assert job.store().manifest("gpt", Id(1, 1)).about["step"] == 1
    assert start("fetch", back).returncode == 0
    done = wait(back)
    assert (done.state, done.id, done.error) == ("done", "1-1", None)
    assert done.bytes == done.total > 0
    same(folder, back)
    life = job.store().newest_incarnation("gpt")
    assert life is not None and (life.incarnation, life.origin) == (2, Id(1, 1))
    for again in (folder, back):
        assert start("upload" if again == folder else "fetch", again).returncode == 0
        assert state_of(again).state == "done" and not busy(again)
    assert job.store().checkpoints("gpt") == [Id(1, 1)], "what is done stays done"


def test_the_second_owner_is_refused(job: Job) -> None:
    folder = job.saved()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = start("upload", folder)
    assert said.returncode == background.BUSY
    assert said.stderr == f"{folder}: another process is working on it already\n"
    assert not (folder / "state.json").exists()


@pytest.mark.parametrize(
    ("task", "what"),
    [
        (None, "No such file"),
        ("{", "truncated"),
        ('{"url": 1}', "Expected `str`"),
        ('{"url": "a", "fleet": "f", "job": "j", "ranks": [0]}', "required field `incarnation`"),
    ],
)
def test_a_task_that_cannot_be_read_is_refused(
    job: Job, capsys: pytest.CaptureFixture[str], task: str | None, what: str
) -> None:
    folder = job.place()
    (folder / "task.json").unlink()
    if task is not None:
        (folder / "task.json").write_text(task)
    assert background.start([str(folder)], UPLOAD) == background.WRONG
    said = capsys.readouterr().err
    assert "task.json" in said and what in said


def test_the_last_are_kept_and_the_newest_is_fetched(job: Job) -> None:
    folders = [job.saved(n, keep=2) for n in range(4)]
    for folder in folders:
        assert does(UPLOAD, folder).state == "done"
    assert job.store().checkpoints("gpt") == [Id(1, 3), Id(1, 4)]
    back = job.place(incarnation=2)
    assert does(FETCH, back).id == "1-4"
    same(folders[3], back)


def test_a_job_that_was_restored_saves_as_its_next_incarnation(job: Job) -> None:
    does(UPLOAD, job.saved())
    assert does(FETCH, job.place(incarnation=2)).state == "done"
    assert does(UPLOAD, job.saved(1, incarnation=2)).id == "2-1"
    old = does(UPLOAD, job.saved(2))
    assert (old.state, old.code, old.retry) == ("failed", "old-incarnation", False)
    assert "gpt continues as incarnation 2, begun by" in str(old.error)
    assert job.store().checkpoints("gpt") == [Id(1, 1), Id(2, 1)]


def test_a_job_that_continues_elsewhere_is_neither_saved_nor_fetched_here(
    job: Job, tmp_path: Path
) -> None:
    """Its dump has come to a higher number here than it has there: the store knows whose it is."""
    does(UPLOAD, job.saved())
    elsewhere = Job(tmp_path / "elsewhere", job.url)
    assert does(FETCH, elsewhere.place(incarnation=2, known=1)).state == "done"
    for refused in (
        does(UPLOAD, job.saved(1, incarnation=4, known=1)),
        does(FETCH, job.place(incarnation=5, known=1)),
        does(FETCH, job.place(incarnation=2, known=1)),
    ):
        assert (refused.state, refused.code, refused.retry) == ("failed", "old-incarnation", False)
        assert f"incarnation 2, begun by {socket.gethostname()}:{tmp_path}/elsewhere" in str(
            refused.error
        )
    assert does(UPLOAD, elsewhere.saved(1, incarnation=2, known=2)).id == "2-1"
    assert does(FETCH, job.place(incarnation=3, known=2)).id == "2-1", "it is taken back"


def test_modules_travel_along(job: Job, tmp_path: Path) -> None:
    """The saved state has only the hash of what a proxy keeps in its state directory."""
    digest, image = "5a" * 32, noise("module", 5000)
    folder = job.place()
    for rank in (0, 1):
        (folder / f"rank-{rank}").mkdir()
        image_with_module(folder / f"rank-{rank}", digest)
        whole(folder / f"rank-{rank}")
    without = does(UPLOAD, folder)
    assert (without.state, without.code) == ("failed", "unfit")
    assert f"{tmp_path}/modules: lacks module {digest}, which a rank has" in str(without.error)
    (tmp_path / "modules").mkdir()
    (tmp_path / f"modules/{digest}.2").write_bytes(image)
    assert does(UPLOAD, folder).state == "done"
    other = Job(tmp_path / "other", job.url)
    assert does(FETCH, other.place(incarnation=2)).state == "done"
    [found] = (tmp_path / "other/modules").iterdir()
    assert (found.name, found.read_bytes()) == (f"{digest}.2", image)
    assert does(FETCH, other.place(incarnation=None)).state == "done", "what is there stays"


# ---- interrupted -------------------------------------------------------------------------------


def killed(folder: Path, module: str, draw: random.Random, times: int) -> None:
    """Starts it and kills it at some moment, a few times; then it comes to its end."""
    longest = draw.choice([0.02, 0.1])
    for moment in (*(draw.uniform(0, longest) for _ in range(times)), 60):
        said = start(module, folder)
        assert said.returncode == 0, said.stderr
        pid = worker(folder)
        if pid is not None and not has_ended(pid, moment):  # the moment is what this is about
            os.kill(pid, signal.SIGKILL)
            has_ended(pid, 60)
    assert state_of(folder).state == "done", state_of(folder)


def test_a_killed_upload_continues(state: Leaks) -> None:
    all_moments(state.folder, random.Random(1), 1, 1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_an_upload_that_is_killed_often_continues(state: Leaks, seed: int) -> None:
    all_moments(state.folder, random.Random(seed), 15, 3)


def all_moments(folder: Path, draw: random.Random, rounds: int, times: int) -> None:
    """One checkpoint of each save, however often who makes it was killed."""
    job = Job(folder)
    for n in range(1, rounds + 1):
        saved = job.saved(n)
        killed(saved, "upload", draw, times)
        done = state_of(saved)
        assert done.state == "done", done
        store = job.store()
        assert len(store.checkpoints("gpt")) == min(n, 3)
        assert str(store.checkpoints("gpt")[-1]) == done.id
        back = job.place(incarnation=None)
        killed(back, "fetch", draw, times)
        assert state_of(back).id == done.id
        same(saved, back)
        shutil.rmtree(back)


@pytest.mark.parametrize("how", ["killed", "killed after"])
def test_an_upload_that_is_killed_anywhere_makes_one_checkpoint(job: Job, how: str) -> None:
    folder = job.saved()
    for at in range(0, 300, 3):
        disk = Disk()
        task = Task("faulty://s", "fleet", "gpt", 1, [0, 1], keep=2, options=disk.option())
        disk.fail(at, how)
        first = background.prepared(folder, task, UPLOAD)
        assert first is not None
        with contextlib.suppress(Killed):
            background.run(first, UPLOAD)
        if disk.operations <= at:
            return
        disk.quiet()
        if work_folder := background.prepared(folder, task, UPLOAD):
            background.run(work_folder, UPLOAD)
        done = state_of(folder)
        store = stores.open("faulty://s", "fleet", options=disk.option())
        assert (done.state, [done.id]) == ("done", [str(i) for i in store.checkpoints("gpt")])
        assert store.checkpoint("gpt", store.checkpoints("gpt")[0]).verify() == []
        (folder / "state.json").unlink()  # the next one is another save
    raise AssertionError("an upload takes more operations than that")


class Cut(BaseException):
    """The end of a process, as far as a folder can tell."""


def test_a_save_that_was_finished_unseen_is_not_saved_twice(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = job.saved()

    def collect(*_: Any) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(Store, "collect", collect)
        with pytest.raises(Cut):
            does(UPLOAD, folder)
    assert state_of(folder).state == "working"
    assert does(UPLOAD, folder).id == "1-1"
    assert job.store().checkpoints("gpt") == [Id(1, 1)]


def test_files_of_another_fetched_checkpoint_are_removed(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = job.saved(1), job.saved(2)
    does(UPLOAD, first)
    back = job.place(incarnation=2)

    def take(*_: Any) -> None:
        raise Cut

    with monkeypatch.context() as patch:
        patch.setattr(Store, "begin_incarnation", take)
        with pytest.raises(Cut):
            does(FETCH, back)
    same(first, back)
    does(UPLOAD, second)
    store = job.store()
    store.collect("gpt", 1)
    assert does(FETCH, back).id == "1-2", "the first is gone"
    same(second, back)


# ---- what goes wrong ---------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_a_damaged_checkpoint_is_skipped_and_named(job: Job) -> None:
    folders = [job.saved(n) for n in range(2)]
    for folder in folders:
        does(UPLOAD, folder)
    [pack] = [
        path
        for path in (job.folder.parent.parent / "checkpoints/jobs/gpt/data").rglob("packs/*")
        if path.parts[-3].startswith("1-2-") and path.stat().st_size > 3000
    ][:1]
    flip(pack)
    chosen = does(FETCH, job.place(incarnation=2, id="1-2"))
    assert (chosen.state, chosen.code, chosen.retry) == ("failed", "damaged", False)
    assert "checkpoint 1-2 of gpt cannot be used" in str(chosen.error)
    back = job.place(incarnation=2)
    newest = does(FETCH, back)
    assert (newest.state, newest.id) == ("done", "1-1")
    assert [each for each, _ in newest.skipped] == ["1-2"]
    same(folders[0], back)
    assert job.store().damaged("gpt"), "no save counts on it"


def test_a_checkpoint_that_is_not_there(job: Job, tmp_path: Path) -> None:
    nothing = does(FETCH, job.place(incarnation=2))
    assert (nothing.state, nothing.code) == ("failed", "missing")
    assert "has no checkpoints; check the URL" in str(nothing.error)
    assert not (tmp_path / "checkpoints").exists()
    does(UPLOAD, job.saved())
    gone = does(FETCH, job.place(incarnation=2, id="1-7"))
    assert (gone.state, gone.code) == ("failed", "missing")
    assert "gpt has no checkpoint 1-7; it has: 1-1" in str(gone.error)
    none = does(FETCH, job.place(incarnation=2, job="mlp"))
    assert "mlp has no usable checkpoint" in str(none.error)
    assert does(FETCH, job.place(incarnation=2, id="seven")).code == "refused"


def test_stores_that_cannot_be_used_are_named(job: Job, tmp_path: Path) -> None:
    does(UPLOAD, job.saved())
    other = does(UPLOAD, job.saved(fleet="other"))
    assert (other.code, other.retry) == ("refused", False)
    assert "has the checkpoints of fleet 'fleet', this is 'other'" in str(other.error)
    unknown = does(UPLOAD, job.saved(url="nosuch://x"))
    assert (unknown.state, unknown.code) == ("failed", "unavailable")
    (tmp_path / "file").write_text("")
    below = does(UPLOAD, job.saved(url=f"{tmp_path}/file/below"))
    assert below.state == "failed" and f"{tmp_path}/file/below" in str(below.error)
    elsewhere = Job(tmp_path / "elsewhere", job.url)
    theirs = does(UPLOAD, elsewhere.saved())
    assert (theirs.code, theirs.retry) == ("refused", False)
    assert f"incarnation 1 of gpt has been begun by {socket.gethostname()}:" in str(theirs.error)


def test_a_full_store_is_reported_and_the_upload_continues_when_there_is_space(
    state: Leaks,
) -> None:
    with disks.small_disk(state) as work_folder:
        job = Job(state.folder, str(work_folder / "store"))
        folder = job.saved()
        job.store()
        ballast = disks.fill(work_folder)
        full = does(UPLOAD, folder)
        assert (full.state, full.code, full.retry) == ("failed", "full", True)
        assert "No space left on device; free some space" in str(full.error)
        ballast.unlink()
        assert does(UPLOAD, folder).state == "done"


def test_a_full_disk_is_said_of_a_fetch(state: Leaks) -> None:
    job = Job(state.folder)
    does(UPLOAD, job.saved(size=3200 * PAGE))  # of two ranks: more than the disk has
    with disks.small_disk(state) as work_folder:
        folder = Job(work_folder, job.url).place(incarnation=2)
        full = does(FETCH, folder)
        assert (full.state, full.code, full.retry) == ("failed", "local", True)
        assert "No space left on device; free some space there" in str(full.error)
    assert job.store().newest_incarnation("gpt").incarnation == 1, "nothing has begun"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (lambda folder: (folder / "rank-1/about.json").unlink(), "rank-1: has no about.json"),
        (lambda folder: os.truncate(folder / "rank-1/criu/pages-1.img", PAGE), "pages-1.img: has"),
        (lambda folder: whole(folder / "rank-0", boot="another"), "before the last boot"),
        (
            lambda folder: (folder / "rank-1/image").rename(folder / "rank-1/image.part"),
            "rank-1: has no image: the snapshot is incomplete",
        ),
        (lambda folder: shutil.rmtree(folder / "rank-1"), "rank-1: has no about.json"),
    ],
)
def test_a_snapshot_that_is_none_is_not_stored(
    job: Job, tmp_path: Path, harm: Callable[[Path], None], what: str
) -> None:
    folder = job.saved()
    harm(folder)
    said = does(UPLOAD, folder)
    assert (said.state, said.code, said.retry) == ("failed", "unfit", False)
    assert what in str(said.error)
    assert not (tmp_path / "checkpoints").exists()


def test_an_image_that_is_still_copied_is_waited_for(job: Job) -> None:
    """The uploader reports the progress of the copy."""
    folder = job.saved()
    snapshot = folder / "rank-1"
    with contextlib.closing(Opened(snapshot)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        image = (snapshot / "image").rename(snapshot / "image.part")
        assert start("upload", folder).returncode == 0
        copied = image.stat().st_blocks * 512
        seen = state_of(folder)
        while seen.bytes != copied:
            time.sleep(0.01)
            seen = state_of(folder)
            assert seen.state == "working", seen
        assert (seen.total, job.store().checkpoints("gpt")) == (0, [])
        assert seen.waits_for == "the launchers that still copy device memory of rank-1"
        image.rename(snapshot / "image")
    done = wait(folder)
    assert (done.state, done.error, done.waits_for) == ("done", None, "")
    back = job.place(incarnation=2)
    assert does(FETCH, back).state == "done"
    same(folder, back)


def test_a_fault_of_ours_is_said_too(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(work_folder: WorkFolder) -> None:
        raise ZeroDivisionError("so it is")

    said = does(UPLOAD._replace(run=faulty), job.saved())
    assert (said.state, said.code) == ("failed", "internal") and "so it is" in str(said.error)


def test_a_fetch_from_before_a_reboot_is_repeated(job: Job) -> None:
    folder = job.saved()
    does(UPLOAD, folder)
    back = job.place(incarnation=2)
    done = does(FETCH, back)
    (back / "state.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(done, boot="another"))
    )
    (back / "rank-0/criu/core-17.img").write_bytes(bytes(5))
    assert does(FETCH, back).state == "done"
    same(folder, back)
