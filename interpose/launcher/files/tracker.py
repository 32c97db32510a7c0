"""Tracks the names that a rank makes, writes, renames, links or removes: `fanotify` reports them to
the launcher, pid 1 of the rank's namespace. The program neither waits nor notices.

The files under these names are inspected when the rank is frozen (saving.py), so the order of
events does not matter. Names that the rank has made also go to a journal on disk (journal.py).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from rankfold import fanotify
from rankfold.fanotify import Event, Node, Place
from rankfold.interpose.launcher.config import Config
from rankfold.interpose.launcher.files import journal
from rankfold.interpose.launcher.files.journal import Name
from rankfold.interpose.launcher.rank import sandbox
from rankfold.log import area

log = area(__file__)

PAUSE_S = 0.05  # between two reads: all events on a name in that time become one
NAMES_MAX = 20_000  # above this number, names that are no longer needed are dropped
_OURS = 1  # the launcher's pid; most of its workers run only while the rank is frozen
_MADE = fanotify.CREATE | fanotify.MOVED_TO
_KERNELS = ("/proc", "/sys", "/dev")
_SHARED_MEMORY = "/dev/shm"


class Tracker:
    """The names that one rank has touched. `names`: in the order of their first event. `missed`:
    why some may be missing. `life`: as in journal.py."""

    def __init__(self, config: Config, running: Callable[[], bool]):
        """`running`: whether events are now the rank's."""
        self.names: dict[str, Name] = {}
        self.life = secrets.token_hex(8)
        self.missed = ""
        self.journal = journal_of(config)
        self.previous = self.journal.with_suffix(".kept")  # see previous.py
        self.is_ours = Ours(config)
        self.workers: set[int] = set()  # pids of the launcher's workers while the rank runs
        self._logs = config.logs
        self._running = running
        self._group: fanotify.Group | None = None
        self._file = -1  # descriptor of the journal, once something was written
        self._lines = 0  # lines in the journal
        self._paths: dict[Node, str | None] = {}  # paths of folders, while a batch is read
        self._places: dict[Node, Place] = {}  # of folders that it made, renamed or removed
        self._before: dict[str, str] = {}  # old names of renamed folders
        self._enough = NAMES_MAX
        self._unnamed: dict[Place, str] = {}  # paths too long for any call: a folder above each

    def begin(self, afresh: bool) -> None:
        """Receive events from now on. `afresh`: discard the journal of an earlier rank."""
        if afresh:
            self.journal.unlink(missing_ok=True)
        self.forget_previous()
        try:
            self._group = fanotify.Group()
            unseen = fanotify.mark_all(self._group)
        except OSError as error:
            self.close()
            log.warning("the rank's files are not tracked, and not saved: %s", error)
            return
        for path, why in unseen.items():
            log.warning("files in %s are not tracked, and not saved: %s", path, why)
        with contextlib.suppress(OSError):  # otherwise each line of any rank wakes all launchers
            self._group.ignore(self._logs)

    @property
    def watches(self) -> bool:
        return self._group is not None

    def fileno(self) -> int:
        assert self._group is not None
        return self._group.fileno()

    def trouble(self) -> str:
        """Why the files of the rank cannot be saved; empty: they can."""
        if self.missed:
            return self.missed
        try:
            self._unnamed = {
                place: at for place, at in self._unnamed.items() if self._exists(place)
            }
        except OSError as error:
            return f"accesses of the rank to files were not tracked: {error}"
        for folder in self._unnamed.values():
            return (
                f"the name of a file that it has made below {folder} is too long: move or remove it"
            )
        return ""

    def _exists(self, place: Place) -> bool:
        folder = self._group.opened(place.folder) if self._group else None
        if folder is None:
            return False
        try:
            os.stat(place.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        finally:
            os.close(folder)
        return True

    def forget_previous(self) -> None:
        """Remove what was kept of the last snapshot."""
        shutil.rmtree(self.previous, ignore_errors=True)

    def close(self) -> None:
        if self._group:
            self._group.close()
            self._group = None

    def reload(self) -> None:
        """The rank has been restored: reload names from its journal. Raises OSError."""
        life, self.names = journal.read(self.journal)
        self.life, self.missed = life or self.life, ""
        self._places, self._before, self._unnamed = {}, {}, {}
        self._close_journal()

    def read(self) -> None:
        """Read the pending events. Events while the rank is frozen are not the rank's, and are
        dropped."""
        if self._group is None:
            return
        try:
            events = [e for e in self._group.events(_OURS) if e.pid not in self.workers]
            if self._running():
                self._take(events)
        except OSError as error:
            self.missed = f"accesses of the rank to files were not tracked: {error}"
            log.error("%s", self.missed)

    # ---- one batch

    def _take(self, events: list[Event]) -> None:
        self._paths.clear()
        for event in events:  # first: a later event may refer to a folder that is gone
            if event.mask & fanotify.ONDIR and event.target and event.place:
                self._places[event.target] = event.place
        fresh: dict[str, Name] = {}
        for event in events:
            if event.mask & fanotify.OVERFLOW:
                self.missed = "the kernel had no memory to report accesses to the rank's files"
            if event.mask & fanotify.RENAME:
                self._renamed(event, fresh)
            else:
                path = self._path(event.place) or self._target(event)
                if path:
                    made = bool(event.mask & _MADE)
                    node = event.target.text if made and event.target else ""
                    wrote = bool(event.mask & (fanotify.MODIFY | fanotify.CLOSE_WRITE))
                    self._note(path, Name(made, node, wrote=wrote), fresh)
        self._write(fresh)
        if len(self.names) > self._enough:
            self._forget_some()

    def _renamed(self, event: Event, fresh: dict[str, Name]) -> None:
        """Note a rename. The names of everything in a renamed folder change, too."""
        old, new = self._path(event.old), self._path(event.place)
        node = event.target.text if event.target else ""
        was = self.names.get(old or "", _UNKNOWN)
        origin = was.origin if was.node == node else old or ""
        if old:
            self._note(old, _UNKNOWN, fresh)
        if new:
            self._note(new, Name(True, node, origin if origin != new else "", was.wrote), fresh)
        if event.mask & fanotify.ONDIR and new:
            if old:
                self._before[new] = old
            self._paths.clear()
            earlier, path = [new], new
            while path := self._before.get(path, ""):
                if path in earlier:
                    break
                earlier.append(path)
            for below in _below(new):
                for folder in earlier[1:]:
                    self._note(folder + below, _UNKNOWN, fresh)
                was = self.names.get((old or "") + below, _UNKNOWN)
                self._note(new + below, was._replace(made=True), fresh)

    def _note(self, path: str, name: Name, fresh: dict[str, Name]) -> None:
        known = self.names.get(path)
        if known is None and self.is_ours(path):
            return
        if known is not None:
            if not name.node or name.node == known.node:
                name = name._replace(wrote=name.wrote or known.wrote)
            if not name.node:
                name = name._replace(node=known.node, origin=known.origin)
            name = name._replace(made=known.made)
        if name != known:
            self.names[path] = fresh[path] = name

    def _target(self, event: Event) -> str | None:
        """The path for an event without a name: the file was opened by its handle, or is gone."""
        if event.target is None or event.place is not None:
            return None
        return self._named(event.target)

    def _named(self, node: Node) -> str | None:
        assert self._group is not None
        try:
            return self._group.path(node)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            self._unnamed[Place(node, ".")] = self._group.above(node)
            return None

    def _path(self, place: Place | None) -> str | None:
        if place is None:
            return None
        folder = self._folder(place.folder)
        if folder is None or place.name == ".":
            return folder
        path = os.path.join(folder, place.name)
        if len(os.fsencode(path)) < _PATH_MAX:
            return path
        self._unnamed[place] = folder
        return None

    def _folder(self, node: Node, depth: int = 0) -> str | None:
        if node not in self._paths:
            path = self._named(node)
            if path is None and node in self._places and depth < _DEPTH_MAX:
                place = self._places[node]
                above = self._folder(place.folder, depth + 1)
                path = os.path.join(above, place.name) if above else None
            self._paths[node] = path
        return self._paths[node]

    def _write(self, fresh: dict[str, Name]) -> None:
        if not fresh:
            return
        try:
            if self._lines > 2 * len(self.names) + NAMES_MAX:  # many lines are superseded
                journal.write(self.journal, self.life, self.names)
                self._close_journal()
                self._lines = len(self.names)
                return
            if self._file < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                self._file = os.open(self.journal, flags, 0o600)
                if os.fstat(self._file).st_size == 0:
                    os.write(self._file, journal.head(self.life))
            os.write(self._file, journal.lines(fresh))
            self._lines += len(fresh)
        except OSError as error:
            log.warning("%s: %s", self.journal, error)

    def _close_journal(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _forget_some(self) -> None:
        """Forget names that the rank made and that are gone, except the newest: programs reuse
        some."""
        made = [path for path, name in self.names.items() if name.made]
        gone = [path for path in made if not os.path.lexists(path)]
        for path in gone[: -NAMES_MAX // 4]:
            del self.names[path]
        self._places.clear()
        self._enough = max(NAMES_MAX, 2 * len(self.names))


_DEPTH_MAX = 100
_PATH_MAX = 4096  # bytes of a path that a call accepts, with the final NUL
_UNKNOWN = Name(False)


def journal_of(config: Config) -> Path:
    return Path(config.exit_file).with_suffix(".files")


class Ours:
    """Whether a path is not the rank's: a hidden folder, a log, or a file of the kernel."""

    def __init__(self, config: Config):
        real = os.path.realpath
        self._work = real(config.workdir)
        self._hidden = tuple(real(folder) for folder in config.hidden)
        self._logs = real(config.logs)

    def __call__(self, path: str) -> bool:
        if _within(path, self._logs) or _within(path, sandbox.FOLDER):
            return True
        for folder in self._hidden:
            if _within(path, folder):
                return not (_within(self._work, folder) and _within(path, self._work))
        kernels = any(_within(path, folder) for folder in _KERNELS)
        return kernels and not _within(path, _SHARED_MEMORY)


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def _below(folder: str) -> list[str]:
    """All names below a folder, each with a leading slash; unreadable folders are skipped."""
    names, waiting = [], [""]
    while waiting:
        at = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(folder + at) as entries:
            for entry in entries:
                names.append(f"{at}/{entry.name}")
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(names[-1])
    return names
