"""Resolves a branch, a tag or a hash to a commit, in a local or a remote repository."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

from rankfold.reconciler.source.git import Git, GitError

_HASH = re.compile("[0-9a-f]{7,64}")
_WHOLE_HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_NOT_THERE = "couldn't find remote ref"


def full_names(ref: str) -> list[str]:
    """The full names that `ref` may abbreviate, a branch first."""
    if ref.startswith("refs/"):
        return [ref]
    return [f"refs/{kind}/{ref}" for kind in ("heads", "tags", "remotes")]


def tip(git: Git, ref: str) -> str | None:
    """The commit; None if there is none. Raises GitError if this is not a repository."""
    names = full_names(ref) + ([ref] if _HASH.fullmatch(ref) else [])
    for name in names:
        try:
            return git.text("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        except GitError:
            continue
    git("rev-parse", "--git-dir")
    return None


def branches(git: Git) -> list[str]:
    """Names of the branches, for a message."""
    return git.text("for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads").split()


class Mirror:
    """A mirror at `repo` of one ref of the repository at `url`. Its history and other refs, such as
    pull requests, are not fetched."""

    def __init__(self, repo: Path, git: Git, url: str, ref: str):
        self.repo, self.git, self.url, self.ref = repo, git, url, ref

    def update(self) -> None:
        """Bring the mirror to the remote's state. Raises GitError."""
        if not (self.repo / "HEAD").exists():
            self._make()
        else:
            try:
                self._fetch(self.git)
            except GitError as error:
                if ".lock" in str(error):  # of a killed process: no other uses the mirror
                    shutil.rmtree(self.repo, ignore_errors=True)
                raise

    def branches(self) -> list[str]:
        """Names of the remote's branches, for a message."""
        listing = self.git.text("ls-remote", "--heads", "--", self.url)
        return [line.partition("refs/heads/")[2] for line in listing.splitlines()]

    def _make(self) -> None:
        """Create the mirror atomically: half a mirror would look like an empty one."""
        new = self.repo.with_suffix(".new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        git = self.git.at(new)
        git("init", "--quiet", "--bare")
        self._fetch(git)
        new.rename(self.repo)

    def _fetch(self, git: Git) -> None:
        names = [name for name in full_names(self.ref) if not name.startswith("refs/remotes/")]
        for name in names:
            if self._fetched(git, name, name):
                for other in names:
                    if other != name:
                        _forget(git, other)
                return
            _forget(git, name)
        if _WHOLE_HASH.fullmatch(self.ref) and tip(git, self.ref) is None:
            self._fetched(git, self.ref, f"refs/followed/{self.ref}")

    def _fetched(self, git: Git, there: str, here: str) -> bool:
        """Fetch a ref; return whether the remote has it."""
        for depth in (["--depth=1"], []):
            fetch = "fetch", "--progress", "--no-tags", *depth
            try:
                git.remote(*fetch, "--", self.url, f"+{there}:{here}")
                return True
            except GitError as error:
                if _NOT_THERE in str(error):
                    return False
                if not depth or "shallow capabilities" not in str(error):  # of dumb servers
                    raise
        return False


def _forget(git: Git, ref: str) -> None:
    with contextlib.suppress(GitError):
        git("update-ref", "-d", ref)
