"""A rank may first use its device while its job is being let go: it begins where the job goes.
One that becomes another program begins anew."""

from __future__ import annotations

import threading
import time

import pytest
from cuda import PROGRAMS, build

from support.fleet import Fleet, MiB, until
from support.leaks import State

MOMENTS_MS = (0, 1, 2, 4, 8, 16, 30, 50)  # from the detach on, which takes some 30


@pytest.mark.slow
def test_a_rank_that_begins_while_its_job_is_saved_continues_elsewhere(state: State) -> None:
    program = build(PROGRAMS / "latecomer.cu")
    with Fleet(state, 2, memory=64 * MiB) as fleet:
        for moment in MOMENTS_MS:
            begin, end = (state.folder / f"{name}-{moment}" for name in ("begin", "end"))
            command = [str(program), "1", str(begin), "24", str(end)]
            job = fleet.start(f"late-{moment}", command, [0, 0])
            until(lambda: "begun" in job.output(0), what="rank 0 begins")  # noqa: B023
            job.stop()
            saved: list[int] = []
            saving = threading.Thread(target=lambda: saved.append(job.detach()))  # noqa: B023
            saving.start()
            time.sleep(moment / 1000)  # the moment is what is tested
            begin.touch()
            saving.join()
            assert saved and saved[0] >= 24 * MiB
            job.place([fleet.names[1], fleet.names[0]])
            until(lambda: "begun" in job.output(1), what="rank 1 begins")  # noqa: B023
            end.touch()
            assert job.wait() == [0, 0], (job.errors(0), job.errors(1))
            job.detach(discard=True)


@pytest.mark.slow
def test_a_rank_that_becomes_another_program_has_a_device_of_its_own(state: State) -> None:
    """Two would not find room on it: what the one before had is gone."""
    program = build(PROGRAMS / "again.cu")
    with Fleet(state, 1, memory=64 * MiB) as fleet:
        job = fleet.start("again", [str(program), "3", "40"], [0, 0])
        assert job.wait() == [0, 0], (job.errors(0), job.errors(1))
        for rank in range(2):
            told = [f"rank {rank}, {left} left" for left in (3, 2, 1, 0)]
            assert job.output(rank).splitlines() == told
        job.detach(discard=True)
