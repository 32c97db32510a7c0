"""Keeps the list of desired-state files at a place current, at a cost that depends only on those
files.

A folder is listed once, and again only when an entry named like a folder or a file of desired state
is created, removed or renamed in it. A file is examined when the kernel reports a change of it.
Writes to other files cost nothing, however many there are. Each folder needs a watch.
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

RECHECK_S = 5.0  # between checks of all files, for changes that the kernel does not report
RECENT_NS = 2_000_000_000  # within this time a folder may change twice with one timestamp
_OF_FOLDERS = (
    inotify.CREATE
    | inotify.DELETE
    | inotify.MOVED_FROM
    | inotify.MOVED_TO
    | inotify.DELETE_SELF
    | inotify.MOVE_SELF
    | inotify.ONLYDIR
)
_OF_FILES = inotify.MODIFY | inotify.ATTRIB | inotify.CLOSE_WRITE
_REMOTE = (
    "nfs",
    "cifs",
    "smb",
    "fuse",
    "9p",
    "ceph",
    "afs",
    "lustre",
    "gfs",
    "ocfs",
    "vboxsf",
    "virtiofs",
    "gluster",
)
State = tuple[int, ...]  # of a file: its times, size and inode


@dataclass
class _Folder:
    """A folder as it was when it was listed."""

    files: set[str] = field(default_factory=set)  # paths
    folders: set[str] = field(default_factory=set)
    changed_ns: int = 0  # its mtime then; 0: it may have changed since


class Files:
    """The files at `place`: a folder or one file. Raises OSError for a folder that cannot be
    read."""

    def __init__(self, place: Path):
        self.place = place
        self._place: tuple[int, ...] = ()
        self._inotify: inotify.Inotify | None = None
        self._begin()

    def _begin(self) -> None:
        self.close()
        self.blind = False  # no reports: a folder is listed again when its mtime changes
        self._single = not self.place.is_dir()
        self._top = str(self.place.parent if self._single else self.place)
        self._stale = {self._top}
        self._folders: dict[str, _Folder] = {}
        self._states: dict[str, State | None] = {}  # by path; None: not a regular file
        self._links: set[str] = set()  # which of these paths are symbolic links
        self._paths: dict[int, str] = {}  # by watch number
        self._watches: dict[str, int] = {}
        self._devices: dict[int, bool] = {}  # by st_dev: whether changes are reported
        self._checked_at = time.monotonic()
        self._last_state: object = None
        try:
            self._inotify = inotify.Inotify()
        except OSError as error:
            self._be_blind(self._top, error)

    def close(self) -> None:
        if self._inotify:
            self._inotify.close()
            self._inotify = None

    def descriptors(self) -> list[int]:
        """When one of these is readable, `look` may find a change."""
        return [self._inotify.fileno()] if self._inotify else []

    def paths(self) -> list[Path]:
        """The files that the last `look` found."""
        return sorted(Path(path) for path, state in self._states.items() if state)

    def state(self, path: Path) -> State | None:
        """The state of a file as the last `look` found it; None for a link, whose target may be
        another file of the same state."""
        return None if str(path) in self._links else self._states.get(str(path))

    def look(self) -> object:
        """The current state: equal to the result of an earlier call if nothing has changed."""
        place = self._identity()
        if self._place and place != self._place:  # the name refers to another folder now
            self._begin()
        self._place = place
        due = self._read_events() | self._links  # the targets of links are not watched
        if self.blind:
            self._stale |= {
                path for path, folder in self._folders.items() if _differs(path, folder)
            }
        listed = bool(self._stale)
        while self._stale:
            due |= self._list(self._stale.pop())
        if self.blind or time.monotonic() - self._checked_at > RECHECK_S:
            self._checked_at = time.monotonic()
            due = due | self._states.keys()
        changed = [path for path in due if self._check(path)]
        if changed or listed or self._last_state is None:
            self._last_state = tuple(sorted(each for each in self._states.items() if each[1]))
        return self._last_state

    def _identity(self) -> tuple[int, ...]:
        info = os.stat(self._top)
        return info.st_dev, info.st_ino, self.place.is_dir()

    def _read_events(self) -> set[str]:
        """Process the kernel's reports: mark folders to list as stale, return files to check."""
        files: set[str] = set()
        for event in self._inotify.read() if self._inotify else ():
            path = self._paths.get(event.watch, "")
            if event.mask & inotify.OVERFLOW:
                self._stale |= self._folders.keys()
                files |= self._states.keys()
            elif path in self._states:
                files.add(path)
            elif path and not event.name:  # moved or removed: another may have its name
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
        """List a folder, and mark new folders in it as stale. Returns its files."""
        above = self._folders.get(os.path.dirname(path), _Folder())
        if path != self._top and path not in above.folders:
            return set()  # it was removed
        was, now = self._folders.get(path, _Folder()), _Folder()
        self._watch(path, _OF_FOLDERS)  # before listing, so that no change is missed
        try:
            info = os.stat(path)
            with os.scandir(path) as entries:
                noted = [entry for entry in entries if self._note(now, entry)]
        except (FileNotFoundError, NotADirectoryError):
            if path == self._top:
                raise
            noted, now, info = [], _Folder(), None
        recent = info is None or abs(time.time_ns() - info.st_mtime_ns) < RECENT_NS
        now.changed_ns = 0 if recent or info is None else info.st_mtime_ns
        if info is not None and not self._reported(info.st_dev):
            self.blind = True
        for gone in was.files - now.files:
            self._forget(gone)
        for gone in was.folders - now.folders:
            self._forget_folder(gone)
        for file in noted:  # after that: a file may have the name that a folder had
            self._follow(file)
        self._folders[path] = now
        self._stale |= now.folders - was.folders
        return now.files

    def _note(self, folder: _Folder, entry: os.DirEntry[str]) -> bool:
        """Add an entry to its folder; returns whether it is a file to follow."""
        is_folder = entry.is_dir(follow_symlinks=False)
        if not self._counts(entry.name, is_folder):
            return False
        if not is_folder:
            folder.files.add(entry.path)
        elif not self._single:
            folder.folders.add(entry.path)
        return not is_folder

    def _follow(self, entry: os.DirEntry[str]) -> None:
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
            return  # removed again: its folder's watch reports that
        except OSError as error:  # no watches are left, or it is not readable
            self._be_blind(path, error)
            return
        was = self._watches.get(path, watch)
        if was != watch and self._paths.get(was) == path:  # of the file that had this name before
            self._inotify.forget(was)
            del self._paths[was]
        self._watches[path], self._paths[watch] = watch, path

    def _be_blind(self, path: str, error: OSError) -> None:
        if not self.blind:
            log.warning(
                "%s is polled, as the kernel reports no changes there: %s "
                "(see fs.inotify.max_user_watches)",
                path,
                error.strerror,
            )
        self.blind = True

    def _reported(self, device: int) -> bool:
        """Whether the kernel reports all changes; on a remote file system it reports only its
        own."""
        if device not in self._devices:
            self._devices[device] = not _type_of(device).startswith(_REMOTE)
        return self._devices[device]

    def _check(self, path: str) -> bool:
        """Update the state of a file; return whether it has changed."""
        if path not in self._states:
            return False
        state: State | None = None
        with contextlib.suppress(OSError):
            info = os.stat(path)
            if stat.S_ISREG(info.st_mode):
                state = info.st_mtime_ns, info.st_ctime_ns, info.st_size, info.st_ino
        was, self._states[path] = self._states[path], state
        return was != state


def _differs(path: str, folder: _Folder) -> bool:
    """Whether the names in a folder may have changed since it was listed."""
    try:
        return not folder.changed_ns or os.stat(path).st_mtime_ns != folder.changed_ns
    except OSError:
        return True


def _type_of(device: int) -> str:
    """The type of file system with this device number; empty: no mount has it."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", errors="replace") as mounts:
        for line in mounts:
            fields, _, more = line.partition(" - ")
            if fields.split()[2] == wanted:
                return more.split()[0]
    return ""
