"""make gpu-check: everything that a machine with an NVIDIA GPU can show, in under nine minutes.

Writes build/gpu/report.json, anew after each part. A part runs in a process group of its own, with
a time limit of its own: whatever it does, the others run. A part passes, fails, or is skipped with
a reason. The exit status is 0 if none failed; without a GPU, one line and 1.

This file needs nothing but Python, so that it can say what else is missing. `--part` is how it
starts itself for one part, in the virtual environment once that is there.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import functools
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "build/gpu/report.json"
PYTHON = ROOT / ".venv/bin/python"
TOTAL_S = 530.0
TAIL = 4000  # characters of a part's output in the report
SKIPPED = 77  # a part's exit status; its last line is the reason

# A program, its ranks and arguments: what tests/running runs on software GPUs, and the NVIDIA HAL's
# own.
PROGRAMS: tuple[tuple[str, int, str], ...] = (
    ("nvidia/counting", 3, "20"), ("programs/symbols", 3, "30"), ("programs/streams", 3, "30"),
    ("programs/events", 2, "30"), ("programs/reductions", 3, "8"), ("programs/ring", 3, "30"),
    ("programs/subgroups", 5, "30"), ("programs/mlp_sharded", 3, "30"),
    ("programs/conv_mixed", 2, "30"), ("programs/launch_bound", 2, "100"),
    ("programs/host_functions", 2, "50"), ("programs/graphs", 2, "30"),
    ("programs/captures", 2, "10"), ("programs/pools", 2, "30"), ("programs/boxes", 2, "8"),
    ("programs/poll", 3, "30"), ("programs/alone", 1, "40"), ("programs/tcp_wait", 3, "50"),
    ("programs/grid_sync", 1, "10"), ("nvidia/products", 3, "20"), ("programs/mlp_blas", 3, "30"),
)  # fmt: skip
# What calls must do, and what takes memory or time: after all else. "/": the file whose existence
# lets a program go on is there.
BEHAVIOUR: tuple[tuple[str, int, str], ...] = (
    ("programs/copies", 2, "/"), ("programs/fills", 2, "/"), ("programs/occupancy", 2, "/"),
    ("programs/threads", 2, "/"), ("programs/timing", 2, "/"), ("programs/device_facts", 2, "/"),
    ("programs/host_calls", 1, "/"), ("programs/errors", 1, "/"),
    ("programs/parallel_algorithms", 1, "/"),
    ("programs/sends_ahead", 2, "/ 20"), ("programs/large_state", 3, "8 96 3"),
    ("programs/out_of_memory", 2, "4"),
)  # fmt: skip
BLAS_PROGRAMS = ("nvidia/products", "programs/mlp_blas")
# Their kernels use pinned memory.
PINNED_PROGRAMS = ("programs/host_functions", "programs/host_calls")
DRIVER_MIN = 13000  # of CUDA 13, whose nvcc builds the programs: older drivers do not take its PTX
COMPUTE_MODE, PAGEABLE_ACCESS = 20, 88  # CUdevice_attribute


@dataclass
class Outcome:
    """What came of a part; `reason` where it did not pass."""

    name: str
    status: str
    reason: str
    seconds: float
    output: str


class Skip(Exception):
    """A part cannot run here; the message says why."""


# ---- the guard ------------------------------------------------------------------------------


def guarded(name: str, command: Sequence[str], limit_s: float) -> Outcome:
    """Run a part's command to its end or the end of its time; nothing of it is left."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        try:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Outcome(name, "failed", f"cannot be started: {error}", 0.0, "")
        try:
            status: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            status = None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        out.seek(0)
        text = out.read()
    seconds = round(time.monotonic() - started, 1)
    lines = text.strip().splitlines() or ["it said nothing"]
    if status is None:
        return Outcome(name, "failed", f"not over after {limit_s:.0f} s", seconds, text[-TAIL:])
    if status in (0, SKIPPED):
        passed = status == 0
        return Outcome(name, "passed" if passed else "skipped", "" if passed else lines[-1],
                       seconds, text[-TAIL:])  # fmt: skip
    return Outcome(name, "failed", f"status {status}: {lines[-1]}", seconds, text[-TAIL:])


def write(report: dict[str, Any]) -> None:
    """All at once, so that a report is whole whenever this ends."""
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    fresh = REPORT.with_suffix(".new")
    fresh.write_text(json.dumps(report, indent=1) + "\n")
    fresh.rename(REPORT)


# ---- the machine ----------------------------------------------------------------------------


