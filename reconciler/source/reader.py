"""Reads desired state from its source: a plain directory, or a branch of a git repository.

A thread of its own (`Reader`) reads a source, because disks and networks may stop answering and the
reconciler's loop must not wait for them. It returns a `Revision` when there is something new. It
never raises for the content of files: those errors are in the revision's faults. SourceError means
that the source itself cannot be read now; it is opened again repeatedly until it can be read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rankfold import legible
from rankfold.log import area
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.source import spec, trees
from rankfold.reconciler.source.commit import Commit
from rankfold.reconciler.source.folder import Files
from rankfold.reconciler.source.git import Git, GitError, is_elsewhere, masked
from rankfold.reconciler.source.invalid import Fault
from rankfold.reconciler.source.parse_cache import ParseCache
from rankfold.reconciler.source.refs import Mirror, branches, full_names, tip
from rankfold.reconciler.source.trees import with_links

log = area(__file__)

REST_S = 0.05  # a directory is read when nothing in it has changed for this long
RESTLESS_S = 10.0  # and reported as unreadable if that does not happen
LOOK_S = 0.2  # between checks for changes without inotify: targets of links, other machines
STAT_S = 0.1  # between checks of a branch's files
RECHECK_S = 5.0  # between runs of git, even if the branch's files look unchanged
FETCH_S = 5.0  # between fetches from a remote repository
AGAIN_MIN_S, AGAIN_MAX_S = 0.2, 5.0  # before a source that cannot be read is opened again


class SourceError(Exception):
    """The source cannot be read; the message explains why."""


@dataclass(frozen=True)
class Revision:
    """One state of a source. `saved_at`: wall clock of the commit or of the newest save."""

    id: str
    loaded: spec.Loaded
    saved_at: float


class Source(Protocol):
    def poll(self) -> Revision | None:
        """The current revision if it differs from that of the last call. Raises SourceError."""

    def pause(self) -> None:
        """Wait until polling is worthwhile, or until `stop` is called."""

    def stop(self) -> None:
        """Make `poll` and `pause` return soon; may be called from any thread."""

    def close(self) -> None: ...


def identity_of(description: Json) -> str:
    """The name of a source. `description`: as a client sends it, {"dir": absolute path} or {"git":
    repository, "branch": b, "path": p}. It does not depend on a password in the URL."""
    if "dir" in description:
        return f"directory {with_links(Path(description['dir']))}"
    path = description.get("path", "").strip("/")
    where = f", path {path}" if path else ""
    return f"git {masked(description['git'])}, branch {description['branch']}{where}"


def same_source(identity: str, other: str) -> bool:
    """Whether two names mean the same source now: a directory may have several names."""
    kind, _, place = identity.partition(" ")
    other_kind, _, other_place = other.partition(" ")
    if kind != other_kind or kind != "directory":
        return identity == other
    return os.path.realpath(place) == os.path.realpath(other_place)


def open_source(description: Json, state: Path) -> Source:
    if "dir" in description:
        return DirectorySource(Path(description["dir"]))
    return GitSource(description["git"], description["branch"], description.get("path", ""), state)


# ---- in a thread of its own --------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """News of a source. `error`: why it cannot be read, since `since` (wall clock)."""

    revision: Revision | None = None
    error: str = ""
    since: float = 0.0


class Reader:
    """Follows a source in a thread, and continues after any error. `examine` is called in that
    thread with what was read, and may add faults."""

    def __init__(
        self,
        description: Json,
        state: Path,
        examine: Callable[[spec.Loaded], None] = lambda _: None,
    ):
        self.identity = identity_of(description)
        self.in_parts = "dir" in description  # a save may be seen before it is complete
        self._description, self._state, self._examine = description, state, examine
        self._lock = threading.Lock()
        self._reading: Reading | None = None  # not taken yet
        self._error, self._since = "", 0.0
        self._source: Source | None = None
        self._stopped = threading.Event()
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # readable: `take` has news
        self._thread = threading.Thread(target=self._run, name="source", daemon=True)
        self._thread.start()

    def take(self) -> Reading | None:
        """The news since the last call; None: nothing."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake)
        with self._lock:
            reading, self._reading = self._reading, None
        return reading

    def close(self, wait_s: float = 0.0) -> None:
        """End the thread, and its git commands if they end within `wait_s`."""
        with self._lock:
            self._stopped.set()
            os.close(self.wake)
            if self._source:
                self._source.stop()
        self._thread.join(wait_s)

    def _run(self) -> None:
        again = AGAIN_MIN_S
        while not self._stopped.is_set():
            try:
                self._follow()
            except SourceError as error:
                problem = str(error)
            except OSError as error:
                problem = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            except Exception as error:  # noqa: BLE001 - a bug: other files may work
                problem = f"reading it failed ({type(error).__name__}); see the reconciler's log"
                record_fault("reading a source", error)
            else:
                continue
            again = AGAIN_MIN_S if problem != self._error else min(AGAIN_MAX_S, again * 2)
            self._publish(None, legible.legible(problem))
            self._stopped.wait(again)

    def _follow(self) -> None:
        """Follow the source until stopped; raises what keeps it from being read."""
        source = open_source(self._description, self._state)
        with self._lock:
            self._source = source
            if self._stopped.is_set():
                source.stop()
        try:
            while not self._stopped.is_set():
                if revision := source.poll():
                    for failure in revision.loaded.failures:
                        record_fault("reading a file", failure)
                    self._examine(revision.loaded)
                    self._publish(revision, "")
                source.pause()
        finally:
            with self._lock:
                self._source = None
            source.close()

    def _publish(self, revision: Revision | None, error: str) -> None:
        with self._lock:
            if self._stopped.is_set() or (revision is None and error == self._error):
                return
            if not self._error or not error:
                self._since = time.time()
            self._error = error
            untaken = self._reading.revision if self._reading else None
            self._reading = Reading(revision or untaken, error, self._since if error else 0.0)
            os.eventfd_write(self.wake, 1)


