"""Parts of `make gpu-check` that give tables: what PyTorch's training costs on this GPU, next to
plain CUDA and to Singularity's paper (arXiv 2202.07848); moves, saves and restarts of it; what a
switch costs, copies, and PyTorch's allocators.

The figures are also in the report. They depend on the machine, so none of them fails a part; a part
fails if results differ, or if something does not run. As parts.py, this needs the standard library
alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu import parts
from gpu.parts import PYTHON, ROOT, SEES_TORCH, run

STEPS = ROOT / "tests/gpu/steps.py"
MIB = 1 << 20
# Singularity's figures, on V100s, with models of 14 to 355 million parameters.
PAPER_OVERHEAD = "0 % on one GPU for BERT, DenseNet169, ResNet50 and InternalQ (table 3)"
PAPER_FOLDED = "below 3 % for most models, about 5 % for small ones (figure 4)"
PAPER_SIZES = (
    "GPU state of 4 workers over the user's own checkpoint: BERT 0.97, PyramidNet 1.0, "
    "InternalQ 1.35, ResNet50 1.75, DenseNet169 2.4 (table 4)"
)
PAPER_SECONDS = "28 to 69 s from 16 GPUs to 16 or 8, 30 to 75 s to 16 (data-parallel, table 5)"

Rows = list[dict[str, Any]]


def report(name: str, value: float, unit: str, how: str) -> None:
    """Add a figure to those of the probe."""
    before = json.loads(parts.FIGURES.read_text()) if parts.FIGURES.exists() else []
    before.append({"name": name, "value": value, "unit": unit, "how": how})
    parts.FIGURES.parent.mkdir(parents=True, exist_ok=True)
    parts.FIGURES.write_text(json.dumps(before))


def table(*rows: Sequence[object]) -> None:
    texts = [[f"{x:.3g}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    for row in texts:
        print("  ".join(x.rjust(width) for x, width in zip(row, widths, strict=True)))


def own(line: str) -> str:
    """A line without the rank, which `rankfold run` writes before the lines of several ranks."""
    return re.sub(r"^\[\d+\] ", "", line)


def rows_of(lines: Sequence[str]) -> Rows:
    """The figures that steps.py prints, of the slowest rank of each model."""
    found: dict[str, dict[str, Any]] = {}
    for row in (json.loads(line) for line in map(own, lines) if line.startswith("{")):
        if row["model"] not in found or row["ms"] > found[row["model"]]["ms"]:
            found[row["model"]] = row
    if not found:
        raise SystemExit(f"no figures among {lines[:5]}")
    return list(found.values())


def steps(*options: str) -> tuple[str, ...]:
    return (parts.python_with(SEES_TORCH, "a PyTorch"), str(STEPS), *options)


def gpu_bytes() -> int:
    """Memory of the GPU."""
    driver, device, total = parts.load_driver(), ctypes.c_int(), ctypes.c_size_t()
    if driver.cuDeviceGet(ctypes.byref(device), 0) or driver.cuDeviceTotalMem_v2(
        ctypes.byref(total), device
    ):
        raise SystemExit("the driver does not say how much memory the GPU has")
    return total.value


class Size:
    """The models and batches that the GPU has memory for, with four ranks."""

    def __init__(self) -> None:
        total = gpu_bytes()
        self.memory = f"{min(total // 2, 64 << 30) // MIB}MiB"  # of one device
        self.memory_of_two = f"{min(total // 4, 16 << 30) // MIB}MiB"  # of each of two
        self.models = "mlp,resnet18,gpt2" if total >= 16 << 30 else "mlp,resnet18"
        self.moved = self.models.rpartition(",")[2]
        self.scale = "8" if total >= 120 << 30 else "4" if total >= 40 << 30 else "1"


class Fleet:
    """`rankfold` on a state directory of its own; all devices are the one GPU."""

    def __init__(self, rankfold: Callable[..., str], folder: Path):
        self.rankfold, self.folder = rankfold, folder
        self.peak = 0  # bytes in use on a device, of those that `watching` has seen

    def status(self) -> Any:
        return json.loads(self.rankfold("status", "-o", "json"))

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look at the memory in use, as often as the command answers."""
        over = threading.Event()

        def look() -> None:
            while not over.wait(0.3):
                with contextlib.suppress(SystemExit):  # nothing runs yet
                    used = [device["used"] for device in self.status()["devices"]]
                    self.peak = max([self.peak, *used])

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


