"""A copy of the working tree in which one file can be wrong, and tests can be run.

Everything that git would commit is copied; what was built is a link. The copy has a virtual
environment of its own, in which `rankfold` is the copy and everything else is ours: so all that a
test starts runs the copy too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankfold.paths import REPOSITORY


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
        (root / "build").symlink_to(REPOSITORY / "build")
        tree = cls(root)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / ".venv"], check=True)
        ours, theirs = (
            sysconfig.get_path("purelib", vars={"base": str(base), "platbase": str(base)})
            for base in (sys.prefix, root / ".venv")
        )
        Path(theirs, "copy.pth").write_text(f"{root}\n{ours}\n")
        return tree

    @property
    def python(self) -> Path:
        return self.root / ".venv/bin/python"

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
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        options = ["-q", "-x", "-p", "no:cacheprovider", "--timeout=100"]
        return subprocess.run(
            [self.python, "-m", "pytest", *options, *names],
            cwd=self.root,
            env=env,
            capture_output=True,
            text=True,
        )
