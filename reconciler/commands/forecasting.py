"""`rankfold simulate -f FILE --from-state`: what new jobs would get now, and what they change."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from rankfold.legible import name as legible_name
from rankfold.reconciler import clock, plan
from rankfold.reconciler.commands.common import fail, show
from rankfold.reconciler.commands.looking import warn_of_reconciler
from rankfold.reconciler.journal.rows import in_service
from rankfold.reconciler.model.desired import Desired, Job
from rankfold.reconciler.report import forecast, snapshot
from rankfold.reconciler.report.lines import emit, say
from rankfold.reconciler.report.status import reconciler_of
from rankfold.reconciler.source import spec
from rankfold.reconciler.source.invalid import Fault, InvalidInput


def show_effects(state: Path, place: Path, output: str) -> int:
    """Print what would happen if the jobs of a file or folder were added to the fleet now. Reads
    only."""
    snap = snapshot.snapshot(state)
    if not snap.desired.pools:
        fail(
            f"--from-state: {legible_name(state)} has no fleet; `rankfold apply -f DIR` makes one, "
            "and `simulate TRACE --fleet DIR` needs none"
        )
    loaded = spec.load_dir(place, quotas=snap.desired.quotas)
    for warning in loaded.warnings:
        say(f"warning: {warning}")
    loaded.check()
    if faults := _refused(loaded, snap):
        raise InvalidInput(faults)
    if not loaded.desired.jobs:
        fail(f"{legible_name(place)} has no job")
    now = clock.now()
    new = {
        name: in_service(replace(job, created=now), {}) for name, job in loaded.desired.jobs.items()
    }
    then = replace(snap.desired, jobs={**snap.desired.jobs, **new})
    warn_of_reconciler(reconciler_of(snap))
    data = forecast.effects(
        list(new), _outlook(snap, then, now), _outlook(snap, snap.desired, now), clock.wall(now)
    )
    if output == "json":
        show(data)
    else:
        for line in forecast.effect_lines(data):
            emit(line)
    return 0


def _outlook(snap: snapshot.Snapshot, desired: Desired, now: float) -> forecast.Outlook:
    observed = plan.assume_fleet(desired, snap.observed)
    return forecast.outlook(desired, snap.records, observed, now)


def _refused(loaded: spec.Loaded, snap: snapshot.Snapshot) -> list[Fault]:
    """Faults of objects that are no new jobs."""
    known = {each.name for each in snap.objects if isinstance(each.spec, Job)}
    faults = []
    for kind, name in loaded.documents:
        if kind in ("Pool", "Policy"):
            reason = (
                "--from-state adds jobs to the fleet as it is; "
                "`rankfold plan -f DIR` shows other changes"
            )
            faults.append(loaded.fault(kind, name, "kind", reason))
        elif name in known or (kind == "Service" and f"{name}-0" in known):
            reason = "the fleet has a job of this name; choose another one, or use `rankfold plan`"
            faults.append(loaded.fault(kind, name, "metadata.name", reason))
    return faults
