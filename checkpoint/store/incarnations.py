"""Incarnations of a job, and claims of running saves: who may save, and what must stay meanwhile.

This module depends on no clock and no process: a claim holds until its checkpoint exists, until a
later claim of the job replaces it, or until a later incarnation of the job has begun.
docs/checkpoints.md explains why that suffices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from rankfold import owners
from rankfold.checkpoint.store import documents, names
from rankfold.checkpoint.store.errors import Damaged, Missing, OldIncarnation, Refused
from rankfold.checkpoint.store.files import Files
from rankfold.checkpoint.store.names import Id

# Other processes change a store concurrently, so some steps are repeated. In a store that keeps the
# promises of files.py, each repetition means that another process has completed something.
TRIES = 16
AGAIN_S = 0.002  # before the second repetition; each further pause is that much longer

Number = TypeVar("Number", int, Id)


class Incarnation(NamedTuple):
    """The newest incarnation of a job."""

    incarnation: int
    origin: Id | None
    owner: str


class Fence(NamedTuple):
    """The checkpoints that a claim or an incarnation found when it had begun. Older checkpoints
    that appear later do not count, because data that they name may be gone. `known` is None if the
    fence cannot be read: then all checkpoints count, and none of their data may be removed."""

    since: Id
    known: frozenset[Id] | None

    def counts(self, each: Id) -> bool:
        return self.known is None or each >= self.since or each in self.known

    @property
    def oldest_running(self) -> Id:
        """Claims from this number on may still become checkpoints."""
        return START if self.known is None else self.since


START = Id(0, 0)


class Claim(NamedTuple):
    """A save that was begun: the number of its future checkpoint, the folder in which it stores
    (None: it was given up), and the checkpoints that must stay as long as it runs."""

    number: Id
    folder: str | None
    pins: frozenset[Id]


def numbers(files: Files, folder: str) -> list[int]:
    return sorted(n for name in files.below(folder) if (n := names.number_of(name)) is not None)


def ids(files: Files, folder: str) -> list[Id]:
    """The ids of a folder's files, oldest first."""
    return sorted(each for name in files.below(folder) if (each := names.id_of(name)) is not None)


def _newest(
    files: Files, listed: Callable[[], list[Number]], name_of: Callable[[Number], str]
) -> tuple[Number, bytes] | None:
    """The newest of the listed files, and its content; None if none is listed. A listed file may be
    removed before it is read, if there is a newer one by then: list again. Raises Missing for a
    file that stays listed and is not there, as a link to nothing."""
    name = ""
    for again in range(TRIES):
        time.sleep(AGAIN_S * max(0, again - 1))
        if not (listed_numbers := listed()):
            return None
        name = name_of(listed_numbers[-1])
        try:
            return listed_numbers[-1], files.get(name)
        except Missing:
            continue
    raise Missing(files.url, "is listed, but does not exist", "remove it from the store", name=name)


def newest(files: Files, job: str) -> Incarnation | None:
    def listed() -> list[int]:
        return numbers(files, names.incarnation(job))

    number_and_data = _newest(files, listed, lambda number: names.incarnation(job, number))
    if number_and_data is None:
        return None
    number, data = number_and_data
    name = names.incarnation(job, number)
    record = documents.unseal(files.url, name, "incarnation", data)
    if (record["job"], record["incarnation"]) != (job, number):
        raise Damaged(files.url, "belongs to another incarnation", name=name)
    return Incarnation(number, Id.parse(record["origin"] or ""), record["owner"])


def begin(files: Files, job: str, incarnation: int, origin: Id | None, owner: str) -> Incarnation:
    """See `Store.begin_incarnation`. Writes the record first, after which the older incarnation is
    refused; then lists what the older one had saved by then. So no save that was reported as
    finished is lost."""
    taken = numbers(files, names.incarnation(job))
    if not taken or taken[-1] < incarnation:
        record = documents.seal(
            "incarnation",
            job=job,
            incarnation=incarnation,
            owner=owner,
            origin=str(origin) if origin else None,
        )
        files.create(names.incarnation(job, incarnation), record)
        files.sync([names.incarnation(job)])
    now = newest(files, job)
    refuse_old(files, job, incarnation, now)
    assert now is not None
    if not owners.is_same(now.owner, owner) or now.origin != origin:
        who = owners.description(now.owner) or "another"
        problem = f"incarnation {incarnation} of {job} has been begun by {who}"
        raise Refused(files.url, problem, "leave the job to it, or begin a later incarnation")
    make_fence(files, job, Id(incarnation, 0))
    return now


