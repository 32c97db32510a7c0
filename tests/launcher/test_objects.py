"""What a process has of the kernel is the same after it was saved and brought back, once and twice;
what cannot be is named, and the rank runs on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfold.control import ControlError
from support import privileges
from support.leaks import State

from .test_rest import Place, kill, restore, save

SOURCES = Path(__file__).parent / "objects"

KEPT = {
    "timers": "periodic periodic_wall slow once far_off disarmed absolute itimer posix_timer "
    "cpu_timer boot_timer boot_clock",
    "events": "counter semaphore empty_semaphore shared_semaphore signals pidfd pidfd_of_dead "
    "inotify fanotify epoll oneshot edge gone_poll",
    "pipes": "pipe large_pipe half_pipe fifo owned terminal",
    "sockets": "stream datagrams sequence shut carried listener tcp udp netlink raw_socket "
    "tcp_settings listener_settings udp_settings",
    "files": "opened deleted flock posix_lock ofd_lock lease memfd system_v",
    "settings": "personality signal_state priority name dumpable death_signal privileges subreaper "
    "huge_pages barrier filter capabilities robust rseq affinity io_priority slack limits",
    "memory": "advised mapped guarded",
}
REFUSED = {
    "packet_pipe": "packetized mode for pipes",
    "alarm_clock": "Unknown clock type",
    "program": "bpf-prog",
    "ruleset": "landlock-ruleset",
    "mount_context": "fscontext",
    "vsock": "Unknown socket",
    "queue": "a POSIX message queue, which cannot be saved",
    "unopened_queue": r'a POSIX message queue, which cannot be saved: mq_unlink\("/objects"\)',
    "unaccepted": "a connection is waiting to be accepted",
    "tcp_unaccepted": "a connection is waiting to be accepted",
    "inotify_unread": "has not read events of inotify",
    "unread_terminal": "has not read the pending input of a terminal",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("objects") / "objects"
    sources = sorted(map(str, SOURCES.glob("*.c")))
    flags = ["-D_GNU_SOURCE", "-O1", "-Wall", "-Werror", "-pthread"]
    subprocess.run(["gcc", *flags, *sources, "-o", str(built), "-lrt"], check=True)
    return built


@pytest.fixture
def place(state: State) -> Place:
    privileges.need_criu()
    return Place(state.folder)


def found_of(program: Path, names: list[str], folder: Path) -> Iterator[str]:
    """What a process finds of each that nobody saves; nothing of one that the kernel has not."""
    for name in names:
        own = folder / name
        own.mkdir()
        (own / "go").touch()
        done = subprocess.run([program, own, name], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        if done.stdout.startswith("none"):
            privileges.missing(f"this kernel has it not: {name}")
        yield done.stdout


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("kind", KEPT)
def test_what_a_process_has_is_there_again(
    kind: str, rounds: int, place: Place, program: Path, tmp_path: Path
) -> None:
    names = KEPT[kind].split()
    undisturbed = "".join(found_of(program, names, tmp_path))
    launched = place.launch(str(program), str(place.work), *names)
    for turn in range(rounds):
        save(launched, place.saved / str(turn))
        kill(launched)
        launched = place.empty(rig=(turn + 1) % 2)
        restore(launched, place.saved / str(turn))
    place.go()
    assert launched.end()["exit_status"] == 0, launched.text("err")
    assert launched.text("out").splitlines() == undisturbed.splitlines()


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_there_again_is_named(name: str, place: Place, program: Path) -> None:
    launched = place.launch(str(program), str(place.work), name)
    if (lacks := launched.text("out")).startswith("none"):
        launched.end()
        privileges.missing(f"this kernel has it not: {lacks}")
    with launched.client() as client:
        with pytest.raises(ControlError, match=REFUSED[name]) as error:
            save(launched, place.saved)
        assert "process 1000" in error.value.message
        client.ask("thaw")
    place.go()
    assert launched.end()["exit_status"] == 0, launched.text("err")


def test_each_object_is_in_a_table(program: Path) -> None:
    listed = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    kept = [name for names in KEPT.values() for name in names.split()]
    assert sorted(listed) == sorted([*kept, *REFUSED])
