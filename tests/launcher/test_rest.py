"""Ranks that are frozen, written down by CRIU, ended, and restored in another state directory."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfold import criu
from rankfold.control import Client, ControlError
from rankfold.interpose.launcher.config import built_libraries
from support import leaks, privileges
from support.halting_criu import HaltingCriu
from support.leaks import State
from support.patience import scaled

from .conftest import Launched, Rig

PROGRAM = Path(__file__).parent / "resting_program.py"
CALLS = Path(__file__).parent / "waiting_calls.c"
STARTING = Path(__file__).parent / "starting_program.c"
MAIN_THREAD_ENDS = Path(__file__).parent / "main_thread_ends.c"


class Place:
    """Two state directories, and a folder of the program's own."""

    def __init__(self, folder: Path):
        self.work, self.saved = folder / "work", folder / "saved"
        self.rigs = [Rig(folder / name, "require") for name in ("first", "second")]
        for path in (self.work, *(rig.folder for rig in self.rigs)):
            path.mkdir()

    def launch(self, *command: str, **fields: Any) -> Launched:
        """Returns when the program is in the middle of things."""
        hidden = [str(self.rigs[0].folder)]
        launched = self.rigs[0].launch(*command, workdir=str(self.work), hidden=hidden, **fields)
        self.await_ready(launched)
        return launched

    def program(self, name: str, *arguments: str, **fields: Any) -> Launched:
        return self.launch(sys.executable, str(PROGRAM), name, str(self.work), *arguments, **fields)

    def await_ready(self, launched: Launched) -> None:
        while not (self.work / "ready").exists():
            assert not os.path.exists(launched.config["exit_file"]), launched.text("err")
            time.sleep(0.01)

    def empty(self, rig: int = 1, **fields: Any) -> Launched:
        where = self.rigs[rig]
        hidden = [str(where.folder)]
        return where.launch("none", workdir=str(self.work), empty=True, hidden=hidden, **fields)

    def go(self) -> None:
        (self.work / "go").write_text("x")


@pytest.fixture
def place(state: State) -> Place:
    privileges.need_criu()
    return Place(state.folder)


def refusal(client: Client, op: str, **arguments: Any) -> ControlError:
    with pytest.raises(ControlError) as caught:
        client.request(op, **arguments)
    return caught.value


def save(launched: Launched, folder: Path) -> int:
    """Freeze and write down; how many bytes it took."""
    with launched.client() as client:
        client.request("freeze")
        size: int = client.request("snapshot", folder=str(folder))[0]["bytes"]
        assert client.request("status")[0]["state"] == "frozen"
    return size


def kill(launched: Launched) -> None:
    os.kill(launched.pid, signal.SIGKILL)
    assert leaks.has_ended(launched.pid, 20)
    for name in ("socket", "client_socket"):
        os.unlink(launched.config[name])


def restore(launched: Launched, folder: Path) -> None:
    with launched.client() as client:
        client.request("restore", folder=str(folder))
        assert client.request("status")[0]["state"] == "frozen"
        client.request("thaw")


def moved(place: Place, launched: Launched) -> Launched:
    """Written down, killed with -9, and restored by a fresh launcher elsewhere."""
    save(launched, place.saved)
    kill(launched)
    fresh = place.empty()
    restore(fresh, place.saved)
    return fresh


def named(launched: Launched) -> str:
    """The names of its cgroup and its table: others on this machine are not ours to judge."""
    digest = hashlib.sha256(launched.config["socket"].encode()).hexdigest()
    return f"rankfold-{digest[:16]}"


def has_cgroup(launched: Launched) -> bool:
    return any(
        named(launched) in names
        for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
        for _, names, _ in os.walk(root)
    )


def test_a_frozen_rank_stands_still_and_continues(place: Place) -> None:
    launched = place.program("count")
    with launched.client() as client:
        client.request("freeze")
        client.request("freeze")
        before = launched.text("out")
        time.sleep(0.1)
        assert launched.text("out") == before
        assert client.request("status")[0]["state"] == "frozen"
        client.request("thaw")
        client.request("thaw")
        assert client.request("status")[0]["state"] == "running"
        while launched.text("out") == before:
            time.sleep(0.001)
        assert not has_cgroup(launched)
    place.go()
    assert launched.end()["exit_status"] == 0


