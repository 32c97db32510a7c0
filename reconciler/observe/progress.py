"""Whether those who bring snapshots into the store, or back, get on.

What they say of themselves tells how far they are, not since when: that is remembered here, in the
memory of the reconciler. The next one begins to count anew.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from rankfold.reconciler import switches
from rankfold.reconciler.model.observed import Transfer


class Progress:
    """Called with what is seen at each look."""

    def __init__(self, patience_s: float | None = None) -> None:
        self.patience_s = patience_s or switches.stuck_s()
        self._since: dict[str, tuple[Transfer, float]] = {}  # of each job: CLOCK_MONOTONIC

    def note(self, transfers: Mapping[str, Transfer]) -> dict[str, Transfer]:
        """The same, and which of them are stuck."""
        now = time.monotonic()
        self._since = {job: self._still(job, seen, now) for job, seen in transfers.items()}
        return {
            job: replace(seen, stuck=seen.lives and now - since > self.patience_s)
            for job, (seen, since) in self._since.items()
        }

    def ended(self, job: str) -> None:
        """It is begun anew."""
        self._since.pop(job, None)

    def _still(self, job: str, seen: Transfer, now: float) -> tuple[Transfer, float]:
        before = self._since.get(job)
        return before if before and before[0] == seen else (seen, now)
