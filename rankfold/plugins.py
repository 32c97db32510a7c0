"""Policies that are not built in: each runs in a process of its own, with a deadline.

A policy is an entry point of the group `rankfold.policies` of an installed package, a function
`decide(fleet, jobs, rules, now)` with the records of rankfold/policy/vocabulary.py. If it raises,
gives a device away twice, or does not answer in time, the last good decision stays in force: every
job keeps what it has. Its output goes to stderr.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec

from rankfold.legible import legible
from rankfold.policy.checking import objection
from rankfold.policy.vocabulary import Decision, Fleet, Job, Rules

GROUP = "rankfold.policies"
DECISION_S = 5.0  # default deadline of a decision
START_S = 60.0  # a policy may import much
FRAME_MAX = 1 << 28  # bytes of a message
WORDS_MAX = 500  # characters of an error that are shown


class NoSuchPolicy(Exception):
    """No installed package has a policy of this name."""


class Failed(Exception):
    """A policy did not decide; the message says why."""


class Request(msgspec.Struct, frozen=True, array_like=True):
    fleet: Fleet
    jobs: list[Job]
    rules: Rules
    now: float


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """error: why there are no decisions; empty if there are."""

    decisions: dict[str, Decision] = {}
    error: str = ""


def installed() -> list[str]:
    """The names of the policies that installed packages have."""
    return sorted({each.name for each in importlib.metadata.entry_points(group=GROUP)})


class Plugin:
    """A policy in its process, which is started when it is needed. Close it after use.

    failures: why decisions were not carried out, oldest first.
    """

    def __init__(self, name: str, deadline_s: float = DECISION_S):
        if name not in installed():
            raise NoSuchPolicy(name)
        self.name, self.failures = name, list[str]()
        self._deadline_s = deadline_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Plugin:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decide(
        self, fleet: Fleet, jobs: Sequence[Job], rules: Rules, now: float
    ) -> dict[str, Decision]:
        """As rankfold.policy.decide.decide; empty, so that every job keeps what it has, if the
        policy fails. Then `failures` has one entry more."""
        try:
            decisions = self._request(Request(fleet, list(jobs), rules, now))
            if wrong := objection(fleet, jobs, decisions):
                raise Failed(wrong)
        except Failed as failed:
            self.failures.append(f"policy {self.name}: {failed}; every job keeps what it has")
            return {}
        return decisions

    def close(self) -> None:
        """End the process, with those that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the number is its own
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _request(self, request: Request) -> dict[str, Decision]:
        try:
            if self._process is None:
                self._start()
            reply = self._exchange(msgspec.msgpack.encode(request), self._deadline_s)
        except Failed:
            self.close()
            raise
        if reply.error:
            raise Failed(legible(reply.error)[:WORDS_MAX].replace("\n", " "))
        return reply.decisions

    def _start(self) -> None:
        """Start the process; returns when it has imported the policy."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rankfold.plugin_process", self.name, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
        reply = self._exchange(b"", START_S)
        if reply.error:
            raise Failed(legible(reply.error)[:WORDS_MAX].replace("\n", " "))

    def _exchange(self, message: bytes, limit_s: float) -> Reply:
        """Send a message, unless it is empty, and wait for the reply. Raises Failed."""
        assert self._process is not None and self._process.stdin and self._process.stdout
        pipe = _Pipe(self._process.stdin.fileno(), self._process.stdout.fileno(), limit_s)
        try:
            if message:
                pipe.send(len(message).to_bytes(8, "little") + message)
            size = int.from_bytes(pipe.receive(8), "little")
            if size > FRAME_MAX:
                raise Failed(f"a reply of more than {FRAME_MAX} bytes")
            return msgspec.msgpack.decode(pipe.receive(size), type=Reply)
        except (EOFError, BrokenPipeError):
            raise Failed(f"its process {self._ended()}") from None
        except TimeoutError:
            raise Failed(f"timed out: no decision within {limit_s:g} s") from None
        except msgspec.MsgspecError as error:
            raise Failed(f"its reply cannot be read: {error}") from None

    def _ended(self) -> str:
        assert self._process is not None
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "has closed its output"
        return f"exited with {code}" if code >= 0 else f"was killed by signal {-code}"


class _Pipe:
    """Both directions of a process, with one deadline."""

    def __init__(self, to: int, from_: int, limit_s: float):
        self._to, self._from, self._end = to, from_, time.monotonic() + limit_s

    def send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            self._wait(self._to, selectors.EVENT_WRITE)
            rest = rest[os.write(self._to, rest) :]

    def receive(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            self._wait(self._from, selectors.EVENT_READ)
            if not (part := os.read(self._from, min(size, 1 << 20))):
                raise EOFError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _wait(self, fd: int, event: int) -> None:
        with selectors.PollSelector() as selector:
            selector.register(fd, event)
            if not selector.select(max(0.0, self._end - time.monotonic())):
                raise TimeoutError
