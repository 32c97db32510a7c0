"""The parts that `make gpu-check` runs on a machine with an NVIDIA GPU, each in its own process.

Only the standard library is imported here: the first parts run before there is anything else. A
part prints what it found; it fails with `SystemExit` or any other error, and raises `Skip` where it
cannot run.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv/bin/python"
FIGURES = ROOT / "build/gpu/probe.json"
PYTHONS = ROOT / "build/gpu/pythons.json"  # the answers of `python_with`

# A program, its ranks and arguments: what tests/running runs on software GPUs, and the NVIDIA HAL's
# own.
PROGRAMS: tuple[tuple[str, int, str], ...] = (
    ("nvidia/counting", 3, "20"),
    ("programs/symbols", 3, "30"),
    ("programs/streams", 3, "30"),
    ("programs/events", 2, "30"),
    ("programs/reductions", 3, "8"),
    ("programs/ring", 3, "30"),
    ("programs/subgroups", 5, "30"),
    ("programs/mlp_sharded", 3, "30"),
    ("programs/conv_mixed", 2, "30"),
    ("programs/launch_bound", 2, "100"),
    ("programs/host_functions", 2, "50"),
    ("programs/graphs", 2, "30"),
    ("programs/captures", 2, "10"),
    ("programs/pools", 2, "30"),
    ("programs/boxes", 2, "8"),
    ("programs/poll", 3, "30"),
    ("programs/alone", 1, "40"),
    ("programs/tcp_wait", 3, "50"),
    ("programs/grid_sync", 1, "10"),
    ("nvidia/products", 3, "20"),
    ("programs/mlp_blas", 3, "30"),
    ("nvidia/linear", 2, "10"),
    ("nvidia/convolutions", 2, "6"),
    ("nvidia/layers", 2, "6"),
    ("nvidia/losses", 2, "6"),
    ("nvidia/tensors", 2, "6"),
)
# Programs that check calls, and programs that take memory or time; they run last. "/": a file that
# exists, for programs that continue once their file exists.
BEHAVIOUR: tuple[tuple[str, int, str], ...] = (
    ("programs/copies", 2, "/"),
    ("programs/fills", 2, "/"),
    ("programs/occupancy", 2, "/"),
    ("programs/threads", 2, "/"),
    ("nvidia/collectives", 4, "/ 2"),
    ("programs/timing", 2, "/"),
    ("programs/device_facts", 2, "/"),
    ("programs/host_calls", 1, "/"),
    ("programs/errors", 1, "/"),
    ("programs/parallel_algorithms", 1, "/"),
    ("programs/sends_ahead", 2, "/ 20"),
    ("programs/large_state", 3, "8 96 3"),
    ("programs/out_of_memory", 2, "4"),
)
BLAS_PROGRAMS = ("nvidia/products", "programs/mlp_blas")
OWN_LIBRARIES = {
    "nvidia/linear": ("libcufft.so.12", "libcusolver.so.12"),
    "nvidia/convolutions": ("libcudnn.so.9",),
    "nvidia/layers": ("libcudnn.so.9",),
    "nvidia/losses": ("libcudnn.so.9",),
    "nvidia/tensors": ("libcudnn.so.9",),
}
# Their kernels use pinned memory.
PINNED_PROGRAMS = ("programs/host_functions", "programs/host_calls")
RECOVERIES = "checkpoint_while_it_runs or everything_is_killed or rests_in_the_store"
DRIVER_MIN = 13000  # of CUDA 13, whose nvcc builds the programs: older drivers do not take its PTX
# CUdevice_attribute: the last is that kernels use host pointers of registered memory.
COMPUTE_MODE, PAGEABLE_ACCESS, REGISTERED_ACCESS = 20, 88, 91


class Skip(Exception):
    """A part cannot run here; the message says why."""


# ---- the driver -----------------------------------------------------------------------------


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
        raise SystemExit(
            f"no NVIDIA GPU: the driver gives error {code} ({said}), {count.value} GPUs"
        )
    return driver


def attribute(driver: Any, which: int, index: int) -> int:
    device, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuDeviceGet(ctypes.byref(device), index) or driver.cuDeviceGetAttribute(
        ctypes.byref(value), which, device
    ):
        raise SystemExit(f"the driver does not answer for GPU {index}")
    return value.value


def reach_pinned(driver: Any, index: int) -> bool:
    """Whether kernels reach a rank's pinned memory."""
    return any(attribute(driver, each, index) for each in (PAGEABLE_ACCESS, REGISTERED_ACCESS))


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
        pinned = "reach" if reach_pinned(driver, index) else "do not reach"
        print(f"GPU {index}: {text.value.decode()}; kernels {pinned} pinned memory")
    if version.value < DRIVER_MIN:
        raise SystemExit(
            f"the driver is for CUDA {major}.{minor}, and the programs' PTX needs one "
            "for 13.0 (R580) or newer"
        )
    for index in range(count.value):
        if attribute(driver, COMPUTE_MODE, index):
            raise SystemExit(
                f"GPU {index} is for one process or none, and several proxies are to "
                f"share it: `nvidia-smi -i {index} -c DEFAULT` lets them"
            )


