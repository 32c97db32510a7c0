"""A store of checkpoints, as returned by `rankfold.checkpoint.store.open`.

To save: `begin_incarnation` (once per incarnation), `begin`, add the parts, `finish`. To restore:
`newest` returns the newest checkpoint that verifies, `checkpoint` one by its id. Every call may be
repeated after a failure, or after the death of its caller, and continues with what is there.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from rankfold.checkpoint.store import documents, incarnations, names, units
from rankfold.checkpoint.store.collect import Collected, collect
from rankfold.checkpoint.store.errors import (
    Damaged,
    Full,
    Missing,
    Refused,
    StoreError,
    Unavailable,
)
from rankfold.checkpoint.store.files import Files, connect
from rankfold.checkpoint.store.incarnations import Claim, Incarnation
from rankfold.checkpoint.store.manifest import Manifest, PackUse
from rankfold.checkpoint.store.names import Id, Place
from rankfold.checkpoint.store.reading import READERS, Checkpoint, Fault
from rankfold.checkpoint.store.save import Progress, Reusable, Save
from rankfold.checkpoint.store.units import Malformed, PackIndex

WORKERS = 8  # files that a save uploads concurrently
SPARE_BYTES = 32 << 20  # bytes of unneeded units allowed in packs that a new checkpoint still uses


class Skipped(NamedTuple):
    """A checkpoint that cannot be used, and the reason."""

    id: Id
    reason: str


class Newest(NamedTuple):
    """The newest checkpoint that verifies, None if there is none, and the newer ones that do
    not."""

    checkpoint: Checkpoint | None
    skipped: tuple[Skipped, ...]


class Store:
    """One fleet's checkpoints below one URL. Several threads, processes and machines may use it."""

    def __init__(self, files: Files, fleet: str):
        self.files, self.fleet, self.url = files, fleet, files.url
        self._lock = threading.Lock()
        self._indexes: dict[Place, PackIndex] = {}  # packs never change

    def need_writable(self) -> None:
        """Write a probe file and remove it, together with probes of processes that were killed.
        Raises `Refused` or `Full` if that fails."""
        name = names.probe(secrets.token_hex(8))
        try:
            self.files.create(name, b"")
            for each in (name, *self.files.below(names.probe())):
                self.files.remove(each)
        except Full:
            raise
        except StoreError as error:
            remedy = "allow rankfold to write and remove files there, or name another URL"
            raise Refused(self.url, f"cannot be written: {error.what}", remedy) from error

    # ---- incarnations --------------------------------------------------------------------------

    def begin_incarnation(
        self, job: str, incarnation: int, origin: Id | None = None, owner: str = ""
    ) -> Incarnation:
        """Begin an incarnation of a job: from its start, or from the checkpoint `origin`, which
        stays until the incarnation has a checkpoint of its own. Earlier incarnations can then no
        longer save. A repeated call by the same `owner` does nothing. Raises `OldIncarnation`;
        `Refused` if the incarnation is another owner's; `Missing` if `origin` is gone: then begin
        the next incarnation from another checkpoint."""
        self._job(job)
        newest = incarnations.begin(self.files, job, incarnation, origin, owner)
        if origin is not None and origin not in self.checkpoints(job):
            raise Missing(
                self.url,
                "does not exist",
                "restore another checkpoint",
                name=names.manifest(job, origin),
            )
        return newest

    def newest_incarnation(self, job: str) -> Incarnation | None:
        """The job's newest incarnation; None if the job was never taken."""
        return incarnations.newest(self.files, self._job(job))

    def refuse_taken_over(self, job: str, known: int, owner: str) -> None:
        """Check that no other owner has taken over the job since incarnation `known`. Raises
        `OldIncarnation`."""
        incarnations.refuse_taken_over(self.files, job, known, owner, self.newest_incarnation(job))

    # ---- saving --------------------------------------------------------------------------------

    def begin(
        self,
        job: str,
        incarnation: int,
        *,
        workers: int = WORKERS,
        progress: Callable[[Progress], None] | None = None,
    ) -> Save:
        """Begin a save, or resume one that was interrupted: its uploads count. A job has one save
        at a time; a process that began it earlier can no longer finish it. `workers` files are
        uploaded concurrently; 0: each is uploaded before the next unit is taken. The workers'
        threads call `progress`."""
        claim, resumed = self._claim(job, incarnation)
        for each in incarnations.ids(self.files, names.claim(job)):
            if each.incarnation == incarnation and each < claim.number:
                self.files.remove(names.claim(job, each))
        # Only now, because what is there after the claim stays.
        present = self._reusable(job, claim, resumed)
        return Save(
            self.files,
            self.fleet,
            job,
            claim,
            present,
            resumed=resumed,
            workers=workers,
            report=progress,
        )

    def _claim(self, job: str, incarnation: int) -> tuple[Claim, bool]:
        """Claim the next number that no other save has. Also returns whether the claim resumes an
        interrupted save."""
        self._job(job)
        for _ in range(incarnations.TRIES):
            incarnations.refuse_old(
                self.files, job, incarnation, incarnations.newest(self.files, job)
            )
            before = self._newest_claim(job, incarnation)
            claim, resumed = self._next_claim(job, incarnation, before)
            if not incarnations.make_claim(self.files, job, claim):
                continue
            incarnations.make_fence(self.files, job, claim.number)
            # If the earlier save was finished before this claim, its folder may be collected
            # already.
            finished = incarnations.ids(self.files, names.manifest(job)) if resumed else []
            if before is None or before.number not in finished:
                return claim, resumed
        problem = (
            f"{incarnations.TRIES} numbers for a save were taken by other saves, the last one here"
        )
        remedy = "let one process save the job, and let each name be a file"
        raise Unavailable(self.url, problem, remedy, name=names.claim(job, claim.number))

    def _newest_claim(self, job: str, incarnation: int) -> Claim | None:
        """The newest claim. A claim that is unreadable or lost counts as given up; only its number
        is known, which no other save may use."""
        last = self._last(job, incarnation, names.manifest, names.doomed, names.fence)
        abandoned = Claim(last, None, frozenset())
        try:  # only now: the saves that left these files had made their claims before
            claim = incarnations.claim(self.files, job, incarnation)
        except Damaged:
            number = self._last(job, incarnation, names.claim)
            return max(abandoned, Claim(number, None, frozenset()), key=lambda each: each.number)
        return abandoned if last.number and (claim is None or claim.number < last) else claim

    def _last(self, job: str, incarnation: int, *folders: Callable[[str], str]) -> Id:
        """The largest id of an incarnation in these folders; number 0 if there is none."""
        ids = (each for folder in folders for each in incarnations.ids(self.files, folder(job)))
        numbers = (each.number for each in ids if each.incarnation == incarnation)
        return Id(incarnation, max(numbers, default=0))

    def _next_claim(self, job: str, incarnation: int, before: Claim | None) -> tuple[Claim, bool]:
        number = Id(incarnation, before.number.number + 1 if before else 1)
        newest = next(self._usable(job, reversed(self.checkpoints(job))), None)
        pins = frozenset([newest.id] if newest else [])
        if (
            before
            and before.folder
            and before.number not in incarnations.ids(self.files, names.manifest(job))
        ):
            return Claim(number, before.folder, pins | before.pins), True
        return Claim(number, number.new_folder(), pins), False

    def _reusable(self, job: str, claim: Claim, resumed: bool) -> Reusable:
        """The contents that a save may rely on: see save.py."""
        data, marked = self.data(job), self.damaged(job)
        objects: dict[Place, int] = {}
        wanted: dict[Place, PackUse | None] = {}
        base: Manifest | None = None
        pinned = [each for each in self.checkpoints(job) if each in claim.pins]
        for manifest in self._usable(job, pinned):
            base = manifest
            intact = {place for place, size in manifest.files.items() if data.get(place) == size}
            objects |= {p: size for p, size in manifest.objects.items() if p in intact}
            wanted |= {p: use for p, use in _dense(manifest).items() if p in intact}
        if resumed:
            own = [place for place in data if place.folder == claim.folder and place not in marked]
            objects |= {place: data[place] for place in own if place.kind == "objects"}
            wanted |= {place: None for place in own if place.kind == "packs"}
        packs: dict[Place, PackIndex] = {}
        with ThreadPoolExecutor(READERS, "rankfold-index") as pool:
            for place, index in pool.map(lambda p: (p, self._index(job, p, wanted[p])), wanted):
                if index is not None and index.size == data[place]:
                    packs[place] = index
        before = Checkpoint(self.files, base, packs) if base else None
        return Reusable(objects, _complete(packs), before)

    def _index(self, job: str, place: Place, use: PackUse | None) -> PackIndex | None:
        """Read a pack's index; None if it is not readable as a pack: then no save relies on it."""
        with self._lock:
            if place in self._indexes:
                return self._indexes[place]
        name = names.data(job, place)
        try:
            count = (
                use.rows
                if use
                else units.count_rows(self.files.get(name, 0, units.header_bytes(0)))
            )
            head = self.files.get(name, 0, units.header_bytes(count))
            index = units.decode_index(bytes.fromhex(place.digest), head)
        except (Malformed, Missing):
            return None
        with self._lock:
            self._indexes[place] = index
        return index

    # ---- reading -------------------------------------------------------------------------------

    def jobs(self) -> list[str]:
        """The jobs that have any file in the store."""
        folders = {name.split("/")[1] for name in self.files.below(names.jobs())}
        return sorted(name for name in folders if names.JOB.match(name))

    def checkpoints(self, job: str) -> list[Id]:
        """The job's checkpoints, oldest first, by name only: `verify` checks whether they can be
        used. Omits those that an older incarnation wrote after its end."""
        for _ in range(incarnations.TRIES):
            fence = incarnations.fence(self.files, self._job(job))
            ids = incarnations.ids(self.files, names.manifest(job))
            if (
                incarnations.fence(self.files, job) == fence
            ):  # otherwise the fence changed in between
                return [each for each in ids if fence.counts(each)]
        raise self._error_changing(job)

    def manifest(self, job: str, each: Id) -> Manifest:
        """Read a manifest. Raises `Missing`, `Damaged` or `Refused`, naming the file."""
        name = names.manifest(self._job(job), each)
        return self._of_this_fleet(Manifest.decode(self.url, job, each, self.files.get(name)), name)

    def checkpoint(self, job: str, each: Id) -> Checkpoint:
        """One of the job's checkpoints, by its id. Raises as `manifest` does."""
        if each in self.checkpoints(job):
            with contextlib.suppress(Missing):  # a collection has doomed it meanwhile
                return Checkpoint(self.files, self.manifest(job, each))
        newest = incarnations.newest(self.files, job)
        if newest and newest.origin == each:  # it may be doomed, but is kept
            name = names.doomed(job, each)
            manifest = Manifest.decode(self.url, job, each, self.files.get(name), name)
            return Checkpoint(self.files, self._of_this_fleet(manifest, name))
        known = ", ".join(map(str, self.checkpoints(job))) or "none"
        raise Missing(self.url, f"{job} has no checkpoint {each}", f"it has: {known}")

    def newest(self, job: str) -> Newest:
        """Read checkpoints, newest first, and return the first in which every unit is what was
        saved. Damaged files are marked, so that no later save relies on them."""
        seen: dict[Place, str | None] = {}
        for _ in range(incarnations.TRIES):
            skipped: list[Skipped] = []
            listed = self.checkpoints(job)
            for each in reversed(listed):
                checkpoint, why = self._verified(job, each, seen)
                if checkpoint is not None:
                    return Newest(checkpoint, tuple(skipped))
                skipped.append(Skipped(each, why))
            if set(listed) <= set(self.checkpoints(job)):
                return Newest(None, tuple(skipped))
            seen = {}  # a collection ran meanwhile: read again
        raise self._error_changing(job)

    def _error_changing(self, job: str) -> Unavailable:
        problem = (
            f"changed during each of {incarnations.TRIES} attempts to list the checkpoints of {job}"
        )
        return Unavailable(self.url, problem, "let other processes finish, then try again")

    def _verified(
        self, job: str, each: Id, seen: dict[Place, str | None]
    ) -> tuple[Checkpoint | None, str]:
        """The checkpoint if it verifies, or the reason why it does not."""
        try:
            checkpoint = self.checkpoint(job, each)
            faults = checkpoint.verify(seen)
        except (Damaged, Refused) as error:
            return None, str(error)
        if not faults:
            return checkpoint, ""
        if each in self.checkpoints(job):  # otherwise it was collected meanwhile
            self.mark(job, faults)
        return None, describe(checkpoint, faults)

    # ---- keeping -------------------------------------------------------------------------------

    def collect(self, job: str, keep: int) -> Collected:
        """Remove all but the last `keep` checkpoints that are not known to be damaged, and all data
        that no checkpoint and no running save needs. Several collections may run concurrently, and
        concurrently with saves; the next one completes a collection that was interrupted."""
        return collect(self, self._job(job), keep)

    # ---- damage --------------------------------------------------------------------------------

    def mark(self, job: str, faults: list[Fault]) -> None:
        """Mark these files as damaged, so that no save relies on them. Errors are ignored: if the
        store cannot be written, no save can rely on anything."""
        for place in {fault.place for fault in faults if fault.place}:
            with contextlib.suppress(StoreError):
                self.files.create(names.damage(job, place), b"")

    def damaged(self, job: str) -> set[Place]:
        places = map(names.of_damage, self.files.below(names.damage(job)))
        return {place for place in places if place}

    # ---- within --------------------------------------------------------------------------------

    def _usable(self, job: str, wanted: Iterable[Id]) -> Iterator[Manifest]:
        """The manifests of these checkpoints that are undamaged and name no marked file."""
        marked = self.damaged(job)
        for each in wanted:
            with contextlib.suppress(Damaged, Refused):
                manifest = self.manifest(job, each)
                if not marked & manifest.files.keys():
                    yield manifest

    def data(self, job: str) -> dict[Place, int]:
        """All data files, needed or not, and their sizes in bytes."""
        folder = names.data(job)
        sizes = self.files.below(folder).items()
        places = ((Place.parse(name[len(folder) + 1 :]), size) for name, size in sizes)
        return {place: size for place, size in places if place}

    def _of_this_fleet(self, manifest: Manifest, name: str) -> Manifest:
        if self.fleet and manifest.fleet != self.fleet:
            problem = f"is a checkpoint of fleet {manifest.fleet!r}, this is {self.fleet!r}"
            raise Refused(self.url, problem, "restore it in its fleet", name=name)
        return manifest

    def _job(self, job: str) -> str:
        if not names.JOB.match(job):
            raise Refused(self.url, f"{job!r} is not a valid job name")
        return job


