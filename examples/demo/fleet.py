"""A fleet as its user has it: a git repository of desired state, and the `rankfold` command."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class FleetError(Exception):
    """A command of the fleet failed; holds what it said."""


class Repository:
    """A git repository with a copy of the desired state, made anew."""

    def __init__(self, path: Path, specs: Path):
        self.path = path
        shutil.copytree(specs, path)
        self._git("init", "--quiet", "--initial-branch", "main")

    def edit(self, file: str, fields: Mapping[str, str]) -> None:
        """Sets fields that stand on a line of their own, as a person would in an editor."""
        path = self.path / file
        text = path.read_text()
        for name, value in fields.items():
            replacement = value.replace("\\", r"\\")
            text, count = re.subn(rf"(?m)^(\s*{name}:).*$", rf"\1 {replacement}", text)
            if count != 1:
                raise FleetError(f"{path} has {count} lines `{name}:`")
        path.write_text(text)

    def commit(self, message: str) -> str:
        """The id of a commit of everything."""
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", message)
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *arguments: str) -> str:
        # Whatever the user has configured, signing and hooks above all, stays out.
        identity = ["-c", "user.name=rankfold demo", "-c", "user.email=demo@localhost"]
        settings = ["-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"]
        done = subprocess.run(
            ["git", "-C", str(self.path), *identity, *settings, *arguments],
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise FleetError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


class Fleet:
    """A state directory, watched over by `rankfold watch` while `watching` lasts."""

    def __init__(self, state: Path, log: Path):
        self.state, self.log = state, log
        state.mkdir(parents=True)

    def command(self, *arguments: str) -> list[str]:
        beside = Path(sys.executable).with_name("rankfold")
        program = str(beside) if beside.exists() else "rankfold"
        return [program, "--state", str(self.state), *arguments]

    @contextlib.contextmanager
    def watching(self, repository: Path) -> Iterator[None]:
        """Runs `rankfold watch --git`; at the end stops it and the fleet, whatever happened."""
        with self.log.open("w") as log:
            process = subprocess.Popen(
                self.command("watch", "--git", str(repository), "--branch", "main"),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield
            if process.poll() is not None:
                raise FleetError(f"rankfold watch ended early:\n{self.log.read_text()[-2000:]}")
        except BaseException:
            _interrupt(process)
            with contextlib.suppress(FleetError, subprocess.TimeoutExpired):
                self._stop()  # what went wrong before is what people must hear of
            raise
        _interrupt(process)
        self._stop()

    def _stop(self) -> None:
        """Ends whatever of the fleet is still there: a failed run's ranks, the proxies."""
        stop = self.command("stop", "--cancel")
        done = subprocess.run(stop, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise FleetError(f"rankfold stop: {done.stderr.strip()}")

    def status(self) -> Json:
        """What `rankfold status -o json` says."""
        done = subprocess.run(self.command("status", "-o", "json"), capture_output=True, text=True)
        if done.returncode:
            raise FleetError(f"rankfold status: {done.stderr.strip()}")
        status: Json = json.loads(done.stdout)
        return status

    def output(self, job: str, rank: int, stream: str = "out") -> Path:
        return self.state / "jobs" / job / "logs" / f"rank-{rank}.{stream}"


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does, and with force where that does not help."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
