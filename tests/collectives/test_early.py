"""Promise: what members in one place have given in place is added before all have called, and one
input less is kept for each such sum; and the bits are those of the one summation tree, whatever the
order of the calls, the placement, the type and the operation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collectives import engine as e
from collectives.links import NO_LINKS, Wishes
from collectives.reference import over_links, reduced
from collectives.test_collectives import COMM, Native, engine, fresh, join_all, start, values

SMALL_PIECE = 256  # operations have several pieces
SMALL = f"-DCOLL_PIECE_BYTES={SMALL_PIECE}ull"
REDOP = 500
relaxed = settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def coll(tmp_path_factory: pytest.TempPathFactory) -> Native:
    return engine(tmp_path_factory.mktemp("early"), SMALL)


@dataclass
class Operation:
    """An all-reduce. in_place[i]: of the communicator's i-th member."""

    comm: int
    members: list[int]
    dtype: str
    op: int
    count: int
    at: int
    in_place: list[bool]
    scalars: list[float] | None = None

    def begin(self, memory: list[Any], r: random.Random) -> None:
        self.given = [values(r, self.dtype, self.count) for _ in self.members]
        for rank, data in zip(self.members, self.given, strict=True):
            memory[rank][self.at : self.at + data.nbytes] = data.view(np.uint8)

    def recv(self, index: int) -> int:
        return self.at if self.in_place[index] else self.at + 8192

    def call(self, cluster: e.Cluster, index: int) -> None:
        rank, op = self.members[index], self.op
        if self.scalars:
            op = REDOP + self.comm
            scalar = np.array(self.scalars[index], self.dtype).tobytes().ljust(8, b"\0")
            cluster.lib.coll_redop(
                cluster.coll(rank), rank, self.comm, op, e.DTYPES[self.dtype], scalar
            )
        cluster.submit(
            rank,
            self.comm,
            [
                {
                    "kind": e.ALLREDUCE,
                    "dtype": e.DTYPES[self.dtype],
                    "count": self.count,
                    "op": op,
                    "send": self.at,
                    "recv": self.recv(index),
                }
            ],
        )
        if self.scalars:
            cluster.lib.coll_redop_destroy(cluster.coll(rank), rank, op)

    def check(self, memory: list[Any], linked: list[int] | None = None) -> None:
        """`linked`: where all ranks are, if a library sums between devices."""
        given = self.given
        if self.scalars:
            factors = [np.array(s, self.dtype) for s in self.scalars]
            given = [data * factor for data, factor in zip(given, factors, strict=True)]
        op = e.SUM if self.scalars else self.op
        where = [linked[rank] for rank in self.members] if linked else [0]
        piece = SMALL_PIECE // given[0].itemsize
        want = reduced(given, op)
        if len(set(where)) > 1:
            want = over_links(given, where, op, piece)
        for index, rank in enumerate(self.members):
            at = self.recv(index)
            got = memory[rank][at : at + want.nbytes]
            assert got.tobytes() == want.tobytes(), (index, self)
            if not self.in_place[index]:
                kept = memory[rank][self.at : self.at + want.nbytes]
                assert kept.tobytes() == self.given[index].tobytes(), "an input that is const"


@st.composite
def operations(draw: st.DrawFn, comm: int, members: list[int], at: int) -> Operation:
    dtype = draw(st.sampled_from(sorted(e.DTYPES)))
    count = draw(st.sampled_from([1, 3, 31, 64, 65, 200, 700]))
    kind = draw(st.sampled_from(["all", "all", "some", "none"]))
    scalars = None
    if dtype in ("float32", "float64") and draw(st.booleans()):
        scalars = [draw(st.sampled_from([0.1, 0.3, 0.7, 1.5])) for _ in members]
    return Operation(
        comm,
        members,
        dtype,
        draw(st.integers(0, 4)),
        count,
        at,
        [kind == "all" or (kind == "some" and draw(st.booleans())) for _ in members],
        scalars,
    )


def order(
    r: random.Random, of_each: dict[int, list[tuple[Operation, int]]]
) -> Iterator[tuple[Operation, int]]:
    """Each rank's calls in its order, the ranks in any: often all of one after the other."""
    left = {rank: list(calls) for rank, calls in of_each.items() if calls}
    while left:
        rank = r.choice(sorted(left))
        for _ in range(r.choice([1, 1, len(left[rank])])):
            yield left[rank].pop(0)
            if not left[rank]:
                del left[rank]
                break


def any_calls(coll: Native, data: st.DataObject, links: Wishes = NO_LINKS) -> None:
    n = data.draw(st.integers(2, 8))
    r = random.Random(data.draw(st.integers(0, 2**32)))
    placement = [r.randrange(r.choice([1, 2, n])) for _ in range(n)]
    placement = [sorted(set(placement)).index(device) for device in placement]
    memory = fresh(n)
    cluster = start(coll, placement, r.randrange(2**32), memory, links)
    join_all(cluster)
    part = r.sample(range(n), r.randrange(2, n + 1))  # another order of ranks: another tree
    cluster.init(COMM + 1, part, 8)
    cluster.settle()
    cluster.keeps = data.draw(st.sampled_from([None, None, 0, 1]))
    for _ in range(2):
        made = [
            data.draw(
                operations(
                    *data.draw(st.sampled_from([(COMM, list(range(n))), (COMM + 1, part)])),
                    at=16384 * number,
                )
            )
            for number in range(data.draw(st.integers(1, 4)))
        ]
        for each in made:
            each.begin(memory, r)
        calls: dict[int, list[tuple[Operation, int]]] = {rank: [] for rank in range(n)}
        for each in made:
            for index, rank in enumerate(each.members):
                calls[rank].append((each, index))
        for each, index in order(r, calls):
            each.call(cluster, index)
            for _ in range(r.choice([0, 1, 5, 10_000])):
                if not cluster.step():
                    break
        cluster.settle()
        assert cluster.failure is None and not cluster.busy
        for each in made:
            each.check(memory, placement if links.allowed else None)
    assert len(cluster.completed) == cluster.tickets
    assert not any(d.blocks for d in cluster.device)
    cluster.close()


