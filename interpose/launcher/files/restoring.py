"""Restores the files of a job's ranks to their state at the snapshots (saving.py).

Content, names, modes, owners and times are restored, and files that the job made later are removed.
Nothing else is touched, and no link is followed on the way to a name. If something else is in the
place of a folder, it is removed if the job made it; otherwise an error names it and nothing is
changed. The job's processes do not run meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rankfold import fanotify
from rankfold.interpose.launcher.files import attributes, journal, nofollow, sparse
from rankfold.interpose.launcher.files.journal import Name
from rankfold.interpose.launcher.files.previous import SMALL
from rankfold.interpose.launcher.files.saving import (
    FOLDER,
    Differs,
    Entry,
    Files,
    Input,
    boot_id,
    copy,
    identity,
    of_input,
    read,
    sample,
    shared_notes,
)
from rankfold.interpose.launcher.rank.sandbox import libc
from rankfold.plural import count

_NAMED_MAX = 5
_AT_FDCWD, _NOREPLACE = -100, 1


def compare(files: Files) -> None:
    """Check that the files that the rank reads are unchanged. Raises Differs."""
    wrong = [f"{each.path} {why}" for each in files.inputs if (why := _difference(each))]
    _refuse("files that the rank reads have changed", wrong)


def _refuse(reason: str, wrong: list[str]) -> None:
    if wrong:
        more = f" and {len(wrong) - _NAMED_MAX} others" if len(wrong) > _NAMED_MAX else ""
        raise Differs(f"{reason}: " + ", ".join(wrong[:_NAMED_MAX]) + more)


def _difference(file: Input) -> str:
    status = of_input(file.path)
    if status is None:
        return "does not exist"
    if not stat.S_ISREG(status.st_mode):
        return "is no longer a regular file"
    if status.st_size != file.size:
        return f"has {count(status.st_size, 'byte')}, not {file.size}"
    if status.st_mtime_ns == file.mtime_ns:
        return ""
    try:
        return "" if sample(file.path) == file.sample else "has other content"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


class FileProblems(NamedTuple):
    """Problems with files of all ranks restored so far, as in messages.Restored."""

    stay: list[str]
    renewed: list[str]

    def reply(self) -> dict[str, Any]:
        """The names as text for a message; a name may be any bytes."""
        return {
            kind: {
                "first": [
                    os.fsencode(each).decode(errors="replace") for each in names[:_NAMED_MAX]
                ],
                "count": len(names),
            }
            for kind, names in self._asdict().items()
        }


def put(
    snapshot: Path, files: Files, life: str, own: Path, journals: list[tuple[Path, str]]
) -> FileProblems:
    """Restore the files, and write the rank's journal, `own`. A repeated call does what is left, or
    nothing, and returns the same. `journals`: paths where journals of the job's ranks may be, each
    with the life that it has in that case. Raises Differs before anything is changed, OSError."""
    with shared_notes(snapshot) as shared:
        if shared.get("cleared") != _signature(journals):  # otherwise another rank has done this
            job = _Job(snapshot, journals)
            _refuse("files of the job cannot be restored", job.in_the_way())
            job.clear()
            shared["written"] = job.written()
            shared["stay"] = sorted({*shared.get("stay", []), *job.stay()})
        restoring = _Restoring(snapshot, files, shared.setdefault("put", {}), shared["written"])
        restoring.all()
        journal.write(own, life, restoring.names())
        shared["cleared"] = _signature(journals)
        shared["renewed"] = sorted({*shared.get("renewed", []), *restoring.renewed()})
        return FileProblems(shared.get("stay", []), shared["renewed"])


def _signature(journals: list[tuple[Path, str]]) -> list[list[Any]]:
    """A value that changes when a rank has run."""
    inputs = ((str(path), of_input(str(path))) for path, _ in journals)
    return [[path, *identity(status)] for path, status in inputs if status]


# ---- what the job made later ---------------------------------------------------------------


class _Job:
    """The files of all ranks on this machine at their snapshots, and the names that the ranks have
    made since."""

    def __init__(self, snapshot: Path, journals: list[tuple[Path, str]]):
        others = (read(str(path.parent)) for path in snapshot.parent.glob("*/about.json"))
        ranks = [files for files in others if files]
        entries = [entry for files in ranks for entry in files.entries]
        self._names: dict[str, bool] = {}  # names, and whether a rank of the job made them
        for files in ranks:
            for path, made in files.names.items():
                self._names[path] = made or self._names.get(path, False)
        self._above = {above.path: above.node for files in ranks for above in files.above}
        self._own_folders = {each.path for each in entries if each.kind == "folder"}
        self._folders = self._above.keys() | self._own_folders
        self._entries = entries
        self._present = {each.path for each in entries}
        self._present.update(path for files in ranks for path in files.others)
        self._journalled: dict[str, list[Name]] = {}
        for place, life in journals:
            found, records = journal.read(place)
            if found == life:
                for path, name in records.items():
                    self._journalled.setdefault(path, []).append(name)
        all_records = (name for names in self._journalled.values() for name in names)
        self._nodes = {name.node for name in all_records if name.node and not self._is_others(name)}

    def in_the_way(self) -> list[str]:
        """Objects that are not the job's and block the restore: a non-folder where a folder was, or
        a folder where something else was."""
        wrong = []
        for path in sorted(self._folders | self._present):
            status, is_folder = nofollow.status(path), path in self._folders
            if status is None or stat.S_ISDIR(status.st_mode) == is_folder or self._made(path):
                continue
            wrong.append(f"{path} {_IS[stat.S_IFMT(status.st_mode)]}, {_WAS[is_folder]}")
        return wrong

    def _made(self, path: str) -> list[Name]:
        """The journals' records of what exists there now, if the job made it. A rank may have
        renamed it just before its end: then no record has this name."""
        here = _node(path)
        names = [name for name in self._journalled.get(path, []) if here and name.node == here]
        return names or ([Name(False, here)] if here in self._nodes else [])

    def written(self) -> list[str]:
        """Nodes of files with several names that a rank has written."""
        return [each.node for each in self._entries if each.node and not each.theirs]

    def stay(self) -> list[str]:
        """After `clear`: names for `stay` of messages.Restored."""
        return [path for path in self._journalled.keys() - self._names.keys() if self._stays(path)]

    def _stays(self, path: str) -> bool:
        above = map(str, Path(path).parents)  # what was in a folder of the job's was the job's
        if any(name.made for each in (path, *above) for name in self._journalled.get(each, [])):
            return False
        now = nofollow.status(path)
        wrote = any(name.wrote for name in self._journalled[path])
        return now is None or (wrote and stat.S_ISREG(now.st_mode))

    def clear(self) -> None:
        """Remove what the job made later. Objects that are not the job's and that it renamed get
        their old names back. Folders are removed only if they are empty."""
        gone, back = self._later()
        for path in (*self._own_folders, *gone):
            if (now := nofollow.status(path)) and (stat.S_ISDIR(now.st_mode) or now.st_nlink == 1):
                attributes.put(path, 0)  # otherwise it may also belong to others
        for path in sorted(gone, key=lambda each: each.count("/"), reverse=True):
            with _if_still_there(), nofollow.stable_path(path) as here:
                _remove(here)
        for path, origin in reversed(back):
            with (
                _if_still_there(),
                nofollow.stable_path(path) as here,
                nofollow.stable_path(origin) as there,
            ):
                _rename(here, there)

    def _later(self) -> tuple[list[str], list[tuple[str, str]]]:
        gone, back = [], []
        for path, records in self._journalled.items():
            made = self._made(path)
            origin = next((name.origin for name in made if self._is_others(name)), "")
            if origin:
                back.append((path, origin))
            elif made and path not in self._present:
                was_free = path in self._names or any(name.made for name in records)
                if was_free or path in self._above:
                    gone.append(path)
        for path, by_job in self._names.items():
            if not by_job and path not in self._present and self._is_elsewhere(path):
                gone.append(path)
        return gone, back

    def _is_elsewhere(self, path: str) -> bool:
        """Whether this is not the tree in which the job removed the name."""
        for folder in map(str, Path(path).parents):
            if folder in self._own_folders:
                return False
            if then := self._above.get(folder):
                return _node(folder) != then
        return False

    def _is_others(self, name: Name) -> bool:
        """Whether the object was not the job's when it was renamed, nor at the snapshot."""
        records = self._journalled.get(name.origin, [])
        own = any(each.node == name.node for each in records)
        return bool(name.origin) and name.origin not in self._names and not own


