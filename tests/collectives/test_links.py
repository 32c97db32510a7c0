"""At D0 a library sums between the devices of a communicator, if all of them have it: links.

All devices decide alike, before their first all-reduce; the library's calls are the same on all of
them, in the same order; its memory is used by one piece at a time; and nothing waits for a call
that will not come.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import engine as e
from collectives import test_early
from collectives.links import CONNECTED, NAMED, OPENED, VERSION, Wishes
from collectives.reference import over_links, result
from collectives.test_aborts import COUNT, OTHER, TO, all_abort, numbers, steps, works
from collectives.test_collectives import (
    COMM,
    Native,
    engine,
    fresh,
    join_all,
    relaxed,
    run_one,
    start,
)

PIECE = 1024
KINDS = [e.ALLREDUCE, e.ALLREDUCE, e.REDUCE, e.BROADCAST, e.ALLGATHER, e.REDUCESCATTER]


@pytest.fixture(scope="module")
def coll(tmp_path_factory: pytest.TempPathFactory) -> Native:
    return engine(tmp_path_factory.mktemp("links"), f"-DCOLL_PIECE_BYTES={PIECE}ull")


def decided(cluster: e.Cluster) -> set[tuple[int, int, str]]:
    """Their decisions about COMM, which are equal."""
    found = [d.links.decided for d in cluster.device if d.number in cluster.placement]
    assert len({len(each) for each in found}) == 1
    return {each for device in found for each in device}


def by_links(placement: list[int], dtype: str) -> Any:
    """The reference where the library sums."""
    piece = PIECE // np.dtype(dtype).itemsize // 64 * 64

    def reference(
        kind: int, send: list[e.Array], before: list[e.Array], count: int, op: int, root: int
    ) -> list[e.Array]:
        if kind != e.ALLREDUCE or not count:
            return result(kind, send, before, count, op, root)
        return [over_links(send, placement, op, piece)] * len(send)

    return reference


@st.composite
def wishes(draw: st.DrawFn, devices: int) -> Wishes:
    """Mostly all have it; or one device, or two, have not, or fail."""
    some = st.integers(0, devices - 1)
    return Wishes(
        none=frozenset(draw(st.sets(some, max_size=1))) if draw(st.booleans()) else frozenset(),
        fails=draw(st.dictionaries(some, st.sampled_from([OPENED, NAMED, CONNECTED]), max_size=2))
        if draw(st.booleans())
        else {},
        versions={draw(some): VERSION + 1} if draw(st.integers(0, 5)) == 0 else {},
        gpus={draw(some): 0} if draw(st.integers(0, 5)) == 0 else {},
    )


def fits(wish: Wishes, used: list[int]) -> bool:
    """Whether these devices have what they need. Only the lowest one makes an id."""
    fails = {d for d in used if wish.fails.get(d) and (wish.fails[d] != NAMED or d == used[0])}
    versions = {wish.versions.get(d, VERSION) for d in used}
    gpus = [wish.gpus.get(d, d) for d in used]
    return not (wish.none & set(used) or fails or len(versions) > 1) and len(set(gpus)) == len(used)


def any_calls(coll: Native, data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 7))
    placement = [data.draw(st.integers(0, min(n, 4) - 1)) for _ in range(n)]
    seed = data.draw(st.integers(0, 2**32))
    wish = data.draw(wishes(max(placement) + 1))
    used = sorted(set(placement))
    r = random.Random(seed)
    cluster = start(coll, placement, seed, links=wish)
    join_all(cluster)
    assert decided(cluster) == set()  # no one has called anything
    linked, reduced = len(used) > 1 and fits(wish, used), False
    for _ in range(4):
        kind, dtype = r.choice(KINDS), r.choice(["float32", "float16", "int64", "float64"])
        count, op = r.choice([0, 1, 65, 700, 2000]), r.randrange(5)
        reference = by_links(placement, dtype) if linked else result
        count = min(count, 60000 // (2 * n * 8)) if kind != e.ALLREDUCE else count
        run_one(cluster, r, kind, dtype, count, op, r.randrange(n), r.random() < 0.5, reference)
        reduced |= kind == e.ALLREDUCE and count > 0 and len(used) > 1
        said = decided(cluster)
        assert len(said) == reduced
        assert {not why for _, _, why in said} <= {linked}
    sums = {d.links.used for d in cluster.device if d.number in used}
    assert len(sums) == 1 and (sums == {0}) == (not linked or not reduced)
    cluster.close()


@relaxed
@given(st.data())
def test_all_devices_decide_alike_and_sum_in_its_order(coll: Native, data: st.DataObject) -> None:
    any_calls(coll, data)


@relaxed
@given(st.data())
def test_several_sums_in_two_communicators_at_the_same_time(
    small: Native, data: st.DataObject
) -> None:
    """Called in any order, in place or not, with early sums; of all types and operations."""
    test_early.any_calls(small, data, Wishes())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Native:
    return engine(tmp_path_factory.mktemp("small-links"), test_early.SMALL)


@relaxed
@given(st.data())
def test_all_abort_at_any_time(coll: Native, data: st.DataObject) -> None:
    """Before the devices have decided, meanwhile, or in the middle of the library's sums."""
    all_abort(coll, data, Wishes())


