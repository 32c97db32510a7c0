"""Corrects the records of jobs after the machine was booted."""

from __future__ import annotations

from msgspec import structs

from rankfold.reconciler import clock
from rankfold.reconciler.journal.journal import Journal


def count_until(journal: Journal, booted_after: float) -> None:
    """Correct the device-seconds after a boot: since `booted_after` (fleet time) no device has
    served a job, although records say so."""
    with journal.transaction():
        for record in journal.records().values():
            if record.placed_since is not None:
                journal.save(
                    structs.replace(
                        record, **record.counted(booted_after), placed_since=clock.now()
                    )
                )
