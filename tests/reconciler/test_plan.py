"""The planner: never two jobs on a device, nothing lost, and it always arrives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from rankfold.reconciler import actions, plan
from rankfold.reconciler.model.desired import Desired, Device, Job, Pool
from rankfold.reconciler.model.observed import JobOnDevice
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.plan.ending import KILL_AFTER_S
from rankfold.reconciler.plan.index import LOADED_MAX
from rankfold.reconciler.plan.memory import RANKS_ON_A_DEVICE
from rankfold.reconciler.source.revision import differences
from support.simulated import Fleet

pytestmark = pytest.mark.unit

GIB = 1 << 30


def pool(count: int, name: str = "local", memory: int = GIB, kind: str = "soft") -> Pool:
    return Pool(name, tuple(Device(f"{name}/{kind}-{i}", kind, memory) for i in range(count)))


def job(name: str, world_size: int, gpus: int, created: float = 0.0, suspend: bool = False) -> Job:
    """One that fails for good; with restarts and saves: test_recovery.py."""
    return Job(
        name,
        ("true",),
        "/",
        world_size,
        gpus,
        created=created,
        suspend=suspend,
        max_restarts=0,
        save_every_s=0,
    )


def fleet(devices: int, *jobs: Job, host_memory: int = 1 << 62) -> Fleet:
    return Fleet(
        Desired({"local": pool(devices)}, {j.name: j for j in jobs}), host_memory=host_memory
    )


def set_desired(place: Fleet, *jobs: Job) -> None:
    place.desired = replace(place.desired, jobs={j.name: j for j in jobs})


# ---- properties ----------------------------------------------------------------------------


@st.composite
def wishes(draw: st.DrawFn, most: int = 3) -> list[list[Job]]:
    """Several desired states of up to `most` jobs."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=most))

    def one(number: int, world_size: int) -> Job:
        gpus, suspend = draw(st.integers(1, world_size)), draw(st.booleans())
        return job(f"j{number}", world_size, gpus, float(number), suspend)

    rounds = draw(st.integers(1, 4))
    return [[one(n, size) for n, size in enumerate(sizes)] for _ in range(rounds)]


@settings(max_examples=150)
@given(st.integers(1, 6), wishes(), st.lists(st.integers(0, 12), min_size=4, max_size=4))
def test_any_sequence_of_wishes_converges_and_then_nothing_is_left_to_do(
    devices: int, rounds: list[list[Job]], turns: list[int]
) -> None:
    """Wishes may change in the middle of a move; `Fleet` checks the invariants at every action."""
    place = fleet(devices)
    for jobs, patience in zip(rounds, turns, strict=False):
        set_desired(place, *jobs)
        for _ in range(patience):
            place.turn()
    planned = place.converge()
    again = place.plan()
    assert place.wanted(again) == [] and again.targets == planned.targets

    for each in rounds[-1]:
        record = place.records.get(each.name)
        if each.name in planned.converged and not each.suspend:
            assert record is not None
            assert len(set(record.placement)) == each.gpus
            assert len(record.placement) == each.world_size
        if each.suspend:
            assert each.name in planned.converged
            assert record is None or record.placement == ()
    if sum(j.gpus for j in rounds[-1] if not j.suspend) <= devices:
        assert set(planned.converged) == {j.name for j in rounds[-1]}, "there is room for all"


@settings(max_examples=100)
@given(st.integers(1, 4), wishes(), st.data())
def test_whatever_dies_in_between_the_fleet_recovers(
    devices: int, rounds: list[list[Job]], data: st.DataObject
) -> None:
    place = fleet(devices)
    set_desired(place, *rounds[0])
    for _ in range(data.draw(st.integers(0, 10))):
        place.turn()
    if data.draw(st.booleans()) and place.devices:
        place.lose(data.draw(st.sampled_from(sorted(place.devices))))
    running = sorted(key for key, seen in place.ranks.items() if seen.state == "running")
    if data.draw(st.booleans()) and running:
        name, rank = data.draw(st.sampled_from(running))
        place.exit(name, rank, data.draw(st.sampled_from([0, 1, -9])))
    place.converge()
    for name, record in place.records.items():
        if record.step == "ended":
            assert all(name not in place.jobs_on(device) for device in place.devices)
            assert all(s.state == "exited" for (j, _), s in place.ranks.items() if j == name)
    assert set(place.devices) == set(place.desired.devices()), "every device is back"


