"""Windows of a day: minutes from the first to the one before the last, also over midnight."""

from __future__ import annotations

import math
from collections.abc import Sequence

Windows = Sequence[tuple[int, int]]  # first minute of each, and the one after its last
DAY = 24 * 60  # minutes


def is_open(windows: Windows, minute: int) -> bool:
    """minute: of a day; below 0: not known."""
    return minute >= 0 and any(
        begin <= minute < end if begin < end else not end <= minute < begin
        for begin, end in windows
    )


def opens(windows: Windows, now: float) -> float:
    """When, after `now`, the next one begins; infinity if there is none. Seconds since a
    midnight."""
    day = DAY * 60
    firsts = (begin * 60.0 for begin, _ in windows)
    return min((at + (math.floor((now - at) / day) + 1) * day for at in firsts), default=math.inf)
