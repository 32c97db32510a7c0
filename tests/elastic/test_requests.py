"""A run changes its number of processes, pauses and saves while it runs, when it is asked to. Its
bits stay."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic.conftest import LONG, LONG_FEATURES, Python
from elastic.test_features import HERE, RUN, SCRIPT, WORLD, output
from rankfold.elastic import __main__ as main
from rankfold.elastic import requests
from support.disk import fill, small_disk
from support.leaks import State
from support.patience import scaled

pytestmark = pytest.mark.torch


SCRIPT_OF_FEATURES = (SCRIPT, *LONG_FEATURES)
SPACE = 3 * 4096  # bytes: enough for new processes, not for the state


@contextmanager
def running(
    python: Python,
    folder: Path,
    *options: str,
    script: tuple[object, ...] = SCRIPT_OF_FEATURES,
    command: tuple[object, ...] = (),
) -> Iterator[tuple[Callable[..., dict[str, Any]], list[Any]]]:
    """A function that sends requests to a run, and a list that gets the run's result."""
    ended: list[Any] = []
    command = command or (*RUN, *options, "--state", folder, *script)
    thread = threading.Thread(target=lambda: ended.append(python(*command, **LONG)))
    thread.start()
    limit = time.monotonic() + scaled(60)
    while not requests.runs(folder):
        assert time.monotonic() < limit and not ended, ended
        time.sleep(0.01)
    try:
        yield lambda request, **fields: requests.ask(folder, request=request, **fields), ended
    finally:
        thread.join(scaled(120))


def test_requests_change_no_bit(python: Python, long: dict[str, str], tmp_path: Path) -> None:
    with running(python, tmp_path, "--processes=2") as (ask, ended):
        begun = 0
        for count in (3, 1, 2, 1):
            reply = ask("scale", processes=count)
            assert reply["processes"] == count
            assert begun < reply["step"]
            begun = reply["step"]
            assert ask("status")["processes"] == count
        saved = ask("checkpoint")["step"]
        assert saved > begun
        suspended = ask("suspend")["step"]
        assert suspended > saved
        assert ask("status") == {
            "phase": "suspended",
            "processes": 0,
            "step": suspended,
            "world": WORLD,
            "saved": suspended,
        }
        assert ask("resume", processes=3) == {"processes": 3, "step": suspended}
    assert (ended[0].returncode, ended[0].stderr) == (0, "")
    assert output(tmp_path) == long


def test_the_number_of_threads_stays_on_any_number_of_cores(python: Python, tmp_path: Path) -> None:
    """It decides bits. Rank 1 sets its own from the cores on which it begins. The run, which begins
    with two, continues after a kill where PyTorch would use one."""
    state, begun = tmp_path / "state", tmp_path / "begun"
    script = (HERE / "threads.py", begun)
    code = "import sys, torch; torch.set_num_threads(2); "
    code += "from rankfold.elastic.__main__ import main; sys.exit(main(sys.argv[1:]))"
    options = ("run", "--world", WORLD, "--suspended", "--state", state)
    two = sorted(os.sched_getaffinity(0))[:2]
    with running(python, state, command=("-c", code, *options, *script)) as (ask, ended):
        ask("resume", processes=1, cores=[two[:1]])
        suspended = ask("suspend")["step"]
        ask("cancel")
    assert ended[0].returncode == 128 + 15
    with running(python, state, "--suspended", script=script) as (ask, ended):
        ask("resume", processes=2, cores=[two[:1], two])
    assert (ended[0].returncode, ended[0].stderr) == (0, "")
    logs = {name: text.splitlines() for name, text in output(state).items() if "out" in name}
    assert set(begun.read_text().split()) == {"2"}
    assert 0 < suspended < len(logs["rank-0.out"])
    for lines in logs.values():
        assert len({*lines}) == 1, lines
    assert [lines[0].split()[0] for lines in logs.values()] == ["2", "3", "2"]
    assert logs["rank-0.out"][0] != logs["rank-1.out"][0], "sums do not depend on threads"


def test_a_process_runs_on_its_cores(python: Python, tmp_path: Path) -> None:
    """Cores that the machine does not have leave it free."""
    script = tmp_path / "affinity.py"
    script.write_text(
        "import os, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "print(sorted(os.sched_getaffinity(0)))\n"
    )
    all_cores = sorted(os.sched_getaffinity(0))
    last = all_cores[-1:]
    with running(python, tmp_path, "--suspended", script=(script,)) as (ask, ended):
        with pytest.raises(requests.Refused, match="cores must be a list of numbers for each proc"):
            ask("resume", processes=2, cores=[last])
        for gpus in (["GPU-a", 1], [["GPU-a", 1]], [["", 1]] * 2, [["GPU-a", -1]] * 2):
            with pytest.raises(requests.Refused, match="gpus must be a list of"):
                ask("resume", processes=2, gpus=gpus)
        ask("resume", processes=2, cores=[last, [1023]])
    assert ended[0].returncode == 0
    assert "process 1 runs on all cores, not on 1023: " in ended[0].stderr
    found = [text.strip() for name, text in output(tmp_path).items() if "out" in name]
    assert found == [str(last), str(all_cores), str(all_cores)]


