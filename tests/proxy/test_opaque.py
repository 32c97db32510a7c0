"""Promise: an opaque kernel runs once for all ranks of a device when two measurements have shown
that it does the same for all; otherwise each rank runs its own. A later measurement detects a
kernel that behaves differently."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, example, given, settings
from hypothesis import strategies as st

from rankfold.proxy.hal.soft.modules import Loader
from support.computing import Computing, sync
from support.devices import Devices, devices
from support.ring_client import CHUNK, DEVICE_SYNC, STREAM_CREATE
from support.shared_programs import GRADIENT as REDUCED
from support.shared_programs import Op, Program, Step, check, programs
from support.trained import (
    ALLREDUCE,
    GRADIENT,
    HOMES,
    MOMENTS,
    OTHER,
    OWN,
    PARAMETERS,
    VARIABLES,
    WORDS,
    begin_alike,
    counts,
    trained,
    words,
)

EVERY = 8
STEPS = 14
# Runs take long, so failures are made smaller, and not explained.
PHASES = [phase for phase in settings().phases if phase is not Phase.explain]
COMMON: dict[str, Any] = {
    "suppress_health_check": list(HealthCheck),
    "deadline": None,
    "phases": PHASES,
}


@contextmanager
def opaque_ranks(
    kernels: Loader, where: list[int], every: int = EVERY, chunks: int = 128
) -> Iterator[tuple[Devices, list[Computing]]]:
    """Rank r on device where[r]; all have the same parameters and moments, and their own data."""
    made = [Computing(rank, len(where), VARIABLES) for rank in range(len(where))]
    with devices(kernels, max(where) + 1, chunks, validate=every, opaque=True) as here:
        here.place(1, made, where)
        try:
            for rank in made:
                rank.load(HOMES, 2 * CHUNK)
            assert [rank.finish() for rank in made] == [0] * len(made)
            begin_alike(made)
            yield here, made
        finally:
            here.leave(1)
    for rank in made:
        rank.close()


def reduce(rank: Computing) -> None:
    """All of the gradient's buffer."""
    rank.collective(ALLREDUCE, HOMES[2], HOMES[2], 2 * CHUNK // 4)


def train(rank: Computing, step: int) -> None:
    """Forward and backward pass, all-reduce, and an update of parameters and moments."""
    rank.launch("update", OWN, PARAMETERS, WORDS, step)
    rank.launch("scale", GRADIENT, OWN, WORDS, rank.rank)
    reduce(rank)
    rank.launch("update", MOMENTS, GRADIENT, WORDS, 1)
    rank.launch("update", PARAMETERS, MOMENTS, WORDS, 2)


def crosscheck(here: Devices, device: int = 0) -> dict[str, int]:
    status = here.natives[device].job_status(1)
    assert status
    found: dict[str, int] = status["guard"]
    return found


@pytest.mark.parametrize(("count", "chunks"), [(2, 128), (3, 128), (2, 14)])
def test_equal_opaque_launches_run_once(kernels: Loader, count: int, chunks: int) -> None:
    """Each step has four launches; two do the same for all ranks. Each is measured twice, and then
    every eighth time."""
    with opaque_ranks(kernels, [0] * count, chunks=chunks) as (here, made):
        squashed = []
        for step in range(STEPS):
            for rank in made:
                train(rank, step)
            sync(made)
            squashed.append(counts(here.natives[0], count)[1])
        parameters, moments = trained(count, STEPS)
        for rank in made:
            assert (words(rank, PARAMETERS), words(rank, MOMENTS)) == (parameters, moments)
        told = crosscheck(here)
    assert squashed[1] == 0
    steps = [after - before for before, after in pairwise(squashed)]
    each = 2 * (count - 1)
    assert steps[EVERY - 1] == 0 and set(steps) <= set(range(each + 1))
    assert steps[3 : EVERY - 1] == [each] * (EVERY - 4) and steps[-1] == each
    assert told["alike"] == 2
    assert 3 * 4 * count - 2 * count <= told["measured"] <= 4 * 4 * count


@pytest.mark.parametrize("where", [[0, 0], [0, 0, 1], [0, 0, 1, 1]], ids=str)
def test_an_opaque_launch_that_changes_raises_an_alarm(kernels: Loader, where: list[int]) -> None:
    """From the sixth step on an update reads what each rank has of its own. The job continues, and
    each rank does its own."""
    with opaque_ranks(kernels, where) as (here, made):
        here.spoilt = True

        def steps(first: int, last: int) -> None:
            for step in range(first, last):
                for rank in made:
                    reduce(rank)
                    rank.launch("perhaps", MOMENTS, OWN, WORDS, 99 if step < 6 else 0)
                    rank.launch("update", PARAMETERS, MOMENTS, WORDS, 2)
                sync(made)

        steps(0, 6)
        assert not any(here.alarms()) and crosscheck(here)["alike"] == 2
        steps(6, 2 * EVERY + 1)
        for told in here.alarms():
            assert told
            found = re.fullmatch(
                r"opaque code: kernel perhaps, after collective (\d+) of communicator 0x[0-9a-f]+, "
                r"had different effects for rank (\d) and rank (\d); before, its effects were "
                r"equal, last after collective (\d+): results that were computed once for both "
                r"since then may be wrong",
                told[0],
            )
            assert found
            now, one, other, then = map(int, found.groups())
            assert one != other and where[one] == where[other]
            assert then < 6 < now <= EVERY + 1
        assert crosscheck(here)["alike"] == 0
        squashed = [native.status()["squashed"] for native in here.natives]
        measured = crosscheck(here)["measured"]
        for rank in made:  # from what each has now
            rank.write(PARAMETERS, bytes(range(96)) * 4)
            rank.write(MOMENTS, bytes(range(96)) * 4)
        steps(2 * EVERY + 1, 2 * EVERY + 4)
        assert [native.status()["squashed"] for native in here.natives] == squashed
        assert crosscheck(here)["measured"] == measured
        begun = struct.unpack(f"<{WORDS}I", bytes(range(96)) * 4)
        for rank in made:
            own = words(rank, OWN)
            expected = [(x + 3 * 3 * y) % 2**32 for x, y in zip(begun, own, strict=True)]
            assert words(rank, MOMENTS) == expected


def test_a_kernel_that_writes_elsewhere_is_noticed_and_measured_again(kernels: Loader) -> None:
    """A kernel that each rank runs alone writes to another buffer from some step on."""
    with opaque_ranks(kernels, [0, 0], every=1000) as (here, made):
        expected = [[0] * WORDS for _ in made]
        given = [PARAMETERS, MOMENTS + 4]
        far = CHUNK // 512 + 2  # into the buffer behind
        at = OWN + 512 * far
        measured, strays = 0, []
        for step in range(12):
            for rank in made:
                reduce(rank)
                rank.launch("beyond", OWN, given[rank.rank], WORDS, far if step > 8 else 0)
            sync(made)
            if step == 8:
                measured = crosscheck(here)["measured"]
                assert [words(rank, at) for rank in made] == expected
            strays.append(here.natives[0].status()["unforeseen"])
        for rank in made:
            assert words(rank, at) == words(rank, given[rank.rank])
        assert crosscheck(here)["measured"] == measured
        assert strays[8] == 0 < strays[9] == strays[11]


def test_a_rank_that_does_something_else_goes_alone(kernels: Loader) -> None:
    with opaque_ranks(kernels, [0, 0], every=1000) as (here, made):
        for step in range(STEPS):
            for rank in made:
                reduce(rank)
                odd = step in (7, 8) and rank.rank == 1
                rank.launch("update", MOMENTS, GRADIENT, WORDS, 7 if odd else 1)
                if not (step == 10 and rank.rank == 0):
                    rank.launch("update", PARAMETERS, MOMENTS, WORDS, 2)
            sync(made)
        assert counts(here.natives[0], 2)[1] > 0
        for rank in made:
            p = m = list(struct.unpack(f"<{WORDS}I", bytes(range(96)) * 4))
            for step in range(STEPS):
                odd = step in (7, 8) and rank.rank == 1
                m = [(word * 5 + (7 if odd else 1)) % 2**32 for word in m]
                if not (step == 10 and rank.rank == 0):
                    p = [(x * 5 + y + 2) % 2**32 for x, y in zip(p, m, strict=True)]
            assert (words(rank, PARAMETERS), words(rank, MOMENTS)) == (p, m)


def test_a_skipped_launch_does_not_shift_comparisons(kernels: Loader) -> None:
    """The same launch comes after each of two collectives, and one rank makes only the first."""
    with opaque_ranks(kernels, [0, 0], every=1000) as (here, made):
        for step in range(STEPS):
            for rank in made:
                rank.write(OTHER, bytes([step + 1]) * 4 * WORDS)
                reduce(rank)
                rank.launch("scale", MOMENTS, OTHER, WORDS, 1)
                reduce(rank)
                if rank.rank:
                    rank.launch("scale", MOMENTS, OTHER, WORDS, 1)
            sync(made)
            expected = (int.from_bytes(bytes([step + 1]) * 4, "little") * 3 + 1) % 2**32
            for rank in made:
                assert words(rank, MOMENTS) == [expected] * WORDS
        assert counts(here.natives[0], 2)[1] > STEPS // 2


@pytest.mark.slow
def test_one_that_waits_for_what_is_behind_it_is_not_measured_forever(kernels: Loader) -> None:
    """A kernel spins until a copy on another stream, which is held up, has come."""
    with opaque_ranks(kernels, [0, 0], every=1000) as (_here, made):
        for rank in made:
            rank.post(STREAM_CREATE, struct.pack("<QIi", 100, 1, 0))
        for step in range(2):
            for rank in made:
                reduce(rank)
                rank.launch("until", MOMENTS, OTHER, 1, 0)
                rank.write(OTHER, struct.pack("<I", step + 1), stream=100)
            for rank in made:
                rank.begin(DEVICE_SYNC)
            assert [rank.finish(wait=60.0) for rank in made] == [0, 0]
            for rank in made:
                assert words(rank, MOMENTS)[0] == step + 1
                rank.write(OTHER, bytes(4))
            sync(made)


@settings(max_examples=12, derandomize=True, **COMMON)
@given(program=programs(16))
def test_no_rank_can_tell_while_all_is_measured(kernels: Loader, program: Program) -> None:
    check(kernels, program, measured_every=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=150, **COMMON)
@given(program=programs(40))
def test_no_rank_can_tell_while_all_is_measured_for_long(kernels: Loader, program: Program) -> None:
    check(kernels, program, measured_every=1)


def again_and_again() -> st.SearchStrategy[Program]:
    """Programs that do the same for several steps, each of which ends with a reduction."""

    def repeat(program: Program, times: int) -> Program:
        step = [
            *(each for each in program.steps if each.op.kind != "free"),
            Step(Op("reduce", REDUCED)),
        ]
        return Program(program.ranks, program.chunks, step * times, None, [], program.order)

    return st.builds(repeat, programs(8), st.integers(4, 6))


SQUASHED: list[bool] = []
# Each time from what it left the time before.
AGAIN = [
    Step(Op("reduce", REDUCED)),
    Step(Op("update", 0, 0)),
    Step(Op("update", 1, 0)),
]
# The other ranks agree on a kernel that one rank is about to measure.
AHEAD = [
    *[Step(Op("update", 0, 0))] * 3,
    Step(Op("update", 0, 0, stream=2)),
    Step(Op("reduce", REDUCED)),
]


@settings(max_examples=12, derandomize=True, **COMMON)
@given(program=again_and_again())
@example(Program(2, 96, AGAIN * 6, None, [], [(0, 1)]))
@example(Program(2, 96, AHEAD * 4, None, [], [(0, 1)]))
def test_no_rank_can_tell_what_is_trusted(kernels: Loader, program: Program) -> None:
    squashed = check(kernels, program, measured_every=1000)
    event("squashed" if squashed else "not squashed")
    SQUASHED.append(squashed > 0)


def test_enough_is_trusted() -> None:
    assert not SQUASHED or sum(SQUASHED) >= 0.2 * len(SQUASHED)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=150, **COMMON)
@given(program=again_and_again())
def test_no_rank_can_tell_what_is_trusted_for_long(kernels: Loader, program: Program) -> None:
    check(kernels, program, measured_every=1000)