def describe(checkpoint: Checkpoint, faults: list[Fault]) -> str:
    """The first of a checkpoint's faults, and the number of the others."""
    first = faults[0]
    job = checkpoint.manifest.job
    where = (
        f"{checkpoint.files.url.rstrip('/')}/{names.data(job, first.place)}: "
        if first.place
        else ""
    )
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return f"{where}{first.reason}{more}"


def _dense(manifest: Manifest) -> dict[Place, PackUse]:
    """The packs of a checkpoint that the next one continues to use. While all of them hold more
    than twice what is needed, the least used are left out, and their needed units are stored
    again."""
    packs = dict(
        sorted(manifest.packs.items(), key=lambda item: item[1].used / max(1, item[1].raw))
    )
    raw, used = (sum(use[at] for use in packs.values()) for at in (2, 3))
    for place, use in list(packs.items()):
        if raw <= 2 * used + SPARE_BYTES:
            break
        raw, used = raw - use.raw, used - use.used
        del packs[place]
    return packs


def _complete(packs: dict[Place, PackIndex]) -> dict[Place, PackIndex]:
    """Remove packs of differences that refer to missing units."""
    wanted = {unit for index in packs.values() for unit in index.references}
    plain = (index for index in packs.values() if not index.references)
    there = {unit for index in plain for unit in index.units if unit in wanted}
    return {place: index for place, index in packs.items() if there.issuperset(index.references)}


