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
from rankfold.checkpoint.background import Place, Work
from rankfold.checkpoint.snapshot import Unfit
from rankfold.checkpoint.store import Damaged, Id, Missing, Refused, Store


def fetch(place: Place) -> None:
    """Fetch the snapshots of a task. Raises StoreError, Unfit and OSError."""
    task, state = place.task, place.state
    store = stores.open(task.url, task.fleet, options=task.options, begin=False)
    store.refuse_taken(task.job, task.known, place.owner)
    for each in _candidates(store, place):
        try:
            _bring(store, place, each)
        except (Damaged, Refused, Unfit) as error:
            if task.id is not None:
                raise
            state.skipped.append((str(each), str(error)))
            continue
        if task.incarnation is not None:
            store.take(task.job, task.incarnation, each, place.owner)
        return
    bad = "".join(f"; {why}" for _, why in state.skipped)
    raise Missing(task.url, f"{task.job} has no usable checkpoint{bad}")


def _candidates(store: Store, place: Place) -> Iterator[Id]:
    """The checkpoints to try: first one that is partly here, then from the newest to the oldest."""
    task = place.task
    if task.id is not None:
        each = Id.parse(task.id)
        if each is None:
            raise Refused(task.url, f"{task.id!r} is no checkpoint's id", "rankfold store list")
        yield each
        return
    begun = Id.parse(place.before.id or "")
    if begun and begun in store.checkpoints(task.job):
        yield begun
    seen = {begun}
    while new := [each for each in store.checkpoints(task.job) if each not in seen]:
        seen.add(new[-1])
        yield new[-1]


def _bring(store: Store, place: Place, each: Id) -> None:
    task, state = place.task, place.state
    checkpoint = store.checkpoint(task.job, each)
    if place.before.id != str(each):  # what is here belongs to another checkpoint
        for rank in task.ranks:
            shutil.rmtree(place.rank(rank), ignore_errors=True)
    state.id, state.bytes = str(each), 0
    place.before.id = state.id
    place.tell()  # before anything of the checkpoint is here
    state.total = sum(part.size for part in checkpoint.parts if part.rank in task.ranks)

    def told(count: int) -> None:
        state.bytes += count

    try:
        snapshot.modules.write(checkpoint, place.modules)
        snapshot.write(checkpoint, {rank: place.rank(rank) for rank in task.ranks}, told)
    except OSError:
        for rank in task.ranks:  # a full disk: free space to record that
            if not (place.rank(rank) / snapshot.ABOUT).exists():
                shutil.rmtree(place.rank(rank), ignore_errors=True)
        raise
    except Damaged:
        if each in store.checkpoints(task.job):  # otherwise it was collected meanwhile
            store.mark(task.job, checkpoint.verify())
        raise
    state.bytes = state.total


if __name__ == "__main__":
    sys.exit(background.start(sys.argv[1:], Work(fetch, nice=0, durable=False)))
