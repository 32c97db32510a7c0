"""What does a checkpoint of a job cost: bytes in the store, time that the job stands still, and the
way into another state directory?

Question. Replicas hold the same parameters and moments, and host memory hardly changes from one
checkpoint to the next: is each stored once? How long does the job stand still for it, and how long
does a move through the store take, against copying the same bytes there and back?

Method. Launchers and proxies without a reconciler; each job is saved some steps after its start and
again a hundred steps later, in the same way: barrier, save, freeze, snapshots (all ranks at once),
thaw, withdraw. It goes on to its end. Then the second checkpoint is fetched into another state
directory, restored under fresh launchers, and goes on there; what it prints must be what the first
one printed from there on.
  device_…     bytes of a store that is given the images alone, over the bytes of one copy of each
               distinct live buffer: those are counted by the reader of images that the tests have,
               and compared by SHA-256
  host_…       new bytes of the second checkpoint of all else, over those of the first
  still_…      seconds from the cut to the withdrawn barrier, less 2.5 s per GiB of host pages
  migration_…  seconds of upload and fetch, over those of copying the snapshots' bytes into the
               store's file system and out again with BLAKE3, twice, and a second

Noise. Disks that others use. Each figure is of one run: bytes are exact, times are not.

Estimate before measuring. Tables and state add a few hundred bytes per buffer to the device's
megabytes: 1.01. Of host memory 2 % of the pages change, and they are compressed with neighbours
that do not: 3 %, and the ring's content beside. A hundred processes' start-ups are what a small
job's move consists of: the second of the target is most of it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cuda
import msgspec
from blake3 import blake3

from benchmarks import report
from benchmarks.inprocess import GPT, HERE, KERNEL_CACHE
from benchmarks.report import Figure
from rankfold import criu
from rankfold.checkpoint import store as stores
from rankfold.checkpoint.background import State as Told
from rankfold.checkpoint.background import Task
from rankfold.checkpoint.snapshot import Snapshot
from rankfold.checkpoint.store import Store
from rankfold.control import call
from support.contents import Image
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State, Watch

LINE = "step "  # of output: one a mini-batch
FIRST, BETWEEN, REST = 5, 100, 10  # steps before, between and behind the checkpoints
MEMORY = 4096 * MiB
STILL_S, STILL_S_PER_GIB = 0.3, 2.5


@dataclass(frozen=True)
class Program:
    """`before` and `behind` the number of steps."""

    source: Path
    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()

    def command(self, steps: int) -> list[str]:
        return [str(cuda.build(self.source)), *self.before, str(steps), *self.behind]


PROGRAMS = {
    "gpt": Program(GPT, before=("--steps",)),
    "mlp": Program(HERE / "splicing_mlp.cu", behind=("64", "64", "256", "256", "16")),
    "conv": Program(HERE / "splicing_conv.cu"),
}


@dataclass(frozen=True)
class Effort:
    programs: tuple[str, ...]
    ranks: tuple[int, ...]
    between: int


USUAL = Effort(("gpt", "mlp", "conv"), (4, 8), BETWEEN)
QUICK = Effort(("mlp",), (2,), 10)


@dataclass
class Measured:
    """One program with n ranks. Bytes and seconds."""

    device: int = 0
    distinct: int = 0
    host: list[int] = field(default_factory=list)  # of each checkpoint, what was new
    pages: int = 0  # bytes of host memory
    seconds: dict[str, float] = field(default_factory=dict)
    copied: float = 0.0  # seconds


# ---- a job that is saved -----------------------------------------------------------------------


def each(work: Callable[[int], Any], ranks: int) -> list[Any]:
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(work, range(ranks)))


@contextlib.contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    seconds[name] = time.monotonic() - begun


def saved(job: RunningJob, folder: Path, seconds: dict[str, float]) -> None:
    """A checkpoint's snapshots, while the job stands at a cut."""

    def ask(op: str, **arguments: Any) -> None:
        each(lambda rank: call(job.launcher(rank), op, timeout=120, **arguments), job.world_size)

    with timed(seconds, "barrier"):
        job.stop()
    with timed(seconds, "still"):
        job.save()
        ask("freeze")
        each(
            lambda rank: call(job.launcher(rank), "snapshot", timeout=300,
                              folder=str(folder / f"rank-{rank}")),
            job.world_size,
        )  # fmt: skip
        ask("thaw")
        job.go_on()


