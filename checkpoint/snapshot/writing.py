"""Writes snapshots from the parts of a checkpoint.

Every unit is compared with its digest before it gets here. The files are byte for byte those that
were saved, except for unused memory in a device image. Content that several ranks have at the same
address is written to the image of the first of them only: written to each image, it would take most
of the time of a large job's restore.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rankfold import image
from rankfold.checkpoint.snapshot import criu
from rankfold.checkpoint.snapshot.errors import Unfit
from rankfold.checkpoint.snapshot.folder import (
    ABOUT,
    COMPARED,
    DEVICE,
    IMAGE,
    SIZE,
    SMALL,
    STATE,
    pagemap_of,
)
from rankfold.checkpoint.store import Checkpoint, Part
from rankfold.image import Elsewhere

TOGETHER = 256  # pages per write
GROUP_BYTES = 4 << 30  # bytes of pages at a time; their positions take a sixteenth of that
_REMEDY = "restore another checkpoint"


class _Target(NamedTuple):
    """The destination of a part: a file, and a function from (address, length) to the offset in
    it."""

    file: int
    offset: Callable[[int, int], int]


def write(
    checkpoint: Checkpoint, folders: dict[int, Path], report: Callable[[int], None] = lambda _: None
) -> None:
    """Write the snapshots of these ranks, each to its folder, which is replaced unless it has a
    complete snapshot.

    Content that is also in another rank's image is written only there, if the folders are `rank-N`
    in one folder. `report` is called with the number of bytes written since its last call. Raises
    StoreError for what cannot be read, Unfit for parts that are not a snapshot's, OSError for what
    cannot be written.
    """
    missing = {rank: folder for rank, folder in folders.items() if not (folder / ABOUT).exists()}
    parts = [part for part in checkpoint.parts if part.rank in missing]
    for rank in missing.keys() - {part.rank for part in parts if part.name == ABOUT}:
        raise Unfit(checkpoint.files.url, f"has no snapshot of rank {rank}", _REMEDY)
    for folder in missing.values():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
    writing = _Writing(checkpoint, missing, report)
    blobs = [part for part in parts if part.kind == "blob" and part.name not in (ABOUT, SIZE)]
    writing.sizes([part for part in parts if part.name == SIZE])
    writing.copy([part for part in blobs if part.name != STATE])
    writing.copy([part for part in parts if part.name == STATE])
    writing.images([part for part in parts if part.kind == "buffers"])
    for group in _groups([part for part in parts if part.kind == "pages"]):
        writing.copy(group)
    for part in parts:
        if part.name == ABOUT:
            writing.finish(part)


def _groups(parts: list[Part]) -> Iterator[list[Part]]:
    """Groups of parts to read together, because they share files and have equal pages."""
    group: list[Part] = []
    for part in parts:
        if group and sum(each.size for each in group) + part.size > GROUP_BYTES:
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def write_compared(checkpoint: Checkpoint, folder: Path) -> None:
    """Write the files that are compared before a restore, for each rank to `folder`/rank-N. Raises
    StoreError, Unfit if a rank is missing, OSError."""
    ranks = {part.rank for part in checkpoint.parts if part.rank is not None}
    for rank in ranks - {part.rank for part in checkpoint.parts if part.name == ABOUT}:
        raise Unfit(checkpoint.files.url, f"has no snapshot of rank {rank}", _REMEDY)
    for part in checkpoint.parts:
        if part.rank is not None and part.name in COMPARED:
            path = folder / f"rank-{part.rank}" / part.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(checkpoint.content(part))


class _Writing:
    def __init__(
        self, checkpoint: Checkpoint, folders: dict[int, Path], report: Callable[[int], None]
    ):
        self.checkpoint, self.folders, self.report = checkpoint, folders, report
        self._pagemaps: dict[Path, criu.Pagemap] = {}

    def sizes(self, parts: list[Part]) -> None:
        for part in parts:
            sizes = json.loads(self.checkpoint.content(part))
            path = self._path(part, IMAGE)
            with path.open("xb") as file:
                file.truncate(sizes["bytes"])

    def copy(self, parts: list[Part]) -> None:
        with ExitStack() as stack:
            targets = {part: self._target(part, stack) for part in parts}
            pages = _Pages()
            for part, address, data in self.checkpoint.read_all(parts):
                file, offset = targets[part]
                position = offset(address, len(data))
                if part.kind != "pages":
                    _write_sparse(file, data, position)
                else:
                    pages.add(file, data, position)
                self.report(len(data))
            pages.write()

    def images(self, parts: list[Part]) -> None:
        """Write device memory. Of the ranks with the same unit at the same address, only the first
        gets it."""
        share = len({path.parent for path in self.folders.values()}) == 1 and all(
            path.name == f"rank-{rank}" for rank, path in self.folders.items()
        )
        elsewhere = defaultdict[Path, list[Elsewhere]](list)
        with ExitStack() as stack:
            parts = sorted(parts, key=lambda part: part.rank or 0)
            targets = {part: self._target(part, stack) for part in parts}
            unit, ranks_at = memoryview(b""), dict[int, int]()  # rank by address
            for part, address, data in self.checkpoint.read_all(parts):
                file, offset = targets[part]
                position = offset(address, len(data))
                if data is not unit:
                    unit, ranks_at = data, {}
                assert part.rank is not None
                if share and (rank := ranks_at.setdefault(position, part.rank)) != part.rank:
                    shared = Elsewhere(position, position + len(data), rank)
                    elsewhere[self._path(part, IMAGE)].append(shared)
                else:
                    _write_sparse(file, data, position)
                self.report(len(data))
        for path, others in elsewhere.items():
            image.note(path, _joined(sorted(others)))

    def finish(self, part: Part) -> None:
        path = self._path(part, ABOUT)
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(self.checkpoint.content(part))
        unfinished.rename(path)

    def _target(self, part: Part, stack: ExitStack) -> _Target:
        if part.name in (DEVICE, SMALL, STATE):
            whole = stack.enter_context(self._path(part, IMAGE).open("r+b"))
            if part.name == STATE:
                return _Target(whole.fileno(), lambda at, _: image.state_offset() + at)
            return _Target(whole.fileno(), lambda at, _: image.heap_offset(at))
        path = self._path(part, part.name)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = stack.enter_context(path.open("xb"))
        if part.kind == "blob":
            file.truncate(part.size)
            return _Target(file.fileno(), lambda at, _: at)
        if part.kind != "pages":
            raise self._unfit(part, "is not part of a snapshot")
        pagemap = self._pagemap(path)
        if pagemap is None or pagemap.size != part.size:
            raise self._unfit(part, "lacks pages that its pagemap names")
        return _Target(file.fileno(), pagemap.offset)

    def _pagemap(self, path: Path) -> criu.Pagemap | None:
        if path not in self._pagemaps:
            for each in path.parent.iterdir():
                if pagemap := pagemap_of(path.parent, each.name):
                    self._pagemaps[path.with_name(pagemap.file)] = pagemap
        return self._pagemaps.get(path)

    def _path(self, part: Part, name: str) -> Path:
        assert part.rank is not None
        pure = PurePosixPath(name)
        if pure.is_absolute() or ".." in pure.parts or not pure.parts:
            raise self._unfit(part, "is not the name of a file in a folder")
        return self.folders[part.rank] / pure

    def _unfit(self, part: Part, problem: str) -> Unfit:
        return Unfit(
            self.checkpoint.files.url, f"{part.name} of rank {part.rank} {problem}", _REMEDY
        )


def _joined(parts: list[Elsewhere]) -> Iterator[Elsewhere]:
    """Join adjacent parts of the same rank."""
    last = parts[0]
    for each in parts[1:]:
        if (last.end, last.rank) != (each.begin, each.rank):
            yield last
            last = each
        last = last._replace(end=each.end)
    yield last


class _Pages:
    """Collects pages that follow each other in a file, and writes them together."""

    def __init__(self) -> None:
        self._file, self._start, self._end = -1, 0, 0
        self._pending: list[memoryview] = []

    def add(self, file: int, data: memoryview, offset: int) -> None:
        if (file, offset) != (self._file, self._end) or len(self._pending) == TOGETHER:
            self.write()
            self._file, self._start = file, offset
        self._pending.append(data)
        self._end = offset + len(data)

    def write(self) -> None:
        if self._pending:
            _write(self._file, memoryview(b"".join(self._pending)), self._start)
        self._pending = []


def _write(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


_NOTHING = bytes(64 << 10)


def _write_sparse(file: int, data: memoryview, offset: int) -> None:
    """Write data except blocks of zeros: the file has holes there."""
    for start in range(0, len(data), len(_NOTHING)):
        block = data[start : start + len(_NOTHING)]
        if bytes(block) != _NOTHING[: len(block)]:  # much faster than comparing views
            _write(file, block, offset + start)
