"""Measures the cost of a checkpoint of a job.

It costs bytes in the store, time for which the job is paused, and time to move it into another
state directory, or to bring it back after a crash.

Question. Replicas hold the same parameters and moments, and host memory hardly changes from one
checkpoint to the next: is each stored once? How long does the job pause for a checkpoint, and for a
resize? How long does a move through the store take, compared with copying the same bytes there and
back, and a restart, compared with that of the same program with its own checkpoints?

Method. Launchers and proxies run without a reconciler; the benchmark sends the same requests in the
same order. A job is saved some steps after its start and again a hundred steps later: barrier; save
in the proxies and freeze; snapshots, all ranks at once; thaw, withdraw; then images are copied
while the job runs. In between it is saved a few more times, and resized, to measure the pauses. It
then runs to its end. The second checkpoint is fetched into another state directory and restored
under new launchers, and the job continues there; its output must equal what the first job printed
from that point on.
  device_bytes_over_replica_…   bytes of a store that receives only the images, divided by the bytes
               of one copy of each distinct live buffer; these are counted by the image reader of
               the tests, and compared by SHA-256
  rank_specific_bytes_…   bytes per rank of live buffers that equal no other rank's. The target is
               what a rank has alive in addition to what the program saves itself: parameters and
               moments
  host_following_over_first_…   bytes that the second checkpoint adds to a store with everything of
               both, in addition to what it adds to one with only the images, divided by the same
               of the first; the larger value of 4 and 8 ranks
  resize_pause_s_…   from the cut until the ranks run on the other devices: from one to two and
               back, median. There is no separate target: a checkpoint's is used, for the memory
               moved
  checkpoint_pause_over_bound_…   from the cut to the withdrawn barrier, median, divided by 0.3 s +
               2.5 s per GiB of host pages; the larger value of 4 and 8 ranks
  migration_over_copy_…   all seconds from the cut until the ranks run in the other state directory,
               minus one, divided by those of copying the snapshots' bytes into the store's file
               system and back with BLAKE3; the larger value
  restart_over_user_level_…   from kill -9 of all ranks and launchers to the first printed step:
               fetched, restored and placed, divided by a new start with the program's own
               checkpoint. Both sides alternate, ABBA; the quotient of medians

Noise. Other users of the disks, and processes that share the cores: in each pause, all ranks'
processes compete for them. Bytes are exact, times are not.

Estimate before measuring. Tables and state add a few hundred bytes per buffer to the device's
megabytes: 1.01. Of host memory 2 % of the pages change, and they are compressed with neighbours
that do not: 3 %, plus the ring's content. In a page some words have changed: 1 %. Saving a rank
takes 40 ms of a processor: with eight on two cores 0.2 s. A small job's move consists of the
start-up of a hundred processes: most of the second that the target subtracts. A restart avoids the
program's own start, but reads a checkpoint with the processes' whole state: 1.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
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
from rankfold.checkpoint.background import State as Report
from rankfold.checkpoint.background import Task
from rankfold.checkpoint.snapshot import Snapshot, images_being_copied
from rankfold.checkpoint.store import Store
from rankfold.control import call
from support.contents import Image
from support.fleet import Fleet, MiB, RunningJob, launch, until
from support.leaks import State, Watch
from support.wheels import nvrtc

LINE = "step "  # in the output: one per mini-batch
LOOK_S = 0.005
FIRST = 5  # steps before the first checkpoint
STEP_BYTES = 4  # in a program's own checkpoint: the rest are parameters and moments
MEMORY = 4096 * MiB
STILL_S, STILL_S_PER_GIB = 0.3, 2.5
GIB = 1 << 30


@dataclass(frozen=True)
class Program:
    """A program to measure.

    `before` and `behind`: arguments before and after the number of steps; `rest`: steps after the
    second checkpoint. `options`: its own checkpoints are controlled by options, and not by
    own_checkpoint.h.
    """

    source: Path
    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    rest: int = 10
    options: bool = False

    @property
    def is_python(self) -> bool:
        """True for a script, on tinygrad; it has no checkpoints of its own."""
        return self.source.suffix == ".py"

    def command(self, steps: int) -> list[str]:
        program = (
            [sys.executable, str(self.source)] if self.is_python else [str(cuda.build(self.source))]
        )
        return [*program, *self.before, str(steps), *self.behind]

    def env(self, folder: Path) -> dict[str, str]:
        if not self.is_python:
            return {}
        return {
            "DEV": "CUDA",
            "LD_LIBRARY_PATH": nvrtc(folder / "nvrtc"),
            "CACHELEVEL": "0",
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }

    def saving(self, file: Path, every: int) -> tuple[list[str], dict[str, str]]:
        """Additional arguments and environment that make it save its own checkpoints."""
        if self.options:
            return ["--save", str(file), "--save-every", str(every)], {}
        return [], {"SAVE_TO": str(file), "SAVE_EVERY": str(every)}

    def loading(self, file: Path) -> tuple[list[str], dict[str, str]]:
        return (["--load", str(file)], {}) if self.options else ([], {"LOAD_FROM": str(file)})


MLP = HERE / "splicing_mlp.cu"
PROGRAMS = {
    "gpt": Program(GPT, before=("--steps",), options=True),
    "mlp": Program(MLP, behind=("64", "0", "64", "256", "256", "16"), rest=50),
    "conv": Program(HERE / "splicing_conv.cu"),
    "large_state": Program(MLP, behind=("32", "6144", "1024", "1408", "1024"), rest=5),
    "tinygrad": Program(HERE.parent / "tests/guests/tinygrad/train.py", rest=600),
}


@dataclass(frozen=True)
class Effort:
    programs: tuple[str, ...]
    ranks: tuple[int, ...]
    between: int  # steps
    saves: int  # between the two that are stored
    resizes: int
    restarts: int  # pairs


USUAL = Effort(tuple(PROGRAMS), (4, 8), 100, 3, 2, 2)
QUICK = Effort(("mlp",), (2,), 10, 0, 1, 1)


@dataclass
class Measured:
    """The results of one program with n ranks, in bytes and seconds."""

    device: int = 0
    distinct: int = 0
    alone: float = 0.0  # per rank, in buffers that equal no other rank's
    alive: float = 0.0  # per rank
    host: list[int] = field(default_factory=list)  # new bytes of each checkpoint
    pages: int = 0  # of host memory
    still: list[float] = field(default_factory=list)
    resized: list[float] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    copied: float = 0.0


# ---- a job that is saved -----------------------------------------------------------------------


def each(work: Callable[[int], Any], ranks: int) -> list[Any]:
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(work, range(ranks)))


@contextlib.contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    seconds[name] = time.monotonic() - begun


def saved(job: RunningJob, folder: Path, seconds: dict[str, float]) -> float:
    """Write a checkpoint's snapshots while the job is at a cut; returns the pause in seconds."""

    def request(op: str, **arguments: Any) -> None:
        each(lambda rank: call(job.launcher(rank), op, timeout=120, **arguments), job.world_size)

    folder.mkdir(parents=True)
    with timed(seconds, "barrier"):
        job.stop()
    with timed(seconds, "still"):
        with ThreadPoolExecutor(1) as pool:
            saving = pool.submit(job.save)
            request("freeze")
            saving.result()
        each(
            lambda rank: call(
                job.launcher(rank),
                "snapshot",
                timeout=300,
                beside=True,
                folder=str(folder / f"rank-{rank}"),
            ),
            job.world_size,
        )
        request("thaw")
        job.continue_running()
    with timed(seconds, "copy"):
        while images_being_copied(folder / f"rank-{r}" for r in range(job.world_size)):
            time.sleep(LOOK_S)
    return seconds["still"]


