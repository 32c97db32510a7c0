"""The server of a device for the elastic runtime has a run's processes started, held, released and
ended. The run here answers requests with what a test says, so neither PyTorch nor a launcher is
needed."""

from __future__ import annotations

import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nvidia.fake_driver import build

from rankfold import control
from rankfold.elastic.requests import Request, Requests
from rankfold.proxy.runs import own_cores
from support.leaks import State
from support.patience import Pauses, scaled

DEVICES = ("local/cpu-0", "local/cpu-1")
WORLD = 3


class Run:
    """Answers requests, at once or when the test says, and notes those that change it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.phase, self.processes, self.step = "suspended", 0, 0
        self.quiet_s, self.awaited = 0.0, list(range(WORLD))
        self.requested: list[tuple[str, int | None]] = []
        self.cores: list[Any] = []  # of each request to resume
        self.gpus: list[Any] = []  # likewise
        self.late: list[Request] = []  # to which the test replies
        self.delayed: set[str] = set()  # names of requests that go there
        self._requests = Requests(folder)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ends.is_set():
            select.select(self._requests.descriptors(), [], [], 0.02)
            for request in self._requests.received():
                self._answer(request)

    def _answer(self, request: Request) -> None:
        if request.name == "status":
            fields = {"phase": self.phase, "processes": self.processes, "step": self.step}
            if self.phase == "running":
                fields |= {"quiet_s": self.quiet_s, "awaited": self.awaited}
            request.reply(**fields, saved=None)
            return
        self.requested.append((request.name, request.processes))
        if request.name == "resume":
            self.cores.append(request.cores)
            self.gpus.append(request.gpus)
        if request.name in self.delayed:
            self.late.append(request)
            return
        self.phase = {"resume": "running", "hold": "held", "release": "running"}.get(
            request.name, "suspended"
        )
        self.processes = request.processes or self.processes
        request.reply()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        self._requests.close()


class Device:
    def __init__(self, state: State, name: str, **given: str) -> None:
        self.name, self.socket = name, str(state.folder / name.replace("/", "."))
        options = {"device": name, "type": "cpu", "memory": "1048576", "cc": "9.0"}
        options |= {"state": str(state.path), "socket": self.socket} | given
        words = [word for key, value in options.items() for word in (f"--{key}", value)]
        self._process = subprocess.Popen([sys.executable, "-m", "rankfold.proxy.runs", *words])

    def answers(self) -> bool:
        assert self._process.poll() is None, f"{self.name} has ended"
        try:
            return bool(self("hello"))
        except control.ControlError:
            return False

    def __call__(self, operation: str, **fields: Any) -> Any:
        return control.call(self.socket, operation, timeout=scaled(10.0), **fields)

    def refused(self, operation: str, **fields: Any) -> str:
        with pytest.raises(control.ControlError) as found:
            self(operation, **fields)
        return found.value.code

    def job(self) -> Any:
        (job,) = self("status")["jobs"]
        return job

    def reaches(self, state: str, epoch: int = 1) -> None:
        of_job = {"job": "train", "epoch": epoch}
        found = self("wait", **of_job, states=[state], within_s=scaled(5.0))
        assert found["state"] == state

    def close(self) -> None:
        self("shutdown")
        self._process.wait(scaled(10.0))


@pytest.fixture
def run(state: State) -> Iterator[Run]:
    run = Run(state.path / "jobs/train/elastic-1")
    yield run
    run.close()


@pytest.fixture
def devices(state: State, run: Run) -> Iterator[list[Device]]:
    devices = [Device(state, name) for name in DEVICES]
    for each in devices:
        until(each.answers)
    yield devices
    for each in devices:
        each.close()


def place(devices: list[Device], epoch: int, incarnation: int = 1) -> dict[str, Any]:
    """Ranks 0 and 1 on the first of these devices, rank 2 on the last."""
    where = [devices[0], devices[0], devices[-1]]
    return {
        "job": "train",
        "epoch": epoch,
        "incarnation": incarnation,
        "determinism": "D1",
        "world_size": WORLD,
        "members": [
            {"rank": rank, "device": each.name, "launcher": f"{each.socket}.launcher"}
            for rank, each in enumerate(where)
        ],
        "devices": [
            {"device": each.name, "socket": each.socket, "cores": [number]}
            for number, each in enumerate(devices)
        ],
    }


def until(condition: Callable[[], Any]) -> None:
    pauses = Pauses(0.01, 0.05)
    for _ in range(int(scaled(500))):
        if condition():
            return
        pauses.sleep()
    raise AssertionError("never came true")


def test_devices_have_cores_of_their_own_and_share_them_when_there_are_more() -> None:
    all_cores = [2, 3, 5, 7]
    assert [own_cores(all_cores, first, 1) for first in range(6)] == [[2], [3], [5], [7], [2], [3]]
    assert [own_cores(all_cores, first, 3) for first in (0, 3)] == [[2, 3, 5], [2, 3, 7]]
    assert own_cores(all_cores, 0, 9) == all_cores
    assert own_cores(all_cores, 2, 0) == [], "a pool of an earlier version names none"


def test_a_run_is_started_held_and_ended_by_its_first_device(
    devices: list[Device], run: Run
) -> None:
    first, second = devices
    epoch: dict[str, Any] = {"job": "train", "epoch": 1}
    run.step = 4
    for each in (second, first):
        each("place", **place(devices, 1))
    for each in devices:
        each.reaches("running")
    assert run.requested == [("resume", len(devices))]
    assert run.cores == [((0,), (1,))]
    run.step = 9
    until(lambda: second.job()["ranks"][0]["collectives"] == 9)
    assert second.job()["ranks"][0]["collectives_here"] == 5

    def at() -> list[str]:
        return [rank["at"] for each in devices for rank in each.job()["ranks"]]

    run.quiet_s, run.awaited = 70.0, [1]  # the others wait for it
    until(lambda: all(rank["quiet_s"] >= 70.0 for rank in second.job()["ranks"]))
    until(lambda: at() == ["others", "host", "others"])
    run.quiet_s, run.awaited = 0.0, [0, 1, 2]
    until(lambda: second.job()["ranks"][0]["quiet_s"] < 70.0)
    assert [rank["rank"] for rank in first.job()["ranks"]] == [0, 1]
    for each in devices:
        assert each.refused("save", **epoch) == "no_cut"
        assert each.refused("detach", **epoch, discard=False) == "no_cut"
    for each in devices:
        each("barrier", **epoch, action="request")
    state = run.folder / "states/step-9"
    state.mkdir(parents=True)
    for name, size in (("rank-0", 1), ("rank-1", 2), ("rank-2", 4), ("shared", 8)):
        (state / f"{name}.pt").write_bytes(bytes(size))
    for each, size in ((first, 1 + 2 + 8), (second, 4)):
        each.reaches("cut")
        assert each("save", **epoch)["saved_bytes"] == size
    for each in devices:
        each("barrier", **epoch, action="withdraw")
    for each in devices:
        each.reaches("running")
    assert run.requested[1:] == [("hold", None), ("release", None)]
    for each in devices:
        each("barrier", **epoch, action="request")
    for each in devices:
        each.reaches("cut")
    for each in (second, first):
        each("detach", **epoch, discard=False)
        assert each.job()["state"] == "saved"
    assert run.requested[3:] == [("hold", None), ("suspend", None)]
    first("place", **place([first], 2))
    first.reaches("running", 2)
    assert run.requested[5:] == [("resume", 1)]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake one, with one GPU of 4 GiB."""
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(build()))
    monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")