def waiting_before(
    place: Fleet, records: dict[str, Record], planned: plan.Plan, name: str
) -> list[str]:
    """Jobs that were before one in line, and have fewer devices than they want."""

    def record(each: str) -> Record:
        return records.get(each, Record(each))

    def key(each: str) -> tuple[bool, float]:
        return (record(each).step == "new", place.desired.jobs[each].created)

    return [
        other
        for other, job in place.desired.jobs.items()
        if key(other) < key(name)
        and not job.suspend
        and record(other).step != "ended"
        and not record(other).ending
        and len(set(planned.targets.get(other, ()))) < job.gpus <= len(place.desired.devices())
    ]


@settings(max_examples=150)
@given(st.integers(2, 6), wishes(most=5), st.data())
def test_no_job_is_overtaken_and_no_device_idles_without_a_claim(
    devices: int, rounds: list[list[Job]], data: st.DataObject
) -> None:
    """Jobs start, grow, shrink, rest and end in any order; what becomes free is the first's in
    line, of those that have started before of those that have not."""
    place = fleet(devices)
    for jobs in rounds:
        set_desired(place, *jobs)
        for _ in range(data.draw(st.integers(1, 12))):
            running = sorted(n for n, r in place.records.items() if r.step == "placed")
            if running and data.draw(st.integers(0, 9)) == 0:
                name = data.draw(st.sampled_from(running))
                for rank in range(place.desired.jobs[name].world_size):
                    place.exit(name, rank, 0)
            records = dict(place.records)
            planned = place.turn()
            for name, target in planned.targets.items():
                if set(target) - set(records.get(name, Record(name)).placement):
                    before = waiting_before(place, records, planned, name)
                    assert not before, f"{name} gets {target} before {before}"
    planned = place.converge()
    busy = {d for record in place.records.values() for d in record.holds()}
    if len(busy) < devices:
        free = devices - len(busy)
        for name, job in place.desired.jobs.items():
            record = place.records.get(name, Record(name))
            if record.step != "ended" and not job.suspend and job.gpus <= devices:
                missing = job.gpus - len(record.holds())
                assert (
                    missing <= 0
                    or missing > free
                    or waiting_before(place, place.records, planned, name)
                )


@given(st.integers(2, 5), st.data())
def test_a_job_that_waits_to_grow_is_served_when_the_others_have_ended(
    devices: int, data: st.DataObject
) -> None:
    """However many younger ones queue up, and in whatever order the others end."""
    others = [job(f"o{n}", 1, 1, 1.0 + n) for n in range(devices - 1)]
    young = [job(f"y{n}", 1, 1, 100.0 + n) for n in range(3)]
    place = fleet(devices, job("a", devices, 1), *others)
    place.converge()
    set_desired(place, job("a", devices, devices), *others, *young)
    for each in data.draw(st.permutations(others)):
        place.converge()
        place.exit(each.name, 0, 0)
    place.converge()
    assert len(place.records["a"].holds()) == devices
    assert all(each.name not in place.records for each in young)


@settings(max_examples=100)
@given(st.integers(1, 5), wishes(), st.data())
def test_a_hanging_job_is_left_alone_and_the_fleet_continues_afterwards(
    devices: int, rounds: list[list[Job]], data: st.DataObject
) -> None:
    """`Fleet` sees to it that no request is sent to a process that hangs, or acts on what is in
    flight."""
    place = fleet(devices)
    for jobs in rounds:
        set_desired(place, *jobs)
        for _ in range(data.draw(st.integers(0, 6))):
            names = sorted(place.devices)
            place.silent = (
                frozenset(data.draw(st.lists(st.sampled_from(names)))) if names else (frozenset())
            )
            flying = [*names, *(each.name for each in jobs)]
            place.in_flight = frozenset(data.draw(st.lists(st.sampled_from(flying), max_size=2)))
            held = {n: r.holds() for n, r in place.records.items()}
            planned = place.turn()
            assert not planned.converged & place.in_flight
            for name, target in planned.targets.items():
                gained = set(target) - held.get(name, frozenset())
                assert not gained & (place.silent | place.in_flight), "it is not seen free"
    place.silent = place.in_flight = frozenset()
    assert place.wanted(place.converge()) == []


