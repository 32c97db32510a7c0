"""Status as text: rows of tables, and the paragraphs of `describe`."""

from __future__ import annotations

import shlex

from rankfold.reconciler.model.values import Json
from rankfold.reconciler.observe import sharing
from rankfold.reconciler.wording import count, size, time_of_day

SHOWN_FIRST = (  # in the table of jobs: types of conditions, the first that a job has is shown
    "Stalled",
    "Orphaned",
    "Waiting",
    "Progressing",
    "Degraded",
    "SourceUnreachable",
    "Drifted",
    "Ready",
)


def job_rows(data: Json) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for job in data["jobs"]:
        by_type = {c["type"]: c for c in job["conditions"]}
        shown: Json = next((by_type[kind] for kind in SHOWN_FIRST if kind in by_type), {})
        text = shown.get("message", "").splitlines()
        if text and (place := job["queue"]) is not None:
            text[0] = f"{place['position']} of {place['waiting']} in the queue: {text[0]}"
        least = "" if job["gpusMin"] is None else f"{job['gpusMin']}-"
        where = f"{job['devices']}/{least}{job['gpus']}"
        rows.append(
            (job["name"], job["phase"], str(job["worldSize"]), where, text[0] if text else "")
        )
    return rows


def service_rows(data: Json) -> list[tuple[str, ...]]:
    return [
        (
            each["name"],
            f"{each['onDevices']}/{each['replicas']}",
            str(each["max"]) if each["load"] is None else f"{each['min']}-{each['max']}",
            each["message"],
        )
        for each in data["services"]
    ]


def has_places(data: Json) -> bool:
    """Whether a pool names nodes or domains."""
    return any(device["domain"] or device["node"] for device in data["devices"])


def device_head(data: Json) -> tuple[str, ...]:
    *first, ranks, message = DEVICE_HEAD
    return (*first, "NODE", ranks, message) if has_places(data) else DEVICE_HEAD


