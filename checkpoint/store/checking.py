"""`rankfold store check`: reads everything in a store, and reports the faults of each
checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from rankfold.checkpoint.store import incarnations, names
from rankfold.checkpoint.store.errors import Damaged, Refused
from rankfold.checkpoint.store.manifest import Manifest
from rankfold.checkpoint.store.names import Id, Place
from rankfold.checkpoint.store.reading import Checkpoint
from rankfold.checkpoint.store.store import Store
from rankfold.plural import count


class Report(NamedTuple):
    """A report on one checkpoint, or on the whole job if `id` is None. `faults`: in words, none if
    all is as it was saved. `note`: useful information that is not a fault."""

    job: str
    id: Id | None
    manifest: Manifest | None
    faults: tuple[str, ...]
    note: str = ""


def check(store: Store, report: Callable[[str], None] | None = None) -> Iterator[Report]:
    """Read every checkpoint whole, each file once. Damaged files are marked, so that no later save
    relies on them. `describe` is called with what is read next."""
    for job in store.jobs():
        yield from _check_job(store, job, report or (lambda _: None))


def _check_job(store: Store, job: str, report: Callable[[str], None]) -> Iterator[Report]:
    seen: dict[Place, str | None] = {}
    fence = incarnations.fence(store.files, job)
    if fence.known is None:
        name = names.fence(job, fence.since)
        yield Report(job, None, None, (f"{name} cannot be read; the next save repairs it",))
    needed: set[Place] = set()
    for each in incarnations.ids(store.files, names.manifest(job)):
        report(f"checkpoint {each} of {job}")
        try:
            manifest = store.manifest(job, each)
        except (Damaged, Refused) as error:
            yield Report(job, each, None, (str(error),))
            continue
        needed |= manifest.files.keys()
        if not fence.counts(each):
            note = f"written when {fence.since} had begun already: it is ignored"
            yield Report(job, each, manifest, (), note)
            continue
        yield _check_one(store, manifest, seen)
    yield from _unneeded(store, job, needed)


def _check_one(store: Store, manifest: Manifest, seen: dict[Place, str | None]) -> Report:
    checkpoint = Checkpoint(store.files, manifest)
    faults = checkpoint.verify(seen)
    store.mark(manifest.job, faults)
    return Report(manifest.job, manifest.id, manifest, tuple(map(checkpoint.describe, faults)))


def _unneeded(store: Store, job: str, needed: set[Place]) -> Iterator[Report]:
    """Report data of no checkpoint: of a running or interrupted save, or not collected yet."""
    try:
        newest = incarnations.newest(store.files, job)
        claim = incarnations.claim(store.files, job, newest.incarnation) if newest else None
    except (Damaged, Refused) as error:
        yield Report(job, None, None, (str(error),))
        claim = None
    data = store.data(job)
    rest = {place: size for place, size in data.items() if place not in needed}
    own = sum(size for place, size in rest.items() if claim and place.folder == claim.folder)
    listed = incarnations.ids(store.files, names.manifest(job))
    if claim and claim.folder and claim.number not in listed:
        so_far = f"{count(own, 'byte')} so far"
        note = f"checkpoint {claim.number} is being saved, or was interrupted: {so_far}"
        yield Report(job, None, None, (), note)
        rest = {place: size for place, size in rest.items() if place.folder != claim.folder}
    if left := sum(rest.values()):
        yield Report(
            job, None, None, (), f"{count(left, 'byte')} that no checkpoint needs: to be collected"
        )
    folder = names.job(job)
    foreign = [name for name in store.files.below(folder) if not _ours(name, folder)]
    for name in foreign:
        yield Report(job, None, None, (), f"{name} was not written by rankfold: ignored")


def _ours(name: str, folder: str) -> bool:
    kind, _, rest = name[len(folder) + 1 :].partition("/")
    if kind == "data":
        return Place.parse(rest) is not None
    if kind in ("manifests", "doomed", "claims", "fences"):
        return names.id_of(rest) is not None
    if kind == "incarnations":
        return names.number_of(rest) is not None
    return kind == "damaged" and names.of_damage(rest) is not None
