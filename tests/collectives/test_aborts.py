"""A rank aborts a communicator in the middle of its operations: coll_abort.

Its own operations end, and nothing touches its memory any more; what all had called before is
right where it completes; another communicator works; when all have left, nothing is left over.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import engine as e
from collectives.links import NO_LINKS, Wishes
from collectives.test_collectives import COMM, Native, engine, join_all, relaxed, start
from support import native

OTHER, CHILD = COMM + 1, COMM + 2
COUNT = 600  # of int32: several pieces, and parts of a send, of 1 KiB
TO = 32768  # where results go


@pytest.fixture(scope="module")
def coll(tmp_path_factory: pytest.TempPathFactory) -> Native:
    return engine(tmp_path_factory.mktemp("aborts"), "-DCOLL_PIECE_BYTES=1024ull")


def operation(r: random.Random, n: int, rank: int, kind: int) -> list[dict[str, int]]:
    """One of a kind that all members call; sends go around in a ring."""
    common = {"dtype": 2, "count": COUNT, "send": 0, "recv": TO}
    if kind == e.SEND:
        return [
            {**common, "kind": e.SEND, "root": (rank + 1) % n},
            {**common, "kind": e.RECV, "root": (rank - 1) % n},
        ]
    if kind == e.ALLREDUCE and r.random() < 0.5:
        common["recv"] = 0
    return [{**common, "kind": kind, "op": e.SUM, "root": 0}]


def steps(cluster: e.Cluster, most: int) -> None:
    for _ in range(cluster.random.randrange(most + 1)):
        cluster.step()


def numbers(cluster: e.Cluster, rank: int) -> e.Array:
    found: e.Array = cluster.memory[rank].view(np.int32)
    return found


def works(cluster: e.Cluster, comm: int) -> None:
    """Sums and sends of a communicator of all ranks."""
    n = len(cluster.placement)
    for rank in range(n):
        numbers(cluster, rank)[:COUNT] = np.arange(COUNT) + rank
        cluster.submit(
            rank, comm, [{"kind": e.ALLREDUCE, "dtype": 2, "count": COUNT, "op": e.SUM, "recv": TO}]
        )
    cluster.settle()
    assert cluster.failure is None
    want = np.arange(COUNT) * n + n * (n - 1) // 2
    for rank in range(n):
        assert (numbers(cluster, rank)[TO // 4 : TO // 4 + COUNT] == want).all()


def abort(cluster: e.Cluster, rank: int, comm: int) -> None:
    """Nothing changes the rank's memory once it was notified that it has left."""
    cluster.abort(rank, comm)
    while (rank, comm) not in cluster.left and cluster.step():
        pass
    assert (rank, comm) in cluster.left and cluster.failure is None


@relaxed
@given(st.data())
def test_all_abort_at_any_time(coll: Native, data: st.DataObject) -> None:
    all_abort(coll, data, NO_LINKS)


def all_abort(coll: Native, data: st.DataObject, links: Wishes) -> None:
    n = data.draw(st.integers(1, 5))
    devices = data.draw(st.integers(1, n))
    placement = [data.draw(st.integers(0, devices - 1)) for _ in range(n)]
    seed = data.draw(st.integers(0, 2**32))
    cluster, r = start(coll, placement, seed, links=links), random.Random(seed)
    join_all(cluster)
    cluster.init(OTHER, list(range(n)), 77)
    cluster.settle()
    if data.draw(st.booleans()):
        works(cluster, COMM)
    kind = r.choice([e.ALLREDUCE, e.BROADCAST, e.REDUCE, e.ALLGATHER, e.SEND])
    tickets: dict[int, int] = {}
    leaving = r.sample(range(n), n)
    missing = r.sample(range(n), r.randrange(n + 1))
    op = operation(r, n, 0, kind)
    for rank in r.sample(range(n), n):
        if rank not in missing:
            mine = operation(r, n, rank, kind) if kind == e.SEND else op
            tickets[rank] = cluster.submit(rank, COMM, mine)
        steps(cluster, 6)
    gone = []
    for rank in leaving:
        steps(cluster, 20)
        abort(cluster, rank, COMM)
        gone.append((rank, cluster.memory[rank].copy()))
        for other, before in gone:
            assert (cluster.memory[other] == before).all()
    cluster.settle()
    assert cluster.failure is None
    for rank, before in gone:
        assert (cluster.memory[rank] == before).all(), f"rank {rank} has left"
    assert set(tickets.values()) <= cluster.completed | cluster.aborted
    assert not cluster.completed & cluster.aborted and not cluster.busy
    assert not any(d.blocks or d.fetched or d.scratch for d in cluster.device)
    assert not any(d.links.open for d in cluster.device)
    works(cluster, OTHER)
    cluster.close()