@pytest.fixture
def gpus(driver: None, state: State, run: Run) -> Iterator[list[Device]]:
    of_pool = {"type": "nvidia", "runtime": "elastic", "cc": "own"}
    devices = [
        Device(
            state, f"local/nvidia-{each}", memory=str(each + 1 << 30), index=str(each), **of_pool
        )
        for each in range(2)
    ]
    for each in devices:
        until(each.answers)
    yield devices
    for each in devices:
        each.close()


def test_processes_see_the_gpus_of_their_devices(gpus: list[Device], run: Run) -> None:
    facts = [each("hello") for each in gpus]
    assert [each["runtime"] for each in facts] == ["elastic"] * 2
    assert [each["own_cc"] for each in facts] == ["9.0"] * 2
    names = [each["gpu"] for each in facts]
    assert names == ["GPU-fafafafa-fafa-fafa-fafa-fafafafafafa"] * 2
    message = place(gpus, 1)
    message["devices"] = [
        {"device": each.name, "socket": each.socket, "gpu": name, "memory": each_memory}
        for each, name, each_memory in zip(gpus, names, (1 << 30, 2 << 30), strict=True)
    ]
    for each in gpus:
        each("place", **message)
    for each in gpus:
        each.reaches("running")
    assert run.gpus == [((names[0], 1 << 30), (names[1], 2 << 30))]
    assert run.cores == [()]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"memory": str(5 << 30)}, "GPU 0 has 4096 MiB, the pool wants 5120"),
        ({"cc": "8.0"}, "GPU 0 has compute capability 9.0, not 8.0"),
        ({"index": "1"}, "there is no GPU 1: the driver shows 1 (CUDA_VISIBLE_DEVICES?)"),
    ],
)
def test_a_gpu_that_is_not_as_its_pool_says_is_refused(
    driver: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    options: dict[str, str],
    reason: str,
) -> None:
    monkeypatch.delenv("RANKFOLD_NVIDIA_SHARE")
    given = {"device": "local/nvidia-0", "type": "nvidia", "memory": "1048576", "cc": "own"}
    given |= {"state": "/nonexistent", "socket": "/nonexistent"} | options
    words = [word for key, value in given.items() for word in (f"--{key}", value)]
    assert subprocess.run([sys.executable, "-m", "rankfold.proxy.runs", *words]).returncode == 1
    assert f"rankfold-runs: local/nvidia-0: {reason}" in capfd.readouterr().err