# ---- the parts: each in a process of its own --------------------------------------------------


def run(*command: str | Path, **env: str) -> str:
    """Runs a command and returns its stdout. Raises SystemExit with the end of stderr if it
    fails."""
    words = [str(word) for word in command]
    env = {**os.environ, **env}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: status {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


@contextlib.contextmanager
def fleet() -> Iterator[Callable[..., str]]:
    """`rankfold` on a state directory of its own, all of whose devices are the one GPU."""
    with fleet_in() as (rankfold, _):
        yield rankfold


@contextlib.contextmanager
def fleet_in() -> Iterator[tuple[Callable[..., str], Path]]:
    """The same, and the folder with its state directory `s`."""
    folder = Path(tempfile.mkdtemp(prefix="rankfold-gpu-", dir="/tmp"))
    env = {
        "RANKFOLD_STATE": str(folder / "s"),
        "RANKFOLD_RUNTIME": str(folder / "r"),
        "RANKFOLD_NVIDIA_SHARE": "1",
        "RANKFOLD_LINGER": "0.5",
        "PYTHONPATH": "",  # programs must not find the tests' packages, such as `nvidia`
    }
    try:
        yield lambda *words: run(PYTHON, "-m", "rankfold", *words, **env), folder
    except SystemExit:
        for log in sorted((folder / "s").rglob("*.log")):
            if text := log.read_text(errors="replace").strip():
                print(f"---- {log.relative_to(folder / 's')}\n{text[-1500:]}", flush=True)
        raise
    finally:
        with contextlib.suppress(SystemExit):
            run(PYTHON, "-m", "rankfold", "stop", "--cancel", **env)
        shutil.rmtree(folder, ignore_errors=True)


def on_gpu(world: int, gpus: int, *command: str | Path, memory: str = "512MiB") -> list[str]:
    """The ranks' lines, in one order whoever was first."""
    with fleet() as rankfold:
        return run_on(rankfold, world, gpus, memory, command)


def run_on(
    rankfold: Callable[..., str],
    world: int,
    gpus: int,
    memory: str,
    command: Sequence[str | Path],
    level: str = "D1",
) -> list[str]:
    """As `on_gpu`, in a fleet that is there."""
    places = ("--world-size", str(world), "--gpus", str(gpus), "--determinism", level)
    devices = ("--device", "nvidia", "--memory", memory)
    return sorted(rankfold("run", *places, *devices, "--", *command).splitlines())


def same(one: list[str], other: list[str], what: str) -> None:
    if one == other and one:
        print(f"{what}: {len(one)} equal lines")
        return
    different = [pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]]
    raise SystemExit(f"{what}: {len(one)} and {len(other)} lines, differ in {different[:3]}")