def test_a_rank_that_is_frozen_again_at_once_stays_in_its_cgroup(place: Place) -> None:
    """A thawed rank leaves its cgroup after the reply, but not if the next request freezes it."""
    launched = place.program("count")
    with launched.client() as client:
        client.request("freeze")
        for number, op in enumerate(("thaw", "freeze")):
            client.channel.send({"id": 70 + number, "op": op})
        replies = 0
        while replies < 2:
            assert client.channel.fill()
            while (frame := client.channel.take()) is not None:
                assert frame.head.error is None
                replies += 1
        before = launched.text("out")
        assert client.request("status")[0]["state"] == "frozen" and has_cgroup(launched)
        assert launched.text("out") == before
        client.request("thaw")
        assert client.request("status")[0]["state"] == "running"
        assert not has_cgroup(launched)
    place.go()
    assert launched.end()["exit_status"] == 0


def test_a_frozen_rank_can_be_killed(place: Place) -> None:
    launched = place.program("count")
    with launched.client() as client:
        client.request("freeze")
        client.request("signal", signum=signal.SIGKILL)
    assert launched.end()["signal"] == signal.SIGKILL
    assert not has_cgroup(launched)


def test_the_next_launcher_removes_the_remains_of_a_killed_one(place: Place) -> None:
    launched = place.program("count")
    with launched.client() as client:
        client.request("freeze")
    assert has_cgroup(launched)
    kill(launched)
    assert launched.rank_pid is not None and leaks.has_ended(launched.rank_pid, 20)
    other = place.rigs[1].launch("sleep", "1000")
    with other.client() as client:
        client.request("freeze")
        assert not has_cgroup(launched)
        client.request("thaw")
        client.request("signal", signum=signal.SIGKILL)
    other.end()


def test_a_running_rank_is_saved_and_continues(place: Place) -> None:
    launched = place.program("everything")
    assert save(launched, place.saved) > 1 << 20
    with launched.client() as client:
        client.request("thaw")
    place.go()
    assert launched.end()["exit_status"] == 0, launched.text("err")
    assert launched.text("out").splitlines() == EVERYTHING


EVERYTHING = [
    "ON ITS WAY",
    "through the child",
    "child 0",
    "[(1,), (2,)]",
    "kept",
    "continued 0, alive True, pid 1000",
]