# ---- tables 3 and figure 4 ----


def folded(world: int, memory: str, command: Sequence[str]) -> tuple[Rows, int]:
    """Ranks on one device: what they print, and the bytes that the device has in use at most."""
    with parts.fleet_in() as (rankfold, folder):
        fleet = Fleet(rankfold, folder)
        with fleet.watching():
            lines = parts.run_on(rankfold, world, 1, memory, command)
    return rows_of(lines), fleet.peak


FOLDED = (2, 4)  # ranks on the one device


def overhead() -> None:
    """Steps of PyTorch's models: one rank next to plain CUDA, and ranks folded next to one."""
    size = Size()
    command = steps("--only", size.models, "--scale", size.scale)
    alone = {row["model"]: row for row in rows_of(parts.plain(*command).splitlines())}
    runs = {world: folded(world, size.memory, command) for world in (1, *FOLDED)}
    one = {row["model"]: row["ms"] for row in runs[1][0]}
    heads = [head for world in FOLDED for head in (f"{world} ranks", f"of {world}")]
    rows: list[list[object]] = [["model", "plain ms", "rankfold", *heads]]
    for model, row in alone.items():
        cost, cells = one[model] / row["ms"] - 1, [model, row["ms"], one[model]]
        report(f"torch_{model}_overhead", cost, "of 1", f"table 3; the paper: {PAPER_OVERHEAD}")
        for world in FOLDED:
            milliseconds = next(r["ms"] for r in runs[world][0] if r["model"] == model)
            over = milliseconds / world / row["ms"]
            cells += [milliseconds, over]
            report(f"torch_{model}_folded_{world}", over, "of n", f"the paper: {PAPER_FOLDED}")
        rows.append(cells)
    table(*rows)
    reserved = max(row["reserved"] for row in alone.values())
    for world in FOLDED:
        peak, apart = runs[world][1], world * reserved
        report(f"torch_bytes_{world}", peak / apart, "of n", "in use on the device, at its peak")
        print(f"{world} ranks use {peak // MIB} MiB; {world} processes reserve {apart // MIB} MiB")
    print(f"the paper: overhead {PAPER_OVERHEAD}; folded {PAPER_FOLDED}")


# ---- calls of the driver ----


def counted(folder: str) -> dict[str, str]:
    """Variables for processes whose calls of the driver are counted there. Raises Skip."""
    library = ROOT / "build/gpu/driver_calls.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    flags = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
    source = ROOT / "tests/gpu/driver_calls.c"
    run(os.environ.get("CC", "gcc"), *flags, "-o", library, source, "-ldl")
    named = os.environ.get("DRIVER_CALLS_CUPTI")
    cupti = parts.first_library(*([named] if named else ["libcupti.so.13", "libcupti.so.12"]))
    return {
        "CUDA_INJECTION64_PATH": str(library),
        "DRIVER_CALLS": folder,
        "DRIVER_CALLS_CUPTI": cupti,
    }


def calls() -> None:
    """Calls of the driver in a step of PyTorch's models: those of the program on plain CUDA, and
    those that the proxy makes for it."""
    size = Size()
    sides: tuple[Callable[..., list[str]], ...] = (
        lambda *words: parts.plain(*words).splitlines(),
        lambda *words: parts.on_gpu(1, 1, *words, memory=size.memory),
    )
    found: list[dict[str, float]] = []
    for side in sides:
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            os.environ.update(counted(folder))
            lines = side(*steps("--only", size.models, "--scale", "0.125", "--calls", folder))
        found.append({row["model"]: row["calls"] for row in rows_of(lines)})
    plain, ours = found
    if not all([*plain.values(), *ours.values()]):  # another tool may use CUPTI in the process
        raise parts.Skip(f"no calls were counted: {found}")
    rows = ([model, plain[model], ours[model]] for model in plain)
    table(["calls of the driver in a step", "plain CUDA", "rankfold"], *rows)
    for model in plain:
        how = f"{ours[model]:.0f} calls of the driver in a step; plain CUDA {plain[model]:.0f}"
        report(f"torch_{model}_calls", ours[model] / plain[model], "of plain", how)


