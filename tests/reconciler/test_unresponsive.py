"""A process that hangs or died is reported by its pid, and no command waits for it in silence."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rankfold import __version__
from rankfold.reconciler import liveness
from rankfold.reconciler.deadlines import HUNG_LOOK_S, RECONCILER_ANSWERS_S, SILENT_AFTER_S
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.journal.tables import database
from rankfold.reconciler.layout import Layout
from support import leaks
from support.command import Rankfold, Specs
from support.leaks import State

OTHER_VERSION = """
from rankfold import messages
messages.VERSION = 99
from rankfold.reconciler import daemon
daemon.main()
"""
OTHER_RELEASE = """
import rankfold
rankfold.__version__ = "99.1"
from rankfold.reconciler import daemon
daemon.main()
"""
HOLDS_THE_LOCK = """
import sys
from pathlib import Path
from rankfold.reconciler.layout import try_lock
lock = try_lock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def python(*command: str, rankfold: Rankfold) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, *command],
        text=True,
        env={**rankfold.environment, "RANKFOLD_LINGER": "60"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def launcher_of(rankfold: Rankfold) -> int:
    """The pid of the launcher of rank 0 of the job gpt."""
    rank = rankfold.job("gpt")["ranks"][0]["pid"]
    with open(f"/proc/{rank}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def remove_sockets(state: State) -> None:
    """Those of processes that the test has killed; who else would?"""
    for path in Layout(state.path).sockets.glob("[!r]*.sock"):
        path.unlink()


def test_waiting_clients_are_answered_within_five_seconds() -> None:
    assert SILENT_AFTER_S < 5
    assert RECONCILER_ANSWERS_S + HUNG_LOOK_S < 5


# ---- the reconciler ----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stopped_reconciler_is_reported_and_every_command_fails(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job(gpus=1, ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    pid = rankfold.reconciler_pid()
    why = (
        f"the reconciler (process {pid}) is unresponsive: no answer "
        "for 2 s: a signal has stopped it"
    )
    with stopped(pid):
        found = rankfold.status()["reconciler"]
        assert not found["running"] and found["message"].startswith(why)
        assert found["message"].endswith("nothing manages gpt")
        looks = (["status"], ["describe", "gpt"], ["events"])
        acts = (
            ["scale", "gpt", "--gpus", "2", "--override"],
            ["checkpoint", "gpt"],
            ["stop"],
            ["apply", "-f", str(specs.folder)],
            ["watch", str(specs.folder)],
            ["run", "--world-size", "1", "--", "true"],
        )
        running = [(command, rankfold.start(*command)) for command in (*looks, *acts)]
        for command, process in running:
            _, errors = process.communicate(timeout=60)
            assert why in errors, command
            assert process.returncode == (1 if command in acts else 0), command
            assert ("Nothing was changed" in errors) == (command in acts), command
    rankfold.until(lambda: rankfold.status()["reconciler"] == {"running": True, "message": ""})
    job = rankfold.job("gpt")
    assert (job["phase"], job["gpus"], job["generation"]) == ("Running", 1, 1)


@pytest.mark.slow
def test_a_command_fails_whose_reconciler_stops_while_it_waits(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job(gpus=1, ranks=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    pid = rankfold.reconciler_pid()
    specs.job("big", gpus=4, ranks=4)  # waits for the device that gpt has
    waiting = rankfold.start("apply", "-f", str(specs.folder), "--wait")
    rankfold.until(lambda: rankfold.job("big"))
    with stopped(pid):
        _, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    assert f"the reconciler (process {pid}) is unresponsive: no answer for 3 s" in errors


@pytest.mark.slow
def test_run_waits_for_a_reconciler_that_stops_and_says_so(
    rankfold: Rankfold, specs: Specs
) -> None:
    """Its exit status is the job's, so it does not give up on it."""
    command = f"until [ -e {specs.stop_file} ]; do sleep 0.05; done; exit 7"
    running = rankfold.start("run", "--world-size", "1", "--name", "one", "--", "sh", "-c", command)
    rankfold.until(lambda: rankfold.job("one").get("phase") == "Running")
    pid = rankfold.reconciler_pid()
    assert running.stderr is not None
    with stopped(pid):
        told = running.stderr.readline()
        assert f"the reconciler (process {pid}) is unresponsive" in told
        assert told.endswith("; waiting for it\n")
    specs.finish_jobs()
    running.communicate(timeout=60)
    assert running.returncode == 7


def test_a_reconciler_of_another_version_is_named(
    rankfold: Rankfold, state: State, specs: Specs
) -> None:
    with python("-c", OTHER_VERSION, "--state", str(state.path), rankfold=rankfold) as other:
        layout = Layout(state.path)
        rankfold.until(lambda: layout.socket.exists())
        why = f"the reconciler (process {other.pid}) has protocol version 99, not"
        assert why in rankfold.status()["reconciler"]["message"]
        done = rankfold.run("apply", "-f", str(specs.folder))
        assert done.returncode == 1 and why in done.stderr
        assert f"`kill -9 {other.pid}`" in done.stderr


def test_a_reconciler_of_another_release_with_the_same_protocol_is_named_with_both(
    rankfold: Rankfold, state: State, specs: Specs
) -> None:
    command = ("-c", OTHER_RELEASE, "--state", str(state.path))
    with python(*command, rankfold=rankfold) as other:
        rankfold.until(rankfold.reconciler_pid)
        why = (
            f"the reconciler (process {other.pid}) is of version 99.1, this command of version "
            f"{__version__}; `rankfold stop`"
        )
        found = rankfold.status()["reconciler"]
        assert found["running"] and found["message"].startswith(why)
        done = rankfold.run("apply", "-f", str(specs.folder))
        assert done.returncode == 0 and done.stderr.count(why) == 1
        rankfold("stop")
    rankfold("apply", "-f", str(specs.folder))
    assert rankfold.status()["reconciler"] == {"running": True, "message": ""}


def test_a_process_that_holds_the_lock_without_listening_is_named(
    rankfold: Rankfold, state: State
) -> None:
    """It hangs before it listens, or a reconciler that was killed has left its socket."""
    layout = Layout(state.path)
    layout.lock.write_text("4194303")
    assert liveness.query(layout) == liveness.NONE, "a stale file names no process"
    with python("-c", HOLDS_THE_LOCK, str(layout.lock), rankfold=rankfold) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        layout.lock.write_text(str(holder.pid))
        seen = liveness.query(layout, 0.1)
        assert seen.pid == holder.pid and "it is starting, or stuck" in seen.trouble
        assert f"(process {holder.pid})" in rankfold.status()["reconciler"]["message"]


# ---- others ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stopped_compiler_is_named(rankfold: Rankfold, state: State) -> None:
    layout = Layout(state.path)
    socket = layout.sockets / "compiler-abc.sock"
    command = ("-m", "rankfold.proxy.hal.soft.compiler.server", "--socket", str(socket))
    cache = str(state.folder / "kernels")
    with python(*command, "--cache", cache, "--idle", "60", rankfold=rankfold) as compiler:
        rankfold.until(lambda: socket.exists())
        assert rankfold.status()["trouble"] == []
        with stopped(compiler.pid):
            (told,) = rankfold.status()["trouble"]
            assert told.startswith(
                f"the compiler (process {compiler.pid}) is unresponsive: no answer for 2 s"
            )
            assert f"`kill -CONT {compiler.pid}`" in told
            assert told in rankfold.run("status").stderr
        assert rankfold.status()["trouble"] == []
    remove_sockets(state)


def test_a_fleet_whose_state_directory_was_removed_is_named(
    rankfold: Rankfold, state: State, specs: Specs
) -> None:
    specs.job(gpus=1, ranks=1)
    specs.pool(1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    proxy, launcher = rankfold.proxy_pid("local/soft-0"), launcher_of(rankfold)
    database(state.path).unlink()
    rankfold.until(lambda: "JournalRemoved" in rankfold("events"))
    assert rankfold.job("gpt")["phase"] == "Running", "the reconciler has put it back"
    os.kill(rankfold.reconciler_pid(), signal.SIGKILL)
    shutil.rmtree(state.path)
    (gone,) = rankfold.status()["trouble"]
    Journal(state.path).close()
    (another,) = rankfold.status()["trouble"]
    for told in (gone, another):
        assert f"proxy {proxy} of local/soft-0, launcher {launcher} of gpt/0" in told
        assert f"`kill -9 {proxy} {launcher}`" in told and str(state.path) in told
    assert "does not exist" in gone and "is not the directory" in another
    assert another in rankfold.run("status").stderr
    for pid in (proxy, launcher):
        os.kill(pid, signal.SIGKILL)
        assert leaks.has_ended(pid, leaks.GRACE_S)
    assert rankfold.status()["trouble"] == []
    remove_sockets(state)


# ---- watch -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_a_source_of_a_killed_watch_is_reported_as_unwatched(
    rankfold: Rankfold, specs: Specs, number: signal.Signals
) -> None:
    specs.job(gpus=1, ranks=1)
    watching = rankfold.start("watch", str(specs.folder))
    rankfold.until(lambda: rankfold.status()["source"]["watched"])
    watching.send_signal(number)
    watching.communicate(timeout=60)
    told = f"nothing has followed directory {specs.folder} since "
    rankfold.until(lambda: told in rankfold.status()["reconciler"]["message"])
    source = rankfold.status()["source"]
    assert not source["watched"] and source["conditions"][0]["reason"] == "NotFollowed"
    assert told in rankfold.run("status").stderr
    assert "Unwatched" in rankfold("events")
    pid = rankfold.reconciler_pid()
    os.kill(pid, signal.SIGKILL)
    assert leaks.has_ended(pid, leaks.GRACE_S)
    follows = f"nothing follows directory {specs.folder}"
    assert follows in rankfold.status()["reconciler"]["message"], "it is not forgotten"
    rankfold("apply", "-f", str(specs.folder))
    assert rankfold.status()["reconciler"]["message"] == "", "whoever applies knows"
    assert rankfold.status()["source"]["conditions"][0]["reason"] == "RevisionAccepted"


def test_a_watch_that_was_interrupted_is_no_trouble(rankfold: Rankfold, specs: Specs) -> None:
    specs.job(gpus=1, ranks=1)
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: rankfold.job("gpt").get("phase") == "Running")
    assert rankfold.status()["reconciler"] == {"running": True, "message": ""}
    assert not rankfold.status()["source"]["watched"]
    assert "Unwatched" not in rankfold("events")


# ---- what is gone ------------------------------------------------------------------------------


def test_devices_that_were_stopped_show_no_old_error(rankfold: Rankfold, specs: Specs) -> None:
    specs.pool(1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    log = Layout(rankfold.state.path).proxy_file("local/soft-0", ".log")
    with log.open("a") as file:
        file.write("ERROR loop: the channel of rank 0 was lost\n")
    rankfold("stop")
    seen = []

    def ended() -> bool:
        seen.append(rankfold.status()["devices"][0])
        return bool(seen[-1]["state"] != "Stopping")  # its proxy may not have exited yet

    rankfold.until(ended)
    assert seen[-1]["state"] == "Stopped" and not [each for each in seen if "message" in each]
    assert "was lost" not in rankfold("status")


def test_after_everything_was_killed_nothing_is_said_to_run(
    rankfold: Rankfold, specs: Specs, state: State
) -> None:
    specs.job(gpus=2, ranks=2, extra="restart: {maxRestarts: 1}")
    rankfold("apply", "-f", str(specs.folder), "--wait")
    proxies = {name: rankfold.proxy_pid(name) for name in ("local/soft-0", "local/soft-1")}
    for pid in (rankfold.reconciler_pid(), *state.watch.new_processes()):  # it starts no more
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    state.watch.settle()
    job = rankfold.job("gpt")
    assert job["phase"] == "Interrupted"
    condition = next(c for c in job["conditions"] if c["reason"] == "Interrupted")
    assert condition["message"].endswith("a reconciler has to restart it, and none runs")
    for device in rankfold.status()["devices"]:
        assert device["state"] == "Down"
        if device["name"] in proxies:
            told = f"its proxy (process {proxies[device['name']]}) exited"
            assert device["message"].startswith(told)
    shown = rankfold("status")
    assert "Running" not in shown and "Interrupted" in shown and "none runs" in shown
    rankfold("apply", "-f", str(specs.folder), "--wait")
    assert rankfold.job("gpt")["phase"] == "Running"
    assert rankfold.job("gpt")["restarts"] == 1


@pytest.mark.slow
def test_a_stopped_launcher_is_named(rankfold: Rankfold, specs: Specs) -> None:
    specs.job(gpus=1, ranks=1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    launcher = launcher_of(rankfold)
    with stopped(launcher):
        rankfold.until(lambda: f"kill process {launcher}" in str(rankfold.job("gpt")))
