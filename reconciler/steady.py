"""The time by which the reconciler measures what passes: the wall clock as it was when this process
began, gone on since. Who sets the wall clock by hours does not make a save late, or an attempt due.

The next reconciler begins with the wall clock anew: the planner takes what was noted in its future
for long ago.
"""

from __future__ import annotations

import time

_BEGAN = time.time() - time.monotonic()


def now() -> float:
    return _BEGAN + time.monotonic()


def wall(at: float) -> float:
    """That moment as the wall clock has it, for people."""
    return at + time.time() - now()
