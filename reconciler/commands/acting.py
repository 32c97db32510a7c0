"""The commands that change a job by hand, and `stop`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from rankfold.reconciler.client import NoReconciler, Reconciler
from rankfold.reconciler.commands.common import POLL_S, fail
from rankfold.reconciler.console import say


def by_hand(state: Path, name: str, override: bool, **fields: Any) -> int:
    with Reconciler(state) as reconciler:
        reconciler.ask("override", name=name, fields=fields, force=override)
    return 0


OVERRIDE = click.option(
    "--override",
    is_flag=True,
    help="Even though a file describes the job; lasts until it changes there.",
)


@click.command()
@click.argument("name")
@click.option("--gpus", type=int, required=True, help="Number of devices.")
@OVERRIDE
@click.pass_obj
def scale(state: Path, name: str, gpus: int, override: bool) -> int:
    """Change how many devices a job has."""
    return by_hand(state, name, override, gpus=gpus)


@click.command()
@click.argument("name")
@OVERRIDE
@click.pass_obj
def suspend(state: Path, name: str, override: bool) -> int:
    """Free a job's devices; it rests in memory until resumed."""
    return by_hand(state, name, override, suspend=True)


@click.command()
@click.argument("name")
@OVERRIDE
@click.pass_obj
def resume(state: Path, name: str, override: bool) -> int:
    """Let a suspended job go on."""
    return by_hand(state, name, override, suspend=False)


@click.command()
@click.argument("name")
@OVERRIDE
@click.pass_obj
def cancel(state: Path, name: str, override: bool) -> int:
    """End a job. It fails with reason Cancelled."""
    return by_hand(state, name, override, cancelled=True)


@click.command()
@click.argument("name")
def checkpoint(name: str) -> int:
    """Save a job to disk. Not built yet: refused with exit code 1."""
    fail(
        "checkpoint is not built yet; `rankfold suspend` frees the devices, the job rests in memory"
    )


@click.command()
@click.option("--cancel", "cancel_", is_flag=True, help="Cancel every job first.")
@click.pass_obj
def stop(state: Path, cancel_: bool) -> int:
    """End the background reconciler and idle proxies. Jobs go on, and are found again."""
    with Reconciler(state) as reconciler:
        try:
            now = reconciler.ask("state", start=cancel_)
        except NoReconciler as error:
            say(str(error))
            return 0
        if cancel_:
            for name, job in now["jobs"].items():
                if not job["phase"]:
                    reconciler.ask("override", name=name, fields={"cancelled": True}, force=True)
            told: set[str] = set()
            while live := {
                name: job for name, job in reconciler.ask("state")["jobs"].items()
                if not job["phase"]
            }:  # fmt: skip
                for why in {w for job in live.values() for w in job["silent"]} - told:
                    say(f"waiting: {why}")
                    told.add(why)
                time.sleep(POLL_S)
        done = reconciler.ask("stop", start=False)
    if done["jobs"]:
        say(f"these jobs go on without a reconciler: {', '.join(done['jobs'])}")
    for device, why in done["left"].items():
        say(f"the proxy of {device} was told to end, and has not answered: {why}")
    return 0
