"""Garbage on the sockets of real processes: each continues answering, and still does its work."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck, given, settings

from rankfold.control import Client, call
from rankfold.reconciler.layout import Layout
from support.command import Specs
from support.fleet import Fleet
from support.leaks import State
from support.patience import scaled

from .conftest import Commands
from .hostile import Attacker, attacks, open_files

SLOW = pytest.param(800, marks=[pytest.mark.slow, pytest.mark.timeout(900)])
EXAMPLES = pytest.mark.parametrize("examples", [60, SLOW], ids=["some", "many"])
FEW_FILES = 100
GOOD_PLACE = {
    "job": "fuzzed",
    "epoch": 1,
    "determinism": "D1",
    "world_size": 1,
    "members": [{"rank": 0, "device": "elsewhere", "launcher": "/nowhere"}],
    "devices": [{"device": "elsewhere", "socket": "/nowhere"}],
}
OF_JOB = {"job": "fuzzed", "epoch": 1}
PROXY: dict[str, dict[str, Any]] = {
    "hello": {},
    "status": {},
    "place": GOOD_PLACE,
    "dump": {},
    "barrier": {**OF_JOB, "action": "request"},
    "wait": {**OF_JOB, "states": ["cut"], "within_s": 0.01},
    "save": OF_JOB,
    "detach": {**OF_JOB, "discard": False},
    "peer": {**OF_JOB, "device": "local/soft-0"},
}
LAUNCHER: dict[str, dict[str, Any]] = {
    "hello": {},
    "status": {},
    "claim": {"epoch": 0, "device": "d"},
    "signal": {"signum": 0},
}
DEVICE = {
    "name": "p/soft-0",
    "type": "soft",
    "memory": 1 << 26,
    "cc": "8.0",
    "speed": 1.0,
    "only_for": "fuzzed",
}
RECONCILER: dict[str, dict[str, Any]] = {
    "hello": {},
    "state": {},
    "attach": {"source": {"dir": "/nowhere"}, "watch": True},
    "override": {"name": "fuzzed", "fields": {"gpus": 1, "suspend": True}, "force": True},
    "run": {
        "job": {
            "name": "fuzzed",
            "command": ["true"],
            "workdir": "/nowhere",
            "world_size": 1,
            "gpus": 2,
            "env": [["A", "b"]],
            "device_types": ["soft"],
            "determinism": "D1",
        },
        "pool": {"name": "p", "devices": [DEVICE], "only_for": "fuzzed"},
        "token": "t",
    },
}


def assault(path: Path, good: dict[str, dict[str, Any]], examples: int) -> None:
    """After each attack, who was there before it and who comes after it are answered."""
    attacker = Attacker(path)
    with Client(path, 60) as known:
        before = known.request("hello")[0]

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[hypothesis.Phase.generate],
        )
        @given(attacks(good))
        def attacked(attack: Any) -> None:
            attacker(attack)
            for answer in (known.request("hello")[0], call(path, "hello", timeout=scaled(60))):
                assert {**answer, "id": 0} == {**before, "id": 0}

        try:
            attacked()
        finally:
            attacker.close()


@EXAMPLES
def test_a_proxy(state: State, examples: int) -> None:
    with Fleet(state) as fleet:
        device = fleet.names[0]
        assault(Path(fleet.socket(device)), PROXY, examples)
        job = fleet.start("after", ["sh", "-c", "exit 3"], [0])
        assert job.wait() == [3]
        while fleet.status(device)["jobs"][-1]["ranks"][0]["state"] != "exited":
            pass
        job.detach(discard=True)


@EXAMPLES
def test_a_launcher(state: State, examples: int) -> None:
    with Fleet(state) as fleet:
        # Deaf to those signals that an attack may well ask for.
        job = fleet.start("long", ["sh", "-c", "trap '' HUP INT; exec sleep 1000"], [0])
        assault(Path(job.launcher(0)), LAUNCHER, examples)
        assert job.exit_status(0) is None
        assert fleet.status(fleet.names[0])["jobs"][0]["state"] == "running"
        call(job.launcher(0), "signal", signum=signal.SIGTERM)
        assert job.wait() == [-signal.SIGTERM]


@EXAMPLES
def test_the_reconciler(commands: Commands, specs: Specs, state: State, examples: int) -> None:
    rankfold, layout = commands(), Layout(state.path)
    specs.job("victim", gpus=1, ranks=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    pid = rankfold.reconciler_pid()
    assault(layout.socket, RECONCILER, examples)
    assert rankfold.reconciler_pid() == pid
    assert "Traceback" not in layout.log.read_text()
    assert rankfold.job("victim")["phase"] == "Running"
    rankfold("run", "--world-size", "1", "--name", "after", "--", "sh", "-c", "exit 3", code=3)
    specs.finish_jobs()
    rankfold.until(lambda: rankfold.job("victim")["phase"] == "Succeeded")


def few_files(pid: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (FEW_FILES, FEW_FILES))


def floods(path: Path, pid: int, work: Callable[[Client], object]) -> None:
    """More connections than the process has descriptors: who is known is served meanwhile, and
    who comes afterwards too."""
    few_files(pid)
    attacker = Attacker(path)
    with Client(path, 60) as known:
        known.request("hello")
        attacker.flood(3 * FEW_FILES)
        for _ in range(20):
            work(known)
        assert open_files(pid) <= FEW_FILES
        attacker.close()
        work(known)
    with Client(path, 60) as late:
        work(late)


def test_a_proxy_and_a_launcher_with_few_descriptors(state: State) -> None:
    with Fleet(state) as fleet:
        device = fleet.names[0]
        job = fleet.start("long", ["sleep", "1000"], [0])
        proxy, launcher = Path(fleet.socket(device)), Path(job.launcher(0))
        floods(proxy, fleet.processes[device].pid, lambda client: client.request("status"))
        outside = next(
            pid
            for pid in state.watch.new_processes()
            if b"interpose.launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        floods(launcher, outside, lambda client: client.request("status"))
        call(launcher, "signal", signum=signal.SIGKILL)
        assert job.wait() == [-signal.SIGKILL]


def test_the_reconciler_with_few_descriptors(
    commands: Commands, specs: Specs, state: State
) -> None:
    rankfold = commands()
    specs.job("victim", gpus=1, ranks=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    pid = rankfold.reconciler_pid()
    floods(Layout(state.path).socket, pid, lambda client: client.request("state"))
    assert rankfold.reconciler_pid() == pid
    specs.finish_jobs()
    rankfold.until(lambda: rankfold.job("victim")["phase"] == "Succeeded")


NONSENSE = f"""
import argparse, json, os, socket, socketserver, struct
parser = argparse.ArgumentParser()
parser.add_argument("--socket"), parser.add_argument("--device")
options, _ = parser.parse_known_args()
device = options.device.encode()
answers = [b"[" * 100000, b'"memory":Infinity', b'"memory":{2**70}', b'"jobs":5', b'"pid":"x"',
           b'"jobs":[{{"job":1}}]', b'"device":[]', b'"history":{{}}', b'"jobs":[{{"ranks":[7]}}]']

