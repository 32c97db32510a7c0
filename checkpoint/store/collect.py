"""Garbage collection: removes data that is no longer needed, concurrently with saves and other
collections.

The order of the steps makes it safe, without clocks and without a lock:

1.  list the data: only what exists now can be removed;
2.  read incarnation, fence and claims, then the manifests: a save that was running at 1 is seen as
    a claim, or has finished and is seen as a manifest;
3.  move the manifests to be removed to `doomed`. A save names its pins in its claim and reads their
    manifests *afterwards*: so either it finds that one is gone and does not rely on it, or
4.  its claim is seen when claims are read again, or it has finished since 2 and its manifest is
    seen when manifests are listed again after that;
5.  remove what was listed at 1, except data that is needed by a manifest of 2 (other than those
    moved at 3) or of 4 or by a pinned one, doomed or not, and data in a running save's folder. The
    manifests of 2 count because another collection may have doomed one of them since, and a save
    may have pinned it before;
6.  list the doomed manifests that are in no other folder, then read pins again, and remove those
    without: another collection may have doomed them after 4, and an incarnation that was begun
    before that restores from one of them. A later one finds that it is gone.

No folder of a save is ever used by another save, so a late removal hits nothing new.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from rankfold.checkpoint.store import incarnations, names
from rankfold.checkpoint.store.errors import Damaged, Missing, Refused
from rankfold.checkpoint.store.incarnations import Claim, Fence, Incarnation
from rankfold.checkpoint.store.manifest import Manifest
from rankfold.checkpoint.store.names import Id, Place

if TYPE_CHECKING:
    from rankfold.checkpoint.store.store import Store


class Collected(NamedTuple):
    """The checkpoints, files and bytes that a collection removed."""

    checkpoints: tuple[Id, ...]
    files: int
    bytes: int


class _Listing(NamedTuple):
    """The manifests of a job, None for a damaged one. `newest_begun`: the newest claim or
    incarnation, read after them."""

    newest: Incarnation | None
    fence: Fence
    claims: list[Claim]
    manifests: dict[Id, Manifest | None]
    newest_begun: Id

    @property
    def running(self) -> list[Claim]:
        """The claims that hold."""
        return [each for each in self.claims if each.folder and each.number not in self.manifests]

    def pins(self) -> set[Id]:
        pinned = {pin for claim in self.running for pin in claim.pins}
        newest = self.newest
        if (
            newest
            and newest.origin
            and not any(each.incarnation == newest.incarnation for each in self.manifests)
        ):
            pinned.add(newest.origin)
        return pinned


def collect(store: Store, job: str, keep: int) -> Collected:
    """See `Store.collect`."""
    if keep < 1:
        raise ValueError("at least one checkpoint is kept")
    data = store.data(job)
    first = _list(store, job)
    removed_ids = _to_remove(store, job, first, keep, data)
    for each in removed_ids:
        _doom_manifest(store, job, each)
    second = _list(store, job, first)
    needed = _needed(store, job, first, second, removed_ids)
    running = {claim.folder for claim in first.running + second.running}
    # The files that a damaged manifest names are unknown: data saved under its number stays.
    damaged = {each for each, manifest in second.manifests.items() if manifest is None}
    removed = [
        place
        for place in data
        if not (place in needed or place.folder in running or Id.of_folder(place.folder) in damaged)
    ]
    for place in removed:
        store.files.remove(names.data(job, place))
    _remove_leftovers(store, job, first, second, {place.folder for place in removed})
    return Collected(tuple(removed_ids), len(removed), sum(data[place] for place in removed))


def _list(store: Store, job: str, before: _Listing | None = None) -> _Listing:
    """Read incarnation and fence first, then the claims that are not older than the fence, then the
    manifests. Manifests of `before` are not read again."""
    try:
        newest, fence = incarnations.newest(store.files, job), incarnations.fence(store.files, job)
        claims = incarnations.claims(store.files, job, fence.oldest_running)
    except Damaged as error:
        remedy = "nothing was removed; the next save or incarnation of the job repairs it"
        raise Damaged(error.url, error.what, remedy, name=error.name) from error
    read = before.manifests if before else {}
    manifests: dict[Id, Manifest | None] = {}
    for each in incarnations.ids(store.files, names.manifest(job)):
        with contextlib.suppress(Missing):  # another collection removed it
            manifests[each] = read[each] if each in read else _read(store, job, each)
    numbers = incarnations.numbers(store.files, names.incarnation(job))
    newest_begun = [
        *incarnations.ids(store.files, names.claim(job)),
        *(Id(number, 0) for number in numbers),
    ]
    return _Listing(newest, fence, claims, manifests, max(newest_begun, default=incarnations.START))


def _read(store: Store, job: str, each: Id) -> Manifest | None:
    """Read a manifest, doomed or not; None if it is damaged. Raises Missing, Refused."""
    for name in (names.manifest(job, each), names.doomed(job, each)):
        try:
            return Manifest.decode(store.url, job, each, store.files.get(name), name)
        except Missing:
            continue
        except Damaged:
            return None
        except Refused as error:  # a newer version's: which files it needs is unknown
            remedy = "nothing was removed; collect with the newer rankfold"
            raise Refused(error.url, error.what, remedy, name=error.name) from error
    raise Missing(store.url, "does not exist", name=names.manifest(job, each))


def _to_remove(
    store: Store, job: str, listing: _Listing, keep: int, data: dict[Place, int]
) -> list[Id]:
    """The checkpoints to remove: those older than the last `keep` good ones, and those that came
    too late to count; except those that are pinned. A checkpoint is not good if its files are
    missing or have another size."""
    marked, pins, good, removed_ids = store.damaged(job), listing.pins(), 0, []
    for each in sorted(listing.manifests, reverse=True):
        manifest = listing.manifests[each]
        too_late = not listing.fence.counts(each)
        if listing.fence.since <= each < listing.newest_begun:
            continue  # whether it counts is known once the later one has its fence
        if (good >= keep or too_late) and each not in pins:
            removed_ids.append(each)
        elif not too_late and manifest is not None and not marked & manifest.files.keys():
            good += manifest.files.items() <= data.items()
    return removed_ids


def _doom_manifest(store: Store, job: str, each: Id) -> None:
    """Doom a manifest. At every moment it is in at least one of the two folders."""
    try:
        data = store.files.get(names.manifest(job, each))
    except Missing:
        return
    store.files.create(names.doomed(job, each), data)
    store.files.sync([names.doomed(job)])
    store.files.remove(names.manifest(job, each))


def _needed(
    store: Store, job: str, first: _Listing, second: _Listing, removed_ids: list[Id]
) -> set[Place]:
    counted = [m for each, m in first.manifests.items() if each not in removed_ids]
    counted += second.manifests.values()
    for each in first.pins() | second.pins():
        with contextlib.suppress(Missing):
            counted.append(_read(store, job, each))
    return {place for manifest in counted if manifest for place in manifest.files}


def _remove_leftovers(
    store: Store, job: str, first: _Listing, second: _Listing, folders: set[str]
) -> None:
    """Remove doomed manifests without pins, marks of files that are gone, ended incarnations, and
    empty folders."""
    files, pins = store.files, first.pins() | second.pins()
    doomed = set(incarnations.ids(files, names.doomed(job)))
    doomed -= set(incarnations.ids(files, names.manifest(job)))
    if doomed:
        pins |= _list(store, job, second).pins()
    for each in sorted(doomed - pins):
        files.remove(names.doomed(job, each))
    remaining = store.data(job)
    for place in store.damaged(job) - remaining.keys():
        files.remove(names.damage(job, place))
    for folder in folders - {place.folder for place in remaining}:
        files.sweep(f"{names.data(job)}/{folder}")
    if second.newest and second.fence.since >= Id(second.newest.incarnation, 0):
        for number in incarnations.numbers(files, names.incarnation(job)):
            if number < second.newest.incarnation:
                files.remove(names.incarnation(job, number))
        for claim in incarnations.ids(files, names.claim(job)):
            if claim.incarnation < second.newest.incarnation:
                files.remove(names.claim(job, claim))
