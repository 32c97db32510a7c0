"""A rank's snapshot on this machine: reads it and adds it to a save.

    about.json   written last, except for an image that is copied while the rank runs
    image        the rank's device memory and its saved state, sparse; only with a channel. Content
                 that other ranks share may be in their images, in the folders next to this one:
                 the image's state or image.elsewhere names them
    criu/ …      what CRIU wrote, and all other files of the snapshot

As parts of a checkpoint: `image` becomes the live buffers (device memory; small ones are a part of
their own), the state (a blob) and a record of its size; a pages image becomes pages by address;
every other file becomes a blob of its name.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any

from rankfold import image
from rankfold.checkpoint.snapshot import criu
from rankfold.checkpoint.snapshot.criu import Pagemap
from rankfold.checkpoint.snapshot.errors import Unfit
from rankfold.checkpoint.store import Buffer, Save
from rankfold.checkpoint.store.units import PAGE
from rankfold.image import Image
from rankfold.plural import count

ABOUT = "about.json"
IMAGE, COPY_ERROR = "image", "image.lost"
DEVICE = "image/buffers"  # names of the image's parts
SMALL = "image/small"  # buffers that are divided into pages
SMALL_BYTES = 64 << 10  # often copied from a rank's host memory, and also there
STATE = "image/state"
SIZE = "image/size"
COMPARED = (ABOUT, "criu/cpuinfo.img", "files.json")  # files that are compared before a restore
CHUNK = 1 << 20  # bytes per read


class Snapshot:
    """A whole snapshot. Raises Unfit if it is not whole, or cannot be what was written."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.about = _about(folder / ABOUT)
        self.image: Image | None = None
        if self.about.get("has_channel") and not (folder / IMAGE).exists():
            raise Unfit(folder, f"has no {IMAGE}: {_why_incomplete(folder)}")
        self.pages: dict[str, Pagemap] = {}  # by name of the pages image
        self.files: dict[str, int] = {}  # sizes of the files that become blobs
        for name, size in sorted(_files(folder)):
            if name == IMAGE:
                if size != self.about.get("image_bytes", size):
                    problem = f"has {count(size, 'byte')}, not {self.about['image_bytes']}"
                    raise Unfit(folder / name, problem)
                self.image, self._image_size = _image(folder / name), size
            elif name != image.NOTE:
                self.files[name] = size
        for name in list(self.files):
            if pagemap := pagemap_of(folder, name):
                self._add_pages_image(name, pagemap)

    def _add_pages_image(self, name: str, pagemap: Pagemap) -> None:
        file = str(Path(name).with_name(pagemap.file))
        size = self.files.pop(file, -1)
        if size != pagemap.size:
            has = f"has {count(size, 'byte')}" if size >= 0 else "is not named by anything else"
            problem = f"{has}, and {name} names {count(pagemap.size, 'byte')} of pages in it"
            raise Unfit(self.folder / file, problem)
        self.pages[file] = pagemap

    @property
    def size(self) -> int:
        """The number of bytes that a save reads."""
        pages = sum(pagemap.size for pagemap in self.pages.values())
        device = self.image.state + sum(r.length for r in self.image.ranges) if self.image else 0
        return sum(self.files.values()) + pages + device

    @property
    def modules(self) -> frozenset[str]:
        """Hashes of modules that the saved state refers to (modules.py)."""
        return self.image.modules if self.image else frozenset()

    def add_to(self, save: Save, rank: int) -> None:
        """Add the snapshot to a save, as parts of this rank. Raises StoreError from the save, and
        Unfit."""
        for name in self.files:
            with (self.folder / name).open("rb") as file:
                save.blob(rank, name, iter(lambda: file.read(CHUNK), b""))
        for name, pagemap in self.pages.items():
            with (self.folder / name).open("rb") as file:
                save.pages(rank, name, _read_runs(file.fileno(), pagemap))
        if self.image is not None:
            with contextlib.ExitStack() as stack:
                self._add_image(save, rank, self.image, stack)

    def _add_image(
        self, save: Save, rank: int, contents: Image, stack: contextlib.ExitStack
    ) -> None:
        """Add the image as if it held all of its content itself; a restore writes it that way."""
        files: dict[int | None, int] = {None: stack.enter_context(_opened(self.folder))}
        for other in {each.rank for each in contents.elsewhere}:
            folder = self.folder.with_name(f"rank-{other}")
            files[other] = stack.enter_context(_opened(folder))
        state = _pieces(files[None], image.state_offset(), contents.state)
        save.blob(rank, SIZE, [json.dumps({"bytes": self._image_size}).encode()])
        save.blob(
            rank,
            STATE,
            (image.self_contained(each) if n == 0 else each for n, each in enumerate(state)),
        )
        small: list[Buffer] = []
        large: list[Buffer] = []
        for address, length, whole in contents.ranges:
            start = image.heap_offset(address)
            name = _namer(contents, self.folder, start)
            buffer = Buffer(address, length, _reader(contents, files, start), name)
            (small if whole <= SMALL_BYTES else large).append(buffer)
        save.buffers(rank, DEVICE, large)
        save.buffers(rank, SMALL, small, PAGE)


