"""The machine on which ranks run: starts their launchers, sends them requests, keeps their files.

Everything that the reconciler does to a launcher, a rank's files or a local snapshot is done by a
`Node`; there is one, this machine. Operations block, and none of them writes the journal: they run
concurrently with the loop (inflight.py). A Node does not know which proxy serves a rank.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from rankfold import control, criu, owners, switches
from rankfold.reconciler import liveness
from rankfold.reconciler.deadlines import (
    HUNG_S,
    KILLED_S,
    LAUNCH_EACH_S,
    LAUNCH_S,
    OWNERSHIP_ANSWERS_S,
    OWNERSHIP_EACH_S,
    STORE_ANSWERS_S,
    TRANSFER_S,
)
from rankfold.reconciler.layout import is_locked, launcher_lock
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node import cgroups, durable, environment
from rankfold.reconciler.node.reports import Reports, last_lines

_COPY_BYTES = 1 << 20
LATE = "has not started within"  # part of a message of interpose/launcher/start.py


class CannotLaunch(Exception):
    """A launcher did not start, or a transfer did not begin; the message says why."""


class _OwnershipQuery(Struct):
    """A job in a query to the store: checkpoint/ownership.py."""

    folder: str
    known: int


class _OwnershipAnswer(Struct):
    """The answer for one job."""

    job: str
    taken: bool
    why: str


class Node(Reports):
    """This machine, for one state directory."""

    # ---- launchers

    def launch(self, configs: Sequence[Json]) -> None:
        """Start launchers of a job's ranks. A rank never gets a second launcher, so repeating the
        call is harmless.

        The node adds to each config the paths of sockets, logs and the exit file. Raises
        CannotLaunch, when all others have started, TimeoutError and other OSErrors.
        """
        files = {config["rank"]: self._config_file(config) for config in configs}
        seconds = LAUNCH_S + LAUNCH_EACH_S * len(files)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "rankfold.interpose.launcher", "--config", *files.values()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=seconds,
                env=environment.of_launcher(os.environ),
            )
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"its launchers have not started within {seconds:.0f} s") from error
        if done.returncode == 0:
            return
        lines = done.stderr.decode(errors="replace").splitlines()
        if late := [line for line in lines if LATE in line]:
            raise TimeoutError(late[0])
        job = configs[0]["job"]
        missing = [r for r in files if not self.lives(job, r) and not self.ended(job, r)]
        if missing:
            own = [line for line in lines if files[missing[0]] in line] or lines
            more = f" (nor did {len(missing) - 1} more)" if len(missing) > 1 else ""
            why = " / ".join(own[-3:])
            raise CannotLaunch(f"the launcher of rank {missing[0]} did not start{more}: {why}")

    def _config_file(self, config: Json) -> str:
        """Write the config to its file, with the paths added; return the file's path."""
        job, rank, layout = config["job"], config["rank"], self.layout
        unless_given: Json = {"hidden": [str(layout.state), str(layout.sockets)]}
        where: Json = {
            "socket": str(self.door(job, rank)),
            "client_socket": str(layout.client_socket(job, rank)),
            "logs": str(layout.logs(job)),
            "exit_file": str(layout.rank_file(job, rank, ".exit")),
            "copies": str(layout.interposers),
        }
        file = layout.rank_file(job, rank, ".json")
        write_atomically(file, json.dumps(unless_given | config | where, indent=1))
        return str(file)

    def request(self, job: str, rank: int, op: str, timeout: float, **arguments: Any) -> Json:
        """Send a launcher a request. Raises ControlError, also if it stops answering meanwhile."""
        door, watched = self.door(job, rank), liveness.Watched()
        try:
            with (
                control.Client(door, timeout) as client,
                liveness.watching(client, lambda: _hangs(door)) as watched,
            ):
                reply, fds = client.request(op, **arguments)
                control.close_all(fds)
                return reply
        except control.ControlError as error:
            code, text = error.code, error.message
            if watched.why:
                code, text = "timeout", f"its launcher is unresponsive ({op})"
            raise control.ControlError(code, f"rank {rank}: {text}") from error

    def lives_at(self, owner: str, job: str, ranks: Iterable[int]) -> Path | None:
        """The other state directory of this machine, known to the store as `owner`, under which
        launchers of a job live. None: there is none, or it cannot be determined."""
        with contextlib.suppress(OSError):
            folder = owners.local_folder(owner)
            if folder is None or folder == self.layout.job(job).absolute():
                return None
            if any(is_locked(launcher_lock(folder, rank)) for rank in ranks):
                return folder.parents[1]
        return None

    # ---- a job's files

    def begin(self, job: str) -> None:
        """Prepare for a start of a job: empty logs, and nothing of an earlier job of that name."""
        shutil.rmtree(self.layout.job(job), ignore_errors=True)
        self.layout.logs(job).mkdir(parents=True, mode=0o700)

    def forget_logs(self, job: str) -> None:
        """Remove a job's logs, so that a reader does not see those of an earlier job of that
        name."""
        shutil.rmtree(self.layout.logs(job), ignore_errors=True)

    def sweep(self, job: str, ranks: Iterable[int]) -> None:
        """Remove sockets, cgroups and kept files of launchers that were killed; others remove their
        own."""
        dead = [rank for rank in ranks if not self.lives(job, rank)]
        cgroups.remove(door for rank in dead if (door := self.door(job, rank)).exists())
        for rank in dead:
            self.door(job, rank).unlink(missing_ok=True)
            self.layout.client_socket(job, rank).unlink(missing_ok=True)
            shutil.rmtree(self.layout.rank_file(job, rank, ".kept"), ignore_errors=True)

    def forget_ends(self, job: str, ranks: Iterable[int]) -> None:
        """Remove the exit files of ranks that will run again."""
        for rank in ranks:
            self.layout.rank_file(job, rank, ".exit").unlink(missing_ok=True)
        self.layout.logs(job).mkdir(parents=True, mode=0o700, exist_ok=True)

    def last_lines(self, job: str, rank: int) -> str:
        """The end of a rank's standard error."""
        return last_lines(self.layout.logs(job) / f"rank-{rank}.err")

    # ---- snapshots, and their way into the store and out of it

    def snapshot(self, job: str, number: int, rank: int) -> Path:
        """The folder of a rank's snapshot in the save of this number."""
        return self.layout.save(job, number) / f"rank-{rank}"

    def free_space(self, job: str, number: int) -> None:
        """Create an empty folder for the snapshots of a save."""
        self.drop(job, number)
        self.layout.save(job, number).mkdir(parents=True, mode=0o700)

    def keep_logs(self, job: str, number: int, rank: int) -> None:
        """Copy a rank's logs, as long as they were at the snapshot, into the snapshot: another
        machine does not have them. The logs may be longer by now; they only grow."""
        folder = self.snapshot(job, number, rank)
        (folder / "logs").mkdir(exist_ok=True)
        for kind, size in _logged(folder).items():
            with (
                (self.layout.logs(job) / f"rank-{rank}.{kind}").open("rb") as log,
                (folder / "logs" / kind).open("wb") as kept,
            ):
                while size > 0 and (data := log.read(min(size, _COPY_BYTES))):
                    kept.write(data)
                    size -= len(data)

    def bring_logs(self, job: str, number: int, rank: int) -> None:
        """Restore each log of a rank that is shorter than at its snapshot."""
        folder, logs = self.snapshot(job, number, rank), self.layout.logs(job)
        logs.mkdir(parents=True, mode=0o700, exist_ok=True)
        for kind, size in _logged(folder).items():
            log, kept = logs / f"rank-{rank}.{kind}", folder / "logs" / kind
            if kept.exists() and (not log.exists() or log.stat().st_size < size):
                shutil.copyfile(kept, log)
                log.chmod(0o600)

    def sync_snapshots(self, job: str, number: int) -> None:
        """Make the snapshots durable, with all files of the state directory that they need, and
        write the list that `check` reads. Raises OSError."""
        durable.sync_all(self.layout.save(job, number), [self.layout.modules], above=3)

    def check(self, job: str, number: int) -> None:
        """Check that the settled snapshots are unchanged. Raises Damaged, OSError."""
        durable.check(self.layout.save(job, number))

    def misfit(self, folder: Path) -> str:
        """Why snapshots cannot be restored here, according to those files of each rank in `folder`
        that are compared first; empty: no obstacle found."""
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "rankfold.interpose.launcher.snapshot.fits",
                str(folder),
                str(self.layout.interposers),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment.of_launcher(os.environ),
            check=False,
        )
        return _last_words(done.stderr) if done.returncode else ""

    def drop(self, job: str, number: int) -> None:
        """Remove the snapshots of a save, and end the process that works on them. Raises
        OSError."""
        self.end_transfer(job, number)
        shutil.rmtree(self.layout.save(job, number), ignore_errors=True)

    def transfer(self, kind: str, job: str, number: int, task: Json) -> None:
        """Start a process that brings the snapshots of a save into the store ("upload"), or a
        checkpoint out of it ("fetch"). It continues where an earlier one was killed; at most one
        runs at a time. Raises CannotLaunch."""
        folder = self.layout.save(job, number)
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        write_atomically(folder / "task.json", json.dumps(task, indent=1))
        done = subprocess.run(
            [sys.executable, "-m", f"rankfold.checkpoint.{kind}", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=TRANSFER_S,
            env=child_environment(),
        )
        if done.returncode != 0 and not is_locked(folder / "lock"):
            raise CannotLaunch(_last_words(done.stderr))

    def end_transfer(self, job: str, number: int) -> None:
        """Kill the process that uploads or fetches these snapshots, if one runs. Raises OSError if
        it does not end."""
        folder = self.layout.save(job, number)
        deadline = time.monotonic() + KILLED_S
        while is_locked(folder / "lock"):
            _kill_worker(folder)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the process that works on {folder} cannot be killed")
            time.sleep(0.01)

    def forget_transfer(self, job: str, number: int) -> None:
        """End the process that works on these snapshots, and remove its report. Raises OSError."""
        self.end_transfer(job, number)
        (self.layout.save(job, number) / "state.json").unlink(missing_ok=True)

    def tidy(self, job: str, but: Iterable[int] = (), last: int | None = None) -> None:
        """Remove the snapshots of all saves except those in `but` and those after `last`, and end
        the processes that work on them. Raises OSError."""
        kept = {str(number) for number in but}
        with contextlib.suppress(FileNotFoundError):
            for folder in self.layout.save(job, 0).parent.iterdir():
                if folder.name in kept or not folder.name.isdecimal():
                    continue
                if last is None or int(folder.name) <= last:
                    self.drop(job, int(folder.name))

    def no_saves(self) -> str:
        """Why no rank can be saved here; empty: ranks can be saved."""
        return _no_saves()

    def store_trouble(self, url: str) -> str:
        """Why this fleet cannot keep its checkpoints at a URL; empty: it can. Creates the store."""
        return self._query_store("begin", url, STORE_ANSWERS_S)[1]

    def ownership(self, url: str, known: Mapping[str, int]) -> dict[str, tuple[bool, str]]:
        """Job → (whether the store reports that another owner has taken it over, which one or why
        the store did not answer). `known` has the newest incarnation that is ours of each job."""
        jobs = {
            job: _OwnershipQuery(str(self.layout.job(job).absolute()), number)
            for job, number in known.items()
        }
        within = OWNERSHIP_ANSWERS_S + OWNERSHIP_EACH_S * (len(jobs) - 1)
        output, trouble = self._query_store("ownership", url, within, msgspec.json.encode(jobs))
        whole = output[: output.rfind(b"\n") + 1]
        answers = {
            each.job: each for each in msgspec.json.Decoder(_OwnershipAnswer).decode_lines(whole)
        }
        return {
            job: (answers[job].taken, answers[job].why) if job in answers else (False, trouble)
            for job in jobs
        }

    def _query_store(
        self, what: str, url: str, within: float, request: bytes = b""
    ) -> tuple[bytes, str]:
        """Run a process that queries the store, which may not answer; return its output, and why it
        failed or ""."""
        limit = min(within, switches.stuck_s())
        module = f"rankfold.checkpoint.{what}"
        with open(os.memfd_create("request"), "w+b") as file:
            file.write(request)
            file.seek(0)
            looking = subprocess.Popen(
                [sys.executable, "-m", module, url, self.fleet(), str(limit)],
                stdin=file,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=child_environment(),
            )
        output = b""
        try:
            output, words = looking.communicate(timeout=limit + KILLED_S)
        except subprocess.TimeoutExpired:
            looking.kill()  # it is stopped, or in the kernel and ends on return
            with contextlib.suppress(subprocess.TimeoutExpired):
                output, _ = looking.communicate(timeout=1.0)
            return output, _no_answer(url, limit)
        if looking.returncode == -signal.SIGALRM:
            return output, _no_answer(url, limit)
        if looking.returncode == 0:
            return output, ""
        exited = f"{url}: the process that queried it exited ({looking.returncode})"
        return output, _last_words(words) or exited

    def fleet(self) -> str:
        """The name under which this fleet keeps its checkpoints; created at the first call."""
        file = self.layout.state / "fleet"
        with contextlib.suppress(FileNotFoundError):
            return file.read_text().strip()
        self.adopt(secrets.token_hex(16))
        return file.read_text().strip()

    def adopt(self, fleet: str) -> None:
        """Make this the fleet of that name."""
        write_atomically(self.layout.state / "fleet", fleet + "\n")


@functools.cache
def _no_saves() -> str:
    try:
        return criu.trouble()
    except criu.Missing as error:
        return str(error)


# ---- helpers -----------------------------------------------------------------------------------


def _hangs(door: Path) -> str:
    """Why a launcher is to be given up: it answers no request; empty: it answers."""
    try:
        control.call(door, "status", timeout=HUNG_S)
    except control.ControlError as error:
        return str(error) if error.code == "timeout" else ""
    return ""


def _kill_worker(folder: Path) -> None:
    """Kill the lock's holder, by the pid that it has written to the lock file; it may not have
    written it yet."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / "lock").read_text())
        process = os.pidfd_open(pid)
        try:
            if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def _logged(folder: Path) -> dict[str, int]:
    """Bytes of "out" and "err" that a rank had written, as recorded in its snapshot."""
    return {
        kind: int(size)
        for kind, size in json.loads((folder / "about.json").read_text())["logs"].items()
    }


def _no_answer(url: str, seconds: float) -> str:
    return f"{url}: timed out: no answer within {seconds:.0f} s; make sure that it is reachable"


def _last_words(stderr: bytes) -> str:
    return " / ".join(stderr.decode(errors="replace").strip().splitlines()[-3:])


def child_environment() -> dict[str, str]:
    """Our environment without what is meant for the reconciler only."""
    return {k: v for k, v in os.environ.items() if k != "RANKFOLD_FAULT"}


def write_atomically(path: Path, text: str) -> None:
    """Replace a file atomically; only our user may read it, because environments may have
    secrets."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