def record_fault(problem: str, error: Exception) -> None:
    """Log where an exception occurred, without its message, which may contain a secret."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s:\n%s%s", problem, frames, type(error).__name__)


# ---- a directory -------------------------------------------------------------------------------


class DirectorySource:
    """Every ``*.yaml`` below a directory, followed with inotify.

    Nothing marks a save as complete, so a directory is read when it has been unchanged for a while:
    a file that an editor writes in parts, or renames away and puts back, is seen once.
    """

    def __init__(self, path: Path):
        self.path = with_links(path)
        self._stopped = threading.Event()
        self._check()
        self._signature: object = None
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._files = Files(self.path)
        self._parsed = ParseCache()
        self._contents: dict[Path, tuple[object, trees.Found]] = {}  # by file: its state then

    def _check(self) -> None:
        if not self.path.exists() and (self._stopped.wait(REST_S) or not self.path.exists()):
            raise SourceError(f"{self.path} does not exist")

    def poll(self) -> Revision | None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        self._check()
        deadline = time.monotonic() + RESTLESS_S
        looked = self._files.look()
        while looked != self._signature:
            if self._stopped.wait(REST_S):
                return None
            before, looked = looked, self._files.look()
            if looked == before:
                loaded = self._load()
                if self._files.look() == looked:
                    self._signature = looked
                    return directory_revision(loaded)
                self._contents.clear()
            if time.monotonic() > deadline:
                raise SourceError(f"{self.path} cannot be read: its files change all the time")
        return None

    def _load(self) -> spec.Loaded:
        """Read the files that differ from those of the last time, and check all."""
        resolved = self.path.resolve()
        before, self._contents = self._contents, {}

        def read(file: Path, place: Path) -> trees.Found:
            key = (resolved, self._files.state(file))
            known, cached = before.get(file, (None, None))
            if cached is None or key[1] is None or known != key:
                cached = trees.read(file, place)
            self._contents[file] = (key, cached)
            return cached

        return spec.load_dir(
            self.path, files_at=lambda _: self._files.paths(), read=read, parsed=self._parsed
        )

    def pause(self) -> None:
        select.select([self._event, *self._files.descriptors()], [], [], LOOK_S)

    def stop(self) -> None:
        self._stopped.set()
        with contextlib.suppress(OSError):
            os.eventfd_write(self._event, 1)

    def close(self) -> None:
        self._files.close()
        os.close(self._event)


def directory_revision(loaded: spec.Loaded) -> Revision:
    """The revision of a directory. A directory has no commits, so its id is a digest of its
    content. Faults are included, so that a refused state never has the id of the one in use."""
    said = sorted(loaded.desired.pools.items()), sorted(loaded.desired.jobs.items())
    text = repr((*said, [str(fault) for fault in loaded.faults]))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Revision(f"sha256:{digest}", loaded, max(loaded.saved_at.values(), default=time.time()))


# ---- a branch ----------------------------------------------------------------------------------

_mirrors: defaultdict[Path, threading.Lock] = defaultdict(threading.Lock)


class GitSource:
    """The files of one commit, given by a branch, a tag or a hash. The work tree is never read.

    A remote repository has a mirror in the state directory, updated every `FETCH_S`.
    """

    def __init__(self, repository: str, branch: str, path: str, state: Path):
        self.branch, self.path = branch, path.strip("/")
        url = repository if is_elsewhere(repository) else ""
        self.url = masked(url)
        self._stopped = threading.Event()
        self._fetched_at: float | None = None
        self._commit = ""
        self._parsed = ParseCache()
        self._stamp: object = None
        self._looked_at = 0.0
        if self.url:
            digest = hashlib.sha256(f"{self.url}\n{branch}".encode()).hexdigest()[:16]
            self.repo = state / "git" / digest
        else:
            self.repo = Path(repository).expanduser().absolute()
        self.git = Git(self.repo, self._stopped, url)
        self._copy = Mirror(self.repo, self.git, self.url, branch)
        self._opened = False

    def _open(self) -> None:
        common = Path(self.git.text("rev-parse", "--git-common-dir"))
        self._common = common if common.is_absolute() else (self.repo / common).resolve()
        bare = self.git.text("rev-parse", "--is-bare-repository") == "true"
        self._top = None if bare else self.git.text("rev-parse", "--show-toplevel")
        self._opened = True

    def _mirror(self) -> None:
        """Update the mirror if that is due. Raises GitError."""
        now = time.monotonic()
        if self._fetched_at is None or now - self._fetched_at >= FETCH_S:
            with _mirrors[self.repo]:
                self._copy.update()
            self._fetched_at = time.monotonic()

    def _tip(self) -> str:
        if commit := tip(self.git, self.branch):
            return commit
        names = self._copy.branches() if self.url else branches(self.git)
        there = f"there are {', '.join(names)}" if names else "nothing is committed there yet"
        where = self.url or self.repo
        raise SourceError(f"{where} has no branch {self.branch}: {there}")

    def _refs_stamp(self) -> object:
        """A value that changes whenever the branch does; cheaper than running git."""
        stamp: list[object] = []
        for name in (*full_names(self.branch), "packed-refs"):
            try:
                info = (self._common / name).stat()
                stamp.append((info.st_mtime_ns, info.st_ino))
            except OSError:
                stamp.append(None)
        return tuple(stamp)

    def poll(self) -> Revision | None:
        try:
            if self.url:
                self._mirror()
            if not self._opened:
                self._open()
            return self._poll_refs()
        except GitError as error:
            where = f"cannot fetch {self.url}: " if self.url else ""
            raise SourceError(f"{where}{error}") from error

    def _poll_refs(self) -> Revision | None:
        stamp, now = self._refs_stamp(), time.monotonic()
        if stamp == self._stamp and now - self._looked_at < RECHECK_S:
            return None
        commit = self._tip()
        self._stamp, self._looked_at = stamp, now
        if commit == self._commit:
            return None
        revision = Revision(commit, self._load(commit), self._committed_at(commit))
        self._commit = commit
        return revision

    def _committed_at(self, commit: str) -> float:
        """When the branch got this commit: exact to the millisecond if its ref is a file."""
        ref = self._common / "refs/heads" / self.branch
        try:
            if ref.read_text().strip() == commit:
                return ref.stat().st_mtime
        except OSError:
            pass
        return float(self.git.text("show", "-s", "--format=%ct", commit))

    def _load(self, commit: str) -> spec.Loaded:
        found = Commit(self.git, commit, self.path, self._top).files()
        faults = []
        if not found:
            where = legible.name(self.path) or "the repository"
            faults.append(Fault(where, 1, "-", f"holds no *.yaml file at {commit[:12]}"))
        return spec.load_found(found, faults, self._top, self._parsed)

    def pause(self) -> None:
        self._stopped.wait(STAT_S)

    def stop(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        """Does nothing: no resource is held."""
