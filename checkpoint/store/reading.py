"""Reads a checkpoint: every unit is compared with its digest before it is returned."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from rankfold.checkpoint.store import names, units
from rankfold.checkpoint.store.errors import Damaged, StoreError
from rankfold.checkpoint.store.files import Files
from rankfold.checkpoint.store.manifest import Manifest, Part
from rankfold.checkpoint.store.names import Place
from rankfold.checkpoint.store.units import Malformed, PackIndex

READERS = 8  # files that are read concurrently
PACKS_CACHED = 8  # decompressed packs kept, those read last

K = TypeVar("K")
V = TypeVar("V")


class Fault(NamedTuple):
    """A fault of a checkpoint: the file, if it is in one, and the reason in words."""

    place: Place | None
    reason: str


class Checkpoint:
    """A checkpoint that can be read, by several threads. `indexes`: of packs, read already."""

    def __init__(
        self, files: Files, manifest: Manifest, indexes: Mapping[Place, PackIndex] | None = None
    ):
        self.files, self.manifest = files, manifest
        self.bytes_read = 0  # of data files
        self._lock = threading.Lock()
        self._indexes = dict(indexes or {})
        self._where: dict[bytes, tuple[Place, int]] | None = None
        self._packs: OrderedDict[Place, dict[bytes, memoryview]] = OrderedDict()

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.manifest.parts

    def part(self, rank: int | None, name: str) -> Part:
        for part in self.parts:
            if (part.rank, part.name) == (rank, name):
                return part
        raise self._damaged(None, f"has no part {name!r}", rank)

    def extents(self, part: Part) -> list[tuple[int, int]]:
        """(address, bytes) of a part's ranges, ordered by address."""
        return [(row.address, row.length) for row in self.rows(part)]

    def rows(self, part: Part) -> list[units.Row]:
        """The table of a part. Raises Damaged."""
        try:
            rows = units.decode_table(bytes(self.unit(part.table)), part.rows)
        except Malformed as error:
            raise self._damaged(None, f"{part.name}: {error}", part.rank) from error
        if sum(row.length for row in rows) != part.size:
            raise self._damaged(None, f"{part.name}: its table belongs to another part", part.rank)
        return rows

    def units_of(self, part: Part, row: units.Row) -> list[tuple[int, int, bytes]]:
        """(address, bytes, digest) of the units of a range."""
        places = units.pieces(row, part.grain)
        try:
            digests = (
                [row.digest]
                if len(places) == 1
                else units.decode_list(bytes(self.unit(row.digest)), len(places))
            )
        except Malformed as error:
            raise self._damaged(None, f"{part.name}: {error}", part.rank) from error
        return [(*place, digest) for place, digest in zip(places, digests, strict=True)]

    def read(self, part: Part) -> Iterator[tuple[int, memoryview]]:
        """Yield (address, content) of all units of a part, each verified, in the order in which
        files arrive. Raises `Damaged` at the first unit that is not what was saved."""
        yield from ((address, data) for _, address, data in self.read_all([part]))

    def read_all(self, parts: Sequence[Part]) -> Iterator[tuple[Part, int, memoryview]]:
        """As `read`, for several parts: what they share is read once."""
        wanted: dict[bytes, list[tuple[Part, int]]] = defaultdict(list)
        for part in parts:
            for address, digest in self._units(part):
                wanted[digest].append((part, address))
        rank = parts[0].rank if len({part.rank for part in parts}) == 1 else None
        for digest, data in self._fetch(wanted, rank):
            yield from ((part, address, data) for part, address in wanted[digest])

    def content(self, part: Part) -> bytes:
        """The content of a part that begins at address 0 and has no gaps, as a blob does."""
        out = bytearray(part.size)
        for address, data in self.read(part):
            out[address : address + len(data)] = data
        return bytes(out)

    def unit(self, digest: bytes) -> memoryview:
        """Read and verify one unit."""
        location = self._locations().get(digest)
        if location is None:
            raise self._damaged(
                None, f"names unit {digest.hex()}, which none of its files contains"
            )
        place = location[0]
        with self._lock:
            pack = self._packs.get(place)
        if pack is None:
            pack = self._open(place)
        data = pack[digest]
        if units.digest_of(data) != digest:
            raise self._damaged(place, f"unit {digest.hex()} is not what was saved")
        return data

    def verify(self, seen: dict[Place, str | None] | None = None) -> list[Fault]:
        """Read the whole checkpoint. Returns its faults; none if it can be restored. `seen`: files
        that were read already, each with its fault or None; those read here are added."""
        faults: list[Fault] = []
        seen = {} if seen is None else seen
        files = [place for place in self.manifest.files if place not in seen]
        for place, reason in _in_parallel(files, self._examine):
            seen[place] = reason
        for place in self.manifest.files:
            if reason := seen[place]:
                faults.append(Fault(place, reason + self._needed_by(place)))
        if faults:
            return faults
        for part in self.parts:
            try:
                for _ in self._units(part):
                    pass
            except Damaged as error:
                faults.append(Fault(None, str(error)))
        return faults

    def describe(self, fault: Fault) -> str:
        """Describe a fault, with its file."""
        if fault.place is None:
            return fault.reason
        return f"{self.files.url.rstrip('/')}/{self._name(fault.place)}: {fault.reason}"

    def _needed_by(self, place: Place) -> str:
        """Describe the parts that cannot be restored without a file, as far as can be read."""
        ranks = []
        for part in self.parts:
            try:
                where = self._locations()
                digests = {part.table, *(digest for _, digest in self._units(part))}
                files = {where[digest][0] for digest in digests}
                others = {digest for each in files for digest, _ in self._references(each)}
                files |= {where[digest][0] for digest in others if digest in where}
                needed = place in files
            except StoreError:
                needed = True
            if needed:
                ranks.append(f"{part.name} of " + _rank_name(part.rank))
        return f": {', '.join(ranks[:8])}" + (", …" if len(ranks) > 8 else "") if ranks else ""

    # ---- units ---------------------------------------------------------------------------------

    def _units(self, part: Part) -> Iterator[tuple[int, bytes]]:
        """Yield (address, digest) of all units of a part. Checks that each is in one of the files
        and has the required length."""
        where = self._locations()
        for row in self.rows(part):
            for address, length, digest in self.units_of(part, row):
                place = where.get(digest)
                if place is None or place[1] != length:
                    problem = (
                        "is in none of its files" if place is None else "has a different length"
                    )
                    raise self._damaged(
                        None, f"{part.name}: unit {digest.hex()} {problem}", part.rank
                    )
                yield address, digest

    # ---- files ---------------------------------------------------------------------------------

    def _locations(self) -> dict[bytes, tuple[Place, int]]:
        """The file and the size of each unit."""
        with self._lock:
            if self._where is not None:
                return self._where
        where = {
            bytes.fromhex(place.digest): (place, size)
            for place, size in self.manifest.objects.items()
        }
        packs = list(_in_parallel(list(self.manifest.packs), self._index))
        # A unit that is stored both as itself and as a difference is read as itself.
        for place, index in sorted(packs, key=lambda pack: not pack[1].references):
            where.update((digest, (place, length)) for digest, length in index.units)
        with self._lock:
            self._where = where
        return where

    def _index(self, place: Place) -> PackIndex:
        with self._lock:
            if place in self._indexes:
                return self._indexes[place]
        end = units.header_bytes(self.manifest.packs[place].rows)
        index = self._decode_index(place, self.files.get(self._name(place), 0, end))
        with self._lock:
            self._indexes[place] = index
        return index

    def _decode_index(self, place: Place, head: bytes) -> PackIndex:
        use = self.manifest.packs[place]
        try:
            index = units.decode_index(bytes.fromhex(place.digest), head)
            if (index.size, index.rows, index.raw) != use[:3]:
                raise Malformed("a pack's index contradicts the manifest")
            return index
        except Malformed as error:
            raise self._damaged(place, str(error)) from error

    def _open(self, place: Place) -> dict[bytes, memoryview]:
        """The units of a file, unverified. The packs read last are kept."""
        data = self.files.get(self._name(place))
        with self._lock:
            self.bytes_read += len(data)
        if place.kind == "objects":
            return {bytes.fromhex(place.digest): memoryview(data)}
        index = self._decode_index(place, data)
        try:
            pack = dict(units.split_pack(index, units.decode_pack(index, data)))
        except Malformed as error:
            raise self._damaged(place, str(error)) from error
        if index.references:
            pack = self._restored(place, index, pack)
        with self._lock:
            self._packs[place] = pack
            while len(self._packs) > PACKS_CACHED:
                self._packs.popitem(last=False)
        return pack

    def _restored(
        self, place: Place, index: PackIndex, differences: dict[bytes, memoryview]
    ) -> dict[bytes, memoryview]:
        """The units of a pack of differences, unverified; their references are verified."""
        where, by_file = self._locations(), defaultdict[Place, list[tuple[bytes, bytes]]](list)
        for (digest, _), reference in zip(index.units, index.references, strict=True):
            other = where.get(reference[0], (None, 0))
            if other[0] is None or other[1] != reference[1] or self._references(other[0]):
                problem = f"unit {digest.hex()} differs from one that none of its files contains"
                raise self._damaged(place, problem)
            by_file[other[0]].append((digest, reference[0]))
        restored: dict[bytes, memoryview] = {}
        for other_place, pairs in by_file.items():
            with self._lock:
                pack = self._packs.get(other_place)
            if pack is None:
                pack = self._open(other_place)
            for digest, other_digest in pairs:
                data = pack[other_digest]
                if units.digest_of(data) != other_digest:
                    problem = f"unit {other_digest.hex()} is not what was saved"
                    raise self._damaged(other_place, problem)
                restored[digest] = memoryview(units.difference(differences[digest], data))
        return restored

    def _references(self, place: Place) -> tuple[tuple[bytes, int], ...]:
        return self._index(place).references if place.kind == "packs" else ()

    def _fetch(
        self, wanted: Iterable[bytes], rank: int | None
    ) -> Iterator[tuple[bytes, memoryview]]:
        """Yield (digest, content) of each of these units, verified; each file is read once."""
        where, by_file = self._locations(), defaultdict[Place, list[bytes]](list)
        for digest in wanted:
            by_file[where[digest][0]].append(digest)
        for place, pack in _in_parallel(list(by_file), self._open):
            for digest in by_file[place]:
                if units.digest_of(pack[digest]) != digest:
                    raise self._damaged(place, f"unit {digest.hex()} is not what was saved", rank)
                yield digest, pack[digest]

    def _examine(self, place: Place) -> str | None:
        """The fault of a file, or None. Checks all of its units, needed or not. If another file
        causes the fault, the result is None: that file has a fault of its own."""
        try:
            for digest, data in self._open(place).items():
                if units.digest_of(data) != digest:
                    return f"unit {digest.hex()} is not what was saved"
        except Damaged as error:
            return error.what if error.name == self._name(place) else None
        return None

    def _name(self, place: Place) -> str:
        return names.data(self.manifest.job, place)

    def _damaged(self, place: Place | None, problem: str, rank: int | None = None) -> StoreError:
        job, each = self.manifest.job, self.manifest.id
        name = self._name(place) if place else names.manifest(job, each)
        remedy = f"checkpoint {each} of {job} cannot be used; restore an older one"
        return Damaged(self.files.url, problem, remedy, name=name, rank=rank)


def _rank_name(rank: int | None) -> str:
    return "the job" if rank is None else f"rank {rank}"


def _in_parallel(keys: list[K], work: Callable[[K], V]) -> Iterator[tuple[K, V]]:
    """Yield each key with the result of `work`, in order; at most READERS run ahead."""
    if len(keys) < 2:
        yield from ((key, work(key)) for key in keys)
        return
    with ThreadPoolExecutor(READERS, "rankfold-read") as pool:
        ahead: list[tuple[K, Future[V]]] = []
        try:
            for key in keys:
                ahead.append((key, pool.submit(work, key)))
                if len(ahead) >= READERS:
                    first, done = ahead.pop(0)
                    yield first, done.result()
            while ahead:
                first, done = ahead.pop(0)
                yield first, done.result()
        finally:
            for _, each in ahead:
                each.cancel()
