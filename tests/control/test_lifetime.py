"""A proxy that no job can need any more exits; one that serves ranks never does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.test_conformance import COMMANDS, Device
from support.leaks import State
from support.patience import scaled

LONG = 120.0


@pytest.fixture
def away(state: State) -> Iterator[Path]:
    """The path to which the test moves the state directory."""
    there = state.path.with_name("away")
    yield there
    if there.exists():
        there.rename(state.path)


def begun(state: State, *options: str) -> Device:
    return Device(state, [*COMMANDS["real"], *options])


def test_a_proxy_without_ranks_exits_when_its_state_directory_is_gone(
    state: State, away: Path
) -> None:
    device = begun(state)
    device.client.close()
    state.path.rename(away)
    assert device.process.wait(scaled(LONG)) == 0


def test_a_proxy_without_ranks_exits_when_no_reconciler_asks(state: State) -> None:
    device = begun(state, "--unasked", "0.5")
    device.client.close()
    assert device.process.wait(scaled(LONG)) == 0
    assert not device.socket.exists()


@pytest.mark.usual("removed")
@pytest.mark.parametrize("why", ["removed", "unasked"])
def test_a_proxy_that_serves_ranks_stays_until_they_end(
    state: State, away: Path, why: str, capfd: Any
) -> None:
    # Two launchers start before the next request.
    device = begun(state, *(("--unasked", f"{scaled(2.0)}") if why == "unasked" else ()))
    try:
        device.start_ranks()
        device.place(3)
        while {rank.state for rank in device.job().ranks} != {"attached"}:
            time.sleep(0.005)
        device.client.close()
        if why == "removed":
            state.path.rename(away)
        told = ""
        while "exiting when its jobs end" not in told:
            assert device.process.poll() is None
            told += capfd.readouterr().err
            time.sleep(0.01)
    finally:
        device.end_ranks()
    assert device.process.wait(scaled(LONG)) == 0
