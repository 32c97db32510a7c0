"""When the jobs of a fleet that wait will get devices, and what new jobs change: the planner's
policy, in simulated time from the present state on."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct

from rankfold.reconciler.model.desired import Desired, Job
from rankfold.reconciler.model.observed import Observed
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.plan.allocation import Allocation
from rankfold.reconciler.plan.index import Index
from rankfold.reconciler.report.text import columns
from rankfold.reconciler.wording import devices_change, first_few
from rankfold.simulator.forecast import Expected, forecast

FORMAT_VERSION = 1
# Conditions of jobs that devices alone do not start; they are not followed.
NEED_MORE = ("HostMemory", "TooManyRanks")
UNITS = (("d", 86_400.0), ("h", 3600.0), ("min", 60.0))
HEAD = ("JOB", "DEVICES", "START", "END", "REASON")


class Outlook(Struct, frozen=True):
    """jobs: what is expected of each job that wants devices, or has some.
    names: devices by position.
    reasons: why jobs wait now, for people.
    stalled: those of them that never start in this fleet.
    resting: why jobs are suspended, as long as their files or a person want it.
    pauses: seconds for which a job stands still when it moves, as measured; 0: not measured.
    without_limit: jobs that have devices now and no time limit.
    until: seconds from now up to which it was computed, if more would happen later.
    """

    jobs: Mapping[str, Expected]
    names: tuple[str, ...]
    reasons: Mapping[str, str]
    stalled: frozenset[str]
    resting: Mapping[str, str]
    pauses: Mapping[str, float]
    without_limit: tuple[str, ...]
    until: float | None

    def waiting(self) -> list[str]:
        """Jobs that wait, and have had no device until now."""
        found = self.jobs
        return [name for name in self.reasons if name not in found or not found[name].before]

    def devices(self, name: str) -> list[str]:
        found = self.jobs.get(name)
        return [self.names[position] for position in found.devices] if found else []

    def start(self, name: str) -> float | None:
        found = self.jobs.get(name)
        return found.start if found else None

    def end(self, name: str) -> float | None:
        found = self.jobs.get(name)
        return found.end if found else None


def outlook(
    desired: Desired, records: Mapping[str, Record], observed: Observed, now: float
) -> Outlook:
    """now: fleet time. Takes time for each event that is followed as a plan does."""
    index = Index(desired, records, observed, frozenset())
    allocation = Allocation(index, now)
    waiting = {**allocation.degraded, **allocation.waiting}
    jobs = [
        job
        for job in allocation.jobs
        if job.wants != "end"
        and (job.name not in waiting or waiting[job.name].reason not in NEED_MORE)
    ]
    left = {
        job.name: index.records[job.name].time_left(desired.jobs[job.name], now)
        for job in jobs
        if job.wants != "nothing"  # it is unresponsive: it may never end
    }
    found = forecast(allocation.fleet_to_come(), jobs, allocation.rules, now, left)
    without = (name for name, each in found.jobs.items() if each.now and each.end is None)
    return Outlook(
        found.jobs,
        tuple(index.names),
        {name: condition.message for name, condition in waiting.items()},
        frozenset(name for name, each in waiting.items() if each.type == "Stalled"),
        {name: _why_suspended(job) for name, job in desired.jobs.items() if job.suspended},
        {name: record.pause_s for name, record in records.items()},
        tuple(without),
        found.until,
    )


def _why_suspended(job: Job) -> str:
    return "its service needs fewer replicas now" if job.idle else "it is suspended"


def starts(found: Outlook) -> list[Json]:
    """When the jobs that wait are expected to have devices."""
    return [
        {
            "job": name,
            "start": _rounded(found.start(name)),
            "words": words_of(found, name),
            "reason": found.reasons[name],
        }
        for name in found.waiting()
        if name not in found.stalled
    ]


def resumes(found: Outlook) -> dict[str, Json]:
    """When jobs that lose all of their devices now have some again."""
    return {
        name: {"start": _rounded(each.start), "words": words_of(found, name)}
        for name, each in found.jobs.items()
        if each.before and not each.now
    }


def expected_start(found: Outlook, name: str) -> Json:
    """Fields of `queue` in the JSON of `describe`."""
    words = "" if name in found.stalled else words_of(found, name)
    return {"expectedStart": _rounded(found.start(name)), "expected": words}


def words_of(found: Outlook, name: str) -> str:
    """When a job that waits is expected to have devices, for people."""
    start = found.start(name)
    words = start_words(start, found.until)
    if start is None and found.until is None and found.without_limit:
        return why_unknown(found.without_limit)
    return words


# ---- the changes that new jobs would make


def effects(new: Collection[str], then: Outlook, now: Outlook, at: float) -> Json:
    """The changes that new jobs would make, as in schemas/forecast.schema.json. then, now: with
    them and without; at: wall clock."""
    shown = [*new, *(name for name in then.waiting() if name not in new)]
    return {
        "format_version": FORMAT_VERSION,
        "time": at,
        "jobs": [_job(name, name in new, then, now) for name in shown],
        "disturbed": [
            _disturbed(name, each, then)
            for name, each in sorted(then.jobs.items())
            if each.cause is not None and each.before and each.now != now.jobs[name].now
        ],
        "withoutTimeLimit": list(then.without_limit),
        "computedUntil": None if then.until is None else round(then.until, 3),
    }


def _job(name: str, new: bool, then: Outlook, now: Outlook) -> Json:
    start = then.start(name)
    return {
        "name": name,
        "new": new,
        "devices": then.devices(name),
        "start": _rounded(start),
        "end": _rounded(then.end(name)),
        "startWithout": None if new else _rounded(now.start(name)),
        "stalled": name in then.stalled or name in then.resting,
        "reason": "" if start == 0 else then.resting.get(name) or then.reasons.get(name, ""),
    }


def _disturbed(name: str, found: Expected, then: Outlook) -> Json:
    return {
        "job": name,
        "from": found.before,
        "to": found.now,
        "cause": found.cause,
        "reason": found.reason,
        "seconds": round(then.pauses.get(name, 0.0), 3) or None,
        "resumes": None if found.now else _rounded(found.start),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def effect_lines(data: Json) -> list[str]:
    """The same for people."""
    rows: list[tuple[str, ...]] = [
        (
            each["name"] + (" (new)" if each["new"] else ""),
            first_few(each["devices"]) or "-",
            "-" if each["stalled"] else start_words(each["start"], data["computedUntil"]),
            "-" if each["end"] is None else in_words(each["end"]),
            each["reason"].splitlines()[0] if each["reason"] else "",
        )
        for each in data["jobs"]
    ]
    lines = columns(HEAD, rows)
    for each in data["jobs"]:
        if not each["new"] and each["start"] != each["startWithout"]:
            until = data["computedUntil"]
            there = start_words(each["startWithout"], until)
            lines.append(f"! Job/{each['name']}: starts {there} without the new jobs")
    for each in data["disturbed"]:
        still = "" if each["seconds"] is None else f"; it stands still for {each['seconds']:g} s"
        rests = ""
        if not each["to"]:
            rests = f"; has devices again: {start_words(each['resumes'], data['computedUntil'])}"
        devices = devices_change(each["from"], each["to"])
        lines.append(f"! Job/{each['job']}: {devices} ({each['reason']}){still}{rests}")
    starts = [each["start"] for each in data["jobs"] if not each["stalled"]]
    starts += [each["resumes"] for each in data["disturbed"] if not each["to"]]
    if None in starts and data["computedUntil"] is None and data["withoutTimeLimit"]:
        lines.append(why_unknown(data["withoutTimeLimit"]))
    return lines


def why_unknown(without_limit: Sequence[str]) -> str:
    names = first_few(without_limit)
    verb = "has no timeLimit" if len(without_limit) == 1 else "have no timeLimit"
    return f"unknown: {names} {verb}, so it is not known when devices become free"


def in_words(seconds: float) -> str:
    """A moment so many seconds from now."""
    for unit, length in UNITS:
        if seconds >= length:
            return f"in {seconds / length:.3g} {unit}"
    return f"in {seconds:.0f} s" if seconds >= 0.5 else "now"


def start_words(seconds: float | None, until: float | None) -> str:
    if seconds is not None:
        return in_words(seconds)
    return "unknown" if until is None else f"later than {in_words(until)}"
