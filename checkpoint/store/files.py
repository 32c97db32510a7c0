"""The operations that the store needs of a file system, for any that fsspec opens, and for local
ones.

There are five operations. Every file is written once, whole, and never again: `create` either makes
it or finds that it exists; several machines coordinate only by that and by the order of operations.
A listing shows what was created before it began, and nothing that was removed before: S3 and local
file systems guarantee that.

fsspec's local file system writes in place and syncs nothing, and its transactions use another
folder. So `LocalFiles` writes and lists by itself: a file is written without a name, synced, and
then linked to its name, so that a process that dies never leaves it incomplete; `sync` syncs the
folders.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rankfold.checkpoint.store.errors import Full, Missing, StoreError, Unavailable

Data = bytes | bytearray | memoryview
AGAIN = "what was saved so far is kept; make sure that the store is reachable, then save again"
FREE_SPACE = "free some space, or use another store; what was saved so far is kept"
PART = ".part"  # suffix of an incomplete file, where one needs a name

_MEMORY = threading.Lock()  # fsspec's memory file system checks first and writes afterwards
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Files:
    """A store's files. Names are relative to the store's URL. Every error is a `StoreError`."""

    def __init__(self, fs: Any, root: str, url: str):
        self.fs, self.root, self.url = fs, root.rstrip("/"), url
        self.pending: dict[int, str] = {}  # thread → the name for which it waits
        self.ended = 0  # operations; changes whenever one ends

    def create(self, name: str, data: Data) -> bool:
        """Create a file, whole or not at all. Returns False if it exists already."""
        with self._named(name):
            try:
                with _MEMORY if self.fs.protocol == "memory" else contextlib.nullcontext():
                    self.fs.pipe_file(self._path(name), bytes(data), mode="create")
                return True
            except FileExistsError:
                return False
            except OSError:  # some servers report this as another error
                if name in self.below(name.rpartition("/")[0]):
                    return False
                raise

    def sync(self, folders: Iterable[str]) -> None:
        """Make files that were created in these folders survive a loss of power."""

    def get(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        with self._named(name):
            data: bytes = self.fs.cat_file(self._path(name), start=start, end=end)
            return data

    def below(self, folder: str) -> dict[str, int]:
        """All files below a folder, and their sizes in bytes; none if there is no such folder."""
        with self._named(folder):
            self.fs.invalidate_cache()
            path = self._path(folder).rstrip("/")
            return dict(self._flat(path) if "s3" in self.fs.protocol else self._walk(path))

    def _flat(self, path: str) -> Iterator[tuple[str, int]]:
        """S3 lists nested folders in one request, and s3fs reports its errors."""
        for name, entry in self.fs.find(path, detail=True).items():
            if entry["type"] == "file" and name.startswith(path + "/"):
                yield name[len(self.root) + 1 :], int(entry["size"])

    def any_name(self) -> str | None:
        """The name of something directly below the URL; None if there is nothing."""
        with self._named(""):
            try:
                entries = self.fs.ls(self.root, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return None
            names = [str(entry["name"]).strip("/").rpartition("/")[2] for entry in entries]
            return next((name for name in names if not name.endswith(PART)), None)

    def _walk(self, path: str) -> Iterator[tuple[str, int]]:
        """List files without `find`, which on most file systems treats an error as an empty
        folder."""
        try:
            entries = self.fs.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in entries:
            found = "/" + entry["name"].strip("/")
            if not found.startswith("/" + path.strip("/") + "/"):
                continue  # S3 lists a folder's own marker
            if entry["type"] == "directory":
                yield from self._walk(entry["name"])
            elif not found.endswith(PART):
                yield found[len("/" + self.root.strip("/")) :].lstrip("/"), int(entry["size"])

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone already is no error."""
        with self._named(name), contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(self._path(name))

    def sweep(self, folder: str) -> None:
        """Remove empty folders and incomplete files; local file systems only."""

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        thread = threading.get_ident()
        outer = self.pending.get(thread)
        self.pending[thread] = name
        try:
            yield
        except StoreError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise Missing(self.url, "does not exist", name=name) from error
        except OSError as error:
            text = error.strerror or str(error) or type(error).__name__
            if error.errno in _FULL:
                raise Full(self.url, f"the store is full: {text}", FREE_SPACE, name=name) from error
            raise Unavailable(self.url, text, AGAIN, name=name) from error
        except Exception as error:  # each file system has errors of its own
            text = f"{type(error).__name__}: {error}"
            raise Unavailable(self.url, text, AGAIN, name=name) from error
        finally:
            self.ended += 1
            if outer is None:
                del self.pending[thread]
            else:
                self.pending[thread] = outer


class LocalFiles(Files):
    def create(self, name: str, data: Data) -> bool:
        path = Path(self._path(name))
        with self._named(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                return self._create(folder, path.name, memoryview(data).cast("B"))
            finally:
                os.close(folder)

    def _create(self, folder: int, name: str, data: memoryview) -> bool:
        temporary = None
        try:
            file = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o600, dir_fd=folder)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
            temporary = f"{secrets.token_hex(8)}{PART}"
            file = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600, dir_fd=folder)
        try:
            while data:
                data = data[os.write(file, data) :]
            os.fsync(file)
            # With a folder: without one Python calls link(2), which does not follow links.
            if temporary is None:
                os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=folder)
            else:
                os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            return True
        except FileExistsError:
            return False
        finally:
            os.close(file)
            if temporary is not None:
                os.unlink(temporary, dir_fd=folder)

    def sync(self, folders: Iterable[str]) -> None:
        root = Path(self.root)
        wanted = {root, *([root.parent] if os.access(root.parent, os.R_OK) else [])}
        for each in folders:
            path = root / each
            wanted |= {path, *(up for up in path.parents if up.is_relative_to(root))}
        for path in sorted(wanted, key=lambda each: -len(each.parts)):
            with self._named(str(path.relative_to(root)) if path.is_relative_to(root) else ""):
                if not path.is_dir():
                    continue
                folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)

    def sweep(self, folder: str) -> None:
        with self._named(folder):
            for where, _, files in os.walk(self._path(folder), topdown=False):
                for file in files:
                    if file.endswith(PART):
                        Path(where, file).unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    os.rmdir(where)


def connect(url: str, options: dict[str, Any] | None = None) -> Files:
    """The file system of a URL, as fsspec opens it (`/path`, `file:///path`, `memory://x`,
    `s3://…`); `options` as fsspec takes them. Raises `Unavailable` if fsspec cannot open it."""
    import fsspec.core  # imported here, as it takes long and most commands open no store

    try:
        fs, root = fsspec.core.url_to_fs(url, **{"use_listings_cache": False, **(options or {})})
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise Unavailable(url, f"cannot be opened: {error}", "check the store's URL") from error
    if getattr(fs, "local_file", False):
        return LocalFiles(fs, os.path.abspath(root), url)
    return Files(fs, root, url)
