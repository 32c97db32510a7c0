"""A job that has begun continues with fewer devices where some went bad, and with all of them when
they are back: no other job's devices, and no other job's place in line, are taken for that."""

from __future__ import annotations

import time
from typing import Any

import pytest
from msgspec.structs import replace

from rankfold.reconciler import plan
from rankfold.reconciler.model.desired import Desired, Device, Job, Pool
from rankfold.reconciler.report import differences as report
from rankfold.reconciler.source.revision import differences
from support.simulated import Fleet

GIB = 1 << 30


def job(name: str = "a", ranks: int = 2, gpus: int = 2, created: float = 0.0, **fields: Any) -> Job:
    wanted = {"save_every_s": 0, "created": created, **fields}
    return Job(name, ("true",), "/", ranks, gpus, **wanted)


def pool(*numbers: int) -> Pool:
    return Pool("local", tuple(Device(f"local/soft-{at}", "soft", GIB) for at in numbers))


def fleet(devices: int, *jobs: Job, host_memory: int = 1 << 62) -> Fleet:
    desired = Desired({"local": pool(*range(devices))}, {each.name: each for each in jobs})
    place = Fleet(desired, host_memory=host_memory)
    place.converge()
    return place


def set_desired(place: Fleet, *jobs: Job) -> None:
    place.desired = replace(place.desired, jobs={each.name: each for each in jobs})


def goes_bad(place: Fleet, *numbers: int) -> None:
    names = {f"local/soft-{number}" for number in numbers}
    place.failing |= names
    for name in names:
        place.lose(name)


def repair(place: Fleet) -> None:
    place.failing = frozenset()
    place.converge()


def on(place: Fleet, name: str = "a") -> list[int]:
    """The devices that serve a job that works."""
    held = place.records[name].holds() if place.works(name) else ()
    return sorted(int(device[-1]) for device in held)


def messages_by_reason(place: Fleet, name: str = "a") -> dict[str, str]:
    return {c.reason: c.message for c in place.plan().conditions[name]}


def save(place: Fleet, name: str = "a") -> None:
    place.update(name, requested="t")
    place.converge()
    assert place.records[name].checkpoints


@pytest.mark.parametrize("saved", [True, False])
def test_it_continues_with_those_that_are_there_and_returns_to_all(saved: bool) -> None:
    place = fleet(4, job(ranks=4, gpus=4))
    if saved:
        save(place)
    goes_bad(place, 1)
    planned = place.converge()
    assert on(place) == [0, 2, 3] and place.records["a"].restarts == 1
    assert not planned.converged and planned.degraded == {"a"}
    assert messages_by_reason(place)["DevicesBad"] == (
        "it continues on 3 of 4 devices, because local/soft-1 went bad: its proxy exits whenever "
        "it is started (no such device). It returns to 4 when they are back: repair the bad ones, "
        "or set gpus to 3"
    )
    assert [c.type for c in planned.conditions["a"]][:2] == ["Ready", "Degraded"]
    goes_bad(place, 0, 3)
    place.converge()
    assert on(place) == [2] and "on 1 of 4 devices" in messages_by_reason(place)["DevicesBad"]
    assert (
        "local/soft-0, local/soft-1, local/soft-3 went bad"
        in messages_by_reason(place)["DevicesBad"]
    )
    place.failing = frozenset({"local/soft-3"})
    place.converge()
    assert on(place) == [0, 1, 2] and "DevicesBad" in messages_by_reason(place)
    repair(place)
    planned = place.plan()
    assert on(place) == [0, 1, 2, 3] and planned.converged == {"a"} and not planned.degraded
    assert "DevicesBad" not in messages_by_reason(place) and place.records["a"].restarts == 2


def test_it_waits_where_nothing_is_left() -> None:
    place = fleet(2, job())
    goes_bad(place, 0, 1)
    planned = place.converge()
    assert on(place) == [] and not planned.degraded
    assert (
        "not up yet: local/soft-0, local/soft-1" in messages_by_reason(place)["WaitingForProxies"]
    )
    place.failing = frozenset({"local/soft-1"})
    place.converge()
    assert on(place) == [0]


