"""What `make dist` builds works on a machine with only Python, libc and `sh`."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cuda
import pytest

from rankfold import distribution
from rankfold.paths import REPOSITORY
from support.command import Rankfold
from support.leaks import State
from support.patience import scaled

from .empty_root import Root

# The first start unpacks 300 MB, and `make dist` gets the dependencies of four versions of Python.
pytestmark = [pytest.mark.slow, pytest.mark.installs, pytest.mark.timeout(600)]

PLACE = "/opt/a folder"  # read-only; its name has a space
RANKFOLD = f"{PLACE}/rankfold"
TEXT = f"{PLACE}/genesis.txt"
KERNELS = REPOSITORY / "build/tests/kernels"
SOMEONE = 1000  # a user
POOL = """\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {name: local}
spec:
  devices:
    - {type: soft, count: 2, memory: 256MiB}
"""
JOB = """\
apiVersion: rankfold/v1alpha1
kind: Job
metadata: {name: told}
spec:
  command: %s
  worldSize: 2
  gpus: 2
"""


@pytest.fixture(scope="session")
def dist() -> Path:
    """The folder with what `make dist` built of this checkout."""
    done = subprocess.run(
        ["make", "--no-print-directory", "dist"], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return REPOSITORY / "dist"


@pytest.fixture(scope="module")
def machine(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    """A machine with the executable and two programs. It has the compiled kernels of the other
    tests: these are named by content, whoever compiled them."""
    KERNELS.mkdir(parents=True, exist_ok=True)
    root = Root(tmp_path_factory.mktemp("machine") / "root", (PLACE,), (KERNELS,))
    place = root.folder / PLACE[1:]
    place.mkdir(parents=True)
    programs = {
        "train_gpt": cuda.build(REPOSITORY / "examples/gpt/train_gpt.cu"),
        "until_told": cuda.build(cuda.PROGRAMS / "until_told.cu"),
        "one_launch": cuda.build(cuda.PROGRAMS / "one_launch.cu"),
    }
    for name, path in programs.items():
        shutil.copy(path, place / name)
    shutil.copy(dist / "rankfold", place)
    shutil.copy(REPOSITORY / "examples/gpt/text/genesis.txt", place)
    root.libraries(*programs.values())
    with root:
        yield root


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + scaled(60)
    while not what():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.1)


def output(done: subprocess.CompletedProcess[str], code: int = 0) -> str:
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_the_demos_job_gives_the_bits_of_the_checkout(machine: Root, state: State) -> None:
    options = ("--steps", "3", "--data")
    command = ("run", "--world-size", "2", "--gpus", "1", "--")
    found = machine.run(
        RANKFOLD, *command, f"{PLACE}/train_gpt", *options, TEXT, RANKFOLD_CACHE=str(KERNELS)
    )
    program, text = (machine.folder / PLACE[1:] / name for name in ("train_gpt", "genesis.txt"))
    rankfold = Rankfold(state, {**os.environ})
    expected = rankfold(*command, str(program), *options, str(text))
    assert sorted(output(found).splitlines()) == sorted(expected.splitlines())
    assert len(expected.splitlines()) == 6
    rankfold.end()


def test_commands(machine: Root) -> None:
    assert output(machine.run(RANKFOLD, "--version")) == (
        f"rankfold 0.1.0 (commit {distribution.commit()})\n"
    )
    fleet = machine.folder / "root/planned"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(POOL)
    assert "create Pool/local: 2 devices" in output(
        machine.run("./rankfold", "plan", "-f", "/root/planned", workdir=PLACE)
    )
    doctor = output(machine.run(RANKFOLD, "doctor"))
    assert "native/lib/librankfold.so" in doctor
    assert "no CRIU 4.2 or newer (there is none): install it" in doctor
