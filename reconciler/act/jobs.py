"""The base of the classes that execute actions: reads and writes a job's record, appends events,
sends requests to the launchers of its ranks."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from rankfold.messages import of_incarnation
from rankfold.reconciler.act.inflight import Call
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.recorded import Answer, Record, Save
from rankfold.reconciler.node.launchers import Node


class JobActions:
    """The base of classes that execute actions. Only the loop's thread may call its methods, except
    those that `_request` returns."""

    def __init__(self, layout: Layout, journal: Journal, node: Node):
        self.layout, self.journal, self.node = layout, journal, node

    def _record(self, job: str) -> Record:
        return self.journal.record(job) or Record(job)

    def _update(self, job: str, **fields: Any) -> Record:
        record = structs.replace(self._record(job), **fields)
        self.journal.save(record)
        return record

    def _event(self, job: str, reason: str, text: str, kind: str = "Normal") -> None:
        self.journal.event(f"Job/{job}", reason, text, kind)

    def _request(self, job: str, rank: int, op: str, timeout: float, **more: Any) -> Call:
        """A call that sends a request to a rank's launcher. Raises ControlError."""
        arguments = more | of_incarnation(self._record(job).incarnation)
        return lambda: self.node.request(job, rank, op, timeout, **arguments)

    def _url(self) -> str:
        """The URL of the store of checkpoints."""
        return self.journal.desired().checkpoint_store or self.layout.checkpoints


def answer(save: Save, **fields: str) -> dict[str, Answer]:
    """The field of a record that replies to the request for a save, if there was one."""
    return {"answer": Answer(save.token, **fields)} if save.token else {}
