"""Launchers without a rank."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest

from rankfold.control import ControlError
from support import leaks

from .conftest import Rig


def test_an_empty_launcher_waits_and_ends_without_an_exit_file(rig: Rig) -> None:
    launched = rig.launch("no-such-command", empty=True, incarnation=3)
    assert launched.rank_pid is None
    with launched.client() as client:
        hello, _ = client.ask("hello")
        assert (hello["pid"], hello["incarnation"]) == (None, 3)
        client.ask("signal", signum=signal.SIGKILL)
        assert client.ask("status")[0]["state"] == "empty"
        client.ask("end")
    assert leaks.has_ended(launched.pid, 20)
    assert not Path(launched.config["exit_file"]).exists()


def test_a_claim_of_an_empty_launcher_waits(rig: Rig) -> None:
    launched = rig.launch("no-such-command", empty=True)
    with launched.client() as client, launched.client() as other:
        client.channel.send({"id": 7, "op": "claim", "epoch": 1, "device": "d0"})
        assert other.ask("status")[0]["channel"] is False
        assert select.select([client.channel.sock], [], [], 0.05)[0] == []
        other.ask("end")


def test_a_launcher_with_a_rank_does_not_end(rig: Rig) -> None:
    ready = rig.fifo("ready")
    launched = rig.program("wait_for_ever", str(ready))
    ready.read_text()
    with launched.client() as client:
        with pytest.raises(ControlError) as caught:
            client.ask("end")
        assert caught.value.code == "busy"
        assert client.ask("status")[0]["state"] == "running"
        client.ask("signal", signum=signal.SIGKILL)
    launched.end()
    assert not os.path.exists(launched.config["socket"])
