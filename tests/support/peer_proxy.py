"""A protocol peer: a device that speaks the control protocol of a proxy and computes nothing.

For tests of the reconciler alone (loop, journal, kills). Jobs run as soon as they are placed; a
requested barrier is "stopping" for one look and then "cut". It refuses what a real proxy
refuses, and what would be a fault of the reconciler: a second job on the device, a detach without
a cut, an epoch that does not rise. Such refusals are also appended to a file that tests look at.

A file ``fail-<job>`` in the state directory makes the next detach of that job fail as a real one
may: the request is refused with "failed", and from then on the device says "saved".
A file ``hang-<operation>`` there makes the first device that gets such a request stop (SIGSTOP)
instead of serving it; once it is continued, it serves it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from rankfold import messages
from rankfold.control import ControlError, Message
from rankfold.service import Handler, Request, Server


class Peer:
    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.jobs: dict[str, dict[str, Any]] = {}
        operations: dict[type[messages.Operation], Handler] = {
            messages.Hello: self.hello,
            messages.Status: self.status,
            messages.Place: self.place,
            messages.Barrier: self.barrier,
            messages.Save: self.save,
            messages.Detach: self.detach,
            messages.Shutdown: self.shutdown,
        }
        self.server = Server(
            options.socket, {kind: self.hanging(kind, each) for kind, each in operations.items()}
        )

    def hanging(self, kind: type[messages.Operation], operation: Handler) -> Handler:
        asked_to_hang = Path(self.options.state) / f"hang-{kind.__name__.lower()}"

        def serve(request: Request[Any]) -> Message | None:
            if asked_to_hang.exists():
                with contextlib.suppress(FileNotFoundError):  # another device was faster
                    asked_to_hang.unlink()
                    os.kill(os.getpid(), signal.SIGSTOP)
            return operation(request)

        return serve

    def wrong(self, code: str, message: str) -> ControlError:
        with (Path(self.options.state) / "refused.txt").open("a") as file:
            file.write(f"{self.options.device}: {message}\n")
        return ControlError(code, message)

    def hello(self, _request: Request[messages.Hello]) -> Message:
        o = self.options
        return {
            "kind": "proxy",
            "device": o.device,
            "type": o.type,
            "memory": o.memory,
            "cc": o.cc,
            "speed": o.speed,
            "pid": os.getpid(),
        }

    def status(self, _request: Request[messages.Status]) -> Message:
        o = self.options
        jobs = [_with_ages(job) for job in self.jobs.values()]
        for job in self.jobs.values():
            if job["state"] == "stopping":
                job.update(state="cut", cut_at=time.monotonic())
        return {
            "device": o.device,
            "type": o.type,
            "memory": o.memory,
            "pid": os.getpid(),
            "used": 0,
            "swap": 0,
            "jobs": jobs,
        }

    def place(self, request: Request[messages.Place]) -> Message:
        name, epoch = request.message.job, request.message.epoch
        incarnation, old = request.message.incarnation, self.jobs.get(name)
        if old and old["incarnation"] > incarnation:
            over = f"{name}: incarnation {incarnation} after {old['incarnation']}"
            raise self.wrong("incarnation", over)
        if old and old["epoch"] == epoch:
            return {}
        if old and old["epoch"] > epoch:
            raise self.wrong("epoch", f"{name}: place {epoch} over {old['epoch']}")
        if old and old["state"] != "saved":
            raise self.wrong("busy", f"{name}: place {epoch} over {old['epoch']} {old['state']}")
        others = [
            j["job"] for j in self.jobs.values() if j["state"] != "saved" and j["job"] != name
        ]
        if others:
            raise self.wrong("busy", f"{name} placed on the device of {others}")
        ranks = [m.rank for m in request.message.members if m.device == self.options.device]
        if not ranks:
            raise self.wrong("argument", f"{name}: no rank is on this device")
        self.jobs[name] = {
            "job": name,
            "epoch": epoch,
            "incarnation": incarnation,
            "state": "running",
            "reason": "",
            "cut_at": None,
            "released_at": time.monotonic(),
            "ranks": [{"rank": r, "state": "attached", "kernels_here": 1} for r in ranks],
        }
        return {}

    def _job(self, request: messages.OfJob) -> dict[str, Any]:
        job = self.jobs.get(request.job)
        if job is None or job["epoch"] != request.epoch:
            raise ControlError("unknown_job", "not here")
        return job

    def barrier(self, request: Request[messages.Barrier]) -> Message:
        job = self._job(request.message)
        if request.message.action == "request" and job["state"] == "running":
            job["state"] = "stopping"
        elif request.message.action == "withdraw" and job["state"] in ("stopping", "cut"):
            job.update(state="running", cut_at=None)
        return {"state": job["state"]}

    def save(self, request: Request[messages.Save]) -> Message:
        job = self._job(request.message)
        if job["state"] != "cut":
            raise self.wrong("no_cut", f"{job['job']} is {job['state']}")
        return {"saved_bytes": 0}

    def detach(self, request: Request[messages.Detach]) -> Message:
        discard = request.message.discard
        job = self.jobs.get(request.message.job)
        if job is None or job["epoch"] != request.message.epoch or job["state"] == "saved":
            return {"saved_bytes": 0}
        if not discard and job["state"] != "cut":
            raise self.wrong("no_cut", f"{job['job']} is {job['state']}")
        asked_to_fail = Path(self.options.state) / f"fail-{job['job']}"
        if asked_to_fail.exists() and not discard:
            asked_to_fail.unlink(missing_ok=True)
            job["state"] = "saved"
            raise ControlError("failed", "the image is full")
        job["state"] = "saved"
        return {"saved_bytes": 0}

    def shutdown(self, _request: Request[messages.Shutdown]) -> Message:
        if any(job["state"] != "saved" for job in self.jobs.values()):
            raise self.wrong("busy", "shutdown while a job is here")
        self.server.after(0.0, self.server.stop)
        return {}


def _with_ages(job: dict[str, Any]) -> dict[str, Any]:
    """Other processes may have another CLOCK_MONOTONIC."""
    report = {name: each for name, each in job.items() if name not in ("cut_at", "released_at")}
    ages = {name: job[f"{name}_at"] for name in ("cut", "released")}
    now = time.monotonic()
    return report | {f"{n}_age_s": None if at is None else now - at for n, at in ages.items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("device", "type", "cc", "state", "socket", "index"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--memory", type=int)
    parser.add_argument("--speed", type=float)
    Peer(parser.parse_args()).server.run()


if __name__ == "__main__":
    main()