def device_rows(data: Json) -> list[tuple[str, ...]]:
    placed = has_places(data)
    return [
        (
            d["name"],
            ", ".join(filter(None, (d["state"], d["drain"]))),
            f"{size(d['used'])} of {size(d['memory'])}",
            *(["/".join(filter(None, (d["domain"], d["node"])))] if placed else ()),
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
        f"devices:      {job['devices']} of {_wanted(job)} wanted",
        f"tier:         {_tier(job)}",
        *([f"quota:        {job['quota']}"] if job["quota"] else []),
        *([f"locality:     one {job['locality']}"] if job["locality"] != "any" else []),
        *_limit_lines(job["timeLimit"], job["timeLeft"]),
        *_queue_lines(job["queue"]),
        *_guaranteed_lines(job["guaranteed"]),
        *_rate_lines(job["rates"], job["slower"]),
        f"determinism:  {job['determinism']}",
        f"command:      {shlex.join(job['command'])}",
        *_settings_lines(job["settings"]),
        f"described in: {place}" + (f", {source['revision']}" if source["line"] else ""),
        f"used so far:  {job['gpuSeconds']:.1f} device-seconds",
        *sharing_lines(job),
        *_cross_check_lines(job["guard"]),
        *_collective_lines(job["collectives"]),
        *_overhead_lines(job["overhead"]),
        *_block(
            "conditions",
            [(c["type"], c["status"], c["reason"], c["message"]) for c in job["conditions"]],
        ),
        *_block("ranks", [_rank_cells(rank) for rank in job["ranks"]]),
        *_block("changes", [_change_cells(change) for change in job["changes"]]),
        *_block(
            "events", [(time_of_day(e["time"]), e["reason"], e["message"]) for e in job["events"]]
        ),
    ]
    return lines


def _queue_lines(place: Json | None) -> list[str]:
    if place is None:
        return []
    text = f"place {place['position']} of {place['waiting']}, since {time_of_day(place['since'])}"
    if place["firstAt"] is not None:
        text += f"; goes first from {time_of_day(place['firstAt'])} on"
    lines = [f"queue:        {text}"]
    if words := place.get("expected"):
        lines.append(f"start:        {words}")
    return lines


def _limit_lines(limit: int | None, left: float | None) -> list[str]:
    if limit is None:
        return []
    return [f"time limit:   {limit} s; {left:.1f} s left on devices with one rank each"]


def _guaranteed_lines(found: Json | None) -> list[str]:
    if found is None:
        return []
    parts = [f"{found['fraction']:.1%} of its progress on {count(found['demand'], 'device')}"]
    if found["measured"] is not None:
        parts.append(f"{found['measured']:.1%} so far")
    if found["periods"]:
        parts.append(f"less in {found['violated']} of {count(found['periods'], 'period')}")
    return [f"guaranteed:   {'; '.join(parts)}"]


def _rate_lines(rates: list[Json], slower: Json | None) -> list[str]:
    lines: list[str] = []
    for each in rates:
        title = "" if lines else "rates:"
        measured = f" {time_of_day(each['at'])}" if each["at"] is not None else ""
        devices = f"{each['perSecond']:g} steps per s on {count(each['devices'], 'device')}"
        if each["at"] is not None and each["estimate"] is not None:
            measured += f"; estimated: {each['estimate']:g}"
        lines.append(f"{title:<14}{devices}, {each['basis']}{measured}")
    if slower is not None:
        lines.append(
            f"{'':14}slower on {slower['devices']} than on {count(slower['than'], 'device')}: at "
            f"most {slower['than']} until {time_of_day(slower['until'])}"
        )
    return lines


def _tier(job: Json) -> str:
    priority = f", priority {job['priority']}" if job["priority"] else ""
    protected = f", keeps devices for {job['minRuntime']} s" if job["minRuntime"] else ""
    return f"{job['tier']}{priority}{protected}"


def _wanted(job: Json) -> str:
    return str(job["gpus"]) if job["gpusMin"] is None else f"{job['gpusMin']} to {job['gpus']}"


def _settings_lines(settings: Json) -> list[str]:
    if not settings:
        return []
    said = " ".join(f"{name}={value}" for name, value in settings.items())
    return [
        f"settings:     {said}",
        "              rankfold sets these variables unless the job's environment has them",
    ]


def sharing_lines(job: Json) -> list[str]:
    """The lines about what ranks share; `job` as for `describe_lines`."""
    counts = job["sharing"]
    if counts is None:
        return []
    shown = {"chunksShared", *sharing.REPORTED.values()} - {"chunksPrepared"}
    if not any(counts[name] for name in shown):
        if counts["on"] is not False:
            return ["sharing:      nothing"]
        on_gpus = any("/nvidia-" in device for device in job["placement"].values())
        return [f"sharing:      off{_NO_TIME if on_gpus else ''}"]
    return [
        f"sharing:      {count(counts['chunksShared'], 'chunk')} shared by several ranks; "
        f"{count(counts['operationsSquashed'], 'operation')} squashed; "
        f"{count(counts['copiesOnWrite'], 'chunk')} copied before a write, "
        f"{counts['copiesUnforeseen']} unforeseen; "
        f"{size(counts['bytesNotSwapped'])} not swapped in; "
        f"{count(counts['chunksPrepared'], 'chunk')} prefetched",
        f"              the reads and writes of kernels are known {_KNOWN_FROM[counts['guard']]}",
    ]


_NO_TIME = ", as on NVIDIA GPUs it saves memory and no time"
_KNOWN_FROM = {"sets": "from their code", "validated": "from their code, or was measured"}
_MIB = 1 << 20


def _collective_lines(found: Json | None) -> list[str]:
    if found is None:
        return []
    lines = [
        f"collectives:  {found['directBytes'] / _MIB:.1f} MiB from GPU to GPU, "
        f"{found['hostBytes'] / _MIB:.1f} MiB through host memory since it was placed"
    ]
    for each in found["throughHost"]:
        way = f"from {each['from']} to {each['to']}"
        lines.append(f"              {way} through host memory: {each['reason']}")
    if found["ncclBytes"]:
        lines.append(f"              {found['ncclBytes'] / _MIB:.1f} MiB summed by NCCL")
    lines += [f"              sums without NCCL: {why}" for why in found["withoutNccl"]]
    return lines


def _cross_check_lines(counts: Json | None) -> list[str]:
    if counts is None:
        return []
    parts = count(counts["compared"], "part")
    lines = [
        f"cross-check:  every {count(counts['every'], 'collective')} what should be equal is "
        f"compared: {parts} of buffers since it was placed"
    ]
    if counts["unwatched"]:
        lines.append(
            f"              not for {count(counts['unwatched'], 'rank')}: a kernel was still "
            "running after a second, twice; tried again when the job moves"
        )
    if counts["measured"]:
        lines.append(
            f"              opaque code: measured {count(counts['measured'], 'time')}, "
            f"{count(counts['alike'], 'kernel')} trusted to do the same for all ranks"
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


_ONE = {"kernels": "kernel", "collectives": "collective", "copies": "copy"}


def _rank_cells(rank: Json) -> tuple[str, ...]:
    counted = rank.get("counters", {})
    state = rank["state"]
    if rank["exitStatus"] is not None:
        state = f"exited with {rank['exitStatus']}"
    shown = [key for key in ("kernels", "collectives") if key in counted]
    shown += [key for key in ("squashed", "copies", "unforeseen") if counted.get(key)]
    words = [f"{counted[key]} {_ONE.get(key, key) if counted[key] == 1 else key}" for key in shown]
    pid = f"pid {rank['pid']}" if rank["pid"] else ""
    cores = rank.get("cores", ())
    on = f" core{'s' * (len(cores) > 1)} {','.join(map(str, cores))}" if cores else ""
    return (str(rank["rank"]), state, f"{rank['device'] or '-'}{on}", pid, ", ".join(words))


def _change_cells(change: Json) -> tuple[str, ...]:
    took = f"in {change['converge_s']:.3f} s" if change["converge_s"] is not None else "not yet"
    if change["superseded"]:
        took = "superseded"
    pause = f"paused {change['pause_s']:.3f} s" if change["pause_s"] is not None else ""
    return (
        f"{change['from']} → {count(change['to'], 'device')}",
        change["cause"],
        took,
        pause,
        change["commit"][:19],
    )


SERVICE_HEAD = ("SERVICE", "REPLICAS", "RANGE", "MESSAGE")
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
