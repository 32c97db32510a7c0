"""Brings a checkpoint's snapshots here: `python -m rankfold.checkpoint.fetch FOLDER`
(background.py).

Every unit is verified as it arrives. A rank's snapshot is whole when its about.json exists. When
all are whole, the job's next incarnation begins with this checkpoint. Without an `id`, the newest
checkpoint that is whole is used; newer ones that are not are marked and reported.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

from rankfold.checkpoint import background, snapshot
from rankfold.checkpoint import store as stores
from rankfold.checkpoint.background import Work, WorkFolder
from rankfold.checkpoint.snapshot import Unfit
from rankfold.checkpoint.store import Damaged, Id, Missing, Refused, Store


def fetch(work_folder: WorkFolder) -> None:
    """Fetch the snapshots of a task. Raises StoreError, Unfit and OSError."""
    task, state = work_folder.task, work_folder.state
    store = stores.open(task.url, task.fleet, options=task.options, begin=False)
    store.refuse_taken_over(task.job, task.known, work_folder.owner)
    for each in _candidates(store, work_folder):
        try:
            _fetch_checkpoint(store, work_folder, each)
        except (Damaged, Refused, Unfit) as error:
            if task.id is not None:
                raise
            state.skipped.append((str(each), str(error)))
            continue
        if task.incarnation is not None:
            store.begin_incarnation(task.job, task.incarnation, each, work_folder.owner)
        return
    bad = "".join(f"; {why}" for _, why in state.skipped)
    raise Missing(task.url, f"{task.job} has no usable checkpoint{bad}")


def _candidates(store: Store, work_folder: WorkFolder) -> Iterator[Id]:
    """The checkpoints to try: first one that is partly here, then from the newest to the oldest."""
    task = work_folder.task
    if task.id is not None:
        each = Id.parse(task.id)
        if each is None:
            raise Refused(
                task.url, f"{task.id!r} is not the id of a checkpoint", "rankfold store list"
            )
        yield each
        return
    started = Id.parse(work_folder.previous.id or "")
    if started and started in store.checkpoints(task.job):
        yield started
    seen = {started}
    while new := [each for each in store.checkpoints(task.job) if each not in seen]:
        seen.add(new[-1])
        yield new[-1]


def _fetch_checkpoint(store: Store, work_folder: WorkFolder, each: Id) -> None:
    task, state = work_folder.task, work_folder.state
    checkpoint = store.checkpoint(task.job, each)
    if work_folder.previous.id != str(each):  # what is here belongs to another checkpoint
        for rank in task.ranks:
            shutil.rmtree(work_folder.rank(rank), ignore_errors=True)
    state.id, state.bytes = str(each), 0
    work_folder.previous.id = state.id
    work_folder.write_state()  # before anything of the checkpoint is here
    state.total = sum(part.size for part in checkpoint.parts if part.rank in task.ranks)

    def count_bytes(count: int) -> None:
        state.bytes += count

    try:
        snapshot.modules.write(checkpoint, work_folder.modules)
        snapshot.write(
            checkpoint, {rank: work_folder.rank(rank) for rank in task.ranks}, count_bytes
        )
    except OSError:
        for rank in task.ranks:  # a full disk: free space to record that
            if not (work_folder.rank(rank) / snapshot.ABOUT).exists():
                shutil.rmtree(work_folder.rank(rank), ignore_errors=True)
        raise
    except Damaged:
        if each in store.checkpoints(task.job):  # otherwise it was collected meanwhile
            store.mark(task.job, checkpoint.verify())
        raise
    state.bytes = state.total


if __name__ == "__main__":
    sys.exit(background.start(sys.argv[1:], Work(fetch, nice=0, durable=False)))
