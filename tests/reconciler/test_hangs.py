"""A process that hangs delays only what it serves; nothing is lost or guessed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfold import control, messages, service
from rankfold.reconciler import actions
from rankfold.reconciler.act.inflight import InFlight, Steps
from rankfold.reconciler.observe.prober import Prober
from support.command import Rankfold, Specs
from support.leaks import State

NEVER_S = 3600.0  # who waits for this long has failed the test


# ---- a fleet with a process that hangs -------------------------------------------------------


def stands(pid: int) -> bool:
    """Whether a process is stopped."""
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2] == "T"


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process is stopped while this lasts; nothing else may set it going."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
        assert stands(pid)
    finally:
        os.kill(pid, signal.SIGCONT)


def devices(rankfold: Rankfold, job: str) -> set[str]:
    return set(rankfold.job(job).get("placement", {}).values())


def ranks(rankfold: Rankfold, job: str) -> list[int]:
    return [rank["pid"] for rank in rankfold.job(job)["ranks"]]


def reasons(rankfold: Rankfold, job: str) -> dict[str, str]:
    return {c["reason"]: c["message"] for c in rankfold.job(job).get("conditions", ())}


def device(rankfold: Rankfold, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(d for d in rankfold.status()["devices"] if d["name"] == name)
    return found


def others_change(rankfold: Rankfold) -> None:
    """A job called b is resized, suspended and resumed, and another one runs from start to end."""
    for command, count in (
        (("scale", "b", "--gpus", "2", "--override"), 2),
        (("suspend", "b", "--override"), 0),
        (("resume", "b", "--override"), 2),
        (("scale", "b", "--gpus", "1", "--override"), 1),
    ):
        rankfold(*command)
        rankfold.until(lambda: len(devices(rankfold, "b")) == count)  # noqa: B023
    assert rankfold("run", "--world-size", "1", "--", "echo", "done") == "done\n"


@pytest.mark.slow
def test_a_proxy_that_stops_in_the_middle_of_a_detach_holds_up_its_job_alone(
    rankfold: Rankfold, specs: Specs, state: State
) -> None:
    """Its answer may take two minutes: who waited for it would fail here."""
    specs.job("a", gpus=2, ranks=2)
    specs.job("b", gpus=1, ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    before = ranks(rankfold, "a")
    pids = {name: rankfold.proxy_pid(name) for name in devices(rankfold, "a")}
    (state.path / "hang-detach").touch()
    rankfold("scale", "a", "--gpus", "1", "--override")
    hung = rankfold.until(lambda: [name for name, pid in pids.items() if stands(pid)])[0]
    with stopped(pids[hung]):
        others_change(rankfold)
        rankfold.until(lambda: device(rankfold, hung)["state"] == "Down")
        assert f"kill process {pids[hung]}" in device(rankfold, hung)["message"]
        assert (
            f"the proxy of {hung} is unresponsive since" in reasons(rankfold, "a")["DoesNotAnswer"]
        )
        os.kill(rankfold.reconciler_pid(), signal.SIGKILL)  # the next one finds the same
        others_change(rankfold)
        assert hung in devices(rankfold, "a"), "the reconciler has not seen that it has released it"
    rankfold.until(lambda: len(devices(rankfold, "a")) == 1)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    assert ranks(rankfold, "a") == before
    told = [line.split()[2] for line in rankfold("events", hung).splitlines()]
    assert told.index("DoesNotAnswer") < told.index("AnswersAgain")


@pytest.mark.slow
def test_a_job_is_over_only_when_the_device_that_hangs_has_let_go_of_it(
    rankfold: Rankfold, specs: Specs
) -> None:
    specs.job("a", gpus=2, ranks=2)
    specs.job("b", gpus=1, ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    hung = rankfold.job("a")["placement"]["1"]
    with stopped(rankfold.proxy_pid(hung)):
        rankfold("cancel", "a", "--override")
        rankfold.until(lambda: all(r["state"] == "exited" for r in rankfold.job("a")["ranks"]))
        others_change(rankfold)
        rankfold.until(lambda: hung in reasons(rankfold, "a").get("DoesNotAnswer", ""))
        assert rankfold.job("a")["phase"] == "Running"
        assert device(rankfold, hung)["ranks"] == ["a/1"]
        stop = rankfold.start("stop", "--cancel")
        assert stop.stderr is not None and hung in stop.stderr.readline()
    assert stop.communicate()[1] == "" and stop.returncode == 0
    assert rankfold.job("a")["message"] == "cancelled by hand"


@pytest.mark.slow
def test_a_job_whose_launcher_hangs_is_left_where_it_is_until_it_continues(
    rankfold: Rankfold, specs: Specs
) -> None:
    """Moved, it would stand still: the launcher has its channel and its image."""
    specs.job("a", gpus=2, ranks=2)
    specs.job("b", gpus=1, ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    text = Path(f"/proc/{ranks(rankfold, 'a')[1]}/stat").read_text()
    launcher = int(text[text.rindex(")") + 1 :].split()[1])
    with stopped(launcher):
        rankfold.until(
            lambda: "launcher of rank 1" in reasons(rankfold, "a").get("DoesNotAnswer", "")
        )
        # `status` queries the launcher itself, and may notice before the reconciler does.
        rankfold.until(lambda: "DoesNotAnswer" in rankfold("events", "a"))
        rankfold("scale", "a", "--gpus", "1", "--override")
        others_change(rankfold)
        assert len(devices(rankfold, "a")) == 2
    rankfold.until(lambda: len(devices(rankfold, "a")) == 1)


def test_the_death_of_an_idle_proxy_leaves_an_event(rankfold: Rankfold, specs: Specs) -> None:
    specs.pool(2)
    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: [d["state"] for d in rankfold.status()["devices"]] == ["Ready"] * 2)
        os.kill(rankfold.proxy_pid("local/soft-1"), signal.SIGKILL)
        rankfold.until(lambda: "ProxyEnded" in rankfold("events"))
        rankfold.until(lambda: device(rankfold, "local/soft-1")["state"] == "Ready")
        specs.pool(1)
        rankfold.until(lambda: len(rankfold.status()["devices"]) == 1)
    told = [line.split()[2] for line in rankfold("events", "local/soft-1").splitlines()]
    assert told == ["ProxyStarted", "ProxyEnded", "ProxyStarted", "ProxyStopped"], "by request"


# ---- looks -----------------------------------------------------------------------------------


@contextlib.contextmanager
def speaker(path: Path) -> Iterator[list[int]]:
    """A server that counts how often it is asked for its status."""
    asked = [0]

    def status(_request: service.Request[messages.Status]) -> dict[str, int]:
        asked[0] += 1
        return {"answer": asked[0]}

    server = service.Server(path, {messages.Hello: lambda _: {"pid": 1}, messages.Status: status})
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield asked
    finally:
        server.stop()
        with contextlib.suppress(control.ControlError):
            control.call(path, "hello")  # wakes it
        thread.join()


@pytest.fixture
def prober() -> Iterator[Prober]:
    found = Prober()
    yield found
    found.close()


def test_a_process_that_accepts_and_is_silent_is_waited_for_once(
    tmp_path: Path, prober: Prober
) -> None:
    silent = tmp_path / "silent"
    with contextlib.closing(service.listen(silent)), speaker(tmp_path / "lively") as asked:
        paths = [silent, tmp_path / "lively"]
        found = prober.query(paths, 0.05)
        assert found[silent].status is None
        for turn in (2, 3):
            found = prober.query(paths, NEVER_S)
            assert found[silent].status is None and found[silent].queried > 0
            status = found[tmp_path / "lively"].status
            assert status and status["answer"] == asked[0] >= turn - 1


def test_an_answer_from_before_an_action_does_not_count(tmp_path: Path, prober: Prober) -> None:
    """It was asked for, and something was done to the device before it came."""
    path = tmp_path / "late"
    with contextlib.closing(service.listen(path)) as listener:
        assert prober.query([path], 0.0)[path].status is None
        channel = control.Channel(listener.accept()[0])
        with contextlib.closing(channel):

            def answer(text: str) -> None:
                while (frame := channel.take()) is None:
                    channel.fill()
                channel.send({"id": frame.head.id, "ok": True, "pid": 1, "says": text})

            answer("hello")
            answer("free")
            prober.invalidate([path])
            assert prober.query([path], 0.0)[path].status is None, "that was before"
            answer("busy")
            status = prober.query([path], NEVER_S)[path].status
            assert status and status["says"] == "busy"


def test_a_process_that_hangs_up_or_talks_nonsense_does_not_count_and_is_queried_again(
    tmp_path: Path, prober: Prober
) -> None:
    path = tmp_path / "door"
    with contextlib.closing(service.listen(path)) as listener:
        for nonsense in (b"", b"\xff\xff\xff\xff", b'\x10\0\0\0{"v": 1,"id":[]}'):
            assert prober.query([path], 0.0)[path].status is None
            with contextlib.closing(listener.accept()[0]) as caller:
                caller.sendall(nonsense)
                caller.shutdown(socket.SHUT_WR)
                assert prober.query([path], 0.0)[path].status is None, "asked anew"
    assert prober.query([path], NEVER_S) == {}


def test_a_process_that_takes_no_more_calls_is_not_waited_for(
    tmp_path: Path, prober: Prober
) -> None:
    path = tmp_path / "full"
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(service.listen(path)))
        with contextlib.suppress(BlockingIOError):
            while True:
                sock = stack.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
                sock.setblocking(False)
                sock.connect(str(path))
        assert prober.query([path], 0.0)[path].status is None
        assert prober.query([path], NEVER_S)[path].status is None


# ---- actions concurrent with the loop ----------------------------------------------------------


def test_actions_on_several_subjects_do_not_wait_for_one_another() -> None:
    flights, gate, done = InFlight(), threading.Event(), []

    def hanging() -> Steps:
        results = yield [gate.wait, lambda: 1 / 0]
        done.append(("hung", [type(each) for each in results]))

    def quick() -> Steps:
        done.append(("quick", (yield [lambda: 1, lambda: 2])))
        done.append(("quick", (yield [])))

    def landed() -> Iterator[str]:
        while True:
            select.select([flights.fd], [], [])
            for action, end in flights.collect():
                if end:
                    assert end.error is None
                    yield actions.subject(action)

    assert flights.begin(actions.Release("a"), hanging()) is None
    assert flights.begin(actions.Release("b"), quick()) is None
    with pytest.raises(ValueError, match="an action on a is in progress already"):
        flights.begin(actions.Release("a"), quick())
    ends = landed()
    assert next(ends) == "b" and flights.subjects() == {"a"}
    gate.set()
    assert next(ends) == "a" and flights.subjects() == set()
    assert done == [("quick", [1, 2]), ("quick", []), ("hung", [bool, ZeroDivisionError])]