def test_a_detach_ends_when_the_processes_have_ended(devices: list[Device], run: Run) -> None:
    device = devices[0]
    epoch: dict[str, Any] = {"job": "train", "epoch": 1}
    device("place", **place([device], 1))
    device.reaches("running")
    device("barrier", **epoch, action="request")
    device.reaches("cut")
    run.delayed = {"suspend"}
    with control.Client(device.socket, scaled(10.0)) as client:
        replies: list[Any] = []
        detach = threading.Thread(
            target=lambda: replies.append(client.request("detach", **epoch, discard=False))
        )
        detach.start()
        until(lambda: run.late)
        assert device.job()["state"] == "cut" and not replies
        run.late.pop().reply()
        detach.join()
        assert replies and device.job()["state"] == "saved"


def test_processes_that_were_killed_before_the_cut_are_held_again(
    devices: list[Device], run: Run
) -> None:
    device = devices[0]
    device("place", **place([device], 1))
    device.reaches("running")
    run.delayed = {"hold"}
    device("barrier", job="train", epoch=1, action="request")
    until(lambda: run.late)
    run.delayed = set()
    run.late.pop().reply(error="processes were killed; the run continues from its saved state")
    until(lambda: device.job()["reason"])
    assert device.job()["reason"].startswith("processes were killed")
    device.reaches("cut")
    assert run.requested[1:] == [("hold", None), ("hold", None)]


def test_requests_for_another_epoch_or_incarnation_are_refused(
    devices: list[Device], run: Run
) -> None:
    device, other = devices
    run.delayed = {"resume"}
    device("place", **place([device], 3, incarnation=1))
    device("place", **place([device], 3, incarnation=1))
    barrier = {"job": "train", "action": "request"}
    assert device.refused("barrier", **barrier, epoch=3) == "joining"
    assert device.refused("barrier", **barrier, epoch=2) == "unknown_job"
    assert device.refused("place", **place([device], 2)) == "epoch"
    assert device.refused("place", **place([device], 4)) == "busy"
    assert other.refused("place", **place([device], 3)) == "argument"
    device("detach", job="train", epoch=3, discard=True)
    device("place", **place([device], 4, incarnation=2))
    device("detach", job="train", epoch=4, discard=True)
    assert device.refused("place", **place([device], 5, incarnation=1)) == "incarnation"
