"""The commands for files of desired state: validate, plan, apply, watch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click
from msgspec import structs

from rankfold.reconciler import clock, plan
from rankfold.reconciler.client import Reconciler
from rankfold.reconciler.commands.common import (
    EXIT_CHANGES,
    EXIT_INVALID,
    TIMEOUT,
    duration,
    output_option,
    show,
    terminating,
    wait_converged,
)
from rankfold.reconciler.commands.watching import Watching
from rankfold.reconciler.journal.rows import desired_of
from rankfold.reconciler.model.desired import Job
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.report import differences, snapshot
from rankfold.reconciler.report.lines import emit, say
from rankfold.reconciler.report.status import status_of
from rankfold.reconciler.source import reader, revision, spec
from rankfold.reconciler.source.git import is_elsewhere
from rankfold.reconciler.source.invalid import InvalidInput
from rankfold.reconciler.source.trees import with_links
from rankfold.reconciler.wording import count


@click.command()
@click.argument(
    "places", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR..."
)
@output_option()
def validate(places: tuple[Path, ...], output: str) -> int:
    """Check YAML files, without using the fleet.

    Exit code 65 and one line for each fault, as file:line: field: reason.
    """
    loaded = spec.load_dir(*places)
    if output == "json":
        faults = [
            {"file": f.file, "line": f.line, "field": f.field, "reason": f.reason}
            for f in loaded.faults
        ]
        show({"valid": not faults, "faults": faults, "warnings": [str(w) for w in loaded.warnings]})
        return EXIT_INVALID if faults else 0
    warn(loaded)
    loaded.check()
    jobs, pools = len(loaded.desired.jobs), len(loaded.desired.pools)
    emit(f"valid: {count(jobs, 'job')}, {count(pools, 'pool')}")
    return 0


def warn(loaded: spec.Loaded) -> None:
    for warning in loaded.warnings:
        say(f"warning: {warning}")


@click.command("plan")
@click.option(
    "-f",
    "--file",
    "place",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory or file.",
)
@click.option("--detailed-exitcode", is_flag=True, help="2 if something would change.")
@output_option("markdown")
@click.pass_obj
def plan_command(state: Path, place: Path, detailed_exitcode: bool, output: str) -> int:
    """Show what `apply` would change, and which changes disturb a running job.

    Changes nothing. With --detailed-exitcode: 0 nothing would change, 2 something would.
    """
    loaded = spec.load_dir(place)
    warn(loaded)
    loaded.check()
    snap = snapshot.snapshot(state)
    hand_made = frozenset((o.kind, o.name) for o in snap.objects if o.source is None)
    live_by_hand = frozenset(
        name
        for kind, name in hand_made
        if kind == "Job" and (name not in snap.records or snap.records[name].step != "ended")
    )
    faults = revision.revision_faults(loaded, snap.records, live_by_hand)
    faults += revision.emptied_files(loaded, snap.objects)
    if faults:
        raise InvalidInput(faults)
    objects = desired_of(snap.objects)
    now = structs.replace(snap.desired, pools=objects.pools, jobs=objects.jobs)
    overridden = {o.name: o.spec for o in snap.objects if isinstance(o.spec, Job) and o.override}
    then = revision.merged(now, loaded, hand_made, snap.records, overridden)
    then = structs.replace(then, jobs=_created(then.jobs, now.jobs, clock.now()))
    changes = revision.differences(now, then, snap.records)
    observed = plan.assume_fleet(then, snap.observed)
    planned = plan.plan(then, snap.records, observed, clock.now())
    waiting: list[Json] = []
    resumes: dict[str, Json] = {}
    if planned.queue:
        from rankfold.reconciler.report import forecast  # here: it imports the simulator

        found = forecast.outlook(then, snap.records, observed, clock.now())
        waiting, resumes = forecast.starts(found), forecast.resumes(found)
    name = reader.directory_revision(loaded).id
    data = differences.plan_json(changes, planned, name, snap.records, waiting, resumes)
    if output == "json":
        show(data)
    else:
        for line in differences.plan_lines(data, output == "markdown"):
            emit(line)
    return EXIT_CHANGES if detailed_exitcode and changes else 0


def _created(jobs: Mapping[str, Job], known: Mapping[str, Job], now: float) -> dict[str, Job]:
    """Jobs; those that are new would be created now, after all that wait."""
    return {
        name: job if name in known else structs.replace(job, created=now)
        for name, job in jobs.items()
    }


@click.command()
@click.option(
    "-f",
    "--file",
    "place",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory or file.",
)
@click.option(
    "--wait", "wait_", is_flag=True, help="Return when the fleet is in the desired state."
)
@TIMEOUT
@output_option()
@click.pass_obj
def apply(state: Path, place: Path, wait_: bool, timeout: str, output: str) -> int:
    """Bring the fleet to the state that the files describe, once.

    The files become the fleet's desired state as a whole: a job that they no longer describe is
    suspended. With --wait: exit code 1 if a job failed or the wait timed out.
    """
    limit = duration(timeout)
    loaded = spec.load_dir(place)
    warn(loaded)
    loaded.check()
    with Reconciler(state) as reconciler:
        reply = reconciler.request("attach", source={"dir": str(with_links(place))})
        if reply["faults"]:
            for fault in reply["faults"]:
                say(fault)
            return EXIT_INVALID
        code = wait_converged(reconciler, set(loaded.desired.jobs), limit) if wait_ else 0
    if output == "json":
        show(status_of(snapshot.snapshot(state)))
    else:
        emit(
            f"applied {reply['revision']}" + ("" if code == 0 else ", but not in the desired state")
        )
    return code


@click.command("watch")
@click.argument("place", required=False, type=click.Path(path_type=Path), metavar="[DIR]")
@click.option("--git", "repo", metavar="REPO", help="Follow a branch of this repository instead.")
@click.option(
    "--branch",
    default="main",
    show_default=True,
    help="What to follow: a branch, a tag or a commit.",
)
@click.option("--path", "inside", default="", help="Folder in the repository; default: all of it.")
@output_option()
@click.pass_obj
def watch_command(
    state: Path, place: Path | None, repo: str | None, branch: str, inside: str, output: str
) -> int:
    """Keep the fleet in the state that a directory or a git branch describes.

    Follows the files of DIR as they are saved, or the commits of a branch. Prints events; on
    a terminal, jobs and devices are shown below it. A source or disk that fails for a while is
    reported once, and retried. Ctrl-C stops watching; jobs continue.
    """
    if (place is None) == (repo is None):
        raise click.UsageError("give either a directory, or --git REPO")
    source: Json
    if repo is not None:
        there = repo if is_elsewhere(repo) else str(Path(repo).expanduser().resolve())
        source = {"git": there, "branch": branch, "path": inside}
    else:
        assert place is not None
        source = {"dir": str(with_links(place))}
    with Reconciler(state, say) as reconciler, terminating():
        watching = Watching(state, reconciler, source, output)
        try:
            watching.run()
        except KeyboardInterrupt:
            watching.end()
            say("no longer watching; jobs continue")
            return 0
