"""The preloaded libraries behave like CUDA and NCCL, whatever the server does meanwhile."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.native import REPOSITORY
from support.patience import scaled
from support.preloaded import FLOORS, LIB, PRELUDE, Build, Run, environment


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Compile a C program against the client's own prototypes, linked to the shims."""

    def compile_program(
        body: str, link: tuple[str, ...] = ("cudart", "cuda", "nccl"), args: tuple[str, ...] = ()
    ) -> Path:
        source, program = tmp_path / "program.c", tmp_path / "program"
        source.write_text(PRELUDE + body)
        command = [
            "gcc",
            "-std=c11",
            "-D_GNU_SOURCE",
            "-O1",
            "-g",
            "-Wall",
            "-Werror",
            f"-I{REPOSITORY / 'interpose/channel'}",
            *(f"-I{floor}" for floor in FLOORS),
            f"-I{LIB.parent / 'gen'}",
            "-o",
            str(program),
            str(source),
            f"-L{LIB}",
            f"-Wl,-rpath-link,{LIB}",
            *(f"-l{name}" for name in link),
            *args,
            "-lpthread",
            "-ldl",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return program

    return compile_program


@pytest.fixture
def run() -> Run:
    """Run a program with the client preloaded; it must end well unless `status` says else."""

    def run_program(
        program: Path | str, *arguments: str, launcher: Path | None = None, status: int = 0
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(program), *arguments],
            env=environment(launcher),
            text=True,
            capture_output=True,
            timeout=scaled(60),
            check=False,
        )
        assert done.returncode == status, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run_program
