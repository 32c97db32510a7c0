"""Stores a save's snapshots: `python -m rankfold.checkpoint.upload FOLDER` (background.py).

The job runs meanwhile. An upload that was killed at any moment continues where it was when it is
started again, and what it had finished is not saved twice. At the end, checkpoints beyond the last
`keep` are collected.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rankfold import owners
from rankfold.checkpoint import background
from rankfold.checkpoint import store as stores
from rankfold.checkpoint.background import Work, WorkFolder
from rankfold.checkpoint.snapshot import ABOUT, Snapshot, Unfit, images_being_copied, modules
from rankfold.checkpoint.store import Id, Progress, Refused, Save, Store, StoreError

LOOK_AGAIN_S = 0.02
# The job's processes go first, but an upload still ends where they keep all cores busy: at 15 that
# of four PyTorch ranks on two cores took 60 s for 8 s of work; a crash would have lost those steps.
UPLOAD_NICE = 5
READERS = 4  # ranks whose snapshots are read at the same time
TOKEN = "token"  # key in the manifest's `about`


def upload(work_folder: WorkFolder) -> None:
    """Upload the snapshots of a task. Raises StoreError, Unfit and OSError."""
    task, state = work_folder.task, work_folder.state
    folders = [work_folder.rank(rank) for rank in task.ranks]
    while copied := images_being_copied(folders):
        names = ", ".join(sorted(folder.name for folder in copied))
        state.waits_for = f"the launchers that still copy device memory of {names}"
        state.bytes = sum(copied.values())  # shows that there is progress
        time.sleep(LOOK_AGAIN_S)
    state.waits_for = ""
    snapshots = {rank: _snapshot(work_folder, rank) for rank in task.ranks}
    loaded = modules.find(
        {m for each in snapshots.values() for m in each.modules}, work_folder.modules
    )
    state.total = sum(each.size for each in snapshots.values())
    state.total += sum(path.stat().st_size for path in loaded)
    store = stores.open(task.url, task.fleet, options=task.options)
    incarnation = _take_over(store, work_folder)
    finished = _finished(store, work_folder) if work_folder.previous.token else None
    state.id = str(finished) if finished else None
    if finished is None:
        state.id = str(_save(store, work_folder, incarnation, snapshots, loaded))
    state.bytes = state.total
    if task.keep is not None:
        try:
            store.collect(task.job, task.keep)
        except StoreError as error:  # the checkpoint exists nevertheless
            state.note = f"nothing was collected: {error}"


def _snapshot(work_folder: WorkFolder, rank: int) -> Snapshot:
    snapshot = Snapshot(work_folder.rank(rank))
    # Data that was not synced before the machine stopped may be lost, and nothing would detect
    # that.
    if snapshot.about.get("boot", work_folder.state.boot) != work_folder.state.boot:
        problem = "was written before the last boot of this machine"
        raise Unfit(work_folder.rank(rank) / ABOUT, problem, "restore the last checkpoint")
    return snapshot


def _take_over(store: Store, work_folder: WorkFolder) -> int:
    """Make the job ours in this incarnation, which begins here unless a restore began it."""
    task, newest = work_folder.task, store.newest_incarnation(work_folder.task.job)
    if task.incarnation is None:
        raise Refused(task.url, f"{task.job} has no incarnation to save in", "name one")
    store.refuse_taken_over(task.job, task.known, work_folder.owner)
    if newest is None or newest.incarnation < task.incarnation:
        newest = store.begin_incarnation(task.job, task.incarnation, owner=work_folder.owner)
    same_owner = owners.is_same(newest.owner, work_folder.owner)
    if newest.incarnation == task.incarnation and not same_owner:
        who = owners.description(newest.owner)
        problem = f"incarnation {newest.incarnation} of {task.job} has been begun by {who}"
        raise Refused(task.url, problem, "leave the job to it, or restore it here")
    return task.incarnation  # if it is over, the save is refused


def _finished(store: Store, work_folder: WorkFolder) -> Id | None:
    """The checkpoint that this save made before it was interrupted, or None."""
    for each in reversed(store.checkpoints(work_folder.task.job)):
        if each.incarnation != work_folder.task.incarnation:
            break
        try:
            if (
                store.manifest(work_folder.task.job, each).about.get(TOKEN)
                == work_folder.state.token
            ):
                return each
        except (stores.Damaged, Refused):
            continue
    return None


def _save(
    store: Store,
    work_folder: WorkFolder,
    incarnation: int,
    snapshots: dict[int, Snapshot],
    loaded: list[Path],
) -> Id:
    task, state = work_folder.task, work_folder.state

    def report(progress: Progress) -> None:
        state.bytes, state.stored = progress.added, progress.uploaded

    save = store.begin(task.job, incarnation, progress=report)
    try:
        modules.add_to(save, loaded)
        _add_snapshots(save, snapshots)
        manifest = save.finish({**task.about, TOKEN: state.token})
    finally:
        save.close()
    state.stored = save.progress.uploaded
    return manifest.id


def _add_snapshots(save: Save, snapshots: dict[int, Snapshot]) -> None:
    with ThreadPoolExecutor(READERS, "rankfold-snapshot") as pool:
        futures = [pool.submit(each.add_to, save, rank) for rank, each in snapshots.items()]
        try:
            for each in futures:
                each.result()
        except BaseException:
            save.close()  # the other threads then end soon
            raise


if __name__ == "__main__":
    sys.exit(background.start(sys.argv[1:], Work(upload, nice=UPLOAD_NICE, durable=True)))
