"""The files that `make dist` builds work on a machine with only Python, libc and `sh`."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cuda
import pytest

from rankfold import __version__, distribution
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
# Becomes another program as soon as a file exists.
BECOMES = """\
import os, sys, time
while not os.path.exists(sys.argv[1]): time.sleep(0.05)
os.execv(sys.argv[2], sys.argv[2:])
"""
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


def newer(folder: Path) -> Path:
    """An executable of another version: its commit is called newer."""
    wheels = folder / "wheels"
    shutil.copytree(REPOSITORY / "build/dist/wheels", wheels)
    (wheel,) = wheels.glob("rankfold-*.whl")
    tool = [sys.executable, "-m", "wheel"]
    subprocess.run([*tool, "unpack", "--dest", folder, wheel], check=True, capture_output=True)
    wheel.unlink()
    unpacked = folder / f"rankfold-{__version__}"
    generated = unpacked / "rankfold/_generated.py"
    first, rest = generated.read_text().split("\n", 1)
    assert first == f"COMMIT = {distribution.commit()!r}"
    generated.write_text(f"COMMIT = 'newer'\n{rest}")
    subprocess.run([*tool, "pack", "--dest-dir", wheels, unpacked], check=True, capture_output=True)
    runpy.run_path(str(REPOSITORY / "tools/dist.py"))["executable"](wheels, folder / "rankfold")
    return folder / "rankfold"


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
        f"rankfold {__version__} (commit {distribution.commit()})\n"
    )
    fleet = machine.folder / "root/planned"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(POOL)
    assert "create Pool/local: 2 devices" in output(
        machine.run("./rankfold", "plan", "-f", "/root/planned", workdir=PLACE)
    )
    doctor = output(machine.run(RANKFOLD, "doctor"))
    assert "native/lib/librankfold.so" in doctor
    assert "no CRIU 4.2 or newer (none is installed): install it" in doctor


def test_a_job_continues_when_the_file_is_replaced(machine: Root, tmp_path: Path) -> None:
    """Its ranks exec their program only then, so they load the preloaded libraries again."""
    home = machine.folder / "root"
    for folder in ("bin", "fleet"):
        (home / folder).mkdir()
    shutil.copy(machine.folder / RANKFOLD[1:], home / "bin/rankfold")
    command = ["python3", "-c", BECOMES, "/root/start", f"{PLACE}/until_told", "/root/stop"]
    (home / "fleet/pool.yaml").write_text(POOL)
    (home / "fleet/told.yaml").write_text(JOB % json.dumps(command))
    variables = {"RANKFOLD_STATE": "/root/state", "RANKFOLD_CACHE": str(KERNELS)}

    def rankfold(*arguments: str) -> str:
        return output(machine.run("/root/bin/rankfold", *arguments, **variables))

    def phase() -> str:
        (job,) = json.loads(rankfold("status", "-o", "json"))["jobs"] or [{"phase": ""}]
        return str(job["phase"])

    def printed() -> list[list[str]]:
        return [rankfold("logs", "told", "--rank", rank).splitlines() for rank in ("0", "1")]

    watch = subprocess.Popen(
        machine.command("/root/bin/rankfold", "watch", "/root/fleet", **variables),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: phase() == "Running")
    os.replace(newer(tmp_path), home / "bin/rankfold")
    assert rankfold("--version") == f"rankfold {__version__} (commit newer)\n"
    (home / "start").touch()
    until(lambda: all(len(lines) > 16 for lines in printed()))
    os.kill(int(machine.child_of(watch.pid)), signal.SIGINT)
    assert watch.wait(scaled(30)) == 0
    rankfold("stop")
    # This starts a reconciler of the new version.
    rankfold("scale", "told", "--gpus", "1", "--override", "--wait")
    (home / "stop").touch()
    until(lambda: phase() == "Succeeded")
    for lines in printed():
        assert len(set(lines)) == 16, "a step computed other bits than when it was repeated"
    rankfold("stop", "--cancel")


@pytest.mark.parametrize("user, home", [("1000", "/home/someone"), ("1001", "/nonexistent")])
def test_another_user(machine: Root, user: str, home: str) -> None:
    """The user may have no home. Ranks get the environment of the command, and nothing of PEX's."""
    if (machine.folder / home[1:]).exists():
        os.chown(machine.folder / home[1:], int(user), int(user))
    variables = {"RANKFOLD_STATE": f"/tmp/state-{user}", "VIRTUAL_ENV": "/mine", "PEX_MINE": "1"}
    script = f'export; exec "{PLACE}/one_launch"'
    lines = output(
        machine.run(
            RANKFOLD,
            "run",
            "--world-size",
            "1",
            "--gpus",
            "1",
            "--",
            "sh",
            "-c",
            script,
            user=user,
            home=home,
            **variables,
        )
    ).splitlines()
    assert lines[-1] == "cudaSuccess"
    environment = dict(line.removeprefix("export ").split("=", 1) for line in lines[:-1])
    assert environment["VIRTUAL_ENV"] == "'/mine'"
    assert [name for name in environment if "PEX" in name] == ["PEX_MINE"]
    output(machine.run(RANKFOLD, "stop", "--cancel", user=user, home=home, **variables))


def test_no_folder_to_unpack_into(machine: Root) -> None:
    done = machine.run(RANKFOLD, "--version", user="1002", home="/nonexistent", PEX_ROOT="/proc")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "/proc cannot be written. Set PEX_ROOT" in done.stderr


def test_the_wheel_in_a_fresh_environment(machine: Root, dist: Path) -> None:
    wheels = machine.folder / "root/wheels"
    # The dependencies, instead of an index.
    shutil.copytree(REPOSITORY / "build/dist/wheels", wheels)
    (wheel,) = dist.glob("rankfold-*.whl")
    shutil.copy(wheel, wheels)
    output(machine.run("python3", "-m", "venv", "/root/venv"))
    pip = ("/root/venv/bin/pip", "install", "--quiet", "--no-index", "--find-links=/root/wheels")
    output(machine.run(*pip, f"/root/wheels/{wheel.name}"))
    command = ("/root/venv/bin/rankfold", "--state", "/root/of-wheel")
    assert f"commit {distribution.commit()}" in output(machine.run(*command, "--version"))
    done = machine.run(
        *command, "run", "--world-size", "1", "--gpus", "1", "--", f"{PLACE}/one_launch"
    )
    assert output(done) == "cudaSuccess\n"
    output(machine.run(*command, "stop", "--cancel"))