@settings(max_examples=100)
@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_a_device_that_is_lost_gets_another_proxy_and_its_jobs_continue(
    devices: int, jobs: int, data: st.DataObject
) -> None:
    """`Fleet` sees to it that nothing is placed there; its proxy ends sooner or later."""
    made = [replace(job(f"j{n}", 1, 1, n), max_restarts=99) for n in range(jobs)]
    place = fleet(devices, *made)
    for _ in range(data.draw(st.integers(1, 30))):
        place.turn()
        up = sorted(name for name, seen in place.devices.items() if seen.ready and not seen.lost)
        if data.draw(st.booleans()) and up:
            place.break_down(data.draw(st.sampled_from(up)), data.draw(st.integers(0, 4)))
    planned = place.converge()
    assert place.wanted(planned) == [] and not any(seen.lost for seen in place.devices.values())
    steps = sorted(place.records[f"j{n}"].step for n in range(jobs) if f"j{n}" in place.records)
    assert steps.count("placed") == min(devices, jobs) and "ended" not in steps


def test_a_device_that_is_lost_and_free_is_not_waited_for() -> None:
    place = fleet(2)
    place.converge()
    place.break_down("local/soft-1", 99)
    stops = [each for each in place.turn().actions if isinstance(each, actions.StopProxy)]
    assert [(each.device, each.reason) for each in stops] == [
        ("local/soft-1", "it was lost: its context has ended")
    ]
    place.converge()
    assert not place.devices["local/soft-1"].lost


# ---- single rules ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "named"),
    [
        (3, "local/soft-0, local/soft-1, local/soft-2"),
        (500, "local/soft-0, local/soft-1, local/soft-2 and 497 more"),
    ],
)
def test_a_job_that_waits_for_many_devices_names_a_few_and_counts_the_rest(
    devices: int, named: str
) -> None:
    planned = fleet(devices, job("a", 3, 3)).plan()
    waits = {c.reason: c.message for c in planned.conditions["a"]}
    assert waits["WaitingForProxies"] == f"needs 3 devices of any kind; not up yet: {named}"


def test_a_running_job_that_grows_goes_before_younger_ones() -> None:
    jobs = [job("a", 4, 2, 0), job("b", 1, 1, 1), job("c", 1, 1, 2)]
    place = fleet(4, *jobs)
    place.converge()
    set_desired(place, job("a", 4, 4, 0), *jobs[1:], job("young", 1, 1, 3))
    place.exit("b", 0, 0)
    planned = place.converge()
    assert "young" not in place.records and len(place.records["a"].holds()) == 2
    waits = {c.reason: c.message for c in planned.conditions["a"]}
    assert waits["WaitingForDevices"] == "needs 4 devices of any kind; free for it now: 1"
    place.exit("c", 0, 0)
    place.converge()
    assert len(place.records["a"].holds()) == 4


@pytest.mark.parametrize("why", ["it does not start", "it hangs", "its job hangs"])
def test_devices_do_not_idle_for_a_device_that_needs_a_person(why: str) -> None:
    """For a job of D1 that would grow, one that is bad is not missed: test_fewer.py."""
    growing = replace(job("a", 5, 1, 0), determinism="D0")
    jobs = [growing, job("b", 2, 2, 1)]
    place = fleet(5, *jobs)
    place.converge()
    if why == "it does not start":
        place.lose("local/soft-3")
        place.failing = frozenset({"local/soft-3"})
    else:
        place.silent = frozenset({"local/soft-3" if why == "it hangs" else "local/soft-1"})
    set_desired(place, replace(growing, gpus=5), *jobs[1:], job("young", 1, 1, 3))
    for _ in range(5):
        place.turn()
    young = place.records["young"]
    assert young.step == "placed" and len(place.records["a"].holds()) == 1
    place.silent = place.failing = frozenset()
    place.exit("b", 0, 0)
    place.exit("b", 1, 0)
    place.exit("young", 0, 0)
    place.converge()
    assert len(place.records["a"].holds()) == 5


