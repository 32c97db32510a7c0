"""The programs: what is fetched or built, how each is started, and what is compared.

A row is all that another program needs. test_bits.py runs each in every way of `runner.WAYS`, and
test_computed.py those that compare their results with a reference by themselves. Of other rows,
which have neither lines nor a reference, `tests` alone run the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cuda

from rankfold.paths import REPOSITORY
from support.patience import scaled
from support.wheels import nvrtc

from . import installed

TEXT = REPOSITORY / "examples/gpt/text/genesis.txt"


def nothing(_: Path) -> dict[str, str]:
    return {}


def own_home(folder: Path) -> dict[str, str]:
    """HOME, where a program may keep its kernels, is the test's. A job does not have the shell's
    environment, so NumPy's own products may differ unless their kernels are named."""
    return {"HOME": str(folder), "PYTHONPATH": "", "OPENBLAS_CORETYPE": "Haswell"}


def tinygrad(folder: Path) -> dict[str, str]:
    return {
        "DEV": "CUDA",
        "LD_LIBRARY_PATH": nvrtc(folder / "nvrtc"),
        "CACHELEVEL": "0",
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }


def tinygrad_with_workers(folder: Path) -> dict[str, str]:
    """Its compilers share named semaphores."""
    return {**tinygrad(folder), "PARALLEL": "2"}


def cupy(folder: Path) -> dict[str, str]:
    """Its own kernels come as PTX of compute_120; ranks have the switch that compiles others to
    PTX."""
    environment = installed.environment(REPOSITORY / "tests/guests/cupy/requirements.txt")
    toolkit = installed.site_packages(environment) / "nvidia/cu13"
    return {**own_home(folder), "CUDA_PATH": str(toolkit)}


def cupy_12(folder: Path) -> dict[str, str]:
    """It finds its compiler by the dynamic linker only."""
    environment = installed.environment(REPOSITORY / "tests/guests/cupy/requirements-12.txt")
    wheels = installed.site_packages(environment) / "nvidia"
    return {
        **own_home(folder),
        "CUDA_PATH": str(wheels / "cuda_runtime"),
        "LD_LIBRARY_PATH": str(wheels / "cuda_nvrtc/lib"),
    }


@dataclass(frozen=True)
class Guest:
    """A program whose ranks each print at least `lines` lines before it is moved or saved; 0: it
    is neither.

    `program`: a CUDA source, which tools/nvcc builds, or a script; from the root on.
    `fetched`: what pip installs into a virtual environment of its own, a file of requirements; a
    script without it runs in the environment of the tests.
    `env`: its environment, given a folder of the test's.
    `files`: those that are compared, by a pattern; what ranks print always is.
    `computed`: what computed.py next to the script prints in a job of one rank; "": there is none.
    `capability`: the compute capability of the device, if not the usual one; `memory`: its memory.
    `interpreter`: a path from the root on, if it is not an environment of `fetched`.
    `checkout`: the variable that names a checkout of its source, which nothing fetches; without it,
    its tests are skipped.
    `quick`: saving and restarting it is part of the fast suite.
    `tests`: other tests that run it.
    """

    name: str
    program: str
    arguments: tuple[str, ...]
    ranks: int
    lines: int
    fetched: str = ""
    env: Callable[[Path], dict[str, str]] = nothing
    files: str = "*"
    computed: str = ""
    capability: str = ""
    memory: str = "64MiB"
    interpreter: str = ""
    checkout: str = ""
    quick: bool = False
    tests: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def folder(self) -> Path:
        return (REPOSITORY / self.program).parent

    def python(self) -> str:
        """The interpreter that runs its scripts."""
        if self.interpreter:
            return str(REPOSITORY / self.interpreter)
        if not self.fetched:
            return sys.executable
        return str(installed.environment(REPOSITORY / self.fetched) / "bin/python")

    def command(self) -> list[str]:
        """Builds or fetches the program."""
        program = REPOSITORY / self.program
        if program.suffix == ".cu":
            return [str(cuda.build(program)), *self.arguments]
        if program.suffix == ".sh":
            return [str(program), *self.arguments]
        return [self.python(), str(program), *self.arguments]


def fetched(
    name: str, steps: int, lines: int, computed: str = "", tests: tuple[str, ...] = ()
) -> Guest:
    """train.py of a folder here, in an environment with the folder's requirements.txt."""
    folder = f"tests/guests/{name}"
    return Guest(
        name,
        f"{folder}/train.py",
        (str(steps),),
        ranks=2,
        lines=lines,
        fetched=f"{folder}/requirements.txt",
        env=own_home,
        computed=computed,
        tests=tests,
    )


GUESTS = [
    Guest(
        "gpt",
        "examples/gpt/train_gpt.cu",
        ("--steps", "120", "--data", str(TEXT), "--out", "params"),
        ranks=2,
        lines=40,
        tests=("tests/gpt", "tests/demo"),
    ),
    Guest(
        "mlp",
        "tests/programs/mlp_sharded.cu",
        ("4000",),
        ranks=3,
        lines=800,
        tests=("tests/running/test_programs.py",),
    ),
    Guest(
        "tinygrad",
        "tests/guests/tinygrad/train.py",
        ("800",),
        ranks=2,
        lines=100,
        env=tinygrad_with_workers,
        tests=("tests/guests/test_tinygrad.py", "tests/guests/test_tinygrad_own.py"),
    ),
    fetched("numba", steps=8000, lines=300, tests=("tests/guests/test_numba.py",)),
    fetched("drjit", steps=4000, lines=300, computed="96 checks\n"),
    fetched("taichi", steps=1500, lines=300),
    fetched("openmm", steps=6000, lines=30, computed="66 compared\n"),
    Guest(
        "cupy",
        "tests/guests/cupy/train.py",
        ("400",),
        ranks=4,
        lines=100,
        fetched="tests/guests/cupy/requirements.txt",
        env=cupy,
        computed="12 checks\n",
    ),
    Guest(
        "cupy12",
        "tests/guests/cupy/train.py",
        ("400",),
        ranks=4,
        lines=100,
        fetched="tests/guests/cupy/requirements-12.txt",
        env=cupy_12,
        computed="12 checks\n",
        capability="9.0",
    ),
    Guest(
        "xgboost",
        "tests/guests/xgboost/computed.py",
        (),
        ranks=1,
        lines=0,
        fetched="tests/guests/xgboost/requirements.txt",
        env=own_home,
        computed="4 checks\n",
        capability="12.0",
    ),
    Guest(
        "llmc",
        "tests/guests/llmc/start.sh",
        (),
        ranks=2,
        lines=0,
        memory="2GiB",
        checkout="RANKFOLD_LLMC",
        tests=("tests/guests/test_llmc.py",),
    ),
    # Threads, a child, TCP between the ranks, SQLite, whose files are never the same bytes. Its
    # length is scaled, so that it still runs when it is killed.
    Guest(
        "busy",
        "tests/recovery/busy_program.py",
        (str(round(scaled(150))),),
        ranks=2,
        lines=90,
        files="log-*",
        quick=True,
    ),
]


def named(name: str) -> Guest:
    """The row of that name."""
    return next(guest for guest in GUESTS if guest.name == name)
