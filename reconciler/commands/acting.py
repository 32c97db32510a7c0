"""The commands that override a job, save it or resume it, and `stop`."""

from __future__ import annotations

import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import click

from rankfold.reconciler.client import NoReconciler, Reconciler
from rankfold.reconciler.commands.common import (
    POLL_S,
    TIMEOUT,
    answering,
    duration,
    fail,
    reading,
    wait_converged,
)
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.node.launchers import Node
from rankfold.reconciler.report.lines import emit, say

# Fields of a checkpoint's manifest that operations.SavedJob takes; transfers.py writes them.
SAVED_JOB_FIELDS = ("world_size", "device", "device_type", "master_port", "epoch", "time")


def by_hand(
    state: Path, name: str, override: bool, limit: float | None = None, **fields: Any
) -> int:
    """limit: seconds to wait until the job is as requested; None: do not wait."""
    with Reconciler(state) as reconciler:
        done = reconciler.request("override", name=name, fields=fields, force=override)
        if limit is not None:
            return wait_converged(reconciler, {name}, limit, fleet=False)
    if why := done.get("unrecorded"):
        say(
            f"{name} is cancelled and is being killed, but this is recorded only when there is "
            f"space: {why}. If the reconciler is killed before, cancel {name} again"
        )
    return 0


OVERRIDE = click.option(
    "--override",
    is_flag=True,
    help="Even though a file describes the job; lasts until it changes there.",
)


WAIT = click.option(
    "--wait", "wait_", is_flag=True, help="Return when it is done; exit code 1 if it failed."
)


def limit_of(wait_: bool, timeout: str) -> float | None:
    """Seconds to wait; None: do not wait."""
    limit = duration(timeout)
    return limit if wait_ else None


@click.command()
@click.argument("name")
@click.option("--gpus", type=int, required=True, help="Number of devices.")
@OVERRIDE
@WAIT
@TIMEOUT
@click.pass_obj
def scale(state: Path, name: str, gpus: int, override: bool, wait_: bool, timeout: str) -> int:
    """Change how many devices a job has."""
    return by_hand(state, name, override, limit_of(wait_, timeout), gpus=gpus)


@click.command()
@click.argument("name")
@click.option("--store", is_flag=True, help="It rests in the object store, not in memory.")
@OVERRIDE
@WAIT
@TIMEOUT
@click.pass_obj
def suspend(state: Path, name: str, store: bool, override: bool, wait_: bool, timeout: str) -> int:
    """Free a job's devices; it rests in memory until resumed.

    With --store it is saved, and its processes end: devices, memory and processes are free.
    """
    limit = limit_of(wait_, timeout)
    code = by_hand(state, name, override, limit, suspend=True, store=store)
    if store and limit is None:
        say(
            f"{name} rests in memory until it is in the store: `rankfold describe {name}` shows "
            "when it is, or why it cannot be saved, and --wait waits for it"
        )
    return code


@click.command()
@click.argument("name")
@click.option("--from", "origin", metavar="ID", help="From this checkpoint: see `status -o json`.")
@OVERRIDE
@WAIT
@TIMEOUT
@click.pass_obj
def resume(
    state: Path, name: str, origin: str | None, override: bool, wait_: bool, timeout: str
) -> int:
    """Let a suspended job continue: where it was, or with --from, from a checkpoint."""
    if origin is not None:
        begun = known(state, name, origin)
        with Reconciler(state) as reconciler:
            reconciler.request("go_back", name=name, checkpoint=origin, begun=begun, force=override)
    return by_hand(state, name, override, limit_of(wait_, timeout), suspend=False, store=False)


