"""The files of desired state below a place, kept up to date at the cost of those files alone.

A folder is listed once, and again only when something named like a folder or a file of desired
state comes, goes or is renamed in it. A file is looked at when the kernel reports a change of it.
Other files cost nothing while they are written, however many there are; each folder takes a watch.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from rankfold import inotify
from rankfold.log import area
from rankfold.reconciler.source.trees import counts

log = area(__file__)

RECHECK_S = 5.0  # between looks at all files, for changes that the kernel does not report
RECENT_NS = 2_000_000_000  # a folder that changed so recently may change again at the same time
_OF_FOLDERS = (
    inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO
    | inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.ONLYDIR
)  # fmt: skip
_OF_FILES = inotify.MODIFY | inotify.ATTRIB | inotify.CLOSE_WRITE
_REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "ceph", "afs", "lustre", "gfs", "ocfs", "vboxsf",
           "virtiofs", "gluster")  # fmt: skip
State = tuple[int, ...]  # of a file: its times, size and inode


@dataclass
class _Folder:
    """A folder as it was listed."""

    files: set[str] = field(default_factory=set)  # paths
    folders: set[str] = field(default_factory=set)
    changed_ns: int = 0  # its time then; 0: it may have changed since


class Files:
    """The files at `place`: a folder, or one file. Raises OSError for a folder that cannot be
    read."""

    def __init__(self, place: Path):
        self.place = place
        self._place: tuple[int, ...] = ()
        self._inotify: inotify.Inotify | None = None
        self._begin()

    def _begin(self) -> None:
        self.close()
        self.blind = False  # changes are not reported: each folder's time says whether to list it
        self._single = not self.place.is_dir()
        self._top = str(self.place.parent if self._single else self.place)
        self._stale = {self._top}
        self._folders: dict[str, _Folder] = {}
        self._states: dict[str, State | None] = {}  # by path; None: it is no file
        self._links: set[str] = set()  # of these paths
        self._paths: dict[int, str] = {}  # by number of the watch
        self._watches: dict[str, int] = {}
        self._devices: dict[int, bool] = {}  # whether changes there are reported
        self._checked_at = time.monotonic()
        self._said: object = None
        try:
            self._inotify = inotify.Inotify()
        except OSError as error:
            self._be_blind(self._top, error)

    def close(self) -> None:
        if self._inotify:
            self._inotify.close()
            self._inotify = None

    def descriptors(self) -> list[int]:
        """`look` may find something once one of these can be read."""
        return [self._inotify.fileno()] if self._inotify else []

    def paths(self) -> list[Path]:
        """The files that were there at the last look."""
        return sorted(Path(path) for path, state in self._states.items() if state)

    def look(self) -> object:
        """What there is now: equal to what an earlier call gave if nothing has changed."""
        place = self._identity()
        if self._place and place != self._place:  # the name means another folder now
            self._begin()
        self._place = place
        due = self._hear() | self._links  # what a link leads to is not watched
        if self.blind:
            self._stale |= {path for path, seen in self._folders.items() if _differs(path, seen)}
        listed = bool(self._stale)
        while self._stale:
            due |= self._list(self._stale.pop())
        if self.blind or time.monotonic() - self._checked_at > RECHECK_S:
            self._checked_at = time.monotonic()
            due = due | self._states.keys()
        changed = [path for path in due if self._check(path)]
        if changed or listed or self._said is None:
            self._said = tuple(sorted(each for each in self._states.items() if each[1]))
        return self._said

    def _identity(self) -> tuple[int, ...]:
        info = os.stat(self._top)
        return info.st_dev, info.st_ino, self.place.is_dir()

    def _hear(self) -> set[str]:
        """Take the kernel's reports: folders to list become stale, files to look at are given."""
        files: set[str] = set()
        for event in self._inotify.read() if self._inotify else ():
            path = self._paths.get(event.watch, "")
            if event.mask & inotify.OVERFLOW:
                self._stale |= self._folders.keys()
                files |= self._states.keys()
            elif path in self._states:
                files.add(path)
            elif path and not event.name:  # it was moved, or is gone: another may have its name
                self._stale |= {path, os.path.dirname(path)} & self._folders.keys()
            elif path and self._counts(event.name, bool(event.mask & inotify.ISDIR)):
                self._stale.add(path)
            if event.mask & inotify.IGNORED and self._watches.get(path) == event.watch:
                del self._watches[path], self._paths[event.watch]
        return files

    def _counts(self, name: str, is_folder: bool) -> bool:
        if self._single:
            return name == self.place.name
        return not name.startswith(".") if is_folder else counts(name)

    # ---- listing ----

    def _list(self, path: str) -> set[str]:
        """List a folder; those that are new in it become stale. Gives its files."""
        above = self._folders.get(os.path.dirname(path), _Folder())
        if path != self._top and path not in above.folders:
            return set()  # it is gone
        was, now = self._folders.get(path, _Folder()), _Folder()
        self._watch(path, _OF_FOLDERS)  # first, so that no change is missed
        try:
            info = os.stat(path)
            with os.scandir(path) as entries:
                for entry in entries:
                    self._note(now, entry)
        except (FileNotFoundError, NotADirectoryError):
            if path == self._top:
                raise
            now, info = _Folder(), None
        recent = info is None or abs(time.time_ns() - info.st_mtime_ns) < RECENT_NS
        now.changed_ns = 0 if recent or info is None else info.st_mtime_ns
        if info is not None and not self._reported(info.st_dev):
            self.blind = True
        for gone in was.files - now.files:
            self._forget(gone)
        for gone in was.folders - now.folders:
            self._forget_folder(gone)
        self._folders[path] = now
        self._stale |= now.folders - was.folders
        return now.files

    def _note(self, folder: _Folder, entry: os.DirEntry[str]) -> None:
        is_folder = entry.is_dir(follow_symlinks=False)
        if not self._counts(entry.name, is_folder):
            return
        if is_folder:
            if not self._single:
                folder.folders.add(entry.path)
            return
        folder.files.add(entry.path)
        self._states.setdefault(entry.path, None)
        if entry.is_symlink():
            self._links.add(entry.path)
        else:
            self._links.discard(entry.path)
            self._watch(entry.path, _OF_FILES)

    def _forget_folder(self, path: str) -> None:
        waiting = [path]
        while waiting:
            gone = self._folders.pop(waiting[-1], _Folder())
            self._forget(waiting.pop())
            for file in gone.files:
                self._forget(file)
            waiting += gone.folders

    def _forget(self, path: str) -> None:
        self._states.pop(path, None)
        self._links.discard(path)
        watch = self._watches.pop(path, None)
        if watch is not None and self._paths.get(watch) == path and self._inotify:
            self._inotify.forget(watch)
            del self._paths[watch]

    # ---- what is known of one path ----

    def _watch(self, path: str, mask: int) -> None:
        if self._inotify is None:
            return
        try:
            watch = self._inotify.watch(path, mask)
        except (FileNotFoundError, NotADirectoryError):
            return  # it is gone again: its folder's watch reports that
        except OSError as error:  # there are no watches left, or it may not be read
            self._be_blind(path, error)
            return
        was = self._watches.get(path, watch)
        if was != watch and self._paths.get(was) == path:  # of what had this name before
            self._inotify.forget(was)
            del self._paths[was]
        self._watches[path], self._paths[watch] = watch, path

    def _be_blind(self, path: str, error: OSError) -> None:
        if not self.blind:
            log.warning("%s is looked at regularly, as the kernel reports no changes there: %s "
                        "(see fs.inotify.max_user_watches)", path, error.strerror)  # fmt: skip
        self.blind = True

    def _reported(self, device: int) -> bool:
        """Whether the kernel reports changes: of a remote file system it knows only its own."""
        if device not in self._devices:
            self._devices[device] = not _type_of(device).startswith(_REMOTE)
        return self._devices[device]

    def _check(self, path: str) -> bool:
        """Whether a file is another than before."""
        if path not in self._states:
            return False
        state: State | None = None
        with contextlib.suppress(OSError):
            info = os.stat(path)
            if stat.S_ISREG(info.st_mode):
                state = info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino
        was, self._states[path] = self._states[path], state
        return was != state


def _differs(path: str, seen: _Folder) -> bool:
    """Whether a folder may hold other names than when it was listed."""
    try:
        return not seen.changed_ns or os.stat(path).st_mtime_ns != seen.changed_ns
    except OSError:
        return True


def _type_of(device: int) -> str:
    """What kind of file system a device number is; empty: no mount has it."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", errors="replace") as mounts:
        for line in mounts:
            fields, _, more = line.partition(" - ")
            if fields.split()[2] == wanted:
                return more.split()[0]
    return ""
