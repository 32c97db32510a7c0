"""Images of modules on disk: `<state>/modules/<hash>.<kind>`, kind as in enum rf_image.

An image that cannot be stored (the disk is full) stays in this process's memory, so that its
program continues, and is stored later. Another proxy only finds images on disk: a job must not
leave this proxy before all of its images are stored. All calls may come from several threads.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rankfold.log import area
from rankfold.proxy.ptx.fatbin import IMAGE_ELF, IMAGE_FATBIN, IMAGE_LIBRARY, IMAGE_PTX

log = area(__file__)

AGAIN_S, AGAIN_MAX_S = 1.0, 60.0  # until the next attempt to store: first, and at most


@dataclass
class _Waiting:
    """An image that is not on disk yet, and the jobs that brought it."""

    image: bytes
    jobs: set[int] = field(default_factory=set)


class Images:
    """The images in `folder`, and those that wait for disk space there."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}  # by file name
        self._wait_s = AGAIN_S
        self._again_at = 0.0
        self.trouble = ""  # why images wait; "": none waits

    def find(self, digest: str) -> Iterator[tuple[Path, bytes, int]]:
        """The images on disk with this hash: the file, its content, its kind."""
        for kind in (
            IMAGE_FATBIN,
            IMAGE_PTX,
            IMAGE_ELF,
            IMAGE_LIBRARY,
        ):  # no listing: the folder may have very many files
            path = self.folder / f"{digest}.{kind}"
            with contextlib.suppress(FileNotFoundError):
                yield path, path.read_bytes(), kind

    def take(self, digest: str, image: bytes, kind: int, job: int) -> None:
        """Keep an image that `job` brought in memory until it is stored: see `store_taken`. A
        program need not wait for the disk."""
        name = f"{digest}.{kind}"
        if (self.folder / name).exists():
            return
        with self._lock:
            self._waiting.setdefault(name, _Waiting(image)).jobs.add(job)

    def store_taken(self, digest: str, kind: int) -> None:
        """Store an image that was taken, now or, if that fails, later."""
        name = f"{digest}.{kind}"
        with self._lock:
            waiting = self._waiting.get(name)
        if waiting:
            self._store(name, waiting.image)

    def store(self, job: int | None = None) -> str:
        """Try to store the images that wait (of `job`; None: all). Returns why one still waits, or
        ""."""
        with self._lock:
            names = [n for n, each in self._waiting.items() if job is None or job in each.jobs]
            todo = {name: self._waiting[name].image for name in names}
        return next(filter(None, (self._store(name, image) for name, image in todo.items())), "")

    def has_work(self) -> bool:
        """Whether to `store` again. Returns true once per attempt; the pause doubles each time."""
        now = time.monotonic()
        with self._lock:
            if not self.trouble or now < self._again_at:
                return False
            self._wait_s = min(2 * self._wait_s, AGAIN_MAX_S)
            self._again_at = now + self._wait_s
            return True

    def forget_job(self, job: int) -> None:
        """The job has left: drop images that wait and that only it has brought."""
        with self._lock:
            for each in self._waiting.values():
                each.jobs.discard(job)
            self._waiting = {name: each for name, each in self._waiting.items() if each.jobs}
            self._settle()

    def _store(self, name: str, image: bytes) -> str:
        """Store an image. Returns why it failed, or ""."""
        try:
            self._write(name, image)
        except OSError as error:
            why = f"modules cannot be stored in {self.folder}: {error.strerror or error}"
            with self._lock:
                if not self.trouble:  # logged once, until all are stored
                    self._wait_s = AGAIN_S
                    self._again_at = time.monotonic() + AGAIN_S
                    log.warning(
                        "%s; they are kept in memory, and their jobs cannot leave this "
                        "device until there is space: free some",
                        why,
                    )
                self.trouble = why
            return why
        with self._lock:
            self._waiting.pop(name, None)
            self._settle()
        return ""

    def _settle(self) -> None:
        if self.trouble and not self._waiting:
            log.info("no module waits for space in %s any longer", self.folder)
            self.trouble = ""

    def _write(self, name: str, image: bytes) -> None:
        """Write an image whole or not at all, also if the machine stops."""
        temporary = self.folder / f".{name}.{os.getpid()}.{threading.get_ident()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)  # the folder may have been removed
            with temporary.open("wb") as file:
                file.write(image)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(self.folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
