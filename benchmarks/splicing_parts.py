"""The measurements of splicing.py that need more than a program's steps.

Switches, memory, time in the code of some files, resizes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import statistics
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hostile.records import FUNCTION_GET, KERNELS, LAUNCH, MODULE_DATA, MODULE_LOAD

from benchmarks.inprocess import HERE, Place
from rankfold import paths
from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import Native
from support.answers import answering
from support.fleet import MiB, RunningJob
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

ELEMENTS = 1 << 12  # per kernel: it takes longer to run than to submit
CHUNKS_PER_RANK = 64
LAUNCHES = 3000  # per rank: fewer than its ring and its queue hold
LAUNCH_BODY = struct.pack(
    "<QQ6I4IQI", 1, 17, ELEMENTS // 256, 1, 1, 256, 1, 1, 0, 12, 0, 0, DEV_BASE, ELEMENTS
)
WHOLE_SLICE = 10**12


def _load(client: RingClient) -> None:
    """Fill memory with other bytes than the other rank's, so that nothing of it is shared."""
    bytes_ = CHUNKS_PER_RANK * CHUNK
    client.alloc(DEV_BASE, bytes_)
    client.post(FILL, struct.pack("<5QII", 1, DEV_BASE, bytes_, bytes_ // 4, 1, client.rank + 1, 4))
    assert client.call(DEVICE_SYNC) == 0
    client.map[OFF_BULK : OFF_BULK + len(KERNELS)] = KERNELS
    client.post(MODULE_DATA, struct.pack("<QQII", 16, 0, len(KERNELS), 0))
    assert client.call(MODULE_LOAD, struct.pack("<QQII", 16, len(KERNELS), 1, 0)) == 0
    assert client.call(FUNCTION_GET, struct.pack("<QQII", 16, 17, 1, 7) + b"add_one") == 0


def _launches(native: Native, clients: Sequence[RingClient]) -> tuple[float, int]:
    """Seconds for all launches of all ranks, and the number of switches."""
    native.barrier(1, True)  # all launches are queued before the first runs
    settle(native, 1, "cut")
    for client in clients:
        for _ in range(LAUNCHES):
            client.post(LAUNCH, LAUNCH_BODY)
        client.begin(DEVICE_SYNC)
    before = native.status()["switches"]
    start = time.perf_counter()
    native.barrier(1, False)
    while not all(client.answered() for client in clients):
        time.sleep(1e-4)  # gives the device's own threads the interpreter
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
    """Samples the maximum of the memory in use on a device, including memory in images."""

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

    def continue_running(self) -> None:
        """Mark the end of the start phase: later samples are also counted in `later`."""
        self._later = True

    def __enter__(self) -> Peak:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def capacity_for_one(peak_used: int) -> int:
    """The memory of a device for a rank that needs `peak_used` bytes, and an eighth for scratch."""
    return (peak_used + max(peak_used // 8, 8 * MiB) + CHUNK - 1) // CHUNK * CHUNK


# ---- time in the code of some files -----------------------------------------------------------

BARRIER = ("proxy/core/barrier/",)
VERSIONS = (
    "proxy/core/versions/",
    "proxy/core/memory/content.c",
    "proxy/core/queue/effects.c",
    "proxy/core/rank/bounds.c",
)
ORDER = ("proxy/core/order/", "proxy/core/queue/accesses.c", "proxy/core/loop/races.c")
INNERMOST = {"digest_word", "digest_bytes"}
DEFINED = re.compile(r"^(static )?\w[\w ]*[ *](\w+)\(", re.MULTILINE)


def inner(files: Sequence[Path]) -> list[str]:
    """Functions of these files that are only called from within, very often.

    Hooks would take longer than the functions. gcc cannot exclude a name that is part of another's.
    """
    found = [each for path in files for each in DEFINED.findall(path.read_text())]
    outer = {name for static, name in found if not static} - INNERMOST
    static = INNERMOST | {name for static, name in found if static}
    return sorted(name for name in static if not any(name in other for other in outer))


def timed_build(name: str, files: Sequence[str]) -> Path:
    """A build in which calls into these files, and files of these folders, are marked.

    It also contains the hooks.
    """
    sources = [
        path for each in ("proxy", "interpose") for path in (REPOSITORY / each).rglob("*.[ch]")
    ]
    names = {path: str(path.relative_to(REPOSITORY)) for path in sources}
    marked = [path for path in sources if names[path].startswith(tuple(files))]
    # gcc excludes a file whose path contains one of these. The core's headers are found through
    # links in build/…/rooms, so their paths there have no "proxy/core" in them.
    others = sorted(
        names[path].removeprefix("proxy/core/") for path in sources if path not in marked
    )
    unmarked = ",".join(["/usr", *others])
    flags = (
        f"-O2 -g -finstrument-functions -finstrument-functions-exclude-file-list={unmarked} "
        f"-finstrument-functions-exclude-function-list={','.join(inner(marked))}"
    )
    build = REPOSITORY / f"build/bench/{name}-{hashlib.sha256(flags.encode()).hexdigest()[:8]}"
    library = build / "lib/librankfold-proxy.so"
    subprocess.run(
        [
            "make",
            "--no-print-directory",
            "--silent",
            f"BUILD={build}",
            f"CFLAGS={flags}",
            f"--jobs={os.cpu_count()}",
            str(library),
            str(build / "include/proxy.h"),
        ],
        cwd=REPOSITORY,
        check=True,
    )
    usual = paths.native("lib/librankfold-proxy.so").parents[1]
    for path in usual.rglob("*"):
        mine = build / path.relative_to(usual)
        if path.is_file() and path.suffix not in (".o", ".d") and not mine.exists():
            mine.parent.mkdir(parents=True, exist_ok=True)
            mine.symlink_to(path)
    gcc = ["gcc", "-shared", "-fPIC", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra"]
    subprocess.run([*gcc, "-o", build / "hooks.so", HERE / "splicing_hooks.c"], check=True)
    return build


@contextlib.contextmanager
def timed_proxies(sums: Path, name: str, files: Sequence[str]) -> Iterator[None]:
    """Proxies started within this context run the marked build, and add to the file `sums`."""
    build = timed_build(name, files)
    sums.write_bytes(bytes(16))
    mine = {
        "RANKFOLD_NATIVE": str(build),
        "LD_PRELOAD": str(build / "hooks.so"),
        "SPLICING_HOOKS": str(sums),
    }
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
    """Nanoseconds in the marked code, and the number of calls into it."""
    nanoseconds, calls = struct.unpack("<QQ", path.read_bytes())
    return nanoseconds, calls


# ---- resizes --------------------------------------------------------------------------------

RESIZES = 8  # to and fro, per run


@dataclass
class Resizes:
    """Resizes from one of two devices to both and back.

    Called while the job runs; records the seconds of each resize and of its parts.
    """

    devices: tuple[str, str]
    line: str  # in the output: one per mini-batch
    ready: int  # number of lines before the first resize
    seconds: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)

    def __call__(self, job: RunningJob) -> bool:
        if job.output(0).count(self.line) < self.ready:
            return False
        first, second = self.devices
        half = job.world_size // 2
        alone = [first] * job.world_size
        for number in range(RESIZES):
            self._resize(job, alone if number % 2 else [first] * half + [second] * half)
        return True

    def _resize(self, job: RunningJob, placement: list[str]) -> None:
        at = [time.perf_counter()]
        job.stop()
        at.append(time.perf_counter())
        job.detach()
        at.append(time.perf_counter())
        job.place(placement)
        for there in job.devices:
            job.request(there, "wait", states=["running"], within_s=60.0, wait=65.0)
        at.append(time.perf_counter())
        self.seconds.append(at[-1] - at[0])
        for name, begun, over in zip(("stop", "save", "place"), at, at[1:], strict=False):
            self.parts.setdefault(name, []).append(over - begun)