def test_a_job_that_has_not_begun_is_not_started_with_fewer() -> None:
    place = fleet(2)
    goes_bad(place, 1)
    set_desired(place, job())
    place.converge()
    assert "a" not in place.records and "WaitingForProxies" in messages_by_reason(place)
    repair(place)
    assert on(place) == [0, 1]


def test_devices_that_others_have_are_waited_for() -> None:
    """One of the three devices that it misses is bad. Meanwhile no younger job is started before
    it."""
    older, young = job("b", 2, 2, 1.0), job("young", 1, 1, 2.0)
    place = fleet(4, job(ranks=4, gpus=4))
    set_desired(place, job(ranks=4, gpus=4, suspend=True), older)
    place.converge()
    assert on(place, "b") == [0, 1]
    goes_bad(place, 2)
    set_desired(place, job(ranks=4, gpus=4), older, young)
    planned = place.converge()
    assert on(place) == [] and on(place, "b") == [0, 1] and "young" not in place.records
    assert not planned.degraded and "WaitingForProxies" in messages_by_reason(place)
    place.exit("b", 0, 0)
    place.exit("b", 1, 0)
    place.converge()
    assert on(place) == [0, 1, 3] and "young" not in place.records
    repair(place)
    assert on(place) == [0, 1, 2, 3] and "young" not in place.records


def test_two_that_lost_devices_both_continue() -> None:
    place = fleet(4, job(), job("b", 2, 2, 1.0))
    save(place, "a")
    save(place, "b")
    goes_bad(place, 2)
    place.converge()
    goes_bad(place, 1)
    place.converge()
    assert on(place) == [0] and on(place, "b") == [3]
    repair(place)
    assert len(on(place)) == len(on(place, "b")) == 2


def test_two_that_lose_devices_at_once_are_served_in_line() -> None:
    place = fleet(4, job(), job("b", 2, 2, 1.0))
    goes_bad(place, 1, 2)
    place.converge()
    assert on(place) == [0, 3] and on(place, "b") == []
    repair(place)
    assert on(place) == [0, 3] and on(place, "b") == [1, 2]


def test_a_device_that_hangs_is_not_bad() -> None:
    """One of its devices is bad, another one hangs."""
    place = fleet(3, job(ranks=3, gpus=3))
    set_desired(place, job(ranks=3, gpus=3, suspend=True))
    place.converge()
    place.silent = frozenset({"local/soft-1"})
    goes_bad(place, 2)
    set_desired(place, job(ranks=3, gpus=3))
    for _ in range(5):
        planned = place.turn()
    assert on(place) == [] and not planned.degraded


def test_a_device_kept_by_an_unresponsive_job_is_not_bad() -> None:
    """b is asked nothing, and has lost a device besides: that is b's loss, not what a misses."""
    place = fleet(4, job(ranks=3), job("b", 2, 2, 1.0))
    place.silent = frozenset({"local/soft-2"})
    goes_bad(place, 3)
    set_desired(place, job(ranks=3, gpus=3), job("b", 2, 2, 1.0))
    for _ in range(5):
        planned = place.turn()
    assert on(place) == [0, 1] and not planned.degraded
    assert "WaitingForProxies" in messages_by_reason(place)


def test_it_is_suspended_resumed_and_scaled_as_any() -> None:
    place = fleet(4, job(ranks=4, gpus=4))
    goes_bad(place, 3)
    place.converge()
    set_desired(place, job(ranks=4, gpus=4, suspend=True))
    assert place.converge().converged == {"a"} and on(place) == []
    set_desired(place, job(ranks=4, gpus=4))
    place.converge()
    assert on(place) == [0, 1, 2]
    set_desired(place, job(ranks=4, gpus=3))
    epoch = place.records["a"].epoch
    assert place.converge().converged == {"a"} and place.records["a"].epoch == epoch
    set_desired(place, job(ranks=4, gpus=2))
    assert place.converge().converged == {"a"} and on(place) == [0, 1]
    set_desired(place, job(ranks=4, gpus=4))
    assert place.converge().degraded == {"a"} and on(place) == [0, 1, 2]


