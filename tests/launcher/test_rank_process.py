"""A rank's life: how it is started, what it sees, and what remains when it ends."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import re
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from rankfold import settings
from rankfold.control import Client, ControlError
from support import leaks, privileges
from support.leaks import State

from .conftest import Launched, Rig

PTRACE_SEIZE = 0x4206


def refusal(client: Client, op: str, **arguments: Any) -> str:
    with pytest.raises(ControlError) as caught:
        client.request(op, **arguments)
    return caught.value.code


def listening(socket: str) -> Client:
    """A client of a launcher that is starting."""
    while True:
        with contextlib.suppress(ControlError):
            return Client(socket)
        time.sleep(0.001)


def trace(pid: int) -> None:
    """From now on the process stays until we have waited for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    assert libc.ptrace(PTRACE_SEIZE, pid, None, None) == 0, os.strerror(ctypes.get_errno())


def child_of(pid: int | None, name: str) -> int:
    """The child of a process that runs this program, once there is one."""
    while True:
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                found, _, rest = path.read_text().partition(") ")
                if found.endswith(f"({name}") and int(rest.split()[1]) == pid:
                    return int(path.parent.name)
        time.sleep(0.001)


@pytest.mark.parametrize("status", [0, 3, 255])
def test_exit_status_is_recorded(rig: Rig, status: int) -> None:
    end = rig.launch("sh", "-c", f"exit {status}").end()
    assert (end["exit_status"], end["signal"], end["error"]) == (status, None, None)
    assert end["time"] > 1.7e9


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_death_by_signal_is_recorded(rig: Rig, signum: signal.Signals) -> None:
    end = rig.launch("sh", "-c", f"kill -{signum.value} $$").end()
    assert (end["exit_status"], end["signal"]) == (-signum, signum)


def test_nothing_but_logs_and_exit_file_remains(rig: Rig) -> None:
    launched = rig.launch("true")
    launched.end()
    names = {path.name for path in rig.folder.iterdir()} - {"state"}
    assert names == {"0.json", "logs", "rank-0.exit"}
    assert launched.text("launcher.log") == ""