def command_line(*command: str) -> str:
    """The first line of what a command prints; empty if there is none."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (done.stdout.strip().splitlines() or [""])[0]


def about() -> dict[str, Any]:
    version = Path("/proc/driver/nvidia/version")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": command_line("git", "describe", "--always", "--dirty", "--abbrev=40"),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "driver": version.read_text().splitlines()[0] if version.exists() else "",
        "nvidia_smi": command_line(
            "nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap",
            "--format=csv,noheader",
        ),
    }  # fmt: skip


def load_driver() -> Any:
    """Raises SystemExit if there is none, or no GPU for it."""
    name = os.environ.get("RANKFOLD_CUDA_DRIVER", "libcuda.so.1")
    try:
        driver = ctypes.CDLL(name)
    except OSError as error:
        raise SystemExit(f"no NVIDIA driver: {error}") from error
    count = ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code or not count.value:
        called = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(called))
        said = (called.value or b"no name").decode()
        raise SystemExit(f"no NVIDIA GPU: the driver gives error {code} ({said}), "
                         f"{count.value} GPUs")  # fmt: skip
    return driver


def attribute(driver: Any, which: int, index: int) -> int:
    device, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetAttribute(
        ctypes.byref(value), which, device
    ):
        raise SystemExit(f"the driver does not answer for GPU {index}")
    return value.value


def look() -> None:
    """Part `gpu`: the driver's own words about the GPUs. Raises SystemExit if nothing can run."""
    driver = load_driver()
    count, version = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    driver.cuDriverGetVersion(ctypes.byref(version))
    major, minor = divmod(version.value // 10, 100)
    print(f"{count.value} GPUs, driver for CUDA {major}.{minor}")
    text = ctypes.create_string_buffer(100)
    for index in range(count.value):
        driver.cuDeviceGetName(text, 100, index)
        pinned = "reach" if attribute(driver, PAGEABLE_ACCESS, index) else "do not reach"
        print(f"GPU {index}: {text.value.decode()}; kernels {pinned} pinned memory")
    if version.value < DRIVER_MIN:
        raise SystemExit(f"the driver is for CUDA {major}.{minor}, and the programs' PTX needs one "
                         "for 13.0 (R580) or newer")  # fmt: skip
    for index in range(count.value):
        if attribute(driver, COMPUTE_MODE, index):
            raise SystemExit(f"GPU {index} is for one process or none, and several proxies are to "
                             f"share it: `nvidia-smi -i {index} -c DEFAULT` lets them")  # fmt: skip


# ---- the parts: each in a process of its own --------------------------------------------------


def run(*command: str | Path, **env: str) -> str:
    """What it prints on stdout. Raises SystemExit with the end of stderr if it fails."""
    words = [str(word) for word in command]
    env = {**os.environ, **env}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: status {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


@contextlib.contextmanager
def fleet() -> Iterator[Callable[..., str]]:
    """`rankfold` on a state directory of its own, all of whose devices are the one GPU."""
    folder = Path(tempfile.mkdtemp(prefix="rankfold-gpu-", dir="/tmp"))
    env = {
        "RANKFOLD_STATE": str(folder / "s"), "RANKFOLD_RUNTIME": str(folder / "r"),
        "RANKFOLD_NVIDIA_SHARE": "1", "RANKFOLD_LINGER": "0.5",
    }  # fmt: skip
    try:
        yield lambda *words: run(PYTHON, "-m", "rankfold", *words, **env)
    finally:
        with contextlib.suppress(SystemExit):
            run(PYTHON, "-m", "rankfold", "stop", "--cancel", **env)
        shutil.rmtree(folder, ignore_errors=True)


def on_gpu(world: int, gpus: int, *command: str | Path) -> list[str]:
    """The ranks' lines, in one order whoever was first."""
    with fleet() as rankfold:
        said = rankfold("run", "--world-size", str(world), "--gpus", str(gpus), "--device",
                        "nvidia", "--memory", "512MiB", "--", *command)  # fmt: skip
    return sorted(said.splitlines())


def same(one: list[str], other: list[str], what: str) -> None:
    if one == other and one:
        print(f"{what}: {len(one)} equal lines")
        return
    different = [pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]]
    raise SystemExit(f"{what}: {len(one)} and {len(other)} lines, differ in {different[:3]}")


def libraries() -> str:
    """Where the toolkit's own runtime is, for programs that run without rankfold."""
    said = subprocess.run([ROOT / "tools/nvcc", "-x", "cu", "-M", "-"], input="#include <cuda.h>\n",
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    header = re.search(r"\S+/cuda\.h", said)
    top = Path(header[0]).resolve().parents[1] if header else ROOT
    return ":".join(str(top / name) for name in ("lib64", "lib"))


def plain(*command: str | Path, **env: str) -> str:
    """A program on the GPU without rankfold."""
    folders = [libraries(), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
             "LD_LIBRARY_PATH": ":".join(folders)}  # fmt: skip
    return run(*command, **alone, **env)


def build() -> None:
    jobs = f"JOBS={os.cpu_count()}"
    for target in ("setup", "native", "cuda"):
        print(run("make", target, jobs)[-500:], flush=True)
    (ROOT / "build/examples").mkdir(exist_ok=True)
    run("make", "-C", "examples/gpt", f"NVCC={ROOT}/tools/nvcc", "ARCH=compute_75",
        f"OUT={ROOT}/build/examples/train_gpt")  # fmt: skip


def header() -> None:
    print(run(PYTHON, "-m", "pytest", "-q", "tests/nvidia/test_header.py",
              "tests/nvidia/test_rewrite.py"))  # fmt: skip


def program(name: str) -> None:
    """Folded on one device, and on a device per rank; alone, also without rankfold."""
    import cuda  # tests/cuda.py, in the virtual environment

    _, world, arguments = next(each for each in PROGRAMS + BEHAVIOUR if each[0] == name)
    if name in BLAS_PROGRAMS:
        library = os.environ.get("RANKFOLD_CUBLASLT", "libcublasLt.so.13")
        try:
            ctypes.CDLL(library)
        except OSError as error:
            raise Skip(f"matrix products need cuBLASLt 13: {error}") from error
    if name in PINNED_PROGRAMS and not attribute(load_driver(), PAGEABLE_ACCESS, 0):
        raise Skip("its kernels use pinned memory, which this GPU reaches only with HMM or ATS")
    command: tuple[str | Path, ...] = (cuda.build(ROOT / f"tests/{name}.cu"), *arguments.split())
    folded = on_gpu(world, 1, *command)
    if world > 1:
        same(folded, on_gpu(world, world, *command), "folded, and each rank on its own device")
        return
    print(f"{len(folded)} lines")
    try:
        ctypes.CDLL("libnccl.so.2")
    except OSError as error:
        raise Skip(f"ran, but not compared with plain CUDA, which needs NCCL: {error}") from error
    same(folded, sorted(plain(*command).splitlines()), "under rankfold, and on plain CUDA")


def gpt() -> None:
    """One rank; and four ranks folded on one GPU, to the bit as on four emulated devices on it."""
    train = (ROOT / "build/examples/train_gpt", "--data", ROOT / "examples/gpt/text/genesis.txt")
    print(on_gpu(1, 1, *train, "--steps", "20")[-1])
    found = []
    for gpus in (1, 4):
        with tempfile.TemporaryDirectory(dir="/tmp") as folder:
            lines = on_gpu(4, gpus, *train, "--steps", "20", "--out", f"{folder}/p")
            files = [path.read_bytes().hex() for path in sorted(Path(folder).glob("p-rank*.bin"))]
        found.append((lines, files))
    same(found[0][0], found[1][0], "the losses of four ranks on one GPU and on four devices")
    same(found[0][1], found[1][1], "their parameters")


def bench() -> None:
    """A call through the proxy to the GPU, and the same program's on plain CUDA."""
    import cuda
    import numpy as np

    print(run("make", "bench-dispatch", "BENCH_ARGS=--device nvidia"))
    binary = cuda.build(ROOT / "benchmarks/dispatch_calls.cu")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for kind in ("launch", "sync"):
            plain(binary, kind, "1000", DISPATCH_CALLS=f"{folder}/calls")
            ns = np.fromfile(f"{folder}/calls", np.float32)
            middle, high = np.percentile(ns, (50, 99))
            print(f"plain CUDA, {kind}: p50 {middle:.0f} ns, p99 {high:.0f} ns")


PARTS: dict[str, tuple[Callable[[], None], float]] = {
    "build": (build, 240.0),
    "header": (header, 60.0),
    **{f"program {name}": (functools.partial(program, name), 40.0) for name, _, _ in PROGRAMS},
    "gpt": (gpt, 120.0),
    "bench": (bench, 90.0),
    **{f"program {name}": (functools.partial(program, name), 40.0) for name, _, _ in BEHAVIOUR},
}


# ---- all of it --------------------------------------------------------------------------------


def one_part(name: str) -> int:
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    try:
        (look if name == "gpu" else PARTS[name][0])()
    except Skip as reason:
        print(reason)
        return SKIPPED
    return 0


def check(only: str) -> int:
    """All parts whose names match. The exit status."""
    report: dict[str, Any] = {**about(), "gpu": "", "parts": []}
    begun = time.monotonic()

    def note(outcome: Outcome) -> Outcome:
        report["parts"].append(asdict(outcome))
        write(report)
        print(f"{outcome.status:8}{outcome.name:28}{outcome.seconds:6.1f} s  {outcome.reason}",
              flush=True)  # fmt: skip
        return outcome

    me = str(Path(__file__))
    first = guarded("gpu", [sys.executable, me, "--part", "gpu"], 60.0)
    report["gpu"] = first.output.strip()
    if first.status != "passed":
        report["parts"] = [asdict(first)]
        write(report)
        words = report["gpu"].splitlines() or [first.reason]
        print(f"gpu-check: {words[-1]}", file=sys.stderr)
        return 1
    failed = False
    for name, (_function, limit) in PARTS.items():
        if not re.search(only, name):
            continue
        left = TOTAL_S - (time.monotonic() - begun)
        if left < 5:
            note(Outcome(name, "skipped", "no time left", 0.0, ""))
            continue
        python = str(PYTHON) if PYTHON.exists() else sys.executable
        outcome = guarded(name, [python, me, "--part", name], min(limit, left))
        failed |= note(outcome).status == "failed"
    print(REPORT)
    return int(failed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--part", help="run one part, here")
    parser.add_argument("--only", default="", help="a regular expression: only these parts")
    options = parser.parse_args()
    return one_part(options.part) if options.part else check(options.only)


if __name__ == "__main__":
    sys.exit(main())