def resized(job: RunningJob, placement: list[str]) -> float:
    """Seconds from the cut until the job runs there."""
    job.stop()
    begun = time.monotonic()
    job.detach()
    job.place(placement)
    for device in job.devices:
        job.request(device, "wait", states=["running"], within_s=60.0, wait=65.0)
    return time.monotonic() - begun


def spread(fleet: Fleet, ranks: int) -> list[str]:
    """Distribute the ranks over both devices, as evenly as possible."""
    return [fleet.names[2 * rank // ranks] for rank in range(ranks)]


def task(folder: Path, url: str, ranks: int, **more: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    task = Task(url, "bench", "bench", 1, list(range(ranks)))
    task = msgspec.structs.replace(task, **more)
    (folder / "task.json").write_bytes(msgspec.json.encode(task))


def work(module: str, folder: Path) -> Report:
    """Run an upload or a fetch to its end."""
    command = [sys.executable, "-m", f"rankfold.checkpoint.{module}", str(folder)]
    subprocess.run(command, check=True)
    subprocess.run(["flock", str(folder / "lock"), "true"], check=True)
    report = msgspec.json.decode((folder / "state.json").read_bytes(), type=Report)
    if report.state != "done":
        raise RuntimeError(f"{module}: {report.error}")
    return report


# ---- bytes -------------------------------------------------------------------------------------


def image_of(folder: Path, target: Path) -> Path:
    """A copy of the snapshot with only its image."""
    target.mkdir(parents=True)
    for name in ("about.json", "image"):
        os.link(folder / name, target / name)
    return target


def new_bytes(store: Store, folders: list[Path]) -> int:
    """The bytes that a save of these snapshots adds to a store."""
    before = sum(store.data("bench").values())
    save = store.begin("bench", 1)
    for rank, folder in enumerate(folders):
        Snapshot(folder).add_to(save, rank)
    save.finish()
    return sum(store.data("bench").values()) - before


def bare(name: str) -> Store:
    store = stores.open(f"memory://{name}-{os.urandom(4).hex()}", "bench")
    store.begin_incarnation("bench", 1)
    return store


def count(found: Measured, folders: list[Path]) -> None:
    """Count live buffers: all, one copy of each distinct one, and those that only one rank has."""
    owners: Counter[tuple[bytes, int]] = Counter()
    images: dict[int, Image] = {}
    for rank, folder in enumerate(folders):
        with (folder / "image").open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            images[rank] = Image(data, images)
    for image in images.values():
        sizes = {}
        for address, size in image.buffers:
            sizes[hashlib.sha256(image.read(address, size)).digest(), size] = size
            found.alive += size / len(folders)
        owners.update(sizes.keys())
    found.distinct = sum(size for _, size in owners)
    found.alone = sum(size for (_, size), n in owners.items() if n == 1) / len(folders)


def copied(folders: list[Path], target: Path) -> float:
    """Seconds for copying the snapshots' bytes there and back, each time with BLAKE3."""
    target.mkdir()
    begun = time.monotonic()
    for n, folder in enumerate(folders):
        for m, path in enumerate(path for path in folder.rglob("*") if path.is_file()):
            copy(path, target / f"{n}-{m}")
            copy(target / f"{n}-{m}", target / f"{n}-{m}-back")
    return time.monotonic() - begun


def copy(source: Path, target: Path) -> None:
    """Copy a file, except its holes."""
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


# ---- restore -----------------------------------------------------------------------------------


def empty(fleet: Fleet, job: RunningJob, name: str) -> RunningJob:
    """The same job under other launchers, which have no ranks yet."""
    folder, configs = fleet.state.path / "jobs" / name, []
    (folder / "logs").mkdir(parents=True)
    made = RunningJob(fleet, name, job.world_size, folder, job.epoch)  # the ranks know the epoch
    fleet.jobs.append(made)
    for rank in range(job.world_size):
        config = json.loads((job.folder / f"rank-{rank}.json").read_text())
        config.update(
            job=name,
            socket=made.launcher(rank),
            empty=True,
            client_socket=str(fleet.sockets / f"{name}.{rank}.c"),
            logs=str(folder / "logs"),
            exit_file=str(folder / f"rank-{rank}.exit"),
        )
        configs.append(folder / f"rank-{rank}.json")
        configs[-1].write_text(json.dumps(config))
    launch(configs)
    return made


def restored(
    fleet: Fleet,
    job: RunningJob,
    name: str,
    url: str,
    seconds: dict[str, float],
    incarnation: int = 2,
) -> RunningJob:
    """Restore the job from the store, on the first device of `fleet`."""
    ranks = job.world_size
    folder = fleet.state.path / "jobs" / name / "saves" / "1"
    task(folder, url, ranks, incarnation=incarnation)
    with timed(seconds, "fetch"):
        work("fetch", folder)
    with timed(seconds, "launchers"):
        again = empty(fleet, job, name)
    with timed(seconds, "restore"):
        each(
            lambda rank: call(
                again.launcher(rank), "restore", timeout=120, folder=str(folder / f"rank-{rank}")
            ),
            ranks,
        )
    with timed(seconds, "place"):
        again.place([fleet.names[0]] * ranks)
        each(lambda rank: call(again.launcher(rank), "thaw"), ranks)
    return again


def killed(job: RunningJob) -> None:
    """Kill all its ranks and launchers with -9, and wait until they are gone."""
    pids = [job.fleet.rank_pid(job, rank) for rank in range(job.world_size)]
    for pid in pids:
        launcher = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        os.kill(int(launcher), signal.SIGKILL)  # its rank ends with it
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), what="they are gone")


@contextlib.contextmanager
def fleets() -> Iterator[tuple[Fleet, Fleet, Path]]:
    """Two state directories, one with two devices and one with one."""
    folder = Path(tempfile.mkdtemp(prefix="rankfold-bench-", dir="/tmp"))
    os.environ.update(RANKFOLD_RUNTIME=str(folder / "run"), RANKFOLD_CACHE=str(KERNEL_CACHE))
    states = [State(folder, folder / n, folder / "run", Watch(folder)) for n in ("one", "two")]
    try:
        with contextlib.ExitStack() as stack:
            made = []
            for state, devices in zip(states, (2, 1), strict=True):
                state.path.mkdir()
                made.append(stack.enter_context(Fleet(state, devices, memory=MEMORY)))
            yield made[0], made[1], folder
    finally:
        for state in states:
            state.watch.settle()
            state.watch.clean()
        shutil.rmtree(folder, ignore_errors=True)


# ---- measurements ------------------------------------------------------------------------------


def steps_of(job: RunningJob) -> int:
    """The number of steps that rank 0 has printed."""
    return job.output(0).count(LINE)


def all_begun(job: RunningJob, program: Program) -> bool:
    """True if the first steps are printed.

    Ranks of a script run independently, and each prints; those of the other programs stay together.
    """
    ranks = range(job.world_size if program.is_python else 1)
    return all(job.output(rank).count(LINE) >= FIRST for rank in ranks)


def measure(program: Program, ranks: int, effort: Effort) -> Measured:
    found = Measured()
    seconds = found.seconds
    with fleets() as (here, there, folder):
        last = FIRST + effort.between + program.rest
        job = here.start(
            "bench", program.command(last), [0] * ranks, workdir=GPT.parent, env=program.env(folder)
        )
        until(lambda: all_begun(job, program), 300, "some steps")
        begun = steps_of(job)
        saves = [here.state.path / "jobs/bench/saves" / str(n) for n in range(2)]
        found.still.append(saved(job, saves[0], seconds))
        for _ in range(effort.saves):
            found.still.append(saved(job, folder / "more", seconds))
            shutil.rmtree(folder / "more")
        for _ in range(effort.resizes):
            for placement in (spread(here, ranks), [here.names[0]] * ranks):
                found.resized.append(resized(job, placement))
        until(lambda: steps_of(job) >= begun + effort.between, 300, "the steps between")
        found.still.append(saved(job, saves[1], seconds))
        ended(job)
        printed = [job.output(rank) for rank in range(ranks)]
        job.detach(discard=True)

        whole, images = bare("whole"), bare("images")
        for n, save in enumerate(saves):
            folders = [save / f"rank-{rank}" for rank in range(ranks)]
            parts = [image_of(each, folder / f"images-{n}" / each.name) for each in folders]
            found.host.append(new_bytes(whole, folders) - new_bytes(images, parts))
        url = f"file://{folder}/store"
        task(saves[1], url, ranks)
        with timed(seconds, "upload"):
            work("upload", saves[1])
        found.pages = sum(
            pagemap.size for path in folders for pagemap in Snapshot(path).pages.values()
        )
        found.device = new_bytes(bare("device"), parts)
        count(found, folders)
        found.copied = copied(folders, folder / "copied")

        again = restored(there, job, "bench", url, seconds)
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


@dataclass
class Restarts:
    """Seconds from the kill to the first step, with rankfold's checkpoint and with the program's
    own.

    `own_bytes`: parameters and moments in the latter.
    """

    ours: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    own_bytes: int = 0


def restarts(program: Program, ranks: int, pairs: int) -> Restarts:
    found = Restarts()
    with fleets() as (here, _, folder):
        file, url, steps = folder / "own", f"file://{folder}/store", 1_000_000
        more, env = program.saving(file, FIRST)
        command = [*program.command(steps), *more]
        job = first = here.start("bench", command, [0] * ranks, env=env, workdir=GPT.parent)
        until(lambda: steps_of(job) > FIRST and file.exists(), 300, "both kinds of checkpoints")
        save = here.state.path / "jobs/bench/saves/1"
        saved(job, save, {})
        task(save, url, ranks)
        work("upload", save)
        found.own_bytes = file.stat().st_size - STEP_BYTES
        more, env = program.loading(Path(shutil.copy(file, folder / "load")))
        begins = int.from_bytes((folder / "load").read_bytes()[:STEP_BYTES], "little")
        until(lambda: steps_of(job) > begins, 300, "what its own checkpoint begins with")
        for n in range(2 * pairs):
            name, ours = f"again-{n}", n % 4 in (0, 3)
            begun = time.monotonic()
            killed(job)
            if ours:
                job = restored(here, first, name, url, {}, 2 + n)
            else:
                command = [*program.command(steps), *more]
                job = here.start(name, command, [0] * ranks, env=env, workdir=GPT.parent)
            until(lambda: LINE in job.output(0), 300, "a step")  # noqa: B023
            (found.ours if ours else found.own).append(time.monotonic() - begun)
            if (line := job.output(0).splitlines()[0]) not in first.output(0).splitlines():
                raise RuntimeError(f"{name} begins with something else: {line}")
    return found


# ---- figures -----------------------------------------------------------------------------------


def listed(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def bytes_of(
    name: str, ranks: int, found: Measured, restarted: Restarts | None
) -> dict[str, Figure]:
    own = f"; parameters and moments are {restarted.own_bytes}" if restarted else ""
    made = {
        f"device_bytes_over_replica_{name}_{ranks}": Figure(
            found.device / found.distinct,
            "",
            1.02,
            "lower",
            f"{found.device} bytes stored, {found.distinct} in one copy of each distinct buffer"
            f"{own}",
        ),
    }
    if restarted:
        made[f"rank_specific_bytes_{name}_{ranks}"] = Figure(
            found.alone,
            "bytes",
            max(0.0, found.alive - restarted.own_bytes),
            "lower",
            f"in buffers that no other rank equals, a rank; it has {found.alive:.0f} alive",
        )
    return made


def bound(found: Measured) -> float:
    return STILL_S + STILL_S_PER_GIB * found.pages / GIB


def migration(found: Measured) -> float:
    parts = ("still", "copy", "upload", "fetch", "launchers", "restore", "place")
    return sum(found.seconds[part] for part in parts)


def worst(found: dict[int, Measured], value: Callable[[Measured], float], how: str) -> Any:
    """The largest value over all numbers of ranks, and a text with each value."""
    parts = [f"{ranks} ranks: {value(each):.3g}" for ranks, each in found.items()]
    return max(map(value, found.values())), f"{'; '.join(parts)}. {how}"


def figures_of(
    name: str, found: dict[int, Measured], restarted: Restarts | None
) -> dict[str, Figure]:
    """The figures of one program, with all numbers of ranks."""
    most = found[max(found)]
    host, host_how = worst(
        found,
        lambda each: each.host[1] / each.host[0],
        f"{most.host[1]} bytes new in the second checkpoint, {most.host[0]} in the first",
    )
    pause, pause_how = worst(
        found,
        lambda each: statistics.median(each.still) / bound(each),
        f"{listed(most.still)} s with {most.pages / GIB:.3f} GiB of host pages and "
        f"{most.alive * max(found) / GIB:.2f} GiB of devices' memory",
    )
    parts = ", ".join(f"{key} {value:.2f}" for key, value in most.seconds.items())
    moved, moved_how = worst(
        found,
        lambda each: (migration(each) - 1) / each.copied,
        f"{migration(most):.2f} s, copying {most.copied:.2f} s; {parts}",
    )
    resize, resize_how = worst(
        found, lambda each: statistics.median(each.resized), f"{listed(most.resized)} s"
    )
    memory = max(each.alive * ranks for ranks, each in found.items())
    made = {
        f"host_following_over_first_{name}": Figure(host, "", 0.05, "lower", host_how),
        f"resize_pause_s_{name}": Figure(
            resize, "s", STILL_S + STILL_S_PER_GIB * memory / GIB, "lower", resize_how
        ),
        f"checkpoint_pause_over_bound_{name}": Figure(pause, "", 1.0, "lower", pause_how),
        f"migration_over_copy_{name}": Figure(moved, "", 2.0, "lower", moved_how),
    }
    if restarted:
        made[f"restart_over_user_level_{name}"] = Figure(
            statistics.median(restarted.ours) / statistics.median(restarted.own),
            "",
            1.0,
            "lower",
            f"{min(found)} ranks: {listed(restarted.ours)} s with rankfold's checkpoint, "
            f"{listed(restarted.own)} s with the program's own",
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="What a checkpoint costs.")
    parser.add_argument("--quick", action="store_true", help="only show that it works")
    parser.add_argument("--only", default="", help="programs, separated by commas")
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for the report")
    options = parser.parse_args()
    effort = QUICK if options.quick else USUAL
    if trouble := criu.trouble():
        raise SystemExit(f"needs CRIU: {trouble}")
    where = report.machine()
    figures: dict[str, Figure] = {}
    for name in options.only.split(",") if options.only else effort.programs:
        program = PROGRAMS[name]
        restarted = (
            None if program.is_python else restarts(program, min(effort.ranks), effort.restarts)
        )
        found = {ranks: measure(program, ranks, effort) for ranks in effort.ranks}
        made: dict[str, Figure] = {}
        for ranks, one in found.items():
            made |= bytes_of(name, ranks, one, restarted)
        made |= figures_of(name, found, restarted)
        print(report.table(made), flush=True)
        figures |= made
    path = report.write("checkpoint", where, figures, options.out)
    print(f"{path}: {sum(each.holds for each in figures.values())} of {len(figures)} hold")


if __name__ == "__main__":
    main()
