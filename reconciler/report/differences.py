"""The output of `rankfold plan`: the differences of a revision, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec import structs

from rankfold.policy.vocabulary import DISTURBING
from rankfold.reconciler import plan
from rankfold.reconciler.model.recorded import Condition, Record
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.report.status import FORMAT_VERSION
from rankfold.reconciler.source.revision import Difference
from rankfold.reconciler.wording import count, devices_change

_SHOWN = (*DISTURBING, "drain")  # causes
SHOWN_IN_PLANS = {"Stalled": "will wait", "Degraded": "is degraded", "Drifted": "has drifted"}


def plan_json(
    differences: Iterable[Difference],
    planned: plan.Plan,
    revision: str,
    records: Mapping[str, Record] = MappingProxyType({}),
    waiting: Sequence[Json] = (),
    resumes: Mapping[str, Json] = MappingProxyType({}),
) -> Json:
    """records: of the jobs as they are now. waiting, resumes: see forecast.starts, .resumes."""
    shown = {
        name: [structs.asdict(c) for c in conditions if _will_be(c)]
        for name, conditions in planned.conditions.items()
    }
    drains = {*planned.draining, *(n for n, cause in planned.causes.items() if cause == "drain")}
    return {
        "format_version": FORMAT_VERSION,
        "revision": revision,
        "changes": [
            {
                "object": d.object,
                "action": d.action,
                "disturbs": d.disturbs or (_drains(d) and bool(drains)),
                "fields": [{"field": f, "from": a, "to": b} for f, a, b in d.fields],
                "note": d.note,
            }
            for d in differences
        ],
        "placements": {
            name: {str(r): device for r, device in enumerate(target)}
            for name, target in planned.targets.items()
        },
        "conditions": {name: each for name, each in shown.items() if each},
        "disturbed": [
            _disturbance(records[name], target, planned, resumes.get(name, {}))
            for name, target in sorted(planned.targets.items())
            if name in records
            if planned.causes.get(name) in _SHOWN or name in planned.draining
            if records[name].holds()
        ],
        "waiting": [
            {"job": each["job"], "start": each["start"], "message": _waits(each)}
            for each in waiting
        ],
    }


def _drains(difference: Difference) -> bool:
    return any(field == "spec.drain" for field, _, _ in difference.fields)


def _waits(each: Json) -> str:
    return f"waits: {each['reason']}; start: {each['words']}"


def _disturbance(
    record: Record, target: tuple[str, ...], planned: plan.Plan, resumes: Json
) -> Json:
    """How the policy disturbs a job for others, in order to grow, or for a drained device."""
    cause, reason = planned.causes.get(record.name), planned.reasons.get(record.name, "")
    number = len(set(target))
    if record.name in planned.draining:
        cause = "drain"
        number, reason = planned.draining[record.name]
    return {
        "job": record.name,
        "from": len(set(record.placement)),
        "to": number,
        "cause": cause,
        "reason": reason,
        "seconds": round(record.pause_s, 3) or None,
        "resumes": None if target else resumes.get("start"),
        "message": "" if target else resumes.get("words", ""),
    }


def _will_be(condition: Condition) -> bool:
    """Whether a plan reports the condition. A plan assumes that all devices are up that are not
    bad, so a job that waits for a proxy there waits until a person acts."""
    return condition.type in SHOWN_IN_PLANS or condition.reason == "WaitingForProxies"


def plan_lines(data: Json, markdown: bool = False) -> list[str]:
    """The lines of a plan for people; as Markdown for a comment on a pull request."""
    signs = {"create": "+", "update": "~", "suspend": "~", "resume": "~", "remove": "-"}
    lines = []
    for each in data["changes"]:
        changed = ", ".join(
            f"{f['field']}: {_value(f['from'])} → {_value(f['to'])}" for f in each["fields"]
        )
        text = "; ".join(part for part in (changed, each["note"]) if part)
        if each["disturbs"] and not each["object"].startswith("Job/"):
            text += " — disturbs jobs: they pause or wait, no step is lost"
        elif each["disturbs"]:
            text += " — disturbs the job: it pauses for a moment, no step is lost"
        head = f"{each['action']} {each['object']}"
        lines.append(
            f"- **{head}**: {text}" if markdown else f"{signs[each['action']]} {head}: {text}"
        )
    for name, conditions in data["conditions"].items():
        for condition in conditions:
            meaning = SHOWN_IN_PLANS.get(condition["type"], "will wait")
            sign = "- " if markdown else "! "
            lines.append(f"{sign}Job/{name} {meaning}: {condition['message']}")
    for each in data["disturbed"]:
        sign = "- " if markdown else "! "
        seconds = "" if each["seconds"] is None else f"; it stands still for {each['seconds']:g} s"
        rests = "" if each["to"] else ", and waits until devices are idle"
        rests += f"; it has devices again: {each['message']}" if each["message"] else ""
        devices = devices_change(each["from"], each["to"])
        lines.append(f"{sign}Job/{each['job']}: {devices} ({each['reason']}){seconds}{rests}")
    lines += [
        f"{'- ' if markdown else '! '}Job/{each['job']} {each['message']}"
        for each in data["waiting"]
    ]
    if not data["changes"]:
        lines.insert(0, "Nothing to change.")
    disturbed = sum(1 for each in data["changes"] if each["disturbs"])
    if data["changes"]:
        if markdown:
            lines.append("")
        verb = "disturbs" if disturbed == 1 else "disturb"
        lines.append(f"{count(len(data['changes']), 'change')}; {disturbed} {verb} a job.")
    return lines


def _value(value: Any) -> str:
    """A value as text; lists separated by commas."""
    if not isinstance(value, (list, tuple)):
        return str(value)
    return ", ".join(map(str, value)) or "none"
