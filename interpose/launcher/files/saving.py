"""Saves the files of a frozen rank in its snapshot; restoring.py restores them.

    files.json    what exists under each name that the rank has touched, and which files it reads
    files/N       content of a large file, sparse
    files/small-N contents of small files; those that changed last are at the end

Several ranks may have touched the same file. Their snapshots are in one folder, and
``files.shared`` next to them records what one of them has saved or restored already. The others
then leave that file alone, because the rank that was restored first has it open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import signal
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from rankfold import fanotify
from rankfold.interpose.launcher.files import attributes, nofollow, sparse
from rankfold.interpose.launcher.files.journal import Name
from rankfold.interpose.launcher.files.previous import SMALL, Content, Previous
from rankfold.interpose.launcher.files.tracker import Ours
from rankfold.interpose.launcher.files.unlinked import DELETED
from rankfold.log import area

log = area(__file__)

VERSION = 1
NAME, FOLDER, SHARED = "files.json", "files", "files.shared"
_SMALL_BYTES = 64 << 10
_SETTLED_NS = 50_000_000  # if the last change is older, the next one gets another ctime
_LOCK_AGAIN_S, _SAY_AGAIN_S = 0.02, 10.0
_SAMPLE_BYTES = 64 << 10
_UNTIMED = ("ramfs", "tmpfs")  # there, writes to mapped memory may leave the times unchanged
_FICLONE = 0x4004_9409


class Differs(Exception):
    """Files differ from what they were at the snapshot; the message names them."""


Kind = Literal["file", "folder", "link", "pipe", "socket", "character", "block"]


class Entry(Struct, omit_defaults=True):
    """The object that exists under a name. `was`: device, inode, time of change (ctime), bytes."""

    path: str
    kind: Kind
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    was: tuple[int, int, int, int]
    content: str = ""  # of a file: the name of its content below files/
    offset: int = 0  # where the file begins in that content
    target: str = ""  # of a link
    same: str = ""  # another name of the same file
    node: str = ""  # of a file that may have names that are not the rank's
    theirs: bool = False  # it has such names, and the rank has never written to it
    device: int = 0  # of a character or block device: its number
    flags: int = 0  # see attributes.py
    loose: bool = False  # it may have changed without a new ctime

    @property
    def size(self) -> int:
        return self.was[3]


class Above(Struct):
    """A folder that is not the rank's; a restore makes it if it is missing. `node` shows whether it
    is still the same folder."""

    path: str
    mode: int
    uid: int
    gid: int
    node: str = ""


class Input(Struct):
    """A file that the rank has open or mapped, and only reads."""

    path: str
    size: int
    mtime_ns: int
    sample: str


class Files(Struct):
    version: int
    boot: str
    names: dict[str, bool]  # whether the rank made it; see journal.Name
    entries: list[Entry]
    others: list[str]  # names of objects that a restore could not make
    above: list[Above]
    inputs: list[Input]
    origins: dict[str, str] = {}  # see journal.Name
    written: list[str] = []  # names open for writing, or mapped writable


# ---- taking --------------------------------------------------------------------------------


def take(snapshot: Path, tracked: dict[str, Name], opened: Opened, previous: Previous) -> None:
    """Save the files of the rank. Contents that have not changed since the last snapshot are linked
    from `previous`. Raises OSError."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # see _is_written
    names = {path: name.made for path, name in tracked.items()}
    names |= dict.fromkeys(sorted(opened.written - names.keys()), False)
    names |= _behind_links(names, tracked, opened.ours)
    (snapshot / FOLDER).mkdir(mode=0o700)
    found = [(path, status) for path in names if (status := nofollow.status(path))]
    # A file with a lost name becomes a link to one that other ranks may have restored, not the
    # reverse.
    found.sort(key=lambda each: (each[0] in opened.temporary, each[1].st_ctime_ns))
    previous.thin({key_of(identity(status)): status.st_size for _, status in found})
    with shared_notes(snapshot) as shared:
        taking = _Taking(snapshot, shared.setdefault("taken", {}), opened, previous)
        entries = []
        with contextlib.closing(taking):
            for path, status in found:
                try:
                    if entry := taking.entry(path, status):
                        entries.append(entry)
                except FileNotFoundError:  # another process has removed it
                    continue
                except OSError as error:
                    raise OSError(error.errno, error.strerror, path) from error
        wrote = {path for path, name in tracked.items() if name.wrote} | opened.written
        taking.note_theirs(entries, wrote)
    others = [path for path, status in found if stat.S_IFMT(status.st_mode) not in _KINDS]
    files = Files(
        VERSION,
        boot_id(),
        names,
        entries,
        others,
        list(_above(names, entries, opened.works_in)),
        [each for path in sorted(opened.read - names.keys()) if (each := _input(path))],
        {path: name.origin for path, name in tracked.items() if name.origin},
        sorted(opened.written),
    )
    (snapshot / NAME).write_text(json.dumps(msgspec.to_builtins(files)))
    previous.renew(taking.contents, snapshot / FOLDER)


