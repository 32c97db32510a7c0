"""`watch` outlives what may pass, and no user takes a fleet for managed that is not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfold import control
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.source import git as git_
from rankfold.reconciler.source import reader
from support import disk, leaks
from support.command import JOB, POOL, Git, Rankfold, Specs
from support.leaks import State
from support.patience import scaled


def devices(rankfold: Rankfold) -> int:
    return len(set(rankfold.job("gpt").get("placement", {}).values()))


def ready(rankfold: Rankfold) -> Any:
    return (rankfold.status()["source"]["conditions"] or [{}])[0]


class Watch:
    """`rankfold watch` in the background, with what it says on stderr."""

    def __init__(self, rankfold: Rankfold, *arguments: str):
        self.rankfold, self.errors = rankfold, rankfold.state.folder / "watch.err"
        with self.errors.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rankfold", "watch", *arguments],
                env=rankfold.environment,
                stdout=subprocess.DEVNULL,
                stderr=err,
            )

    def says(self, words: str) -> None:
        self.rankfold.until(lambda: words in self.errors.read_text() or self._alive())

    def _alive(self) -> bool:
        assert self.process.poll() is None, self.errors.read_text()
        return False

    def kill_reconciler(self) -> None:
        pid = self.rankfold.until(self.rankfold.reconciler_pid)
        os.kill(pid, signal.SIGKILL)
        assert leaks.has_ended(pid, scaled(leaks.GRACE_S))

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0, self.errors.read_text()


# ---- what may pass -----------------------------------------------------------------------------


@pytest.mark.slow
def test_watch_outlives_a_directory_that_is_away(rankfold: Rankfold, specs: Specs) -> None:
    """Renamed, while the reconciler is killed, and put back with other contents."""
    specs.job(gpus=2)
    away = specs.folder.with_name("away")
    with Watch(rankfold, str(specs.folder)) as watching:
        rankfold.until(lambda: devices(rankfold) == 2)
        specs.folder.rename(away)
        watching.kill_reconciler()
        rankfold.until(lambda: ready(rankfold)["reason"] == "Unreachable")
        watching.says(f"rankfold: {specs.folder} does not exist; waiting for it")
        status = rankfold.status()
        assert status["source"]["watched"] and ready(rankfold)["status"] == "False"
        assert "does not exist" in ready(rankfold)["message"] and ready(rankfold)["since"] > 1e9
        conditions = {c["type"]: c for c in status["jobs"][0]["conditions"]}
        assert conditions["SourceUnreachable"]["status"] == "True", "Ready without a source"
        shown = rankfold.run("status")
        assert "its source cannot be read" in shown.stdout
        assert "the source cannot be read: " in shown.stderr
        away.rename(specs.folder)
        specs.job(gpus=1)
        rankfold.until(lambda: devices(rankfold) == 1)
        watching.says("rankfold: recovered, continuing")
        assert ready(rankfold)["status"] == "True"
        assert "SourceUnreachable" not in {c["type"] for c in rankfold.job("gpt")["conditions"]}
    assert watching.errors.read_text().count("does not exist") == 1, "said once"


@pytest.mark.slow
def test_watch_outlives_a_partly_saved_file(rankfold: Rankfold, specs: Specs) -> None:
    specs.job(gpus=2)
    file = specs.folder / "gpt.yaml"
    with Watch(rankfold, str(specs.folder)) as watching:
        rankfold.until(lambda: devices(rankfold) == 2)
        file.write_text(file.read_text()[:70])
        watching.kill_reconciler()
        watching.says("gpt.yaml:")
        rankfold.until(lambda: ready(rankfold)["reason"] == "RevisionRefused")
        assert devices(rankfold) == 2
        specs.job(gpus=1)
        rankfold.until(lambda: devices(rankfold) == 1)


@pytest.mark.slow
def test_watch_outlives_a_branch_that_is_gone(
    rankfold: Rankfold, specs: Specs, state: State
) -> None:
    repository = Git(specs.folder)
    repository("init", "--quiet", "--initial-branch", "main")
    specs.job(gpus=2)
    repository.commit("two")
    with Watch(rankfold, "--git", str(specs.folder)) as watching:
        rankfold.until(lambda: devices(rankfold) == 2)
        repository("branch", "--move", "main", "other")
        watching.kill_reconciler()
        watching.says("has no branch main: there are other; waiting for it")
        repository("branch", "--move", "other", "main")
        specs.job(gpus=1)
        repository.commit("one")
        rankfold.until(lambda: devices(rankfold) == 1)
        specs.folder.rename(specs.folder.with_name("away"))
        watching.kill_reconciler()
        watching.says("No such file or directory; waiting for it")
        specs.folder.with_name("away").rename(specs.folder)
        specs.job(gpus=2)
        repository.commit("two again")
        rankfold.until(lambda: devices(rankfold) == 2)


@pytest.fixture
def small_disk(state: State) -> Iterator[Path]:
    """Used before `rankfold`, so that it outlives the fleet."""
    with disk.small_disk(state) as place:
        yield place


@pytest.mark.slow
def test_watch_outlives_a_full_disk(
    small_disk: Path, state: State, rankfold: Rankfold, specs: Specs
) -> None:
    disk.hold_state(state, small_disk)
    specs.job(gpus=2)
    with Watch(rankfold, str(specs.folder)) as watching:
        rankfold.until(lambda: devices(rankfold) == 2)
        with contextlib.closing(sqlite3.connect(small_disk / "rankfold.db")) as source_reader:
            # While one process reads the journal, no other process shortens its log by closing it.
            source_reader.execute("SELECT count(*) FROM sqlite_master").fetchall()
            ballast = disk.fill(small_disk)
            specs.job(gpus=1)
            watching.kill_reconciler()
            watching.says("; waiting for it")
        ballast.unlink()
        rankfold.until(lambda: devices(rankfold) == 1)


def test_a_watch_that_outlives_a_stop_is_not_said_to_be_gone(
    rankfold: Rankfold, specs: Specs
) -> None:
    with Watch(rankfold, str(specs.folder)):
        rankfold.until(lambda: rankfold.status()["source"]["watched"])
        pid = rankfold.reconciler_pid()
        stopped = rankfold.run("stop")
        another = f"`rankfold watch` of directory {specs.folder} starts another reconciler"
        assert stopped.returncode == 0 and another in stopped.stderr
        rankfold.until(lambda: rankfold.reconciler_pid() not in (0, pid))
        rankfold.until(lambda: rankfold.status()["source"]["watched"])
        assert "Unwatched" not in rankfold("events")  # later it is true: the watch has exited


def test_watch_ends_where_waiting_is_useless(rankfold: Rankfold, specs: Specs) -> None:
    done = rankfold.run("watch", str(specs.folder / "slip-of-the-pen"))
    assert done.returncode == 1 and "does not exist" in done.stderr
    done = rankfold.run("watch", "--git", str(specs.folder))
    assert done.returncode == 1 and "not a git repository" in done.stderr


# ---- who looks after it ------------------------------------------------------------------------


def test_it_reports_that_no_reconciler_runs(rankfold: Rankfold, specs: Specs) -> None:
    assert rankfold.status()["reconciler"] == {"running": False, "message": ""}, "none is needed"
    specs.job(gpus=1, ranks=1)
    with Watch(rankfold, str(specs.folder)) as watching:
        rankfold.until(lambda: devices(rankfold) == 1)
        assert rankfold.status()["reconciler"] == {"running": True, "message": ""}
        watching.process.send_signal(signal.SIGSTOP)  # or it would start another
        watching.kill_reconciler()
        status = rankfold.status()
        assert not status["reconciler"]["running"] and not status["source"]["watched"]
        told = f"no reconciler runs: nothing manages gpt; nothing follows directory {specs.folder}"
        assert status["reconciler"]["message"].startswith(told)
        assert ready(rankfold)["status"] == "Unknown"
        for command in (["status"], ["describe", "gpt"], ["events"], ["events", "gpt"]):
            assert rankfold.run(*command).stderr.count(told) == 1
        described = json.loads(rankfold("describe", "gpt", "-o", "json"))
        assert described["reconciler"] == status["reconciler"]
        watching.process.send_signal(signal.SIGCONT)
        rankfold.until(lambda: rankfold.status()["reconciler"]["running"])
        rankfold.until(lambda: rankfold.status()["source"]["watched"])
    rankfold("stop")
    told = rankfold.status()["reconciler"]["message"]
    assert "nothing manages gpt;" in told and "follows" not in told
    specs.finish_jobs()
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job("gpt")["phase"] == "Succeeded")


# ---- remotes -----------------------------------------------------------------------------------


class Remote:
    """Serves the repositories of a folder by git's own protocol. `silent`: accepts, and no more."""

    def __init__(self, folder: Path):
        self.folder, self.silent, self.held = folder, False, list[socket.socket]()
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def url(self, name: str) -> str:
        return f"git://127.0.0.1:{self.sock.getsockname()[1]}/{name}"

    def _serve(self) -> None:
        command = ["git", "daemon", "--inetd", "--export-all", f"--base-path={self.folder}"]
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.sock.accept()
                if self.silent:
                    self.held.append(connection)
                    continue
                with connection:
                    fd = connection.fileno()
                    subprocess.run([*command, str(self.folder)], stdin=fd, stdout=fd)

    def close(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        for each in [*self.held, self.sock]:
            each.close()


@pytest.fixture
def remote(state: State) -> Iterator[Remote]:
    repository = Git(state.folder / "repo")
    repository("init", "--quiet", "--initial-branch", "main")
    text = JOB.format(name="gpt", command='["true"]', ranks=1, gpus=1, extra="workdir: /")
    (repository.folder / "job.yaml").write_text(text)
    (repository.folder / "pool.yaml").write_text(POOL)
    repository.commit("first")
    remote = Remote(state.folder)
    yield remote
    remote.close()


def until(what: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + scaled(60)
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_a_remote_that_falls_silent_has_a_deadline_and_is_asked_again(
    remote: Remote, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_, "SILENT_S", 1.0)
    monkeypatch.setattr(reader, "FETCH_S", 0.0)
    source_reader = reader.Reader({"git": remote.url("repo"), "branch": "main"}, state.path)
    try:
        first = until(source_reader.take)
        assert first.error == "" and first.revision.loaded.faults == []
        remote.silent = True
        told = until(source_reader.take)
        assert told.revision is None and told.since > 1e9
        why = "timed out: git fetch received nothing for 1 s"
        assert told.error == f"cannot fetch {remote.url('repo')}: {why}"
        assert source_reader.take() is None, "said once"
        remote.silent = False
        commit = Git(state.folder / "repo")
        (commit.folder / "note").touch()
        again = until(lambda: (got := source_reader.take()) and got.revision and got)
        second = commit.commit("second")
        if again.revision.id != second:
            again = until(source_reader.take)
        assert again.error == "" and again.revision.id == second
        remote.silent = True
        until(lambda: len(remote.held) >= 2)
    finally:
        source_reader.close(wait_s=30)
    state.watch.settle()
    assert state.watch.new_processes() == set(), "git ended with it"


def test_half_a_mirror_is_made_anew(remote: Remote, state: State) -> None:
    """Remains of a clone or fetch that was killed are removed."""
    description = remote.url("repo"), "main", "", state.path
    first = reader.GitSource(*description)
    half = first.repo.with_suffix(".new")
    half.mkdir(parents=True)
    (half / "HEAD").write_text("ref: refs/heads/main\n")
    assert first.poll() is not None
    (first.repo / "refs/heads").mkdir(exist_ok=True, parents=True)
    (first.repo / "packed-refs.lock").touch()
    (first.repo / "refs/heads/main.lock").touch()
    repository = Git(state.folder / "repo")
    (repository.folder / "note").touch()
    commit = repository.commit("second")
    second = reader.GitSource(*description)
    with pytest.raises(reader.SourceError, match="lock"):
        second.poll()
    revision = reader.GitSource(*description).poll()
    assert revision is not None and revision.id == commit


def test_a_silent_remote_delays_no_job(rankfold: Rankfold, specs: Specs, remote: Remote) -> None:
    remote.silent = True
    process = rankfold.start("watch", "--git", remote.url("repo"))
    rankfold.until(lambda: remote.held)
    for _ in range(3):  # git waits for an answer while these get one
        told = control.call(Layout(rankfold.state.path).socket, "hello", timeout=scaled(10))
        assert told["source"] is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=scaled(60))


def test_paths_elsewhere_do_not_depend_on_local_files(tmp_path: Path) -> None:
    for url in ("https://host/x.git", "git@host:x", "host:x", "file:///x", "ssh://host/x"):
        assert git_.is_elsewhere(url)
    for path in ("/x", "x", "./host:x", "../x", "/a:b", str(tmp_path / "gone")):
        assert not git_.is_elsewhere(path)
