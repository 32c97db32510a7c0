"""Incarnations of a job, and claims of running saves: who may save, and what must stay meanwhile.

No clock and no process is asked: a claim holds until its checkpoint exists, until a later claim of
the job takes its place, or until a later incarnation of the job has begun. docs/checkpoints.md says
why that is enough.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from rankfold.checkpoint.store import documents, names
from rankfold.checkpoint.store.errors import Damaged, Missing, OldIncarnation, Refused
from rankfold.checkpoint.store.files import Files
from rankfold.checkpoint.store.names import Id


class Life(NamedTuple):
    """The newest incarnation of a job. `known`: the older checkpoints that count, None while the
    incarnation is only beginning: then all do."""

    incarnation: int
    origin: Id | None
    owner: str
    known: frozenset[Id] | None

    def counts(self, each: Id) -> bool:
        """Not what an earlier incarnation still wrote when this one had begun."""
        return each.incarnation == self.incarnation or (
            each.incarnation < self.incarnation and (self.known is None or each in self.known)
        )


class Claim(NamedTuple):
    """A save that was begun: what it will be (None: it was given up), where it stores, and the
    checkpoints that must stay as long as it runs. Claims are counted within an incarnation: what an
    old one still claims hides nothing of the new one's."""

    number: Id
    id: Id | None
    folder: str
    pins: frozenset[Id]


def numbers(files: Files, folder: str) -> list[int]:
    return sorted(n for name in files.below(folder) if (n := names.number_of(name)) is not None)


def ids(files: Files, folder: str) -> list[Id]:
    """Oldest first."""
    return sorted(each for name in files.below(folder) if (each := names.id_of(name)) is not None)


def life(files: Files, job: str) -> Life | None:
    while found := numbers(files, names.incarnation(job)):
        name = names.incarnation(job, found[-1])
        try:
            record = documents.unseal(files.url, name, "incarnation", files.get(name))
        except Missing:
            continue  # removed since, for there is a newer one
        if (record["job"], record["incarnation"]) != (job, found[-1]):
            raise Damaged(files.url, "is another incarnation's", name=name)
        origin = Id.parse(record["origin"]) if record["origin"] else None
        return Life(found[-1], origin, record["owner"], _known(files, job, found[-1]))
    return None


def _known(files: Files, job: str, incarnation: int) -> frozenset[Id] | None:
    name = names.known(job, incarnation)
    try:
        record = documents.unseal(files.url, name, "known", files.get(name))
    except Missing:
        return None
    return frozenset(filter(None, map(Id.parse, record["checkpoints"])))


def begin_life(files: Files, job: str, incarnation: int, origin: Id | None, owner: str) -> Life:
    """See `Store.take`. First the record, from which on the older one is refused, then what the
    older one had saved by then: so nothing that it was told is saved is lost."""
    found = numbers(files, names.incarnation(job))
    if not found or found[-1] < incarnation:
        record = documents.seal("incarnation", job=job, incarnation=incarnation, owner=owner,
                                origin=str(origin) if origin else None)  # fmt: skip
        files.create(names.incarnation(job, incarnation), record)
        files.settle([names.incarnation(job)])
    now = life(files, job)
    refuse_old(files, job, incarnation, now)
    assert now is not None
    if (now.owner, now.origin) != (owner, origin):
        what = f"incarnation {incarnation} of {job} has been begun by {now.owner or 'another'}"
        raise Refused(files.url, what, "leave the job to it, or begin a later incarnation")
    if now.known is None:
        _fence(files, job, incarnation)
        now = now._replace(known=_known(files, job, incarnation))
    return now


def _fence(files: Files, job: str, incarnation: int) -> None:
    """What earlier incarnations save from now on does not count."""
    earlier = [n for n in numbers(files, names.incarnation(job)) if n < incarnation]
    before = None
    if earlier:
        with contextlib.suppress(Damaged):
            before = Life(earlier[-1], None, "", _known(files, job, earlier[-1]))
    listed = [
        str(each) for each in ids(files, names.manifest(job))
        if each.incarnation < incarnation and (before is None or before.counts(each))
    ]  # fmt: skip
    record = documents.seal("known", job=job, incarnation=incarnation, checkpoints=listed)
    files.create(names.known(job, incarnation), record)
    files.settle([names.known(job)])


def refuse_old(files: Files, job: str, incarnation: int, now: Life | None) -> None:
    """Raises where this is not the job's newest incarnation."""
    if now is None or now.incarnation < incarnation:
        what = f"incarnation {incarnation} of {job} has not been begun"
        raise Refused(files.url, what, "take the job first")
    if now.incarnation > incarnation:
        what = f"{job} goes on as incarnation {now.incarnation}, {incarnation} is over"
        raise OldIncarnation(files.url, what, "end what is left of it")


def claim(files: Files, job: str, incarnation: int) -> Claim | None:
    """The newest one of an incarnation."""
    while found := [each for each in ids(files, names.claim(job))
                    if each.incarnation == incarnation]:  # fmt: skip
        with contextlib.suppress(Missing):  # removed since, for there is a newer one
            return _claim(files, job, found[-1])
    return None


def claims(files: Files, job: str, least: int) -> list[Claim]:
    """The newest one of each incarnation from the `least` on."""
    incarnations = {each.incarnation for each in ids(files, names.claim(job))}
    found = (claim(files, job, each) for each in sorted(incarnations) if each >= least)
    return [each for each in found if each]


def _claim(files: Files, job: str, number: Id) -> Claim:
    name = names.claim(job, number)
    record = documents.unseal(files.url, name, "claim", files.get(name))
    if (record["job"], record["claim"]) != (job, str(number)):
        raise Damaged(files.url, "is another claim", name=name)
    pins = frozenset(filter(None, map(Id.parse, record["pins"])))
    return Claim(number, Id.parse(record["id"] or ""), record["folder"], pins)


def make_claim(files: Files, job: str, wanted: Claim) -> bool:
    """Whether it is ours: False where somebody else took this number."""
    record = documents.seal(
        "claim", job=job, claim=str(wanted.number), id=str(wanted.id) if wanted.id else None,
        folder=wanted.folder, pins=sorted(map(str, wanted.pins)),
    )  # fmt: skip
    made = files.create(names.claim(job, wanted.number), record)
    files.settle([names.claim(job)])
    return made
