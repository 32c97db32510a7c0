"""The formats of traces: each reads a file's jobs, in the order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast, get_args

from rankfold import legible
from rankfold.plural import count
from rankfold.policy.vocabulary import PRIORITY_MAX, TIERS, Locality, Tier
from rankfold.simulator import easyscale, gavel
from rankfold.simulator.easyscale import read_easyscale
from rankfold.simulator.pollux import WORKLOAD
from rankfold.simulator.table import SECONDS_MAX, BadTrace, Row, Table, header_of, shown
from rankfold.simulator.trace import Kind, TraceJob

RANKS_MAX = 1 << 16  # of a job
CSV = ("name", "arrival", "worldSize", "min", "max", "tier", "work")
CSV_OPTIONAL = ("deviceTypes", "quota", "priority", "minRuntime", "demand", "locality")
TIERS_SHOWN = ", ".join(reversed(TIERS))
PHILLY = ("submit_s", "duration_s", "gpus", "virtual_cluster")


def read_csv(path: Path, kinds: Sequence[Kind]) -> list[TraceJob]:
    """Our own format, which docs/simulate.md describes."""
    jobs: list[TraceJob] = []
    lines: dict[str, int] = {}
    for row in Table(path).rows(CSV, CSV_OPTIONAL, unordered=True):
        name = row.text("name")
        if lines.setdefault(name, row.line) != row.line:
            row.fault("name", f"{shown(name)} is also the name of line {lines[name]}")
        least, most, world_size = (
            row.whole("min", 0, RANKS_MAX),
            row.whole("max", 1, RANKS_MAX),
            row.whole("worldSize", 1, RANKS_MAX),
        )
        if not least <= most <= world_size:
            row.fault("max", f"must be from min ({least}) to worldSize ({world_size}), not {most}")
        job = TraceJob(
            name,
            _arrival(row, "arrival", jobs),
            world_size,
            least,
            most,
            row.number("work", 0, SECONDS_MAX, above=True),
            _kind_of(row, kinds),
            _tier(row),
            row.text("quota") if row.has("quota") else "",
            _priority(row) if row.has("priority") else 0,
            row.number("minRuntime", 0, SECONDS_MAX) if row.has("minRuntime") else 0.0,
            row.whole("demand", 1, RANKS_MAX) if row.has("demand") else 0,
            _locality(row) if row.has("locality") else "any",
        )
        if job.demand and not max(1, least) <= job.demand <= most:
            row.fault("demand", f"must be from min ({max(1, least)}) to max ({most})")
        _fits(row, "min", job.min, kinds[job.kind], job.locality)
        _lasts(row, "work", job)
        jobs.append(job)
    return jobs


def read_philly(path: Path, kinds: Sequence[Kind]) -> list[TraceJob]:
    """Jobs of the Philly trace: all have a fixed number of devices. Their names are their lines."""
    jobs: list[TraceJob] = []
    for row in Table(path).rows(PHILLY, ()):
        devices = row.whole("gpus", 1, RANKS_MAX)
        job = TraceJob(
            f"line-{row.line}",
            _arrival(row, "submit_s", jobs),
            devices,
            devices,
            devices,
            row.number("duration_s", 0, SECONDS_MAX, above=True),
            quota=row.text("virtual_cluster"),
        )
        _fits(row, "gpus", job.min, kinds[0])
        _lasts(row, "duration_s", job)
        jobs.append(job)
    return jobs


Reader = Callable[[Path, Sequence[Kind]], list[TraceJob]]
FORMATS: Mapping[str, Reader] = {
    "csv": read_csv,
    "philly": read_philly,
    "easyscale": read_easyscale,
}
EASYSCALE = "easyscale"
GAVEL, POLLUX = "gavel", "pollux"  # these need measurements: see gavel.py and pollux.py
HEADERS = {
    PHILLY: "philly",
    easyscale.HEADER: "easyscale",
    easyscale.COLUMNS: "easyscale",
    gavel.COLUMNS: GAVEL,
    WORKLOAD: POLLUX,
}


def form_of(path: Path) -> str:
    """The format of a trace, as its header says. Raises BadTrace."""
    return HEADERS.get(tuple(header_of(path)), "csv")


def read(
    path: Path,
    kinds: Sequence[Kind],
    form: str | None = None,
    measured: Path | None = None,
    mixed: bool = False,
) -> list[TraceJob]:
    """The jobs of a trace. form: one of FORMATS, or GAVEL; None: as the header says. kinds: the
    devices, the kind with the most first. measured: folder of the measurements, for GAVEL. mixed:
    whether jobs may use several types of devices at once, for EASYSCALE. Raises BadTrace."""
    form = form or form_of(path)
    if form == GAVEL:
        assert measured is not None
        jobs = gavel.read_gavel(path, kinds, measured)
    elif form == EASYSCALE:
        jobs = read_easyscale(path, kinds, mixed)
    else:
        jobs = FORMATS[form](path, kinds)
    if not jobs:
        raise BadTrace([f"{legible.name(path)}:1:1: -: the trace has no jobs"])
    return jobs


def _arrival(row: Row, column: str, jobs: Sequence[TraceJob]) -> float:
    seconds = row.number(column, 0, SECONDS_MAX)
    if jobs and seconds < jobs[-1].arrival:
        row.fault(column, f"is before that of line {row.line - 1}: sort the file by {column}")
    return seconds


def _tier(row: Row) -> Tier:
    given = row.text("tier")
    for tier in get_args(Tier):
        if tier == given:
            return cast("Tier", tier)
    row.fault("tier", f"must be one of {TIERS_SHOWN}, not {shown(given)}")
    return "standard"


def _priority(row: Row) -> int:
    number = row.number("priority", -PRIORITY_MAX, PRIORITY_MAX)
    if not number.is_integer():
        row.fault("priority", f"must be a whole number, not {number:g}")
    return int(number)


def _kind_of(row: Row, kinds: Sequence[Kind]) -> int:
    """The first kind, that with the most devices, that the job may use."""
    if not row.has("deviceTypes"):
        return 0
    wanted, known = row.text("deviceTypes").split(), [kind.type for kind in kinds]
    for each in wanted:
        if each not in known:
            row.fault("deviceTypes", f"the fleet has {', '.join(known)}, not {shown(each)}")
    return next((number for number, kind in enumerate(kinds) if kind.type in wanted), 0)


def _lasts(row: Row, column: str, job: TraceJob) -> None:
    """Refuse a job that would end when it arrives, because numbers are rounded."""
    if job.arrival + job.work == job.arrival:
        reason = f"is too short, {job.work:g} s, for an arrival at {job.arrival:g} s"
        row.fault(column, f"{reason}: let the trace begin at 0")


def _locality(row: Row) -> Locality:
    given = row.text("locality")
    for locality in get_args(Locality):
        if locality == given:
            return cast("Locality", locality)
    known = ", ".join(get_args(Locality))
    row.fault("locality", f"must be one of {known}, not {shown(given)}")
    return "any"


def _fits(row: Row, column: str, fewest: int, kind: Kind, locality: Locality = "any") -> None:
    if fewest > (most := kind.most(locality)):
        there, where = count(most, "device"), "" if locality == "any" else f" in one {locality}"
        row.fault(column, f"needs {fewest}; the fleet has {there} of type {kind.type}{where}")
