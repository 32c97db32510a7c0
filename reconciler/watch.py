"""Where desired state comes from: a plain directory, or a branch of a git repository.

A source is polled by the daemon's loop (and wakes it through a descriptor where it can); it gives
a `Revision` when there is something new. It never raises for what people wrote: that is in the
revision's faults. SourceError means that the source itself cannot be read now.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rankfold.reconciler import spec
from rankfold.reconciler.model import Json

RECHECK_S = 5.0  # look again even if no notification came
FETCH_S = 5.0  # between fetches of a repository elsewhere
GIT_TIMEOUT_S = 60.0


class SourceError(Exception):
    """The source cannot be read; the message says why."""


@dataclass(frozen=True)
class Revision:
    """One state of a source. `saved_at`: wall clock of the commit or the save, by file."""

    id: str
    loaded: spec.Loaded
    saved_at: float


class Source(Protocol):
    identity: str

    def poll(self) -> Revision | None:
        """The current revision if it is another than at the last call."""

    def wake_fd(self) -> int | None:
        """A descriptor that becomes readable when it is worth polling."""

    def close(self) -> None: ...


def open_source(description: Json, state: Path) -> Source:
    """From what a client sends: {"dir": path} or {"git": repo, "branch": b, "path": p}."""
    if "dir" in description:
        return DirectorySource(Path(description["dir"]))
    return GitSource(description["git"], description["branch"], description.get("path", ""), state)


class DirectorySource:
    """Every ``*.yaml`` below a directory, followed with inotify and a timer."""

    def __init__(self, path: Path):
        self.path = path.resolve()
        if not self.path.exists():
            raise SourceError(f"{self.path} is not there")
        self.identity = f"directory {self.path}"
        self._signature: object = None
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._observer = self._watch()

    def _watch(self) -> Any:
        from watchdog.events import FileSystemEvent, FileSystemEventHandler
        from watchdog.observers import Observer

        event = self._event

        class Wake(FileSystemEventHandler):
            def on_any_event(self, event_: FileSystemEvent) -> None:
                if event_.event_type in ("created", "modified", "moved", "deleted"):
                    with contextlib.suppress(OSError):
                        os.eventfd_write(event, 1)

        observer = Observer()
        folder = self.path if self.path.is_dir() else self.path.parent
        try:
            observer.schedule(Wake(), str(folder), recursive=True)
            observer.start()
        except OSError:
            return None  # no inotify watches left: the timer does it
        return observer

    def wake_fd(self) -> int | None:
        return self._event

    def poll(self) -> Revision | None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._event)
        signature = self._look()
        if signature == self._signature:
            return None
        loaded = spec.load_dir(self.path)
        if self._look() != signature:
            return None  # it changes under our eyes: the next poll sees it whole
        self._signature = signature
        return directory_revision(loaded)

    def _look(self) -> object:
        found = []
        for file in spec.yaml_files(self.path):
            with contextlib.suppress(OSError):
                info = file.stat()
                found.append((str(file), info.st_mtime_ns, info.st_size, info.st_ino))
        return tuple(found)

    def close(self) -> None:
        if self._observer:
            self._observer.stop()
            self._observer.join()
        os.close(self._event)


def directory_revision(loaded: spec.Loaded) -> Revision:
    """A directory has no commits: its revision is a digest of what it says, faults included, so
    that what is refused is not named as what runs."""
    said = sorted(loaded.desired.pools.items()), sorted(loaded.desired.jobs.items())
    text = repr((*said, [str(fault) for fault in loaded.faults]))
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Revision(f"sha256:{digest}", loaded, max(loaded.saved_at.values(), default=time.time()))


class GitSource:
    """The files of one commit: the tip of a branch. The working tree is never read."""

    def __init__(self, repository: str, branch: str, path: str, state: Path):
        self.branch, self.path = branch, path.strip("/")
        local = Path(repository).expanduser()
        self._fetcher: _Fetcher | None = None
        if local.exists():
            self.repo = local.absolute()
            shown = str(self.repo)
        else:
            self.repo = state / "git" / hashlib.sha256(repository.encode()).hexdigest()[:16]
            self._fetcher = _Fetcher(repository, self.repo)
            shown = repository
        where = f", path {self.path}" if self.path else ""
        self.identity = f"git {shown}, branch {branch}{where}"
        self._commit = ""
        self._stamp: object = None
        self._looked_at = 0.0
        common = self._git("rev-parse", "--git-common-dir").strip()
        self._common = (
            (self.repo / common).resolve() if not Path(common).is_absolute() else Path(common)
        )
        bare = self._git("rev-parse", "--is-bare-repository").strip() == "true"
        self._top = None if bare else self._git("rev-parse", "--show-toplevel").strip()
        self._tip()

    def wake_fd(self) -> int | None:
        return None

    def _git(self, *arguments: str) -> str:
        return git(self.repo, *arguments).decode(errors="replace")

    def _tip(self) -> str:
        try:
            return self._git(
                "rev-parse", "--verify", f"refs/heads/{self.branch}^{{commit}}"
            ).strip()
        except SourceError as error:
            names = self._git("for-each-ref", "--format=%(refname:short)", "refs/heads").split()
            there = f"there are {', '.join(names)}" if names else "nothing is committed there yet"
            raise SourceError(f"{self.repo} has no branch {self.branch}: {there}") from error

    def _refs_stamp(self) -> object:
        """Changes whenever the branch does: asking git costs a process each time."""
        stamp: list[object] = []
        for file in (self._common / "refs/heads" / self.branch, self._common / "packed-refs"):
            try:
                info = file.stat()
                stamp.append((info.st_mtime_ns, info.st_ino))
            except OSError:
                stamp.append(None)
        return tuple(stamp)

    def poll(self) -> Revision | None:
        if self._fetcher and self._fetcher.error:
            raise SourceError(self._fetcher.error)
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
        """When the branch came to this commit: to the millisecond if its ref is a file."""
        ref = self._common / "refs/heads" / self.branch
        try:
            if ref.read_text().strip() == commit:
                return ref.stat().st_mtime
        except OSError:
            pass
        return float(self._git("show", "-s", "--format=%ct", commit).strip())

    def _load(self, commit: str) -> spec.Loaded:
        texts, faults = {}, []
        names = self._git(
            "ls-tree", "-r", "-z", "--full-tree", "--name-only", commit, "--", self.path or "."
        )
        for name in filter(None, names.split("\0")):
            hidden = any(part.startswith(".") for part in Path(name).parts)
            if Path(name).suffix in (".yaml", ".yml") and not hidden:
                try:
                    texts[name] = git(self.repo, "cat-file", "blob", f"{commit}:{name}").decode()
                except UnicodeDecodeError as error:
                    faults.append(spec.Fault(name, 1, "-", f"cannot be read: {error}"))
        if not texts:
            where = self.path or "the repository"
            faults.append(spec.Fault(where, 1, "-", f"holds no *.yaml file at {commit[:12]}"))
        loaded = spec.load_texts(texts, dict.fromkeys(texts, self._top) if self._top else {})
        loaded.faults = sorted({*faults, *loaded.faults})
        return loaded

    def close(self) -> None:
        if self._fetcher:
            self._fetcher.close()


class _Fetcher:
    """A mirror of a repository elsewhere, fetched in a thread: networks hang, the loop must not."""

    def __init__(self, url: str, mirror: Path):
        self.url, self.mirror, self.error = url, mirror, ""
        self._stop = threading.Event()
        if not (mirror / "HEAD").exists():
            mirror.parent.mkdir(parents=True, exist_ok=True)
            git(Path("/"), "clone", "--mirror", "--quiet", "--", url, str(mirror))
        self._thread = threading.Thread(target=self._run, name="fetch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(FETCH_S):
            try:
                git(self.mirror, "fetch", "--quiet", "--prune")
                self.error = ""
            except SourceError as error:
                self.error = f"cannot fetch {self.url}: {error}"

    def close(self) -> None:
        self._stop.set()


def git(repo: Path, *arguments: str) -> bytes:
    """Run git in `repo`, deaf to the caller's GIT_* variables. Raises SourceError."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(repo), *arguments],
            capture_output=True, stdin=subprocess.DEVNULL, env=env, timeout=GIT_TIMEOUT_S,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SourceError("git is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise SourceError(f"git {arguments[0]} took over {GIT_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace").strip()
        lines = text.splitlines()
        fatal = [line.removeprefix("fatal: ") for line in lines if line.startswith("fatal: ")]
        reason = (fatal or lines or [f"git {arguments[0]} failed"])[0]
        raise SourceError(f"{repo}: {reason}" if "not a git repository" in reason else reason)
    return done.stdout