def libraries() -> str:
    """The folder of the toolkit's own runtime, for programs that run without rankfold."""
    said = subprocess.run(
        [ROOT / "tools/nvcc", "-x", "cu", "-M", "-"],
        input="#include <cuda.h>\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    header = re.search(r"\S+/cuda\.h", said)
    top = Path(header[0]).resolve().parents[1] if header else ROOT
    return ":".join(str(top / name) for name in ("lib64", "lib"))


def plain(*command: str | Path, **env: str) -> str:
    """A program on the GPU without rankfold."""
    folders = [libraries(), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    alone = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LD_LIBRARY_PATH": ":".join(folders),
        "PYTHONPATH": "",
    }
    return run(*command, **alone, **env)


def probe() -> None:
    """The figures of probe.c, on stdout as a table and in the report."""
    binary = ROOT / "build/gpu/probe"
    binary.parent.mkdir(parents=True, exist_ok=True)
    sources = (ROOT / "tests/gpu/probe.c", ROOT / "proxy/hal/nvidia/driver.c")
    run(
        os.environ.get("CC", "gcc"),
        "-std=c11",
        "-D_GNU_SOURCE",
        "-O2",
        f"-I{ROOT}/interpose/channel",
        f"-I{ROOT}/proxy/hal/nvidia",
        "-o",
        binary,
        *sources,
        "-ldl",
        "-lpthread",
    )
    figures: list[dict[str, Any]] = []
    for mode in ("all", "pinned", "shared"):
        figures += map(json.loads, run(binary, mode).splitlines())
        FIGURES.write_text(json.dumps(figures))
    for figure in figures:
        print(f"{figure['name']:28}{figure['value']:>12.6g} {figure['unit']:6}{figure['how']}")


def build() -> None:
    jobs = f"JOBS={os.cpu_count()}"
    for target in ("setup", "native", "cuda"):
        print(run("make", target, jobs)[-500:], flush=True)


def compile_gpt() -> None:
    (ROOT / "build/examples").mkdir(exist_ok=True)
    run(
        "make",
        "-C",
        "examples/gpt",
        f"NVCC={ROOT}/tools/nvcc",
        "ARCH=compute_75",
        f"OUT={ROOT}/build/examples/train_gpt",
    )


def compile_programs() -> None:
    """Side by side, so that no later part spends its time on it."""
    import cuda  # tests/cuda.py, in the virtual environment

    names = ["benchmarks/dispatch_calls", "benchmarks/copies"]
    names += [f"tests/{name}" for name, _, _ in PROGRAMS + BEHAVIOUR]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waited: list[Future[Any]] = [pool.submit(compile_gpt)]
        waited.append(pool.submit(cuda.build, ROOT / "tests/nvidia/counting.cu", args=STATIC))
        waited += [pool.submit(cuda.build, ROOT / f"{name}.cu") for name in names]
    failed = [error for one in waited if (error := one.exception()) is not None]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(waited)} programs: {failed[0]}")
    print(f"{len(waited)} programs")


def header() -> None:
    print(
        run(
            PYTHON,
            "-m",
            "pytest",
            "-q",
            "tests/nvidia/test_header.py",
            "tests/nvidia/test_rewrite.py",
        )
    )


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
    for library in OWN_LIBRARIES.get(name, ()):
        try:
            ctypes.CDLL(library)
        except OSError as error:
            raise Skip(f"it needs NVIDIA's {library}: {error}") from error
    if name in PINNED_PROGRAMS and not reach_pinned(load_driver(), 0):
        raise Skip("its kernels use pinned memory, which this GPU does not reach")
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


def nccl() -> None:
    """All collectives at D0 on two GPUs, between which NCCL sums: the same lines twice."""
    import cuda

    count = ctypes.c_int()
    load_driver().cuDeviceGetCount(ctypes.byref(count))
    if count.value < 2:
        raise Skip("NCCL between devices needs two GPUs")
    command = (cuda.build(ROOT / "tests/nvidia/collectives.cu"), "/", "2")
    with fleet_in() as (rankfold, folder):
        one, again = (run_on(rankfold, 4, 2, "512MiB", command, "D0") for _ in range(2))
        logs = [log.read_text() for log in (folder / "s").rglob("*.log")]
    said = {line.split(": ", 1)[1] for log in logs for line in log.splitlines() if "NCCL" in line}
    print(*sorted(said), sep="\n")
    if not any("go by NCCL" in line for line in said):
        raise SystemExit("NCCL was not used")
    same(one, again, "two runs at D0")


STATIC = ("-cudart", "static")


