"""A save: hashes the units of each part, and concurrently uploads those that the store lacks.

An existing file counts only if it is in this save's own folder, from an interrupted attempt, or if
a checkpoint that the claim pins names it (incarnations.py). No file is ever overwritten. A unit
that is nearly equal to an earlier one is stored as a difference (predecessor.py). A pack of
differences needs all packs that it refers to, so each manifest that names it names those, too.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from rankfold.checkpoint.store import incarnations, names, units
from rankfold.checkpoint.store.errors import Overtaken, Refused, StoreError
from rankfold.checkpoint.store.files import Data, Files
from rankfold.checkpoint.store.incarnations import Claim
from rankfold.checkpoint.store.manifest import Kind, Manifest, PackUse, Part
from rankfold.checkpoint.store.names import Id, Place
from rankfold.checkpoint.store.predecessor import PartPredecessor, Predecessor
from rankfold.checkpoint.store.reading import Checkpoint
from rankfold.checkpoint.store.units import (
    GRAIN,
    OBJECT_BYTES,
    PACK_BYTES,
    PAGE,
    RUN_PAGES,
    PackIndex,
    Row,
)
from rankfold.plural import count


class Buffer(NamedTuple):
    """A live buffer of a rank's device memory. `read(offset, bytes)` returns its content at the
    cut. `name(offset, bytes)` identifies the content, by where it is or what is known of it:
    content whose name any rank has added already is not read again."""

    address: int
    length: int
    read: Callable[[int, int], Data]
    name: Callable[[int, int], Hashable] | None = None


@dataclass
class Progress:
    """The progress of a save, in bytes: added; of these, found in the store by hash; size of the
    files to upload; of these, uploaded."""

    added: int = 0
    found: int = 0
    files: int = 0
    uploaded: int = 0


ALIKE = 1 / 8  # maximal share of differing bits in a unit that is stored as a difference
_NOWHERE = Place("", "", "")


class Reusable(NamedTuple):
    """The contents of the store that a save may rely on; packs of differences together with those
    that they refer to. `predecessor`: the newest checkpoint that the save relies on."""

    objects: dict[Place, int]
    packs: dict[Place, PackIndex]
    predecessor: Checkpoint | None = None


@dataclass
class _Pack:
    """Units to store in one pack: as they are, or each as its difference from a reference."""

    units: list[tuple[bytes, bytes]] = field(default_factory=list)
    references: list[tuple[bytes, int]] = field(default_factory=list)
    size: int = 0


class Save:
    """One save, from `Store.begin`. Several threads may add parts. A StoreError ends it:
    `Store.begin` resumes with what it has uploaded."""

    def __init__(
        self,
        files: Files,
        fleet: str,
        job: str,
        claim: Claim,
        reusable: Reusable,
        *,
        resumed: bool,
        workers: int,
        report: Callable[[Progress], None] | None,
    ):
        assert claim.folder is not None
        self.files, self.fleet, self.job, self.id = files, fleet, job, claim.number
        self._folder = claim.folder
        self.resumed, self.progress = resumed, Progress()
        self.base = reusable.predecessor.manifest.id if reusable.predecessor else None
        self._predecessor = Predecessor(reusable.predecessor)
        self._report = report
        self._lock = threading.Lock()
        self._indexes = dict(reusable.packs)
        self._sizes = dict(reusable.objects)
        self._places = {bytes.fromhex(place.digest): place for place in reusable.objects}
        # A unit that is stored both as itself and as a difference counts as stored itself.
        for place, index in sorted(
            reusable.packs.items(), key=lambda item: len(item[1].references)
        ):
            for digest, _ in index.units:
                self._places.setdefault(digest, place)
        self._references = {
            digest: reference
            for index in reusable.packs.values()
            for (digest, _), reference in zip(index.units, index.references, strict=False)
            if self._indexes.get(self._places[digest]) is index
        }
        self._open: dict[tuple[Kind, bool], _Pack] = {}  # True: pack of differences
        self._pending: dict[bytes, _Pack] = {}  # units in packs that are not sealed yet
        self._used: dict[bytes, int] = {}  # sizes of the units that this checkpoint needs
        self._digests: dict[Hashable, bytes] = {}  # digests of pieces that were read, by name
        self._parts: list[Part] = []
        self._pool = ThreadPoolExecutor(workers, "rankfold-save") if workers else None
        self._slots = threading.BoundedSemaphore(2 * workers + 1)
        self._error: StoreError | None = None
        self._closed = False

    # ---- parts ---------------------------------------------------------------------------------

    def buffers(
        self, rank: int | None, name: str, live: Iterable[Buffer], grain: int = GRAIN
    ) -> None:
        """Add a rank's device memory, buffer by buffer, in units of `grain` from each buffer's
        start."""
        rows, predecessor = [], self._predecessor.part(rank, name)
        for buffer in live:
            digests = tuple(
                self._buffer_unit(buffer, offset, min(grain, buffer.length - offset), rank)
                for offset in range(0, buffer.length, grain)
            )
            rows.append(self._row(buffer.address, buffer.length, digests, rank, predecessor))
        self._part(rank, name, "buffers", grain, rows, predecessor)

    def pages(self, rank: int | None, name: str, runs: Iterable[tuple[int, Data]]) -> None:
        """Add host memory: (address, content) of whole pages, in any order, none twice."""
        digests: dict[int, bytes] = {}
        predecessor = self._predecessor.part(rank, name)
        for address, data in runs:
            view = memoryview(data).cast("B")
            if address % PAGE or len(view) % PAGE:
                raise ValueError(f"{count(len(view), 'byte')} at {address:#x} are not whole pages")
            for offset in range(0, len(view), PAGE):
                if address + offset in digests:
                    raise ValueError(f"the page at {address + offset:#x} was given twice")
                digests[address + offset] = self._unit(
                    view[offset : offset + PAGE],
                    "pages",
                    rank,
                    partial(predecessor.unit_at, address + offset),
                )
        rows: list[Row] = []
        run: list[bytes] = []
        for offset in sorted(digests):
            run.append(digests[offset])
            if offset + PAGE not in digests or (offset // PAGE + 1) % RUN_PAGES == 0:
                start = offset + PAGE - len(run) * PAGE
                rows.append(self._row(start, len(run) * PAGE, tuple(run), rank, predecessor))
                run = []
        self._part(rank, name, "pages", PAGE, rows, predecessor)

    def blob(self, rank: int | None, name: str, chunks: Iterable[Data]) -> None:
        """Add consecutive bytes, from address 0."""
        digests, rest, length = [], bytearray(), 0
        predecessor = self._predecessor.part(rank, name)

        def unit(data: bytes, offset: int) -> bytes:
            return self._unit(data, "blob", rank, partial(predecessor.unit_at, offset))

        for chunk in chunks:
            rest += chunk
            while len(rest) >= GRAIN:
                digests.append(unit(bytes(rest[:GRAIN]), length))
                del rest[:GRAIN]
                length += GRAIN
        if rest:
            digests.append(unit(bytes(rest), length))
            length += len(rest)
        rows = [self._row(0, length, tuple(digests), rank, predecessor)] if length else []
        self._part(rank, name, "blob", GRAIN, rows, predecessor)

    def finish(self, about: dict[str, Any] | None = None) -> Manifest:
        """Wait until all is durable, then write the manifest: from then on the checkpoint exists.
        Raises `OldIncarnation` or `Overtaken` if another process has the job by now."""
        try:
            self._check_open()
            for which in list(self._open):
                self._seal(which)
            self._drain()
            manifest = self._manifest(about or {})
            folder = f"{names.data(self.job)}/{self._folder}"
            self.files.sync([f"{folder}/objects", f"{folder}/packs"])
            self._check_not_overtaken()
            name, data = names.manifest(self.job, self.id), manifest.encode()
            if not self.files.create(name, data) and self.files.get(name) != data:
                self._raise_overtaken()  # otherwise it is ours: an earlier success was not reported
            self.files.sync([names.manifest(self.job)])
            self._check_manifest_counts()
        finally:
            self.close()
        return manifest

    def close(self) -> None:
        """End the uploads. `Store.begin` continues with the objects that are stored by then."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def abandon(self) -> None:
        """Abandon the save: the next collection removes what it has stored."""
        self.close()
        self._check_not_overtaken()
        number = Id(self.id.incarnation, self.id.number + 1)
        if not incarnations.make_claim(self.files, self.job, Claim(number, None, frozenset())):
            self._raise_overtaken()

    # ---- units ---------------------------------------------------------------------------------

    def _buffer_unit(self, buffer: Buffer, offset: int, length: int, rank: int | None) -> bytes:
        name = buffer.name(offset, length) if buffer.name else None
        digest = self._digests.get(name) if name is not None else None
        if digest is None:
            digest = self._unit(buffer.read(offset, length), "buffers", rank, length=length)
            if name is not None:
                self._digests[name] = digest
        else:
            self._use_if_known(digest, length)
        return digest

    def _unit(
        self,
        data: Data,
        kind: Kind,
        rank: int | None,
        predecessor: Callable[[], bytes | None] | None = None,
        length: int | None = None,
    ) -> bytes:
        """Store a unit if it is new. Returns its digest. The store has the unit when this save is
        finished. `predecessor` returns the digest of the unit that the previous checkpoint has in
        its place."""
        self._check_open()
        size = len(data) if isinstance(data, (bytes, bytearray)) else data.nbytes
        if length is not None and size != length:
            raise ValueError(f"{count(size, 'byte')} were given where {length} were expected")
        digest = units.digest_of(data)
        if self._use_if_known(digest, size):
            return digest
        if size >= OBJECT_BYTES:
            place = Place(self._folder, "objects", digest.hex())
            with self._lock:
                if digest in self._places:
                    return digest  # another thread was faster
                self._places[digest] = place
                self._sizes[place] = size
            self._upload(place, bytes(data), rank)
            return digest
        stored_difference = self._difference(data, predecessor() if predecessor else None)
        with self._lock:
            if digest in self._places or digest in self._pending:
                return digest  # another thread was faster
            which = (kind, stored_difference is not None)
            pack = self._open.setdefault(which, _Pack())
            if stored_difference is None:
                pack.units.append((digest, bytes(data)))
            else:
                pack.units.append((digest, stored_difference[0]))
                pack.references.append(stored_difference[1])
                self._references[digest] = stored_difference[1]
                self._used.setdefault(*stored_difference[1])
            pack.size += size
            self._pending[digest] = pack
            full = pack.size >= PACK_BYTES
        if full:
            self._seal(which)
        return digest

    def _use_if_known(self, digest: bytes, size: int) -> bool:
        """Whether the store has the unit or will have it; if so, this checkpoint now needs it."""
        with self._lock:
            self.progress.added += size
            self._used[digest] = size
            if digest in self._places or digest in self._pending:
                self.progress.found += size
                if digest in self._references:
                    self._used.setdefault(*self._references[digest])
                return True
        return False

    def _difference(
        self, data: Data, predecessor: bytes | None
    ) -> tuple[bytes, tuple[bytes, int]] | None:
        """The unit's difference from the previous one in its place, or from that one's reference,
        with digest and length of the reference. None if there is none, or too few bits are
        equal."""
        if predecessor is None:
            return None
        with self._lock:
            digest = self._references.get(predecessor, (predecessor, 0))[0]
            index = self._indexes.get(self._places.get(digest, _NOWHERE))
        if index is None:
            return None
        reference = self._predecessor.unit(digest)
        if reference is None:
            return None
        difference = units.difference(data, reference)
        if int.from_bytes(difference, "little").bit_count() > len(difference) * 8 * ALIKE:
            return None
        return difference, (digest, len(reference))

    def _seal(self, kind_of_pack: tuple[Kind, bool]) -> None:
        with self._lock:
            pack = self._open.pop(kind_of_pack, None)
        if pack is None:
            return
        index, file = units.encode_pack(pack.units, pack.references)
        place = Place(self._folder, "packs", index.digest.hex())
        with self._lock:
            self._indexes[place] = index
            for digest, _ in pack.units:
                self._places[digest] = place
                del self._pending[digest]
        self._upload(place, file, None)

    def _row(
        self,
        address: int,
        length: int,
        digests: tuple[bytes, ...],
        rank: int | None,
        predecessor: PartPredecessor,
    ) -> Row:
        if length <= 0 or address < 0 or address + length > 1 << 64:
            raise ValueError(
                f"{count(length, 'byte')} at {address:#x} are not a range of addresses"
            )
        if len(digests) == 1:
            return Row(address, length, digests[0])
        listed = self._metadata_unit(b"".join(digests), rank, partial(predecessor.list_at, address))
        return Row(address, length, listed)

    def _metadata_unit(
        self, data: bytes, rank: int | None, predecessor: Callable[[], bytes | None]
    ) -> bytes:
        """Store a table or a list; its size does not count in `added`."""
        digest = self._unit(data, "blob", rank, predecessor)
        with self._lock:
            self.progress.added -= len(data)
        return digest

    def _part(
        self,
        rank: int | None,
        name: str,
        kind: Kind,
        grain: int,
        rows: list[Row],
        predecessor: PartPredecessor,
    ) -> None:
        rows.sort()
        for first, second in itertools.pairwise(rows):
            if first.address + first.length > second.address:
                raise ValueError(f"{name} of rank {rank}: ranges at {second.address:#x} overlap")
        table = self._metadata_unit(units.encode_table(rows), rank, predecessor.table)
        part = Part(rank, name, kind, grain, sum(row.length for row in rows), table, len(rows))
        with self._lock:
            if any((each.rank, each.name) == (rank, name) for each in self._parts):
                raise ValueError(f"{name} of rank {rank} was given twice")
            self._parts.append(part)

    # ---- uploads -------------------------------------------------------------------------------

    def _upload(self, place: Place, data: bytes, rank: int | None) -> None:
        with self._lock:
            self.progress.files += len(data)
        if self._pool is None:
            self._put(place, data, rank)
            return
        self._slots.acquire()
        try:
            self._pool.submit(self._put, place, data, rank).add_done_callback(self._upload_ended)
        except RuntimeError:
            self._slots.release()
            self._check_open()
            raise

    def _upload_ended(self, upload: Future[None]) -> None:
        self._slots.release()
        if not upload.cancelled() and (error := upload.exception()) is not None:
            failed = (
                error if isinstance(error, StoreError) else StoreError(self.files.url, str(error))
            )
            self._error = self._error or failed

    def _put(self, place: Place, data: bytes, rank: int | None) -> None:
        if self._error is not None:
            return
        try:
            self.files.create(names.data(self.job, place), data)
        except StoreError as error:
            self._error = type(error)(
                error.url, error.what, error.remedy, name=error.name, rank=rank
            )
            raise self._error from error
        with self._lock:
            self.progress.uploaded += len(data)
        if self._report is not None:
            self._report(self.progress)

    def _drain(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._check_open(finishing=True)

    def _check_open(self, finishing: bool = False) -> None:
        if self._error is not None:
            raise self._error
        if self._closed and not finishing:
            raise Refused(self.files.url, "this save has ended", "begin another")

    # ---- the end -------------------------------------------------------------------------------

    def _check_not_overtaken(self) -> None:
        incarnations.refuse_old(
            self.files, self.job, self.id.incarnation, incarnations.newest(self.files, self.job)
        )
        if not self._is_newest_claim():
            self._raise_overtaken()

    def _is_newest_claim(self) -> bool:
        """Whether no other save of this incarnation has begun."""
        claims = incarnations.ids(self.files, names.claim(self.job))
        return [each for each in claims if each.incarnation == self.id.incarnation][-1:] == [
            self.id
        ]

    def _check_manifest_counts(self) -> None:
        """Check that the written manifest counts: whatever begins after it sees it."""
        incarnations.refuse_old(
            self.files, self.job, self.id.incarnation, incarnations.newest(self.files, self.job)
        )
        if not self._is_newest_claim():
            fence = incarnations.fence(self.files, self.job)
            if fence.since <= self.id or not fence.counts(self.id):
                self._raise_overtaken()

    def _raise_overtaken(self) -> None:
        problem = f"checkpoint {self.id} of {self.job} has been taken over by another uploader"
        raise Overtaken(self.files.url, problem, "leave it to that one")

    def _manifest(self, about: dict[str, Any]) -> Manifest:
        objects: dict[Place, int] = {}
        used: dict[Place, int] = {}
        for digest, length in self._used.items():
            place = self._places[digest]
            if place.kind == "objects":
                objects[place] = self._sizes[place]
            else:
                used[place] = used.get(place, 0) + length
        for place in list(used):
            for digest, _ in self._indexes[place].references:
                used.setdefault(self._places[digest], 0)
        packs = {
            place: PackUse(index.size, index.rows, index.raw, used[place])
            for place in used
            for index in [self._indexes[place]]
        }
        saved = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        parts = sorted(self._parts, key=lambda part: (part.rank is None, part.rank or 0, part.name))
        return Manifest(
            self.fleet, self.job, self.id, self.base, saved, about, tuple(parts), objects, packs
        )
