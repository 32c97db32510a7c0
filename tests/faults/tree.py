"""A copy of the working tree in which one file can be wrong, and tests can be run.

Everything that git would commit is copied; what was built and the virtual environment are links.
The copy comes first on the Python path of all that runs in it, subprocesses too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankfold.paths import REPOSITORY

LINKED = ("build", ".venv")


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in `file` and is replaced by `new`; the test `noticed_by` fails
    then. Paths and the test's name are relative to the root."""

    name: str
    file: str
    old: str
    new: str
    noticed_by: str


def source(mutant: Mutant) -> str:
    """The file as it is. Raises `AssertionError` where the mutant no longer fits it."""
    text = (REPOSITORY / mutant.file).read_text()
    assert text.count(mutant.old) == 1, f"{mutant.file} has changed: adapt the mutant"
    return text


@dataclass(frozen=True)
class Tree:
    root: Path

    @classmethod
    def copy(cls, root: Path) -> Tree:
        """All that the next commit would hold, in a new folder."""
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        for name in filter(None, done.stdout.split("\0")):
            if os.path.lexists(REPOSITORY / name):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, root / name, follow_symlinks=False)
        for name in LINKED:
            (root / name).symlink_to(REPOSITORY / name)
        return cls(root)

    @contextlib.contextmanager
    def with_fault(self, mutant: Mutant) -> Iterator[None]:
        right, file = source(mutant), self.root / mutant.file
        file.write_text(right.replace(mutant.old, mutant.new))
        try:
            yield
        finally:
            file.write_text(right)

    def test(self, names: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Runs these tests; 0: all passed, 1: some failed, else none could be run."""
        env = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        options = ["-q", "-x", "-p", "no:cacheprovider", "--timeout=100"]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *options, *names],
            cwd=self.root, env=env, capture_output=True, text=True,
        )  # fmt: skip
