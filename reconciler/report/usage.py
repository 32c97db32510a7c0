"""Device-seconds by job, quota, tier and cause: what `rankfold usage` prints."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping

from rankfold.reconciler.model.recorded import UNKNOWN_USE, Record
from rankfold.reconciler.model.values import Json

HEAD = ("job", "quota", "tier", "cause", "deviceSeconds")


def usage_of(records: Mapping[str, Record], now: float) -> Json:
    """now: fleet time."""
    jobs = [row for name in sorted(records) for row in _rows(records[name], now)]
    return {
        "jobs": jobs,
        "quotas": _sums([row for row in jobs if row["quota"]], "quota"),
        "tiers": _sums(jobs, "tier"),
        "causes": _sums(jobs, "cause"),
        "deviceSeconds": round(sum(row["deviceSeconds"] for row in jobs), 3),
    }


def _rows(record: Record, now: float) -> list[Json]:
    seconds_of = record.usage_so_far(now)
    # A journal of an earlier version has only the sum.
    rest = record.used_so_far(now) - sum(seconds_of.values())
    if rest > 1e-3:
        seconds_of[UNKNOWN_USE] = seconds_of.get(UNKNOWN_USE, 0.0) + rest
    rows = []
    for key, seconds in sorted(seconds_of.items()):
        tier, cause, *quota = key.split("/")
        row = (record.name, "".join(quota), tier, cause, round(seconds, 3))
        rows.append(dict(zip(HEAD, row, strict=True)))
    return rows


def _sums(rows: Iterable[Json], by: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for row in rows:
        sums[row[by]] = sums.get(row[by], 0.0) + row["deviceSeconds"]
    return {key: round(sums[key], 3) for key in sorted(sums)}


def csv_of(usage: Json) -> str:
    """One line for each job, quota, tier and cause, without the sums."""
    text = io.StringIO()
    writer = csv.DictWriter(text, HEAD, lineterminator="\n")
    writer.writeheader()
    writer.writerows(usage["jobs"])
    return text.getvalue()


def rows_of(usage: Json) -> list[tuple[str, ...]]:
    """The cells of a table: each job, then each quota, each tier, then all."""
    rows = [
        (row["job"], row["quota"], row["tier"], row["cause"], f"{row['deviceSeconds']:.1f}")
        for row in usage["jobs"]
    ]
    rows += [("", quota, "", "", f"{seconds:.1f}") for quota, seconds in usage["quotas"].items()]
    rows += [("", "", tier, "", f"{seconds:.1f}") for tier, seconds in usage["tiers"].items()]
    return [*rows, ("", "", "", "", f"{usage['deviceSeconds']:.1f}")]
