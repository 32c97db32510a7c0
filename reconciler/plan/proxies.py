"""Keeps a proxy for each desired device and no other, without jobs that were not placed there."""

from __future__ import annotations

from rankfold.reconciler.actions import Action, Discard, StartProxy, StopProxy
from rankfold.reconciler.plan.index import Index, differs
from rankfold.reconciler.wording import count

OTHER = "its pool describes another device now"


def tend(index: Index) -> tuple[list[Action], bool]:
    """Start the proxies of desired devices, stop the others when they are free.

    Also returns whether every desired device answers and there is no other one.
    """
    actions: list[Action] = []
    ready = True
    for name, device in index.devices.items():
        observed = index.observed_device(name)
        if observed is None:
            actions.append(StartProxy(device))
            ready = False
        elif not observed.ready:
            ready = False
        elif observed.lost or differs(device, observed):
            ready = False
            if index.is_free(name):
                why = f"it was lost: {observed.lost}" if observed.lost else OTHER
                actions.append(StopProxy(name, why))
        elif index.is_worn(name):
            ready = False
            if index.is_free(name):
                why = f"it is restarted, since it has loaded {count(observed.loaded, 'kernel')}"
                actions.append(StopProxy(name, why))
    for name, observed in index.observed.devices.items():
        for there in observed.jobs:
            if there.state != "saved" and _is_unknown(index, there.job):
                actions.append(Discard(there.job, there.epoch, name))
        if name not in index.devices:
            ready = False
            if observed.ready and index.is_free(name):
                actions.append(StopProxy(name, "no pool contains it any longer"))
    return actions, ready


def _is_unknown(index: Index, job: str) -> bool:
    """Whether a job on a device was never placed according to the journal, or has ended."""
    record = index.records.get(job)
    return record is None or record.step in ("new", "ended")