def _behind_links(names: dict[str, bool], tracked: dict[str, Name], ours: Ours) -> dict[str, bool]:
    """Names whose folder was moved, and replaced by a link that is not the rank's: their real
    paths. If the rank made the link itself, no such file exists behind it."""
    folders: dict[str, bool] = {}
    real: dict[str, str] = {}  # real paths of folders
    for path, made in names.items():
        folder, name = os.path.split(path)
        if folder not in real:
            real[folder] = folder
            status = nofollow.status(folder)
            if status is None or not stat.S_ISDIR(status.st_mode):
                links = [above for above in map(str, Path(path).parents) if os.path.islink(above)]
                if links and not _is_made(links[-1], tracked):
                    real[folder] = os.path.realpath(folder)
        there = os.path.join(real[folder], name)
        if real[folder] != folder and there not in names and not ours(there):
            folders[there] = made
    return folders


def _is_made(path: str, tracked: dict[str, Name]) -> bool:
    """Whether the rank has made what exists at this path."""
    with nofollow.open_if_present(path) as fd:
        node = nofollow.node(fd) if fd is not None else ""
    return path in tracked and tracked[path].node == node


class _Taking:
    def __init__(self, snapshot: Path, taken: dict[str, Any], opened: Opened, previous: Previous):
        self._snapshot, self._taken, self._opened, self._previous = (
            snapshot,
            taken,
            opened,
            previous,
        )
        self._first: dict[tuple[int, int], str] = {}  # first name of a file with several names
        self._several: dict[str, list[os.stat_result]] = {}  # by first name: status of each name
        self._now = time.time_ns()
        self._untimed = {each.device for each in fanotify.mounts() if each.kind in _UNTIMED}
        self._small, self._small_name, self._end = -1, "", 0  # where small contents are appended
        self.contents: dict[str, Content] = {}  # contents to keep for the next snapshot

    def close(self) -> None:
        if self._small >= 0:
            os.close(self._small)

    def entry(self, path: str, status: os.stat_result) -> Entry | None:
        kind = _KINDS.get(stat.S_IFMT(status.st_mode))
        if kind is None:
            return None
        entry = Entry(
            path,
            kind,
            stat.S_IMODE(status.st_mode),
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            identity(status),
        )
        number = status.st_dev, status.st_ino
        entry.loose = (
            number in self._opened.mapped
            or status.st_ctime_ns > self._now - _SETTLED_NS
            or f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}" in self._untimed
        )
        if kind in ("character", "block"):
            entry.device = status.st_rdev
        entry.flags = attributes.flags_of(path)
        if kind == "link":
            with nofollow.stable_path(path) as here:
                entry.target = os.readlink(here)
        if kind != "folder" and status.st_nlink > 1:
            first = self._first.setdefault(number, path)
            entry.same = first if first != path else ""
            self._several.setdefault(first, []).append(status)
            with nofollow.open_if_present(path) as fd:
                entry.node = nofollow.node(fd) if fd is not None and not entry.same else ""
        if kind == "file" and not entry.same:
            with nofollow.stable_path(path) as here:
                source = nofollow.file(here, os.O_RDONLY | os.O_NOATIME)
            try:
                entry.content, entry.offset = self._content(entry, source)
            finally:
                os.close(source)
        return entry

    def note_theirs(self, entries: list[Entry], wrote: set[str]) -> None:
        """Set `theirs` when all entries are taken. `wrote`: names of files that the rank has
        written."""
        written = {entry.same or entry.path for entry in entries if entry.path in wrote}
        for entry in entries:
            several = self._several.get(entry.same or entry.path, [])
            more = bool(several) and several[0].st_nlink > len(several)
            entry.theirs = more and (entry.same or entry.path) not in written

    def _content(self, entry: Entry, source: int) -> Content:
        key, sure = key_of(entry.was), not entry.loose and not _is_written(source)
        there = self._previous.contents.get(key) if sure else None
        if there is None or not self._previous.link(there, self._snapshot / FOLDER / there.name):
            there = self._copied(entry, source)
        if sure:
            self.contents[key] = there
        return there

    def _copied(self, entry: Entry, source: int) -> Content:
        if entry.size < _SMALL_BYTES:
            return self._added(entry, source)
        name = self._name("")
        self._large(entry, source, self._snapshot / FOLDER / name)
        return Content(name, 0)

    def _name(self, kind: str) -> str:
        self._previous.next += 1
        return f"{kind}{self._previous.next - 1}"

    def _added(self, entry: Entry, source: int) -> Content:
        if self._small < 0:
            self._small_name = self._name(f"{SMALL}-")
            self._small = _new(self._snapshot / FOLDER / self._small_name)
        start, self._end = self._end, self._end + entry.size
        sparse.copy_range(source, 0, self._small, start, entry.size)
        return Content(self._small_name, start)

    def _large(self, entry: Entry, source: int, target: Path) -> None:
        key = key_of(entry.was)
        if not entry.loose and (there := self._taken.get(key)):
            with contextlib.suppress(OSError):
                os.link(self._snapshot.parent / there, target)
                return
        fd = _new(target)
        try:
            copy(source, fd)
        finally:
            os.close(fd)
        if not entry.loose:
            self._taken[key] = str(target.relative_to(self._snapshot.parent))


