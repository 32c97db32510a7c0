"""Sends without a receiver yet: how many are buffered, and what stops a job that waits in one."""

from __future__ import annotations

from pathlib import Path

import cuda
import pytest

from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

SENDS, BYTES = 40, 16 * MiB  # of tests/programs/sends_ahead.cu: ten times what a pair may buffer
BUFFERED = 64 * MiB  # SENT_MAX of proxy/core/collective/sends.c
MEMORY = 64 * MiB


def at_most(fleet: Fleet, device: str) -> int:
    """The most memory that a proxy has used, in bytes."""
    status = Path(f"/proc/{fleet.processes[device].pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def wait_until_full(job: RunningJob) -> None:
    """Waits until nothing moves: rank 0 waits in a send for space."""

    def nothing_moves() -> bool:
        dumps = [job.fleet.debug_text(device) for device in job.devices]
        waits = any("collectives busy" in dump for dump in dumps)
        return waits and all("transfers none" in dump for dump in dumps)

    until(lambda: job.output(0).count("\n") >= BUFFERED // BYTES, 60, "the buffer is full")
    until(nothing_moves, 60, "the sender waits")


@pytest.mark.usual("folded")
@pytest.mark.parametrize("placement", [[0, 1], [0, 0]], ids=["apart", "folded"])
def test_sends_wait_for_space_and_a_cut_is_reached_anyway(
    state: State, placement: list[int]
) -> None:
    """Ten times what is buffered, asked to stop while it is full, received, and moved."""
    told = state.folder / "receive"
    program = cuda.build(cuda.PROGRAMS / "sends_ahead.cu")
    with Fleet(state, 2, memory=MEMORY) as fleet:
        before = {device: at_most(fleet, device) for device in fleet.names}
        job = fleet.start("sends", [str(program), str(told), str(SENDS)], placement)
        wait_until_full(job)
        assert job.output(0).count("\n") == BUFFERED // BYTES
        for device in job.devices:
            job.ask_joined(device, "barrier", action="request")
        told.touch()
        for device in job.devices:
            reply = job.request(device, "wait", states=["cut"], within_s=60, wait=65)
            assert reply["state"] == "cut", fleet.debug_text(device)
        for device in job.devices:
            assert "collectives quiet" in fleet.debug_text(device)
        job.detach()
        job.place([fleet.names[1 - device] for device in placement])
        assert job.wait() == [0, 0], job.errors(0) + job.errors(1)
        for rank, word in enumerate(("sent", "received")):
            assert job.output(rank) == "".join(f"{word} {k}\n" for k in range(SENDS))
        for device in fleet.names:
            assert at_most(fleet, device) - before[device] < MEMORY + BUFFERED + 64 * MiB
        job.detach(discard=True)


def test_a_sender_gets_on_when_its_receiver_has_ended(state: State) -> None:
    """Later sends go nowhere, like those that were in progress."""
    told = state.folder / "receive"
    program = cuda.build(cuda.PROGRAMS / "sends_ahead.cu")
    with Fleet(state, 2, memory=MEMORY) as fleet:
        job = fleet.start("unheard", [str(program), str(told), "12", "2"], [0, 1])
        wait_until_full(job)
        told.touch()
        assert job.wait() == [0, 0], job.errors(0) + job.errors(1)
        assert job.output(0).endswith("sent 11\n") and job.output(1).endswith("received 1\n")
        job.detach(discard=True)
