"""The state of a fleet at one moment: its journal, and the answers of its processes.

Needs no reconciler: `snapshot` reads the journal and queries proxies and launchers itself.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from rankfold.policy.vocabulary import Rate
from rankfold.reconciler import actions, clock, liveness, plan
from rankfold.reconciler.deadlines import SILENT_AFTER_S
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.journal.rows import Object
from rankfold.reconciler.journal.tables import database
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.desired import Desired, Job
from rankfold.reconciler.model.fitting import Groups
from rankfold.reconciler.model.observed import Observed
from rankfold.reconciler.model.recorded import (
    Change,
    Ending,
    Record,
)
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.observe import strays
from rankfold.reconciler.observe.fleet import known_devices, observe
from rankfold.reconciler.observe.prober import Prober
from rankfold.reconciler.observe.processes import still_bad
from rankfold.reconciler.plan.allocation import known_history

if TYPE_CHECKING:
    from rankfold.reconciler.model.history import History

_META = (
    "source",
    "revision",
    "attempted",
    "watching",
    "unwatched",
    "unreachable",
    "proxies",
    "told_to_end",
    "incarnations",
    "replicas",
    "load_problems",
)


class Snapshot(Struct, frozen=True, dict=True):
    """The state of a fleet at one moment. `objects` is empty if nothing was ever applied."""

    objects: tuple[Object, ...]
    records: dict[str, Record]
    observed: Observed
    plan: plan.Plan
    changes: tuple[Change, ...]
    meta: Json
    layout: Layout
    reconciler: liveness.Liveness = liveness.NONE
    idle: frozenset[str] = frozenset()  # replicas that their service does not need now
    max_wait_s: float = 0.0  # of the Policy
    desired: Desired = Desired()  # by files and by hand
    trouble: tuple[str, ...] = ()  # processes that no other part reports: see strays.py

    @functools.cached_property
    def changes_of(self) -> Mapping[str, list[Change]]:
        """The changes of each job that has some."""
        changes: dict[str, list[Change]] = defaultdict(list)
        for each in self.changes:
            changes[each.job].append(each)
        return dict(changes)

    @functools.cached_property
    def _history(self) -> tuple[History | None, Groups]:
        known = known_history(self.records, self.observed, self.desired)
        return known, Groups(self.desired.devices().values())

    def history_of(self, job: Job, record: Record) -> tuple[Rate, ...]:
        """The rates of other jobs with its program, on the type of device that it gets."""
        known, groups = self._history
        return () if known is None else known.of(job, record, groups.kind(job, record))

    @functools.cached_property
    def planned_ends(self) -> Mapping[str, Ending]:
        ends = (each for each in self.plan.actions if isinstance(each, actions.End))
        return {each.job: each.ending for each in ends}

    @functools.cached_property
    def ranks_on(self) -> Mapping[str, list[str]]:
        """The ranks, as JOB/RANK, that are placed on each device."""
        ranks: dict[str, list[str]] = defaultdict(list)
        for name, record in self.records.items():
            held = record.holds()
            for rank, device in enumerate(record.placement):
                if device in held:
                    ranks[device].append(f"{name}/{rank}")
        return dict(ranks)


def snapshot(state: Path) -> Snapshot:
    """Observe the fleet now. Raises JournalError."""
    layout = Layout(state)
    reconciler = liveness.BackgroundQuery(layout)  # while the others are queried
    snap = Snapshot((), {}, Observed(), plan.Plan(), (), {}, layout)
    if database(state).exists():
        snap = _journalled(state, layout)
    trouble = strays.find_strays(layout, _queried(snap))
    return structs.replace(snap, reconciler=reconciler.result(), trouble=trouble)


def _queried(snap: Snapshot) -> set[Path]:
    """Sockets of the processes that `observe` has found."""
    sockets = {snap.layout.proxy_socket(name) for name in snap.observed.devices}
    return sockets | {snap.layout.launcher_socket(*key) for key in snap.observed.ranks}


def _journalled(state: Path, layout: Layout) -> Snapshot:
    """The fleet's state from the journal, proxies and launchers."""
    store, prober = Journal(state, readonly=True), Prober()
    try:
        clock.follow(layout.clock)
        objects, records = tuple(store.objects()), store.records()
        desired = store.desired()
        devices = {*desired.devices(), *known_devices(layout)}
        silent = store.get("silent") or {}  # as recorded by the reconciler
        no_saves = store.get("no_saves", "")
        observed = observe(
            layout, sorted(devices), records, prober, SILENT_AFTER_S, silent, no_saves
        )
        failing = still_bad(store.get("failing") or {}, observed)
        measured = store.get("measured", ())
        observed = structs.replace(observed, failing=failing, measured=measured)
        planned = plan.plan(desired, records, observed, clock.now())
        meta = {key: store.get(key) for key in _META}
        idle = frozenset(name for name, job in desired.jobs.items() if job.idle)
        changes, wait = tuple(store.changes()), desired.max_wait_s
        return Snapshot(
            objects,
            records,
            observed,
            planned,
            changes,
            meta,
            layout,
            idle=idle,
            max_wait_s=wait,
            desired=desired,
        )
    finally:
        store.close()
        prober.close()
