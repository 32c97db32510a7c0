"""Promise: the reconciler reports a job's savings by sharing and its cost, as the proxies counted
them in its last epoch."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rankfold.reconciler.model.desired import Desired, Job
from rankfold.reconciler.model.observed import (
    CrossCheck,
    JobOnDevice,
    Observed,
    ObservedDevice,
    RankOnDevice,
    Spent,
)
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.observe import sharing
from rankfold.reconciler.plan.conditions import conditions
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.report.text import sharing_lines

pytestmark = pytest.mark.unit

A, B = "local/soft-0", "local/soft-1"
RECORD = Record("gpt", step="placed", epoch=2, placement=(A, A, B, B))
CHUNK = 2 << 20
COUNTS = {"squashed": 3, "spared": 1 << 21, "copies": 5, "unforeseen": 1, "prepared": 2}


def there(ranks: tuple[int, ...], spent: Spent | None = None, epoch: int = 2) -> JobOnDevice:
    told = tuple(RankOnDevice(rank, "attached", dict(COUNTS)) for rank in ranks)
    return JobOnDevice(
        "gpt", epoch, "running", ranks=told, shared=10 * CHUNK * len(ranks), spent=spent or Spent()
    )


def seen(*jobs: JobOnDevice, shares: bool | None = True) -> Observed:
    names = zip((A, B), jobs, strict=False)
    return Observed({name: ObservedDevice(name, jobs=(job,), shares=shares) for name, job in names})


def test_counters_are_summed_over_ranks_and_devices() -> None:
    found = sharing.shared_counts(RECORD, seen(there((0, 1)), there((2, 3))))
    assert found == {
        "on": True,
        "guard": "sets",
        "chunksShared": 40,
        "operationsSquashed": 12,
        "bytesNotSwapped": 4 << 21,
        "copiesOnWrite": 20,
        "copiesUnforeseen": 4,
        "chunksPrepared": 8,
    }


@pytest.mark.parametrize(("measured", "how"), [(0, "sets"), (7, "validated")])
def test_measured_kernels_are_said_to_be_validated(measured: int, how: str) -> None:
    one = replace(there((0, 1)), guard=CrossCheck(256, measured=measured))
    found = sharing.shared_counts(RECORD, seen(one, there((2, 3))))
    assert found is not None and found["guard"] == how


@pytest.mark.parametrize(("shares", "on"), [(True, True), (False, False), (None, None)])
def test_whether_ranks_may_share_is_what_the_devices_say(shares: Any, on: Any) -> None:
    found = sharing.shared_counts(RECORD, seen(there((0, 1)), there((2, 3)), shares=shares))
    assert found is not None and found["on"] is on


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("soft", ""), ("nvidia", ", as on NVIDIA GPUs it saves memory and no time")],
)
def test_describe_gives_the_reason_why_ranks_of_a_gpu_share_nothing(kind: str, reason: str) -> None:
    found = sharing.shared_counts(RECORD, seen(there((0, 1)), shares=False))
    assert found is not None
    job = {"sharing": {**found, **dict.fromkeys(found, 0), "on": False}}
    job["placement"] = {"0": f"local/{kind}-0"}
    assert sharing_lines(job) == [f"sharing:      off{reason}"]


def test_nothing_is_reported_of_another_epoch_or_while_it_rests() -> None:
    before = seen(there((0, 1), Spent(20.0), epoch=1), there((2, 3), Spent(20.0), epoch=1))
    resting = replace(RECORD, step="detached", placement=())
    for record, observed in ((RECORD, before), (RECORD, Observed()), (resting, before)):
        assert sharing.shared_counts(record, observed) is None
        assert sharing.overhead(record, observed) is None


def test_the_last_counters_of_an_ended_job_are_reported() -> None:
    ended = replace(RECORD, step="ended", counters={"0": dict(COUNTS), "1": {"kernels": 7}})
    assert sharing.shared_counts(ended, Observed()) == {
        "on": None,
        "guard": "sets",
        "chunksShared": 0,
        **{sharing.REPORTED[name]: value for name, value in COUNTS.items()},
    }


def test_overhead_is_a_share_of_all_its_devices_time() -> None:
    observed = seen(there((0, 1), Spent(30.0, 0.3, 0.6, 0.0)), there((2, 3), Spent(10.0)))
    found = sharing.overhead(RECORD, observed)
    assert found == {"seconds": 30.0, "switches": 0.0075, "copies": 0.015, "waiting": 0.0}


@pytest.mark.parametrize(
    ("spent", "reason"),
    [
        (Spent(100.0, 1.0, 1.0, 2.9), None),
        (Spent(100.0, 1.0, 1.0, 3.1), "Waiting"),
        (Spent(100.0, 1.0, 30.0, 3.1), "Copies"),
        (Spent(100.0, 6.0, 0.0, 0.0), "Switches"),
        (Spent(9.9, 1.0, 5.0, 1.0), None),  # it has only begun
    ],
)
def test_beyond_five_percent_there_is_a_condition_with_what_most_of_it_is(
    spent: Spent, reason: str | None
) -> None:
    job = Job("gpt", ("true",), "/", 4, 1)
    record, desired = replace(RECORD, placement=(A,) * 4, fixed=job), Desired(jobs={"gpt": job})
    observed = seen(there((0, 1, 2, 3), spent))
    index = Index(desired, {"gpt": record}, observed, frozenset())
    told = conditions(index, "gpt", {}, frozenset({"gpt"}), {})
    found = [each for each in told if each.type == "Overhead"]
    assert [each.reason for each in found] == ([reason] if reason else [])
    assert all(
        "since it was placed" in c.message and "give it more devices" in c.message for c in found
    )


def test_the_condition_says_the_shares() -> None:
    found = sharing.too_much(
        replace(RECORD, placement=(A,) * 4), seen(there((0,), Spent(50.0, 0.5, 10.0, 1.0)))
    )
    assert found is not None
    assert "23% of its devices' time" in found.message
    assert "(1% switches, 20% copies, 2% waiting)" in found.message


def test_an_alarm_is_a_condition_as_long_as_the_job_is_known() -> None:
    job = Job("gpt", ("true",), "/", 4, 1)
    desired = Desired(jobs={"gpt": job})
    for step in ("placed", "resting", "ended"):
        record = replace(RECORD, step=step, fixed=job, alarms=("rank 2 holds", "rank 3 holds"))
        index = Index(desired, {"gpt": record}, Observed(), frozenset())
        told = conditions(index, "gpt", {}, frozenset({"gpt"}), {})
        (found,) = [each for each in told if each.type == "Alarm"]
        assert found.reason == "ContentsDiffer" and found.status == "True"
        assert found.message.startswith("rank 2 holds (and 1 more: see its events); its ranks")
        assert not [each for each in told if each.type == "OpaqueCode"]
        record = replace(record, alarms=("opaque code: kernel k", "rank 2 holds"))
        index = Index(desired, {"gpt": record}, Observed(), frozenset())
        told = conditions(index, "gpt", {}, frozenset({"gpt"}), {})
        (found,) = [each for each in told if each.type == "OpaqueCode"]
        assert found.reason == "EffectsDiffer" and found.status == "True"
        assert found.message == "opaque code: kernel k; its ranks no longer share anything"
        (found,) = [each for each in told if each.type == "Alarm"]
        assert found.message.startswith("rank 2 holds; its ranks")


def test_the_cross_check_is_reported_where_there_is_one() -> None:
    observed = seen(
        replace(there((0, 1)), guard=CrossCheck(256, 7, 1, 3, 1)),
        replace(there((2, 3)), guard=CrossCheck(256, 5, 1, 4, 2)),
    )
    assert sharing.guard(RECORD, observed) == {
        "every": 256,
        "compared": 12,
        "unwatched": 2,
        "measured": 7,
        "alike": 3,
    }
    assert sharing.guard(RECORD, seen(there((0, 1)), there((2, 3)))) is None
    assert sharing.guard(replace(RECORD, epoch=3), observed) is None
