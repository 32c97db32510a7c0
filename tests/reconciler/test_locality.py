"""Jobs with a locality are on devices of one node or domain, by the steps that move any job."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.reconciler.model.desired import Defragmentation, Desired, Device, Job, Pool
from support.simulated import Fleet

from .test_ranges import GIB, job, on, reasons, wish

pytestmark = pytest.mark.unit


def racks(*nodes: int) -> Pool:
    """A pool of nodes with so many devices, two in each domain."""
    names = [(number, at) for number, size in enumerate(nodes) for at in range(size)]
    return Pool(
        "local",
        tuple(
            Device(f"local/soft-{at}", "soft", GIB, domain=f"d{node // 2}", node=f"n{node}")
            for at, (node, _) in enumerate(names)
        ),
    )


def fleet(pool: Pool, *jobs: Job, **fields: Any) -> Fleet:
    its = {each.name: each for each in jobs}
    return Fleet(Desired({"local": pool}, its, growth_delay_s=0.0, **fields))


def nodes_of(place: Fleet, name: str) -> set[str]:
    devices = place.desired.devices()
    return {devices[each].node for each in place.records[name].holds()}


def test_a_small_job_moves_and_the_job_of_one_node_starts() -> None:
    small, other = job("small", 1, 1), job("other", 1, 1, created=1.0)
    gone = job("gone", 1, 1, created=2.0)
    place = fleet(racks(2, 2), small, gone, other)
    place.converge()
    assert nodes_of(place, "small") == nodes_of(place, "other") == {"n0"}
    assert nodes_of(place, "gone") == {"n1"}
    wide = job("wide", 2, 2, created=3.0, locality="node")
    wish(place, gone, other)
    place.converge()
    wish(place, gone, other, wide)
    planned = place.plan()
    (moved,) = (name for name, cause in planned.causes.items() if cause == "defragmentation")
    node = next(iter(nodes_of(place, moved)))
    assert planned.reasons[moved] == f"defragmentation: makes way for wide on node {node}"
    waits = reasons(place, "wide")["WaitingForDevices"]
    assert waits.startswith("needs 2 devices of one node; waits until these jobs have moved: ")
    place.converge()
    assert on(place)["wide"] == 2 and len(nodes_of(place, "wide")) == 1
    assert [place.records[name].epoch for name in ("other", "gone")].count(2) == 1
    assert place.records[moved].epoch == 2, "it moved once"


def test_why_a_job_of_one_node_waits() -> None:
    x, y = job("x", 2, 2, locality="node"), job("y", 2, 2, created=1.0)
    place = fleet(racks(3, 3), x, y)
    place.converge()
    wide = job("wide", 3, 3, created=2.0, locality="node")
    wish(place, x, y, wide, job("more", 2, 2, created=1.5))
    place.converge()
    assert reasons(place, "wide")["WaitingForDevices"] == (
        "needs 3 devices of any kind in one node; most that are free for it: 0"
    )
    too_wide = job("too-wide", 4, 4, created=3.0, locality="node")
    wish(place, x, y, too_wide)
    place.converge()
    assert reasons(place, "too-wide")["NotEnoughDevices"] == (
        "needs 4 devices of any kind in one node; the pools have 3 that fit it"
    )


def test_a_job_leaves_a_device_that_is_removed_and_stays_in_its_node() -> None:
    a, b = job("a", 2, 2, locality="node"), job("b", 1, 1, created=1.0)
    pool = racks(3, 3)
    place = fleet(pool, a, b)
    place.converge()
    (node,) = nodes_of(place, "a")
    held = place.records["a"].holds()
    wish(place, a)  # b leaves: its node has a free device
    place.converge()
    gone = sorted(held)[0]
    left = tuple(each for each in pool.devices if each.name != gone)
    place.desired = replace(place.desired, pools={"local": replace(pool, devices=left)})
    place.converge()
    assert on(place)["a"] == 2 and nodes_of(place, "a") == {node}
    more = tuple(each for each in left if each.node != node or each.name in held)
    place.desired = replace(place.desired, pools={"local": replace(pool, devices=more)})
    place.converge()
    assert on(place)["a"] == 2 and len(nodes_of(place, "a")) == 1


def test_no_job_moves_if_its_disturbances_are_used_up() -> None:
    a, b = job("a", 1, 1, tier="basic"), job("b", 1, 1, created=1.0, tier="basic")
    c = job("c", 1, 1, created=2.0, tier="basic")
    wide = job("wide", 2, 2, created=3.0, locality="node")
    place = fleet(racks(2, 2), a, b, c, disturbances={"basic": 0})
    place.converge()
    wish(place, b, c, wide)
    place.converge()
    assert on(place).get("wide", 0) == 0
    place.desired = replace(place.desired, disturbances={"basic": 1})
    place.converge()
    assert on(place)["wide"] == 2 and on(place)["b"] == on(place)["c"] == 1


def test_in_a_window_a_node_is_made_free() -> None:
    a, b, c = job("a", 1, 1), job("b", 1, 1, created=1.0), job("c", 1, 1, created=2.0)
    window = Defragmentation(((60, 120),))
    place = fleet(racks(2, 2), a, b, c, defragmentation=window)
    place.converge()
    wish(place, b, c)
    place.minute = 59
    place.converge()
    assert nodes_of(place, "b") != nodes_of(place, "c")
    place.minute = 60
    place.converge()
    assert nodes_of(place, "b") == nodes_of(place, "c")


@settings(deadline=None)
@given(st.data())
def test_no_job_is_ever_on_devices_of_several_nodes(data: st.DataObject) -> None:
    """Jobs arrive and leave while others are being moved."""
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    place = fleet(racks(*sizes))
    jobs: dict[str, Job] = {}
    for number in range(data.draw(st.integers(1, 6))):
        ranks = data.draw(st.integers(1, 3))
        least = data.draw(st.sampled_from([None, *range(ranks)]))
        tier, where = data.draw(st.sampled_from(["basic", "standard"])), "any"
        if data.draw(st.booleans()):
            where = data.draw(st.sampled_from(["node", "domain"]))
        name = f"j{number}"
        jobs[name] = job(
            name, ranks, ranks, least, created=float(number), tier=tier, locality=where
        )
        if len(jobs) > 2 and data.draw(st.booleans()):
            del jobs[data.draw(st.sampled_from(sorted(jobs)))]
        wish(place, *jobs.values())
        for _ in range(data.draw(st.integers(0, 12))):
            place.turn()
            _check(place)
    place.converge()
    _check(place)


def _check(place: Fleet) -> None:
    devices = place.desired.devices()
    for name, each in place.desired.jobs.items():
        if name in place.records and each.locality != "any":
            its = [devices[d] for d in place.records[name].placement if d in devices]
            places = {(d.domain, d.node) if each.locality == "node" else d.domain for d in its}
            assert len(places) <= 1, f"{name} straddles"
