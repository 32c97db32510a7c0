"""Runs git for `watch`: without the caller's settings or prompts, and with limited waiting.

A remote that accepts a connection and sends nothing would block git, and its caller, without limit.
So a command without output for `SILENT_S` is ended, together with all processes that it started.

Only git gets a password in a URL. People, files and the mirror get the URL `masked`; git gets the
complete URL in its environment.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

SILENT_S = 20.0  # git reports its progress every second while there is some
LIMIT_S = 600  # for a command that uses a remote; also enforced if we are killed
TICK_S = 0.1
ENDING_S = 2.0  # for git to remove its lock files
# The caller's variables that git keeps: how to reach a remote. Others would select other files.
_PASSED_ON = (
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_SSH_VARIANT",
    "GIT_PROXY_COMMAND",
    "GIT_ALLOW_PROTOCOL",
    "GIT_PROTOCOL",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "GIT_SSL_CERT",
    "GIT_SSL_KEY",
    "GIT_SSL_CERT_PASSWORD_PROTECTED",
    "GIT_SSL_NO_VERIFY",
    "GIT_SSL_VERSION",
    "GIT_HTTP_LOW_SPEED_LIMIT",
    "GIT_HTTP_LOW_SPEED_TIME",
    "GIT_HTTP_PROXY_AUTHMETHOD",
    "GIT_HTTP_USER_AGENT",
)
_TELLING = ("fatal: ", "error: ", "ssh: ")


# In a URL: a password, or over HTTP, where git sends it as one, a user name that may be a token.
_SECRET = re.compile(r"(?<=://)([^/@:\s]*):[^/\s]*@|(?<=http://)[^/\s]+@|(?<=https://)[^/\s]+@")


def masked(text: str) -> str:
    """The text without the passwords of all URLs in it."""
    return _SECRET.sub(lambda found: f"{found[1]}:***@" if found[1] is not None else "***@", text)


class GitError(Exception):
    """git failed; the message explains why."""


class Git:
    """Runs git in one repository. Once `stopped` is set, running commands are ended. url: the URL
    that git uses wherever a command or the repository has `masked(url)`."""

    def __init__(self, repo: Path, stopped: threading.Event, url: str = ""):
        self.repo, self.stopped = repo, stopped
        self._env = _environment(url)

    def at(self, repo: Path) -> Git:
        """The same for another folder."""
        other = copy.copy(self)
        other.repo = repo
        return other

    def __call__(self, *arguments: str, given: str = "") -> bytes:
        """Run a command and return its output. `given`: its standard input. Raises GitError."""
        return self._run(["git", "-C", str(self.repo), *arguments], os.fsencode(given))

    def text(self, *arguments: str) -> str:
        return self(*arguments).decode(errors="replace").strip()

    def remote(self, *arguments: str) -> None:
        """Run a command that uses a remote; it must print its progress. Raises GitError."""
        limit = ["timeout", f"--kill-after={ENDING_S}", str(LIMIT_S)] if _has_timeout() else []
        self._run([*limit, "git", "-C", str(self.repo), *arguments])

    def _run(self, command: list[str], given: bytes = b"") -> bytes:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._env,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise GitError("git is not installed") from error
        with process:
            try:
                out, err = self._listen(process, command, given)
            except BaseException:
                _end(process)
                raise
        if process.returncode == 0:
            return out
        raise GitError(self._reason(err.decode(errors="replace"), command))

    def _listen(
        self, process: subprocess.Popen[bytes], command: list[str], given: bytes
    ) -> tuple[bytes, bytes]:
        """The output of a process, once it has ended by itself. Raises GitError if it has to be
        ended."""
        heard, since = 0, time.monotonic()
        left: bytes | None = given  # `communicate` takes it once
        while True:
            try:
                return process.communicate(left, timeout=TICK_S)
            except subprocess.TimeoutExpired as waiting:
                left = None
                said = len(waiting.output or b"") + len(waiting.stderr or b"")
            now = time.monotonic()
            if said > heard:
                heard, since = said, now
            if self.stopped.is_set():
                raise GitError("it is no longer followed")
            if now - since > SILENT_S:
                raise GitError(
                    f"timed out: git {_verb(command)} received nothing for {SILENT_S:g} s"
                )

    def _reason(self, text: str, command: list[str]) -> str:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if line.startswith(_TELLING)]
        reason = " / ".join(line.removeprefix("fatal: ") for line in telling[:2])
        reason = reason or (lines[-1] if lines else f"git {_verb(command)} failed")
        return masked(f"{self.repo}: {reason}" if "not a git repository" in reason else reason)


def is_elsewhere(repository: str) -> bool:
    """Whether git takes this for a URL or ``host:path``, by git's own rule. Does not check whether
    a folder of that name exists, because it may be temporarily unavailable."""
    before, colon, _ = repository.partition(":")
    return bool(colon) and "/" not in before


def _verb(command: list[str]) -> str:
    return command[command.index("-C") + 2]


def _has_timeout() -> bool:
    return shutil.which("timeout") is not None


def _environment(url: str) -> dict[str, str]:
    if (shown := masked(url)) != url:
        secret = {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{url}.insteadOf",
            "GIT_CONFIG_VALUE_0": shown,
        }
    else:
        secret = {}
    ours = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k in _PASSED_ON}
    return (
        ours
        | secret
        | {
            "LC_ALL": "C",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
            "SSH_ASKPASS_REQUIRE": "never",
        }
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, which share its session."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
