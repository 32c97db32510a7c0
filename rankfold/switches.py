"""The environment variables that configure rankfold: names, types, defaults (docs/switches.md).

Commands, the reconciler, proxies and launchers read them through this module; `check` refuses bad
values of all of them before anything is done, instead of failing in one process later.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from rankfold.legible import is_utf8

LINGER_S = 2.0
REST_SAVE_AFTER_S = 2.0  # short for watchdogs of 5 s: a rank's clock runs until its local snapshot
# An upload or fetch without 4 MiB of progress (the largest piece) for this long is stuck: any
# useful connection is faster.
STUCK_S = 300.0
CRIU_STUCK_S = 60.0
CACHE_MIB = 4096
VALIDATE = 256  # collectives of a communicator between two cross-checks

_PREFIX = "RANKFOLD_"


class BadSwitch(ValueError):
    """The message has the variable, its value and the values that are allowed."""


def check() -> None:
    """Check the values of all variables. Raises BadSwitch."""
    for name, value in os.environ.items():
        if name.startswith(_PREFIX) and not is_utf8(value):
            raise BadSwitch(f"{name}={os.fsencode(value)!r} is not UTF-8")
    for read in _READERS.values():
        read()


def known() -> set[str]:
    """The names of all switches."""
    return {*_READERS, *_OTHERS}


def unknown() -> list[str]:
    """A line for each variable that looks like one of ours and is none."""
    lines = []
    for name in sorted(name for name in os.environ if name.startswith(_PREFIX)):
        if name not in known():
            import difflib  # commands start faster without it

            rests = [each.removeprefix(_PREFIX) for each in known()]
            near = difflib.get_close_matches(name.removeprefix(_PREFIX), rests, 1, 0.75)
            hint = f"; did you mean {_PREFIX}{near[0]}?" if near else ""
            lines.append(f"{name} has no effect: rankfold knows no such switch{hint}")
    return lines


def linger_s() -> float:
    return _seconds("RANKFOLD_LINGER", LINGER_S)


def stuck_s() -> float:
    return _seconds("RANKFOLD_STUCK", STUCK_S)


def criu_stuck_s() -> float:
    return _seconds("RANKFOLD_CRIU_STUCK", CRIU_STUCK_S)


def rest_save_after_s() -> float | None:
    """Seconds for which a job rests in memory before its local snapshot is made; None: it stays."""
    name = "RANKFOLD_REST_SAVE_AFTER"
    if os.environ.get(name) == "never":
        return None
    return _seconds(name, REST_SAVE_AFTER_S, otherwise=", or never")


def quantum_s() -> float:
    """Seconds for which a rank may keep its device; 0: the core's default."""
    return _seconds("RANKFOLD_QUANTUM", 0.0, most=math.inf)


def host_memory() -> int | None:
    """Bytes of host memory for jobs; None: not set."""
    return _count("RANKFOLD_HOST_MEMORY", "a number of bytes")


def cache_bytes() -> int:
    """The most bytes that the folder of compiled kernels keeps."""
    mib = _count("RANKFOLD_CACHE_MIB", "a number of MiB")
    return (CACHE_MIB if mib is None else mib) << 20


def validate() -> int:
    """Collectives of a communicator between two cross-checks; 0: never."""
    count = _count("RANKFOLD_VALIDATE", "a number of collectives")
    return VALIDATE if count is None else count


def share(default: bool) -> bool:
    """Whether ranks of a job share a device's memory; the default depends on the device."""
    return _flag("RANKFOLD_SHARE", default)


def squash() -> bool:
    return _flag("RANKFOLD_SQUASH", True)


def prefetch() -> bool:
    return _flag("RANKFOLD_PREFETCH", True)


def opaque() -> bool:
    return _flag("RANKFOLD_OPAQUE", False)


_READERS: dict[str, Callable[[], object]] = {
    "RANKFOLD_LINGER": linger_s,
    "RANKFOLD_STUCK": stuck_s,
    "RANKFOLD_CRIU_STUCK": criu_stuck_s,
    "RANKFOLD_REST_SAVE_AFTER": rest_save_after_s,
    "RANKFOLD_QUANTUM": quantum_s,
    "RANKFOLD_HOST_MEMORY": host_memory,
    "RANKFOLD_CACHE_MIB": cache_bytes,
    "RANKFOLD_VALIDATE": validate,
    "RANKFOLD_SHARE": lambda: share(True),
    "RANKFOLD_SQUASH": squash,
    "RANKFOLD_PREFETCH": prefetch,
    "RANKFOLD_OPAQUE": opaque,
    "RANKFOLD_NCCL": lambda: _flag("RANKFOLD_NCCL", True),  # these three are read by C
    "RANKFOLD_NCCL_CONNECT": lambda: _seconds("RANKFOLD_NCCL_CONNECT", 120),
    "RANKFOLD_NVIDIA_SHARE": lambda: _flag("RANKFOLD_NVIDIA_SHARE", False),
}
# Read elsewhere: every text is valid, or the reader reports a bad one.
_OTHERS = {
    "RANKFOLD_SWAPS",
    "RANKFOLD_COMPILER_OUTPUT",
    "RANKFOLD_STATE",
    "RANKFOLD_RUNTIME",
    "RANKFOLD_CACHE",
    "RANKFOLD_LOG",
    "RANKFOLD_CUDA_DRIVER",
    "RANKFOLD_CUBLASLT",
    "RANKFOLD_LIBRARIES",
    "RANKFOLD_NATIVE",
    "RANKFOLD_PROXY",
    "RANKFOLD_FAULT",
    "RANKFOLD_FAKE_DEVICES",
    "RANKFOLD_FAKE_FAIL",
    "RANKFOLD_FAKE_FAULTS",
    "RANKFOLD_FAKE_KERNELS",
    "RANKFOLD_FAKE_NCCL_HANG",
    "RANKFOLD_FAKE_NCCL_STUCK",
    "RANKFOLD_FAKE_NCCL_VERSION",
    "RANKFOLD_FAKE_NO_PEERS",
    "RANKFOLD_FAKE_SLOW_US",
    "RANKFOLD_TEST_HAL",
    "RANKFOLD_TEST_DEVICE",
    "RANKFOLD_TEST_CI",
    "RANKFOLD_TEST_FOLDER",
    "RANKFOLD_LLMC",
    "RANKFOLD_LAUNCHER",
}


def _seconds(name: str, default: float, *, most: float = 1e300, otherwise: str = "") -> float:
    if not (text := os.environ.get(name)):
        return default
    try:
        if 0 <= (seconds := float(text)) <= most:  # not NaN
            return seconds
    except ValueError:
        pass
    raise BadSwitch(f"{name} is {text!r}; it must be a number of seconds{otherwise}")


def _count(name: str, kind: str) -> int | None:
    if not (text := os.environ.get(name)):
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 4000):
        raise BadSwitch(f"{name} is {text!r}; it must be {kind}")
    return int(text)


def _flag(name: str, default: bool) -> bool:
    if not (text := os.environ.get(name)):
        return default
    if text not in ("0", "1"):
        raise BadSwitch(f"{name} is {text!r}; it must be 0 or 1")
    return text == "1"