def sum_of(count: int = COUNT, dtype: int = 2, op: int = e.SUM) -> list[dict[str, int]]:
    return [{"kind": e.ALLREDUCE, "dtype": dtype, "count": count, "op": op, "recv": TO}]


def test_calls_that_differ_are_found_before_the_library_sums(coll: Native) -> None:
    cluster = start(coll, [0, 1, 2], 4, links=Wishes())
    join_all(cluster)
    works(cluster, COMM)
    sums = cluster.device[0].links.used
    for rank in range(3):
        cluster.submit(rank, COMM, sum_of(COUNT if rank else COUNT - 1))
    cluster.settle()
    assert cluster.failure and "ranks differ in a collective" in cluster.failure
    assert [d.links.used for d in cluster.device] == [sums] * 3
    cluster.close()


def test_no_call_is_made_before_all_have_called(coll: Native) -> None:
    """A call of the library occupies the device until all members have made it."""
    cluster = start(coll, [0, 1, 1], 4, links=Wishes())
    join_all(cluster)
    works(cluster, COMM)
    for rank in (0, 1):
        cluster.submit(rank, COMM, sum_of())
    cluster.settle()
    assert all(
        len(link.calls) == link.done for d in cluster.device for link in d.links.open.values()
    )
    cluster.submit(2, COMM, sum_of())
    cluster.settle()
    assert len(cluster.completed) == 6 and not cluster.busy
    cluster.close()


@pytest.mark.parametrize("device", [0, 1])
def test_a_library_that_fails_later_fails_the_job(coll: Native, device: int) -> None:
    cluster = start(coll, [0, 1], 4, links=Wishes())
    join_all(cluster)
    works(cluster, COMM)
    cluster.device[device].links.break_all("a cable is gone")
    cluster.settle()
    assert cluster.failure == "the library that sums between devices has failed: a cable is gone"
    assert all(link.now for link in cluster.device[device].links.open.values())
    cluster.close()


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_an_engine_that_ends_at_any_time_leaves_no_link(coll: Native, at: int) -> None:
    """As where a job is discarded, or fails: in the middle of sums, too."""
    cluster = start(coll, [0, 1, 0, 2], at, links=Wishes())
    join_all(cluster)
    for rank in range(4):
        cluster.submit(rank, COMM, sum_of())
    for _ in range(at):
        cluster.step()
    if at % 2:
        cluster.lib.coll_links_end(cluster.device[0].coll)
        assert all(link.now for link in cluster.device[0].links.open.values())
        steps(cluster, 20)
    cluster.close()


@pytest.mark.parametrize("seed", range(6))
def test_each_epoch_decides_again(coll: Native, seed: int) -> None:
    """A job that was saved and restored elsewhere: communicators of new links, or of none."""
    r = random.Random(seed)
    n, memory = 4, fresh(4)
    placement, wish = [0, 1, 1, 0], Wishes()
    cluster = start(coll, placement, seed, memory, wish)
    join_all(cluster)
    for _ in range(3):
        linked = len(set(placement)) > 1 and not wish.none
        reference = by_links(placement, "float32") if linked else result
        for _ in range(2):
            run_one(cluster, r, e.ALLREDUCE, "float32", 700, e.SUM, 0, False, reference)
        images = [cluster.save(rank) for rank in range(n)]
        cluster.close()
        placement = [r.randrange(3) for _ in range(n)]
        wish = Wishes(none=frozenset([placement[0]] if r.random() < 0.3 else []))
        cluster = start(coll, placement, seed, memory, wish)
        for rank, image in enumerate(images):
            assert image and cluster.restore(rank, image) == 0
    cluster.close()


def test_a_communicator_that_is_destroyed_closes_its_link(coll: Native) -> None:
    cluster = start(coll, [0, 1], 4, links=Wishes())
    join_all(cluster)
    cluster.init(OTHER, [0, 1], 77)
    cluster.settle()
    for comm in (COMM, OTHER):
        works(cluster, comm)
    assert [len(d.links.open) for d in cluster.device] == [2, 2]
    for rank in range(2):
        cluster.lib.coll_destroy(cluster.coll(rank), rank, COMM)
    cluster.settle()
    assert [len(d.links.open) for d in cluster.device] == [1, 1]
    works(cluster, OTHER)
    assert (numbers(cluster, 0)[TO // 4 : TO // 4 + COUNT] == np.arange(COUNT) * 2 + 1).all()
    cluster.close()


def test_a_refusal_before_a_device_asks_leaves_nothing(coll: Native) -> None:
    """The lowest device has all answers, so the communicator goes with its members; the next one
    with this id is a new one."""
    cluster = start(coll, [0, 1, 2], 4, links=Wishes(none=frozenset([1])))
    for round_ in (1, 2):
        join_all(cluster)
        for rank in (0, 1, 2):
            cluster.submit(rank, COMM, sum_of())
            cluster.settle()
        assert len(cluster.completed) == 3 * round_ and not cluster.busy
        assert [len(d.links.decided) for d in cluster.device] == [round_] * 3
        for rank in range(3):
            cluster.lib.coll_destroy(cluster.coll(rank), rank, COMM)
        cluster.settle()
    cluster.close()
