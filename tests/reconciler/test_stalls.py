"""Promise: for a job without progress it is reported what its ranks wait for, and of no other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rankfold.reconciler.commands.run import Waits
from rankfold.reconciler.model.desired import Desired, Job
from rankfold.reconciler.model.observed import (
    JobOnDevice,
    Observed,
    ObservedDevice,
    ObservedRank,
    RankOnDevice,
)
from rankfold.reconciler.model.recorded import Condition, Record
from rankfold.reconciler.observe.stalls import STOPPED_S, WAITS_S
from rankfold.reconciler.plan.conditions import conditions
from rankfold.reconciler.plan.index import Index

pytestmark = pytest.mark.unit

A, B = "local/soft-0", "local/soft-1"
LONG = WAITS_S
Ranks = Mapping[int, tuple[str, float]]


def stall_of(first: Ranks, second: Ranks, epoch: int = 2, stopped: int = -1) -> Condition | None:
    """The stall condition of a job on two devices whose ranks have been in these calls for so
    long."""
    ranks = {**first, **second}
    place = tuple(A if rank in first else B for rank in range(4))
    record = Record("gpt", step="placed", epoch=epoch, placement=place)
    devices = {}
    for name, each in ((A, first), (B, second)):
        there = tuple(
            RankOnDevice(rank, "attached" if at else "waiting", at=at, quiet_s=quiet)
            for rank, (at, quiet) in each.items()
        )
        devices[name] = ObservedDevice(name, jobs=(JobOnDevice("gpt", 2, "running", ranks=there),))
    processes = {
        ("gpt", rank): ObservedRank(
            "gpt", rank, "running", 100 + rank, True, stopped=("train (pid 7)",) * (rank == stopped)
        )
        for rank in ranks
    }
    desired = Desired(jobs={"gpt": Job("gpt", ("./train",), "/", 4, 2)})
    index = Index(desired, {"gpt": record}, Observed(devices, processes), frozenset())
    found = [c for c in conditions(index, "gpt", {}, {"gpt"}, {}) if c.type == "Waiting"]
    assert len(found) <= 1
    return found[0] if found else None


WAITS = ("others", LONG)


@pytest.mark.parametrize(
    ("at", "where"),
    [
        ("host", "on the host, computing, waiting or stuck"),
        ("device", "in a kernel or a copy that has not ended"),
        ("turn", "waiting for a turn on the device, or for its proxy"),
        ("code", "waiting for code that is loaded or compiled"),
    ],
)
def test_the_rank_that_keeps_others_waiting_is_named(at: str, where: str) -> None:
    found = stall_of({0: WAITS, 1: WAITS}, {2: WAITS, 3: (at, LONG)})
    assert found is not None and found.reason == "ForRanks"
    assert "ranks 0, 1, 2 have waited" in found.message and found.message.endswith(
        f"; {where}: rank 3 (pid 103)"
    )


def test_ranks_that_wait_for_one_another() -> None:
    found = stall_of({0: WAITS, 1: WAITS}, {2: WAITS, 3: WAITS})
    assert found is not None and found.reason == "ForOneAnother"


def test_ranks_that_have_asked_for_no_device_yet() -> None:
    found = stall_of({0: WAITS, 1: WAITS}, {2: ("", 0.0), 3: ("", 0.0)})
    assert found is not None and found.reason == "ForRanks"
    assert (
        "ranks 0, 1 have waited for collectives that other ranks have not called" in found.message
    )
    who = "rank 2 (pid 102), rank 3 (pid 103)"
    assert found.message.endswith(f"without a request for a device yet: {who}")


@pytest.mark.parametrize("at", ["host", "device", "turn", "others", "code"])
def test_while_work_of_one_rank_begins_or_ends_it_gets_further(at: str) -> None:
    assert stall_of({0: WAITS, 1: WAITS}, {2: WAITS, 3: (at, LONG - 1)}) is None


def test_ranks_that_are_on_the_host_wait_for_no_rank() -> None:
    host = ("host", LONG)
    assert stall_of({0: host, 1: host}, {2: host, 3: ("", 0.0)}) is None


def test_nothing_is_said_of_an_earlier_place() -> None:
    assert stall_of({0: WAITS, 1: WAITS}, {2: WAITS, 3: WAITS}, epoch=3, stopped=1) is None


def test_a_kernel_that_does_not_end() -> None:
    found = stall_of(
        {0: ("host", LONG), 1: ("device", LONG)}, {2: ("turn", LONG), 3: ("turn", LONG)}
    )
    assert found is not None and found.reason == "ForKernels" and " rank 1 " in found.message


@pytest.mark.parametrize(
    ("at", "reason", "what"),
    [("code", "ForCode", "the compiler hangs"), ("turn", "ForTurn", "a turn on the device")],
)
def test_ranks_that_their_proxy_keeps_waiting(at: str, reason: str, what: str) -> None:
    host, waits = ("host", LONG), (at, LONG)
    found = stall_of({0: host, 1: waits}, {2: waits, 3: host})
    assert found is not None and found.reason == reason and what in found.message
    assert found.message.startswith("for more than a minute ranks 1, 2 have waited for ")


def test_run_prints_a_reason_again_only_after_another_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    waits = Waits()
    for reasons in (["code"], [], ["code"], [], ["code", "turn"], ["code"]):
        waits.report(reasons)
    printed = capsys.readouterr().err.splitlines()
    assert printed == ["rankfold: code", "rankfold: code; turn", "rankfold: code"]


def test_a_rank_that_a_signal_has_stopped() -> None:
    now, still = ("host", 0.0), ("host", STOPPED_S)
    found = stall_of({0: now, 1: now}, {2: still, 3: now}, stopped=2)
    assert found is not None and found.reason == "RankStopped"
    assert found.message.startswith("stopped by a signal: train (pid 7) of rank 2;")
    assert stall_of({0: now, 1: now}, {2: now, 3: now}, stopped=2) is None, "it continues anyway"
