"""Phrases used in more than one message."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rankfold.plural import count as count
from rankfold.reconciler.model.recorded import NODE
from rankfold.reconciler.model.values import Json

NAMED_MAX = 3


def devices_wanted(least: int | None, most: int) -> str:
    """The number of devices that a job requests, or its range."""
    return count(most, "device") if least is None else f"{least} to {count(most, 'device')}"


def no_job(name: str) -> str:
    return f"there is no job {name!r}: `rankfold status` lists the jobs"


def restore_source(id: str) -> str:
    """The checkpoint or local snapshot that a job continues from."""
    return "the local snapshot on this node" if id == NODE else f"checkpoint {id}"


def unresponsive(who: str, since: float, pid: int = 0) -> str:
    """A sentence about an unresponsive process. since: wall clock; pid: 0 if it is not known."""
    when = time.strftime("%H:%M:%S", time.localtime(since))
    one = f"process {pid}" if pid else "the process"
    return (
        f"{who} is unresponsive since {when}: it is stopped or stuck. No request is sent to it "
        f"until it answers; if it does not, kill {one}: what it serves is lost then"
    )


def first_few(names: Sequence[str], count: int = 0) -> str:
    """The first few names, and how many more there are: of `count` if not all are given."""
    left = max(count, len(names)) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {left} more" if left > 0 else "")


def still_running(killed: Mapping[int, Sequence[str]]) -> list[str]:
    """A sentence on the processes, by rank, that were killed because their rank had exited; an
    empty list if there were none."""
    ended = [f"{first_few(names)} of rank {rank}" for rank, names in killed.items() if names]
    return [f"still running at that time, and killed: {first_few(ended)}"] if ended else []


def some_ranks(ranks: Sequence[int]) -> str:
    """For example ``rank 3`` or ``ranks 0, 1, 2 and 61 more``."""
    return ("rank " if len(ranks) == 1 else "ranks ") + first_few([str(rank) for rank in ranks])


def file_problems(reports: Sequence[Json]) -> str:
    """The reports of launchers about files after a restore (messages.Restored); empty: no problem.
    Each launcher also reports the findings of the ranks before it, so the longest report is
    used."""
    problems = []
    for kind, sentence in _FILE_PROBLEMS.items():
        most = max((each[kind] for each in reports if each), key=_number_of, default=None)
        if most and _number_of(most):
            problems.append(f"{sentence}: {first_few(most['first'], _number_of(most))}")
    return "; ".join(problems)


def _number_of(named: Json) -> int:
    return int(named["count"])


_FILE_PROBLEMS = {
    "stay": "not restored, because they existed before the job, which first wrote to or "
    "removed them after the checkpoint",
    "renewed": "new files in place of those that it has open for writing, which some programs "
    "refuse (SQLite with a rollback journal)",
}


def time_of_day(when: float) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(when))


def size(number: int) -> str:
    """A number of bytes, for people."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"


def devices_change(before: int, after: int) -> str:
    """The change of the devices of a job that is disturbed."""
    if before == after:
        return f"moves, on {count(after, 'device')} as before"
    return f"{before} → {count(after, 'device')}"