@pytest.mark.parametrize("placement", [[0, 0, 0], [0, 1, 0], [0, 1, 2], [1, 0, 1]])
def test_others_are_notified_when_what_they_wait_for_never_comes(
    coll: Native, placement: list[int]
) -> None:
    cluster = start(coll, placement, 5)
    join_all(cluster)
    op = [{"kind": e.ALLREDUCE, "dtype": 2, "count": COUNT, "op": e.SUM, "recv": TO}]
    for rank in range(3):
        cluster.submit(rank, COMM, op)
    cluster.settle()
    abort(cluster, 0, COMM)
    cluster.settle()
    assert cluster.broken == {(1, COMM): False, (2, COMM): False}  # all they called is complete
    waits = cluster.submit(1, COMM, op)
    cluster.settle()
    assert cluster.broken == {(1, COMM): True, (2, COMM): False}
    assert waits not in cluster.completed | cluster.aborted
    receives = [{"kind": e.RECV, "dtype": 2, "count": 1, "root": 0, "recv": TO}]
    cluster.submit(2, COMM, receives)
    assert cluster.broken[2, COMM]
    assert cluster.busy
    for rank in (1, 2):
        abort(cluster, rank, COMM)
    cluster.settle()
    assert not cluster.busy and waits in cluster.aborted
    cluster.close()


def test_a_rank_that_has_not_heard_of_an_abort_yet_calls_more(coll: Native) -> None:
    """Its messages reach a member that has heard, and whose call is for nothing."""
    op = [{"kind": e.ALLREDUCE, "dtype": 2, "count": COUNT, "op": e.SUM, "recv": TO}]
    for seed in range(40):
        cluster = start(coll, [0, 1, 2], seed)
        join_all(cluster)
        cluster.abort(0, COMM)
        for rank in random.Random(seed).sample((1, 2), 2):
            steps(cluster, 5)
            cluster.submit(rank, COMM, op)
        cluster.settle()
        assert cluster.failure is None and cluster.broken == {(1, COMM): True, (2, COMM): True}
        for rank in (1, 2):
            abort(cluster, rank, COMM)
        cluster.settle()
        assert cluster.failure is None and not cluster.busy
        cluster.close()


@pytest.mark.parametrize("first", ["split", "abort"])
def test_a_split_of_an_aborted_communicator_is_hopeless(coll: Native, first: str) -> None:
    cluster = start(coll, [0, 1], 5)
    join_all(cluster)
    if first == "abort":
        abort(cluster, 0, COMM)
        cluster.settle()
    cluster.lib.coll_split(cluster.coll(1), 1, COMM, CHILD, 0, 0)
    cluster.settle()
    if first == "split":
        abort(cluster, 0, COMM)
        cluster.settle()
    assert cluster.broken[1, COMM] and (1, CHILD) not in cluster.joined
    cluster.close()


@pytest.mark.parametrize("placement", [[0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 1, 2]])
@pytest.mark.parametrize("when", ["before the others", "between", "when all have"])
def test_giving_up_a_joining_refuses_it_to_all(
    coll: Native, placement: list[int], when: str
) -> None:
    cluster = start(coll, placement, 9)
    unique = cluster.ffi.new("uint8_t[128]", (5).to_bytes(8, "little") + bytes(120))

    def join(rank: int) -> None:
        cluster.lib.coll_init(cluster.coll(rank), rank, CHILD, unique, 3, rank)

    join(1)
    if when != "before the others":
        join(0)
        cluster.settle()
    if when == "when all have":
        join(2)
    cluster.abort(1, CHILD)
    if when == "before the others":
        join(0)
    if when != "when all have":
        cluster.settle()
        join(2)
    cluster.settle()
    assert cluster.failure is None
    assert when == "when all have" or (1, CHILD) not in cluster.joined
    errors = {rank: cluster.joined[rank, CHILD][1] for rank in (0, 2)}
    if when != "when all have":
        assert errors == {0: 6, 2: 6}
    for rank in (0, 2):
        if not errors[rank]:
            cluster.submit(rank, CHILD, [{"kind": e.ALLREDUCE, "dtype": 2, "count": 1, "recv": TO}])
            cluster.settle()
            assert cluster.broken[rank, CHILD]
            abort(cluster, rank, CHILD)
    cluster.settle()
    assert not cluster.busy
    cluster.close()


