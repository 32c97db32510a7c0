"""A file system for fsspec, in memory, that a test disturbs: it fails, is full, or who uses it is
killed; and it can let several users act one operation at a time, in any order."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem


class Killed(BaseException):
    """The end of a process, as far as a store can tell."""


class Disk:
    """The files of several file systems. Calls `before(operation, path)` first, `after` last."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.operations = 0
        self.before: Callable[[str, str], None] = lambda operation, path: None
        self.after: Callable[[str, str], None] = lambda operation, path: None

    def quiet(self) -> None:
        self.before = self.after = lambda operation, path: None

    def fail(self, at: int, how: str) -> None:
        """At the operation of this number, counted from now: "killed" before it, "killed after" it,
        "full" where it writes, "unreachable" from then on."""
        first = self.operations

        def before(operation: str, path: str) -> None:
            number = self.operations - first - 1
            if how == "killed" and number == at:
                raise Killed
            if how == "unreachable" and number >= at:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
            if how == "full" and number >= at and operation == "create":
                raise OSError(errno.ENOSPC, "No space left on device")

        def after(operation: str, path: str) -> None:
            if how == "killed after" and self.operations - first - 1 == at:
                raise Killed

        self.before, self.after = before, after

    def option(self) -> dict[str, Any]:
        return {"disk": self}


class Faulty(AbstractFileSystem):  # type: ignore[misc]
    protocol = "faulty"
    cachable = False

    def __init__(self, disk: Disk, **options: Any):
        super().__init__(**options)
        self.disk = disk

    def _does(self, operation: str, path: str) -> str:
        self.disk.operations += 1
        self.disk.before(operation, path)
        return str(self._strip_protocol(path))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        name = self._does("create", path)
        assert mode == "create", "a store writes nothing over"
        if name in self.disk.files:
            raise FileExistsError(name)
        self.disk.files[name] = value
        self.disk.after("create", path)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        name = self._does("get", path)
        if name not in self.disk.files:
            raise FileNotFoundError(name)
        return self.disk.files[name][start:end]

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        folder = self._does("list", path).rstrip("/") + "/"
        entries: dict[str, dict[str, Any]] = {}
        for name, data in list(self.disk.files.items()):
            if name.startswith(folder):
                first, _slash, rest = name[len(folder) :].partition("/")
                kind = "directory" if rest else "file"
                entries[first] = {"name": folder + first, "type": kind, "size": len(data)}
        if not entries:
            raise FileNotFoundError(folder)
        return list(entries.values())

    def rm_file(self, path: str) -> None:
        name = self._does("remove", path)
        if self.disk.files.pop(name, None) is None:
            raise FileNotFoundError(name)
        self.disk.after("remove", path)


fsspec.register_implementation("faulty", Faulty, clobber=True)


class Turns:
    """Runs several bodies, each until its next operation on the disk, in the order that `choose`
    draws from those that are not done. An exception of one is raised in the end."""

    def __init__(self, disk: Disk, choose: Callable[[Sequence[int]], int]):
        self.disk, self.choose = disk, choose
        self._go: dict[int, threading.Semaphore] = {}
        self._stopped = threading.Semaphore(0)
        self._ended: set[int] = set()
        self._raised: list[BaseException] = []

    def run(self, *bodies: Callable[[], None]) -> None:
        threads = [threading.Thread(target=self._body, args=(n, b)) for n, b in enumerate(bodies)]
        self._go = {n: threading.Semaphore(0) for n in range(len(bodies))}
        numbers = {thread: n for n, thread in enumerate(threads)}

        def before(operation: str, path: str) -> None:
            number = numbers.get(threading.current_thread())
            if number is not None:  # else a thread that works for one of them
                self._stopped.release()
                self._go[number].acquire()

        for thread in threads:
            thread.start()
        self.disk.before = before
        while alive := [n for n in numbers.values() if n not in self._ended]:
            self._go[self.choose(alive)].release()
            self._stopped.acquire()
        self.disk.quiet()
        for thread in threads:
            thread.join()
        if self._raised:
            raise self._raised[0]

    def _body(self, number: int, body: Callable[[], None]) -> None:
        self._go[number].acquire()
        try:
            body()
        except BaseException as error:  # noqa: BLE001 - raised in the end
            self._raised.append(error)
        self._ended.add(number)
        self._stopped.release()