def test_environment_and_namespaces_of_a_rank(rig: Rig) -> None:
    path = rig.folder / "facts"
    launched = rig.program("facts", str(path), rank=2, env={"MINE": "yes", "RANK": "9"})
    assert launched.end()["exit_status"] == 0, launched.text("err")
    seen = json.loads(path.read_text())
    env = seen["env"]
    assert seen["cwd"] == str(rig.folder)
    assert seen["session"] == seen["pid"]
    assert (seen["stdin"], seen["open"]) == ("/dev/null", [0, 1, 2])
    assert (env["RANK"], env["WORLD_SIZE"], env["MINE"]) == ("2", "4", "yes")
    assert (env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == ("2", "4")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"]) == ("127.0.0.1", "29500")
    apart = rig.namespaces == "require"
    door = "/run/rankfold/launcher" if apart else launched.config["client_socket"]
    assert env["RANKFOLD_LAUNCHER"] == door
    assert settings.SETTINGS.items() <= env.items()
    if rig.namespaces == "require":
        assert seen["pid"] == 3000
        assert seen["processes"] == [1, 3000]


def test_a_rank_starts_with_no_signal_ignored_or_blocked(rig: Rig) -> None:
    def hinder() -> None:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1, signal.SIGCONT))

    config = rig.config("grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    done = rig.run(config, before=hinder)
    assert done.returncode == 0, done.stderr
    launched = Launched(json.loads(done.stdout)["pid"], None, config)
    launched.end()
    masks = dict(line.split(":") for line in launched.text("out").splitlines())
    # 32 and 33 are glibc's own; its posix_spawn, and so make, starts programs with them ignored.
    theirs = {name: int(mask, 16) & ~(0b11 << 31) for name, mask in masks.items()}
    assert theirs == {"SigBlk": 0, "SigIgn": 0}


def test_two_ranks_may_have_any_pids_in_their_namespaces(state: State) -> None:
    privileges.need_namespaces()
    rig = Rig(state.folder, "require")
    for rank in (0, 3, 40):
        launched = rig.launch("sh", "-c", "echo $$", rank=rank, world_size=64)
        launched.end()
        assert int(launched.text("out")) % 1000 == 0
        assert rank > 30 or int(launched.text("out")) == 1000 * (rank + 1)


def test_pids_are_those_the_outside_sees(rig: Rig) -> None:
    ready = rig.fifo("ready")
    launched = rig.program("wait_forever", str(ready))
    ready.read_text()
    assert launched.rank_pid is not None
    assert b"rank_program" in Path(f"/proc/{launched.rank_pid}/cmdline").read_bytes()
    with launched.client() as client:
        reply, _ = client.request("hello")
        assert (reply["pid"], reply["rank"], reply["job"]) == (launched.rank_pid, 0, "test")
        assert reply["namespaced"] == (rig.namespaces == "require")
        assert client.request("status")[0]["state"] == "running"
        client.request("signal", signum=signal.SIGTERM)
    assert launched.end()["signal"] == signal.SIGTERM


def test_output_is_appended_and_private(rig: Rig) -> None:
    for _ in range(2):
        launched = rig.launch("sh", "-c", "echo line; echo trouble >&2")
        launched.end()
        Path(launched.config["exit_file"]).unlink()
    assert (launched.text("out"), launched.text("err")) == ("line\n" * 2, "trouble\n" * 2)
    for path in Path(launched.config["logs"]).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_commands_that_cannot_start(rig: Rig) -> None:
    script = rig.folder / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    (rig.folder / "text").write_text("not a program")
    (rig.folder / "text").chmod(0o755)
    (rig.folder / "data").write_text("")
    cases = [
        (["no-such-command"], {}, 127, "No such file"),
        (["./no-such-file"], {}, 127, "No such file"),
        (["./script"], {}, 127, "interpreter"),
        (["./data"], {}, 126, "Permission denied"),
        (["./text"], {}, 126, "neither a program nor a script"),
        (["true"], {"workdir": f"{rig.folder}/gone"}, 127, "working directory"),
    ]
    for rank, (command, fields, status, words) in enumerate(cases):
        launched = rig.launch(*command, rank=rank, world_size=8, **fields)
        end = launched.end()
        assert (launched.rank_pid, end["exit_status"]) == (None, status)
        assert words in end["error"] and command[0] in end["error"]
        assert launched.text("err") == f"rankfold: {end['error']}\n"


def test_orphans_are_reaped_while_the_rank_runs(rig: Rig) -> None:
    assert rig.program("orphan_is_reaped").end()["exit_status"] == 0


def test_processes_that_outlive_the_rank_are_killed(rig: Rig, state: State) -> None:
    pid_file = rig.folder / "daemon"
    launched = rig.program("leave_orphan", str(pid_file))
    end = launched.end()
    assert end["exit_status"] == 0
    assert int(pid_file.read_text()) > 1
    assert state.watch.new_processes() == set()
    (killed,) = end["killed"]
    assert re.fullmatch(r"sleep 1000 \(pid \d+\)", killed)
    assert killed in launched.text("err")


def test_a_job_that_a_shell_leaves_in_the_background_is_killed(rig: Rig) -> None:
    """It was forked, and may not have started its program when the shell exits."""
    end = rig.launch("sh", "-c", "sleep 1000 & exit 0").end()
    assert end["exit_status"] == 0
    assert len(end["killed"]) == 1 and end["killed"][0].startswith("sleep 1000 (pid ")


def test_a_helper_that_exits_with_its_rank_is_not_named(rig: Rig) -> None:
    launched = rig.program("leave_helper")
    assert launched.end()["killed"] == []
    assert launched.text("err") == ""


@pytest.mark.parametrize("status", [0, 3])
def test_forked_processes_that_used_the_device_are_killed(rig: Rig, status: int) -> None:
    """Workers of a data loader, say; where the rank failed, its last lines stay the program's."""
    launched = rig.program("leave_fork_behind", str(status))
    end = launched.end()
    assert end["exit_status"] == status
    assert len(end["killed"]) == 1 and "leave_fork_behind" in end["killed"][0]
    assert ("still running" in launched.text("err")) == (status == 0)


@pytest.mark.parametrize("how", ["once", "twice", "early"])
def test_a_rank_continues_in_its_daemon(rig: Rig, how: str) -> None:
    replies, stop = rig.fifo("answers"), rig.fifo("end")
    launched = rig.program("daemon", str(replies), str(stop), how)
    assert json.loads(replies.read_text())[0] == 0
    with launched.client() as client:
        while (pid := client.request("hello")[0]["pid"]) == launched.rank_pid:
            time.sleep(0.001)
        assert b"daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert client.request("status")[0]["state"] == "running"
    stop.write_text("")
    end = launched.end()
    assert (end["exit_status"], end["killed"]) == (7, [])
    assert "the rank continues in" in launched.text("err")


@pytest.mark.slow
def test_a_killed_process_that_stays_is_named(rig: Rig) -> None:
    """A tracer outside of the rank has not let go of it."""
    go = rig.fifo("go")
    launched = rig.launch("sh", "-c", f'sleep 1000 & read word <"{go}"; exit 0')
    pid = child_of(launched.rank_pid, "sleep")
    trace(pid)
    go.write_text("go")
    try:
        while "has not yet released sleep" not in launched.text("err"):
            time.sleep(0.01)
        with launched.client() as client:
            assert client.request("status")[0]["exit_status"] is None
            assert refusal(client, "signal", signum=9) == "exited"
    finally:
        os.waitpid(pid, 0)  # the tracer's look lets go of it
    assert launched.end()["exit_status"] == 0


def test_a_signal_reaches_rank_and_children(rig: Rig, state: State) -> None:
    ready = rig.fifo("ready")
    launched = rig.program("family", str(ready))
    ready.read_text()
    family = state.watch.new_processes() - {launched.pid}
    assert len(family) == 3
    with launched.client() as client:
        client.request("signal", signum=signal.SIGKILL)
    assert all(leaks.has_ended(pid, 20) for pid in family)
    assert launched.end()["signal"] == signal.SIGKILL


def test_killing_the_launcher_kills_the_rank(rig: Rig) -> None:
    ready = rig.fifo("ready")
    launched = rig.program("wait_forever", str(ready))
    ready.read_text()
    assert launched.rank_pid is not None
    os.kill(launched.pid, signal.SIGKILL)
    assert leaks.has_ended(launched.rank_pid, 20)
    assert not Path(launched.config["exit_file"]).exists()
    for name in ("socket", "client_socket"):
        os.unlink(launched.config[name])  # -9 leaves them; the next launcher replaces them


def test_terminal_signals_do_not_end_the_launcher(rig: Rig) -> None:
    ready = rig.fifo("ready")
    launched = rig.program("wait_forever", str(ready))
    ready.read_text()
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(launched.pid, signum)
    with launched.client() as client:
        assert client.request("status")[0]["state"] == "running"
        client.request("signal", signum=signal.SIGKILL)
    launched.end()


def test_a_passed_lock_is_the_launchers_not_the_ranks(rig: Rig) -> None:
    def lock() -> int:
        fd = os.open(rig.folder / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd

    ready, path = rig.fifo("ready"), rig.folder / "facts"
    command = f'cat "{ready}"; exec "$0" "$@"'
    config = rig.config("sh", "-c", command, *rig.argv("facts", str(path)))
    held = lock()
    done = rig.run(config, pass_fds=(held,))
    os.close(held)
    assert done.returncode == 0, done.stderr
    with pytest.raises(BlockingIOError):
        lock()
    ready.write_text("go")
    assert leaks.has_ended(json.loads(done.stdout)["pid"], 20)
    os.close(lock())
    assert json.loads(path.read_text())["open"] == [0, 1, 2]


def test_a_caller_that_dies_in_mid_start_harms_no_rank(rig: Rig) -> None:
    """The rank's start is held up at its log files while the caller is killed."""
    (rig.folder / "logs").mkdir()
    out, err = rig.fifo("logs/rank-0.out"), rig.fifo("logs/rank-0.err")
    config = rig.config("sh", "-c", "echo started; exit 7")
    argv = rig.launcher_argv(config)
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as caller, open(out) as rank_out:
        caller.kill()
        caller.wait()
        assert err.read_text() == ""
        assert rank_out.read() == "started\n"
    while not (path := Path(config["exit_file"])).exists():
        time.sleep(0.001)
    assert json.loads(path.read_text())["exit_status"] == 7


def test_a_rank_whose_start_hangs_can_be_killed(rig: Rig) -> None:
    """Here no process reads the pipe that is its log; it may be a file system that does not
    answer."""
    (rig.folder / "logs").mkdir()
    rig.fifo("logs/rank-0.out")
    config = rig.config("true")
    with subprocess.Popen(rig.launcher_argv(config), stdout=subprocess.PIPE) as caller:
        with listening(config["socket"]) as client:
            assert client.request("status")[0]["state"] == "running"
            assert refusal(client, "vacate") == "busy"
            client.request("signal", signum=signal.SIGKILL)
        assert caller.wait() == 0 and caller.stdout is not None
        told = json.loads(caller.stdout.read())
    assert told["rank_pid"] is None
    end = Launched(told["pid"], None, config).end()
    assert (end["exit_status"], end["error"]) == (126, "true was killed before it started")


def test_a_rank_has_one_launcher_and_one_end(plain_rig: Rig) -> None:
    ready = plain_rig.fifo("ready")
    launched = plain_rig.program("wait_forever", str(ready))
    ready.read_text()
    again = plain_rig.run(launched.config)
    assert again.returncode == 1 and "has a launcher already" in again.stderr
    with launched.client() as client:
        client.request("signal", signum=signal.SIGKILL)
    launched.end()
    again = plain_rig.run(launched.config)
    assert again.returncode == 1 and "has ended already" in again.stderr


def _drop_admin() -> None:
    """Take CAP_SYS_ADMIN away for good: an unprivileged machine, as far as namespaces go."""
    ctypes.CDLL(None).prctl(24, 21, 0, 0, 0)


def test_without_privileges_it_is_a_plain_subreaper(state: State) -> None:
    auto = Rig(state.folder, "auto")
    done = auto.run(auto.config("sh", "-c", "echo $$; exit 5"), before=_drop_admin)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert leaks.has_ended(report["pid"], 20)
    assert json.loads((state.folder / "rank-0.exit").read_text())["exit_status"] == 5
    assert int((state.folder / "logs/rank-0.out").read_text()) == report["rank_pid"]


def test_required_namespaces_are_not_given_up_silently(state: State) -> None:
    rig = Rig(state.folder, "require")
    done = rig.run(rig.config("true"), before=_drop_admin)
    assert done.returncode == 1 and "CAP_SYS_ADMIN" in done.stderr
    assert not (state.folder / "rank-0.exit").exists()


def test_bad_requests_are_refused_and_harm_nothing(plain_rig: Rig) -> None:
    ready = plain_rig.fifo("ready")
    launched = plain_rig.program("wait_forever", str(ready))
    ready.read_text()

    with launched.client() as client:
        assert refusal(client, "signal", signum=1000) == "argument"
        assert refusal(client, "signal") == "argument"
        assert refusal(client, "claim", epoch=0, device="d") == "argument"
        assert refusal(client, "claim", epoch="1", device="d") == "argument"
        assert refusal(client, "claim", epoch=2**70, device="d") == "argument"
        assert refusal(client, "claim", epoch=1, device="d", nonsense=1) == "argument"
        assert refusal(client, "nonsense") == "unknown_op"
        client.request("signal", signum=signal.SIGKILL)
    launched.end()
