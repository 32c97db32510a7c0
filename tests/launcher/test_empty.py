"""Launchers without a rank."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import Any

import pytest

from rankfold.control import ControlError
from support import leaks

from .conftest import Rig


def test_an_empty_launcher_waits_and_ends_without_an_exit_file(rig: Rig) -> None:
    launched = rig.launch("no-such-command", empty=True, incarnation=3)
    assert launched.rank_pid is None
    with launched.client() as client:
        hello, _ = client.request("hello")
        assert (hello["pid"], hello["incarnation"]) == (None, 3)
        client.request("signal", signum=signal.SIGKILL, incarnation=3)
        assert client.request("status")[0]["state"] == "empty"
        client.request("end", incarnation=3)
    assert leaks.has_ended(launched.pid, 20)
    assert not Path(launched.config["exit_file"]).exists()


def test_a_claim_of_an_empty_launcher_waits(rig: Rig) -> None:
    launched = rig.launch("no-such-command", empty=True)
    with launched.client() as client, launched.client() as other:
        client.channel.send({"id": 7, "op": "claim", "epoch": 1, "device": "d0"})
        assert other.request("status")[0]["channel"] is False
        assert select.select([client.channel.sock], [], [], 0.05)[0] == []
        other.request("end")


def test_no_request_reaches_a_rank_of_another_incarnation(rig: Rig) -> None:
    """An empty launcher has seen no epoch: only its incarnation shows which request is late."""
    launched = rig.launch("no-such-command", empty=True, incarnation=3)
    takes: dict[str, dict[str, Any]] = {
        "claim": {"epoch": 7, "device": "d0"},
        "freeze": {},
        "thaw": {},
        "snapshot": {"folder": "/nowhere"},
        "restore": {"folder": "/nowhere"},
    }
    ends: dict[str, dict[str, Any]] = {"signal": {"signum": 9}, "vacate": {}, "end": {}}
    with launched.client() as client:
        for op, arguments in (takes | ends).items():
            with pytest.raises(ControlError, match="runs here in incarnation 3: 2 has ended"):
                client.request(op, **arguments, incarnation=2)
            with pytest.raises(ControlError, match="runs here in incarnation 3: 1 has ended"):
                client.request(op, **arguments)
        for op, arguments in takes.items():
            with pytest.raises(ControlError, match=r"end it before 4 begins") as caught:
                client.request(op, **arguments, incarnation=4)
            assert caught.value.code == "incarnation"
        status, _ = client.request("status")
        assert (status["state"], status["epoch"]) == ("empty", 0)
        for op, arguments in ends.items():  # as the next one does with what is left of this
            client.request(op, **arguments, incarnation=4)
    assert leaks.has_ended(launched.pid, 20)


def test_a_launcher_with_a_rank_does_not_end(rig: Rig) -> None:
    ready = rig.fifo("ready")
    launched = rig.program("wait_forever", str(ready))
    ready.read_text()
    with launched.client() as client:
        with pytest.raises(ControlError) as caught:
            client.request("end")
        assert caught.value.code == "busy"
        assert client.request("status")[0]["state"] == "running"
        client.request("signal", signum=signal.SIGKILL)
    launched.end()
    assert not os.path.exists(launched.config["socket"])