def test_a_job_that_finds_its_new_devices_taken_continues_with_those_it_had() -> None:
    """In the middle of its move an older one was resumed: it neither waits nor rests."""
    older, mover = job("older", 2, 2, 0), job("mover", 4, 2, 1)
    place = fleet(4, older, mover)
    place.converge()
    set_desired(place, replace(older, suspend=True), mover)
    place.converge()
    set_desired(place, replace(older, suspend=True), replace(mover, gpus=4))
    while place.records["mover"].step != "detached":
        place.turn()
    set_desired(place, older, replace(mover, gpus=4))
    place.converge()
    assert len(place.records["older"].holds()) == len(place.records["mover"].holds()) == 2


def test_a_job_that_cannot_start_holds_no_device_back() -> None:
    place = fleet(1)
    place.converge()
    place.update("broken", error="the working directory does not exist", error_permanent=True)
    set_desired(place, job("broken", 1, 1, 0), job("young", 1, 1, 1))
    place.converge()
    assert place.records["young"].step == "placed"


def test_a_job_on_a_device_that_hangs_is_not_over_before_it_is_seen_free() -> None:
    place = fleet(2, job("a", 2, 2))
    place.converge()
    place.silent = frozenset({"local/soft-1"})
    set_desired(place, replace(job("a", 2, 2), cancelled=True))
    for _ in range(5):
        planned = place.turn()
    assert place.records["a"].step == "placed" and place.records["a"].ending
    told = {c.reason: c.message for c in planned.conditions["a"]}
    assert "the proxy of local/soft-1 is unresponsive since" in told["DoesNotAnswer"]
    place.silent = frozenset()
    place.converge()
    assert place.records["a"].phase == "Failed"


@pytest.mark.parametrize(
    "change",
    [
        {"speed": 0.5},
        {"cc": "9.0"},
        {"cc": "7.5"},
        {"memory": GIB},
        {"core_count": 2},
        {"first_core": 1},
    ],
)
def test_another_description_of_a_device_is_carried_out_when_it_is_free(
    change: dict[str, Any],
) -> None:
    """The job on it keeps its device, and sees none of it, though another one is there."""
    was = pool(2, memory=2 * GIB)
    place = Fleet(Desired({"local": was}, {"a": job("a", 1, 1)}))
    place.converge()
    seen = place.records["a"].device
    device = replace(was.devices[0], **change)
    place.desired = replace(place.desired, pools={"local": Pool("local", (device, was.devices[1]))})
    planned = place.plan()
    assert not planned.fleet_ready
    if "cc" not in change and "memory" not in change:
        place.converge()
        assert (place.records["a"].epoch, place.records["a"].device) == (1, seen)
    place.exit("a", 0, 0)
    assert place.converge().fleet_ready
    now = place.devices["local/soft-0"]
    assert (now.memory, now.cc, now.speed) == (device.memory, device.cc, device.speed)
    assert (now.core_count, now.first_core) == (device.core_count, device.first_core)


def test_a_device_full_of_the_code_of_earlier_jobs_begins_anew_before_the_next_one() -> None:
    """A job that is there keeps it, also while it is moved."""
    place = fleet(2, job("a", 2, 2))
    place.converge()
    for name in place.devices:
        place.devices[name] = replace(place.devices[name], loaded=LOADED_MAX)
    pids = {name: each.pid for name, each in place.devices.items()}
    assert place.converge().fleet_ready
    set_desired(
        place, job("a", 2, 1), job("b", 1, 1, created=1.0)
    )  # and one waits for the other device
    place.converge()
    assert place.records["a"].step == place.records["b"].step == "placed"
    kept, anew = place.records["a"].placement[0], place.records["b"].placement[0]
    assert place.devices[kept].pid == pids[kept] and place.devices[kept].loaded == LOADED_MAX
    assert place.devices[anew].pid != pids[anew] and place.devices[anew].loaded == 0


# ---- single rules, continued -------------------------------------------------------------------


def test_a_resize_goes_through_a_cut_and_one_new_epoch() -> None:
    place = fleet(4, job("a", 4, 4))
    place.converge()
    assert place.records["a"].placement == tuple(f"local/soft-{i}" for i in range(4))
    set_desired(place, job("a", 4, 1))
    place.converge()
    assert place.records["a"].placement == ("local/soft-0",) * 4
    assert place.records["a"].epoch == 2 and place.placed == 2


