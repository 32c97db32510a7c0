"""Calls behave on the specification's terms, by programs of which each shows one group of them.

The programs check themselves. Two ranks run each on one device; in its middle both are moved to
another. What they print must not depend on the rank.
"""

from __future__ import annotations

from pathlib import Path

import cuda
import pytest

from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

PROGRAMS = [
    "timing",
    "threads",
    "copies",
    "fills",
]


def run_and_move(state: State, program: Path, name: str, *arguments: str) -> RunningJob:
    """The job, over: two ranks on one device, moved to another when both are half through."""
    told = state.folder / "go-on"
    with Fleet(state, 2, memory=64 * MiB) as fleet:
        job = fleet.start(name, [str(program), str(told), *arguments], [0, 0])

        def half_through() -> bool:
            ended = any(job.exit_status(rank) is not None for rank in (0, 1))
            return ended or all("half\n" in job.output(rank) for rank in (0, 1))

        until(half_through, 90, f"{name} is half through")
        for rank in (0, 1):
            assert job.exit_status(rank) is None, job.errors(rank)
        job.move([fleet.names[1], fleet.names[1]])
        told.touch()
        statuses = job.wait()
        assert statuses == [0, 0], job.errors(0) + job.errors(1)
        job.detach(discard=True)
    return job


@pytest.mark.parametrize("kind", ["legacy", "per-thread"])
def test_the_default_stream_is_what_the_compiler_was_told(kind: str, state: State) -> None:
    program = cuda.build(cuda.PROGRAMS / "default_streams.cu", args=["--default-stream", kind])
    job = run_and_move(state, program, f"default-{kind}", kind)
    assert [job.errors(rank) for rank in (0, 1)] == ["", ""]


def test_host_functions(state: State) -> None:
    """The rank's log says once that one of them calls CUDA."""
    job = run_and_move(state, cuda.build(cuda.PROGRAMS / "host_calls.cu"), "host-calls")
    assert job.output(0) == job.output(1)
    for rank in (0, 1):
        assert job.errors(rank).count("\n") == 1
        assert "a host function (cudaLaunchHostFunc" in job.errors(rank)


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_specified_folded_and_moved(name: str, state: State) -> None:
    program = cuda.build(cuda.PROGRAMS / f"{name}.cu")
    job = run_and_move(state, program, name.replace("_", "-"))
    assert job.output(0) == job.output(1)
    assert job.output(0).startswith("half\n") or "\nhalf\n" in job.output(0)
    assert [job.errors(rank) for rank in (0, 1)] == ["", ""]