def task(folder: Path, url: str, ranks: int, **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    told = Task(url, "bench", "bench", 1, list(range(ranks)))
    told = msgspec.structs.replace(told, **more)
    (folder / "task.json").write_bytes(msgspec.json.encode(told))


def work(module: str, folder: Path) -> Told:
    """Uploads or fetches, to its end."""
    command = [sys.executable, "-m", f"rankfold.checkpoint.{module}", str(folder)]
    subprocess.run(command, check=True)
    subprocess.run(["flock", str(folder / "lock"), "true"], check=True)
    told = msgspec.json.decode((folder / "state.json").read_bytes(), type=Told)
    if told.state != "done":
        raise RuntimeError(f"{module}: {told.error}")
    return told


# ---- bytes -------------------------------------------------------------------------------------


def part_of(folder: Path, target: Path, image: bool) -> Path:
    """A snapshot with nothing but its image, or with everything else."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and (str(name) == "about.json" or (str(name) == "image") == image):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target / name)
    return target


def new_bytes(store: Store, folders: list[Path]) -> int:
    """What a save of these snapshots adds to a store."""
    before = sum(store.data("bench").values())
    save = store.begin("bench", 1)
    for rank, folder in enumerate(folders):
        Snapshot(folder).give(save, rank)
    save.finish()
    return sum(store.data("bench").values()) - before


def bare(name: str) -> Store:
    store = stores.open(f"memory://{name}-{os.urandom(4).hex()}", "bench")
    store.take("bench", 1)
    return store


def distinct(folders: list[Path]) -> int:
    """Bytes of one copy of each distinct live buffer of all ranks."""
    found: dict[bytes, int] = {}
    for folder in folders:
        with (folder / "image").open("rb") as file:
            image = Image(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            for address, size in image.buffers:
                found[hashlib.sha256(image.read(address, size)).digest()] = size
    return sum(found.values())


def copied(folders: list[Path], target: Path) -> float:
    """Seconds for the snapshots' bytes there and back, each time with BLAKE3."""
    begun = time.monotonic()
    for n, folder in enumerate(folders):
        for m, path in enumerate(path for path in folder.rglob("*") if path.is_file()):
            copy(path, target / f"{n}-{m}")
            copy(target / f"{n}-{m}", target / f"{n}-{m}-back")
    return time.monotonic() - begun


def copy(source: Path, target: Path) -> None:
    """What is not a hole."""
    digest, at = blake3(), 0
    with source.open("rb") as reads, target.open("xb") as writes:
        size = os.fstat(reads.fileno()).st_size
        writes.truncate(size)
        while at < size:
            with contextlib.suppress(OSError):
                at = os.lseek(reads.fileno(), at, os.SEEK_DATA)
                end = os.lseek(reads.fileno(), at, os.SEEK_HOLE)
                while at < end:
                    data = os.pread(reads.fileno(), min(end - at, 4 * MiB), at)
                    digest.update(data)
                    at += os.pwrite(writes.fileno(), data, at)
                continue
            break
        writes.flush()
        os.fsync(writes.fileno())


# ---- one measurement ---------------------------------------------------------------------------


def fresh(fleet: Fleet, job: RunningJob) -> RunningJob:
    """The same job elsewhere, its launchers empty."""
    folder = fleet.state.path / "jobs" / job.name
    (folder / "logs").mkdir(parents=True)
    made = RunningJob(fleet, job.name, job.world_size, folder)
    fleet.jobs.append(made)
    for rank in range(job.world_size):
        config = json.loads((job.folder / f"rank-{rank}.json").read_text())
        config.update(
            socket=made.launcher(rank), client_socket=str(fleet.sockets / f"{job.name}.{rank}.c"),
            logs=str(folder / "logs"), exit_file=str(folder / f"rank-{rank}.exit"), empty=True,
            incarnation=2,
        )  # fmt: skip
        path = folder / f"rank-{rank}.json"
        path.write_text(json.dumps(config))
        subprocess.run(
            [sys.executable, "-m", "rankfold.interpose.launcher", "--config", str(path)],
            check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    return made


@contextlib.contextmanager
def fleets() -> Iterator[tuple[Fleet, Fleet, Path]]:
    """Two state directories with a device each."""
    folder = Path(tempfile.mkdtemp(prefix="rankfold-bench-", dir="/tmp"))
    os.environ.update(RANKFOLD_RUNTIME=str(folder / "run"), RANKFOLD_CACHE=str(KERNEL_CACHE))
    states = [State(folder, folder / n, folder / "run", Watch(folder)) for n in ("one", "two")]
    try:
        with contextlib.ExitStack() as stack:
            made = []
            for state in states:
                state.path.mkdir()
                made.append(stack.enter_context(Fleet(state, memory=MEMORY)))
            yield made[0], made[1], folder
    finally:
        for state in states:
            state.watch.settle()
            state.watch.clean()
        shutil.rmtree(folder, ignore_errors=True)


def measure(program: Program, ranks: int, between: int) -> Measured:
    found = Measured()
    seconds = found.seconds
    with fleets() as (here, there, folder):
        steps = FIRST + between + REST
        job = here.start("bench", program.command(steps), [0] * ranks, workdir=GPT.parent)
        saves = [folder / "one/jobs/bench/saves" / str(n) for n in range(2)]
        for save, step in zip(saves, (FIRST, FIRST + between), strict=True):
            until(lambda: job.output(0).count(LINE) >= step, 300, "some steps")  # noqa: B023
            save.mkdir(parents=True)
            saved(job, save, seconds)
        ended(job)
        printed = [job.output(rank) for rank in range(ranks)]
        job.detach(discard=True)

        url = f"file://{folder}/store"
        host = bare("host")
        for n, save in enumerate(saves):
            parts = [part_of(save / f"rank-{rank}", folder / f"host-{n}-{rank}", False)
                     for rank in range(ranks)]  # fmt: skip
            found.host.append(new_bytes(host, parts))
        task(saves[1], url, ranks)
        with timed(seconds, "upload"):
            work("upload", saves[1])
        folders = [saves[1] / f"rank-{rank}" for rank in range(ranks)]
        found.pages = sum(
            pagemap.size for path in folders for pagemap in Snapshot(path).pages.values()
        )
        parts = [part_of(each, folder / f"device-{rank}", True)
                 for rank, each in enumerate(folders)]  # fmt: skip
        found.device, found.distinct = new_bytes(bare("device"), parts), distinct(folders)
        (folder / "copied").mkdir()
        found.copied = copied(folders, folder / "copied")

        back = folder / "two/jobs/bench/saves/1"
        task(back, url, ranks, incarnation=2)
        with timed(seconds, "fetch"):
            work("fetch", back)
        with timed(seconds, "launchers"):
            again = fresh(there, job)
        with timed(seconds, "restore"):
            each(lambda rank: call(again.launcher(rank), "restore", timeout=120,
                                   folder=str(back / f"rank-{rank}")), ranks)  # fmt: skip
        with timed(seconds, "place"):
            again.place([there.names[0]] * ranks)
            each(lambda rank: call(again.launcher(rank), "thaw"), ranks)
        ended(again)
        for rank in range(ranks):
            tail = again.output(rank)
            if not printed[rank].endswith(tail) or (rank == 0 and LINE not in tail):
                raise RuntimeError(f"rank {rank} printed something else when restored:\n{tail}")
        again.detach(discard=True)
    return found


def ended(job: RunningJob) -> None:
    for rank, status in enumerate(job.wait(300)):
        if status:
            raise RuntimeError(f"rank {rank} ended with {status}: {job.errors(rank)}")


def figures_of(name: str, found: Measured) -> dict[str, Figure]:
    gib = found.pages / (1 << 30)
    migration = found.seconds["upload"] + found.seconds["fetch"]
    parts = ", ".join(f"{key} {value:.2f}" for key, value in found.seconds.items())
    return {
        f"device_{name}": Figure(
            found.device / found.distinct, "", 1.02, "lower",
            f"{found.device} bytes stored, {found.distinct} in one copy of each distinct buffer",
        ),
        f"host_{name}": Figure(
            found.host[1] / found.host[0], "", 0.05, "lower",
            f"{found.host[1]} bytes new in the second checkpoint, {found.host[0]} in the first",
        ),
        f"still_{name}": Figure(
            found.seconds["still"] - STILL_S_PER_GIB * gib, "s", STILL_S, "lower",
            f"{found.seconds['still']:.2f} s with {gib:.3f} GiB of host pages",
        ),
        f"migration_{name}": Figure(
            migration / (2 * found.copied + 1), "", 1.0, "lower",
            f"upload and fetch {migration:.2f} s, copying {found.copied:.2f} s; {parts}",
        ),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="What a checkpoint costs.")
    parser.add_argument("--quick", action="store_true", help="only show that it works")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the report")
    options = parser.parse_args()
    effort = QUICK if options.quick else USUAL
    if trouble := criu.trouble():
        raise SystemExit(f"needs CRIU: {trouble}")
    where = report.machine()
    figures: dict[str, Figure] = {}
    for name in effort.programs:
        for ranks in effort.ranks:
            found = figures_of(f"{name}_{ranks}", measure(PROGRAMS[name], ranks, effort.between))
            print(report.table(found), flush=True)
            figures |= found
    path = report.write("checkpoint", where, figures, options.out)
    print(f"{path}: {sum(each.holds for each in figures.values())} of {len(figures)} hold")


if __name__ == "__main__":
    main()
