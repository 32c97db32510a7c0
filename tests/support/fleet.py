"""Proxies and launchers without a reconciler: for tests of what is below it.

The real processes, started the way the reconciler starts them, driven through the control protocol.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankfold import paths
from rankfold.control import ControlError, Message, call
from support.leaks import State
from support.patience import Pauses, scaled

MiB = 1 << 20
# The kind of a device for which a test names none; `nvidia` on a machine that has a GPU.
KIND = os.environ.get("RANKFOLD_TEST_DEVICE", "soft")
SLOW_KERNELS = "rankfold: the program has waited 2 s for its device to load kernels"
ASK_AGAIN_S = 0.1  # each question takes time from what runs


def until(condition: Any, seconds: float = 30.0, what: str = "", every: float = 0.005) -> Any:
    """The condition's first true result. Fails the test when it stays false."""
    seconds = scaled(seconds)
    deadline, pauses = time.monotonic() + seconds, Pauses(every, 10 * every)
    while not (result := condition()):
        assert time.monotonic() < deadline, f"still not so after {seconds} s: {what}"
        pauses.sleep()
    return result


@dataclass
class RunningJob:
    """A job that was started: its launchers run, its ranks are placed or not."""

    fleet: Fleet
    name: str
    world_size: int
    folder: Path
    epoch: int = 0
    devices: list[str] = field(default_factory=list)
    determinism: str = "D1"

    def launcher(self, rank: int) -> str:
        return str(self.fleet.sockets / f"{self.name}.{rank}")

    def exit_status(self, rank: int) -> int | None:
        """How the rank ended, or None while it runs."""
        path = self.folder / f"rank-{rank}.exit"
        return int(json.loads(path.read_text())["exit_status"]) if path.exists() else None

    def wait(self, seconds: float = 90.0, every: float = 0.005) -> list[int]:
        """Every rank's exit status, once all have ended."""
        ranks, asked_at = range(self.world_size), 0.0

        def ended() -> bool:
            nonlocal asked_at
            over = all(self.exit_status(rank) is not None for rank in ranks)
            if not over and time.monotonic() < asked_at + ASK_AGAIN_S:
                return False
            asked_at = time.monotonic()
            for device in self.devices:
                for job in self.fleet.status(device)["jobs"]:
                    if job["job"] == self.name and job["state"] == "failed":
                        raise AssertionError(f"{device}: {job['reason']}")
            return over

        until(ended, seconds, f"{self.name} ends", every)
        return [int(self.exit_status(rank) or 0) for rank in ranks]

    def output(self, rank: int) -> str:
        return (self.folder / "logs" / f"rank-{rank}.out").read_text()

    def errors(self, rank: int) -> str:
        """A rank's stderr, without the line that says that it waited 2 s for its kernels, which
        depends on the machine."""
        text = (self.folder / "logs" / f"rank-{rank}.err").read_text()
        lines = text.splitlines(keepends=True)
        return "".join(line for line in lines if SLOW_KERNELS not in line)

    def place(self, placement: list[str]) -> None:
        """Rank r goes to device placement[r], in a new epoch."""
        self.epoch += 1
        self.devices = sorted(set(placement))
        members = [
            {"rank": r, "device": d, "launcher": self.launcher(r)} for r, d in enumerate(placement)
        ]
        devices = [{"device": d, "socket": self.fleet.socket(d)} for d in self.devices]
        for device in self.devices:
            self.fleet.request(
                device,
                "place",
                job=self.name,
                epoch=self.epoch,
                determinism=self.determinism,
                world_size=self.world_size,
                members=members,
                devices=devices,
            )

    def stop(self, devices: list[str] | None = None, seconds: float = 60.0) -> None:
        """Ask for a barrier (on all devices, or only on some), and wait for the cut on all."""
        self.request_barrier(devices or self.devices)
        self.reach_cut(seconds)

    def request_barrier(self, devices: list[str]) -> None:
        for device in devices:
            self.ask_joined(device, "barrier", action="request")

    def reach_cut(self, seconds: float = 60.0) -> None:
        for device in self.devices:
            reply = self.request(
                device, "wait", states=["cut"], within_s=scaled(seconds), wait=seconds + 5
            )
            assert reply["state"] == "cut", f"{device}: {reply}\n{self.fleet.debug_text(device)}"

    def ask_joined(self, device: str, op: str, **arguments: Any) -> Message:
        """`ask`, again while the devices have not met yet."""
        deadline = time.monotonic() + scaled(20)
        while True:
            try:
                return self.request(device, op, **arguments)
            except ControlError as error:
                if error.code != "joining" or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def request(self, device: str, op: str, *, wait: float = 30.0, **arguments: Any) -> Message:
        return self.fleet.request(
            device, op, wait=wait, job=self.name, epoch=self.epoch, **arguments
        )

    def save(self) -> int:
        """Saves the job on all devices where it is; returns the saved bytes."""
        return sum(self.request(device, "save")["saved_bytes"] for device in self.devices)

    def continue_running(self) -> None:
        """Continues the job from the cut."""
        for device in self.devices:
            self.request(device, "barrier", action="withdraw")

    def detach(self, discard: bool = False) -> int:
        """Off all devices: the bytes that were saved."""
        return sum(
            self.request(device, "detach", discard=discard)["saved_bytes"]
            for device in self.devices
        )

    def move(self, placement: list[str], devices: list[str] | None = None) -> None:
        """The whole way: barrier, detach, place elsewhere."""
        self.stop(devices)
        self.detach()
        self.place(placement)


