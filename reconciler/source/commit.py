"""Reads the files of desired state in a commit from git's objects, never from a work tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rankfold import legible
from rankfold.reconciler.source.git import Git, GitError
from rankfold.reconciler.source.trees import BYTES_MAX, Found, counts, is_hidden

FILE, FOLDER, LINK, NOTHING = "file", "folder", "link", ""
LINKS_MAX = 40  # symbolic links to follow on the way to one file
_KINDS = {b"100": FILE, b"120": LINK, b"040": FOLDER}  # by mode prefix; not 160, a submodule


@dataclass(frozen=True)
class _Entry:
    kind: str
    object: str


class Outside(Exception):
    """A symbolic link leads out of the repository; the message is its target."""


class Commit:
    """The folder or file at `path` in a commit. Links are followed as the file system would, within
    the repository. `top`: the repository's work tree, if it has one. Raises GitError."""

    def __init__(self, git: Git, commit: str, path: str, top: str | None):
        self.git, self.path, self.top = git, path, top
        self._entries = _listed(git, commit)

    def files(self) -> list[Found]:
        """All files of desired state, ordered by name."""
        files_found = []
        for path, below in self._named():
            try:
                leads_to = self._resolve(path)
            except Outside as error:
                files_found.append((below, "", _outside(error)))
                continue
            if leads_to is not None and self._kind(leads_to) == FILE:
                files_found.append((below, leads_to, ""))
        data = _blobs(self.git, {self._entries[path].object for _, path, _ in files_found if path})
        return [
            self._found(below, leads_to, problem, data) for below, leads_to, problem in files_found
        ]

    def _named(self) -> list[tuple[str, str]]:
        """Each file that counts: its path in the repository, and its path below `self.path`."""
        try:
            resolved = self._resolve(self.path)
        except Outside:
            resolved = None
        if resolved is None:
            return []
        if self._kind(resolved) == FILE:
            return [(resolved, "")]
        before = f"{resolved}/" if resolved else ""
        below = [(each, each[len(before) :]) for each in self._entries if each.startswith(before)]
        return sorted(
            (path, name)
            for path, name in below
            if counts(name.rpartition("/")[2]) and not is_hidden(name)
        )

    def _found(self, below: str, leads_to: str, problem: str, data: dict[str, bytes]) -> Found:
        whole = "/".join(filter(None, (self.path, below)))
        name, folder, root = legible.name(whole), None, None
        if self.top is not None:
            folder = str((Path(self.top) / leads_to).parent)
            path = Path(self.top) / self.path
            root = str(path if below else path.parent)
        content = data[self._entries[leads_to].object] if leads_to else b""
        is_utf8 = legible.is_utf8(whole)
        return Found(name, content, problem, folder, root, name, None, is_utf8)

    def _kind(self, path: str) -> str:
        entry = self._entries.get(path)
        return FOLDER if not path else entry.kind if entry else NOTHING

    def _resolve(self, path: str) -> str | None:
        """The entry that `path` leads to; None: there is none. Raises Outside."""
        done: list[str] = []
        todo, links = path.split("/")[::-1], 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if self._kind("/".join(done)) != FOLDER:
                return None
            if part == "..":
                if not done:
                    raise Outside(path)
                done.pop()
                continue
            here = "/".join([*done, part])
            if self._kind(here) != LINK:
                done.append(part)
                continue
            links += 1
            if links > LINKS_MAX:
                return None
            target = self.git("cat-file", "blob", self._entries[here].object)
            path = target.decode(errors="surrogateescape")
            if path.startswith("/"):
                raise Outside(path)
            todo += path.split("/")[::-1]
        return "/".join(done) if self._kind("/".join(done)) else None


def _outside(error: Outside) -> str:
    return (
        f"is a symbolic link out of the repository, to {legible.name(str(error))}: a commit does "
        "not contain that; link to a file in it by a relative path, or copy the file"
    )


def _listed(git: Git, commit: str) -> dict[str, _Entry]:
    """All entries of the commit's tree and its subtrees, by path."""
    listed = {}
    for line in git("ls-tree", "-r", "-t", "-z", "--full-tree", commit).split(b"\0"):
        about, tab, name = line.partition(b"\t")
        if tab:
            mode, _, number = about.split()
            kind = _KINDS.get(mode[:3], NOTHING)
            listed[name.decode(errors="surrogateescape")] = _Entry(kind, number.decode())
    return listed


def _blobs(git: Git, objects: Iterable[str]) -> dict[str, bytes]:
    """The contents of objects; the content of one that is too large is too many zero bytes. Git
    runs twice, however many objects there are."""
    wanted = sorted(objects)
    if not wanted:
        return {}
    output = git("cat-file", "--batch-check", given="".join(f"{each}\n" for each in wanted))
    lines = [line.split() for line in output.splitlines()]
    if missing := [line[0].decode() for line in lines if not line[-1].isdigit()]:
        raise GitError(f"object {missing[0]} is missing")
    sizes = {line[0].decode(): int(line[-1]) for line in lines}
    contents = {each: bytes(BYTES_MAX + 1) for each in wanted if sizes[each] > BYTES_MAX}
    wanted = [each for each in wanted if each not in contents]
    output, offset = git("cat-file", "--batch", given="".join(f"{each}\n" for each in wanted)), 0
    for each in wanted:
        offset = output.index(b"\n", offset) + 1
        contents[each] = output[offset : offset + sizes[each]]
        offset += sizes[each] + 1
    return contents