def _is_written(file: int) -> bool:
    """Whether a process has the file open for writing or mapped writable: then no lease is granted.
    A process that opens it for writing waits until we release the lease; the kernel notifies us by
    SIGIO."""
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        return True
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    return False


def key_of(was: tuple[int, int, int, int]) -> str:
    return ":".join(map(str, was))


def _new(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character",
    stat.S_IFBLK: "block",
}


def copy(source: int, target: int) -> None:
    """Copy a file into an empty one. The file system may share the blocks, if it supports that."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        os.ftruncate(target, os.fstat(source).st_size)
        sparse.copy(source, target)


def _above(names: dict[str, bool], entries: list[Entry], works_in: set[str]) -> Iterator[Above]:
    """The folders above all entries, above names that the rank has removed but not made, and above
    its working directories."""
    own = {entry.path for entry in entries if entry.kind == "folder"}
    folders = set()
    inside = [entry.path for entry in entries]
    inside += [path for path, made in names.items() if not made]
    inside += [os.path.join(folder, "any") for folder in works_in]
    for path in inside:
        for folder in map(str, Path(path).parents):
            if folder in folders:  # and so are the folders above it
                break
            folders.add(folder)
            if folder in own:
                continue
            with nofollow.open_if_present(folder) as fd:
                if fd is not None and stat.S_ISDIR((status := os.fstat(fd)).st_mode):
                    mode = stat.S_IMODE(status.st_mode)
                    yield Above(folder, mode, status.st_uid, status.st_gid, nofollow.node(fd))


class Opened:
    """Files that processes have open or mapped: `written` for writing, `read` for reading only.
    `mapped`, by device and inode: may be written through memory. `works_in`: the working
    directories. `temporary`: names that files have only during the snapshot (unlinked.py); a file
    with such a name counts as written."""

    def __init__(self, pids: Iterable[int], ours: Ours, temporary: set[str]):
        self.written: set[str] = set()
        self.mapped: set[tuple[int, int]] = set()
        self.read: set[str] = set()
        self.works_in: set[str] = set()
        self.ours, self.temporary = ours, temporary
        for pid in pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                self.works_in.add(os.readlink(f"/proc/{pid}/cwd"))
                self._descriptors(f"/proc/{pid}")
                self._maps(Path(f"/proc/{pid}/maps"))
        self.read -= self.written
        self.works_in = {path for path in self.works_in if path.startswith("/") and not ours(path)}

    def _descriptors(self, process: str) -> None:
        for number in os.listdir(f"{process}/fd"):
            path = self._name(os.readlink(f"{process}/fd/{number}"))
            if not self._is_file(path, os.stat(f"{process}/fd/{number}")):
                continue
            info = Path(f"{process}/fdinfo/{number}").read_text()
            flags = re.search(r"^flags:\s*([0-7]+)", info, re.MULTILINE)
            assert flags is not None
            reads = int(flags[1], 8) & os.O_ACCMODE == os.O_RDONLY
            (self.read if reads and path not in self.temporary else self.written).add(path)

    def _maps(self, maps: Path) -> None:
        mapped = set()
        for line in maps.read_text(errors="surrogateescape").splitlines():
            words = line.split(maxsplit=5)
            if len(words) < 6 or (words[5], words[1]) in mapped:
                continue
            mapped.add((words[5], words[1]))
            path = self._name(words[5].replace("\\012", "\n"))
            status = of_input(path)
            if status is None or not self._is_file(path, status):
                continue
            if words[1][1] == "w" and words[1][3] == "s":
                self.written.add(path)
                self.mapped.add((status.st_dev, status.st_ino))
            else:
                (self.written if path in self.temporary else self.read).add(path)

    def _name(self, shown: str) -> str:
        name = shown.removesuffix(DELETED)
        return name if name in self.temporary else shown

    def _is_file(self, path: str, status: os.stat_result) -> bool:
        """Whether the path still names the file, and the file is one of the rank's."""
        if not path.startswith("/") or not stat.S_ISREG(status.st_mode) or self.ours(path):
            return False
        now = of_input(path)
        return now is not None and os.path.samestat(now, status)


