"""Sentences that are said in more than one place."""

from __future__ import annotations

import time
from collections.abc import Sequence

NAMED_MAX = 3


def silence(who: str, since: float, pid: int = 0) -> str:
    """What to say of a process that hangs. since: wall clock; pid: 0 if it is not known."""
    when = time.strftime("%H:%M:%S", time.localtime(since))
    one = f"process {pid}" if pid else "the process"
    return (
        f"{who} has not answered since {when}: it is stopped, or stuck. Nothing is asked of it "
        f"until it goes on; if it will not, kill {one}: what it serves is lost then"
    )


def some(names: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def clock(when: float) -> str:
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
