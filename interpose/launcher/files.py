"""The files of a rank that stands still: taken into its snapshot, and set back.

    files.json    what there is under each name that the rank has touched, and what it reads
    files/N       content of a large one, sparse
    files/small   contents of the others, those that changed last at the end

Set back are content, names, modes, owners and times; what the rank made later is removed. Nothing
else is touched. The rank's processes do not run meanwhile.

Ranks may have touched the same file. Their snapshots lie in one folder, and ``files.shared`` beside
them says what one of them has taken, or set back, already: then the others leave it as it is, since
one that is restored has it open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from rankfold.interpose.launcher import sparse
from rankfold.interpose.launcher.touched import Ours, lines, made_later

VERSION = 1
NAME, FOLDER, SHARED = "files.json", "files", "files.shared"
_SMALL, _SMALL_BYTES = "small", 64 << 10
_SETTLED_NS = 50_000_000  # who changed before that has another time of change if it changes again
_SAMPLE_BYTES = 64 << 10
_FICLONE = 0x4004_9409
_NAMED_MAX = 5


class Differs(Exception):
    """Files are not what they were at the snapshot; the message names them."""


class Entry(Struct, omit_defaults=True):
    """What is there under a name. `was`: device, inode, time of change, bytes."""

    path: str
    kind: Literal["file", "folder", "link", "pipe"]
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    was: tuple[int, int, int, int]
    content: str = ""  # of a file: its name below files/
    offset: int = 0  # where in that it begins
    target: str = ""  # of a link
    same: str = ""  # another name of this very file
    loose: bool = False  # it may have changed since without a new time of change

    @property
    def size(self) -> int:
        return self.was[3]


class Above(Struct):
    """A folder that is not the rank's: made where it is missing."""

    path: str
    mode: int
    uid: int
    gid: int


class Input(Struct):
    """A file that the rank has open, or mapped, and only reads."""

    path: str
    size: int
    mtime_ns: int
    sample: str


class Files(Struct):
    version: int
    boot: str
    names: dict[str, bool]  # as in Touched
    entries: list[Entry]
    others: list[str]  # sockets, which CRIU makes again, and devices
    above: list[Above]
    inputs: list[Input]


# ---- taking --------------------------------------------------------------------------------


def take(snapshot: Path, names: dict[str, bool], opened: Opened) -> None:
    """Write down the files of the rank. Raises OSError."""
    names = names | dict.fromkeys(sorted(opened.written - names.keys()), False)
    (snapshot / FOLDER).mkdir(mode=0o700)
    with _shared(snapshot) as shared, (snapshot / FOLDER / _SMALL).open("wb") as small:
        taking = _Taking(snapshot, small.fileno(), shared.setdefault("taken", {}), opened.mapped)
        found = [(path, status) for path in names if (status := _status(path))]
        found.sort(key=lambda each: each[1].st_ctime_ns)
        entries = []
        for path, status in found:
            with contextlib.suppress(FileNotFoundError):  # somebody else has removed it
                if entry := taking.entry(path, status):
                    entries.append(entry)
    others = [path for path, status in found if stat.S_IFMT(status.st_mode) not in _KINDS]
    files = Files(
        VERSION, boot_id(), names, entries, others, list(_above(entries)),
        [each for path in sorted(opened.read - names.keys()) if (each := _input(path))],
    )  # fmt: skip
    (snapshot / NAME).write_text(json.dumps(msgspec.to_builtins(files)))


class _Taking:
    def __init__(self, snapshot: Path, small: int, taken: dict[str, Any], mapped: set[str]):
        self._snapshot, self._small, self._taken, self._mapped = snapshot, small, taken, mapped
        self._end, self._count = 0, 0
        self._first: dict[tuple[int, int], str] = {}  # name of a file with several
        self._now = time.time_ns()

    def entry(self, path: str, status: os.stat_result) -> Entry | None:
        kind = _KINDS.get(stat.S_IFMT(status.st_mode))
        if kind is None:
            return None
        entry = Entry(
            path, kind, stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid,
            status.st_mtime_ns, _identity(status),
        )  # fmt: skip
        entry.loose = path in self._mapped or status.st_ctime_ns > self._now - _SETTLED_NS
        if kind == "link":
            entry.target = os.readlink(path)
        if kind != "folder" and status.st_nlink > 1:
            first = self._first.setdefault((status.st_dev, status.st_ino), path)
            entry.same = first if first != path else ""
        if kind == "file" and not entry.same:
            self._content(entry)
        return entry

    def _content(self, entry: Entry) -> None:
        source = _opened(entry.path, os.O_RDONLY | os.O_NOATIME)
        try:
            if entry.size < _SMALL_BYTES:
                entry.content, entry.offset = _SMALL, self._end
                sparse.copy_range(source, 0, self._small, self._end, entry.size)
                self._end += entry.size
            else:
                self._count += 1
                entry.content = str(self._count)
                self._large(entry, source)
        finally:
            os.close(source)

    def _large(self, entry: Entry, source: int) -> None:
        target = self._snapshot / FOLDER / entry.content
        key = ":".join(map(str, entry.was))
        if not entry.loose and (there := self._taken.get(key)):
            with contextlib.suppress(OSError):
                os.link(self._snapshot.parent / there, target)
                return
        fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _copy(source, fd)
        finally:
            os.close(fd)
        self._taken[key] = str(target.relative_to(self._snapshot.parent))


