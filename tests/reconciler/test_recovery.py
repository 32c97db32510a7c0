"""The planner saves, stores, restores and restarts jobs: nothing is lost without a report, there
are never two copies of a rank, and no save leaves a job standing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from rankfold.reconciler import actions
from rankfold.reconciler.model.desired import Desired, Device, Job, Pool
from rankfold.reconciler.model.observed import RankOnDevice, StoreQuery, Transfer
from rankfold.reconciler.model.recorded import NODE, RESTARTING, Record, Save
from rankfold.reconciler.plan import saving
from support.simulated import Fleet

pytestmark = pytest.mark.unit

GIB = 1 << 30
DEVICES = tuple(f"local/soft-{at}" for at in range(4))


def job(name: str = "a", ranks: int = 2, gpus: int = 2, **fields: Any) -> Job:
    """Saved on request only, unless `fields` say otherwise."""
    wanted = {"save_every_s": 0, "max_restarts": 3, **fields}
    return Job(name, ("true",), "/", ranks, gpus, **wanted)


def fleet(*jobs: Job) -> Fleet:
    pool = Pool("local", tuple(Device(name, "soft", GIB) for name in DEVICES))
    place = Fleet(Desired({"local": pool}, {j.name: j for j in jobs}))
    place.converge()
    return place


def set_desired(place: Fleet, *jobs: Job) -> None:
    place.desired = replace(place.desired, jobs={j.name: j for j in jobs})


def save(place: Fleet, name: str = "a", token: str = "t") -> None:
    """A person requests a save, and gets an answer."""
    place.update(name, requested=token)
    place.converge()
    answer = place.records[name].answer
    assert answer is not None and answer.token == token


def conditions(place: Fleet, name: str = "a") -> dict[str, str]:
    return {c.reason: c.message for c in place.plan().conditions[name]}


# ---- saves ---------------------------------------------------------------------------------------


def test_a_requested_save_goes_from_a_cut_to_a_checkpoint_while_the_job_stays() -> None:
    place = fleet(job())
    save(place)
    record = place.records["a"]
    assert [c.id for c in record.checkpoints] == ["1-1"] and record.epoch == 1
    assert record.answer is not None and record.answer.id == "1-1"
    assert place.works("a") and record.save is None


def test_the_last_few_are_known() -> None:
    place = fleet(job(keep=2))
    for number in range(4):
        save(place, token=str(number))
    assert [c.id for c in place.records["a"].checkpoints] == ["1-3", "1-4"]


def test_a_job_is_saved_at_its_interval_counted_from_the_last_time() -> None:
    place = fleet(job(save_every_s=20))
    begun = place.records["a"].saved_at
    for _ in range(70):
        place.turn()
    assert 2 <= len(place.saved) <= 3
    assert place.records["a"].saved_at > begun + 40


def test_a_clock_that_was_set_back_does_not_put_the_next_save_off() -> None:
    place = fleet(job(save_every_s=20))
    place.now -= 1e6
    for _ in range(10):
        place.turn()
    assert place.saved == ["a"]


def counting(place: Fleet, collectives: int) -> None:
    """The proxies count so many collectives of each rank, and one rank is behind by one."""
    for name, device in place.devices.items():
        ranks = (RankOnDevice(at, "attached", {"collectives": collectives + at}) for at in range(2))
        jobs = tuple(replace(there, ranks=tuple(ranks)) for there in device.jobs)
        place.devices[name] = replace(device, jobs=jobs)


@pytest.mark.parametrize(
    ("before", "now", "saved"),
    [
        (0, 99, False),
        (0, 100, True),
        (100, 199, False),
        (100, 201, True),
        (100, 0, False),
        (100, 5, True),
    ],
)
def test_steps_are_collectives_of_the_rank_that_did_fewest(
    before: int, now: int, saved: bool
) -> None:
    place = fleet(job(gpus=1, save_every_steps=100))
    place.update("a", saved_steps=before)
    counting(place, now)
    planned = place.plan().actions
    assert any(isinstance(a, actions.Barrier) and a.save == "steps" for a in planned) == saved


def test_after_a_failed_save_the_job_continues_and_is_saved_one_interval_later() -> None:
    place = fleet(job(save_every_s=20))
    place.saves_fail = True
    failed = 0
    for _ in range(60):
        planned = place.turn()
        failed += sum(isinstance(each, actions.Save) for each in planned.actions)
    assert 2 <= failed <= 3, "not in a loop"
    assert place.works("a") and place.records["a"].checkpoints == ()
    assert conditions(place)["SaveFailed"] == "a process cannot be saved"
    place.saves_fail = False
    for _ in range(25):
        place.turn()
    assert place.records["a"].checkpoints and "SaveFailed" not in conditions(place)


def test_a_request_is_answered_with_what_went_wrong() -> None:
    place = fleet(job())
    place.saves_fail = True
    save(place)
    answer = place.records["a"].answer
    assert answer is not None and answer.error == "a process cannot be saved"
    assert place.works("a")


def test_a_job_that_does_not_come_to_a_cut_continues_unsaved() -> None:
    place = fleet(job())
    place.update("a", requested="t")
    place.turn()
    assert place.records["a"].save is not None
    for name in place.records["a"].placement:  # one device never gets there
        place.set_state(name, "a", "stopping")
    place.proceed = lambda: None  # type: ignore[method-assign]
    place.now += saving.CUT_WITHIN_S + 1
    planned = [place.turn() for _ in range(3)]
    kinds = [type(each) for one in planned for each in one.actions]
    assert actions.Conclude in kinds and actions.Save not in kinds
    assert all(d.jobs[0].state == "running" for d in place.devices.values() if d.jobs)
    answer = place.records["a"].answer
    assert answer is not None and "did not reach a consistent cut" in answer.error


def silence(place: Fleet, rank: int) -> None:
    """A launcher hangs, and its rank continues."""
    place.ranks["a", rank] = replace(place.ranks["a", rank], state="silent", silent_since=1.0)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_launcher_that_hangs_holds_no_job_at_its_cut(frozen: bool) -> None:
    place = fleet(job())
    place.update("a", requested="t")
    while place.records["a"].save is None:
        place.turn()
    for name in place.records["a"].placement:
        place.set_state(name, "a", "cut")
    if frozen:  # and the reconciler was killed in the middle
        place.set_ranks("a", (0,), "frozen")
        save = place.records["a"].save
        assert save is not None
        place.update("a", save=replace(save, stage="saving"))
    silence(place, 1)
    place.converge()
    assert place.ranks["a", 0].state == "running" and place.ranks["a", 1].state == "silent"
    assert all(d.jobs[0].state == "running" for d in place.devices.values() if d.jobs)
    record = place.records["a"]
    assert record.save is None and "the launcher of rank 1" in record.save_error
    assert record.requested == "t" and not place.saved, "who requested it waits for another try"
    place.set_ranks("a", (1,), "running")
    place.ranks["a", 1] = replace(place.ranks["a", 1], silent_since=None)
    place.now += saving.REQUESTED_AGAIN_S
    place.converge()
    answer = place.records["a"].answer
    assert place.works("a") and answer is not None and answer.id == "1-2"


def test_an_upload_ends_though_a_launcher_hangs() -> None:
    place = fleet(job())
    place.update("a", requested="t")
    while not place.saved:
        place.turn()
    silence(place, 0)
    place.converge()
    assert [c.id for c in place.records["a"].checkpoints] == ["1-1"]


def test_a_request_is_tried_again_where_the_reason_may_pass_and_then_answered() -> None:
    place = fleet(job())
    place.update("a", requested="t")
    for number in range(saving.REQUEST_TRIES):
        place.now += saving.REQUESTED_AGAIN_S
        while place.records["a"].save is None:
            assert place.records["a"].answer is None
            place.turn()
        save = place.records["a"].save
        assert save is not None and save.number == number + 1 and save.token == "t"
        place.update("a", save=replace(save, stage="saving"))  # and it was killed
        for name in place.records["a"].placement:
            place.set_state(name, "a", "running")
        place.turn()
        assert place.records["a"].save is None
    answer = place.records["a"].answer
    assert answer is not None and answer.error == "it was interrupted" and place.works("a")


def test_an_upload_that_hangs_is_begun_again_and_given_up_after_so_many_times() -> None:
    place = fleet(job())
    place.uploads = "slow"
    place.update("a", requested="t")
    kinds: list[actions.Action] = []
    for _ in range(40):
        kinds += place.turn().actions
        if "a" in place.transfers:
            place.transfers["a"] = replace(place.transfers["a"], stuck=True)
    uploads = [each for each in kinds if isinstance(each, actions.Upload)]
    assert [each.stuck for each in uploads] == [False] + [True] * (saving.TRIES - 1)
    answer = place.records["a"].answer
    assert answer is not None and "is stuck repeatedly" in answer.error and place.works("a")


def test_an_upload_that_is_just_being_begun_is_not_over() -> None:
    """The one before was killed for it."""
    place = fleet(job())
    place.uploads = "slow"
    place.update("a", requested="t")
    while "a" not in place.transfers or not place.transfers["a"].lives:
        place.turn()
    save = place.records["a"].save
    assert save is not None
    place.update("a", save=replace(save, tries=saving.TRIES))
    place.transfers["a"] = replace(place.transfers["a"], lives=False)
    place.in_flight = frozenset({"the snapshots of a"})
    assert place.plan().actions == ()
    place.in_flight = frozenset()
    (action,) = place.plan().actions
    assert isinstance(action, actions.Conclude)


def test_a_fetch_that_hangs_is_begun_again() -> None:
    place = fleet(job())
    stored(place)
    set_desired(place, job())
    while place.records["a"].restore is None:
        place.turn()
    place.transfers["a"] = replace(place.transfers["a"], lives=True, state="working", stuck=True)
    (action,) = place.plan().actions
    assert isinstance(action, actions.Fetch) and action.stuck


def test_a_reconciler_that_is_killed_in_a_save_is_followed_by_one_that_continues() -> None:
    place = fleet(job())
    place.killed_in_a_save = True
    save(place)
    assert place.works("a") and place.records["a"].checkpoints


def test_ranks_that_stand_still_for_nothing_are_let_go() -> None:
    place = fleet(job())
    place.set_ranks("a", (0, 1), "frozen")
    place.converge()
    assert place.works("a")


def test_a_job_that_reports_why_it_reaches_no_cut_continues_unsaved_at_once() -> None:
    place = fleet(job())
    place.update("a", requested="t")
    place.turn()
    for name in place.records["a"].placement:
        place.set_state(name, "a", "stopping")
        device = place.devices[name]
        jobs = tuple(replace(each, reason="the disk is full") for each in device.jobs)
        place.devices[name] = replace(device, jobs=jobs)
    place.turn()
    assert place.records["a"].save is None
    assert conditions(place)["SaveFailed"] == "the disk is full"
    set_desired(place, job(suspend=True))
    assert "; it cannot stop: the disk is full" in conditions(place)["Converging"]


def test_a_save_that_was_cut_off_long_ago_is_given_up() -> None:
    place = fleet(job())
    place.update("a", save=Save(1, "interval", place.now - 1000.0, "saving"), saves=1)
    for name in place.records["a"].placement:
        place.set_state(name, "a", "cut")
    place.set_ranks("a", (0, 1), "frozen")
    place.converge()
    assert place.works("a") and not place.saved


def test_jobs_that_cannot_be_saved_here_are_reported_and_not_saved() -> None:
    place = fleet(job(save_every_s=10))
    place.no_saves = "there is no CRIU"
    for _ in range(30):
        place.turn()
    assert not place.saved and place.works("a")
    assert conditions(place)["Unavailable"] == "there is no CRIU"


def test_an_elastic_job_is_saved_where_processes_cannot_be() -> None:
    pool = Pool("local", tuple(Device(f"local/cpu-{at}", "cpu", GIB) for at in range(2)))
    fields: dict[str, Any] = {"runtime": "elastic", "save_every_s": 10}
    place = Fleet(Desired({"local": pool}, {"a": job(**fields)}))
    place.converge()
    place.no_saves = "there is no CRIU"
    for _ in range(30):
        place.turn()
    assert place.saved and place.works("a") and "Unavailable" not in conditions(place)
    place.rest_save_after = 2.0
    set_desired(place, job(**fields, suspend=True))
    turns(place, 15)
    assert place.records["a"].step == "stored"


def test_an_upload_that_takes_long_is_not_begun_again() -> None:
    place = fleet(job())
    place.uploads = "slow"
    place.update("a", requested="t")
    begun = sum(isinstance(a, actions.Upload) for _ in range(40) for a in place.turn().actions)
    assert begun == 1 and place.works("a")


def test_an_upload_that_is_interrupted_is_gone_on_with() -> None:
    place = fleet(job())
    place.uploads = "retry"
    place.update("a", requested="t")
    for _ in range(40):
        place.turn()
    assert not place.records["a"].checkpoints and place.works("a")
    assert "full" in conditions(place)["UploadFailed"]
    place.uploads = "done"
    for _ in range(100):
        place.turn()
    assert [c.id for c in place.records["a"].checkpoints] == ["1-1"] and place.saved == ["a"]


@pytest.mark.parametrize("how", ["retry", "failed"])
def test_an_upload_that_cannot_be_done_is_given_up_while_the_job_continues(how: str) -> None:
    place = fleet(job())
    place.uploads = how
    place.update("a", requested="t")
    for _ in range(600):
        place.turn()
    answer = place.records["a"].answer
    assert answer is not None and answer.error == "full" and place.works("a")


@pytest.mark.parametrize("known", [0, 1], ids=["a name in use", "taken over"])
def test_a_job_that_continues_elsewhere_is_no_second_copy_here(known: int) -> None:
    place = fleet(job())
    place.uploads = "slow"
    place.update("a", requested="t")
    while "a" not in place.transfers or not place.transfers["a"].lives:
        place.turn()
    said = "a continues as incarnation 2, begun by there"
    number = place.transfers["a"].number
    refused = Transfer(number, "failed", error=said, code="old-incarnation")
    place.transfers["a"] = refused
    place.update("a", known=known)
    if not known:  # the store never had it from here
        assert place.plan().actions == (actions.Conclude("a", number, error=said),)
        return
    (end,) = place.plan().actions
    assert isinstance(end, actions.End)
    ending = end.ending
    assert (ending.phase, ending.reason, ending.message) == ("Failed", "TakenOver", said)


def test_the_store_is_queried_now_and_then_for_the_owners_of_the_jobs_that_it_knows() -> None:
    """About all at once, also about one that has just come to it."""
    place = fleet(job(gpus=1), job("b", gpus=1), job("c", gpus=1))
    turns(place, 60)
    assert place.questions == []
    place.update("a", known=1)
    turns(place, 20)
    place.update("c", known=1)
    turns(place, 40)
    assert place.questions == [("a",), ("a",), ("a", "c"), ("a", "c")]
    place.in_flight = frozenset({"the store of checkpoints"})
    turns(place, 60)
    assert len(place.questions) == 4 and place.works("a")


def test_a_store_that_does_not_answer_is_asked_ever_later() -> None:
    place = fleet(job())
    place.update("a", known=1)
    place.store_silent = True
    turns(place, 1000)
    asked = len(place.questions)
    assert asked == 6, "after 15, 30, 60, 120, 240 and then every 300 s"
    turns(place, 600)
    assert len(place.questions) == asked + 2
    place.store_silent = False
    turns(place, 300)
    asked = len(place.questions)
    turns(place, 60)
    assert len(place.questions) == asked + 4


def test_a_store_that_is_away_for_weeks_is_waited_for() -> None:
    """A job that rests there, or continues from there, is tried again and again."""
    assert saving.waited(5000, 0.0, saving.WAIT_MAX_S)
    assert not saving.waited(5000, 0.0, saving.WAIT_MAX_S - 1)
    place = fleet(job())
    place.update("a", known=1)
    place.store_query = StoreQuery(place.now, 5000)
    place.store_silent = True
    turns(place, 600)
    assert place.questions and place.works("a")


# ---- what cannot be saved ----------------------------------------------------------------------


def turns(place: Fleet, count: int) -> None:
    for _ in range(count):
        place.turn()


def test_unsaveable_state_is_reported_soon_after_the_start_while_the_job_runs() -> None:
    place = fleet(job())
    place.save_obstacle = "rank 1: process 10 (python) uses io_uring"
    turns(place, 5)
    assert place.looks == 0 and "CannotBeSaved" not in conditions(place)
    turns(place, 10)
    assert place.looks == 1 and conditions(place)["CannotBeSaved"] == place.save_obstacle
    assert place.works("a") and not place.saved


def test_it_is_looked_at_once_and_again_while_there_is_something() -> None:
    place = fleet(job())
    turns(place, 200)
    assert place.looks == 1
    place = fleet(job())
    place.save_obstacle = "rank 1: process 10 (python) uses io_uring"
    turns(place, 15)
    place.save_obstacle = ""
    turns(place, 200)
    assert place.looks == 2 and "CannotBeSaved" not in conditions(place)


def test_a_job_with_an_exited_rank_is_not_looked_at() -> None:
    place = fleet(job())
    turns(place, 5)
    place.exit("a", 1, 0)
    turns(place, 200)
    assert place.looks == 0


def test_another_incarnation_is_looked_at_anew() -> None:
    place = fleet(job())
    place.save_obstacle = "rank 1: process 10 (python) uses io_uring"
    turns(place, 15)
    place.kill("a", 0)
    place.converge()
    assert place.records["a"].incarnation == 2 and "CannotBeSaved" not in conditions(place)
    turns(place, 15)
    assert place.looks == 2 and "CannotBeSaved" in conditions(place)


def test_launchers_are_not_queried_where_nothing_can_be_saved_or_again_at_once() -> None:
    place = fleet(job())
    place.in_flight = frozenset({"a look at a"})
    turns(place, 15)
    place.in_flight, place.no_saves = frozenset(), "no CRIU"
    turns(place, 15)
    assert not place.looks


# ---- into the store and back ---------------------------------------------------------------------


def stored(place: Fleet, **fields: Any) -> None:
    set_desired(place, job(suspend=True, store=True, **fields))
    place.converge()
    assert place.records["a"].step == "stored"


def test_a_job_rests_in_the_store_without_a_process_and_continues_where_it_was() -> None:
    place = fleet(job())
    stored(place)
    assert place.ranks == {} and place.plan().converged == {"a"}
    did = place.work["a"]
    set_desired(place, job(gpus=1))
    place.converge()
    record = place.records["a"]
    assert (record.incarnation, record.restarts, record.restart_cost) == (2, 0, "")
    assert place.works("a") and place.work["a"] > did and len(set(record.placement)) == 1


def test_a_job_that_rests_in_memory_can_be_sent_to_the_store() -> None:
    place = fleet(job())
    set_desired(place, job(suspend=True))
    place.converge()
    assert place.records["a"].step == "detached" and place.ranks
    stored(place)


def test_nothing_ends_before_its_checkpoint_exists() -> None:
    place = fleet(job())
    place.uploads = "retry"
    set_desired(place, job(suspend=True, store=True))
    for _ in range(900):
        place.turn()
    assert len(place.ranks) == 2 and place.records["a"].step == "detached"
    assert "full" in conditions(place)["UploadFailed"]
    place.uploads = "done"
    for _ in range(310):
        place.turn()
    assert place.records["a"].step == "stored"


def test_a_job_that_cannot_be_stored_rests_in_memory_and_is_not_tried_in_a_loop() -> None:
    place = fleet(job())
    place.saves_fail = True
    set_desired(place, job(suspend=True, store=True))
    tried = 0
    for _ in range(400):
        tried += sum(isinstance(each, actions.Save) for each in place.turn().actions)
    assert tried == 2 and len(place.ranks) == 2
    assert conditions(place)["SaveFailed"] == "a process cannot be saved"


def test_a_job_that_is_resumed_while_it_is_stored_continues_and_is_not_ended() -> None:
    place = fleet(job())
    place.uploads = "retry"
    set_desired(place, job(suspend=True, store=True))
    for _ in range(10):
        place.turn()
    set_desired(place, job())
    for _ in range(6):
        place.turn()
    assert place.works("a")
    set_desired(place, job(suspend=True, store=True))  # what is uploaded is not what rests now
    place.uploads = "done"
    place.converge(400)
    assert place.records["a"].step == "stored"


def test_a_job_that_never_had_a_device_can_rest_in_the_store() -> None:
    place = fleet(job("b", 4, 4))
    set_desired(place, job("b", 4, 4), job())
    place.converge()
    place.update("a", step="started", fixed=job(), device={"memory_bytes": GIB}, device_type="soft")
    for rank in range(2):
        place.ranks["a", rank] = replace(place.ranks["b", 0], job="a", rank=rank)
    place.work["a"] = 0
    set_desired(place, job("b", 4, 4), job(suspend=True, store=True))
    place.converge()
    assert place.records["a"].step == "stored"


def test_a_checkpoint_that_is_damaged_is_said_and_skipped() -> None:
    place = fleet(job())
    save(place)
    stored(place)
    place.damaged.add(("a", "1-2"))
    set_desired(place, job())
    place.converge()
    record = place.records["a"]
    assert place.works("a") and record.unusable == ("1-2",) and record.restart_cost


def test_a_job_without_a_good_checkpoint_says_so() -> None:
    place = fleet(job())
    stored(place)
    place.damaged.add(("a", "1-1"))
    set_desired(place, job())
    place.converge()
    ending = place.records["a"].ending
    assert ending is not None and ending.reason == "NoCheckpoint"
    assert "a unit is damaged" in ending.message


def test_a_restore_that_fails_leaves_nothing_and_is_tried_again() -> None:
    place = fleet(job())
    stored(place)
    place.restores_fail = True
    set_desired(place, job())
    kinds = [type(each) for _ in range(60) for each in place.turn().actions]
    assert kinds.count(actions.Restore) >= 2, "it is tried again"
    assert kinds.count(actions.Vacate) >= 2, "and what was begun of it is ended each time"
    place.restores_fail = False
    for _ in range(400):
        place.turn()
    assert place.works("a")


def test_restored_ranks_are_queried_again_where_their_answers_were_not_recorded() -> None:
    place = fleet(job())
    stored(place)
    set_desired(place, job())
    while not place.ranks:
        before = place.records["a"]
        place.turn()
    assert before.restore is not None
    place.records["a"] = replace(before, step="restoring")  # the reconciler was killed then
    assert place.plan().actions == (actions.Restore("a", before.restore.number, (), (0, 1)),)


def test_an_old_copy_of_a_rank_is_ended_before_anything_is_let_go() -> None:
    place = fleet(job())
    set_desired(place, job(suspend=True))
    place.converge()
    place.update("a", incarnation=2)
    place.ranks["a", 0] = replace(place.ranks["a", 0], incarnation=2, state="frozen")
    set_desired(place, job())
    assert place.plan().actions == (actions.Signal("a", (1,), 9),)


# ---- restarts ------------------------------------------------------------------------------------


FAULTS = {
    "a rank fails": lambda place: place.exit("a", 1, 3),
    "a rank is killed": lambda place: place.exit("a", 0, -9),
    "a launcher is killed": lambda place: place.kill("a", 0),
    "a proxy is killed": lambda place: place.lose(place.records["a"].placement[0]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_fault_a_job_continues_from_its_last_checkpoint(fault: str) -> None:
    place = fleet(job())
    save(place)
    for _ in range(5):
        place.turn()
    FAULTS[fault](place)
    place.converge()
    record = place.records["a"]
    assert (
        place.works("a") and (record.restarts, record.incarnation) == (1, 2) and record.restart_cost
    )
    assert place.work["a"] >= place.store["a", "1-1"] > 0


@pytest.mark.parametrize("fault", FAULTS)
def test_before_the_first_checkpoint_it_continues_from_its_beginning(fault: str) -> None:
    place = fleet(job())
    FAULTS[fault](place)
    place.converge()
    record = place.records["a"]
    assert (
        place.works("a") and (record.restarts, record.incarnation) == (1, 2) and record.restart_cost
    )


def test_after_so_many_restarts_it_has_failed() -> None:
    place = fleet(job(max_restarts=2))
    for _ in range(3):
        place.exit("a", 0, 1)
        place.converge()
    record = place.records["a"]
    assert record.phase == "Failed" and record.ending is not None
    assert record.ending.message == "rank 0 exited with status 1; after 2 restarts"


def test_a_command_that_cannot_be_started_is_not_started_again() -> None:
    place = fleet(job())
    place.ranks["a", 0] = replace(
        place.ranks["a", 0], state="exited", exit_status=127, error="cannot start ./train"
    )
    place.converge()
    assert place.records["a"].phase == "Failed"


@pytest.mark.parametrize("wanted", [None, "cancelled"])
def test_a_cancelled_job_does_not_restart(wanted: str | None) -> None:
    place = fleet(job())
    place.exit("a", 0, 1)
    place.turn()
    ending = place.records["a"].ending
    assert ending is not None and ending.phase == RESTARTING
    set_desired(place, *([job(cancelled=True)] if wanted else []))
    place.converge()
    record = place.records.get("a")
    assert record is None or (record.phase, record.restarts) == ("Failed", 0)


def test_a_checkpoint_that_is_on_its_way_is_waited_for() -> None:
    place = fleet(job())
    place.update("a", requested="t")
    while place.records["a"].save is None or place.records["a"].save.stage != "uploading":
        place.turn()
    place.exit("a", 0, 1)
    place.converge()
    assert place.work["a"] >= place.store["a", "1-1"] and place.records["a"].restarts == 1
    assert "checkpoint" not in place.records["a"].error


def test_a_job_that_fails_while_it_rests_waits_in_the_store() -> None:
    place = fleet(job())
    save(place)
    set_desired(place, job(suspend=True))
    place.converge()
    place.kill("a", 0)
    planned = place.converge()
    assert place.records["a"].step == "stored" and "a" in planned.converged


# ---- whatever happens ----------------------------------------------------------------------------


# ---- rest on the node's disk -----------------------------------------------------------------


def resting(**fields: Any) -> Fleet:
    """A job that was suspended a moment ago, and will be dumped."""
    place = fleet(job(**fields))
    place.rest_save_after = 0.0
    set_desired(place, job(suspend=True, **fields))
    return place


def test_a_job_that_rests_gets_a_local_snapshot_and_continues_where_it_was() -> None:
    place = resting()
    place.converge()
    record = place.records["a"]
    assert (record.step, record.stored) == ("stored", NODE) and not place.living("a")
    assert "a" in place.plan().converged and record.checkpoints == ()
    did = place.work["a"]
    set_desired(place, job())
    place.converge()
    record = place.records["a"]
    assert place.works("a") and place.work["a"] > did
    assert (record.incarnation, record.restarts, record.local_snapshot) == (2, 0, None)


def test_no_local_snapshot_is_made_before_its_time_nor_where_none_can_be() -> None:
    for fields in ({"rest_save_after": 30.0}, {"rest_save_after": None}, {"no_saves": "no CRIU"}):
        place = resting()
        for name, value in fields.items():
            setattr(place, name, value)
        for _ in range(20):
            place.turn()
        assert place.records["a"].step == "detached" and place.living("a"), fields
    place.no_saves, place.rest_save_after = "", 30.0
    for _ in range(20):
        place.turn()
    assert place.records["a"].stored == NODE


def test_a_job_without_a_local_snapshot_rests_in_memory_and_reports_why() -> None:
    place = resting()
    place.saves_fail = True
    tried = 0
    for _ in range(60):
        tried += sum(isinstance(each, actions.Save) for each in place.turn().actions)
    assert tried == 1 and place.records["a"].step == "detached"
    assert {seen.state for seen in place.ranks.values()} == {"running"}
    assert "io_uring" in conditions(place)["RestsInMemory"]
    set_desired(place, job())
    place.converge()
    assert place.works("a") and "RestsInMemory" not in conditions(place)


def test_a_job_resumed_during_its_local_snapshot_is_not_ended() -> None:
    place = resting()
    place.killed_in_a_save = True
    while place.killed_in_a_save:
        place.turn()
    assert place.records["a"].local_snapshot is not None
    set_desired(place, job())
    place.converge()
    assert place.works("a") and place.records["a"].local_snapshot is None
    assert place.records["a"].incarnation == 1


def test_a_local_snapshot_that_was_interrupted_is_continued() -> None:
    place = resting()
    place.killed_in_a_save = True
    place.converge()
    assert place.records["a"].stored == NODE and place.records["a"].saves == 1


def test_a_damaged_local_snapshot_is_reported_and_the_last_checkpoint_taken() -> None:
    place = fleet(job())
    save(place)
    place.rest_save_after = 0.0
    set_desired(place, job(suspend=True))
    place.converge()
    place.dump_damaged = True
    set_desired(place, job())
    place.converge()
    assert place.works("a") and "something" in conditions(place)["WentBack"]
    assert place.records["a"].local_snapshot is None


def test_a_damaged_local_snapshot_is_the_end_where_there_is_no_checkpoint() -> None:
    place = resting()
    place.converge()
    place.dump_damaged = True
    set_desired(place, job())
    place.converge()
    ending = place.records["a"].ending
    assert ending is not None and ending.reason == "NoCheckpoint"
    assert "the local snapshot on this node" in ending.message


def done(place: Fleet) -> list[type[actions.Action]]:
    """The actions until there is nothing left to do."""
    kinds: list[type[actions.Action]] = []
    while (planned := place.turn()).actions or any(t.lives for t in place.transfers.values()):
        kinds += [type(each) for each in planned.actions]
    return kinds


def test_a_job_in_a_local_snapshot_is_moved_to_the_store_without_being_restored() -> None:
    place = resting()
    place.converge()
    set_desired(place, job(suspend=True, store=True))
    assert done(place) == [actions.Upload, actions.Conclude, actions.Rest]
    record = place.records["a"]
    assert (record.step, record.local_snapshot) == ("stored", None)
    assert [each.id for each in record.checkpoints] == [record.stored]


def test_a_checkpoint_is_made_of_the_local_snapshot_where_the_job_rests() -> None:
    """Again and again; it rests on, and may be resumed."""
    place = resting()
    place.converge()
    did = place.work["a"]
    for token in ("t", "u"):
        place.update("a", requested=token)
        assert done(place) == [actions.Upload, actions.Conclude]
        record = place.records["a"]
        assert (record.step, record.stored, record.requested) == ("stored", NODE, "")
        assert record.local_snapshot is not None and record.answer is not None
        assert record.answer.token == token and record.answer.id == record.checkpoints[-1].id
        assert place.store["a", record.answer.id] == did
    set_desired(place, job())
    place.converge()
    assert place.works("a") and place.records["a"].local_snapshot is None


def test_a_requested_checkpoint_waits_for_the_local_snapshot() -> None:
    place = resting()
    place.rest_save_after = 5.0
    while place.records["a"].step != "detached":
        place.turn()
    place.update("a", requested="t")
    saves = [each for each in done_until_dumped(place) if isinstance(each, actions.Save)]
    assert [each.node for each in saves] == [True]
    assert done(place) == [actions.Upload, actions.Conclude]
    answer = place.records["a"].answer
    assert answer is not None and answer.id and place.records["a"].stored == NODE


def done_until_dumped(place: Fleet) -> list[actions.Action]:
    found: list[actions.Action] = []
    while place.records["a"].step != "stored":
        found += place.turn().actions
    return found


@pytest.mark.parametrize("why", ["never", "cannot"])
def test_a_job_that_stays_in_memory_is_saved_there(why: str) -> None:
    place = resting()
    place.rest_save_after = None if why == "never" else 0.0
    place.saves_fail = why == "cannot"
    for _ in range(5):
        place.turn()
    place.saves_fail = False
    place.update("a", requested="t")
    for _ in range(8):
        place.turn()
    record = place.records["a"]
    assert record.step == "detached" and record.answer is not None and record.answer.id
    assert {seen.state for seen in place.ranks.values()} == {"running"}
    assert record.save is None and place.store["a", record.answer.id] == place.work["a"]


@pytest.mark.parametrize("store", [True, False])
def test_a_job_that_is_resumed_while_its_local_snapshot_is_uploaded_continues(store: bool) -> None:
    place = resting()
    place.converge()
    place.uploads = "slow"
    place.update("a", requested="" if store else "t")
    set_desired(place, job(suspend=True, store=store))
    place.turn()
    assert place.records["a"].save is not None
    set_desired(place, job())
    for _ in range(8):
        place.turn()
    assert place.works("a") and place.records["a"].save is not None
    did = place.work["a"]
    place.uploads = "done"
    place.converge()
    record = place.records["a"]
    assert place.works("a") and place.work["a"] > did and record.incarnation == 2
    assert len(record.checkpoints) == 1 and record.save is None and record.local_snapshot is None


def test_a_damaged_local_snapshot_becomes_no_checkpoint() -> None:
    place = resting()
    place.converge()
    place.dump_damaged = True
    save(place)
    record = place.records["a"]
    assert record.answer is not None and "cut short" in record.answer.error
    assert not record.checkpoints and record.stored == NODE


class Life(RuleBasedStateMachine):
    """Two jobs that are saved, stored, resumed, moved and killed in any order. `Fleet` refuses what
    must never be asked; here is what must come of it."""

    def __init__(self) -> None:
        super().__init__()
        self.place = fleet(job("a", 2, 2, max_restarts=50), job("b", 2, 1, max_restarts=50))
        self.requests = 0
        self.did: dict[str, int] = {}
        self.words: dict[str, tuple[int, int]] = {}

    def change(self, name: str, **fields: Any) -> None:
        jobs = dict(self.place.desired.jobs)
        jobs[name] = replace(jobs[name], **fields)
        set_desired(self.place, *jobs.values())

    names = st.sampled_from(["a", "b"])

    @rule(turns=st.integers(1, 12))
    def continue_running(self, turns: int) -> None:
        for _ in range(turns):
            self.place.turn()

    @rule(name=names)
    def request(self, name: str) -> None:
        self.requests += 1
        self.place.update(name, requested=str(self.requests))

    @rule(name=names, store=st.booleans())
    def suspend(self, name: str, store: bool) -> None:
        self.change(name, suspend=True, store=store)

    @rule(name=names, gpus=st.integers(1, 2))
    def resume(self, name: str, gpus: int) -> None:
        self.change(name, suspend=False, store=False, gpus=gpus)

    @rule(name=names, rank=st.integers(0, 1), launcher=st.booleans())
    def kill(self, name: str, rank: int, launcher: bool) -> None:
        seen = self.place.ranks.get((name, rank))
        if seen is not None and seen.state != "exited":
            if launcher:
                self.place.kill(name, rank)
            else:
                self.place.exit(name, rank, -9)

    @rule(data=st.data())
    def kill_a_proxy(self, data: st.DataObject) -> None:
        if self.place.devices:
            self.place.lose(data.draw(st.sampled_from(sorted(self.place.devices))))

    @rule(name=names)
    def kill_a_transfer(self, name: str) -> None:
        if (seen := self.place.transfers.get(name)) and seen.lives:
            self.place.transfers[name] = replace(seen, lives=False, state="working")

    @rule(fails=st.booleans(), uploads=st.sampled_from(["done", "retry", "failed"]))
    def saves_fail(self, fails: bool, uploads: str) -> None:
        self.place.saves_fail, self.place.uploads = fails, uploads

    @rule()
    def kill_the_reconciler(self) -> None:
        self.place.killed_in_a_save = True

    @rule(fails=st.booleans())
    def restores_fail(self, fails: bool) -> None:
        self.place.restores_fail = fails

    @rule(shift=st.sampled_from([-1e6, -3600.0, -5.0, 5.0, 3600.0, 1e6]))
    def set_the_clock(self, shift: float) -> None:
        self.place.now += shift

    @rule(device=st.sampled_from(DEVICES))
    def go_bad(self, device: str) -> None:
        self.place.failing |= {device}
        self.place.lose(device)

    @rule(device=st.sampled_from(DEVICES))
    def repair(self, device: str) -> None:
        self.place.failing -= {device}

    @rule(after=st.sampled_from([None, 0.0, 3.0]), damaged=st.booleans())
    def set_local_snapshot(self, after: float | None, damaged: bool) -> None:
        self.place.rest_save_after, self.place.dump_damaged = after, damaged

    @precondition(lambda self: len(self.place.store) > 2)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        self.place.damaged.add(data.draw(st.sampled_from(sorted(self.place.store))))

    @invariant()
    def every_loss_is_reported(self) -> None:
        for name in ("a", "b"):
            record = self.place.records.get(name, Record(name))
            words = (record.restarts, len(record.unusable))
            did = self.place.work.get(name, 0)
            if did < self.did.get(name, 0):
                assert words > self.words[name] and record.restart_cost, f"{name} lost work"
            self.did[name] = did
            if record.step in ("placed", "ended"):
                self.words[name] = words
            self.words.setdefault(name, words)

    @invariant()
    def fewer_devices_are_for_bad_ones(self) -> None:
        planned = self.place.plan()
        for name, target in planned.targets.items():
            missing = self.place.desired.jobs[name].gpus - len(set(target))
            stays = target == self.place.records[name].placement
            assert not target or stays or missing <= len(self.place.failing)

    def teardown(self) -> None:
        place = self.place
        place.saves_fail = place.restores_fail = place.killed_in_a_save = False
        place.uploads, place.dump_damaged = "done", False
        place.damaged.clear()
        for name in ("a", "b"):
            self.change(name, suspend=False, store=False)
        if place.failing:  # they continue with what there is
            self.settle()
            there = len(DEVICES) - len(place.failing)
            assert sum(map(self.devices, ("a", "b"))) == min(there, self.wanted())
        place.failing = frozenset()
        self.settle()
        assert sum(map(self.devices, ("a", "b"))) == self.wanted()
        for name in ("a", "b"):
            record = place.records[name]
            assert record.step == "ended" or place.works(name), f"{name} stands: {record}"
            assert record.save is None and record.restore is None and not record.requested
            assert record.local_snapshot is None, "its folder is left"
            if record.step == "ended":
                assert record.ending is not None and record.ending.reason == "NoCheckpoint"

    def settle(self) -> None:
        """Lets enough time pass for what waits."""
        for _ in range(150):
            self.place.now += 9.0
            self.place.turn()

    def devices(self, name: str) -> int:
        """That a job works on."""
        return len(set(self.place.records[name].placement)) if self.place.works(name) else 0

    def wanted(self) -> int:
        records, jobs = self.place.records, self.place.desired.jobs
        return sum(jobs[name].gpus for name in ("a", "b") if records[name].step != "ended")


Life.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLife = Life.TestCase