class Answer(socketserver.BaseRequestHandler):
    def handle(self):
        while head := self.request.recv(4):
            body = self.request.recv(struct.unpack("<I", head)[0], socket.MSG_WAITALL)
            asked = json.loads(body)
            answers.append(answers.pop(0))
            body = b'{{"v":1,"id":%d,"ok":true,%s}}' % (asked["id"], answers[0])
            if asked["op"] == "hello":
                body = (b'{{"v":1,"id":%d,"ok":true,"kind":"proxy","device":"%s","type":"soft",'
                        b'"memory":1,"pid":%d}}' % (asked["id"], device, os.getpid()))
            if asked["op"] == "shutdown":
                os.unlink(options.socket)
                os._exit(0)
            self.request.sendall(struct.pack("<I", len(body)) + body)

socketserver.ThreadingUnixStreamServer(options.socket, Answer).serve_forever()
"""


def test_a_proxy_that_answers_nonsense_is_one_that_does_not_answer(
    commands: Commands, specs: Specs, state: State
) -> None:
    """The first device of two: the job runs on the other."""
    nonsense, both = state.folder / "nonsense.py", state.folder / "both.sh"
    nonsense.write_text(NONSENSE)
    rankfold = commands()
    good = rankfold.environment["RANKFOLD_PROXY"]
    both.write_text(
        f'case "$*" in *soft-0*) exec {sys.executable} {nonsense} "$@";; '
        f'*) exec {good} "$@";; esac\n'
    )
    rankfold.environment["RANKFOLD_PROXY"] = f"sh {both}"
    specs.pool(2)
    specs.job("victim", gpus=1, ranks=1)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job("victim").get("phase") == "Running")
    log = Layout(state.path).log.read_text()
    assert "Traceback" not in log
    specs.finish_jobs()
    rankfold.until(lambda: rankfold.job("victim")["phase"] == "Succeeded")
