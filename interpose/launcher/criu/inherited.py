"""Settings that all processes of a rank share, and that restored ones inherit from CRIU's process.

CRIU forks them, so they start with the settings of its own process, which we make before we execute
it. All threads of the rank must have those of its first thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rankfold.interpose.launcher.rank import process
from rankfold.interpose.launcher.rank.sandbox import check, libc

_SET_MEMPOLICY = {"aarch64": 237}.get(platform.machine(), 238)
_MODES = {
    "default": 0,
    "prefer": 1,
    "bind": 2,
    "interleave": 3,
    "local": 4,
    "prefer (many)": 5,
    "weighted interleave": 6,
}
_MODE_FLAGS = {"static": 1 << 15, "relative": 1 << 14, "balancing": 1 << 13}
# As in /proc/PID/numa_maps: an address, a mode, its flags, its nodes.
_POLICY = re.compile(
    r"[0-9a-f]+ ((weighted interleave|prefer \(many\)|[a-z]+)(=([a-z|]+))?(:([0-9,-]+))?)(\s|$)"
)
_NODES_MAX = 1024
_PR_MCE_KILL, _PR_MCE_KILL_SET, _PR_SET_MEMORY_MERGE = 33, 1, 67
_LATE, _EARLY, _DEFAULT = 0, 1, 2
_PF_MCE_PROCESS, _PF_MCE_EARLY = 0x80, 0x08000000
_FLAGS = 6  # word of /proc/PID/stat behind the name

Values = dict[str, Any]


def settings_of(pid: int, thread: int) -> Values:
    """The settings of a thread of a process; without those that the kernel does not have."""
    settings = {}
    for name, (read, _) in _ALL.items():
        with contextlib.suppress(OSError):
            settings[name] = read(f"/proc/{pid}/task/{thread}")
    return settings


def differing(pids: Iterable[int], first: int) -> list[tuple[int, str]]:
    """Processes with a thread that has other settings than the thread `first`: pid, setting."""
    usual = settings_of(first, first)
    names = set()
    for pid in pids:
        for thread in process.threads(pid):
            theirs = settings_of(pid, thread)
            names |= {(pid, name) for name in usual.keys() & theirs if theirs[name] != usual[name]}
    return sorted(names)


def assume(values: Values) -> list[str]:
    """Give this process the settings. Returns those that could not be set, in words."""
    problems = []
    for name, value in values.items():
        try:
            _ALL[name][1](value)
        except OSError as error:
            problems.append(f"{name} {value}: {error}")
    return problems


def _policy(task: str) -> str:
    """The policy of a thread, as the kernel shows it of the first mapping: a read of few bytes
    looks at no more memory than that."""
    fd = os.open(f"{task}/numa_maps", os.O_RDONLY)
    try:
        match = _POLICY.match(os.read(fd, 128).decode())
    finally:
        os.close(fd)
    return match[1] if match else "default"


def _set_policy(value: str) -> None:
    match = _POLICY.match(f"0 {value}")
    if not match or match[2] not in _MODES:
        raise OSError("unknown to this version of rankfold")
    mode = _MODES[match[2]]
    for flag in (match[4] or "").split("|"):
        mode |= _MODE_FLAGS.get(flag, 0)
    bits = 0
    for part in (match[6] or "").split(",") if match[6] else ():
        begin, _, end = part.partition("-")
        for node in range(int(begin), int(end or begin) + 1):
            bits |= 1 << node
    nodes = ctypes.create_string_buffer(bits.to_bytes(_NODES_MAX // 8, "little"))
    check(libc.syscall(_SET_MEMPOLICY, mode, nodes, _NODES_MAX), "set the NUMA policy")


def _machine_check(task: str) -> int:
    text = Path(task, "stat").read_text(errors="replace")
    flags = int(text[text.rindex(")") + 1 :].split()[_FLAGS])
    if not flags & _PF_MCE_PROCESS:
        return _DEFAULT
    return _EARLY if flags & _PF_MCE_EARLY else _LATE


def _set_machine_check(value: int) -> None:
    check(libc.prctl(_PR_MCE_KILL, _PR_MCE_KILL_SET, value, 0, 0), "PR_MCE_KILL")


def _merges(task: str) -> bool:
    shown = Path(task).parents[1].joinpath("ksm_stat").read_text()
    return "ksm_merge_any: yes" in shown


def _set_merges(value: bool) -> None:
    check(libc.prctl(_PR_SET_MEMORY_MERGE, int(value), 0, 0, 0), "PR_SET_MEMORY_MERGE")


_ALL: dict[str, tuple[Callable[[str], Any], Callable[[Any], None]]] = {
    "NUMA policy": (_policy, _set_policy),
    "policy for memory errors (PR_MCE_KILL)": (_machine_check, _set_machine_check),
    "merging of equal memory (PR_SET_MEMORY_MERGE)": (_merges, _set_merges),
}