def static() -> None:
    """A program with nvcc's default, the static runtime, gives what it gives with the shared."""
    import cuda

    source, world = ROOT / "tests/nvidia/counting.cu", 3
    shared, linked = (
        on_gpu(world, 1, cuda.build(source, args=args), "20") for args in ((), STATIC)
    )
    same(shared, linked, "shared and static runtime")


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


def pytorch() -> None:
    """PyTorch as the machine has it (examples/torch): one rank, with and without rankfold; and two
    and four ranks folded on one GPU, to the bit as on a device each."""
    script = ROOT / "examples/torch/train_gpt.py"
    train = (
        python_with(SEES_TORCH, "a PyTorch"),
        script,
        "--steps",
        "10",
        "--workers",
        "0",
        "--batch",
        "16",
    )
    alone = plain(*train, MASTER_ADDR="127.0.0.1", MASTER_PORT="29531").splitlines()
    one = on_gpu(1, 1, *train, memory="2GiB")
    _compare(alone, one)
    for world in (2, 4):
        folded, apart = (on_gpu(world, gpus, *train, memory="2GiB") for gpus in (1, world))
        same(folded, apart, f"the losses of {world} ranks on one GPU and on {world} devices")


def framework(name: str) -> None:
    """A framework's training steps (frameworks.py), with and without rankfold."""
    sees, what = FRAMEWORKS[name]
    train = (python_with(sees, what), ROOT / "tests/gpu/frameworks.py", name)
    _compare(plain(*train).splitlines(), on_gpu(1, 1, *train, memory="8GiB"))


def elastic() -> None:
    """The elastic runtime in one process and in several, against DistributedDataParallel over gloo
    with tensors on the one GPU."""
    python = python_with(SEES_TESTED_TORCH, "a PyTorch that the elastic runtime was tested with")
    note = ROOT / "build/gpu/elastic-gpus.json"
    words = ("-m", "rankfold.elastic", "compare", "--covered", note)
    print(run(python, *words, PYTHONPATH=str(ROOT)))


def _compare(alone: list[str], one: list[str]) -> None:
    """Losses on plain CUDA, and of one rank. They may differ a little where the algorithms do."""
    print("plain CUDA:", *alone[-1:], "\nrankfold:  ", *one[-1:])
    equal = len(set(alone) & set(one))
    print(f"one rank: {equal} of {len(alone)} losses have the bits of plain CUDA")
    pairs = zip(map(_loss, sorted(alone)), map(_loss, one), strict=True)
    if far := [pair for pair in pairs if abs(pair[0] - pair[1]) > 0.02 * abs(pair[0])]:
        raise SystemExit(f"one rank: losses on plain CUDA and under rankfold: {far[:3]}")


def _loss(line: str) -> float:
    """The loss in a line such as `step 7 loss 3.14159274 40490fdb`."""
    found = re.search(r"loss (\S+)", line)
    if not found:
        raise SystemExit(f"not a line with a loss: {line}")
    return float(found[1])


SEES_TORCH = "import sys, torch; sys.exit(not torch.cuda.is_available())"
SEES_TESTED_TORCH = f"""
import sys
sys.path.append({str(ROOT)!r})
from rankfold.elastic import private
private.check_version(private.torch.__version__)
sys.exit(not private.torch.cuda.is_available())
"""
FRAMEWORKS = {
    "torch": (SEES_TORCH, "a PyTorch"),
    "compiled": (SEES_TORCH + "\nimport triton", "a PyTorch"),
    "cupy": ("import cupy; cupy.zeros(1)", "a CuPy"),
    "jax": ("import jax; assert jax.devices()[0].platform == 'gpu'", "a JAX"),
}


def python_with(sees: str, what: str) -> str:
    """An interpreter of this machine for which the program `sees` succeeds: tried once in a run of
    the check, because to import PyTorch takes seconds. Raises Skip."""
    known = json.loads(PYTHONS.read_text()) if PYTHONS.exists() else {}
    if sees not in known:
        known[sees] = _first_python(sees)
        PYTHONS.parent.mkdir(parents=True, exist_ok=True)
        PYTHONS.write_text(json.dumps(known))
    if not known[sees]:
        raise Skip(f"no Python here has {what} that sees the GPU")
    return str(known[sees])