def test_one_that_goes_bad_while_the_job_rests_is_not_waited_for() -> None:
    place = fleet(2, job())
    set_desired(place, job(suspend=True))
    place.converge()
    goes_bad(place, 0)
    set_desired(place, job())
    place.converge()
    assert on(place) == [1] and place.records["a"].restarts == 0


def test_one_that_goes_bad_in_the_middle_of_a_move_is_not_waited_for() -> None:
    place = fleet(4, job(ranks=4))
    set_desired(place, job(ranks=4, gpus=4))
    while place.records["a"].step != "detached":
        place.turn()
    goes_bad(place, 1, 2)
    place.converge()
    assert on(place) == [0, 3] and place.records["a"].restarts == 0


def test_no_job_gives_up_a_device_that_serves_it() -> None:
    """Its device leaves the pool, and what it could have instead is bad."""
    place = fleet(3, job())
    place.desired = replace(place.desired, pools={"local": pool(0, 2)})
    goes_bad(place, 2)
    planned = place.converge()
    assert on(place) == [0, 1] and not planned.degraded
    repair(place)
    assert on(place) == [0, 2]


def test_memory_that_does_not_suffice_is_reported_and_not_waited_for() -> None:
    place = fleet(4, job(ranks=4, gpus=4), host_memory=GIB // 2)
    goes_bad(place, 3)
    assert not place.converge().degraded and on(place) == []
    assert messages_by_reason(place)["HostMemory"].startswith(
        "local/soft-3 went bad: its proxy exits whenever it is started (no such device); with "
        "fewer devices, 4 ranks of 1 GiB on 3 devices may need 1 GiB of host memory"
    )
    set_desired(place, job(ranks=4, gpus=4), job("young", 1, 1, 1.0))
    place.converge()
    assert len(on(place, "young")) == 1
    place.exit("young", 0, 0)
    repair(place)
    assert on(place) == [0, 1, 2, 3]


def test_a_job_whose_bits_depend_on_their_number_waits_for_its_devices() -> None:
    place = fleet(2, job(determinism="D0"))
    goes_bad(place, 1)
    planned = place.converge()
    assert on(place) == [] and not planned.degraded
    assert messages_by_reason(place)["WaitingForProxies"] == (
        "needs 2 devices of any kind; not up yet: local/soft-1. On fewer devices its bits may "
        "differ (D0): set gpus to continue on fewer"
    )
    set_desired(place, job(determinism="D0", gpus=1))
    place.converge()
    assert on(place) == [0]


def test_it_is_no_change_that_a_plan_shows_forever() -> None:
    place = fleet(2, job())
    goes_bad(place, 1)
    place.converge()
    set_desired(place, job(), job("new", 2, 2, 1.0))
    then, observed = place.desired, place.observed()
    planned = plan.plan(then, place.records, plan.assume_fleet(then, observed), time.time())
    data = report.plan_json(differences(then, then, place.records), planned, "r")
    assert data["changes"] == [] and set(data["placements"]["a"].values()) == {"local/soft-0"}
    lines = report.plan_lines(data)
    assert lines[0] == "Nothing to change."
    assert lines[1].startswith(
        "! Job/a is degraded: it continues on 1 of 2 devices, because local/"
    )
    assert lines[2].startswith("! Job/new will wait: needs 2 devices") and "soft-1" in lines[2]


def test_it_is_not_asked_to_move_again_and_again() -> None:
    place = fleet(2, job())
    goes_bad(place, 1)
    place.converge()
    assert not any(place.wanted(place.turn()) for _ in range(20))
