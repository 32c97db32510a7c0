"""The commands for a store of checkpoints: list, check, adopt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rankfold.reconciler.commands.common import (
    EXIT_ERROR,
    answering,
    fail,
    output_option,
    reading,
    show,
)
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node.launchers import Node
from rankfold.reconciler.report import text
from rankfold.reconciler.report.lines import emit, say
from rankfold.reconciler.wording import count

if TYPE_CHECKING:  # imported where needed, because few commands open a store
    from rankfold.checkpoint.store import Manifest, Store
    from rankfold.checkpoint.store.checking import Report


@click.group()
def store() -> None:
    """Inspect a store of checkpoints, or make it this fleet's."""


@store.command("list")
@click.argument("url")
@output_option()
def list_command(url: str, output: str) -> int:
    """List the checkpoints at URL, oldest first, without reading their data.

    URL is a folder, or what fsspec opens: s3://bucket/prefix, …
    Exit code 1 if the store or a manifest cannot be read.
    """
    from rankfold.checkpoint.store import StoreError

    rows: list[Json] = []
    faults: list[str] = []
    opened = _open(url)
    try:
        with reading(opened):
            for job in opened.jobs():
                for each in opened.checkpoints(job):
                    try:
                        rows.append(_row(opened.manifest(job, each)))
                    except StoreError as error:
                        faults.append(str(error))
    except StoreError as error:
        fail(str(error))
    if output == "json":
        show({"url": url, "fleet": opened.fleet, "checkpoints": rows, "faults": faults})
    else:
        head = ("JOB", "ID", "SAVED", "RANKS", "BYTES", "STORED")
        lines = [tuple(str(row[key.lower()]) for key in head) for row in rows]
        emit("\n".join(text.columns(head, lines)))
        for fault in faults:
            say(fault)
    return EXIT_ERROR if faults else 0


@store.command("check")
@click.argument("url")
@output_option()
def check_command(url: str, output: str) -> int:
    """Read the whole store at URL and report the damage of each checkpoint.

    Damaged files are marked, so that no later save relies on them; nothing else changes. Exit code
    1 if a checkpoint cannot be restored.
    """
    from rankfold.checkpoint.store import StoreError
    from rankfold.checkpoint.store.checking import check

    opened, reports = _open(url), []
    try:
        with reading(opened):
            for each in check(opened, say if output == "text" else None):
                reports.append(each)
                if output == "text":
                    for line in _lines(each):
                        emit(line)
    except StoreError as error:
        fail(str(error))
    bad = [each for each in reports if each.faults]
    if output == "json":
        show({"url": url, "fleet": opened.fleet, "found": [_report(each) for each in reports]})
    else:
        sound = sum(each.id is not None and not each.faults for each in reports)
        all_of = sum(each.id is not None for each in reports)
        emit(f"{sound} of {count(all_of, 'checkpoint')} {'is' if all_of == 1 else 'are'} sound")
    return EXIT_ERROR if bad else 0


@store.command("adopt")
@click.argument("url")
@click.pass_obj
def adopt_command(state: Path, url: str) -> int:
    """Make this state directory one of the fleet whose store is at URL.

    Its jobs can be resumed here then. Refused if jobs of another fleet exist here.
    """
    fleet = _open(url).fleet
    with Journal(state) as journal:
        live = [name for name, each in journal.records().items() if each.step != "ended"]
    if live:
        fail(
            f"{', '.join(sorted(live))} exist in this state directory: cancel them first, or use "
            "another --state"
        )
    Node(Layout(state)).adopt(fleet)
    return 0


def _open(url: str) -> Store:
    from rankfold.checkpoint.store import StoreError, open_existing

    try:
        with answering(url):
            return open_existing(url)
    except StoreError as error:
        fail(str(error))


def _row(manifest: Manifest) -> Json:
    ranks = {part.rank for part in manifest.parts if part.rank is not None}
    return {
        "job": manifest.job,
        "id": str(manifest.id),
        "saved": manifest.saved,
        "ranks": len(ranks),
        "bytes": manifest.size,
        "stored": manifest.stored,
        "about": manifest.about,
    }


def _lines(report: Report) -> list[str]:
    subject = f"{report.job}: checkpoint {report.id}" if report.id else f"{report.job}"
    if report.faults:
        return [f"{subject}: DAMAGED: {fault}" for fault in report.faults]
    return [f"{subject}: {report.note or 'ok'}"]


def _report(report: Report) -> Json:
    return {
        "job": report.job,
        "id": str(report.id) if report.id else None,
        "sound": not report.faults,
        "faults": list(report.faults),
        "note": report.note,
    }