class Fleet:
    """Some devices, named ``local/soft-0`` …; use as a context manager. `kinds`: of each device,
    where they are not all `KIND`."""

    def __init__(
        self,
        state: State,
        devices: int = 1,
        memory: int = 256 * MiB,
        workers: int = 1,
        kinds: tuple[str, ...] = (),
        capability: str = "8.0",
    ):
        self.state = state
        self.capability = capability
        kinds = kinds or (KIND,) * devices
        self.names = [f"local/{kind}-{index}" for index, kind in enumerate(kinds)]
        self.memory = memory
        self.workers = workers
        self.sockets = paths.sockets(state.path)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.jobs: list[RunningJob] = []

    def __enter__(self) -> Fleet:
        for name in self.names:
            self.start_proxy(name)
        for name in self.names:
            until(lambda: self.answers(name), what=f"{name} answers")  # noqa: B023
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error:
            self.keep_debug_texts()
        for job in self.jobs:
            for rank in range(job.world_size):
                if job.exit_status(rank) is None:
                    with contextlib.suppress(ControlError):
                        call(job.launcher(rank), "signal", signum=signal.SIGKILL)
        for name, process in self.processes.items():
            if process.poll() is None:
                try:
                    self.request(name, "shutdown")
                    process.wait(scaled(10))
                except (ControlError, subprocess.TimeoutExpired):
                    process.kill()
            process.wait(scaled(10))

    def keep_debug_texts(self) -> None:
        """Writes each proxy's debug text next to its log, for the report of a failed test."""
        for name in self.names:
            with contextlib.suppress(ControlError):
                path = self.state.path / "proxies" / (name.replace("/", ".") + ".dump.log")
                path.write_text(self.debug_text(name))

    def socket(self, device: str) -> str:
        return str(self.sockets / (device.replace("/", ".") + ".sock"))

    def start_proxy(self, device: str) -> None:
        log = self.state.path / "proxies" / (device.replace("/", ".") + ".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self.processes[device] = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "rankfold.proxy.server",
                    "--device",
                    device,
                    "--type",
                    device.split("/")[1].split("-")[0],
                    "--index",
                    device.split("-")[-1],
                    "--memory",
                    str(self.memory),
                    "--cc",
                    self.capability,
                    "--workers",
                    str(self.workers),
                    "--state",
                    str(self.state.path),
                    "--socket",
                    self.socket(device),
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def answers(self, device: str) -> bool:
        assert self.processes[device].poll() is None, f"{device} ended"
        try:
            return bool(self.request(device, "hello"))
        except ControlError:
            return False

    def request(self, device: str, op: str, *, wait: float = 30.0, **arguments: Any) -> Message:
        return call(self.socket(device), op, timeout=scaled(wait), **arguments)

    def status(self, device: str) -> Message:
        return self.request(device, "status")

    def debug_text(self, device: str) -> str:
        return str(self.request(device, "dump")["text"])

    def rank_pid(self, job: RunningJob, rank: int) -> int:
        """The rank's pid as this process sees it, from its launcher."""
        return int(call(job.launcher(rank), "hello")["pid"])

    def start(
        self,
        name: str,
        command: list[str],
        placement: list[str] | list[int],
        env: dict[str, str] | None = None,
        memory: int | None = None,
        workdir: Path | None = None,
        determinism: str = "D1",
    ) -> RunningJob:
        """Start a job: rank r on device placement[r] (a name, or an index of ours)."""
        where = [self.names[p] if isinstance(p, int) else p for p in placement]
        folder = self.state.path / "jobs" / name
        folder.mkdir(parents=True)
        job = RunningJob(self, name, len(where), folder, determinism=determinism)
        self.jobs.append(job)
        port, configs = free_port(), []
        seen = "rankfold nvidia device" if "nvidia" in where[0] else "soft"
        for rank in range(job.world_size):
            config = {
                "job": name,
                "rank": rank,
                "world_size": job.world_size,
                "command": command,
                "workdir": str(workdir or folder),
                "env": env or {},
                "device": {"name": seen, "memory_bytes": memory or self.memory},
                "socket": job.launcher(rank),
                "client_socket": str(self.sockets / f"{name}.{rank}.c"),
                "logs": str(folder / "logs"),
                "exit_file": str(folder / f"rank-{rank}.exit"),
                "master_addr": "127.0.0.1",
                "master_port": port,
            }
            path = folder / f"rank-{rank}.json"
            path.write_text(json.dumps(config))
            configs.append(path)
        launch(configs)
        job.place(where)
        return job


def launch(configs: list[Path]) -> None:
    """Launchers, as reconciler/node/launchers.py starts them; they listen."""
    subprocess.run(
        [sys.executable, "-m", "rankfold.interpose.launcher", "--config", *map(str, configs)],
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        check=True,
    )


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
