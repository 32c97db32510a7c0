"""Records for people: races and alarms that proxies have found, and the conditions of each job."""

from __future__ import annotations

from msgspec import structs

from rankfold.policy.vocabulary import BUDGET_S, DISTURBING
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.model.observed import Observed
from rankfold.reconciler.model.recorded import Change, Record
from rankfold.reconciler.plan import Plan
from rankfold.reconciler.wording import count

EVENTFUL = ("Stalled", "Degraded", "NotStarted")  # types of conditions
FINDINGS_MAX = 64  # most findings kept of each kind and job


def _new(reported: tuple[str, ...], kept: tuple[str, ...]) -> list[str]:
    return [each for each in reported if each not in kept][: FINDINGS_MAX - len(kept)]


def record_findings(journal: Journal, records: dict[str, Record], observed: Observed) -> None:
    """Record the races and alarms that proxies report: a proxy discards them with the job."""
    for device in observed.devices.values():
        for report in device.jobs:
            record = records.get(report.job)
            if record is None or record.epoch != report.epoch:
                continue
            now = journal.record(report.job) or record
            races = _new(report.races, now.races)
            alarms = _new(report.alarms, now.alarms)
            if not races and not alarms:
                continue
            now = structs.replace(now, races=(*now.races, *races), alarms=(*now.alarms, *alarms))
            with journal.transaction():
                journal.save(now)
                for race in races:
                    journal.event(f"Job/{report.job}", "Race", race, "Warning")
                for alarm in alarms:
                    journal.event(f"Job/{report.job}", "Alarm", alarm, "Warning")


def record_guarantees(journal: Journal, plan: Plan) -> None:
    """Record to which jobs a fraction is guaranteed from now on, or no longer."""
    if not plan.guaranteed:
        return
    with journal.transaction():
        for name, found in plan.guaranteed.items():
            record = journal.record(name) or Record(name)
            if record.step == "ended":
                continue
            journal.save(structs.replace(record, guaranteed=found))
            if found is not None:
                text = f"{found.fraction:g} of its progress on {count(found.demand, 'device')}"
                journal.event(f"Job/{name}", "Guaranteed", text)
            elif record.guaranteed is not None:
                journal.event(
                    f"Job/{name}", "NotGuaranteed", "its fraction no longer is", "Warning"
                )


def record_grants(journal: Journal, plan: Plan) -> None:
    """Record since when jobs have had devices on which they have not started."""
    if not plan.grants:
        return
    with journal.transaction():
        for name, granted_at in plan.grants.items():
            if (record := journal.record(name)) is not None or granted_at:
                record = record or Record(name)
                journal.save(structs.replace(record, granted_at=granted_at))


def record_disturbance(journal: Journal, change: Change, now: float) -> None:
    """Record that the policy has moved or suspended a job for others, or in order to grow. now:
    fleet time."""
    record = journal.record(change.job)
    if record is None or not change.from_gpus or change.cause not in DISTURBING:
        return
    at = now if change.cut_at is None else change.cut_at
    recent = [each for each in record.disturbed if 0 <= at - each < BUDGET_S]
    journal.save(structs.replace(record, disturbed=(*recent, at)))


def record_conditions(journal: Journal, plan: Plan) -> None:
    """Record changed conditions for readers, and an event for each new one of EVENTFUL. Uses
    one transaction, because each commit waits for the disk."""
    known, changed = journal.all_conditions(), []
    for each in journal.objects():
        if each.kind != "Job":
            continue
        new = [structs.asdict(c) for c in plan.conditions.get(each.name, ())]
        old, seen_generation = known.get(each.name) or ([], 0)
        generation = each.generation if each.name in plan.converged else seen_generation
        if (new, generation) != (old, seen_generation):
            changed.append((each.name, new, old, generation))
    if not changed:
        return
    with journal.transaction():
        for name, new, old, generation in changed:
            journal.save_conditions(name, new, generation)
            for condition in new:
                if condition["type"] in EVENTFUL and condition not in old:
                    text = condition["message"]
                    journal.event(f"Job/{name}", condition["reason"], text, "Warning")