_IS = {
    stat.S_IFREG: "is a file",
    stat.S_IFDIR: "is a folder",
    stat.S_IFLNK: "is a link",
    stat.S_IFIFO: "is a pipe",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
}
_WAS = {True: "and was a folder at the checkpoint", False: "and was none at the checkpoint"}


def _node(path: str) -> str:
    """The node at a path, as journals name it; empty: nothing is there, or it is unknown."""
    with nofollow.open_if_present(path) as fd:
        return nofollow.node(fd) if fd is not None else ""


@contextlib.contextmanager
def _if_still_there() -> Iterator[None]:
    """Ignore errors because the object is gone, its new folder is gone, or the new name is
    taken."""
    try:
        yield
    except OSError as error:
        if error.errno not in (*nofollow.NOTHING, errno.EEXIST):
            raise


def _remove(path: str) -> None:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        os.unlink(path)
        return
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
            raise


def _rename(old: str, new: str) -> None:
    """Rename without replacing. Raises FileExistsError if `new` exists, OSError."""
    names = os.fsencode(old), os.fsencode(new)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _NOREPLACE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), old)


# ---- what there was ------------------------------------------------------------------------


class _Restoring:
    """Restores one rank's files. `done`: what ranks have restored already, see `_stays`. `written`:
    see `_Job.written`."""

    def __init__(self, snapshot: Path, files: Files, done: dict[str, Any], written: list[str]):
        self._snapshot, self._files, self._done = snapshot, files, done
        self._written = set(written)
        self._same_boot = files.boot == boot_id()

    def names(self) -> dict[str, Name]:
        """The names for the rank's journal from now on."""
        files, there = self._files, {entry.path: entry for entry in self._files.entries}
        return {
            path: Name(
                made,
                _node(path) if made and path in there else "",
                files.origins.get(path, ""),
                path in there and there[path].kind == "file" and not there[path].theirs,
            )
            for path, made in files.names.items()
        }

    def renewed(self) -> list[str]:
        """After `all`: names for `renewed` of messages.Restored. After a reboot, device numbers
        differ."""
        first = 0 if self._same_boot else 1
        written = set(self._files.written)
        return [
            entry.path
            for entry in self._files.entries
            if entry.path in written
            and (now := nofollow.status(entry.path))
            and identity(now)[first:2] != entry.was[first:2]
        ]

    def all(self) -> None:
        for above in sorted(self._files.above, key=lambda each: each.path):
            with nofollow.stable_path(above.path) as here, contextlib.suppress(FileExistsError):
                os.mkdir(here)
                os.chown(here, above.uid, above.gid)
                os.chmod(here, above.mode)
        folders = [entry for entry in self._files.entries if entry.kind == "folder"]
        folders.sort(key=lambda each: each.path)
        for entry in folders:
            self._make_folder(entry.path)
            attributes.put(entry.path, 0)
        for entry in self._files.entries:
            if entry.kind != "folder" and not self._stays(entry):
                if not self._is_theirs(entry):
                    attributes.put(entry.path, 0)
                self._link_again(entry)
                if not self._stays(entry) and not self._rewritten(entry):
                    self._replace(entry)
                if not self._is_theirs(entry):
                    attributes.put(entry.path, entry.flags)
                now = nofollow.status(entry.path)
                self._done[entry.path] = [list(entry.was), list(identity(now)) if now else None]
        for entry in reversed(folders):
            with nofollow.stable_path(f"{entry.path}/.") as here:
                _set(entry, here)
            attributes.put(entry.path, entry.flags)

    def _make_folder(self, path: str) -> None:
        now = nofollow.status(path)
        if now is not None and stat.S_ISDIR(now.st_mode):
            return
        with nofollow.stable_path(path) as here:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(here)  # it is the job's: otherwise the restore was refused
            os.mkdir(here, 0o700)

    def _stays(self, entry: Entry) -> bool:
        """Whether it needs no change: unchanged since the snapshot, or restored by another rank."""
        status = nofollow.status(entry.path)
        if status is None:
            return False
        now = list(identity(status))
        if self._done.get(entry.path) == [list(entry.was), now]:
            return True
        if entry.same:
            first = nofollow.status(entry.same)
            return first is not None and os.path.samestat(first, status)
        if entry.kind == "socket" and stat.S_ISSOCK(status.st_mode):
            return True  # CRIU makes it again
        if self._is_theirs(entry) and _is_as_it_was(entry, status):
            return True
        return self._same_boot and not entry.loose and now == list(entry.was)

    def _is_theirs(self, entry: Entry) -> bool:
        """Whether only others write to the file: then we do not, and keep their changes."""
        return entry.theirs and entry.node not in self._written

    def _link_again(self, entry: Entry) -> None:
        """Link the file again if it still exists under a name that the rank has never touched."""
        now = nofollow.status(entry.path)
        if not entry.node or entry.kind != "file" or (now and identity(now)[:2] == entry.was[:2]):
            return
        with nofollow.stable_path(entry.path) as here:
            near = os.open(os.path.dirname(here), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                file = fanotify.open_node(fanotify.Node.parse(entry.node), near)
            finally:
                os.close(near)
            if file is not None:
                source = f"/proc/self/fd/{file}"  # followed, because a folder is given, too
                try:
                    if self._is_theirs(entry) and not _is_as_it_was(entry, os.fstat(file)):
                        return
                    self._bring(here, lambda half: os.link(source, half, src_dir_fd=file))
                finally:
                    os.close(file)

    def _rewritten(self, entry: Entry) -> bool:
        """Rewrite the content in place if it is still the same file: programs may know a file by
        its inode number (SQLite does). Returns whether that was done."""
        now = nofollow.status(entry.path)
        if entry.kind != "file" or entry.same or now is None or identity(now)[:2] != entry.was[:2]:
            return False
        if self._is_theirs(entry):
            return False
        try:
            with nofollow.stable_path(entry.path) as here:
                target = nofollow.file(here, os.O_RDWR)
        except OSError as error:
            if error.errno == errno.ETXTBSY:  # a process executes it
                return False
            raise
        try:
            if identity(os.fstat(target))[:2] != entry.was[:2]:
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
        def make(half: str) -> None:
            if entry.same:
                with nofollow.stable_path(entry.same) as first:
                    os.link(first, half, follow_symlinks=False)
            else:
                self._make(entry, half)
                _set(entry, half)

        with nofollow.stable_path(entry.path) as here:
            self._bring(here, make)

    def _bring(self, here: str, make: Callable[[str], None]) -> None:
        """Replace the name in one step: it always refers to the old file or to the new one."""
        folder, name = os.path.split(here)
        half = f"{folder}/.rankfold-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(half)
        try:
            make(half)
            if os.path.isdir(here) and not os.path.islink(here):
                os.rmdir(here)
            os.rename(half, here)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(half)  # also if both are names of one file: then rename does nothing

    def _make(self, entry: Entry, path: str) -> None:
        if entry.kind == "link":
            os.symlink(entry.target, path)
        elif entry.kind == "pipe":
            os.mkfifo(path)
        elif entry.kind in _NODES:
            os.mknod(path, 0o600 | _NODES[entry.kind], entry.device)
        else:
            target = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                self._fill(entry, target)
            finally:
                os.close(target)

    def _fill(self, entry: Entry, target: int) -> None:
        source = os.open(self._snapshot / FOLDER / entry.content, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if entry.content.startswith(SMALL):
                sparse.copy_range(source, entry.offset, target, 0, entry.size)
            else:
                copy(source, target)
        finally:
            os.close(source)


_NODES = {"socket": stat.S_IFSOCK, "character": stat.S_IFCHR, "block": stat.S_IFBLK}


def _is_as_it_was(entry: Entry, now: os.stat_result) -> bool:
    return (*identity(now)[:2], now.st_size, now.st_mtime_ns) == (
        *entry.was[:2],
        entry.size,
        entry.mtime_ns,
    )


def _set(entry: Entry, path: str) -> None:
    os.chown(path, entry.uid, entry.gid, follow_symlinks=False)
    if entry.kind != "link":
        os.chmod(path, entry.mode)
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
