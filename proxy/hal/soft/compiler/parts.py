"""Large kernels in parts: each becomes an object of its own, in a process of its own.

The forward kernel of FlashAttention has 3 MB of LLVM IR, which take LLVM 6 s. A program needs its
kernels one after another, so other kernels would not keep the other cores busy. The sets of a
kernel (ptx/sets.py) are found concurrently, too. How a kernel is divided depends on its IR alone,
so its objects are the same on every machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankfold.proxy.ptx.errors import UNKNOWN, ModuleError

from .lower import Lowered

PART_BYTES = 700_000  # of IR: a smaller kernel takes about a second
PARTS_MAX = 8
# LLVM reserves no memory for the addresses of functions that an object calls (8 bytes each): they
# use the rest of the last page of its data. So a part has data, and space after it.
_PAGE, _SPARE = 4096, 1024
_DEFINED = re.compile(r"^define internal i64 @((?:seg|step)\d+)\(", re.M)
_CALLED = re.compile(r"call i64 @((?:seg|step)\d+)\(")  # by the other function of the same cut
_NAMED = re.compile(r"ptr @((?:seg|step)\d+)\b")
_PARAMETERS = "ptr, i32, i32, i32, i32, i32"  # SEGMENT_PARAMS


@dataclass(frozen=True)
class Part:
    """The IR of an object, and the functions in it to which the last object refers."""

    ir: str
    exported: tuple[str, ...] = ()


def split(lowered: Lowered) -> list[Part]:
    """Returns the parts of a kernel; the last one has its tables. A small kernel has one."""
    whole = lowered.ir
    count = min(PARTS_MAX, len(whole) // PART_BYTES, len(lowered.segments))
    if count < 2:
        return [Part(whole)]
    parts: list[list[str]] = [[] for _ in range(count)]
    sizes = [0] * count
    for text in sorted(lowered.segments, key=len, reverse=True):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(text)
        sizes[smallest] += len(text)
    split_parts = [_part(lowered, "\n".join(texts)) for texts in parts]
    declared = [f"declare i64 @{n}({_PARAMETERS})" for part in split_parts for n in part.exported]
    tables = _NAMED.sub(rf"ptr @{lowered.symbol}.\1", lowered.tables)
    return [*split_parts, Part("\n".join([lowered.head, *declared, tables, lowered.tail]))]


def _part(lowered: Lowered, text: str) -> Part:
    names = tuple(f"{lowered.symbol}.{name}" for name in _DEFINED.findall(text))
    text = _DEFINED.sub(rf"define i64 @{lowered.symbol}.\1(", text)
    text = _CALLED.sub(rf"call i64 @{lowered.symbol}.\1(", text)
    count = len(names)
    if -8 * count % _PAGE < _SPARE:  # see _SPARE
        count += _SPARE // 8
    pointers = [f"ptr @{name}" for name in names] + ["ptr null"] * (count - len(names))
    label = f"{lowered.symbol}.of.{names[0]}"
    data = [
        f"@{label}.table = constant [{count} x ptr] [{', '.join(pointers)}]",
        f'@{label}.name = constant [16 x i8] c"part of a kernel"',
    ]
    return Part("\n".join([lowered.head, text, *data, lowered.tail]), names)


Task = Callable[[], bytes]


def in_children(tasks: Sequence[Task]) -> list[bytes]:
    """Returns the results of tasks of one compilation, each in a process of its own, as many at
    once as there are cores. Raises ModuleError; a process that crashes or computes for too long
    raises it, too."""
    results = [os.memfd_create("rankfold-part", os.MFD_CLOEXEC) for _ in tasks]
    running: dict[int, int] = {}  # process → part
    try:
        for number, task in enumerate(tasks):
            if len(running) >= max(1, os.cpu_count() or 1):
                _wait_for_one(running)
            running[_start(task, results[number])] = number
        while running:
            _wait_for_one(running)
        return [_result(each) for each in results]
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for each in results:
            os.close(each)


def _start(task: Task, result: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == parent:
            os.pwrite(result, _outcome(task), 0)
    finally:
        os._exit(0)


def _outcome(task: Task) -> bytes:
    try:
        return b"+" + task()
    except ModuleError as error:
        return b"-" + json.dumps([error.code, error.message]).encode()
    except Exception as error:  # noqa: BLE001  a fault of ours, or no memory: reported as such
        return b"-" + json.dumps([UNKNOWN, f"the compiler failed: {error!r}"]).encode()


def _wait_for_one(running: dict[int, int]) -> None:
    """Waits until the oldest of these processes ends. Raises ModuleError if it was killed."""
    pid = next(iter(running))
    _, status = os.waitpid(pid, 0)
    del running[pid]
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGXCPU:
            raise ModuleError(UNKNOWN, "the compilation of a part of it timed out")
        problem = f"the compilation of a part of it was killed by signal {number}"
        raise ModuleError(UNKNOWN, problem)


def _result(fd: int) -> bytes:
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    if data[:1] == b"+":
        return data[1:]
    if data[:1] == b"-":
        raise ModuleError(*json.loads(data[1:]))
    raise ModuleError(UNKNOWN, "the compilation of a part of it failed")
