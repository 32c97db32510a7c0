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
from collections.abc import Iterator
from pathlib import Path

from rankfold.paths import REPOSITORY


class CopiedTree:
    """Copied to `root` when it is first used."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @contextlib.contextmanager
    def with_text(self, file: str, text: str) -> Iterator[None]:
        """While `file`, a path from the root, has another text."""
        self._copy()
        here = self.root / file
        right = here.read_text()
        here.write_text(text)
        try:
            yield
        finally:
            here.write_text(right)

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs these tests of the copy until the first fails."""
        self._copy()
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        options = ["-q", "-x", "-p", "no:cacheprovider", "--timeout=100"]
        return subprocess.run(
            [self.root / ".venv/bin/python", "-m", "pytest", *options, *arguments],
            cwd=self.root,
            env=env,
            capture_output=True,
            text=True,
        )

    def _copy(self) -> None:
        """All that the next commit would hold, once."""
        if self.root.exists():
            return
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        for name in filter(None, listing.stdout.split("\0")):
            if os.path.lexists(REPOSITORY / name):
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, self.root / name, follow_symlinks=False)
        (self.root / "build").symlink_to(REPOSITORY / "build")
        venv = self.root / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
        ours, theirs = (
            sysconfig.get_path("purelib", vars={"base": str(base), "platbase": str(base)})
            for base in (sys.prefix, venv)
        )
        Path(theirs, "copy.pth").write_text(f"{self.root}\n{ours}\n")