# ---- resized, saved, killed: tables 4 and 5 ----

POOL = """
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {name: gpu}
spec:
  devices:
    - {type: nvidia, count: 2, memory: MEMORY}
---
apiVersion: rankfold/v1alpha1
kind: Job
metadata: {name: train}
spec:
  command: COMMAND
  worldSize: 2
  gpus: 2
"""
SAVED_STEPS, PAUSE = "150", "0.4"  # a minute on a fast GPU: longer than all that happens to it


class Job:
    """The job of POOL."""

    def __init__(self, fleet: Fleet):
        self.fleet = fleet

    @property
    def status(self) -> Any:
        return self.fleet.status()["jobs"][0]

    def lines(self) -> list[str]:
        with contextlib.suppress(SystemExit):
            printed = [self.fleet.rankfold("logs", "train", "--rank", str(r)) for r in (0, 1)]
            return [x for text in printed for x in text.splitlines() if " loss " in x]
        return []

    def until(self, what: str, condition: Callable[[], bool]) -> float:
        """The seconds until then; a job that ends before that ends the part."""
        begun = time.monotonic()
        while not condition():
            ended = self.status["phase"] in ("Failed", "Succeeded")
            if ended and not condition():
                said = self.fleet.rankfold("describe", "train")
                raise SystemExit(f"waiting for {what}, the job has ended:\n{said}")
            time.sleep(0.1)
        print(f"{what}: {time.monotonic() - begun:.1f} s", flush=True)
        return time.monotonic() - begun

    def advances(self) -> None:
        before = len(self.lines())
        self.until("four more lines", lambda: len(self.lines()) >= before + 4)

    def is_back(self) -> bool:
        now = self.status
        return bool(now["restarts"] and now["devices"] and now["phase"] == "Running")

    def resized(self, devices: int) -> None:
        before = len(self.changes())
        self.fleet.rankfold("scale", "train", "--gpus", str(devices), "--override")
        self.until(f"to {devices} devices", lambda: len(self.changes()) > before)
        took = self.changes()[-1]["converge_s"]
        report(f"torch_resize_to_{devices}", took, "s", f"the paper: {PAPER_SECONDS}")
        self.advances()

    def changes(self) -> list[Any]:
        found = json.loads(self.fleet.rankfold("describe", "train", "-o", "json"))["changes"]
        return [each for each in found if each["converge_s"] is not None]

    def saved(self, what: str) -> None:
        begun, before = time.monotonic(), self.stored()
        self.fleet.rankfold("checkpoint", "train", "--wait")
        seconds, size = time.monotonic() - begun, self.stored() - before
        print(f"{what} checkpoint: {seconds:.1f} s, {size / 1e6:.1f} MB more in the store")
        report(f"torch_checkpoint_{what}", size, "bytes", f"processes included; {PAPER_SIZES}")

    def stored(self) -> int:
        """Bytes of the object store."""
        files = (self.fleet.folder / "s/checkpoints").rglob("*")
        return sum(path.stat().st_size for path in files if path.is_file())


def kill_all(folder: Path) -> None:
    """Kill all processes of the fleet whose state directory is in this folder, as a power cut
    would: they have it in their environment."""
    killed = 0
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (
                int(process.name) != os.getpid()
                and f"={folder}/".encode() in (process / "environ").read_bytes()
            ):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
    print(f"{killed} processes killed")


