"""Promise: of a job that gets no further it is said what its ranks wait for, and of no other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rankfold.reconciler.desired import Desired, Job
from rankfold.reconciler.observed import JobOnDevice, Observed, RankOnDevice, SeenDevice, SeenRank
from rankfold.reconciler.plan.conditions import conditions
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.recorded import Condition, Record
from rankfold.reconciler.waiting import WAITS_S

A, B = "local/soft-0", "local/soft-1"
LONG = WAITS_S
Ranks = Mapping[int, tuple[str, float]]


def told(
    first: Ranks, second: Ranks, state: str = "running", epoch: int = 2, stopped: int = -1
) -> Condition | None:
    """What is said of a job on two devices whose ranks are at this for so long."""
    ranks = {**first, **second}
    place = tuple(A if rank in first else B for rank in range(4))
    record = Record("gpt", step="placed", epoch=epoch, placement=place)
    devices = {}
    for name, each in ((A, first), (B, second)):
        there = tuple(
            RankOnDevice(rank, "attached" if at else "waiting", at=at, quiet_s=quiet)
            for rank, (at, quiet) in each.items()
        )
        devices[name] = SeenDevice(name, jobs=(JobOnDevice("gpt", 2, state, ranks=there),))
    processes = {
        ("gpt", rank): SeenRank(
            "gpt", rank, "running", 100 + rank, True, stopped=("train",) * (rank == stopped)
        )
        for rank in ranks
    }
    desired = Desired(jobs={"gpt": Job("gpt", ("./train",), "/", 4, 2)})
    index = Index(desired, {"gpt": record}, Observed(devices, processes), frozenset())
    found = [c for c in conditions(index, "gpt", {}, {"gpt"}) if c.type == "Waiting"]
    assert len(found) <= 1
    return found[0] if found else None


WAITS = ("others", LONG)


@pytest.mark.parametrize(
    ("at", "where"),
    [
        ("host", "on the host, computing, waiting there or hanging"),
        ("device", "in a kernel or a copy that has not ended"),
        ("turn", "waiting for a turn on the device"),
    ],
)
def test_who_keeps_others_waiting_is_named(at: str, where: str) -> None:
    found = told({0: WAITS, 1: WAITS}, {2: WAITS, 3: (at, 0.0)})
    assert found is not None and found.reason == "ForRanks"
    assert "ranks 0, 1, 2 have waited" in found.message and found.message.endswith(
        f"; {where}: rank 3 (pid 103)"
    )


def test_ranks_that_wait_for_one_another() -> None:
    found = told({0: WAITS, 1: WAITS}, {2: WAITS, 3: ("others", LONG / 2)})
    assert found is not None and found.reason == "ForOneAnother"


def test_ranks_that_have_asked_for_no_device_yet() -> None:
    found = told({0: WAITS, 1: WAITS}, {2: ("", 0.0), 3: ("", 0.0)})
    assert found is not None and found.reason == "ForRanks"
    assert "ranks 0, 1 have waited for what others are to call, too" in found.message
    assert found.message.endswith("asked for yet: rank 2 (pid 102), rank 3 (pid 103)")


def test_a_minute_is_not_over() -> None:
    short = ("others", LONG - 1)
    assert told({0: short, 1: short}, {2: short, 3: ("host", LONG)}) is None
    assert told({0: ("host", LONG), 1: ("device", LONG)}, {2: ("turn", LONG), 3: ("", 0.0)}) is None


def test_nothing_is_said_of_an_earlier_place() -> None:
    assert told({0: WAITS, 1: WAITS}, {2: WAITS, 3: WAITS}, epoch=3, stopped=1) is None


def test_a_kernel_that_does_not_let_it_stand_still() -> None:
    ranks = {0: ("host", LONG), 1: ("device", LONG)}, {2: ("device", 1.0), 3: ("turn", LONG)}
    assert told(*ranks) is None
    found = told(*ranks, state="stopping")
    assert found is not None and found.reason == "ForKernels" and " rank 1 " in found.message


def test_a_rank_that_a_signal_has_stopped() -> None:
    now = ("host", 0.0)
    found = told({0: now, 1: now}, {2: now, 3: now}, stopped=2)
    assert found is not None and found.reason == "RankStopped"
    assert found.message.startswith("train of rank 2 (pid 102) is stopped by a signal")
