"""Prevents a job from running here if another owner has taken it over, or if the owner it was taken
from still runs it.

The store records the owner of a job's newest incarnation; on this machine, locks show whose
launchers live. For executor.py: as there, calls that may block are yielded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rankfold import control
from rankfold.reconciler import clock
from rankfold.reconciler.act.inflight import Call, Steps, agreed
from rankfold.reconciler.act.jobs import JobActions
from rankfold.reconciler.journal.journal import Journal, JournalError
from rankfold.reconciler.model.recorded import Ending
from rankfold.reconciler.node.launchers import Node


class Takeover(JobActions):
    """Queries the store, and the locks of other state directories."""

    def need_own(self, job: str) -> Steps:
        """Raises ControlError if another owner has taken over a job that rested here. If the store
        does not answer, the job continues: all it needs is here."""
        known = self._record(job).known
        if not known:
            return
        taken, why = (yield from self._query_store({job: known}))[job]
        if taken:
            raise control.ControlError("taken", why)
        if why:
            text = f"it continues here, and may have been taken over: {why}"
            self._event(job, "StoreNotAsked", text, "Warning")

    def query(self, jobs: Sequence[str]) -> Generator[Sequence[Call], list[Any], dict[str, Ending]]:
        """Job → its end, for those of `jobs` that run here and that another owner has taken over.

        Raises ControlError if the store answers for none of them; then no job ends.
        """
        before = {job: self._record(job).known for job in jobs}
        answers = yield from self._query_store(before)
        ends = {}
        for job, (taken, why) in answers.items():
            now = self._record(job)
            if taken and now.step == "placed" and not now.ending and now.known == before[job]:
                ends[job] = Ending("Failed", "TakenOver", why, clock.now())
        if all(why and not taken for taken, why in answers.values()):
            raise control.ControlError("unreachable", next(iter(answers.values()))[1])
        return ends

    def _query_store(
        self, known: Mapping[str, int]
    ) -> Generator[Sequence[Call], list[Any], dict[str, tuple[bool, str]]]:
        """As `Node.ownership`."""
        url = self._url()  # here: only this thread may use the journal
        answers = yield [lambda: self.node.ownership(url, known)]
        agreed(answers)
        answered: dict[str, tuple[bool, str]] = answers[0]
        return answered

    def need_other_owner_ended(self, job: str) -> Steps:
        """Raises ControlError while the owner that a job was taken over from still runs it on this
        machine."""
        record = self._record(job)
        owner, ranks = record.previous_owner, range(record.fixed.world_size if record.fixed else 0)
        if not owner:
            return
        (state,) = yield [lambda: _runs_at(self.node, owner, job, ranks)]
        agreed((state,))
        if state is not None:
            text = (
                f"it still runs under {state}: it is killed there once that reconciler has "
                f"queried the store, or by `rankfold --state {state} cancel {job} --override`"
            )
            raise control.ControlError("busy", text)


def _runs_at(node: Node, owner: str, job: str, ranks: range) -> Path | None:
    """The other state directory of this machine under which a job lives. None: it does not, or it
    rests in memory there, where it is not resumed then."""
    state = node.lives_at(owner, job, ranks)
    if state is None:
        return None
    try:
        with Journal(state, readonly=True) as journal:
            record = journal.record(job)
    except (JournalError, sqlite3.Error):
        return state
    rests = record is not None and record.step == "detached" and not record.placement
    return None if rests and record and not record.ending else state