def moves() -> None:
    """Two data-parallel ranks, resized while they run, saved twice, killed, and continued from the
    checkpoint: the losses are those of ranks that nothing has disturbed."""
    parts.need_checkpoints()
    size = Size()
    with parts.fleet_in() as (rankfold, folder):
        user = folder / "user.pt"  # what the program saves itself
        scale = str(min(float(size.scale), 1))
        options = ("--only", size.moved, "--scale", scale, "--steps", SAVED_STEPS)
        command = steps(*options, "--lines")
        text = POOL.replace("MEMORY", size.memory_of_two)
        (folder / "specs").mkdir()
        (folder / "specs/train.yaml").write_text(
            text.replace("COMMAND", json.dumps([*command, "--pause", PAUSE, "--save", str(user)]))
        )
        job = Job(Fleet(rankfold, folder))
        rankfold("apply", "-f", str(folder / "specs"))
        job.until("its first lines", lambda: len(job.lines()) >= 4)
        for devices in (1, 2, 1):
            job.resized(devices)
        job.saved("first")
        job.advances()
        job.saved("next")
        kill_all(folder)
        rankfold("apply", "-f", str(folder / "specs"))
        took = job.until("runs again", job.is_back)
        report("torch_restart", took, "s", "everything killed; from its checkpoint")
        job.until("ends", lambda: job.status["phase"] == "Succeeded")
        disturbed = sorted(job.lines())
        print(f"its own checkpoint has {user.stat().st_size / 1e6:.1f} MB; {PAPER_SIZES}")
        print(f"the paper's moves and resizes: {PAPER_SECONDS}")
    quiet = parts.on_gpu(2, 2, *command, memory=size.memory_of_two)
    wanted = sorted(own(line) for line in quiet if " loss " in line)
    parts.same(wanted, disturbed, "the losses of an undisturbed job, and of this one")


# ---- dispatch, copies, switches, allocators ----


def switch() -> None:
    """The cost of a switch for each GiB that a rank has."""
    out = ROOT / "build/gpu"
    few = () if gpu_bytes() >= 8 << 30 else ("--quick",)
    options = ("--device", "nvidia", "--out", str(out), *few)
    path = str(ROOT / "tests")
    measure = (PYTHON, "-m", "benchmarks.switching")
    print(run(*measure, *options, PYTHONPATH=path, RANKFOLD_NVIDIA_SHARE="1"))
    for name, figure in json.loads((out / "switching-nvidia.json").read_text())["figures"].items():
        report(name, figure["value"], figure["unit"], figure["how"])
        print(f"{name}: {figure['how']}")


def copies() -> None:
    """Copies between host and device, next to plain CUDA."""
    import cuda  # tests/cuda.py, in the virtual environment

    binary = cuda.build(ROOT / "benchmarks/copies.cu")
    plain, ours = (
        {name: float(rate) for name, rate in map(str.split, lines)}
        for lines in (parts.plain(binary).splitlines(), parts.on_gpu(1, 1, binary, memory="1GiB"))
    )
    table(["GB/s", "plain CUDA", "rankfold"], *([name, plain[name], ours[name]] for name in plain))
    for name, rate in plain.items():
        how = f"{ours[name]:.1f} GB/s; plain CUDA {rate:.1f}"
        report(f"copy_{name}", ours[name] / rate, "of plain", how)


ALLOCATORS = {
    "native": "",
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}


def allocators() -> None:
    """PyTorch's allocators, with requests of changing sizes, next to plain CUDA."""
    size = Size()
    options = ("--only", size.moved, "--scale", size.scale, "--lengths", "--steps", "16")
    rows: list[list[object]] = [["allocator", "plain ms", "MiB", "rankfold ms", "MiB"]]
    for name, setting in ALLOCATORS.items():
        command = steps(*options, "--allocator", setting)
        (plain,) = rows_of(parts.plain(*command).splitlines())
        (ours,) = rows_of(parts.on_gpu(1, 1, *command, memory=size.memory))
        rows.append(
            [name, plain["ms"], plain["reserved"] // MIB, ours["ms"], ours["reserved"] // MIB]
        )
        how = f"{ours['ms']:.1f} ms a step; plain CUDA {plain['ms']:.1f}"
        report(f"torch_allocator_{name}", ours["ms"] / plain["ms"], "of plain", how)
    table(*rows)
