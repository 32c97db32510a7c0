"""A thread that waits a moment for another thread of its process notices that the moment does not
end (spin_moment in spin.h)."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from rankfold import paths
from support.patience import scaled

YIELDS = 1 << 16


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, made = Path(__file__).with_name("moment.c"), tmp_path_factory.mktemp("m") / "moment"
    folder = paths.REPOSITORY / "interpose/channel"
    flags = ["-O2", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["gcc", *flags, f"-I{folder}", source, "-o", made, "-lpthread"], check=True)
    return made


def run(program: Path, naps: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, str(naps)], capture_output=True, text=True, timeout=scaled(20), check=False
    )


def test_a_lock_that_is_released_late_is_taken(program: Path) -> None:
    done = run(program, 20)
    assert done.returncode == 0 and int(done.stdout) >= YIELDS + 20


def test_a_lock_that_is_never_released_is_named(program: Path) -> None:
    done = run(program, 0)
    assert done.returncode == -signal.SIGABRT
    assert "broken invariant: the test's lock is released (" in done.stderr