def known(state: Path, job: str, checkpoint: str) -> Json:
    """The facts that a checkpoint contains about its job (operations.SavedJob). Fails if the store
    does not have all of it, or if it cannot be restored here, before anything is stopped."""
    from rankfold.checkpoint.snapshot import Unfit, write_compared
    from rankfold.checkpoint.store import Damaged, Id, Missing, StoreError, open_existing

    id = Id.parse(checkpoint)
    if id is None:
        raise click.UsageError(f"--from {checkpoint} is not a checkpoint such as 1-3")
    with Journal(state, readonly=True) as journal:
        url = journal.desired().checkpoint_store or Layout(state).checkpoints
    try:
        with answering(url):
            store = open_existing(url)
        with reading(store):
            newest = store.newest_incarnation(job)
            try:
                stored = store.checkpoint(job, id)
                faults = [stored.describe(each) for each in stored.verify()]
            except Missing:  # its message lists the existing ones
                raise
            except Damaged as error:
                faults = [str(error)]
        if faults:
            problem = f"checkpoint {checkpoint} of {job} is damaged: {faults[0]}"
            fail(f"{problem}; `rankfold store list {url}` lists them")
        with tempfile.TemporaryDirectory(prefix="rankfold-") as folder:
            with reading(store):
                write_compared(stored, Path(folder))
            if why := Node(Layout(state)).misfit(Path(folder)):
                fail(f"checkpoint {checkpoint} of {job} cannot be restored here: {why}")
    except (StoreError, Unfit) as error:
        fail(str(error))
    about = {name: each for name, each in stored.manifest.about.items() if name in SAVED_JOB_FIELDS}
    incarnation, owner = (newest.incarnation, newest.owner) if newest else (id.incarnation, "")
    owned = {"incarnation": incarnation, "owner": owner}
    return {**about, **owned, "bytes": stored.manifest.size}


@click.command()
@click.argument("name")
@OVERRIDE
@click.pass_obj
def cancel(state: Path, name: str, override: bool) -> int:
    """End a job. It fails with reason Cancelled."""
    return by_hand(state, name, override, cancelled=True)


@click.command()
@click.argument("name")
@click.option("--wait", "wait_", is_flag=True, help="Return when it is in the store; print its ID.")
@click.pass_obj
def checkpoint(state: Path, name: str, wait_: bool) -> int:
    """Save a job now, while it runs, or where it rests.

    With --wait: exit code 1 if it could not be saved.
    """
    token, reported = uuid.uuid4().hex, ""
    with Reconciler(state) as reconciler:
        token = reconciler.request("checkpoint", name=name, token=token)["token"]
        while wait_:
            now = reconciler.request("state")["jobs"].get(name)
            if now is None or now["phase"]:
                fail(f"{name} ended before it was saved")
            answer = now["answer"]
            if answer and answer["token"] == token:
                if answer["error"]:
                    fail(f"{name} was not saved: {answer['error']}")
                emit(answer["id"])
                return 0
            if token not in now["saving"]:
                fail(f"it is no longer known whether {name} was saved: `rankfold describe {name}`")
            why = "; ".join([*now["silent"], *now.get("standing", ())])
            if now["again"]:
                why = f"{now['again']}; it will be retried"
            if why and why != reported:
                reported = why
                say(f"{name} is not saved yet: {why}")
            time.sleep(POLL_S)
    return 0


@click.command()
@click.option("--cancel", "cancel_", is_flag=True, help="Cancel every job first.")
@click.pass_obj
def stop(state: Path, cancel_: bool) -> int:
    """Stop the background reconciler and idle proxies. Jobs continue; the next one finds them."""
    with Reconciler(state, cancel=cancel_) as reconciler:
        try:
            reconciler.request("hello", start=cancel_)
        except NoReconciler as error:
            if cancel_:  # a reconciler is needed, and could not be started
                raise
            say(str(error))
            return 0
        if cancel_:
            _cancel_all(reconciler)
        done = reconciler.request("stop", start=False)
    if done["jobs"]:
        say(f"these jobs continue without a reconciler: {', '.join(done['jobs'])}")
    for device, why in done["left"].items():
        say(f"the proxy of {device} was requested to exit, and has not replied: {why}")
    if source := done.get("followed"):
        say(f"`rankfold watch` of {source} starts another reconciler: end it with Ctrl-C")
    return 0


def _cancel_all(reconciler: Reconciler) -> None:
    """Cancel all jobs; return when all of them have ended."""
    if why := reconciler.request("cancel_all")["unrecorded"]:
        fail(
            "every job is cancelled and is being killed, but this is recorded only when there is "
            f"space: {why}. The reconciler stays until then: free some space on that "
            "disk, then run `rankfold stop`"
        )
    reported: set[str] = set()
    while live := {
        name: job for name, job in reconciler.request("state")["jobs"].items() if not job["phase"]
    }:
        for why in {w for job in live.values() for w in job["silent"]} - reported:
            say(f"waiting: {why}")
            reported.add(why)
        time.sleep(POLL_S)