def _input(path: str) -> Input | None:
    status = of_input(path)
    return Input(path, status.st_size, status.st_mtime_ns, sample(path)) if status else None


def sample(path: str) -> str:
    """A digest of a file's beginning, middle and end. Raises OSError."""
    digest = hashlib.sha256()
    with open(nofollow.file(path, os.O_RDONLY), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for offset in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
            digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, offset))
    return digest.hexdigest()


def read(snapshot: str) -> Files | None:
    """Read a snapshot's record of its files; None if they were not tracked. Raises Differs."""
    path = Path(snapshot, NAME)
    try:
        listed = json.loads(path.read_text())
        if listed.get("version") != VERSION:
            raise Differs(f"{path} has format {listed.get('version')}, not {VERSION}")
        return msgspec.convert(listed, Files)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise Differs(f"{path} cannot be read: {error}") from error


# ---- helpers -------------------------------------------------------------------------------


@contextlib.contextmanager
def shared_notes(snapshot: Path) -> Iterator[dict[str, Any]]:
    """The ranks' shared notes on the files of their snapshots; one rank at a time."""
    path = snapshot.parent / SHARED
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(fd, "r+") as file:
        _lock(fd, path)
        notes = {}
        with contextlib.suppress(ValueError):  # its writer was killed
            notes = json.load(file)
        try:
            yield notes
        finally:
            file.seek(0)
            file.truncate()
            json.dump(notes, file)
            file.flush()


def _lock(fd: int, path: Path) -> None:
    """Wait for the lock. Another rank may hold it while it copies large files: its launcher kills
    the copying process if that makes no progress (progress.py). The reads show our own launcher
    that we make progress."""
    since = said = time.monotonic()
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            os.pread(fd, 1, 0)
        if (now := time.monotonic()) - said > _SAY_AGAIN_S:
            said = now
            log.warning("%s: another rank has locked it for %.0f s", path, now - since)
        time.sleep(_LOCK_AGAIN_S)


def of_input(path: str) -> os.stat_result | None:
    """The status of a file that is only read; a link is not followed. None: it is gone. Raises
    OSError."""
    try:
        return os.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size


def boot_id() -> str:
    """An id that changes each time the machine boots."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