def open(
    url: str, fleet: str, *, options: dict[str, Any] | None = None, begin: bool = True
) -> Store:
    """Open the store at `url` (`/path`, `file:///path`, `memory://name`, `s3://bucket/prefix`,
    anything that fsspec opens; `options` as fsspec takes them). If there is none, begin it if
    `begin`. Raises `Refused` if it is another fleet's or holds something else, `Missing` if it was
    not begun, and `Unavailable`."""
    files = connect(url, options)
    if not fleet:
        raise ValueError("a fleet needs a name")
    if _fleet_of(files) is None:
        if not begin:
            raise _no_store(url)
        if (other := files.any_name()) not in (None, names.ROOT):
            problem = f"contains other files ({other}) and no checkpoints"
            raise Refused(url, problem, "name an empty folder")
        files.create(names.ROOT, documents.seal("root", fleet=fleet))
        files.sync([""])
    found = _fleet_of(files)
    if found != fleet:
        problem = f"has the checkpoints of fleet {found!r}, this is {fleet!r}"
        raise Refused(url, problem, "give each fleet its own URL")
    return Store(files, fleet)


def open_existing(url: str, *, options: dict[str, Any] | None = None) -> Store:
    """Open an existing store of any fleet, for inspection."""
    files = connect(url, options)
    fleet = _fleet_of(files)
    if fleet is None:
        raise _no_store(url)
    return Store(files, fleet)


def _no_store(url: str) -> Missing:
    return Missing(url, "has no checkpoints", "check the URL")


def _fleet_of(files: Files) -> str | None:
    try:
        data = files.get(names.ROOT)
    except Missing:
        return None
    fleet: str = documents.unseal(files.url, names.ROOT, "root", data)["fleet"]
    return fleet
