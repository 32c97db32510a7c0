"""Reports for people and programs: status as JSON, tables, plans.

`snapshot` needs no reconciler: it reads the journal and queries proxies and launchers itself. The
content of the JSON is stable (docs/status.md); fields may be added.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankfold.reconciler import actions, clock, liveness, plan
from rankfold.reconciler.act.recovery import used_so_far
from rankfold.reconciler.deadlines import SILENT_AFTER_S
from rankfold.reconciler.journal.journal import Journal, database
from rankfold.reconciler.journal.rows import Object
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.observed import Observed, SeenDevice
from rankfold.reconciler.model.recorded import (
    NODE,
    RESTARTING,
    Change,
    Condition,
    Ending,
    Record,
)
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node.launchers import last_lines
from rankfold.reconciler.observe import restarts, sharing, strays
from rankfold.reconciler.observe.fleet import known_devices, observe
from rankfold.reconciler.observe.prober import Prober
from rankfold.reconciler.observe.processes import still_bad
from rankfold.reconciler.source.revision import Difference
from rankfold.reconciler.wording import count, silence, size, some, time_of_day

FORMAT_VERSION = 1
FULL_BYTES = 1 << 20  # the journal's log takes some hundred kilobytes
RESTING = ("started", "detached", "vacating", "stored", "restoring")  # steps on no device
TOLD_IN_PLANS = {"Stalled": "will wait", "Degraded": "is degraded", "Drifted": "has drifted"}
TOLD_FIRST = (  # in the table of jobs: types of conditions, the first that a job has is shown
    "Stalled", "Orphaned", "Waiting", "Progressing", "Degraded", "SourceUnreachable", "Drifted",
    "Ready",
)  # fmt: skip


_META = (
    "source", "revision", "attempted", "watching", "unwatched", "unreachable", "proxies",
    "told_to_end", "incarnations",
)  # fmt: skip


@dataclass(frozen=True)
class Snapshot:
    """The state of a fleet at one moment. `objects` is empty if nothing was ever applied."""

    objects: tuple[Object, ...]
    records: dict[str, Record]
    observed: Observed
    plan: plan.Plan
    changes: tuple[Change, ...]
    meta: Json
    layout: Layout
    reconciler: liveness.Seen = liveness.NONE
    trouble: tuple[str, ...] = ()  # processes that no other part reports: see strays.py

    @functools.cached_property
    def changes_of(self) -> Mapping[str, list[Change]]:
        """The changes of each job that has some."""
        found: dict[str, list[Change]] = defaultdict(list)
        for each in self.changes:
            found[each.job].append(each)
        return dict(found)

    @functools.cached_property
    def planned_ends(self) -> Mapping[str, Ending]:
        ends = (each for each in self.plan.actions if isinstance(each, actions.End))
        return {each.job: each.ending for each in ends}

    @functools.cached_property
    def ranks_on(self) -> Mapping[str, list[str]]:
        """The ranks, as JOB/RANK, that are placed on each device."""
        found: dict[str, list[str]] = defaultdict(list)
        for name, record in self.records.items():
            held = record.holds()
            for rank, device in enumerate(record.placement):
                if device in held:
                    found[device].append(f"{name}/{rank}")
        return dict(found)

    def reconciler_status(self) -> Json:
        wrong = wrong_with(self.layout)
        return reconciler_status(self.reconciler, self.objects, self.records, self.meta, wrong)


def wrong_with(layout: Layout) -> str:
    """What prevents any reconciler from working here: a full disk, a crash loop; empty: nothing."""
    full = ""
    with contextlib.suppress(FileNotFoundError):
        disk = os.statvfs(layout.state)
        if disk.f_bavail * disk.f_frsize < FULL_BYTES:
            full = (
                f"the disk of {layout.state} is full: no change can be recorded until there is "
                "room; `rankfold cancel JOB` kills a job that fills it"
            )
    return "\n".join(filter(None, [full, restarts.report(layout)]))


def snapshot(state: Path) -> Snapshot:
    """Observe the fleet now. Raises JournalError."""
    layout = Layout(state)
    with ThreadPoolExecutor(1) as pool:  # wait for all unresponsive processes at the same time
        reconciler = pool.submit(liveness.look, layout)
        snap = Snapshot((), {}, Observed(), plan.Plan(), (), {}, layout)
        if database(state).exists():
            snap = _journalled(state, layout)
        trouble = strays.look(layout, _asked(snap))
        return dataclasses.replace(snap, reconciler=reconciler.result(), trouble=trouble)


def _asked(snap: Snapshot) -> set[Path]:
    """Sockets of the processes that `observe` has found."""
    found = {snap.layout.proxy_socket(name) for name in snap.observed.devices}
    return found | {snap.layout.launcher_socket(*key) for key in snap.observed.ranks}


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
        observed = dataclasses.replace(observed, failing=failing)
        planned = plan.plan(desired, records, observed, clock.now())
        meta = {key: store.get(key) for key in _META}
        return Snapshot(objects, records, observed, planned, tuple(store.changes()), meta, layout)
    finally:
        store.close()
        prober.close()


# ---- JSON ----------------------------------------------------------------------------------------


def status(snap: Snapshot) -> Json:
    """``status -o json``."""
    return {
        "format_version": FORMAT_VERSION,
        "revision": snap.meta.get("revision"),
        "reconciler": snap.reconciler_status(),
        "trouble": list(snap.trouble),
        "source": source_status(snap),
        "jobs": [job_status(snap, each) for each in snap.objects if each.kind == "Job"],
        "devices": devices_status(snap),
    }


def reconciler_status(
    seen: liveness.Seen, objects: Iterable[Object], records: Mapping[str, Record], meta: Json,
    wrong: str,
) -> Json:  # fmt: skip
    """Whether a reconciler runs and answers, and what is not done if not. `meta`: the journal's
    keys about the source. `wrong`: see `wrong_with`."""
    jobs = [each.name for each in objects if each.kind == "Job"]
    live = [name for name in jobs if records.get(name, Record(name)).step != "ended"]
    unwatched = meta.get("unwatched") or {}
    followed = meta.get("watching") or unwatched.get("source")
    if seen.answers:
        told = [seen.note, wrong, _unwatched(unwatched) if unwatched else ""]
        return {"running": True, "message": "\n".join(filter(None, told))}
    lacking = []
    if live:
        lacking.append(f"nobody looks after {some(live)}")
    if followed:
        lacking.append(f"nobody follows {followed}")
    if seen.runs:
        return {"running": False, "message": "; ".join([seen.trouble, *lacking])}
    if not lacking:
        return {"running": False, "message": wrong}
    way_out = "`rankfold watch` or `rankfold apply` starts one"
    message = f"no reconciler runs: {'; '.join(lacking)}; {way_out}"
    return {"running": False, "message": f"{message}\n{wrong}" if wrong else message}


def _unwatched(found: Json) -> str:
    return (
        f"nobody follows {found['source']} since {time_of_day(found['since'])}: its "
        "`rankfold watch` is gone; changes there have no effect until it is started again"
    )


def source_status(snap: Snapshot) -> Json:
    attempted, unreachable = snap.meta.get("attempted"), snap.meta.get("unreachable")
    unwatched = snap.meta.get("unwatched")
    followed = snap.meta.get("watching") is not None
    return {
        "name": snap.meta.get("source") or snap.meta.get("watching"),
        "watched": followed and snap.reconciler.answers,
        "attempted": attempted["revision"] if attempted else None,
        "conditions": [_source_ready(snap, attempted or {}, unreachable)]
        if attempted or unreachable or unwatched
        else [],
    }


def _source_ready(snap: Snapshot, attempted: Json, unreachable: Json | None) -> Json:
    faults = attempted.get("faults", [])
    good, reason, message, since = "True", "RevisionAccepted", "", attempted.get("time")
    if faults:
        good, reason, message = "False", "RevisionRefused", "\n".join(faults)
    if unreachable:
        told = [unreachable["message"], message] if message else [unreachable["message"]]
        good, reason, message, since = "False", "Unreachable", "\n".join(told), unreachable["since"]
    elif faults:
        pass
    elif (unwatched := snap.meta.get("unwatched")) is not None:
        good, reason, message = "Unknown", "NotFollowed", _unwatched(unwatched)
        since = unwatched["since"]
    elif snap.meta.get("watching") is not None and not snap.reconciler.answers:
        trouble = snap.reconciler.trouble or "no reconciler runs"
        good, reason, message = "Unknown", "NotFollowed", trouble
    return {"type": "Ready", "status": good, "reason": reason, "message": message, "since": since}


def phase(job: Job, record: Record, interrupted: bool = False) -> str:
    if record.step == "ended":
        return record.phase
    if interrupted:
        return "Interrupted"
    if record.step == "new":
        return "Suspended" if job.suspended else "Pending"
    if not record.placement and record.step in RESTING:
        return "Suspended" if job.suspended else "Pending"
    return "Running"


def _interrupted(snap: Snapshot, record: Record) -> list[Condition]:
    """A condition if a job has stopped and no reconciler handles that; empty: it runs, or a
    reconciler will restart it or record its end."""
    if snap.reconciler.answers or record.step == "ended":
        return []
    ending = record.ending or snap.planned_ends.get(record.name)
    if ending is None or ending.reason == "Cancelled":
        return []
    lacks = "the one that runs does not answer" if snap.reconciler.runs else "none runs"
    what = "restart it" if ending.phase == RESTARTING else "record how it ended"
    message = f"{ending.message}; a reconciler has to {what}, and {lacks}"
    return [Condition("Stalled", "True", "Interrupted", message)]


def job_status(snap: Snapshot, each: Object) -> Json:
    job = each.effective()
    assert isinstance(job, Job)
    record = snap.records.get(job.name, Record(job.name))
    interrupted = _interrupted(snap, record)
    now = phase(job, record, bool(interrupted))
    conditions = (*snap.plan.conditions.get(job.name, ()), *interrupted, *_unchecked(snap, each))
    converged = job.name in snap.plan.converged
    return {
        "name": job.name,
        "phase": now,
        "suspendedIn": _suspended_in(record) if now == "Suspended" else None,
        "worldSize": job.world_size,
        "gpus": job.gpus,
        "devices": len(set(record.placement)) if record.holds() else 0,
        "placement": {str(r): d for r, d in enumerate(record.placement)} if record.holds() else {},
        "restarts": record.restarts,
        "gpuSeconds": round(used_so_far(record), 3),
        "checkpoints": [
            {"id": each.id, "time": each.time, "bytes": each.bytes} for each in record.checkpoints
        ],
        "conditions": [dataclasses.asdict(c) for c in conditions],
        "epoch": record.epoch,
        "determinism": job.determinism,
        "command": list(job.command),
        "source": {"file": each.origin.file, "line": each.origin.line, "revision": each.revision},
        "generation": each.generation,
        "observedGeneration": each.generation if converged else each.generation - 1,
        "message": record.ending.message if record.ending else "",
        "sharing": sharing.done(record, snap.observed),
        "guard": sharing.guard(record, snap.observed),
        "overhead": sharing.overhead(record, snap.observed),
        "ranks": [rank_status(snap, record, r) for r in range(job.world_size)],
        "changes": [change_status(c) for c in snap.changes_of.get(job.name, ())],
    }


def _suspended_in(record: Record) -> str | None:
    if record.step == "stored":
        return "node" if record.stored == NODE else "store"
    return "memory" if record.epoch > 0 and record.step != "new" else None


def _unchecked(snap: Snapshot, each: Object) -> list[Condition]:
    """A condition if the source cannot be read: its revision may not be the newest any more."""
    unreachable = snap.meta.get("unreachable")
    if not unreachable or each.source is None:
        return []
    message = f"since {time_of_day(unreachable['since'])} its source cannot be read: "
    return [Condition("SourceUnreachable", "True", "Unreachable", message + unreachable["message"])]


def rank_status(snap: Snapshot, record: Record, rank: int) -> Json:
    """One rank: its process, and the counters of the proxy that serves it."""
    seen = snap.observed.ranks.get((record.name, rank))
    device = record.placement[rank] if record.holds() and rank < len(record.placement) else None
    found: Json = {
        "rank": rank,
        "device": device,
        "pid": seen.pid if seen else None,
        "state": seen.state if seen else ("exited" if record.step == "ended" else "none"),
        "exitStatus": seen.exit_status if seen else None,
    }
    if record.step == "ended":
        found["exitStatus"] = record.exits[rank] if rank < len(record.exits) else None
        found["counters"] = dict(record.counters.get(str(rank), {}))
    there = snap.observed.devices.get(device) if device else None
    on_device = there.job(record.name) if there else None
    for counted in on_device.ranks if on_device else ():
        if counted.rank == rank:
            found["counters"] = dict(counted.counters)
            found["onDevice"] = counted.state
            if counted.at:
                found["at"], found["quietSeconds"] = counted.at, round(counted.quiet_s)
            if counted.error:
                found["error"] = counted.error
    return found


def change_status(change: Change) -> Json:
    return {
        "from": change.from_gpus,
        "to": change.to_gpus,
        "commit": change.commit,
        "wanted_at": change.wanted_at,
        "converge_s": change.converge_s,
        "pause_s": change.pause_s,
        "superseded": change.superseded,
    }


def devices_status(snap: Snapshot) -> list[Json]:
    desired: dict[str, Any] = {}
    for each in snap.objects:
        if not isinstance(each.spec, Job):
            desired.update({d.name: d for d in each.spec.devices})
    found = []
    for name in [*desired, *(n for n in snap.observed.devices if n not in desired)]:
        device, seen = desired.get(name), snap.observed.devices.get(name)
        ready = seen is not None and seen.ready
        stopped = seen is None and name in (snap.meta.get("told_to_end") or ())
        entry: Json = {
            "name": name,
            "type": device.type if device else (seen.type if seen else ""),
            "memory": seen.memory if seen and ready else (device.memory if device else 0),
            "used": seen.used if seen else 0,
            "ranks": snap.ranks_on.get(name, []),
            "state": _device_state(seen, device is not None, stopped),
            "swap": seen.swap if seen else 0,
            "shares": seen.shares if seen else None,
            "counters": dict(seen.counters) if seen else {},
            "kernels": dict(seen.kernels) if seen else {},
        }
        if message := _device_message(snap, name, seen, stopped):
            entry["message"] = message
        found.append(entry)
    return found


def _device_message(snap: Snapshot, name: str, seen: SeenDevice | None, stopped: bool) -> str:
    """Why a device is not `Ready`, or what prevents jobs from leaving it."""
    pid = (snap.meta.get("proxies") or {}).get(name, 0)
    if stopped:
        return ""
    if seen is not None and seen.silent_since is not None:
        return silence("its proxy", seen.silent_since, seen.pid or pid)
    if seen is not None and seen.ready:
        return seen.lost or seen.trouble
    words = last_lines(snap.layout.proxy_file(name, ".log"), 1)
    if seen is None and pid:
        return f"its proxy (process {pid}) ended; last line of its log: {words}"
    return words


def _device_state(seen: SeenDevice | None, desired: bool, stopped: bool) -> str:
    if stopped:
        return "Stopped"
    if seen is None or seen.silent_since is not None:
        return "Down"
    if not desired:
        return "Stopping"
    return "Ready" if seen.ready else "Starting"


# ---- plans ---------------------------------------------------------------------------------------


def plan_json(found: Iterable[Difference], planned: plan.Plan, revision: str) -> Json:
    told = {
        name: [dataclasses.asdict(c) for c in conditions if _will_be(c)]
        for name, conditions in planned.conditions.items()
    }
    return {
        "format_version": FORMAT_VERSION,
        "revision": revision,
        "changes": [
            {
                "object": d.object,
                "action": d.action,
                "disturbs": d.disturbs,
                "fields": [{"field": f, "from": a, "to": b} for f, a, b in d.fields],
                "note": d.note,
            }
            for d in found
        ],
        "placements": {
            name: {str(r): device for r, device in enumerate(target)}
            for name, target in planned.targets.items()
        },
        "conditions": {name: each for name, each in told.items() if each},
    }


def _will_be(condition: Condition) -> bool:
    """Whether a plan reports the condition. A plan assumes that all devices are up that are not
    bad, so a job that waits for a proxy there waits until a person acts."""
    return condition.type in TOLD_IN_PLANS or condition.reason == "WaitingForProxies"


def plan_lines(data: Json, markdown: bool = False) -> list[str]:
    """The lines of a plan for people; as Markdown for a comment on a pull request."""
    signs = {"create": "+", "update": "~", "suspend": "~", "resume": "~", "remove": "-"}
    lines = []
    for each in data["changes"]:
        changed = ", ".join(
            f"{f['field']}: {_value(f['from'])} → {_value(f['to'])}" for f in each["fields"]
        )
        text = "; ".join(part for part in (changed, each["note"]) if part)
        if each["disturbs"]:
            text += " — disturbs the job: it stands still for a moment, no step is lost"
        head = f"{each['action']} {each['object']}"
        lines.append(
            f"- **{head}**: {text}" if markdown else f"{signs[each['action']]} {head}: {text}"
        )
    for name, conditions in data["conditions"].items():
        for condition in conditions:
            what = TOLD_IN_PLANS.get(condition["type"], "will wait")
            sign = "- " if markdown else "! "
            lines.append(f"{sign}Job/{name} {what}: {condition['message']}")
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


# ---- text ----------------------------------------------------------------------------------------


def job_rows(data: Json) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for job in data["jobs"]:
        by_type = {c["type"]: c for c in job["conditions"]}
        told: Json = next((by_type[kind] for kind in TOLD_FIRST if kind in by_type), {})
        text = told.get("message", "").splitlines()
        where = f"{job['devices']}/{job['gpus']}"
        rows.append(
            (job["name"], job["phase"], str(job["worldSize"]), where, text[0] if text else "")
        )
    return rows


def device_rows(data: Json) -> list[tuple[str, ...]]:
    return [
        (
            d["name"],
            d["state"],
            f"{size(d['used'])} of {size(d['memory'])}",
            " ".join(d["ranks"]),
            d.get("message", "") if d["state"] == "Down" else "",
        )
        for d in data["devices"]
    ]


def describe_lines(job: Json) -> list[str]:
    """The lines of ``describe`` for people; `job` is its JSON."""
    source = job["source"]
    place = f"{source['file']}:{source['line']}" if source["line"] else "rankfold run"
    resting = f", in {job['suspendedIn']}" if job["suspendedIn"] else ""
    lines = [
        f"name:         {job['name']}",
        f"phase:        {job['phase']}{resting}",
        f"ranks:        {job['worldSize']}",
        f"devices:      {job['devices']} of {job['gpus']} wanted",
        f"determinism:  {job['determinism']}",
        f"command:      {shlex.join(job['command'])}",
        f"described in: {place}" + (f", {source['revision']}" if source["line"] else ""),
        f"used so far:  {job['gpuSeconds']:.1f} device-seconds",
        *_sharing_lines(job["sharing"]),
        *_guard_lines(job["guard"]),
        *_overhead_lines(job["overhead"]),
        *_block("conditions", [
            (c["type"], c["status"], c["reason"], c["message"]) for c in job["conditions"]
        ]),
        *_block("ranks", [_rank_cells(rank) for rank in job["ranks"]]),
        *_block("changes", [_change_cells(change) for change in job["changes"]]),
        *_block("events", [
            (time_of_day(e["time"]), e["reason"], e["message"]) for e in job["events"]
        ]),
    ]  # fmt: skip
    return lines


def _sharing_lines(done: Json | None) -> list[str]:
    if done is None:
        return []
    told = {"chunksShared", *sharing.TOLD.values()} - {"chunksPrepared"}
    if not any(done[name] for name in told):
        return ["sharing:      off" if done["on"] is False else "sharing:      nothing"]
    return [
        f"sharing:      {count(done['chunksShared'], 'chunk')} that several ranks have; "
        f"{count(done['operationsSquashed'], 'operation')} not done again; "
        f"{count(done['copiesOnWrite'], 'chunk')} copied to be written, "
        f"{done['copiesUnforeseen']} unforeseen; "
        f"{size(done['bytesNotSwapped'])} not swapped in; "
        f"{count(done['chunksPrepared'], 'chunk')} there before the rank's turn",
        f"              what kernels read and write is known {_KNOWN_FROM[done['guard']]}",
    ]


_KNOWN_FROM = {"sets": "from their code", "validated": "from their code, or was measured"}


def _guard_lines(found: Json | None) -> list[str]:
    if found is None:
        return []
    parts = count(found["compared"], "part")
    lines = [
        f"guard:        every {count(found['every'], 'collective')} what should be equal is "
        f"compared: "
        f"{parts} of buffers since it was placed"
    ]
    if found["unwatched"]:
        lines.append(
            f"              not of {count(found['unwatched'], 'rank')}: a kernel was still running "
            "after a second, twice; tried again when the job moves"
        )
    if found["measured"]:
        lines.append(
            f"              opaque code: measured {count(found['measured'], 'time')}, "
            f"{count(found['alike'], 'kernel')} trusted to do the same for all ranks"
        )
    return lines


def _overhead_lines(spent: Json | None) -> list[str]:
    if spent is None:
        return []
    parts = ", ".join(f"{100 * spent[name]:.1f} % {name}" for name in sharing.REASONS)
    return [f"overhead:     {parts}, of {spent['seconds']:.1f} s since it was placed"]


def _block(title: str, rows: list[tuple[str, ...]]) -> list[str]:
    """A headed list in columns; further lines of the last cell are indented below its first."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    indent = "\n" + " " * (2 + sum(widths) + 2 * len(widths))
    lines = [f"{title}:"]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append(("  " + "  ".join([*cells, indent.join(row[-1].splitlines())])).rstrip())
    return lines


