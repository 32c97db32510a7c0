"""Builds CUDA programs for tests, with whatever CUDA 13 compiler ``tools/nvcc`` finds.

The results are below ``build/tests/``, named by the content of everything they are made from, so
that a program is compiled once and never stale.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from rankfold.paths import REPOSITORY

NVCC = REPOSITORY / "tools/nvcc"
CACHE = REPOSITORY / "build/tests"
PROGRAMS = REPOSITORY / "tests/programs"
LIBRARIES = {
    "nccl.h": "-lnccl",
    "cuda.h": "-lcuda",
    "cublas_v2.h": "-lcublas",
    "cublasLt.h": "-lcublasLt",
    "cudnn_ops.h": "-lcudnn",
    "cudnn_backend.h": "-lcudnn",
    "cufft.h": "-lcufft",
    "cusolverDn.h": "-lcusolver",
}
DEFAULTS = ("-O3", "-std=c++17", "-cudart", "shared", "-arch=compute_75")


def build(source: Path | str, *, args: Sequence[str] = (), suffix: str = "") -> Path:
    """The program compiled from `source`: a ``.cu`` file, or CUDA C++ text.

    `args` are added to nvcc's arguments; arguments that contradict `DEFAULTS` replace them.
    A program is linked with the `LIBRARIES` whose headers it includes. Raises `AssertionError` with
    the compiler's output when it does not compile.
    """
    if isinstance(source, str):
        source = _as_file(source)
    flags = [*_defaults(args), *args]
    text = "".join(path.read_text() for path in _sources(source))
    if "-ptx" not in flags:
        flags += [library for header, library in LIBRARIES.items() if f"<{header}>" in text]
    target = CACHE / f"{source.stem}-{_digest(source, flags)}{suffix}"
    with _lock(target):
        if not target.exists():
            _compile(source, flags, target)
    return target


def link(objects: Sequence[Path], target: Path, *args: str) -> Path:
    """Link objects that `build` made with ``-c``, as nvcc does without arguments: with a static
    runtime. Raises `AssertionError` with the linker's output."""
    _run([str(NVCC), "-cudart", "static", "-o", str(target), *map(str, objects), *args])
    return target


def ptx(source: Path | str, *, args: Sequence[str] = ()) -> str:
    """The PTX of `source`, for tests that load a kernel themselves."""
    return build(source, args=["-ptx", *args], suffix=".ptx").read_text()


def _defaults(args: Sequence[str]) -> list[str]:
    flags = list(DEFAULTS)
    if any(arg.startswith(("-arch", "-gencode")) for arg in args):
        flags.remove("-arch=compute_75")
    if "-cudart" in args:
        del flags[flags.index("-cudart") : flags.index("-cudart") + 2]
    return flags


def _compile(source: Path, flags: Sequence[str], target: Path) -> None:
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    _run([str(NVCC), *flags, "-o", str(fresh), str(source)])
    fresh.rename(target)


def _run(command: Sequence[str]) -> None:
    # Without the sanitizers, where `make sanitize` has them loaded: nvcc crashes with them.
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def _as_file(text: str) -> Path:
    name = CACHE / f"inline-{hashlib.sha256(text.encode()).hexdigest()[:16]}.cu"
    name.parent.mkdir(parents=True, exist_ok=True)
    name.write_text(text)
    return name


def _sources(source: Path) -> Iterator[Path]:
    """`source` and what it includes with quotes, nearest first, each once."""
    seen, left = set(), [source.resolve()]
    while left:
        path = left.pop(0)
        if path in seen or not path.exists():
            continue
        seen.add(path)
        yield path
        for name in re.findall(r'^\s*#include "([^"]+)"', path.read_text(), re.MULTILINE):
            left.append((path.parent / name).resolve())


@functools.cache
def _compiler() -> str:
    done = subprocess.run([NVCC, "--version"], capture_output=True, text=True, check=True)
    return done.stdout


def _digest(source: Path, flags: Sequence[str]) -> str:
    content = hashlib.sha256("\0".join([_compiler(), *flags]).encode())
    for path in _sources(source):
        content.update(path.read_bytes())
    return content.hexdigest()[:16]


@contextlib.contextmanager
def _lock(target: Path) -> Iterator[None]:
    """Holds the cache entry of `target`, so that parallel tests build it once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f".{target.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