@pytest.mark.parametrize("after", [[0, 0, 0], [1, 0, 0], [0, 1, 2]])
def test_a_broken_communicator_stays_so_elsewhere(coll: Native, after: list[int]) -> None:
    """Saved at a cut by those who still have it, restored on other devices."""
    cluster = start(coll, [0, 1, 0], 3)
    join_all(cluster)
    abort(cluster, 0, COMM)
    cluster.settle()
    assert not cluster.busy
    images = [cluster.save(rank) for rank in range(3)]
    memory = cluster.memory
    cluster.close()
    moved = e.Cluster(coll, after, max(after) + 1, 4, memory)
    assert [moved.restore(rank, images[rank]) for rank in range(3)] == [0, 0, 0]
    op = [{"kind": e.ALLREDUCE, "dtype": 2, "count": COUNT, "op": e.SUM, "recv": TO}]
    waits = moved.submit(1, COMM, op)
    moved.settle()
    assert moved.broken[1, COMM] and not moved.broken.get((2, COMM)) and moved.failure is None
    for rank in (1, 2):
        abort(moved, rank, COMM)
    moved.settle()
    assert waits in moved.aborted and not moved.busy
    moved.init(OTHER, [0, 1, 2], 123)
    moved.settle()
    works(moved, OTHER)
    moved.close()


WRONG = [
    (
        "a seat that was aborted closes",
        "abort.c",
        "s->closing = s->aborted = m->stopped = true;",
        "s->aborted = m->stopped = true;",
    ),
    ("groups of a seat that are not complete", "engine.c", "\tg->seat->groups--;\n", ""),
]


@pytest.mark.parametrize(("said", "file", "old", "new"), WRONG, ids=[w[0] for w in WRONG])
def test_a_wrong_count_or_link_is_named_before_a_save(
    tmp_path: Path, said: str, file: str, old: str, new: str
) -> None:
    text = (native.CORE / "collective" / file).read_text()
    assert text.count(old) == 1
    changed = tmp_path / file
    changed.write_text(text.replace(old, new))
    cluster = start(engine(tmp_path, changed=changed), [0, 1], 5)
    join_all(cluster)
    one = [{"kind": e.ALLREDUCE, "dtype": 2, "count": 1, "op": e.SUM, "recv": TO}]
    with pytest.raises(AssertionError, match=said):
        for rank in (0, 1):
            cluster.submit(rank, COMM, one)
        cluster.settle()
        cluster.abort(0, COMM)
        cluster.check()


@settings(relaxed, max_examples=30)
@given(st.data())
def test_a_send_to_a_member_that_has_left_is_taken(coll: Native, data: st.DataObject) -> None:
    """No rank receives it: it delays neither its rank nor a cut."""
    placement = data.draw(st.sampled_from([[0, 0], [0, 1], [1, 0]]))
    cluster = start(coll, placement, data.draw(st.integers(0, 2**32)))
    join_all(cluster)
    send = {"kind": e.SEND, "dtype": 2, "count": COUNT, "root": 1}
    first = cluster.submit(0, COMM, [send])
    steps(cluster, 8)
    abort(cluster, 1, COMM)
    second = cluster.submit(0, COMM, [send])
    cluster.settle()
    third = cluster.submit(0, COMM, [send])
    cluster.settle()
    assert {first, second, third} <= cluster.completed and not cluster.busy
    from_, to = cluster.ffi.new("uint32_t *"), cluster.ffi.new("uint32_t *")
    unreceived: Callable[..., Any] = cluster.lib.coll_unreceived
    assert not any(unreceived(d.coll, from_, to) for d in cluster.device)
    cluster.lib.coll_destroy(cluster.coll(0), 0, COMM)
    cluster.settle()
    assert not any(d.blocks for d in cluster.device)
    cluster.close()