def test_a_snapshot_says_at_which_start_of_the_machine_it_was_written(place: Place) -> None:
    """Data that was not synced before the machine stops may be lost: an upload compares this."""
    launched = place.program("count")
    save(launched, place.saved)
    about = json.loads((place.saved / "about.json").read_text())
    assert about["boot"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with launched.client() as client:
        client.request("thaw")
    place.go()
    launched.end()


def test_a_rank_is_restored_in_another_state_directory(place: Place) -> None:
    launched = place.program("everything")
    fresh = moved(place, launched)
    with fresh.client() as client:
        pid = client.request("hello")[0]["pid"]
        assert b"everything" in Path(f"/proc/{pid}/cmdline").read_bytes()
    place.go()
    assert fresh.end()["exit_status"] == 0, fresh.text("err")
    assert fresh.text("out").splitlines() == EVERYTHING
    assert (place.work / "appended").read_text() == "before\nafter\n"
    assert not has_cgroup(fresh)


def test_a_restored_rank_is_written_down_again(place: Place) -> None:
    launched = place.program("everything")
    for turn in range(3):
        save(launched, place.saved / str(turn))
        kill(launched)
        launched = place.empty(rig=(turn + 1) % 2)
        restore(launched, place.saved / str(turn))
    place.go()
    assert launched.end()["exit_status"] == 0, launched.text("err")
    assert launched.text("out").splitlines() == EVERYTHING


def test_one_launcher_ends_a_rank_and_takes_it_back(place: Place) -> None:
    launched = place.program("count")
    save(launched, place.saved)
    with launched.client() as client:
        client.request("vacate")
        client.request("vacate")
        assert client.request("status")[0]["state"] == "empty"
        assert launched.rank_pid is not None and leaks.has_ended(launched.rank_pid, 0)
        assert not os.path.exists(launched.config["exit_file"])
    restore(launched, place.saved)
    place.go()
    assert launched.end()["exit_status"] == 0
    numbers = [int(line) for line in launched.text("out").splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_each_line_is_there_once(place: Place) -> None:
    """Data that was written after the snapshot is written again."""
    launched = place.program("count")
    save(launched, place.saved)
    size = len(launched.text("out"))
    with launched.client() as client:
        client.request("thaw")
        while len(launched.text("out")) < size + 100:
            time.sleep(0.001)
        client.request("vacate")
        client.request("restore", folder=str(place.saved))
        assert len(launched.text("out")) == size
        assert json.loads(launched.text("cut")) == {"out": size}, "so that followers understand"
        client.request("thaw")
    place.go()
    launched.end()
    numbers = [int(line) for line in launched.text("out").splitlines()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_restored_rank_does_nothing_before_it_is_thawed(place: Place) -> None:
    launched = place.program("count")
    save(launched, place.saved)
    kill(launched)
    fresh = place.empty()
    with fresh.client() as client:
        client.request("restore", folder=str(place.saved))
        client.request("restore", folder=str(place.saved))
        time.sleep(0.2)
        assert fresh.text("out") == ""
        client.request("thaw")
        while not fresh.text("out"):
            time.sleep(0.001)
        client.request("signal", signum=signal.SIGKILL)
    fresh.end()


def test_a_watchdog_does_not_notice_its_absence(place: Place) -> None:
    launched = place.program("watchdog")
    save(launched, place.saved)
    kill(launched)
    time.sleep(3)
    fresh = place.empty()
    restore(fresh, place.saved)
    place.go()
    assert fresh.end()["exit_status"] == 0
    assert fresh.text("out") == "bitten 0\n"


def waiting(place: Place, seconds: int) -> Launched:
    program = place.saved.parent / "waiting_calls"
    subprocess.run(["gcc", "-O1", "-pthread", str(CALLS), "-o", str(program)], check=True)
    return place.launch(str(program), str(place.work), str(seconds))


def test_calls_that_a_snapshot_interrupts_begin_anew(place: Place) -> None:
    fresh = moved(place, waiting(place, 3600))
    place.go()
    assert fresh.end()["exit_status"] == 0
    assert fresh.text("out") == "end\n"


@pytest.mark.parametrize("saves", [True, False], ids=["saved", "frozen"])
def test_calls_that_a_rest_interrupts_continue_in_a_rank_that_stays(
    place: Place, saves: bool
) -> None:
    launched = waiting(place, 3600)
    for _ in range(3):
        if saves:
            save(launched, place.saved)
            shutil.rmtree(place.saved)
        with launched.client() as client:
            client.request("freeze")
            client.request("thaw")
    place.go()
    assert launched.end()["exit_status"] == 0
    assert launched.text("out") == "end\n"


@pytest.mark.slow
def test_calls_end_though_they_are_interrupted_more_often_than_they_wait(place: Place) -> None:
    """With their timeout, or with EINTR once it is over: none begins anew forever."""
    launched = waiting(place, 2)
    while not leaks.has_ended(launched.pid, 0.2):
        with contextlib.suppress(ControlError, OSError), launched.client() as client:
            client.request("freeze")
            client.request("thaw")
    assert launched.end()["exit_status"] == 0
    *lines, last = launched.text("out").splitlines()
    assert last == "end" and len(lines) == 11
    for line in lines:
        assert re.fullmatch(r"\w+ returned (0|-1), errno (0|4|11|110)", line), line


HANDLER = """
import pathlib, select, signal, sys

def exit_on_signal(*_):
    print("told", flush=True)
    sys.exit(0)

signal.signal(signal.SIGUSR1, exit_on_signal)
pathlib.Path("ready").touch()
select.epoll().poll(3600)
"""


@pytest.mark.parametrize("saves", [True, False], ids=["saved", "frozen"])
def test_a_signal_that_comes_meanwhile_interrupts_anyway(place: Place, saves: bool) -> None:
    """Python's handler runs when the call has returned, with EINTR."""
    launched = place.launch(sys.executable, "-c", HANDLER)
    time.sleep(0.2)  # until it waits
    if saves:
        save(launched, place.saved)
    with launched.client() as client:
        client.request("freeze")
        assert launched.rank_pid
        os.kill(launched.rank_pid, signal.SIGUSR1)
        client.request("thaw")
    assert launched.end()["exit_status"] == 0
    assert launched.text("out") == "told\n"


def starting(place: Place, milliseconds: int) -> Launched:
    program = place.saved.parent / "starting_program"
    subprocess.run(["gcc", "-O1", str(STARTING), "-o", str(program)], check=True)
    return place.launch(str(program), str(place.work), str(milliseconds))


def test_a_process_that_starts_a_program_is_saved_when_it_has_started(place: Place) -> None:
    """A parent in vfork cannot be looked at before its child runs a program: CRIU would wait."""
    launched = starting(place, 200)
    for _ in range(3):
        save(launched, place.saved)
        with launched.client() as client:
            client.request("thaw")
    fresh = moved(place, launched)
    place.go()
    assert fresh.end()["exit_status"] == 0
    assert fresh.text("out") == "end\n"


@pytest.mark.slow
def test_a_process_that_never_starts_its_program_is_named_and_runs_on(place: Place) -> None:
    launched = starting(place, -1)
    with launched.client() as client:
        error = refusal(client, "freeze", timeout=scaled(60))
        assert error.code == "failed" and "(starting_progra)" in error.message
        assert "has not started its program" in error.message
        assert client.request("status")[0]["state"] == "running"
    place.go()
    assert launched.end()["exit_status"] == 0


def test_a_rank_that_continues_in_a_daemon_comes_back(place: Place) -> None:
    launched = place.program("daemon")
    fresh = moved(place, launched)
    place.go()
    assert fresh.end()["exit_status"] == 0
    assert fresh.text("out") == "from the daemon\n"


def test_system_v_shared_memory_comes_along(place: Place) -> None:
    fresh = moved(place, place.program("shared_memory"))
    place.go()
    fresh.end()
    assert fresh.text("out") == "shared True\n"


def has_wall(launched: Launched) -> bool:
    done = subprocess.run([criu.nft(), "list", "tables"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return named(launched) in done.stdout


def test_ranks_continue_talking_to_each_other(place: Place) -> None:
    """The ranks are saved and restored even if one is ready long before the other."""
    ranks = []
    for rank in range(2):
        folder = place.work / str(rank)
        folder.mkdir()
        argv = [sys.executable, str(PROGRAM), "talk", str(folder), str(place.work / "0")]
        ranks.append(place.rigs[0].launch(*argv, rank=rank, workdir=str(folder)))
    for rank in range(2):
        while not (place.work / str(rank) / "ready").exists():
            time.sleep(0.01)
    for launched in ranks:
        with launched.client() as client:
            client.request("freeze")
    for rank, launched in enumerate(ranks):
        save(launched, place.saved / str(rank))
    for launched in ranks:
        with launched.client() as client:
            client.request("thaw")
    time.sleep(0.1)
    for launched in ranks:
        kill(launched)
    fresh = [place.empty(rank=rank) for rank in range(2)]
    for rank, launched in enumerate(fresh):
        with launched.client() as client:
            client.request("restore", folder=str(place.saved / str(rank)))
        time.sleep(0.5)
    assert all(map(has_wall, fresh))
    for launched in fresh:
        with launched.client() as client:
            client.request("thaw")
        time.sleep(0.5)
    (place.work / "0/go").write_text("x")
    for launched in fresh:
        assert launched.end()["exit_status"] == 0, launched.text("err")
        assert launched.text("out") == "end\n"
    assert not any(map(has_wall, fresh))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_connection_to_the_outside_ends(place: Place, host: str) -> None:
    """The process that waits for what comes over it is named; a save alone does not harm it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port = listener.getsockname()[1]
        launched = place.program("listen_to_outside", host, str(port))
        there, _ = listener.accept()
        with there:
            save(launched, place.saved)
            with launched.client() as client:
                client.request("thaw")
            there.sendall(b"still here\n")
            while not launched.text("out").endswith("still here\n"):
                time.sleep(0.01)
            fresh = moved(place, launched)
            assert fresh.end()["exit_status"] == 0
    assert fresh.text("out").endswith("aborted\n")


def test_no_table_outlives_a_launcher(place: Place) -> None:
    launched = place.program("everything")
    save(launched, place.saved)
    kill(launched)
    fresh = place.empty()
    with fresh.client() as client:
        client.request("restore", folder=str(place.saved))
    assert has_wall(fresh)
    kill(fresh)
    while has_wall(fresh):
        time.sleep(0.01)


def test_a_port_that_another_process_has_is_named(place: Place) -> None:
    launched = place.program("everything")
    save(launched, place.saved)
    with place.empty().client() as client:
        error = refusal(client, "restore", folder=str(place.saved))
        assert error.code == "snapshot" and "another process has a port of" in error.message
        client.request("end")
    with launched.client() as client:
        client.request("signal", signum=signal.SIGKILL)
    launched.end()


ELSEWHERE = "198.51.100.77"  # of a block that is kept for documentation


@contextlib.contextmanager
def own_address() -> Iterator[None]:
    """The machine has `ELSEWHERE`, as another name of its loopback."""
    SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFADDR, IFF_UP = 0x8913, 0x8914, 0x8916, 1
    name = b"lo:rankfold"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        address = struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(ELSEWHERE))
        fcntl.ioctl(sock, SIOCSIFADDR, struct.pack("16s16s", name, address))
        try:
            yield
        finally:
            asked = struct.pack("16sH14x", name, 0)
            (flags,) = struct.unpack_from("16xH", fcntl.ioctl(sock, SIOCGIFFLAGS, asked))
            fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH14x", name, flags & ~IFF_UP))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("connected", f"it has a TCP connection from {ELSEWHERE} to {ELSEWHERE}, port "),
        ("receiving", f"it has a UDP socket on {ELSEWHERE}, port "),
    ],
)
def test_an_address_that_another_machine_has_is_named(
    place: Place, program: str, words: str
) -> None:
    """Before anything is started; and once the machine has the address, the rank comes back."""
    with own_address():
        launched = place.program(program, ELSEWHERE)
        save(launched, place.saved / "rank-0")
    kill(launched)
    compared = place.saved.parent / "compared"
    shutil.copytree(place.saved / "rank-0", compared / "rank-0")
    module = "rankfold.interpose.launcher.snapshot.fits"
    fits = [sys.executable, "-m", module, str(compared), "none"]
    done = subprocess.run(fits, capture_output=True, text=True)
    assert done.returncode == 1 and f"rank 0: {words}" in done.stderr
    fresh = place.empty()
    with fresh.client() as client:
        error = refusal(client, "restore", folder=str(place.saved / "rank-0"))
        assert error.code == "snapshot" and words in error.message
        assert "add the address to this one" in error.message
        assert leaks.below(fresh.pid) == set()
        with own_address():
            restore(fresh, place.saved / "rank-0")
            place.go()
            assert fresh.end()["exit_status"] == 0
    assert fresh.text("out") == "still here True\n"


def test_a_channel_and_its_image_come_back(place: Place) -> None:
    launched = place.launch(*place.rigs[0].argv("own_a_channel", str(place.work)))
    with launched.client() as client:
        _, (channel, image) = client.request("claim", epoch=1, device="d0")
        os.pwrite(image, b"of the device", 5 << 30)
        for fd in (channel, image):
            os.close(fd)
    fresh = moved(place, launched)
    with fresh.client() as client:
        assert client.request("status")[0]["channel"]
        _, (channel, image) = client.request("claim", epoch=2, device="d0")
        assert os.pread(image, 13, 5 << 30) == b"of the device"
        assert os.fstat(image).st_blocks * 512 < 1 << 20
        os.pwrite(channel, b"ours", os.pread(channel, 4096, 0).index(b"mine") + 4)
        for fd in (channel, image):
            os.close(fd)
    place.go()
    assert fresh.end()["exit_status"] == 0
    assert fresh.text("out") == "mineours\n"


def test_a_claim_waits_for_the_rank_to_be_restored(place: Place) -> None:
    launched = place.launch(*place.rigs[0].argv("own_a_channel", str(place.work)))
    save(launched, place.saved)
    kill(launched)
    fresh = place.empty()
    with fresh.client() as client:
        client.channel.send({"id": 7, "op": "claim", "epoch": 3, "device": "d0"})
        restore(fresh, place.saved)
        assert client.channel.fill()
        frame = client.channel.take()
        assert frame is not None and frame.head.ok and len(frame.fds) == 2
        frame.close()
    place.go()
    fresh.end()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("io_uring", "io_uring"),
        ("orphan", "no longer a descendant of"),
        ("taken_name", "made, which cannot be saved: that name was removed"),
        ("mptcp", "MPTCP socket"),
        ("namespace", "a uts namespace of its own"),
        ("userfaultfd", "userfaultfd"),
        ("secret", "memfd_secret"),
        ("perf", "a performance counter"),
        ("traced", "is traced by process"),
        ("no_main_thread", "has no main thread any more"),
        ("second_daemon", "is in the session of a process that has exited"),
    ],
)
def test_a_rank_that_cannot_be_saved_is_named_and_continues(
    place: Place, name: str, words: str
) -> None:
    """Early, while it runs, and when it is to be saved."""
    launched = place.program(name)
    if (lacks := launched.text("out")).startswith("none"):
        launched.end()
        privileges.missing(f"this kernel has it not: {lacks}")
    with launched.client() as client:
        (hindrance,) = client.request("examine")[0]["hindrances"]
        assert words in hindrance and hindrance.startswith("process 10") and ": " in hindrance
        assert client.request("status")[0]["state"] == "running"
        client.request("freeze")
        assert refusal(client, "examine").code == "busy"
        error = refusal(client, "snapshot", folder=str(place.saved))
        assert error.code == "undumpable" and words in error.message
        assert "process 10" in error.message and ": " in error.message
        assert client.request("status")[0]["state"] == "frozen"
        client.request("thaw")
    assert not (place.saved / "about.json").exists()
    place.go()
    assert launched.end()["exit_status"] == 0


def test_nothing_is_named_of_a_rank_that_can_be_saved(place: Place) -> None:
    """Threads, TCP, a child, a deleted file; and again when it has been restored."""
    launched = place.program("everything")
    with launched.client() as client:
        assert client.request("examine")[0]["hindrances"] == []
    fresh = moved(place, launched)
    with fresh.client() as client:
        assert client.request("examine")[0]["hindrances"] == []
    place.go()
    assert fresh.end()["exit_status"] == 0


def test_a_unix_socket_to_outside_is_named_and_it_runs_on(place: Place, state: State) -> None:
    path = str(state.folder / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        launched = place.program("unix_stream", path)
        accepted, _ = listener.accept()
        with accepted, launched.client() as client:
            (hindrance,) = client.request("examine")[0]["hindrances"]
            assert f"has a Unix socket ({path}) to a process outside" in hindrance
            client.request("freeze")
            error = refusal(client, "snapshot", folder=str(place.saved))
            assert error.code == "undumpable" and "Unix socket" in error.message
            client.request("thaw")
        place.go()
        assert launched.end()["exit_status"] == 0
    os.unlink(path)
    assert launched.text("out") == "still here\n"


def criu_below(launched: Launched) -> int | None:
    for pid in leaks.below(launched.pid):
        with contextlib.suppress(OSError):
            if b"dump\0-t" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    return None


def test_a_rank_is_ended_when_criu_is_killed_over_it(place: Place) -> None:
    launched = place.program("memory")
    with launched.client() as client, launched.client() as other:
        client.request("freeze")
        client.channel.send({"id": 7, "op": "snapshot", "folder": str(place.saved)})
        while (pid := criu_below(launched)) is None:
            time.sleep(0.001)
        assert other.request("status")[0]["state"] == "frozen"
        assert refusal(other, "thaw").code == "busy"
        os.kill(pid, signal.SIGKILL)
        assert client.channel.fill()
        frame = client.channel.take()
        assert frame is not None and frame.head.error is not None
        assert frame.head.error.code in ("failed", "exited")
        assert "killed" in frame.head.error.message
    end = launched.end()
    assert end["signal"] is not None and "CRIU" in end["error"]
    assert not has_cgroup(launched)


def test_a_rank_that_criu_s_end_leaves_alive_is_ended(
    place: Place, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No one knows what of it is CRIU's."""
    halting = HaltingCriu(state)
    monkeypatch.setenv("PATH", f"{halting.folder}:{os.environ['PATH']}")
    launched = place.program("memory")
    halting.request("dump")
    with launched.client() as client:
        client.request("freeze")
        client.channel.send({"id": 7, "op": "snapshot", "folder": str(place.saved)})
        while not (pid := halting.stopped("dump")):
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
        assert client.channel.fill()
        frame = client.channel.take()
        assert frame is not None and frame.head.error is not None
        assert "the rank is killed" in frame.head.error.message
    end = launched.end()
    assert end["signal"] == signal.SIGKILL and "CRIU was killed" in end["error"]


def test_a_rank_that_dies_of_criu_s_end_says_so(
    place: Place, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is seen before that of who waits for CRIU: the launcher sees both at once."""
    halting = HaltingCriu(state)
    monkeypatch.setenv("PATH", f"{halting.folder}:{os.environ['PATH']}")
    launched = place.program("memory")
    assert launched.rank_pid is not None
    halting.request("dump")
    with launched.client() as client:
        client.request("freeze")
        client.channel.send({"id": 7, "op": "snapshot", "folder": str(place.saved)})
        while not (pid := halting.stopped("dump")):
            time.sleep(0.001)
        os.kill(launched.pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        os.kill(launched.rank_pid, signal.SIGTRAP)  # as CRIU's code does at other moments
        assert leaks.has_ended(launched.rank_pid, 60)
        os.kill(launched.pid, signal.SIGCONT)
        assert client.channel.fill()
        frame = client.channel.take()
        assert frame is not None and frame.head.error is not None
        assert "CRIU was killed" in frame.head.error.message
    end = launched.end()
    assert end["signal"] == signal.SIGTRAP and "CRIU was killed" in end["error"]
    assert not has_cgroup(launched)


@pytest.mark.slow
def test_criu_that_stops_over_a_rank_is_killed_and_the_rank_with_it(
    place: Place, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    halting = HaltingCriu(state)
    monkeypatch.setenv("PATH", f"{halting.folder}:{os.environ['PATH']}")
    monkeypatch.setenv("RANKFOLD_CRIU_STUCK", "2")
    launched = place.program("memory")
    halting.request("dump")
    with launched.client() as client:
        client.request("freeze")
        error = refusal(client, "snapshot", folder=str(place.saved))
        assert "CRIU timed out: no progress for 2 s; it was killed" in error.message
    assert "CRIU timed out: no progress for 2 s" in launched.end()["error"]
    assert not has_cgroup(launched)


@pytest.mark.slow
def test_criu_that_stops_in_a_restore_is_killed_and_another_one_restores(
    place: Place, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    halting = HaltingCriu(state)
    monkeypatch.setenv("PATH", f"{halting.folder}:{os.environ['PATH']}")
    launched = place.program("count")
    save(launched, place.saved)
    kill(launched)
    monkeypatch.setenv("RANKFOLD_CRIU_STUCK", "5")
    fresh = place.empty()
    halting.request("restore")
    with fresh.client() as client:
        error = refusal(client, "restore", folder=str(place.saved))
        assert "CRIU timed out: no progress for 5 s; it was killed" in error.message
        assert client.request("status")[0]["state"] == "empty"
    restore(fresh, place.saved)
    place.go()
    assert fresh.end()["exit_status"] == 0
    assert not has_cgroup(fresh)


def test_an_unfit_snapshot_is_refused_before_anything_starts(place: Place) -> None:
    launched = place.program("count")
    save(launched, place.saved)
    with launched.client() as client:
        client.request("vacate")
        client.request("end")
    fresh = place.empty(world_size=3)
    with fresh.client() as client:
        for change, words in (
            ({}, "of 4"),
            ({"version": 9}, "format 9"),
            ({"world_size": 3, "interposer": "0" * 16}, "interposer"),
            ({"world_size": 3, "image_bytes": 7}, "7 bytes"),
            ({"world_size": 3, "state": 8, "channel": {}}, "saved in format version 8"),
        ):
            other = place.saved.parent / "other"
            shutil.copytree(place.saved, other)
            about = json.loads((other / "about.json").read_text())
            (other / "about.json").write_text(json.dumps(about | change))
            error = refusal(client, "restore", folder=str(other))
            assert error.code == "snapshot" and words in error.message
            shutil.rmtree(other)
        assert refusal(client, "restore", folder=str(place.work)).code == "snapshot"
        assert client.request("status")[0]["state"] == "empty"
        assert leaks.below(fresh.pid) == set()
        client.request("end")
    assert leaks.has_ended(fresh.pid, 20)
    assert not has_cgroup(fresh)


ENDS = {
    "return": (0, "the end\n"),
    "join": (0, "joined 0, 42\nthe end\n"),
    "exit": (7, "the end\n"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_rank_whose_main_thread_has_ended_comes_back(place: Place, how: str) -> None:
    """As it ends, the others, and the whole process, are as without us."""
    program = place.saved.parent / "main_thread_ends"
    subprocess.run(
        ["gcc", "-O1", "-pthread", str(MAIN_THREAD_ENDS), "-o", str(program)], check=True
    )
    preload = [str(each) for each in built_libraries()]
    launched = place.launch(str(program), str(place.work), how, preload=preload)
    save(launched, place.saved / "0")
    with launched.client() as client:
        client.request("thaw")
    save(launched, place.saved / "1")
    kill(launched)
    fresh = place.empty(preload=preload)
    restore(fresh, place.saved / "1")
    place.go()
    status, out = ENDS[how]
    assert fresh.end()["exit_status"] == status, fresh.text("err")
    assert fresh.text("out") == out


def test_a_failed_restore_is_named_and_leaves_nothing(place: Place) -> None:
    launched = place.program("everything")
    save(launched, place.saved)
    kill(launched)
    (place.saved / "criu/files.img").rename(place.saved / "elsewhere")
    fresh = place.empty()
    with fresh.client() as client:
        error = refusal(client, "restore", folder=str(place.saved))
        assert error.code == "snapshot" and "non existing file" in error.message
        assert client.request("status")[0]["state"] == "empty"
        assert leaks.below(fresh.pid) == set()
        (place.saved / "elsewhere").rename(place.saved / "criu/files.img")
        client.request("restore", folder=str(place.saved))
        client.request("thaw")
    place.go()
    assert fresh.end()["exit_status"] == 0
    assert fresh.text("out").splitlines() == EVERYTHING


def test_operations_that_come_at_the_wrong_time_are_refused(place: Place) -> None:
    launched = place.program("count")
    fresh = place.empty()
    with launched.client() as client, fresh.client() as other:
        assert refusal(client, "snapshot", folder=str(place.saved)).code == "running"
        assert refusal(client, "restore", folder=str(place.saved)).code == "busy"
        for op, arguments in (("freeze", {}), ("thaw", {}), ("snapshot", {"folder": "/x"})):
            assert refusal(other, op, **arguments).code == "empty"
        other.request("end")
        client.request("signal", signum=signal.SIGKILL)
    launched.end()


def test_without_namespaces_nothing_is_frozen(plain_rig: Rig) -> None:
    ready = plain_rig.fifo("ready")
    launched = plain_rig.program("wait_forever", str(ready))
    ready.read_text()
    with launched.client() as client:
        error = refusal(client, "freeze", timeout=scaled(60))
        assert error.code == "unavailable" and "CAP_SYS_ADMIN" in error.message
        client.request("vacate")
        assert client.request("status")[0]["state"] == "empty"
        client.request("end")
    assert leaks.has_ended(launched.pid, 20)
