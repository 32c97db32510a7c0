"""Every kind of collective, under every placement, gives the bits of the one summation tree."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from collectives import engine as e
from collectives.links import NO_LINKS, Wishes
from collectives.reference import result, sizes
from support import native

Native = tuple[Any, Any]
COMM = 99
ROOM = 1 << 16
relaxed = settings(
    deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


# For the engine `small`: a part of a send, and what may be sent and not received.
PART, SENT, SENT_ALL, SENT_LEAST = 1024, 4096, 6144, 64


def engine(folder: Path, *args: str, changed: Path | None = None) -> Native:
    """A changed file takes the place of the one with its name."""
    sources = sorted((native.CORE / "collective").glob("*.c"))
    if changed:
        sources = [source for source in sources if source.name != changed.name] + [changed]
        args = (*args, f"-I{native.CORE / 'collective'}")
    library = native.build(folder, sources, warnings=not changed, args=args)
    channel = native.REPOSITORY / "interpose/channel/channel.h"
    hal = native.REPOSITORY / "proxy/hal/hal.h"
    return native.load(
        library,
        native.CORE / "collective/collective.h",
        before=native.structures(channel, "rf_record", "rf_collective")
        + native.structures(hal, "hal_ref", "hal_link_state", "hal_link_facts"),
    )


@pytest.fixture(scope="module")
def coll(tmp_path_factory: pytest.TempPathFactory) -> Native:
    return engine(tmp_path_factory.mktemp("collectives"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Native:
    """With little space for sends."""
    args = [
        f"-DCOLL_PIECE_BYTES={PART}ull",
        f"-DSENT_MAX={SENT}ull",
        f"-DSENT_ALL_MAX={SENT_ALL}ull",
        f"-DSENT_LEAST={SENT_LEAST}ull",
    ]
    return engine(tmp_path_factory.mktemp("small"), *args)


def values(r: random.Random, dtype: str, count: int) -> e.Array:
    """Such that the order of additions shows in the bits."""
    generator = np.random.default_rng(r.randrange(2**32))
    if np.dtype(dtype).kind == "f":
        spread = generator.standard_normal(count) * 10.0 ** generator.integers(-3, 3, count)
        return spread.astype(dtype)
    info = np.iinfo(dtype)
    return generator.integers(info.min, info.max, count, dtype=dtype, endpoint=True)


def fresh(ranks: int) -> list[Any]:
    return [np.zeros(ROOM, np.uint8) for _ in range(ranks)]


def run_one(
    cluster: e.Cluster,
    r: random.Random,
    kind: int,
    dtype: str,
    count: int,
    op: int,
    root: int,
    in_place: bool,
    reference: Callable[..., list[e.Array]] = result,
) -> None:
    """One collective of all ranks; compares all receive buffers with the reference."""
    n, size = len(cluster.placement), np.dtype(dtype).itemsize
    blocks_in, blocks_out = sizes(kind, n)
    send = [values(r, dtype, blocks_in * count) for _ in range(n)]
    before = [values(r, dtype, blocks_out * count) for _ in range(n)]
    recv_at = ROOM // 2
    order = list(range(n))
    r.shuffle(order)
    tickets = []
    for rank in order:
        memory = cluster.memory[rank]
        memory[recv_at : recv_at + before[rank].nbytes] = before[rank].view(np.uint8)
        send_at = 0
        to = recv_at
        if in_place and kind in (e.REDUCESCATTER, e.SCATTER):
            to = send_at + rank * count * size
        elif in_place:
            send_at = recv_at + (rank * count * size if blocks_out == n else 0)
        memory[send_at : send_at + send[rank].nbytes] = send[rank].view(np.uint8)
        if in_place:
            whole = memory[to : to + before[rank].nbytes].copy()
            before[rank] = whole.view(dtype)
        tickets.append(
            (
                rank,
                to,
                cluster.submit(
                    rank,
                    COMM,
                    [
                        {
                            "kind": kind,
                            "dtype": e.DTYPES[dtype],
                            "count": count,
                            "op": op,
                            "root": root,
                            "send": send_at,
                            "recv": to,
                        }
                    ],
                ),
            )
        )
        for _ in range(r.randrange(4)):
            cluster.step()
    cluster.settle()
    assert cluster.failure is None
    want = reference(kind, send, before, count, op, root)
    for rank, to, ticket in tickets:
        assert ticket in cluster.completed
        got = cluster.memory[rank][to : to + want[rank].nbytes]
        assert got.tobytes() == want[rank].tobytes(), (rank, kind, dtype, count, op)
    assert not cluster.busy
    assert not any(d.blocks for d in cluster.device)


def start(
    coll: Native,
    placement: list[int],
    seed: int,
    memory: list[Any] | None = None,
    links: Wishes = NO_LINKS,
) -> e.Cluster:
    devices = max(placement) + 1
    return e.Cluster(coll, placement, devices, seed, memory or fresh(len(placement)), links)


def join_all(cluster: e.Cluster) -> None:
    n = len(cluster.placement)
    cluster.init(COMM, list(range(n)), 7)
    cluster.settle()
    assert {cluster.joined[(r, COMM)][1:] for r in range(n)} == {(0, n, r) for r in range(n)}


def placements(n: int) -> list[list[int]]:
    """All ways to put n ranks on devices, except for the devices' names: each rank on one that an
    earlier one is on, or on the next."""
    found: list[list[int]] = [[]]
    for _ in range(n):
        found = [[*p, device] for p in found for device in range(max(p, default=-1) + 2)]
    return found


WAYS = {1: 1, 2: 2, 3: 5, 4: 15, 5: 52, 8: 4140}  # of so many ranks, by Bell's numbers


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, pytest.param(8, marks=pytest.mark.slow)])
def test_every_placement_gives_the_same_bits(coll: Native, n: int) -> None:
    ways = placements(n)
    assert len(ways) == len(set(map(tuple, ways))) == WAYS[n]
    for seed, placement in enumerate(ways):
        r = random.Random(seed)
        cluster = start(coll, placement, seed)
        join_all(cluster)
        run_one(cluster, r, e.ALLREDUCE, "float32", 37, e.SUM, 0, in_place=bool(seed % 2))
        cluster.close()


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 8))
    kind = draw(
        st.sampled_from(
            [
                e.ALLREDUCE,
                e.REDUCE,
                e.BROADCAST,
                e.ALLGATHER,
                e.REDUCESCATTER,
                e.ALLTOALL,
                e.GATHER,
                e.SCATTER,
            ]
        )
    )
    size = draw(st.sampled_from([0, 1, 3, 64, 65, 200]))
    return {
        "placement": [draw(st.integers(0, n - 1)) for _ in range(n)],
        "kind": kind,
        "dtype": draw(st.sampled_from(sorted(e.DTYPES))),
        "count": size,
        "op": draw(st.integers(0, 4)),
        "root": draw(st.integers(0, n - 1)),
        "in_place": kind != e.ALLTOALL and draw(st.booleans()),
        "seed": draw(st.integers(0, 2**32)),
    }


@relaxed
@given(cases())
def test_every_kind_type_and_operation(coll: Native, case: dict[str, Any]) -> None:
    r = random.Random(case["seed"])
    cluster = start(coll, case["placement"], case["seed"])
    join_all(cluster)
    for _ in range(2):
        run_one(
            cluster,
            r,
            case["kind"],
            case["dtype"],
            case["count"],
            case["op"],
            case["root"],
            case["in_place"],
        )
    cluster.close()


@pytest.mark.parametrize("kind", [e.ALLREDUCE, e.REDUCE, e.ALLGATHER, e.REDUCESCATTER])
def test_many_pieces(coll: Native, kind: int) -> None:
    """More data than one piece holds: owners rotate, and each device carries its share."""
    placement = [0, 1, 1, 2, 3]
    memory = [np.zeros(1 << 25, np.uint8) for _ in placement]
    cluster = start(coll, placement, 5, memory)
    join_all(cluster)
    r = random.Random(1)
    count = 1_500_000 if kind in (e.ALLREDUCE, e.REDUCE) else 200_000
    send = [values(r, "float32", count * sizes(kind, 5)[0]) for _ in placement]
    recv_at = 1 << 24
    for rank, data in enumerate(send):
        memory[rank][: data.nbytes] = data.view(np.uint8)
        cluster.submit(
            rank,
            COMM,
            [
                {
                    "kind": kind,
                    "dtype": 7,
                    "count": count,
                    "op": e.SUM,
                    "root": 3,
                    "send": 0,
                    "recv": recv_at,
                }
            ],
        )
    cluster.settle()
    blank = [np.zeros(count * sizes(kind, 5)[1], "float32")] * 5
    for rank, want in enumerate(result(kind, send, blank, count, e.SUM, 3)):
        assert memory[rank][recv_at : recv_at + want.nbytes].tobytes() == want.tobytes()
    assert not cluster.busy and len(cluster.completed) == 5
    if kind == e.ALLREDUCE:
        # A device reads partial sums of its own share, and the rest of the result, from others.
        for device in range(4):
            assert cluster.bytes_read[device] < 2.4 * count * 4
    cluster.close()


@pytest.mark.parametrize("chosen", [0, 1, 2, 3])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", [e.ALLREDUCE, e.BROADCAST, e.ALLGATHER, e.REDUCESCATTER])
def test_one_receives_for_all_of_its_device(
    coll: Native, kind: int, in_place: bool, chosen: int
) -> None:
    """No one else is written to, where the results are the same: it is handed to them."""
    placement, root, count = [0, 1, 0, 0, 2], 3, 64
    cluster = start(coll, placement, 7 * chosen + in_place)
    cluster.chosen = chosen  # of ranks 0, 2 and 3; the last choice: each of them
    cluster.keeps = e.EACH
    join_all(cluster)
    run_one(cluster, random.Random(chosen), kind, "float32", count, e.SUM, root, in_place)
    alike = chosen < 3 and kind != e.REDUCESCATTER
    assert cluster.handed == (2 if alike else 0)
    if alike:
        sender = kind == e.BROADCAST and in_place
        receiver = root if sender else [0, 2, 3][chosen]
        assert [rank for rank in (0, 2, 3) if cluster.written[rank]] == (
            [] if sender else [receiver]
        )
    cluster.close()


def test_a_receiver_elsewhere_is_written_to(coll: Native) -> None:
    cluster = start(coll, [0, 0, 0, 0], 3)
    cluster.chosen = 1
    join_all(cluster)
    for rank, recv in enumerate([512, 1024, 512, 1024]):
        cluster.memory[rank][:4] = np.array([rank + 1], np.int32).view(np.uint8)
        cluster.submit(
            rank, COMM, [{"kind": e.ALLREDUCE, "dtype": 2, "count": 1, "send": 0, "recv": recv}]
        )
    cluster.settle()
    for rank, recv in enumerate([512, 1024, 512, 1024]):
        assert cluster.memory[rank][recv] == 10 and not cluster.memory[rank][1536 - recv]
    assert cluster.handed == 2 and set(cluster.written) == {2, 3}
    cluster.close()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("placement", [[0], [0, 0], [0, 1], [0, 1, 0]])
def test_pre_multiplied_sum(coll: Native, placement: list[int], in_place: bool) -> None:
    """It works with one rank, too, and if the sent data is already at the receiving address."""
    cluster = start(coll, placement, 3)
    join_all(cluster)
    n, recv = len(placement), 0 if in_place else 64
    send = [np.array([1.5, 2.5], "float32") * (r + 1) for r in range(n)]
    factors = np.array([0.1, 0.3, 0.7], "float32")
    for rank in range(n):
        cluster.memory[rank][:8] = send[rank].view(np.uint8)
        scalar = factors[rank : rank + 1].tobytes() + bytes(4)
        cluster.lib.coll_redop(cluster.coll(rank), rank, COMM, 500 + rank, 7, scalar)
        cluster.submit(
            rank,
            COMM,
            [
                {
                    "kind": e.ALLREDUCE,
                    "dtype": 7,
                    "count": 2,
                    "op": 500 + rank,
                    "send": 0,
                    "recv": recv,
                }
            ],
        )
    cluster.settle()
    first, *others = (s * f for s, f in zip(send, factors, strict=False))
    for rank in range(n):
        want = sum(others, first)
        assert cluster.memory[rank][recv : recv + 8].tobytes() == want.tobytes()
    cluster.close()


@relaxed
@given(st.data())
def test_sends_match_receives_by_number(coll: Native, data: st.DataObject) -> None:
    """Several a pair, to oneself too, before or after they are posted, in groups or not."""
    n = data.draw(st.integers(1, 4))
    seed = data.draw(st.integers(0, 2**32))
    cluster = start(coll, [data.draw(st.integers(0, n - 1)) for _ in range(n)], seed)
    join_all(cluster)
    r = random.Random(seed)
    pairs = data.draw(
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), min_size=1, max_size=8)
    )
    todo: dict[int, list[dict[str, int]]] = {rank: [] for rank in range(n)}
    expected = []
    for number, (src, dst) in enumerate(pairs):
        count = r.choice([0, 1, 100])
        block = values(r, "int32", count)
        at = number * 512
        cluster.memory[src][at : at + block.nbytes] = block.view(np.uint8)
        todo[src].append({"kind": e.SEND, "dtype": 2, "count": count, "root": dst, "send": at})
        todo[dst].append(
            {"kind": e.RECV, "dtype": 2, "count": count, "root": src, "recv": 8192 + at}
        )
        expected.append((dst, 8192 + at, block))
    tickets = 0
    while any(todo.values()):
        rank = r.choice([k for k, ops in todo.items() if ops])
        cut = r.randrange(1, len(todo[rank]) + 1)
        cluster.submit(rank, COMM, todo[rank][:cut])
        todo[rank] = todo[rank][cut:]
        tickets += 1
        for _ in range(r.randrange(6)):
            cluster.step()
    cluster.settle()
    for rank, at, block in expected:
        assert cluster.memory[rank][at : at + block.nbytes].tobytes() == block.tobytes()
    assert len(cluster.completed) == tickets and not cluster.busy
    assert not any(d.blocks for d in cluster.device)
    cluster.close()


def outbox(cluster: e.Cluster) -> int:
    return sum(size for d in cluster.device for _, size in d.blocks.values())


def send_numbers(cluster: e.Cluster, src: int, dst: int, count: int, at: int = 0) -> int:
    op = {"kind": e.SEND, "dtype": 2, "count": count, "root": dst, "send": at}
    return cluster.submit(src, COMM, [op])


def receive_numbers(cluster: e.Cluster, src: int, dst: int, count: int, at: int) -> int:
    op = {"kind": e.RECV, "dtype": 2, "count": count, "root": src, "recv": at}
    return cluster.submit(dst, COMM, [op])


def test_a_send_waits_for_space_until_what_is_before_it_is_received(small: Native) -> None:
    cluster = start(small, [0, 1], 3)
    join_all(cluster)
    numbers = np.arange(8 * 256, dtype="int32")
    cluster.memory[0][: numbers.nbytes] = numbers.view(np.uint8)
    sends = [send_numbers(cluster, 0, 1, 512, at=1024 * k) for k in range(5)]  # of 2048 bytes
    cluster.settle()
    assert cluster.completed == set(sends[: SENT // 2048])
    assert outbox(cluster) == SENT and cluster.busy
    for k in range(len(sends)):
        received = receive_numbers(cluster, 0, 1, 512, at=32768)
        cluster.settle()
        assert received in cluster.completed
        assert set(sends[: k + 1 + SENT // 2048]) <= cluster.completed
        got = cluster.memory[1][32768 : 32768 + 2048].view("int32")
        assert list(got) == list(numbers[256 * k : 256 * k + 512])
    assert not cluster.busy and outbox(cluster) == 0
    cluster.close()


def test_small_sends_are_bounded_as_well(small: Native) -> None:
    """The records kept of each count, not only its bytes; so do the sends of all pairs together."""
    cluster = start(small, [0, 1, 1, 1, 1], 3)
    join_all(cluster)
    for dst in (1, 2, 3, 4):
        for _ in range(2 * SENT // SENT_LEAST):
            send_numbers(cluster, 0, dst, 0)
    cluster.settle()
    # The first fills its pair, the second the rest; the others have what every pair has.
    assert len(cluster.completed) == SENT_ALL // SENT_LEAST + 2
    cluster.close()


def test_a_pair_makes_progress_when_others_have_filled_the_buffer(small: Native) -> None:
    cluster = start(small, [0, 0, 0, 0], 3)
    join_all(cluster)
    for dst in (1, 2):
        send_numbers(cluster, 0, dst, 2048)
    cluster.settle()
    assert not cluster.completed
    last = send_numbers(cluster, 3, 1, 2048)
    got = receive_numbers(cluster, 3, 1, 2048, at=0)
    cluster.settle()
    assert cluster.completed == {last, got}
    cluster.close()


def test_sends_to_an_ended_rank_are_dropped(small: Native) -> None:
    cluster = start(small, [0, 1, 0], 3)
    join_all(cluster)
    waiting = [send_numbers(cluster, src, 1, 4096) for src in (0, 2)]
    cluster.settle()
    assert not cluster.completed and cluster.busy
    cluster.lib.coll_ended(cluster.coll(1), 1)
    cluster.settle()
    assert cluster.completed == set(waiting) and not cluster.busy
    later = send_numbers(cluster, 0, 1, 4096)
    cluster.settle()
    assert later in cluster.completed and not cluster.busy and outbox(cluster) == 0
    assert cluster.failure is None
    cluster.close()


def test_sends_to_an_ended_rank_need_no_communicator_there(coll: Native) -> None:
    """In the epoch after its end: no rank has brought its communicators."""
    cluster = start(coll, [0, 1], 3)
    join_all(cluster)
    image = cluster.save(0)
    cluster.close()
    cluster = start(coll, [0, 1], 4)
    assert cluster.restore(0, image) == 0
    early = send_numbers(cluster, 0, 1, 64)
    cluster.settle()
    assert early in cluster.completed and cluster.busy
    cluster.lib.coll_ended(cluster.coll(1), 1)
    send_numbers(cluster, 0, 1, 64)
    cluster.settle()
    assert not cluster.busy and cluster.failure is None
    cluster.close()


class Ranks:
    """Ranks that run groups one after the other, each when the one before it is complete."""

    def __init__(self, cluster: e.Cluster, programs: list[list[list[dict[str, int]]]]) -> None:
        self.cluster, self.programs = cluster, programs
        self.running: list[int | None] = [None] * len(programs)

    def ready(self) -> list[int]:
        return [
            rank
            for rank, groups in enumerate(self.programs)
            if groups
            and (self.running[rank] is None or self.running[rank] in self.cluster.completed)
        ]

    def run(self) -> None:
        placement, n = self.cluster.placement, len(self.programs)
        # Per device; each pair that sends from it may have one part more.
        most = [SENT_ALL + placement.count(d) * n * PART for d in range(self.cluster.devices)]
        while True:
            ready = self.ready()
            if ready and self.cluster.random.random() < 0.3:
                rank = self.cluster.random.choice(ready)
                self.running[rank] = self.cluster.submit(rank, COMM, self.programs[rank].pop(0))
            elif not self.cluster.step() and not ready:
                return
            for device, bytes_at_most in zip(self.cluster.device, most, strict=True):
                assert sum(size for _, size in device.blocks.values()) <= bytes_at_most


@relaxed
@given(st.integers(0, 2**32))
@example(3263)  # two devices that both send what they may
def test_operations_that_need_no_buffer_progress(small: Native, seed: int) -> None:
    """Sends and receives in one order for all, grouped anyhow: NCCL needs no buffer for these."""
    r = random.Random(seed)
    n = r.randrange(1, 6)
    memory = [np.zeros(1 << 19, np.uint8) for _ in range(n)]
    cluster = start(small, [r.randrange(n) for _ in range(n)], seed, memory)
    join_all(cluster)
    programs: list[list[list[dict[str, int]]]] = [[] for _ in range(n)]
    expected = []
    for number in range(r.randrange(1, 33)):
        src, dst = r.randrange(n), r.randrange(n)
        block = values(r, "int32", r.choice([0, 1, 256, 257, 1500, 2000]))
        at = number * 8192
        memory[src][at : at + block.nbytes] = block.view(np.uint8)
        common = {"dtype": 2, "count": block.size}
        send = {"kind": e.SEND, "root": dst, "send": at, **common}
        recv = {"kind": e.RECV, "root": src, "recv": (1 << 18) + at, **common}
        expected.append((dst, recv["recv"], block))
        for rank, op in (src, send), (dst, recv):
            # Behind the last group or in it; with itself always in it.
            if programs[rank] and (r.random() < 0.6 or (src == dst and op is recv)):
                programs[rank][-1].append(op)
            else:
                programs[rank].append([op])
    ranks = Ranks(cluster, programs)
    ranks.run()
    assert cluster.failure is None and not any(programs) and not cluster.busy
    assert outbox(cluster) == 0
    for rank, at, block in expected:
        assert memory[rank][at : at + block.nbytes].tobytes() == block.tobytes()
    cluster.close()


def test_split(coll: Native) -> None:
    cluster = start(coll, [0, 1, 1, 0, 2], 4)
    join_all(cluster)
    for rank, (color, key) in enumerate([(0, 5), (1, 0), (0, 2), (-1, 0), (0, 2)]):
        cluster.lib.coll_split(cluster.coll(rank), rank, COMM, 200, color, key)
    cluster.settle()
    assert [cluster.joined[(r, 200)][1:] for r in range(5)] == [
        (0, 3, 2),
        (0, 1, 0),
        (0, 3, 0),
        (0, 0, 0),
        (0, 3, 1),
    ]
    keys = [cluster.joined[(r, 200)][0] for r in range(5)]
    assert keys[0] == keys[2] == keys[4] != keys[1]
    cluster.close()


def test_a_group_of_several_operations(coll: Native) -> None:
    """A collective waits for no send of its group, and the ticket comes back once."""
    cluster = start(coll, [0, 1], 8)
    join_all(cluster)
    for rank in range(2):
        cluster.memory[rank][:4] = np.array([rank + 1], "int32").view(np.uint8)
        ops = [
            {"kind": e.RECV, "dtype": 2, "count": 1, "root": 1 - rank, "recv": 64},
            {"kind": e.ALLREDUCE, "dtype": 2, "count": 1, "op": e.SUM, "send": 0, "recv": 128},
            {"kind": e.SEND, "dtype": 2, "count": 1, "root": 1 - rank, "send": 0},
            {"kind": e.ALLREDUCE, "dtype": 2, "count": 1, "op": e.MAX, "send": 0, "recv": 192},
        ]
        cluster.submit(rank, COMM, ops)
    cluster.settle()
    for rank in range(2):
        got = [cluster.memory[rank][at : at + 4].view("int32")[0] for at in (64, 128, 192)]
        assert got == [2 - rank, 3, 2]
    assert cluster.completed == {1, 2}
    cluster.close()


FETCHES = [
    (e.ALLREDUCE, 1, "from device 1 ", "partial sums of AllReduce of 40 int32"),
    (e.ALLREDUCE, 2, "from device 0 ", "the result of AllReduce of 40 int32"),
    (e.ALLGATHER, 1, "from device", "the result of AllGather of 40 int32"),
    (e.SEND, 1, "from device 0 ", "a part of Recv of 40 int32"),
]


@pytest.mark.parametrize(("kind", "nth", "whose", "what"), FETCHES)
@pytest.mark.parametrize("seed", range(6))
def test_a_fetch_that_fails_fails_the_job(
    coll: Native, kind: int, nth: int, whose: str, what: str, seed: int
) -> None:
    """At once or later, and says how much, from whom and what for; what came is released."""
    cluster = start(coll, [0, 1], seed)
    join_all(cluster)
    cluster.failing_fetch = nth
    for rank in range(2):
        op = {"kind": kind, "dtype": 2, "count": 40, "op": e.SUM, "send": 0, "recv": 4096}
        if kind == e.SEND:
            op |= {"kind": e.RECV if rank else e.SEND, "root": 1 - rank}
        cluster.submit(rank, COMM, [op])
    cluster.settle()
    assert cluster.failure and cluster.failure.startswith("cannot fetch 160 bytes from device")
    assert whose in cluster.failure and "(error 5)" in cluster.failure and what in cluster.failure
    assert len(cluster.completed) < 2  # a send is over when it is copied
    while cluster.due:  # submitted work completes anyway
        cluster.due.pop()()
    cluster.close()


@pytest.mark.parametrize("fails", [False, True])
def test_no_rank_waits_for_the_work_of_a_failed_engine(coll: Native, fails: bool) -> None:
    """Its rank must not keep the device from ranks of other jobs."""
    none, nobody = 0, 3  # enum coll_lack
    cluster = start(coll, [0], 0)
    join_all(cluster)
    op = {"kind": e.ALLREDUCE, "dtype": 2, "count": 40, "op": e.SUM, "send": 0, "recv": 4096}
    cluster.submit(0, COMM, [op])
    assert cluster.lacks(0) == nobody
    cluster.io_fails = fails
    cluster.settle()
    assert bool(cluster.failure) == fails and bool(cluster.completed) != fails
    assert cluster.lacks(0) == none
    cluster.close()


def test_fetches_of_one_piece_run_together(coll: Native) -> None:
    """A device that only adds to a sum does not fetch it."""
    most = 0
    for seed in range(20):
        cluster = start(coll, [0, 1, 2, 3], seed)
        join_all(cluster)
        run_one(cluster, random.Random(seed), e.REDUCE, "float32", 64, e.SUM, 0, in_place=False)
        most = max(most, cluster.most_awaited)
        assert cluster.fetches == 3
        cluster.close()
    assert most == 3


@pytest.mark.parametrize("seed", range(8))
def test_an_engine_may_go_while_fetches_are_under_way(coll: Native, seed: int) -> None:
    cluster = start(coll, [0, 1, 2], seed)
    join_all(cluster)
    op = {"kind": e.ALLREDUCE, "dtype": 7, "count": 64, "op": e.SUM, "send": 0, "recv": 4096}
    for rank in range(3):
        cluster.submit(rank, COMM, [op])
    while not any(cluster.awaited.values()) and cluster.step():
        pass
    cluster.close()


MISMATCHES = [
    ({"count": 9}, "of 9 int32"),
    ({"dtype": 7}, "float32"),
    ({"op": e.MAX}, "op max"),
    ({"kind": e.REDUCE}, "Reduce of"),
    ({"kind": e.BROADCAST, "root": 1}, "Broadcast"),
]


@pytest.mark.parametrize("placement", [[0, 0, 0], [0, 1, 2], [0, 1, 0]])
@pytest.mark.parametrize(("change", "said"), MISMATCHES)
def test_ranks_that_differ_fail_the_job(
    coll: Native, placement: list[int], change: dict[str, int], said: str
) -> None:
    cluster = start(coll, placement, 2)
    join_all(cluster)
    for rank in range(3):
        op = {
            "kind": e.ALLREDUCE,
            "dtype": 2,
            "count": 8,
            "op": e.SUM,
            "root": 0,
            "send": 0,
            "recv": 0,
        }
        cluster.submit(rank, COMM, [op | (change if rank == 1 else {})])
        if cluster.failure:
            break
    cluster.settle()
    assert cluster.failure and "rank 1" in cluster.failure and said in cluster.failure
    cluster.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": 10},
        {"dtype": 12},
        {"op": 5},
        {"op": 77},
        {"kind": e.BROADCAST, "root": 3},
        {"kind": e.SEND, "root": -1},
        {"count": 1 << 50},
        {"kind": e.ALLTOALL},
    ],
)
def test_wrong_arguments_are_refused_at_once(coll: Native, wrong: dict[str, int]) -> None:
    cluster = start(coll, [0, 0, 0], 2)
    join_all(cluster)
    with pytest.raises(ValueError, match=r"[45]"):
        cluster.submit(
            0, COMM, [{"kind": 0, "dtype": 2, "count": 8, "op": 0, "send": 0, "recv": 0} | wrong]
        )
    assert not cluster.busy and cluster.failure is None
    cluster.close()


@relaxed
@given(st.integers(0, 2**32))
def test_ranks_move_and_continue(coll: Native, seed: int) -> None:
    """Saved at a cut and restored in another placement: the same communicators, the same bits."""
    r = random.Random(seed)
    n = r.randrange(1, 7)
    memory = fresh(n)
    cluster = start(coll, [r.randrange(n) for _ in range(n)], seed, memory)
    join_all(cluster)
    for rank in range(n):
        cluster.lib.coll_split(cluster.coll(rank), rank, COMM, 200, rank % 2, -rank)
    cluster.settle()
    keys = [cluster.joined[(rank, 200)][0] for rank in range(n)]
    for _ in range(3):
        run_one(cluster, r, e.ALLREDUCE, "float32", 33, e.SUM, 0, in_place=False)
        images = [cluster.save(rank) for rank in range(n)]
        cluster.close()
        cluster = start(coll, [r.randrange(n) for _ in range(n)], seed, memory)
        for rank, image in enumerate(images):
            assert image and cluster.restore(rank, image) == 0
        ffi = cluster.ffi
        for rank in range(n):
            members, key = ffi.new("uint32_t[]", n), ffi.new("uint64_t *")
            count = cluster.lib.coll_members(cluster.coll(rank), rank, 200, members, n, key)
            assert key[0] == keys[rank]
            assert list(members)[:count] == sorted(range(rank % 2, n, 2), reverse=True)
    cluster.close()


@relaxed
@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_image_is_refused(coll: Native, junk: bytes, at: int, byte: int) -> None:
    cluster = start(coll, [0, 1], 1)
    join_all(cluster)
    image = cluster.save(0)
    cluster.close()
    damaged = bytearray(image)
    damaged[at % len(image)] ^= byte
    for bad in (junk, image[: at % len(image)], bytes(damaged)):
        cluster = start(coll, [0, 1], 1)
        error = cluster.restore(0, bad)
        assert error in (0, 4)
        assert error or len(bad) == len(image)
        cluster.close()


@relaxed
@given(st.data())
def test_messages_that_cannot_be_fail_the_job(coll: Native, data: st.DataObject) -> None:
    """Whatever a peer sends: refused with a text, or harmless; never a crash."""
    cluster = start(coll, [0, 1, 1], 6)
    join_all(cluster)
    key = cluster.joined[(0, COMM)][0]
    cluster.submit(0, COMM, [{"kind": e.ALLREDUCE, "dtype": 7, "count": 8, "send": 0, "recv": 64}])
    number = st.integers(0, 5) | st.integers(0, 2**32 - 1)
    for _ in range(data.draw(st.integers(1, 6))):
        words = [data.draw(number) for _ in range(48)]
        message = bytearray(b"".join(w.to_bytes(4, "little") for w in words))
        if data.draw(st.booleans()):
            message[8:16] = key.to_bytes(8, "little")
        bad = cluster.ffi.new("struct peer_message *")
        cluster.ffi.buffer(bad)[:] = bytes(message)
        cluster.lib.coll_receive(cluster.device[0].coll, data.draw(st.integers(0, 3)), bad)
        for _ in range(5):
            cluster.step()
    cluster.close()