def test_devices_are_given_away_only_when_they_are_seen_free() -> None:
    """b waits for the device that a leaves, until its proxy says that it has left."""
    place = fleet(2, job("a", 2, 2, 0), job("b", 1, 1, 1))
    place.converge()
    assert "b" not in place.records
    set_desired(place, job("a", 2, 1, 0), job("b", 1, 1, 1))
    while place.records["a"].step != "detached":
        place.turn()
        assert "b" not in place.records or place.records["b"].epoch == 0
    place.converge()
    assert place.records["b"].placement == ("local/soft-1",)


def test_a_device_that_still_shows_a_job_is_not_free() -> None:
    """Whatever the journal says: what counts is what the proxy answers."""
    place = fleet(1)
    place.converge()
    set_desired(place, job("a", 1, 1))
    there = JobOnDevice("old", 3, "cut")
    place.devices["local/soft-0"] = replace(place.devices["local/soft-0"], jobs=(there,))
    assert "a" not in place.plan().targets


def test_a_job_that_is_suspended_in_the_middle_of_a_move_gives_up_its_devices() -> None:
    place = fleet(2, job("a", 2, 2), job("b", 2, 2, 1))
    place.converge()
    set_desired(place, job("a", 2, 1), job("b", 2, 2, 1))
    while place.records["a"].step != "detached":
        place.turn()
    set_desired(place, job("a", 2, 1, suspend=True), job("b", 2, 2, 1))
    planned = place.converge()
    assert place.records["a"].placement == () and "a" in planned.converged
    assert place.records["b"].step == "placed"


@pytest.mark.parametrize("step", ["placing", "detaching"])
def test_a_proxy_that_dies_in_the_middle_of_a_step_has_lost_the_job(step: str) -> None:
    """Its successor answers, without the job: the same sight as a step that was done."""
    place = fleet(2, job("a", 2, 2))
    place.converge()
    place.records["a"] = replace(place.records["a"], step=step)  # the reconciler was killed then
    place.devices["local/soft-1"] = replace(place.devices["local/soft-1"], pid=4711, jobs=())
    ends = [a for a in place.plan().actions if isinstance(a, actions.End)]
    assert [e.ending.reason for e in ends] == ["DeviceLost"]


def test_a_detach_that_was_confirmed_does_not_need_its_proxy_any_longer() -> None:
    place = fleet(2, job("a", 2, 2))
    place.converge()
    set_desired(place, job("a", 2, 1))
    place.update("a", step="detaching", detached=("local/soft-1",))
    place.set_state("local/soft-0", "a", "cut")
    place.lose("local/soft-1")
    assert actions.Detach("a", 1, ("local/soft-0",)) in place.plan().actions


def test_first_come_first_served_and_the_first_is_not_overtaken() -> None:
    place = fleet(2, job("running", 1, 1, 0), job("big", 2, 2, 1), job("small", 1, 1, 2))
    planned = place.converge()
    assert set(place.records) == {"running"}
    assert [c.reason for c in planned.conditions["big"]] == ["NotAsDesired", "WaitingForDevices"]
    for rank in range(1):
        place.exit("running", rank, 0)
    place.converge()
    assert place.records["big"].step == "placed" and "small" not in place.records


def test_a_job_that_can_never_fit_stalls_and_delays_no_other() -> None:
    place = fleet(2, job("huge", 4, 3, 0), job("small", 1, 1, 1))
    planned = place.converge()
    assert place.records["small"].step == "placed"
    stalled = [c for c in planned.conditions["huge"] if c.type == "Stalled"]
    assert "the pools have 2" in stalled[0].message


def test_a_barrier_that_is_no_longer_wanted_is_withdrawn() -> None:
    place = fleet(2, job("a", 2, 2))
    place.converge()
    set_desired(place, job("a", 2, 1))
    place.turn()
    set_desired(place, job("a", 2, 2))
    taken = [action for _ in range(4) for action in place.turn().actions]
    assert [a.action for a in taken if isinstance(a, actions.Barrier)] == ["withdraw"]
    assert place.records["a"].epoch == 1


