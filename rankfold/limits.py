"""Resource limits of the shell that started rankfold (`ulimit`), which its processes inherit.

They were set for that shell's programs. A proxy reserves as much address space as its device's
ranks may ever use and computes for as long as they do; a launcher lives as long as its rank, which
ends with it. So both raise their limits as far as allowed, and a rank gets the original limits.
"""

from __future__ import annotations

import resource

# Limits that a proxy needs, with the names and units of the shell's ulimit.
_NAMES = {
    resource.RLIMIT_AS: ("KiB of address space", 1024, "v"),
    resource.RLIMIT_DATA: ("KiB of data", 1024, "d"),
    resource.RLIMIT_FSIZE: ("KiB in a file", 1024, "f"),
    resource.RLIMIT_CPU: ("s of CPU time", 1, "t"),
    resource.RLIMIT_NOFILE: ("open files", 1, "n"),
}


_before: dict[int, tuple[int, int]] = {}


def lift() -> None:
    """Raise each soft limit of this process to the hard limit."""
    for each in _NAMES:
        _before[each] = resource.getrlimit(each)
        resource.setrlimit(each, (_before[each][1],) * 2)


def put_back() -> None:
    """Restore the original limits, in a child that will execute a user's program."""
    for each, before in _before.items():
        resource.setrlimit(each, before)


def compute_for(seconds: int) -> None:
    """Have the kernel end this process (SIGXCPU) after it has computed for this long."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = seconds if hard == resource.RLIM_INFINITY else min(seconds, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def hint() -> str:
    """Text to append to an error: the hard limits of this process, which may be the reason. Empty
    if there are none; a limit of open files counts only if it is below 1024."""
    reached = []
    for each, (resource_name, unit, option) in _NAMES.items():
        hard = resource.getrlimit(each)[1]
        if hard != resource.RLIM_INFINITY and (each != resource.RLIMIT_NOFILE or hard < 1024):
            reached.append(f"{hard // unit} {resource_name} (ulimit -{option})")
    return f"; this process may use no more than {', '.join(reached)}" if reached else ""
