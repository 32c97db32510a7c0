"""Detects uploads and fetches that make no progress.

Their reports contain how far they are, but not since when. That is remembered here, in the
reconciler's memory; the next reconciler starts counting from zero.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from msgspec.structs import replace

from rankfold import switches
from rankfold.reconciler.model.observed import Transfer


class Progress:
    """Remembers since when each transfer's report is unchanged."""

    def __init__(self, patience_s: float | None = None) -> None:
        self.patience_s = patience_s or switches.stuck_s()
        self._since: dict[str, tuple[Transfer, float]] = {}  # by job; since: CLOCK_MONOTONIC

    def note(self, transfers: Mapping[str, Transfer]) -> dict[str, Transfer]:
        """The same transfers, with `stuck` set. Call with each observation."""
        now = time.monotonic()
        self._since = {job: self._still(job, transfer, now) for job, transfer in transfers.items()}
        return {
            job: replace(transfer, stuck=transfer.lives and now - since > self.patience_s)
            for job, (transfer, since) in self._since.items()
        }

    def ended(self, job: str) -> None:
        """Start counting from zero: the job's transfer is started again."""
        self._since.pop(job, None)

    def _still(self, job: str, transfer: Transfer, now: float) -> tuple[Transfer, float]:
        before = self._since.get(job)
        return before if before and before[0] == transfer else (transfer, now)