def test_a_run_on_a_full_disk_refuses_changes_and_continues(
    python: Python, long: dict[str, str], tmp_path: Path, state: State
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    with small_disk(state) as disk:
        options = ("--processes=2", f"--logs={logs}")
        with running(python, disk, *options) as (ask, ended):
            first = ask("checkpoint")["step"]
            ballast = fill(disk)
            os.truncate(ballast, ballast.stat().st_size - SPACE)
            for request in ("scale", "checkpoint", "suspend"):
                processes = {"processes": 1} if request == "scale" else {}
                with pytest.raises(requests.Refused, match=r"cannot be saved.*No space left"):
                    ask(request, **processes)
            status = ask("status")
            assert (status["phase"], status["processes"], status["saved"]) == ("running", 2, first)
            ballast.unlink()
            assert ask("checkpoint")["step"] > first
            assert ask("scale", processes=1)["processes"] == 1
    assert ended[0].returncode == 0
    assert "No space left on device; the run continues without it\n" in ended[0].stderr
    assert output(logs) == long


def test_an_interrupted_run_ends_with_all_its_processes(python: Python, tmp_path: Path) -> None:
    """Ctrl-C signals all of them, and shows no traceback."""
    state, pids = tmp_path / "state", tmp_path / "pids"
    script = tmp_path / "sleeps \udcff.py"  # a name that is not UTF-8
    script.write_text(
        "import os, sys, time\n"
        "with open(sys.argv[1], 'a') as file: file.write(f'{os.getpid()} {os.getppid()}\\n')\n"
        "time.sleep(600)\n"
    )
    with running(python, state, "--processes=2", script=(script, pids)) as (_, ended):
        limit = time.monotonic() + scaled(30)
        while not pids.exists() or pids.read_text().count("\n") < 2:
            assert time.monotonic() < limit and not ended, ended
            time.sleep(0.01)
        found = {int(pid) for pid in pids.read_text().split()}
        for pid in sorted(found, reverse=True):  # the parent last
            os.kill(pid, signal.SIGINT)
    assert (ended[0].returncode, ended[0].stdout, ended[0].stderr) == (128 + 2, "", "")
    assert not any(Path(f"/proc/{pid}").exists() for pid in found)
    assert {*output(state).values()} == {""}


def test_requests_that_cannot_be_carried_out_are_refused(python: Python, tmp_path: Path) -> None:
    def refused(*words: Any, **fields: Any) -> str:
        with pytest.raises(requests.Refused) as found:
            ask(*words, **fields)
        return str(found.value)

    with running(python, tmp_path, "--schedule=0:1,1000:2") as (ask, ended):
        assert refused("scale", processes=4) == "processes must be between 1 and 3, not 4"
        assert refused("scale", processes="2") == "processes must be a number, not '2'"
        assert refused("scale") == "scale needs a number of processes"
        assert "follows --schedule until step 1000" in refused("scale", processes=2)
        assert refused("resume") == "the run is not suspended"
        assert refused("grow").startswith("the request is none of status, scale")
        again = python_error(tmp_path)
        assert again == f"--state: a run uses {tmp_path} now"
        ask("suspend")
        assert refused("suspend") == "the run is suspended"
        assert refused("checkpoint") == "the run is suspended"
        ask("cancel")
    assert ended[0].returncode == 128 + 15
    with pytest.raises(requests.Refused, match="no run listens at"):
        requests.ask(tmp_path, request="status")


def python_error(folder: Path) -> str:
    with pytest.raises(main.Unsuitable) as found:
        main.prepare_folder(folder, WORLD)
    return str(found.value)


@pytest.mark.parametrize(
    ("processes", "rank"), [(1, 0), (1, 2), (2, 0), (2, 1), (2, 2), (3, 0), (3, 2)]
)
def test_a_worker_that_hangs_is_named(
    python: Python, tmp_path: Path, processes: int, rank: int
) -> None:
    """It is the one that waits for no other, while they wait for it."""
    state, go = tmp_path / "state", tmp_path / "go"
    script = (HERE / "hangs.py", rank, go)
    with running(python, state, f"--processes={processes}", script=script) as (ask, ended):
        limit = time.monotonic() + scaled(10)
        status = ask("status")
        while time.monotonic() < limit and (status["step"] < 2 or status["quiet_s"] < 0.3):
            time.sleep(0.01)
            status = ask("status")
        go.touch()
        assert (status["phase"], status["step"], status["awaited"]) == ("running", 2, [rank])
    assert (ended[0].returncode, ended[0].stderr) == (0, "")
    assert output(state)["rank-0.out"] == "end\n"


def test_a_request_to_a_run_that_is_killed_is_refused(tmp_path: Path) -> None:
    """Its socket is closed with the request unread, which resets the connection."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / requests.SOCKET))
        listener.listen()

        def end() -> None:
            connection, _ = listener.accept()
            select.select([connection], [], [])
            connection.close()

        thread = threading.Thread(target=end)
        thread.start()
        with pytest.raises(requests.Refused, match="ended before it had answered"):
            requests.ask(tmp_path, request="status")
        thread.join()