def _rank_cells(rank: Json) -> tuple[str, ...]:
    counted = rank.get("counters", {})
    state = rank["state"]
    if rank["exitStatus"] is not None:
        state = f"exited with {rank['exitStatus']}"
    told = [key for key in ("kernels", "collectives") if key in counted]
    told += [key for key in ("squashed", "copies", "unforeseen") if counted.get(key)]
    words = [f"{counted[key]} {key}" for key in told]
    pid = f"pid {rank['pid']}" if rank["pid"] else ""
    return (str(rank["rank"]), state, rank["device"] or "-", pid, ", ".join(words))


def _change_cells(change: Json) -> tuple[str, ...]:
    took = f"in {change['converge_s']:.3f} s" if change["converge_s"] is not None else "not yet"
    if change["superseded"]:
        took = "superseded"
    still = f"stood still {change['pause_s']:.3f} s" if change["pause_s"] is not None else ""
    return (
        f"{change['from']} → {count(change['to'], 'device')}",
        took,
        still,
        change["commit"][:19],
    )


JOB_HEAD = ("JOB", "PHASE", "RANKS", "DEVICES", "MESSAGE")
DEVICE_HEAD = ("DEVICE", "STATE", "MEMORY", "RANKS", "MESSAGE")


def columns(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Plain text columns, as `kubectl` prints them."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    return lines