@relaxed
@given(st.data())
def test_the_bits_are_those_of_the_tree(coll: Native, data: st.DataObject) -> None:
    """Several operations in flight, in two communicators, in any order of calls."""
    any_calls(coll, data)


def called(
    coll: Native,
    placement: list[int],
    calls: list[int],
    *,
    in_place: bool = True,
    keeps: int | None = 1,
    scalars: list[float] | None = None,
    at: int = 0,
) -> tuple[e.Cluster, Operation]:
    n = len(placement)
    memory = fresh(n)
    cluster = start(coll, placement, 5, memory)
    join_all(cluster)
    cluster.keeps = keeps
    op = Operation(COMM, list(range(n)), "float32", e.AVG, 200, at, [in_place] * n, scalars)
    op.begin(memory, random.Random(3))
    for rank in calls:
        op.call(cluster, rank)
        cluster.settle()
    return cluster, op


@pytest.mark.parametrize(
    ("calls", "kept"),
    [
        ([0, 1], {1}),
        ([1, 0], {1}),
        ([1, 2], {1, 2}),  # no node of the tree
        ([0, 1, 2], {1, 2}),
        ([0, 1, 2, 3], {3}),
        ([3, 0, 2, 1], {3}),
        ([0, 1, 2, 3, 4, 5, 6], {3, 5, 6}),
        ([0, 2, 4, 6], {0, 2, 4, 6}),
    ],
)
def test_the_rank_whose_input_holds_the_sum(coll: Native, calls: list[int], kept: set[int]) -> None:
    cluster, op = called(coll, [0] * 8, calls)
    assert set(calls) - set(cluster.forgotten) == kept
    assert all(count == 4 * op.count for count in cluster.forgotten.values())
    assert cluster.busy and not cluster.completed
    for rank in set(range(8)) - set(calls):
        op.call(cluster, rank)
    cluster.settle()
    op.check(cluster.memory)
    cluster.close()


@pytest.mark.parametrize("n", [3, 8])
def test_a_prescaled_input_is_scaled_once(coll: Native, n: int) -> None:
    scalars = [0.1 * (rank + 3) for rank in range(n)]
    cluster, op = called(coll, [0] * n, list(range(n)), scalars=scalars)
    assert len(cluster.forgotten) == (n - 1) - (n - 1).bit_count()
    op.check(cluster.memory)
    cluster.close()


def test_elements_begin_where_they_want(coll: Native) -> None:
    """Sums read aligned inputs in place; the device refuses other addresses."""
    for at in (0, 1, 2, 64):
        cluster, op = called(coll, [0, 0, 0, 1], [3, 1, 0, 2], at=at)
        op.check(cluster.memory)
        cluster.close()


def test_inputs_that_must_stay_are_kept(coll: Native) -> None:
    """Constant inputs, inputs that a rank has to keep, and inputs that meet others on another
    device."""
    for placement, more in (
        ([0] * 4, {"in_place": False}),
        ([0] * 4, {"keeps": e.EACH}),
        ([0, 1, 0, 1], {}),
        ([0, 1, 1, 0], {}),
    ):
        cluster, op = called(coll, placement, [0, 1, 2], **more)
        assert not cluster.forgotten and not cluster.written
        op.call(cluster, 3)
        cluster.settle()
        op.check(cluster.memory)
        cluster.close()


def test_later_operations_are_added_while_earlier_ones_wait(coll: Native) -> None:
    n = 4
    memory = fresh(n)
    cluster = start(coll, [0] * n, 9, memory)
    join_all(cluster)
    cluster.keeps = 0
    made = [
        Operation(COMM, list(range(n)), "float32", e.SUM, 100, 4096 * k, [True] * n)
        for k in range(9)
    ]
    for each in made:
        each.begin(memory, random.Random(each.at))
    for rank in (1, 0):
        for each in made:
            each.call(cluster, rank)
    cluster.settle()
    assert cluster.forgotten == {1: len(made) * 400}
    for rank in (2, 3):
        for each in made:
            each.call(cluster, rank)
    cluster.settle()
    for each in made:
        each.check(memory)
    cluster.close()


def test_a_rank_that_calls_something_else_is_named_anyway(coll: Native) -> None:
    cluster, op = called(coll, [0] * 4, [0, 1])
    assert cluster.forgotten
    op.count += 1
    op.call(cluster, 2)
    cluster.settle()
    assert cluster.failure and "rank 0 calls AllReduce of 200" in cluster.failure
    assert "rank 2 calls AllReduce of 201" in cluster.failure
    cluster.close()


def test_an_engine_may_go_while_sums_are_under_way(coll: Native) -> None:
    for steps in range(12):
        cluster, op = called(coll, [0] * 4, [0])
        op.call(cluster, 1)
        for _ in range(steps):
            cluster.step()
        assert not cluster.save(0)
        cluster.close()
