"""The command on a test's own state directory, and specs: for tests of a fleet as people use it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import jsonschema
from click.testing import CliRunner

from rankfold import control, paths
from rankfold.reconciler.cli import cli
from rankfold.reconciler.layout import Layout
from support import leaks
from support.fleet import KIND
from support.leaks import State
from support.patience import Pauses, scaled

DEADLINE_S = 60.0
_status = jsonschema.Draft202012Validator(json.loads(paths.schema("status").read_text()))


def job_environment(**settings: str) -> dict[str, str]:
    """For a command whose jobs need nothing of the user's."""
    return {**os.environ, "RANKFOLD_LINGER": "0.5", "OMP_NUM_THREADS": "1", **settings}


class Rankfold:
    """The command line on a test's own state directory; `environment` says what its devices are.
    `prefix` runs it, and so what it starts, as another user. `deadline_s`: for each command, and
    for whatever a test waits for; on a slow machine it is longer."""

    def __init__(
        self,
        state: State,
        environment: dict[str, str],
        prefix: tuple[str, ...] = (),
        deadline_s: float = DEADLINE_S,
    ):
        self.state, self.environment, self.prefix = state, environment, prefix
        self.deadline_s = deadline_s

    def __call__(self, *arguments: str, code: int = 0, **env: str) -> str:
        """Run a command; the test fails unless it exits with `code`. Gives stdout."""
        ended = self.run(*arguments, **env)
        assert ended.returncode == code, (
            f"{arguments}: {ended.returncode}\n{ended.stdout}{ended.stderr}"
        )
        return ended.stdout

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, sys.executable, "-m", "rankfold", *arguments],
            env={**self.environment, **env},
            capture_output=True,
            text=True,
            timeout=scaled(self.deadline_s),
        )

    def start(
        self, *arguments: str, output: int | IO[str] = subprocess.PIPE, **env: str
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "rankfold", *arguments],
            env={**self.environment, **env},
            text=True,
            stdout=output,
            stderr=output,
        )

    def status(self) -> Any:
        """The object that `status -o json` prints. Runs in this process, because tests poll it."""
        command = ["--state", str(self.state.path), "status", "-o", "json"]
        result = CliRunner(env=self.environment).invoke(cli, command, catch_exceptions=False)
        assert result.exit_code == 0, f"status: {result.exit_code}\n{result.output}"
        status_ = json.loads(result.stdout)
        if fault := jsonschema.exceptions.best_match(_status.iter_errors(status_)):
            raise AssertionError(f"{fault.json_path}: {fault.message}: schemas/status.schema.json")
        return status_

    def job(self, name: str) -> Any:
        return next((j for j in self.status()["jobs"] if j["name"] == name), {})

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline, pauses = time.monotonic() + scaled(self.deadline_s), Pauses(0.05, 0.25)
        while not (value := condition()):
            assert time.monotonic() < deadline, f"never came true: {self('status')}{self('events')}"
            pauses.sleep()
        return value

    @contextlib.contextmanager
    def watching(self, *arguments: str) -> Iterator[None]:
        """`watch` while this lasts; when interrupted, it must exit with 0."""
        with tempfile.TemporaryFile("w+") as printed:
            process = self.start("watch", *arguments, output=printed)

            def printed_text() -> str:
                return os.pread(printed.fileno(), 1 << 20, 0).decode()

            try:
                self.until(lambda: process.poll() is not None or "watching" in printed_text())
                yield
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(scaled(self.deadline_s))
            assert process.returncode == 0, f"{arguments}: {process.returncode}\n{printed_text()}"

    def proxy_pid(self, device: str) -> int:
        path = Layout(self.state.path).proxy_socket(device)
        return int(control.call(path, "hello")["pid"])

    def reconciler_pid(self) -> int:
        """The pid of the reconciler that answers now; 0: none does."""
        try:
            return int(control.call(Layout(self.state.path).socket, "hello")["pid"])
        except control.ControlError:
            return 0

    def kill_everything(self, job: str) -> None:
        """Every process of the fleet, with -9, as a power cut would."""
        ranks = [rank["pid"] for rank in self.job(job)["ranks"] if rank["pid"]]
        pids = [*ranks, *(leaks.parent(pid) for pid in ranks)]
        pids += [self.proxy_pid(device["name"]) for device in self.status()["devices"]]
        pids += [self.reconciler_pid()]
        assert ranks and all(pid > 1 for pid in pids)
        for pid in reversed(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Cancel every job, take every device away, end the reconciler."""
        self("stop", "--cancel")
        running = self.state.watch.new_processes()
        if all(leaks.has_ended(pid, scaled(leaks.GRACE_S)) for pid in running):
            return
        # A device that was not up yet, or still let go of a job, did not hear of the end.
        nothing = self.state.folder / "nothing"
        nothing.mkdir(exist_ok=True)
        (nothing / "policy.yaml").write_text(NO_OBJECTS)
        self.run("apply", "-f", str(nothing), "--wait")
        self("stop")

    def refused_by_peers(self) -> str:
        file = self.state.path / "refused.txt"
        return file.read_text() if file.exists() else ""


POLICY = """\
apiVersion: rankfold/v1alpha1
kind: Policy
metadata: {{name: default}}
spec: {{checkpointStore: {url}}}
"""


class Specs:
    """A folder of desired state: a pool of four devices and a job that runs until stopped."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()
        self.stop_file = folder / "stop"
        self.write("pool.yaml", POOL)

    def write(self, name: str, text: str) -> None:
        temporary = self.folder / f".{name}.new"
        temporary.write_text(text)
        temporary.rename(self.folder / name)  # an editor's atomic save

    def job(self, name: str = "gpt", gpus: int = 4, extra: str = "", ranks: int = 4) -> None:
        command = f'until [ -e {self.stop_file} ]; do sleep 0.05; done; echo "rank $RANK is done"'
        self.program(["sh", "-c", command], name, gpus, extra, ranks)

    def program(
        self, command: list[str], name: str, gpus: int | str = 1, extra: str = "", ranks: int = 1
    ) -> None:
        """A job that runs `command`."""
        self.write(f"{name}.yaml", JOB.format(**{**locals(), "command": json.dumps(command)}))

    def pool(self, count: int, memory: str = "64MiB", capability: str = "") -> None:
        """This many soft devices instead of four; `capability`: not of the usual one."""
        text = POOL.replace("count: 4", f"count: {count}").replace("64MiB", memory)
        if capability:
            text = text.replace("count:", f'computeCapability: "{capability}", count:')
        self.write("pool.yaml", text)

    def store(self, url: str | Path) -> None:
        """A policy that names the store of checkpoints."""
        self.write("policy.yaml", POLICY.format(url=url))

    def finish_jobs(self) -> None:
        self.stop_file.touch()


class Git:
    """git in a folder, deaf to what the user has configured."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def __call__(self, *arguments: str) -> str:
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        settings = ["-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"]
        return subprocess.run(
            ["git", "-C", str(self.folder), *identity, *settings, *arguments],
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    def commit(self, message: str) -> str:
        """Everything, as it is now; gives the commit."""
        self("add", "--all")
        self("commit", "--quiet", "--message", message)
        return self("rev-parse", "HEAD").strip()


NO_OBJECTS = """\
apiVersion: rankfold/v1alpha1
kind: Policy
metadata: {name: default}
spec: {}
"""
POOL = f"""\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {{name: local}}
spec:
  devices:
    - {{type: {KIND}, count: 4, memory: 64MiB}}
"""
JOB = """\
apiVersion: rankfold/v1alpha1
kind: Job
metadata: {{name: {name}}}
spec:
  command: {command}
  worldSize: {ranks}
  gpus: {gpus}
  {extra}
"""
