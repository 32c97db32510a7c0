"""The commands that only read: status, describe, events, usage, inspect, logs, doctor."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click
from msgspec import structs

from rankfold.reconciler import clock, liveness
from rankfold.reconciler.commands.common import (
    EXIT_ERROR,
    POLL_S,
    fail,
    output_option,
    show,
    terminating,
)
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.journal.tables import database
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.report import snapshot
from rankfold.reconciler.report.console import blocks_of, event_line, tables
from rankfold.reconciler.report.lines import emit, say
from rankfold.reconciler.report.status import (
    reconciler_of,
    reconciler_status,
    status_of,
    wrong_with,
)
from rankfold.reconciler.report.text import columns, describe_lines
from rankfold.reconciler.wording import no_job, time_of_day


@click.command()
@output_option()
@click.pass_obj
def status(state: Path, output: str) -> int:
    """Show the present jobs and devices.

    Exit code 0 in any state; 1 if the state cannot be read.
    """
    data = status_of(snapshot.snapshot(state))
    if output == "json":
        show(data)
        return 0
    width = None
    if sys.stdout.isatty():
        import shutil  # here, as rich below: `status` imports little

        width = shutil.get_terminal_size().columns
    tables(blocks_of(data, width))
    if data["revision"]:
        emit(f"revision {data['revision']} of {data['source']['name']}")
    for condition in data["source"]["conditions"]:
        if condition["reason"] == "Unreachable":
            since = time_of_day(condition["since"])
            say(f"since {since} the source cannot be read: {condition['message']}")
        elif condition["status"] == "False":
            say(
                f"the last revision was refused, the fleet stays as it was:\n{condition['message']}"
            )
    warn_of_reconciler(data["reconciler"])
    for trouble in data["trouble"]:
        say(f"rankfold: {trouble}")
    return 0


def warn_of_reconciler(reconciler: Json) -> None:
    """Print a line if no reconciler runs although one is needed, or if something is wrong with
    it."""
    if reconciler["message"]:
        say(f"rankfold: {reconciler['message']}")


@click.command()
@click.argument("name")
@output_option()
@click.pass_obj
def describe(state: Path, name: str, output: str) -> int:
    """Show everything about one job: conditions, ranks, changes, events."""
    snap = snapshot.snapshot(state)
    job = next((j for j in status_of(snap)["jobs"] if j["name"] == name), None)
    if job is None:
        fail(no_job(name))
    with Journal(state, readonly=True) as journal:
        events = [structs.asdict(e) for e in journal.events(name)]
        reconciler = reconciler_of(snap)
        actions = journal.actions(name)
        job = {**job, "events": events, "actions": actions, "reconciler": reconciler}
    if job["queue"] is not None:
        from rankfold.reconciler.report import forecast  # here: it imports the simulator

        found = forecast.outlook(snap.desired, snap.records, snap.observed, clock.now())
        job["queue"] |= forecast.expected_start(found, name)
    warn_of_reconciler(reconciler)
    if output == "json":
        show(job)
        return 0
    for line in describe_lines(job):
        emit(line)
    return 0


@click.command()
@output_option("csv")
@click.pass_obj
def usage(state: Path, output: str) -> int:
    """Print the device-seconds of each job that is known, by tier and cause.

    A device counts for a job from the moment that the job is placed there until it leaves it. The
    cause is that of the placement: spec, tier, order, growth, fault. Sums follow in the text and
    in JSON.
    """
    from rankfold.reconciler.report.usage import HEAD, csv_of, rows_of, usage_of

    records: dict[str, Record] = {}
    if database(state).exists():
        clock.follow(Layout(state).clock)
        with Journal(state, readonly=True) as journal:
            records = dict(journal.records())
    data = usage_of(records, clock.now())
    if output == "json":
        show(data)
    elif output == "csv":
        click.echo(csv_of(data), nl=False)
    else:
        for line in columns(tuple(each.upper() for each in HEAD), rows_of(data)):
            emit(line)
    return 0


@click.command()
@click.argument("name", required=False)
@output_option()
@click.pass_obj
def events(state: Path, name: str | None, output: str) -> int:
    """Print what happened, oldest first; with NAME, to one job or device."""
    if not database(state).exists():
        if output == "json":
            show([])
        return 0
    with Journal(state, readonly=True) as journal:
        rows = journal.events(name)
        known = name is None or rows or journal.object("Job", name)
        meta = {key: journal.get(key) for key in ("watching", "unwatched")}
        reconciler = liveness.query(Layout(state))
        wrong = wrong_with(Layout(state))
        now = reconciler_status(reconciler, journal.objects(), journal.records(), meta, wrong)
    if not known:
        fail(f"there is no job or device {name!r}: `rankfold status` lists them")
    warn_of_reconciler(now)
    if output == "json":
        show([structs.asdict(e) for e in rows])
        return 0
    for each in rows:
        emit(event_line(each))
    return 0


@click.command("inspect")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@click.option(
    "--consumed",
    default=20,
    show_default=True,
    type=click.IntRange(min=0),
    help="How many of the requests that the proxy has consumed.",
)
def inspect_command(file: Path, consumed: int) -> int:
    """Print a rank's channel, or the saved state in its image, as text.

    FILE is a copy of one, or the memfd itself: /proc/PID/fd/N of the rank's launcher, which `ls -l`
    shows as /memfd:rankfold and /memfd:rankfold-image-RANK. Exit code 1 if it is damaged.
    """
    from rankfold import inspect

    findings = inspect.Found()
    try:
        for line in inspect.lines(file, consumed, findings):
            emit(line)
    except inspect.NotOurs as error:
        fail(str(error))
    return EXIT_ERROR if findings.damaged else 0


@click.command()
@click.argument("name")
@click.option("--rank", type=int, default=None, help="Of one rank only.")
@click.option("-f", "--follow", is_flag=True, help="Continue until the job has ended.")
@click.pass_obj
def logs(state: Path, name: str, rank: int | None, follow: bool) -> int:
    """Print what a job's ranks wrote: their stdout to stdout, their stderr to stderr.

    With several ranks, every line begins with its rank.
    """
    snap = snapshot.snapshot(state)
    job = next((o for o in snap.objects if o.kind == "Job" and o.name == name), None)
    if job is None or not isinstance(job.spec, Job):
        fail(no_job(name))
    ranks = range(job.spec.world_size) if rank is None else [rank]
    if rank is not None and not 0 <= rank < job.spec.world_size:
        fail(f"{name} has ranks 0 to {job.spec.world_size - 1}")
    from rankfold.reconciler.report.logs import Follower

    follower = Follower(Layout(state).logs(name), ranks, prefix=len(ranks) > 1)
    with terminating():
        try:
            while True:
                # Query first, so that everything written before the end is printed.
                over = not follow or has_ended(state, name)
                follower.pump()
                if over:
                    follower.finish()
                    return 0
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            return 130


def has_ended(state: Path, name: str) -> bool:
    with Journal(state, readonly=True) as journal:
        record = journal.record(name)
    return record is not None and record.step == "ended"


@click.command("doctor")
@output_option()
@click.pass_obj
def doctor_command(state: Path, output: str) -> int:
    """Report what is missing on this machine, and what works without it.

    Exit code 1 if something is missing that rankfold requires.
    """
    from rankfold.reconciler.report import doctor

    findings = doctor.examine(state)
    if output == "json":
        show([vars(f) for f in findings])
    else:
        for f in findings:
            emit(f"{'ok  ' if f.ok else 'MISS' if f.needed else 'note'}  {f.what}: {f.detail}")
    return EXIT_ERROR if any(f.needed and not f.ok for f in findings) else 0