def test_a_killed_proxy_fails_its_job_and_the_device_comes_back() -> None:
    place = fleet(2, job("a", 2, 2, 0), job("b", 1, 1, 1))
    place.converge()
    place.lose("local/soft-1")
    planned = place.converge()
    assert place.records["a"].phase == "Failed"
    ready = planned.conditions["a"][0]
    assert (
        ready.reason == "DeviceLost"
        and "local/soft-1" in ready.message
        and "rank 1" in ready.message
    )
    assert place.records["b"].step == "placed"


def test_a_proxy_that_was_restarted_behind_our_back_has_lost_the_job_too() -> None:
    place = fleet(1, job("a", 1, 1))
    place.converge()
    place.devices["local/soft-0"] = replace(place.devices["local/soft-0"], pid=4711, jobs=())
    place.converge()
    assert place.records["a"].phase == "Failed"


def test_a_suspended_job_does_not_need_its_proxies() -> None:
    place = fleet(1, job("a", 1, 1))
    place.converge()
    set_desired(place, job("a", 1, 1, suspend=True))
    place.converge()
    place.lose("local/soft-0")
    place.converge()
    set_desired(place, job("a", 1, 1))
    place.converge()
    assert place.records["a"].step == "placed" and place.records["a"].epoch == 2


def test_a_crashed_rank_ends_the_others_and_only_its_job() -> None:
    place = fleet(3, job("a", 2, 2, 0), job("b", 1, 1, 1))
    place.converge()
    place.exit("a", 1, -11)
    planned = place.converge()
    assert place.ranks["a", 0].state == "exited"
    assert planned.conditions["a"][0].message == "rank 1 was killed by SIGSEGV"
    assert (ending := place.records["a"].ending) and ending.rank == 1
    assert place.records["b"].step == "placed"


def test_a_job_that_succeeded_does_not_run_again() -> None:
    place = fleet(1, job("a", 1, 1))
    place.converge()
    place.exit("a", 0, 0)
    place.converge()
    set_desired(place, replace(job("a", 1, 1), command=("other",)))
    assert place.converge().actions == () and place.placed == 1


@pytest.mark.parametrize("status", [0, 3])
def test_a_process_that_is_killed_because_its_rank_exited_is_named(status: int) -> None:
    place = fleet(2, job("a", 2, 2))
    place.converge()
    place.exit("a", 0, 0)
    place.exit("a", 1, status)
    seen = place.ranks["a", 1]
    place.ranks["a", 1] = replace(seen, killed=("daemon (pid 17)",))
    place.converge()
    assert (ending := place.records["a"].ending)
    assert ending.message == (
        f"{'rank 1 exited with status 3' if status else '2 ranks exited with 0'}; still running "
        "at that time, and killed: daemon (pid 17) of rank 1"
    )


def test_a_device_that_leaves_the_pool_is_emptied_first() -> None:
    place = fleet(2, job("a", 2, 1))
    place.converge()
    only = Pool("local", (Device("local/soft-7", "soft", GIB),))
    place.desired = replace(place.desired, pools={"local": only})
    place.converge()
    assert place.records["a"].placement == ("local/soft-7",) * 2
    assert set(place.devices) == {"local/soft-7"}


