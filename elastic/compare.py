"""Compares the runtime with stock DistributedDataParallel over gloo on a GPU, and notes its type.

Runs at D1 use only types that are noted: each loss, gradient norm, parameter and state of the
optimizer had the bits of stock processes there, which all use the one GPU, in one process and in
several, and across changes of their number.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import rankfold

from . import gpu

WORLD = 3
RUNS = (("--processes=1",), ("--processes=2",), ("--schedule=0:1,3:2,6:3,11:1",))
TIMEOUT_S = 600.0
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "GLOO_SOCKET_IFNAME": "lo",
}
SHOW = """
import sys
from rankfold.elastic import errors, gpu
try:
    gpu.start(gpu.Gpu(sys.argv[1]))
except errors.NotSupported as reason:
    sys.exit(str(reason))
print(gpu.kind())
"""


class Differs(Exception):
    """Why the type of GPU is not noted."""


def _environment(name: str | None) -> dict[str, str]:
    """`name`: of the GPU; None: none, and the processes use the CPU."""
    packages = str(Path(rankfold.__file__).resolve().parents[1])
    path = ":".join(filter(None, [os.environ.get("PYTHONPATH"), packages]))
    return {**os.environ, **ENVIRONMENT, gpu.VISIBLE: name or "", "PYTHONPATH": path}


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _output(process: subprocess.Popen[str]) -> str:
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Differs(f"not over after {TIMEOUT_S:.0f} s: {process.args!r}") from None
    if process.returncode:
        raise Differs(f"{process.args!r} exited with {process.returncode}: {err[-3000:]}")
    return out


def _start(environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stock(name: str | None) -> list[str]:
    """Runs the script in stock processes; returns the output of each rank."""
    environment = _environment(name) | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _free_port(),
        "WORLD_SIZE": str(WORLD),
        "LOCAL_RANK": "0",
    }
    module = ("-m", "rankfold.elastic.compared")
    started = [_start({**environment, "RANK": str(rank)}, *module) for rank in range(WORLD)]
    try:
        return [_output(each) for each in started]
    finally:
        for each in started:
            each.kill()
            each.communicate()


def elastic(name: str | None, options: Sequence[str], covered: Path) -> list[str]:
    """Runs it in logical workers; returns the output of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        gpus = ["--gpus", name, "--covered", str(covered)] if name else []
        script = Path(folder, "script", "compared.py")  # not where this package has its modules
        script.parent.mkdir()
        script.write_bytes(Path(__file__).with_name(script.name).read_bytes())
        run = ["run", "--world", str(WORLD), "--state", folder, *options, *gpus, str(script)]
        process = _start(_environment(name), "-m", "rankfold.elastic", *run)
        try:
            _output(process)
        except Differs as reason:
            errors = [each.read_text() for each in sorted(Path(folder).glob("rank-*.err"))]
            raise Differs(f"{reason}\n{''.join(errors)[-3000:]}") from None
        finally:
            process.kill()
            process.communicate()
        return [Path(folder, f"rank-{rank}.out").read_text() for rank in range(WORLD)]


def compare(name: str | None, covered: Path) -> int:
    """Returns how many lines were equal in each run. Raises Differs. `covered`: a file that has the
    type of the GPU already."""
    expected = stock(name)
    for options in RUNS:
        for mine, its in zip(elastic(name, options, covered), expected, strict=True):
            pairs = zip(mine.splitlines(), its.splitlines(), strict=False)
            for line, stock_line in pairs:
                if line != stock_line:
                    raise Differs(f"{' '.join(options)}: {line}, in stock processes {stock_line}")
            if mine != its or not its:
                raise Differs(f"{' '.join(options)}: the outputs have different lengths")
    return sum(each.count("\n") for each in expected)


def _kind(name: str) -> str:
    """The type of the GPU. Raises Differs if PyTorch does not see it."""
    shown = _start(_environment(name), "-c", SHOW, name)
    kind, why = (text.strip() for text in shown.communicate())
    if shown.returncode:
        raise Differs(why)
    return kind


def cover(name: str, file: Path) -> str:
    """Compares on a GPU, and adds its type to those in a file. Returns a line about it."""
    kind = _kind(name)
    with tempfile.TemporaryDirectory() as folder:
        (meanwhile := Path(folder, "covered.json")).write_text(json.dumps([kind]))
        lines = compare(name, meanwhile)
    file = file.expanduser()
    file.parent.mkdir(parents=True, exist_ok=True)
    (new := file.with_name(f"{file.name}.{os.getpid()}")).write_text(
        json.dumps(sorted({*gpu.covered(file), kind}), indent=1) + "\n"
    )
    new.rename(file)
    return f"{kind}: {lines} lines of {WORLD} ranks are those of stock processes; noted in {file}"
