"""The parts of splicing.py that need more than a program's steps: switches, memory, the barrier."""

from __future__ import annotations

import contextlib
import os
import statistics
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hostile.records import FUNCTION_GET, KERNELS, LAUNCH, MODULE_DATA, MODULE_LOAD

from benchmarks.inprocess import HERE, Place
from rankfold import paths
from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import Native
from support.answers import answering
from support.fleet import MiB
from support.ring_client import (
    CHUNK,
    DEV_BASE,
    DEVICE_SYNC,
    FILL,
    OFF_BULK,
    RingClient,
    device,
    leave,
    settle,
)

# ---- switches -------------------------------------------------------------------------------

ELEMENTS = 1 << 8
CHUNKS_PER_RANK = 64
LAUNCHES = 3000  # of each rank: fewer than its ring and its queue hold
LAUNCH_BODY = struct.pack(
    "<QQ6I4IQI", 1, 17, ELEMENTS // 256, 1, 1, 256, 1, 1, 0, 12, 0, 0, DEV_BASE, ELEMENTS
)
WHOLE_SLICE = 10**12


def _load(client: RingClient) -> None:
    """Memory that holds other bytes than the other rank's: nothing of it is shared."""
    bytes_ = CHUNKS_PER_RANK * CHUNK
    client.alloc(DEV_BASE, bytes_)
    client.post(FILL, struct.pack("<5QII", 1, DEV_BASE, bytes_, bytes_ // 4, 1, client.rank + 1, 4))
    assert client.call(DEVICE_SYNC) == 0
    client.map[OFF_BULK : OFF_BULK + len(KERNELS)] = KERNELS
    client.post(MODULE_DATA, struct.pack("<QQII", 16, 0, len(KERNELS), 0))
    assert client.call(MODULE_LOAD, struct.pack("<QQII", 16, len(KERNELS), 1, 0)) == 0
    assert client.call(FUNCTION_GET, struct.pack("<QQII", 16, 17, 1, 7) + b"add_one") == 0


def _launches(native: Native, clients: Sequence[RingClient]) -> tuple[float, int]:
    """Seconds for all launches of all ranks, and how often the device changed hands."""
    native.barrier(1, True)  # all are there before the first runs
    settle(native, 1, "cut")
    for client in clients:
        for _ in range(LAUNCHES):
            client.post(LAUNCH, LAUNCH_BODY)
        client.begin(DEVICE_SYNC)
    before = native.status()["switches"]
    start = time.perf_counter()
    native.barrier(1, False)
    while not all(client.answered() for client in clients):
        time.sleep(1e-4)  # and does not keep the interpreter from the device's own threads
    seconds = time.perf_counter() - start
    return seconds, native.status()["switches"] - before


def _sliced(kernels: Loader, quantum_ns: int, rounds: int) -> list[tuple[float, int]]:
    clients = [RingClient(rank, 2) for rank in range(2)]
    try:
        with (
            device(4 * CHUNKS_PER_RANK * CHUNK, quantum_ns=quantum_ns) as native,
            answering(native, kernels),
        ):
            native.job_open(1, 1, 0, 1, [0, 0], -1)
            for client in clients:
                native.rank_attach(1, client.rank, client.fd, client.image)
                _load(client)
            _launches(native, clients)
            found = [_launches(native, clients) for _ in range(rounds)]
            leave(native)
            return found
    finally:
        for client in clients:
            client.close()


def switch_us(kernels: Loader, rounds: int) -> tuple[float, str]:
    """Microseconds that a switch between two resident ranks takes, and how that was found."""
    often = _sliced(kernels, 1, rounds)
    never = _sliced(kernels, WHOLE_SLICE, rounds)
    beyond = statistics.median(s for s, _ in often) - statistics.median(s for s, _ in never)
    switches = statistics.median(n for _, n in often) - statistics.median(n for _, n in never)
    return 1e6 * beyond / switches, (
        f"{switches:.0f} switches among {2 * LAUNCHES} launches took {1e3 * beyond:.2f} ms more "
        f"than the launches alone; medians of {rounds} rounds; {CHUNKS_PER_RANK} chunks a rank"
    )


# ---- memory ---------------------------------------------------------------------------------


class Peak(threading.Thread):
    """The most memory that was in use on a device at any time, with what of it lay in images."""

    EVERY_S = 0.004

    def __init__(self, where: Place, device: int):
        super().__init__()
        self.where, self.device = where, device
        self.used = self.held = self.later = self.looks = 0
        self._later = False
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self.EVERY_S):
            status = self.where.status(self.device)
            self.used = max(self.used, status["used"])
            held = status["used"] + status["swap"]
            self.held = max(self.held, held)
            self.later = max(self.later, held if self._later else 0)
            self.looks += 1

    def go_on(self) -> None:
        """What is looked at from now on is no beginning any more."""
        self._later = True

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def room_for_one(peak_used: int) -> int:
    """The bytes of a device for a rank that needs so many, and an eighth for scratch."""
    return (peak_used + max(peak_used // 8, 8 * MiB) + CHUNK - 1) // CHUNK * CHUNK


# ---- the barrier ----------------------------------------------------------------------------

TIMED = REPOSITORY / "build/bench/tandem"
NOT_TIMED = (
    "core/loop", "core/queue", "core/rank", "core/memory", "core/collective", "core/versions",
    "core/peer", "core/turn", "core/clock", "proxy/hal", "interpose", "/usr",
)  # fmt: skip


def timed_build() -> Path:
    """A build in which calls into the barrier's files are marked; the hooks lie in it."""
    marked = ",".join(NOT_TIMED)
    flags = f"-O2 -g -finstrument-functions -finstrument-functions-exclude-file-list={marked}"
    library = TIMED / "lib/librankfold-proxy.so"
    subprocess.run(
        ["make", "--no-print-directory", "--silent", f"BUILD={TIMED}", f"CFLAGS={flags}",
         f"--jobs={os.cpu_count()}", str(library), str(TIMED / "include/proxy.h")],
        cwd=REPOSITORY, check=True,
    )  # fmt: skip
    usual = paths.native("lib/librankfold-proxy.so").parents[1]
    for path in usual.rglob("*"):
        mine = TIMED / path.relative_to(usual)
        if path.is_file() and path.suffix not in (".o", ".d") and not mine.exists():
            mine.parent.mkdir(parents=True, exist_ok=True)
            mine.symlink_to(path)
    gcc = ["gcc", "-shared", "-fPIC", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra"]
    subprocess.run([*gcc, "-o", TIMED / "hooks.so", HERE / "splicing_hooks.c"], check=True)
    return TIMED


@contextlib.contextmanager
def timed_proxies(sums: Path) -> Iterator[None]:
    """Proxies that are started meanwhile run the marked build, and add to this file."""
    sums.write_bytes(bytes(16))
    mine = {
        "RANKFOLD_NATIVE": str(timed_build()), "LD_PRELOAD": str(TIMED / "hooks.so"),
        "SPLICING_HOOKS": str(sums),
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in mine}
    os.environ.update(mine)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def sums_of(path: Path) -> tuple[int, int]:
    """Nanoseconds in the barrier's code, and calls into it."""
    nanoseconds, calls = struct.unpack("<QQ", path.read_bytes())
    return nanoseconds, calls