def test_a_device_that_shrinks_under_a_job_keeps_it() -> None:
    """The job's virtual device is fixed: no device that is left can hold it, so it stays."""
    place = fleet(1, job("a", 1, 1))
    place.converge()
    place.desired = replace(place.desired, pools={"local": pool(1, memory=GIB // 2)})
    planned = place.converge()
    assert place.records["a"].step == "placed" and place.records["a"].epoch == 1
    assert not planned.fleet_ready


def test_host_memory_is_counted_before_folding() -> None:
    """Four ranks of 1 GiB on one device may need 3 GiB of host memory."""
    place = fleet(4, job("a", 4, 4), host_memory=2 * GIB)
    place.converge()
    set_desired(place, job("a", 4, 1))
    planned = place.converge()
    assert len(set(place.records["a"].placement)) == 4
    reasons = {c.reason: c.message for c in planned.conditions["a"]}
    assert "may need 3 GiB of host memory" in reasons["HostMemory"]
    set_desired(place, job("a", 4, 2))
    place.converge()
    assert len(set(place.records["a"].placement)) == 2


def test_a_device_serves_no_more_ranks_than_its_proxy_has_addresses_for() -> None:
    """A job that is asked to do with fewer devices than that stays where it is, and can rest."""
    place = fleet(3, job("a", 2 * RANKS_ON_A_DEVICE + 1, 3))
    place.converge()
    set_desired(place, job("a", 2 * RANKS_ON_A_DEVICE + 1, 2))
    planned = place.converge()
    assert len(set(place.records["a"].placement)) == 3
    reasons = {c.reason: c.message for c in planned.conditions["a"]}
    assert "Use 3 devices at least" in reasons["TooManyRanks"]
    set_desired(place, replace(job("a", 2 * RANKS_ON_A_DEVICE + 1, 2), suspend=True))
    place.converge()
    assert place.records["a"].step == "detached"


def test_host_memory_is_counted_before_a_suspension_and_over_all_jobs() -> None:
    jobs = [job("a", 2, 2, 0), job("b", 2, 2, 1)]
    place = fleet(4, *jobs, host_memory=3 * GIB)
    place.converge()
    set_desired(place, *(replace(j, suspend=True) for j in jobs))
    planned = place.converge()
    resting = [n for n, r in place.records.items() if r.step == "detached"]
    assert len(resting) <= 1, "both together would need 4 GiB"
    assert "HostMemory" in {c.reason for n in jobs for c in planned.conditions[n.name]}


def test_a_removed_file_suspends_and_says_orphaned() -> None:
    place = fleet(1, job("a", 1, 1))
    place.converge()
    set_desired(place, replace(job("a", 1, 1), orphaned=True))
    planned = place.converge()
    assert place.records["a"].step == "detached"
    assert {"Suspended", "Orphaned"} <= {c.type for c in planned.conditions["a"]}


def test_a_cancelled_job_ends_and_frees_its_devices() -> None:
    place = fleet(1, job("a", 1, 1))
    place.converge()
    set_desired(place, replace(job("a", 1, 1), cancelled=True))
    planned = place.converge()
    assert place.records["a"].phase == "Failed"
    assert planned.conditions["a"][0].reason == "Cancelled"


@pytest.mark.parametrize("shift", [KILL_AFTER_S + 1, -86400.0], ids=["late", "set back a day"])
def test_a_stubborn_rank_is_killed_after_a_while(shift: float) -> None:
    place = fleet(1, job("a", 2, 1))
    place.converge()
    place.exit("a", 0, 1)
    place.turn()
    first = [a for a in place.plan().actions if isinstance(a, actions.Signal)]
    place.now += shift
    second = [a for a in place.plan().actions if isinstance(a, actions.Signal)]
    assert [first[0].signum, second[0].signum] == [15, 9]


def test_a_job_on_a_device_that_the_journal_does_not_know_is_removed() -> None:
    place = fleet(1, job("a", 1, 1))
    place.converge()
    place.records.clear()
    place.ranks.clear()
    place.converge()
    assert place.records["a"].step == "placed"


def test_device_kinds_are_not_mixed_and_are_respected() -> None:
    soft, real = pool(1), pool(2, "rack", kind="nvidia")
    place = Fleet(Desired({"local": soft, "rack": real}, {"a": job("a", 2, 2)}))
    place.converge()
    assert place.records["a"].placement == ("rack/nvidia-0", "rack/nvidia-1")
    picky = replace(job("b", 1, 1, 1), device_types=("soft",))
    set_desired(place, job("a", 2, 2), picky)
    place.converge()
    assert place.records["b"].placement == ("local/soft-0",)


def test_the_virtual_device_is_the_least_a_job_may_get() -> None:
    devices = (Device("p/soft-0", "soft", 4 * GIB, "9.0"), Device("p/soft-1", "soft", GIB, "8.0"))
    place = Fleet(Desired({"p": Pool("p", devices)}, {"a": job("a", 1, 1)}))
    place.converge()
    seen = place.records["a"].device
    assert (seen["memory_bytes"], seen["cc_major"], seen["cc_minor"]) == (GIB, 8, 0)


def test_ranks_see_the_least_numbers_of_the_gpus_that_their_job_may_get() -> None:
    """They see those of the GPUs that are up when the job starts, for its whole life."""
    names = [f"rack/nvidia-{i}" for i in range(3)]
    desired = Desired({"rack": pool(3, "rack", kind="nvidia")}, {"a": job("a", 1, 1)})
    place = Fleet(desired)
    place.turn()
    h100, h100_pcie = {"sm_count": 132, "l2_bytes": 50}, {"sm_count": 114, "l2_bytes": 60}
    for name, facts in zip(names, (h100, h100_pcie, {}), strict=True):
        place.devices[name] = replace(place.devices[name], facts=facts)
    place.converge()
    assert {"sm_count": 114, "l2_bytes": 50}.items() <= place.records["a"].device.items()
    place.devices[names[0]] = replace(place.devices[names[0]], facts={"sm_count": 1})
    place.converge()
    assert place.records["a"].device["sm_count"] == 114


def test_ranks_see_the_least_compute_capability_of_gpus_whose_pool_gives_none() -> None:
    """GPUs count that are up when the job starts. A GPU that comes later, with less, is for a new
    job."""
    names = [f"rack/nvidia-{i}" for i in range(3)]
    gpus = [replace(each, cc="own") for each in pool(3, "rack", kind="nvidia").devices]
    place = Fleet(Desired({"rack": Pool("rack", tuple(gpus))}, {"a": job("a", 3, 2)}))
    place.turn()
    for name, cc in zip(names[:2], ("10.0", "8.9"), strict=True):
        place.devices[name] = replace(place.devices[name], own_cc=cc)
    place.devices[names[2]] = replace(place.devices[names[2]], ready=False)
    place.converge()
    seen = place.records["a"].device
    assert (seen["cc_major"], seen["cc_minor"]) == (8, 9)
    place.devices[names[2]] = replace(place.devices[names[2]], ready=True, own_cc="8.6")
    set_desired(place, job("a", 3, 3), job("b", 1, 1))
    place.converge()
    assert set(place.records["a"].placement) == set(names[:2])
    assert place.records["b"].placement == (names[2],)
    seen = place.records["b"].device
    assert (seen["cc_major"], seen["cc_minor"]) == (8, 6)
    seen = place.records["a"].device
    assert (seen["cc_major"], seen["cc_minor"]) == (8, 9)


def test_a_temporary_pool_serves_its_job_and_goes_with_it() -> None:
    mine = Pool("mine", (Device("mine/soft-0", "soft", GIB, only_for="mine"),), only_for="mine")
    place = Fleet(Desired({"mine": mine}, {"mine": job("mine", 1, 1), "other": job("other", 1, 1)}))
    place.converge()
    assert "other" not in place.records
    place.exit("mine", 0, 0)
    place.converge()
    assert place.devices == {} and place.desired.pools == {}


def test_a_job_that_runs_anew_is_not_taken_for_the_one_that_its_device_remembers() -> None:
    place = fleet(1, job("a", 1, 1))
    place.converge()
    place.exit("a", 0, 0)
    place.converge()
    set_desired(place)
    place.converge()
    place.ranks.clear()
    set_desired(place, job("a", 1, 1))
    planned = place.converge()
    assert place.records["a"].step == "placed" and "a" in planned.converged


def test_a_change_of_a_pool_names_what_changes() -> None:
    def changed(*devices: Device) -> dict[str, tuple[object, object]]:
        old = Desired({"local": pool(4)})
        new = Desired({"local": replace(pool(4), devices=devices)})
        (found,) = differences(old, new, {})
        return {name: (was, now) for name, was, now in found.fields}

    four = pool(4).devices
    assert changed(*four[:3]) == {"spec.devices": (4, 3)}
    less = [replace(each, memory=GIB // 2) for each in four]
    assert changed(*less) == {"spec.devices[].memory": ("1 GiB", "512 MiB")}
    assert changed(*four[:2], *less[2:]) == {
        "spec.devices[].memory": ("1 GiB", "1 GiB × 2, 512 MiB × 2")
    }
    slow = [replace(each, speed=0.5, cc="9.0") for each in four[:1]]
    assert changed(*slow) == {
        "spec.devices": (4, 1),
        "spec.devices[].speed": ("1.0", "0.5"),
        "spec.devices[].computeCapability": ("12.0", "9.0"),
    }
