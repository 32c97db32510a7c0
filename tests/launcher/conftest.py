"""Real launchers, started as the reconciler starts them, with ranks that are small scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rankfold.control import Client
from support import leaks, privileges
from support.leaks import State

PROGRAM = Path(__file__).parent / "rank_program.py"


@dataclass(frozen=True)
class Launched:
    """A launcher that runs, and where its things are."""

    pid: int
    rank_pid: int | None
    config: dict[str, Any]

    def client(self) -> Client:
        return Client(self.config["socket"])

    def text(self, kind: str) -> str:
        return Path(self.config["logs"], f"rank-{self.config['rank']}.{kind}").read_text()

    def end(self) -> dict[str, Any]:
        """Wait for the launcher's end; the exit file."""
        assert leaks.has_ended(self.pid, 20), "the launcher runs on"
        record: dict[str, Any] = json.loads(Path(self.config["exit_file"]).read_text())
        return record


@dataclass(frozen=True)
class Rig:
    """Starts launchers in the test's state directory."""

    folder: Path
    namespaces: str

    def config(self, *command: str, rank: int = 0, **fields: Any) -> dict[str, Any]:
        return {
            "job": "test",
            "rank": rank,
            "world_size": 4,
            "command": list(command),
            "workdir": str(self.folder),
            "socket": f"{self.folder}/{rank}.control",
            "client_socket": f"{self.folder}/{rank}.client",
            "logs": f"{self.folder}/logs",
            "exit_file": f"{self.folder}/rank-{rank}.exit",
            "master_addr": "127.0.0.1",
            "master_port": 29500,
            "device": {"name": "Test device", "memory_bytes": 1 << 30},
            "preload": [],
            "namespaces": self.namespaces,
            **fields,
        }

    def launcher_argv(self, config: dict[str, Any]) -> list[str]:
        path = self.folder / f"{config.get('rank')}.json"
        path.write_text(json.dumps(config))
        return [sys.executable, "-m", "rankfold.interpose.launcher", "--config", str(path)]

    def run(
        self,
        config: dict[str, Any],
        before: Callable[[], None] | None = None,
        pass_fds: tuple[int, ...] = (),
    ) -> subprocess.CompletedProcess[str]:
        """`before` runs in the launcher's process before it is executed."""
        return subprocess.run(
            self.launcher_argv(config),
            capture_output=True,
            text=True,
            preexec_fn=before,
            pass_fds=pass_fds,
            check=False,
        )

    def launch(self, *command: str, **fields: Any) -> Launched:
        config = self.config(*command, **fields)
        done = self.run(config)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        return Launched(report["pid"], report["rank_pid"], config)

    def program(self, name: str, *arguments: str, **fields: Any) -> Launched:
        """A rank that runs a function of rank_program.py."""
        return self.launch(*self.argv(name, *arguments), **fields)

    def argv(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, str(PROGRAM), name, *arguments]

    def fifo(self, name: str) -> Path:
        path = self.folder / name
        os.mkfifo(path)
        return path


@pytest.fixture(params=["require", "none"], ids=["namespaced", "plain"])
def rig(request: pytest.FixtureRequest, state: State) -> Rig:
    if request.param == "require":
        privileges.need_namespaces()
    return Rig(state.folder, request.param)


@pytest.fixture
def plain_rig(state: State) -> Rig:
    return Rig(state.folder, "none")
