"""Jobs leave the devices that their pool drains, at a cut; the devices return to service."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.reconciler.model.desired import Desired, Device, Job, Pool
from rankfold.reconciler.report.differences import plan_json, plan_lines
from rankfold.reconciler.source.revision import differences
from support.simulated import Fleet

GIB = 1 << 30


def job(name: str, ranks: int, gpus: int, created: float = 0.0, **fields: Any) -> Job:
    wanted = {"save_every_s": 0, "created": created, **fields}
    return Job(name, ("true",), "/", ranks, gpus, **wanted)


def pool(count: int, *drained: int) -> Pool:
    numbers = range(count)
    return Pool(
        "local",
        tuple(Device(f"local/soft-{at}", "soft", GIB, drained=at in drained) for at in numbers),
    )


def fleet(devices: int, *jobs: Job, **fields: Any) -> Fleet:
    desired = Desired({"local": pool(devices)}, {each.name: each for each in jobs})
    place = Fleet(desired, **fields)
    place.converge()
    return place


def drain(place: Fleet, *numbers: int) -> None:
    count = len(place.desired.devices())
    place.desired = replace(place.desired, pools={"local": pool(count, *numbers)})


def on(place: Fleet, name: str = "a") -> list[int]:
    held = place.records[name].holds() if place.works(name) else ()
    return sorted(int(device[-1]) for device in held)


def conditions(place: Fleet, name: str = "a") -> dict[str, str]:
    return {c.reason: c.message for c in place.plan().conditions[name]}


def test_a_job_moves_and_the_device_returns_to_service() -> None:
    place = fleet(3, job("a", 2, 2))
    assert on(place) == [0, 1]
    drain(place, 0)
    planned = place.plan()
    assert planned.causes == {"a": "drain"}
    assert planned.reasons == {"a": "drain: 1 of its 2 devices is drained"}
    assert "drain: 1 of its 2 devices is drained; step" in conditions(place)["Converging"]
    place.converge()
    assert on(place) == [1, 2] and place.records["a"].restarts == 0
    assert place.plan().converged == {"a"} and place.plan().fleet_ready
    assert not place.jobs_on("local/soft-0"), "it is empty"
    drain(place, 0, 1)
    place.converge()
    assert on(place) == [2]
    assert conditions(place)["DevicesDrained"] == (
        "it continues on 1 of 2 devices, because local/soft-0, local/soft-1 are drained. It "
        "returns to 2 when they are back: take them out of drain, or set gpus to 1"
    )
    drain(place)
    place.converge()
    assert len(on(place)) == 2 and place.records["a"].restarts == 0


def test_a_job_whose_bits_depend_on_its_number_waits() -> None:
    place = fleet(2, job("a", 2, 2, determinism="D0"))
    drain(place, 1)
    place.converge()
    assert on(place) == [] and place.records["a"].placement == ()
    waits = "needs 2 devices of any kind; free for it now: 1; drained: local/soft-1"
    assert conditions(place)["WaitingForDevices"] == waits
    drain(place)
    place.converge()
    assert on(place) == [0, 1] and place.records["a"].restarts == 0


def test_bad_and_drained_devices_have_different_messages() -> None:
    place = fleet(3, job("a", 3, 3))
    place.failing = frozenset({"local/soft-0"})
    place.lose("local/soft-0")
    drain(place, 2)
    place.converge()
    assert on(place) == [1]
    message = conditions(place)["DevicesBad"]
    assert "local/soft-2 is drained, and local/soft-0 went bad: its proxy exits" in message


def test_a_new_job_gets_no_drained_device() -> None:
    place = fleet(2)
    drain(place, 0)
    place.desired = replace(place.desired, jobs={"a": job("a", 1, 1), "b": job("b", 1, 1, 1.0)})
    place.converge()
    assert on(place) == [1] and "b" not in place.records


def test_a_job_waits_on_its_devices_while_others_are_started() -> None:
    """It moves once, to as many as it has."""
    place = fleet(2, job("a", 2, 2))
    place.desired = replace(place.desired, pools={"local": pool(4, 0, 1)})
    planned = place.turn()
    assert planned.targets["a"] == ("local/soft-0", "local/soft-1") and not planned.causes
    (waits,) = (c for c in planned.conditions["a"] if c.reason == "WaitingForProxies")
    assert "not up yet: local/soft-2" in waits.message
    place.converge()
    assert on(place) == [2, 3] and place.records["a"].epoch == 2
    place.failing = frozenset({"local/soft-0"})
    place.lose("local/soft-0")
    drain(place, 2, 3)
    place.converge()
    assert on(place) == [1], "no job waits for a bad device"


def test_a_plan_says_whom_a_drain_disturbs() -> None:
    place = fleet(3, job("a", 1, 1), job("b", 2, 2, 1.0))
    old = place.desired
    drain(place, 0, 1)
    found = differences(old, place.desired, place.records)
    data = plan_json(found, place.plan(), "r", place.records)
    (pool_change,) = data["changes"]
    names = ["local/soft-0", "local/soft-1"]
    assert pool_change["fields"] == [{"field": "spec.drain", "from": [], "to": names}]
    assert [(each["job"], each["cause"]) for each in data["disturbed"]] == [
        ("a", "drain"),
        ("b", "drain"),
    ]
    lines = plan_lines(data)
    assert lines[0] == (
        "~ update Pool/local: spec.drain: none → local/soft-0, local/soft-1 — disturbs jobs: they "
        "pause or wait, no step is lost"
    )
    assert lines[-1] == "1 change; 1 disturbs a job."
    assert any(line.startswith("! Job/b: ") and "(drain: " in line for line in lines)


def test_a_plan_names_a_job_that_leaves_when_another_has_made_way() -> None:
    place = fleet(2, job("a", 1, 1), job("low", 1, 1, 1.0, tier="basic"))
    old = place.desired
    drain(place, 0)
    found = differences(old, place.desired, place.records)
    lines = plan_lines(plan_json(found, place.plan(), "r", place.records))
    assert lines[1] == (
        "! Job/a: moves, on 1 device as before (drain: needs 1 device; waits until these jobs give "
        "up some: low)"
    )
    assert lines[2].startswith("! Job/low: 1 → 0 devices (tier: gives up 1 device for a (standard)")
    assert lines[3] == "1 change; 1 disturbs a job."


@settings(deadline=None)
@given(st.data())
@pytest.mark.slow
def test_no_job_stays_on_a_drained_device(data: st.DataObject) -> None:
    """Devices are drained and returned while jobs start, move and rest."""
    count = data.draw(st.integers(1, 4))
    jobs = []
    for number in range(data.draw(st.integers(1, 4))):
        ranks = data.draw(st.integers(1, 3))
        gpus = data.draw(st.integers(1, min(ranks, count)))
        least = data.draw(st.sampled_from([None, *range(gpus)]))
        kind = data.draw(st.sampled_from(["D0", "D1"]))
        jobs.append(
            job(
                f"j{number}",
                ranks,
                gpus,
                float(number),
                gpus_min=least,
                determinism=kind,
                tier=data.draw(st.sampled_from(["basic", "standard"])),
            )
        )
    place = fleet(count, *jobs)
    for _ in range(data.draw(st.integers(1, 4))):
        drain(place, *data.draw(st.sets(st.integers(0, count - 1))))
        for _ in range(data.draw(st.integers(0, 8))):
            place.turn()
    place.converge()
    drained = {name for name, each in place.desired.devices().items() if each.drained}
    for record in place.records.values():
        assert not drained.intersection(record.placement), record.name
        assert record.restarts == 0
    assert not any(place.jobs_on(name) for name in drained)


@pytest.mark.parametrize("least", [None, 1])
def test_a_job_without_host_memory_stays_and_says_so(least: int | None) -> None:
    place = fleet(2, job("a", 2, 2, gpus_min=least), host_memory=1)
    drain(place, 0, 1)
    place.converge()
    assert on(place) == [0, 1]
    assert "suspended may need 2 GiB of host memory" in conditions(place)["HostMemory"]
    place.host_memory = 1 << 40
    place.converge()
    assert on(place) == [] and not any(map(place.jobs_on, place.devices))
