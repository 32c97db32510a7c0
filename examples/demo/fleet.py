"""A fleet as its user sees it: a git repository of desired state, and the `rankfold` command."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class FleetError(Exception):
    """A command of the fleet failed; contains its message."""


class Repository:
    """A new git repository with a copy of the desired state."""

    def __init__(self, path: Path, specs: Path):
        self.path = path
        shutil.copytree(specs, path)
        self._git("init", "--quiet", "--initial-branch", "main")

    def edit(self, file: str, fields: Mapping[str, str]) -> None:
        """Set fields that have their own line, as a person would in an editor."""
        path = self.path / file
        text = path.read_text()
        for name, value in fields.items():
            replacement = value.replace("\\", r"\\")
            text, count = re.subn(rf"(?m)^(\s*{name}:).*$", rf"\1 {replacement}", text)
            if count != 1:
                raise FleetError(f"{path} has {count} lines `{name}:`")
        path.write_text(text)

    def commit(self, message: str) -> str:
        """Commit everything; returns the commit's id."""
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", message)
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *arguments: str) -> str:
        # Ignore the user's configuration, above all signing and hooks.
        identity = ["-c", "user.name=rankfold demo", "-c", "user.email=demo@localhost"]
        settings = ["-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"]
        done = subprocess.run(
            ["git", "-C", str(self.path), *identity, *settings, *arguments],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise FleetError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


class Fleet:
    """A state directory, which `rankfold watch` follows while `watching` lasts."""

    def __init__(self, state: Path, log: Path):
        self.state, self.log = state, log
        state.mkdir(parents=True)

    def command(self, *arguments: str) -> list[str]:
        installed = Path(sys.executable).with_name("rankfold")
        program = str(installed) if installed.exists() else "rankfold"
        return [program, "--state", str(self.state), *arguments]

    @contextlib.contextmanager
    def watching(self, repository: Path) -> Iterator[None]:
        """Run `rankfold watch --git`; at the end stop it and the fleet, whatever happened."""
        self._watch(repository)
        try:
            yield
            if self._watcher.poll() is not None:
                raise FleetError(f"rankfold watch ended early:\n{self.log.read_text()[-2000:]}")
        except BaseException:
            _interrupt(self._watcher)
            with contextlib.suppress(FleetError, subprocess.TimeoutExpired):
                self._stop()  # the first failure is the one to report
            raise
        _interrupt(self._watcher)
        self._stop()

    def _watch(self, repository: Path) -> None:
        with self.log.open("a") as log:
            self._watcher = subprocess.Popen(
                self.command("watch", "--git", str(repository), "--branch", "main"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def crash(self) -> int:
        """Kill every process of the fleet with -9 at one moment, including ranks, until none is
        left.

        Returns their number.
        """
        killed: set[int] = set()
        while found := self._processes():
            ends: list[int] = []
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    ends.append(os.pidfd_open(pid))
                    signal.pidfd_send_signal(ends[-1], signal.SIGKILL)
            for end in ends:  # an orphaned rank gets another parent, and would not be found again
                select.select([end], [], [])
                os.close(end)
            killed |= found
            self._watcher.poll()  # otherwise it remains as a zombie
        return len(killed)

    def _processes(self) -> set[int]:
        """The processes whose command line has the state directory, and all below them: ranks and
        what these have started."""
        found: set[int] = set()
        children: dict[int, list[int]] = defaultdict(list)
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                pid = int(folder.name)
                stat = (folder / "stat").read_text().rpartition(") ")[2].split()
                if stat[0] == "Z":
                    continue
                children[int(stat[1])].append(pid)
                if os.fsencode(self.state) in (folder / "cmdline").read_bytes():
                    found.add(pid)
        below = list(found)
        while below:
            fresh = set(children[below.pop()]) - found
            found |= fresh
            below += fresh
        return found

    def continues(self, repository: Path) -> None:
        """After a crash: watch again."""
        self._watch(repository)

    def can_save(self) -> str:
        """The reason why this machine cannot save processes; "": it can."""
        done = subprocess.run(self.command("doctor", "-o", "json"), capture_output=True, text=True)
        found = {each["what"]: each for each in json.loads(done.stdout)}
        return next(
            (found[name]["detail"] for name in ("CRIU", "pid namespaces") if not found[name]["ok"]),
            "",
        )

    def checkpoint(self, job: str) -> None:
        """Make a checkpoint; returns when it is in the store. Raises FleetError."""
        done = subprocess.run(
            self.command("checkpoint", job, "--wait"), capture_output=True, text=True
        )
        if done.returncode:
            raise FleetError(f"rankfold checkpoint: {done.stderr.strip()}")

    def _stop(self) -> None:
        """End all remaining processes of the fleet: a failed run's ranks, the proxies."""
        stop = self.command("stop", "--cancel")
        done = subprocess.run(stop, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise FleetError(f"rankfold stop: {done.stderr.strip()}")

    def status(self) -> Json:
        """The output of `rankfold status -o json`."""
        done = subprocess.run(self.command("status", "-o", "json"), capture_output=True, text=True)
        if done.returncode:
            raise FleetError(f"rankfold status: {done.stderr.strip()}")
        status: Json = json.loads(done.stdout)
        return status

    def output(self, job: str, rank: int, stream: str = "out") -> Path:
        return self.state / "jobs" / job / "logs" / f"rank-{rank}.{stream}"


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process as Ctrl-C does, and kill it if that has no effect."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