def fence(files: Files, job: str) -> Fence:
    """The newest fence of the job."""

    def listed() -> list[Id]:
        return ids(files, names.fence(job))

    try:
        found = _newest(files, listed, lambda since: names.fence(job, since))
    except Missing:
        return Fence(max(listed(), default=START), None)
    if found is None:
        return Fence(START, frozenset())
    since, data = found
    try:
        record = documents.unseal(files.url, names.fence(job, since), "fence", data)
    except (Damaged, Refused):
        return Fence(since, None)
    if (record["job"], record["since"]) != (job, str(since)):
        return Fence(since, None)
    return Fence(since, frozenset(filter(None, map(Id.parse, record["checkpoints"]))))


def make_fence(files: Files, job: str, since: Id) -> None:
    """Make the fence of a claim or an incarnation that exists already. A save that checked before
    may still write its manifest: that counts if it is here by now, and never if it comes later."""
    before = fence(files, job)
    if before.since >= since and before.known is not None:
        return
    listed = [
        str(each)
        for each in ids(files, names.manifest(job))
        if each < since and before.counts(each)
    ]
    record = documents.seal("fence", job=job, since=str(since), checkpoints=listed)
    files.create(names.fence(job, since), record)
    files.sync([names.fence(job)])
    for each in ids(files, names.fence(job)):
        if each < since:
            files.remove(names.fence(job, each))


def refuse_old(files: Files, job: str, incarnation: int, now: Incarnation | None) -> None:
    """Check that this is the job's newest incarnation. Raises OldIncarnation, Refused."""
    if now is None or now.incarnation < incarnation:
        problem = f"incarnation {incarnation} of {job} has not been begun"
        raise Refused(files.url, problem, "take the job first")
    if now.incarnation > incarnation:
        who = f", begun by {owners.description(now.owner)}" if now.owner else ""
        problem = (
            f"{job} continues as incarnation {now.incarnation}{who}; incarnation {incarnation} "
            "has ended"
        )
        raise OldIncarnation(files.url, problem, "kill its remaining processes")


def refuse_taken_over(
    files: Files, job: str, known: int, owner: str, now: Incarnation | None
) -> None:
    """Check that no other owner has begun an incarnation after `known`, the newest one that `owner`
    had or knew of. Raises OldIncarnation. If another owner has, the job is no longer `owner`'s,
    whatever number `owner` has reached meanwhile. A job that the store never had from `owner` (0)
    is not taken from it."""
    if not known or now is None or now.incarnation <= known:
        return
    if not owners.is_same(now.owner, owner):
        who = owners.description(now.owner) or "another"
        problem = f"{job} continues as incarnation {now.incarnation}, begun by {who}"
        remedy = "leave it there, or take it back with `rankfold resume --from`"
        raise OldIncarnation(files.url, problem, remedy)


def claim(files: Files, job: str, incarnation: int) -> Claim | None:
    """The newest claim of an incarnation, or None."""

    def listed() -> list[Id]:
        return [each for each in ids(files, names.claim(job)) if each.incarnation == incarnation]

    found = _newest(files, listed, lambda number: names.claim(job, number))
    return _claim(files, job, *found) if found else None


def claims(files: Files, job: str, least: Id) -> list[Claim]:
    """The newest claim of each incarnation that has claims from `least` on."""
    incarnations = {each.incarnation for each in ids(files, names.claim(job)) if each >= least}
    live = (claim(files, job, each) for each in sorted(incarnations))
    return [each for each in live if each]


def _claim(files: Files, job: str, number: Id, data: bytes) -> Claim:
    name = names.claim(job, number)
    record = documents.unseal(files.url, name, "claim", data)
    if (record["job"], record["claim"]) != (job, str(number)):
        raise Damaged(files.url, "is a different claim", name=name)
    pins = frozenset(filter(None, map(Id.parse, record["pins"])))
    return Claim(number, record["folder"], pins)


def make_claim(files: Files, job: str, wanted: Claim) -> bool:
    """Make a claim. Returns False if another save took this number."""
    record = documents.seal(
        "claim",
        job=job,
        claim=str(wanted.number),
        folder=wanted.folder,
        pins=sorted(map(str, wanted.pins)),
    )
    made = files.create(names.claim(job, wanted.number), record)
    files.sync([names.claim(job)])
    return made
