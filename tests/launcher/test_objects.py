"""Promise: a process's kernel objects are the same after one and after two restores; an object that
cannot be saved is named, and the rank continues."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from rankfold import paths
from rankfold.control import ControlError
from rankfold.interpose.launcher.config import built_libraries
from support import privileges
from support.leaks import State

from .conftest import Launched
from .test_rest import Place, kill, moved, restore, save

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
    "unseen": "interleaved bound_locally machine_check merged member member6 wall_timer "
    "wall_period key_removed undone unlocked tsc_again wall_deleted",
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
    "udp_unread": "has not read the datagrams of its UDP socket on 127.0.0.1, port",
    "key": "has added keys to a keyring",
    "notified": r"gets signals for changes in \S+/watched \(F_NOTIFY\)",
    "undo": r"has changed the semaphore set \d+ with SEM_UNDO",
    "waiting_undo": "is in a call whose effect a checkpoint would lose",
    "locked_later": "MCL_FUTURE",
    "locked_on_fault": "MLOCK_ONFAULT",
    "sealed": "has sealed memory",
    "bound": "a NUMA policy of its own",
    "bound_thread": "a thread with another NUMA policy than the rank's first thread",
    "no_tsc": "PR_SET_TSC",
    "no_new_code": "PR_SET_MDWE",
    "wall_signal": "a timer at an absolute time of the wall clock",
}
# Objects that only the preloaded library sees.
NEED_LIBRARY = "key undo waiting_undo locked_later sealed no_tsc no_new_code wall_signal".split()

RECORD = "/memfd:rankfold-host-state-1"


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
    """Prints what a process finds of each object without a save; nothing if the kernel lacks it."""
    for name in names:
        own = folder / name
        own.mkdir()
        (own / "go").touch()
        done = subprocess.run([program, own, name], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        if done.stdout.startswith("none"):
            privileges.missing(f"this kernel has it not: {name}")
        yield done.stdout


def libraries(names: Iterable[str]) -> list[str]:
    """They take their time to start, and record objects of unseen.c only."""
    unseen = {*KEPT["unseen"].split(), *NEED_LIBRARY}
    return list(built_libraries()) if unseen.intersection(names) else []


def launched_pid(launched: Launched) -> int:
    """The pid of the rank's first process, the launcher's only child, here."""
    listed = Path(f"/proc/{launched.pid}/task/{launched.pid}/children").read_text()
    return int(listed.split()[0])


def launch(place: Place, program: Path, *names: str) -> Launched:
    command = (str(program), str(place.work), *names)
    return place.launch(*command, preload=libraries(names))


@pytest.mark.usual("files-1", "memory-1", "memory-2", "pipes-1", "sockets-1")
@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("kind", KEPT)
def test_kernel_objects_are_restored(
    kind: str, rounds: int, place: Place, program: Path, tmp_path: Path
) -> None:
    names = KEPT[kind].split()
    undisturbed = "".join(found_of(program, names, tmp_path))
    launched = launch(place, program, *names)
    for turn in range(rounds):
        save(launched, place.saved / str(turn))
        kill(launched)
        launched = place.empty(rig=(turn + 1) % 2, preload=libraries(names))
        restore(launched, place.saved / str(turn))
        if kind == "unseen":
            assert RECORD in Path(f"/proc/{launched_pid(launched)}/maps").read_text()
    place.go()
    assert launched.end()["exit_status"] == 0, launched.text("err")
    assert launched.text("out").splitlines() == undisturbed.splitlines()


@pytest.mark.parametrize("name", REFUSED)
def test_objects_that_cannot_be_restored_are_named(name: str, place: Place, program: Path) -> None:
    launched = launch(place, program, name)
    if (lacks := launched.text("out")).startswith("none"):
        launched.end()
        privileges.missing(f"this kernel has it not: {lacks}")
    with launched.client() as client:
        with pytest.raises(ControlError, match=REFUSED[name]) as error:
            save(launched, place.saved)
        assert "process 100" in error.value.message
        client.request("thaw")
    place.go()
    assert launched.end()["exit_status"] == 0, launched.text("err")


NUMPY = """
import os, sys, time
import numpy
square = numpy.arange(512 * 512, dtype=numpy.float64).reshape(512, 512)
before = square @ square  # OpenBLAS maps its buffers
open("ready", "w").close()
while not os.path.exists("go"):
    time.sleep(0.01)
print((square @ square == before).all())
"""


def test_a_rank_that_multiplies_with_numpy_is_saved_and_restored(place: Place) -> None:
    launched = moved(place, place.launch(sys.executable, "-c", NUMPY))
    place.go()
    assert launched.end()["exit_status"] == 0, launched.text("err")
    assert launched.text("out") == "True\n"


def test_each_object_is_in_a_table(program: Path) -> None:
    listed = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    kept = [name for names in KEPT.values() for name in names.split()]
    assert sorted(listed) == sorted([*kept, *REFUSED])


# In the table of docs/checkpoints.md: what there is of each.
DOCUMENTED = {
    "affinity io_priority slack limits": "affinity, I/O priority, timer slack, core filter",
    "tcp_settings listener_settings udp_settings": "options of TCP and UDP sockets",
    "member member6": "multicast memberships, with their sources",
    "wall_timer wall_period": "timerfd at an absolute time of the wall clock",
    "interleaved machine_check merged bound_thread": "NUMA policy of all threads (`numactl`, "
    "`set_mempolicy`), `PR_MCE_KILL`, `PR_SET_MEMORY_MERGE`",
    "bound_locally": "memory that prefers the local node (`mbind`, as OpenBLAS and NumPy do)",
    "bound": "another NUMA policy of some memory (`mbind`)",
    "locked_on_fault": "memory locked page by page (`MLOCK_ONFAULT`)",
    "notified": "a directory with `F_NOTIFY`",
    "udp_unread": "unread datagrams of a UDP socket",
    "key key_removed": "keys (`add_key`, `request_key`)",
    "undo undone waiting_undo": "adjustments of `SEM_UNDO`",
    "locked_later unlocked": "`mlockall(MCL_FUTURE)`",
    "sealed": "sealed memory (`mseal`)",
    "no_tsc tsc_again no_new_code": "`PR_SET_TSC`, `PR_SET_MDWE`",
    "wall_signal wall_deleted": "POSIX timer at an absolute time of the wall clock",
}


def test_each_row_of_the_documented_table_has_objects() -> None:
    text = (paths.REPOSITORY / "docs/checkpoints.md").read_text()
    _, _, section = text.partition("### State that CRIU does not save")
    rows = re.findall(r"^\| (.+?) \|", section.partition("\n## ")[0], re.MULTILINE)
    assert rows == ["state", *DOCUMENTED.values()]
    objects = {name for names in DOCUMENTED for name in names.split()}
    assert objects <= {name for names in KEPT.values() for name in names.split()} | REFUSED.keys()
    source = (SOURCES / "unseen.c").read_text()
    assert set(re.findall(r'^\t\{"(\w+)", make', source, re.MULTILINE)) <= objects