_KINDS: dict[int, Literal["file", "folder", "link", "pipe"]] = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "pipe",
}  # fmt: skip


def _copy(source: int, target: int) -> None:
    """Into an empty file. The file system may store it once, if it can do that."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        os.ftruncate(target, os.fstat(source).st_size)
        sparse.copy(source, target)


def _above(entries: list[Entry]) -> Iterator[Above]:
    seen = {entry.path for entry in entries if entry.kind == "folder"}
    for entry in entries:
        for folder in map(str, Path(entry.path).parents):
            if folder not in seen and (status := _status(folder)):
                seen.add(folder)
                mode = stat.S_IMODE(status.st_mode)
                yield Above(folder, mode, status.st_uid, status.st_gid)


class Opened:
    """Files that processes have open or mapped: `written` may be written to, also through `mapped`
    memory; `read` may not."""

    def __init__(self, pids: Iterable[int], ours: Ours):
        self.written: set[str] = set()
        self.mapped: set[str] = set()
        self.read: set[str] = set()
        self._ours = ours
        for pid in pids:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                self._descriptors(f"/proc/{pid}")
                self._maps(Path(f"/proc/{pid}/maps"))
        self.read -= self.written

    def _descriptors(self, process: str) -> None:
        for number in os.listdir(f"{process}/fd"):
            path = os.readlink(f"{process}/fd/{number}")
            if not self._is_file(path, os.stat(f"{process}/fd/{number}")):
                continue
            info = Path(f"{process}/fdinfo/{number}").read_text()
            flags = re.search(r"^flags:\s*([0-7]+)", info, re.MULTILINE)
            assert flags is not None
            reads = int(flags[1], 8) & os.O_ACCMODE == os.O_RDONLY
            (self.read if reads else self.written).add(path)

    def _maps(self, maps: Path) -> None:
        seen = set()
        for line in maps.read_text(errors="surrogateescape").splitlines():
            words = line.split(maxsplit=5)
            if len(words) < 6 or (words[5], words[1]) in seen:
                continue
            seen.add((words[5], words[1]))
            path = words[5].replace("\\012", "\n")
            status = _status(path)
            if status is None or not self._is_file(path, status):
                continue
            if words[1][1] == "w" and words[1][3] == "s":
                self.written.add(path)
                self.mapped.add(path)
            else:
                self.read.add(path)

    def _is_file(self, path: str, status: os.stat_result) -> bool:
        """Whether that is the file's name, and the file one of the rank's."""
        if not path.startswith("/") or not stat.S_ISREG(status.st_mode) or self._ours(path):
            return False
        now = _status(path)
        return now is not None and os.path.samestat(now, status)


def _input(path: str) -> Input | None:
    status = _status(path)
    return Input(path, status.st_size, status.st_mtime_ns, _sample(path)) if status else None


def _sample(path: str) -> str:
    """A digest of a file's beginning, middle and end. Raises OSError."""
    digest = hashlib.sha256()
    with open(_opened(path, os.O_RDONLY), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for at in (0, size // 2, max(0, size - _SAMPLE_BYTES)):
            digest.update(os.pread(file.fileno(), _SAMPLE_BYTES, at))
    return digest.hexdigest()


# ---- setting back --------------------------------------------------------------------------


def read(snapshot: str) -> Files | None:
    """What a snapshot says of files; None if nobody saw them. Raises Differs."""
    path = Path(snapshot, NAME)
    try:
        found = json.loads(path.read_text())
        if found.get("version") != VERSION:
            raise Differs(f"{path} has format {found.get('version')}, not {VERSION}")
        return msgspec.convert(found, Files)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise Differs(f"{path} cannot be read: {error}") from error


def compare(files: Files) -> None:
    """Raises Differs unless what the rank reads is what it was."""
    wrong = [f"{each.path} {why}" for each in files.inputs if (why := _difference(each))]
    if wrong:
        more = f" and {len(wrong) - _NAMED_MAX} others" if len(wrong) > _NAMED_MAX else ""
        raise Differs("what the rank reads has changed: " + ", ".join(wrong[:_NAMED_MAX]) + more)


def _difference(file: Input) -> str:
    status = _status(file.path)
    if status is None:
        return "is not there"
    if not stat.S_ISREG(status.st_mode):
        return "is no regular file any more"
    if status.st_size != file.size:
        return f"has {status.st_size} bytes, not {file.size}"
    if status.st_mtime_ns == file.mtime_ns:
        return ""
    try:
        return "" if _sample(file.path) == file.sample else "has other content"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def put(snapshot: Path, files: Files, journal: Path) -> None:
    """Set the files back. Done again it does the rest, or nothing. Raises OSError."""
    with _shared(snapshot) as shared:
        putting = _Putting(snapshot, files, shared.setdefault("put", {}))
        putting.remove(made_later(journal, files.names))
        putting.all()
        half = journal.with_name(f"{journal.name}.new")
        half.write_bytes(lines(files.names))
        half.rename(journal)


class _Putting:
    def __init__(self, snapshot: Path, files: Files, done: dict[str, Any]):
        self._snapshot, self._files, self._done = snapshot, files, done
        self._same_boot = files.boot == boot_id()

    def remove(self, later: list[str]) -> None:
        """What was not there, was: from the deepest on, folders if nobody has anything in them."""
        there = {entry.path for entry in self._files.entries} | set(self._files.others)
        gone = [path for path in self._files.names if path not in there]
        gone += [path for path in later if path not in self._done]
        for path in sorted(gone, key=lambda each: each.count("/"), reverse=True):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if _is_folder(path):
                    _remove_empty(path)
                else:
                    os.unlink(path)

    def all(self) -> None:
        for above in sorted(self._files.above, key=lambda each: each.path):
            with contextlib.suppress(FileExistsError):
                os.mkdir(above.path)
                os.chown(above.path, above.uid, above.gid)
                os.chmod(above.path, above.mode)
        folders = [entry for entry in self._files.entries if entry.kind == "folder"]
        folders.sort(key=lambda each: each.path)
        for entry in folders:
            if not _is_folder(entry.path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry.path)
                os.mkdir(entry.path, 0o700)
        for entry in self._files.entries:
            if entry.kind != "folder" and not self._stays(entry):
                if not self._rewritten(entry):
                    self._replace(entry)
                now = _status(entry.path)
                self._done[entry.path] = [list(entry.was), list(_identity(now)) if now else None]
        for entry in reversed(folders):
            _set(entry, entry.path)

    def _stays(self, entry: Entry) -> bool:
        """Whether it is what it was: nobody has changed it since, or another rank has set it."""
        status = _status(entry.path)
        if status is None:
            return False
        identity = list(_identity(status))
        if self._done.get(entry.path) == [list(entry.was), identity]:
            return True
        if entry.same:
            first = _status(entry.same)
            return first is not None and os.path.samestat(first, status)
        return self._same_boot and not entry.loose and identity == list(entry.was)

    def _rewritten(self, entry: Entry) -> bool:
        """Whether it was the same file still, and has its content again: programs may know a file
        by its number. (SQLite does.)"""
        now = _status(entry.path)
        if entry.kind != "file" or entry.same or now is None or _identity(now)[:2] != entry.was[:2]:
            return False
        try:
            target = _opened(entry.path, os.O_RDWR)
        except OSError as error:
            if error.errno == errno.ETXTBSY:  # somebody executes it
                return False
            raise
        try:
            if _identity(os.fstat(target))[:2] != entry.was[:2]:
                return False
            os.ftruncate(target, 0)
            self._fill(entry, target)
            os.chown(target, entry.uid, entry.gid)
            os.chmod(target, entry.mode)
            os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(target)
        return True

    def _replace(self, entry: Entry) -> None:
        """In one step: a name stands for the old file or for the new one."""
        digest = hashlib.sha256(os.fsencode(entry.path)).hexdigest()[:16]
        half = os.path.join(os.path.dirname(entry.path), f".rankfold-{digest}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(half)
        try:
            if entry.same:
                os.link(entry.same, half, follow_symlinks=False)
            else:
                self._make(entry, half)
                _set(entry, half)
            if _is_folder(entry.path):
                os.rmdir(entry.path)
            os.rename(half, entry.path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(half)  # also if both are names of one file: then nothing was renamed

    def _make(self, entry: Entry, path: str) -> None:
        if entry.kind == "link":
            os.symlink(entry.target, path)
        elif entry.kind == "pipe":
            os.mkfifo(path)
        else:
            target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                self._fill(entry, target)
            finally:
                os.close(target)

    def _fill(self, entry: Entry, target: int) -> None:
        source = os.open(self._snapshot / FOLDER / entry.content, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if entry.content == _SMALL:
                sparse.copy_range(source, entry.offset, target, 0, entry.size)
            else:
                _copy(source, target)
        finally:
            os.close(source)


def _set(entry: Entry, path: str) -> None:
    os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
    if entry.kind != "link":
        os.chmod(path, entry.mode)
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)


# ---- helpers -------------------------------------------------------------------------------


@contextlib.contextmanager
def _shared(snapshot: Path) -> Iterator[dict[str, Any]]:
    """What ranks tell each other of a snapshot's files; one at a time."""
    path = snapshot.parent / SHARED
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with open(fd, "r+") as file:
        fcntl.flock(fd, fcntl.LOCK_EX)
        found = {}
        with contextlib.suppress(ValueError):  # who wrote it was killed
            found = json.load(file)
        try:
            yield found
        finally:
            file.seek(0)
            file.truncate()
            json.dump(found, file)
            file.flush()


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def _opened(path: str, flags: int) -> int:
    """A regular file, whatever somebody may put there. Raises OSError."""
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "is no regular file", path)
    return fd


def _identity(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size


def _is_folder(path: str) -> bool:
    status = _status(path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _remove_empty(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
            raise


def boot_id() -> str:
    """Another one each time the machine is started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
