"""The barrier's properties."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from barrier import aborts, properties
from barrier.programs import KINDS
from barrier.world import Group, Init, Record, Round, World
from support import native

SOURCES = sorted((native.CORE / "barrier").glob("*.c"))
HEADER = native.CORE / "barrier/barrier.h"
Native = tuple[Any, Any]
SENT_BEFORE_EXIT = 228  # a seed of "pipeline": a rank exits when the receiver is rounds behind
ABORTED = [kind for kind in KINDS if kind != "silent"]  # those with communicators

relaxed = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def barrier(tmp_path_factory: pytest.TempPathFactory) -> Native:
    return native.load(native.build(tmp_path_factory.mktemp("barrier"), SOURCES), HEADER)


@relaxed
@given(seed=st.integers(0, 2**32))
def test_a_data_parallel_job_stops_within_two_mini_batches(barrier: Native, seed: int) -> None:
    """The cut is also reached if all ranks run ahead."""
    properties.stops_soon(barrier, seed)


@relaxed
@given(seed=st.integers(0, 2**32))
def test_a_round_that_is_under_way_decides(barrier: Native, seed: int) -> None:
    """The meta-allreduce alone, after one round for all."""
    properties.tandem_decides(barrier, seed)


@pytest.mark.slow
@relaxed
@given(seed=st.integers(0, 2**32))
def test_a_job_stops_where_it_stands_if_no_round_is_under_way(barrier: Native, seed: int) -> None:
    properties.stops_where_it_stands(barrier, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_is_consistent_and_every_job_ends(barrier: Native, kind: str) -> None:
    """Any program, placement, order of events; requests early, late, twice and withdrawn."""

    @relaxed
    @given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        properties.always_consistent(barrier, kind, seed)

    check()


@pytest.mark.parametrize("kind", ABORTED)
def test_every_cut_is_consistent_though_communicators_are_aborted(
    barrier: Native, kind: str
) -> None:
    """At any moment, by any rank: the rest of the job is not cut in half, and all ends."""

    @settings(relaxed, max_examples=25)
    @given(seed=st.integers(0, 2**32))
    def check(seed: int) -> None:
        properties.always_consistent(barrier, kind, seed, aborts=True)
        properties.stops_despite_aborts(barrier, kind, seed)

    check()


@pytest.mark.parametrize("rule", aborts.RULES, ids=lambda rule: rule.__name__)
def test_an_aborted_communicator_does_not_hold_up_a_cut(barrier: Native, rule: Any) -> None:
    rule(barrier)


def test_sends_of_an_ended_rank_are_received_before_the_cut(barrier: Native) -> None:
    """Its last sends are buffered; the receiver runs up to them."""
    properties.always_consistent(barrier, "pipeline", SENT_BEFORE_EXIT)


def test_messages_that_cannot_be_are_errors(barrier: Native) -> None:
    """A peer's nonsense ends in a text, not in a crash."""
    ffi, lib = barrier

    @relaxed
    @given(
        st.lists(
            st.tuples(
                *[st.integers(0, 2**32 - 1) | st.integers(0, 20)] * 4,
                *[st.integers(0, 2**64 - 1) | st.integers(0, 5)] * 5,
            ),
            min_size=1,
            max_size=30,
        )
    )
    def check(messages: list[tuple[int, ...]]) -> None:
        for device in range(2):
            b = lib.barrier_new(device, 2, 3, ffi.new("uint32_t[]", [0, 1, 1]))
            m = ffi.new("struct barrier_message *")
            for values in messages:
                m.to = device
                m.kind, m.rank, m.comm, m.a, m.b, m.c, m.d = values[1], values[2], *values[4:]
                setattr(m, "from", values[0] % 3)
                lib.barrier_receive(b, m)
                while lib.barrier_next_message(b, m):
                    assert m.to < 2
            lib.barrier_free(b)

    check()


def test_a_rank_that_joins_a_communicator_twice_counts_once(barrier: Native) -> None:
    """A program may pass one unique id to two ncclCommInitRank calls of a rank."""
    ffi, lib = barrier
    b = lib.barrier_new(0, 1, 2, ffi.new("uint32_t[]", [0, 0]))
    for _ in range(2):
        lib.barrier_joining(b, 0, 5, 2)
        assert lib.barrier_invalid(b) == ffi.NULL
    lib.barrier_comm_end(b, 0, 5)
    assert lib.barrier_invalid(b) == ffi.NULL
    lib.barrier_free(b)


def test_the_bound_on_unresolved_rounds_is_given_up_in_the_end(barrier: Native) -> None:
    """A rank whose partner waits for it outside their communicator continues, but not at once."""
    everyone = (0, 1)
    ahead: list[Record] = [Init(1, everyone), *[Group((Round(1, 5),))] * 20]
    world = World(barrier, [ahead, [Init(1, everyone)]], [0, 1], 2, seed=3)
    while world.step():
        pass
    assert world.ranks[0].rounds == 2  # the period of equal rounds, at least two
    for _ in range(29):
        world.hurry()
        assert not world.step()
    world.hurry()
    while world.step():
        pass
    assert world.ranks[0].rounds == 20
    world.close()