def images_being_copied(folders: Iterable[Path]) -> dict[Path, int]:
    """The snapshots whose images launchers still copy while the ranks run, and how many bytes of
    each are there. Raises OSError."""
    return {folder: _copied(folder) for folder in folders if _is_locked(folder)}


def _why_incomplete(folder: Path) -> str:
    try:
        return (folder / COPY_ERROR).read_text()
    except OSError:
        return "the snapshot is incomplete: the process that copied it in the background exited"


def _copied(folder: Path) -> int:
    copied = 0
    for path in folder.glob(f"{IMAGE}*"):
        with contextlib.suppress(FileNotFoundError):  # it is complete by now, and has another name
            copied += path.stat().st_blocks * 512
    return copied


def _is_locked(folder: Path) -> bool:
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def pagemap_of(folder: Path, name: str) -> Pagemap | None:
    """Parse a file of a snapshot if it is a pagemap; otherwise None. Raises Unfit."""
    path = folder / name
    if not (path.name.startswith("pagemap-") and path.suffix == ".img"):
        return None
    try:
        return criu.parse(path.read_bytes())
    except criu.Malformed as error:
        raise Unfit(path, str(error)) from error


def _about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Unfit(path.parent, f"has no {path.name}: the snapshot is incomplete") from None
    except ValueError as error:
        raise Unfit(path, f"is not JSON: {error}") from error
    if not isinstance(about, dict):
        raise Unfit(path, "is not a JSON object")
    return about


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield (path within the snapshot, bytes) of each file."""
    for where, folders, files in os.walk(folder):
        for each in [*folders, *files]:
            path = Path(where, each)
            status = path.lstat()
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise Unfit(path, "is neither a file nor a folder")
            if stat.S_ISREG(status.st_mode):
                yield str(path.relative_to(folder)), status.st_size


def _image(path: Path) -> Image:
    with path.open("rb") as file:
        try:
            read = image.read_image(file.fileno())
            elsewhere = sorted([*read.elsewhere, *image.noted(path)])
            return read._replace(elsewhere=elsewhere)
        except image.Malformed as error:
            raise Unfit(path, str(error)) from error


def _read_runs(file: int, pagemap: Pagemap) -> Iterator[tuple[int, bytes]]:
    for run in pagemap.runs:
        for offset in range(0, run.length, CHUNK):
            length = min(CHUNK, run.length - offset)
            yield run.address + offset, os.pread(file, length, run.offset + offset)


def _pieces(file: int, start: int, length: int) -> Iterator[bytes]:
    for offset in range(0, length, CHUNK):
        yield os.pread(file, min(CHUNK, length - offset), start + offset)


def _reader(
    contents: Image, files: dict[int | None, int], start: int
) -> Callable[[int, int], bytes]:
    def read(at: int, length: int) -> bytes:
        pieces = contents.pieces(start + at, start + at + length)
        return b"".join(os.pread(files[rank], end - begin, begin) for rank, begin, end in pieces)

    return read


def _namer(contents: Image, folder: Path, start: int) -> Callable[[int, int], Hashable]:
    """A function that names content by the chunks' keys and the range in each; without a key, by
    image and range."""

    def name(at: int, length: int) -> Hashable:
        parts: list[tuple[Path | bytes, int, int]] = []
        for key, chunk, first, last in contents.known(start + at, start + at + length):
            if key:
                parts.append((key, first - chunk, last - chunk))
                continue
            for rank, begin, end in contents.pieces(first, last):
                where = folder if rank is None else folder.with_name(f"rank-{rank}")
                if parts and parts[-1][0] == where and parts[-1][2] == begin:
                    begin = parts.pop()[1]
                parts.append((where, begin, end))
        return tuple(parts)

    return name


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open the folder's image. Raises Unfit."""
    try:
        file = (folder / IMAGE).open("rb")
    except FileNotFoundError:
        raise Unfit(
            folder, "has no image, and that image also has memory of another rank"
        ) from None
    with file:
        yield file.fileno()
