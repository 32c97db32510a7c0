"""Sentences that are said in more than one place."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from rankfold.plural import count as count
from rankfold.reconciler.model.recorded import NODE
from rankfold.reconciler.model.values import Json

NAMED_MAX = 3


def named(id: str) -> str:
    """A checkpoint, or the dump, that a job goes on from."""
    return "the dump on this node" if id == NODE else f"checkpoint {id}"


def silence(who: str, since: float, pid: int = 0) -> str:
    """What to say of a process that hangs. since: wall clock; pid: 0 if it is not known."""
    when = time.strftime("%H:%M:%S", time.localtime(since))
    one = f"process {pid}" if pid else "the process"
    return (
        f"{who} has not answered since {when}: it is stopped, or stuck. Nothing is asked of it "
        f"until it goes on; if it will not, kill {one}: what it serves is lost then"
    )


def some(names: Sequence[str], count: int = 0) -> str:
    """The first few of them, and how many more there are, of `count` if not all are given."""
    left = max(count, len(names)) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {left} more" if left > 0 else "")


def still_running(killed: Mapping[int, Sequence[str]]) -> list[str]:
    """A sentence on processes that were killed because their rank had exited, by rank; no sentence
    if there were none."""
    found = [f"{some(names)} of rank {rank}" for rank, names in killed.items() if names]
    return [f"still running then, and killed: {some(found)}"] if found else []


def some_ranks(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 1, 2 and 61 more``"""
    return ("rank " if len(ranks) == 1 else "ranks ") + some([str(rank) for rank in ranks])


def files_amiss(told: Sequence[Json]) -> str:
    """What launchers say of files after a restore (messages.Restored). Each knows of the ranks
    before it, so one knows most. Empty: nothing is amiss."""
    found = []
    for what, sentence in _AMISS.items():
        most = max((each[what] for each in told if each), key=_count, default=None)
        if most and _count(most):
            found.append(f"{sentence}: {some(most['first'], _count(most))}")
    return "; ".join(found)


def _count(named: Json) -> int:
    return int(named["count"])


_AMISS = {
    "stay": "not set back, for they were there before the job, which first wrote to or removed "
    "them after the checkpoint",
    "renewed": "new files under the names of those that it has open for writing, which some "
    "programs refuse (SQLite with a rollback journal)",
}


def time_of_day(when: float) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(when))


def size(number: int) -> str:
    """Bytes for people."""
    amount = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"
