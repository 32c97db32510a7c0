"""The real proxy and its double in tests keep the same promises to the reconciler.

The tests send the reconciler's requests and check the parts of the replies that it relies on. A
double that differs from the real proxy would make the reconciler's tests meaningless.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfold import messages
from rankfold.control import Client, ControlError, expect
from rankfold.proxy.epochs import SAVED_JOBS
from support import peer_proxy
from support.leaks import State

RANK_PROGRAM = Path(__file__).parents[1] / "launcher/rank_program.py"
NAME, MEMORY = "local/soft-0", 64 << 20
COMMANDS = {
    "real": [sys.executable, "-m", "rankfold.proxy.server"],
    "double": [sys.executable, str(peer_proxy.__file__)],
}


class Device:
    """One proxy that runs, and the launchers of a job's two ranks."""

    def __init__(self, state: State, command: list[str]):
        self.state, self.socket = state, state.folder / "d"
        self.process = subprocess.Popen(
            [
                *command,
                "--device",
                NAME,
                "--type",
                "soft",
                "--memory",
                str(MEMORY),
                "--cc",
                "8.0",
                "--speed",
                "1.0",
                "--state",
                str(state.path),
                "--index",
                "0",
                "--socket",
                str(self.socket),
            ],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        while True:
            assert self.process.poll() is None
            try:
                self.client = Client(self.socket)
                break
            except ControlError:
                time.sleep(0.01)

    def request(self, op: str, **arguments: Any) -> Any:
        reply, fds = self.client.request(op, **arguments)
        assert fds == []
        return reply

    def refused(self, op: str, **arguments: Any) -> str:
        with pytest.raises(ControlError) as caught:
            self.request(op, **arguments)
        return caught.value.code

    def status(self) -> messages.ProxyStatus:
        return expect(messages.ProxyStatus, self.request("status"))

    def job(self, name: str = "job") -> messages.JobReport:
        (found,) = [job for job in self.status().jobs if job.job == name]
        return found

    def until(self, *states: str) -> messages.JobReport:
        while (job := self.job()).state not in states:
            assert job.state != "failed", job.reason
            time.sleep(0.005)
        return job

    def place(self, epoch: int, **fields: Any) -> Any:
        return self.request("place", **{**placement(self.state, epoch), **fields})

    def start_ranks(self) -> None:
        """Two ranks that hand over a channel and wait."""
        for rank in range(2):
            fifos = [str(self.state.folder / f"{name}-{rank}") for name in ("answers", "end")]
            for fifo in fifos:
                os.mkfifo(fifo)
            config = {
                "job": "job",
                "rank": rank,
                "world_size": 2,
                "preload": [],
                "command": [sys.executable, str(RANK_PROGRAM), "own_of_two", *fifos],
                "workdir": str(self.state.folder),
                "socket": launcher(self.state, rank),
                "client_socket": f"{self.state.folder}/c{rank}",
                "logs": f"{self.state.folder}/logs",
                "exit_file": f"{self.state.folder}/{rank}.exit",
                "master_addr": "127.0.0.1",
                "master_port": 1,
                "device": {"name": "soft", "memory_bytes": MEMORY},
            }
            path = self.state.folder / f"{rank}.json"
            path.write_text(json.dumps(config))
            command = [sys.executable, "-m", "rankfold.interpose.launcher", "--config", str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            assert json.loads(Path(fifos[0]).read_text())[0] == 0

    def end_ranks(self) -> None:
        for rank in range(2):
            (self.state.folder / f"end-{rank}").write_text("x")


def launcher(state: State, rank: int) -> str:
    return f"{state.folder}/l{rank}"


def placement(state: State, epoch: int) -> dict[str, Any]:
    return {
        "job": "job",
        "epoch": epoch,
        "determinism": "D1",
        "world_size": 2,
        "members": [{"rank": r, "device": NAME, "launcher": launcher(state, r)} for r in range(2)],
        "devices": [{"device": NAME, "socket": f"{state.folder}/d"}],
    }


@pytest.fixture(params=COMMANDS)
def device(request: pytest.FixtureRequest, state: State) -> Iterator[Device]:
    made = Device(state, COMMANDS[request.param])
    yield made
    made.client.close()
    if made.process.poll() is None:
        made.process.kill()
    made.process.wait()


def test_a_server_identifies_itself_and_refuses_bad_requests(device: Device, state: State) -> None:
    hello = expect(messages.ProxyHello, device.request("hello"))
    assert (hello.device, hello.type, hello.memory) == (NAME, "soft", MEMORY)
    assert hello.pid == device.process.pid
    status = device.status()
    assert (status.device, status.type, status.memory, status.jobs) == (NAME, "soft", MEMORY, [])
    assert status.pid == device.process.pid

    good = placement(state, 1)
    one = good["members"][:1]
    faults: list[dict[str, Any]] = [
        {"epoch": 0},
        {"epoch": 2**70},
        {"epoch": "1"},
        {"job": 5},
        {"job": ""},
        {"determinism": "D3"},
        {"world_size": 3},
        {"members": one},
        {"members": [*one, *one]},
        {"members": []},
        {"devices": []},
        {"devices": good["devices"] * 2},
        {"members": [{**each, "device": "local/soft-9"} for each in good["members"]]},
        {"members": [{**each, "launcher": 5} for each in good["members"]]},
        {"members": [{**each, "launcher": "/a\0b"} for each in good["members"]]},
        {"surprise": 1},
    ]
    for wrong in faults:
        assert device.refused("place", **{**good, **wrong}) == "argument", wrong
    elsewhere = {
        "members": [{**each, "device": "other/soft-0"} for each in good["members"]],
        "devices": [{"device": "other/soft-0", "socket": "/x"}],
    }
    assert device.refused("place", **{**good, **elsewhere}) == "argument"
    assert device.refused("nonsense") == "unknown_op"
    of = {"job": "job", "epoch": 1}
    assert device.refused("barrier", **of, action="request") == "unknown_job"
    assert device.refused("barrier", **of, action="dance") == "argument"
    assert device.refused("detach", **of) == "argument"
    assert device.request("detach", **of, discard=True)["saved_bytes"] == 0, (
        "as if it had been done"
    )
    assert device.status().jobs == []

    device.request("shutdown")
    assert device.process.wait(60) == 0
    assert not device.socket.exists()


def test_a_jobs_way_over_a_device(device: Device) -> None:
    """Placed, stopped, let continue, stopped, saved, placed again, dropped."""
    device.start_ranks()
    of = {"job": "job", "epoch": 3}
    device.place(3)
    device.place(3)  # asked twice, it is one placement
    job = device.until("running")
    assert (job.epoch, job.reason, job.cut_age_s) == (3, "", None)
    assert [rank.rank for rank in job.ranks] == [0, 1]
    while {rank.state for rank in device.job().ranks} != {"attached"}:
        time.sleep(0.005)
    assert device.job().released_age_s is not None
    for epoch, code in ((2, "epoch"), (4, "busy")):
        with pytest.raises(ControlError) as caught:
            device.place(epoch)
        assert caught.value.code == code
    assert device.refused("detach", **of, discard=False) == "no_cut"
    assert device.refused("save", **of) == "no_cut"
    assert device.refused("save", job="job", epoch=2) == "unknown_job"
    assert device.refused("barrier", job="job", epoch=2, action="request") == "unknown_job"
    assert device.request("detach", job="job", epoch=2, discard=True)["saved_bytes"] == 0
    assert device.job().state == "running"

    for _ in range(2):
        standing = expect(messages.JobStatus, device.request("barrier", **of, action="request"))
        assert standing.state in ("stopping", "cut")
    assert device.until("cut").cut_age_s is not None
    device.request("barrier", **of, action="withdraw")
    device.until("running")
    device.request("barrier", **of, action="withdraw")
    assert device.job().state == "running"
    device.request("barrier", **of, action="request")
    device.until("cut")
    for _ in range(2):
        expect(messages.Saved, device.request("save", **of))
        assert device.job().state == "cut"
    for _ in range(2):
        expect(messages.Detached, device.request("detach", **of, discard=False))
        assert device.job().state == "saved"
    standing = expect(messages.JobStatus, device.request("barrier", **of, action="request"))
    assert standing.state == "saved"

    device.place(4)
    device.until("running")
    assert device.job().epoch == 4
    assert device.refused("barrier", **of, action="request") == "unknown_job"
    assert device.request("detach", **of, discard=True)["saved_bytes"] == 0, (
        "of an epoch that is over"
    )
    assert device.job().state == "running"
    device.request("detach", job="job", epoch=4, discard=True)
    assert device.job().state == "saved"
    device.end_ranks()
    device.request("shutdown")
    assert device.process.wait(60) == 0


@pytest.mark.parametrize("device", ["real"], indirect=True)
def test_a_device_reports_its_jobs_and_the_last_of_thousands(device: Device) -> None:
    """A status is asked for many times a second, and is one message."""
    device.place(7)
    for number in range(3 * SAVED_JOBS):
        device.place(1, job=f"job-{number}")
        assert device.job(f"job-{number}").state != "saved"
        device.request("detach", job=f"job-{number}", epoch=1, discard=True)
        assert device.job(f"job-{number}").state == "saved"
    told = {job.job: job.state for job in device.status().jobs}
    last = range(2 * SAVED_JOBS, 3 * SAVED_JOBS)
    assert told.pop("job") != "saved"
    assert told == dict.fromkeys((f"job-{number}" for number in last), "saved")
    assert device.request("detach", job="job-0", epoch=1, discard=True)["saved_bytes"] == 0
    device.place(1, job="job-0")
    device.request("detach", job="job-0", epoch=1, discard=True)
    assert device.job("job-0").state == "saved"
    device.request("detach", job="job", epoch=7, discard=True)
    device.request("shutdown")
    assert device.process.wait(60) == 0


def test_an_incarnation_that_is_over_is_not_placed_again(device: Device) -> None:
    """Neither in a later epoch: a device remembers a job that it has released."""
    device.place(1, incarnation=3)
    assert device.job().incarnation == 3
    device.request("detach", job="job", epoch=1, discard=True)
    for over in ({}, {"incarnation": 2}):
        with pytest.raises(ControlError, match=r"incarnation") as caught:
            device.place(2, **over)
        assert caught.value.code == "incarnation"
    device.place(2, incarnation=3)
    assert device.job().epoch == 2
    device.request("detach", job="job", epoch=2, discard=True)
    device.request("shutdown")
    assert device.process.wait(60) == 0