def _first_python(sees: str) -> str:
    tried = ["python3", *(f"/usr/{folder}/python3" for folder in ("local/bin", "bin"))]
    for python in dict.fromkeys(filter(None, map(shutil.which, tried))):
        if subprocess.run([python, "-c", sees], capture_output=True).returncode == 0:
            return python
    return ""


def first_library(*names: str) -> str:
    """The first of these libraries that can be loaded. Raises Skip."""
    reasons = []
    for name in names:
        try:
            ctypes.CDLL(name)
            return name
        except OSError as error:
            reasons.append(str(error))
    raise Skip("; ".join(reasons))


def need_checkpoints() -> None:
    """Raises Skip where processes cannot be saved."""
    lacking = [
        line
        for line in run(PYTHON, "-m", "rankfold", "doctor").splitlines()
        if re.match(r"(?!ok).*(CRIU|nft|pid namespaces)", line)
    ]
    if lacking:
        raise Skip(lacking[0])


def recovery() -> None:
    """The GPT saved while it runs, killed, restarted; suspended into the store, and woken."""
    need_checkpoints()
    print(
        run(
            PYTHON,
            "-m",
            "pytest",
            "-q",
            "tests/recovery/test_life.py",
            "-k",
            RECOVERIES,
            RANKFOLD_TEST_DEVICE="nvidia",
        )
    )


def answers() -> None:
    """Plain CUDA still answers unusual calls as tests/programs/answers.txt says."""
    import cuda

    lines = plain(cuda.build(cuda.PROGRAMS / "answers.cu")).splitlines()
    same((cuda.PROGRAMS / "answers.txt").read_text().splitlines(), lines, "noted, and given")


def launches() -> None:
    """The GPU computes the launches of the software GPU's own tests to the same bits
    (replay.py)."""
    files = sorted((ROOT / "tests/softgpu").glob("test_*.py"))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:

        def record(file: Path) -> None:
            run(
                PYTHON,
                "-m",
                "pytest",
                "-q",
                "-p",
                "gpu.recorder",
                file,
                CI="1",
                RECORDED_LAUNCHES=folder,
            )

        with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
            list(pool.map(record, files))
        print(run(PYTHON, "-m", "gpu.replay", folder))


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


def table(name: str) -> None:
    """A part of tables.py, which imports this file."""
    from gpu import tables

    getattr(tables, name)()


FIRST = ("nvidia/counting", "nvidia/products")
TABLES = {
    "moves": 150.0,
    "overhead": 120.0,
    "calls": 90.0,
    "switch": 60.0,
    "copies": 40.0,
    "allocators": 100.0,
}
_EACH = {
    f"program {name}": (functools.partial(program, name), 40.0)
    for name, _, _ in PROGRAMS + BEHAVIOUR
}
_FRAMEWORKS = {
    f"framework {name}": (functools.partial(framework, name), 100.0) for name in FRAMEWORKS
}
_PYTORCH = {name: _FRAMEWORKS[name] for name in ("framework torch", "framework compiled")}
_TABLES = {name: (functools.partial(table, name), limit) for name, limit in TABLES.items()}
# By importance: what there is no time for is at the end.
PARTS: dict[str, tuple[Callable[[], None], float]] = {
    "probe": (probe, 30.0),
    "build": (build, 240.0),
    "header": (header, 60.0),
    "compile": (compile_programs, 240.0),
    **{f"program {name}": _EACH[f"program {name}"] for name in FIRST},
    "static": (static, 40.0),
    "gpt": (gpt, 120.0),
    "nccl": (nccl, 90.0),
    "pytorch": (pytorch, 150.0),
    **_PYTORCH,
    "recovery": (recovery, 120.0),
    **{name: _TABLES[name] for name in ("moves", "overhead")},
    "bench": (bench, 90.0),
    **_TABLES,
    "elastic": (elastic, 120.0),
    **_FRAMEWORKS,
    "answers": (answers, 60.0),
    "launches": (launches, 120.0),
    **_EACH,
}
SIDE_BY_SIDE = _EACH.keys() - {f"program {name}" for name in FIRST}
