"""A suspended job rests in its launchers: the device is free, and the proxies may go."""

from __future__ import annotations

import os
import signal
import time

import pytest
from cuda import PROGRAMS, build

from support.fleet import Fleet, MiB, until
from support.leaks import State


@pytest.mark.slow
def test_a_suspended_job_leaves_the_device_to_others_and_outlives_the_proxies(
    state: State,
) -> None:
    first = build(PROGRAMS / "mlp_sharded.cu")
    other = build(PROGRAMS / "large_state.cu")
    with Fleet(state, 2, memory=64 * MiB) as fleet:
        plain = fleet.start("plain", [str(first), "30"], [0, 1])
        assert plain.wait() == [0, 0], plain.errors(0)
        plain.detach(discard=True)

        job = fleet.start("rests", [str(first), "30"], [0, 1])
        until(lambda: job.output(0).count("\n") > 3, what="some steps")
        job.stop()
        assert job.detach() > 0
        printed = job.output(0)
        assert [fleet.status(name)["used"] for name in fleet.names] == [0, 0]

        guest = fleet.start("guest", [str(other), "4", "56", "4"], [0])
        assert guest.wait() == [0], guest.errors(0)
        guest.detach(discard=True)
        for name in fleet.names:
            fleet.processes[name].send_signal(signal.SIGKILL)
            fleet.processes[name].wait()
            fleet.start_proxy(name)
        for name in fleet.names:
            until(lambda: fleet.answers(name), what=name)  # noqa: B023
        assert job.output(0) == printed

        job.place([fleet.names[1], fleet.names[1]])
        assert job.wait() == [0, 0], job.errors(0)
        assert [job.output(r) for r in (0, 1)] == [plain.output(r) for r in (0, 1)]
        job.detach(discard=True)


def test_one_device_may_have_released_the_job_before_the_next_is_notified(state: State) -> None:
    """Both stand at the cut, so neither needs the other; but to continue, each does."""
    program = build(PROGRAMS / "mlp_sharded.cu")
    with Fleet(state, 2, memory=64 * MiB) as fleet:
        job = fleet.start("apart", [str(program), STEPS], [0, 1])
        for first, second in ((1, 0), (0, 1)):
            until(lambda: job.output(0).count("\n") > 2, what="some steps")
            job.stop()
            for device in (first, second):
                assert job.request(job.devices[device], "detach", discard=False)["saved_bytes"] > 0
                time.sleep(0.3)  # what the other hears of it
            job.place([fleet.names[0], fleet.names[1]])
        job.stop()
        job.request(job.devices[1], "detach", discard=False)
        job.request(job.devices[0], "barrier", action="withdraw")
        until(lambda: fleet.status(job.devices[0])["jobs"][0]["state"] == "failed", what="the loss")
        for rank in range(2):
            os.kill(fleet.rank_pid(job, rank), signal.SIGKILL)


STEPS = "200"  # far more than it does until it is saved last, also while this process is starved


def test_a_job_is_saved_in_place_and_continues(state: State) -> None:
    """Again and again; and then it is let go, at a cut at which it was saved just before."""
    program = build(PROGRAMS / "mlp_sharded.cu")
    with Fleet(state, 2, memory=64 * MiB) as fleet:
        plain = fleet.start("plain", [str(program), STEPS], [0, 1])
        assert plain.wait() == [0, 0], plain.errors(0)
        plain.detach(discard=True)
        job = fleet.start("saved", [str(program), STEPS], [0, 1])
        for step in (2, 5, 8):
            until(lambda: job.output(0).count("\n") > step, what="some steps")  # noqa: B023
            job.stop()
            size = job.save()
            assert size > 0
            if step < 8:
                job.continue_running()
        assert job.detach() == size
        job.place([fleet.names[0], fleet.names[0]])
        assert job.wait() == [0, 0], job.errors(0)
        assert [job.output(r) for r in (0, 1)] == [plain.output(r) for r in (0, 1)]
        job.detach(discard=True)


def test_a_killed_proxy_fails_the_job_on_every_device(state: State) -> None:
    program = build(PROGRAMS / "mlp_sharded.cu")
    with Fleet(state, 2, memory=64 * MiB) as fleet:
        job = fleet.start("unlucky", [str(program), "100000"], [0, 1])
        until(lambda: job.output(0).count("\n") > 2, what="some steps")
        fleet.processes[fleet.names[1]].kill()

        def failed() -> str | None:
            (told,) = fleet.status(fleet.names[0])["jobs"]
            return told["reason"] if told["state"] == "failed" else None

        assert "was lost" in until(failed, what="the other device notices")
        fleet.processes[fleet.names[1]].wait()
        fleet.start_proxy(fleet.names[1])  # the device comes back
        until(lambda: fleet.answers(fleet.names[1]), what="the device answers")


@pytest.mark.usual("2")
@pytest.mark.parametrize("ranks_on_one", [2, 3])
def test_folded_ranks_that_together_exceed_the_device_swap_and_stay_within_it(
    state: State, ranks_on_one: int
) -> None:
    program = build(PROGRAMS / "large_state.cu")
    memory = 64 * MiB
    command = [str(program), "5", "48", "3"]
    with Fleet(state, ranks_on_one, memory=memory) as fleet:
        wide = fleet.start("wide", command, list(range(ranks_on_one)))
        assert wide.wait() == [0] * ranks_on_one, wide.errors(0)
        assert all(fleet.status(name)["swapped_out"] == 0 for name in fleet.names)
        wide.detach(discard=True)
        folded = fleet.start("folded", command, [0] * ranks_on_one)
        most = 0
        while any(folded.exit_status(rank) is None for rank in range(ranks_on_one)):
            most = max(most, fleet.status(fleet.names[0])["used"])
        assert folded.wait() == [0] * ranks_on_one, folded.errors(0)
        status = fleet.status(fleet.names[0])
        assert 0 < most <= memory
        assert status["swapped_out"] > 0
        assert status["switches"] >= ranks_on_one
        for rank in range(ranks_on_one):
            assert folded.output(rank) == wide.output(rank)
        folded.detach(discard=True)


def test_a_suspended_rank_is_the_same_process(state: State) -> None:
    program = build(PROGRAMS / "large_state.cu")
    with Fleet(state, 1, memory=64 * MiB) as fleet:
        job = fleet.start("same", [str(program), "40", "48", "3"], [0])
        pid = fleet.rank_pid(job, 0)
        until(lambda: job.output(0).count("\n") > 1, what="some steps")
        job.stop()
        job.detach()
        os.kill(pid, 0)
        job.place([fleet.names[0]])
        assert fleet.rank_pid(job, 0) == pid
        assert job.wait() == [0], job.errors(0)
        job.detach(discard=True)
