"""Code that the commands share: exit codes, ways to end, formats of output."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import click

from rankfold import switches
from rankfold.legible import json_text
from rankfold.reconciler.deadlines import STORE_ANSWERS_S, STORE_SILENT_S
from rankfold.reconciler.report.lines import say

if TYPE_CHECKING:
    from rankfold.checkpoint.store import Store
    from rankfold.reconciler.client import Reconciler

EXIT_ERROR, EXIT_CHANGES, EXIT_USAGE, EXIT_INVALID = 1, 2, 64, 65
POLL_S = 0.1
TIMEOUT_MAX_S = 1e9
TIMEOUT = click.option("--timeout", default="5m", show_default=True, help="How long --wait waits.")


def fail(text: str, code: int = EXIT_ERROR) -> NoReturn:
    say(f"rankfold: {text}")
    sys.exit(code)


def show(data: Any) -> None:
    click.echo(json_text(json.dumps(data, indent=2, ensure_ascii=False)))


def output_option(*more: str) -> Callable[[Any], Any]:
    choices = click.Choice(["text", "json", *more])
    return click.option("-o", "--output", type=choices, default="text", help="Form of the output.")


@contextlib.contextmanager
def terminating() -> Iterator[None]:
    """Make SIGTERM interrupt like Ctrl-C during the context."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


@contextlib.contextmanager
def answering(url: str) -> Iterator[None]:
    """Limit the time for which a store may be opened in the context. Raises Unavailable."""
    from rankfold.checkpoint.store import Unavailable

    limit = min(STORE_ANSWERS_S, switches.stuck_s())

    def give_up(*_: object) -> None:
        reason = f"timed out: no answer within {limit:.0f} s"
        raise Unavailable(url, reason, "make sure that it is reachable")

    old = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@contextlib.contextmanager
def reading(store: Store) -> Iterator[None]:
    """Report on stderr that the context waits for a store that has completed no operation for
    STORE_SILENT_S, and exit after `stuck_s`. A thread that waits for a file system cannot be
    interrupted, so this ends the process."""
    over = threading.Event()
    watching = threading.Thread(target=_watch, args=(store, over), daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _watch(store: Store, over: threading.Event) -> None:
    files = store.files
    limit = switches.stuck_s()
    report = min(STORE_SILENT_S, limit / 2)
    ended, since, reported = files.ended, time.monotonic(), False
    while not over.wait(min(report, 1.0) / 4):
        pending = next(iter(files.pending.copy().values()), None)
        if pending is None or files.ended != ended:
            ended, since, reported = files.ended, time.monotonic(), False
            continue
        silent = time.monotonic() - since
        where = f"{files.url.rstrip('/')}/{pending}" if pending else files.url
        if silent > limit:
            say(f"rankfold: {where}: no answer within {limit:g} s; make sure that it is reachable")
            sys.stdout.flush()
            os._exit(EXIT_ERROR)
        if silent > report and not reported:
            say(f"waiting for {where}: no answer for {report:g} s")
            reported = True


def duration(text: str) -> float:
    """Seconds of ``90``, ``30s``, ``5m`` or ``2h``."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    try:
        number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
        if 0 <= (seconds := float(number) * units[unit]) <= TIMEOUT_MAX_S:
            return seconds
        raise ValueError
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time such as 30s, 5m or 2h") from None


def wait_converged(
    reconciler: Reconciler, names: set[str], limit: float, fleet: bool = True
) -> int:
    """Wait until the jobs of these names are as desired and, with `fleet`, all devices are up.
    Returns 1 if a job has failed or stalled, or after `limit` seconds."""
    deadline = time.monotonic() + limit
    reported: set[str] = set()
    while True:
        now = reconciler.request("state")
        for device, words in now["devices_failing"].items():
            if device not in reported:
                say(f"{device} does not start: {words}")
                reported.add(device)
        jobs = {name: job for name, job in now["jobs"].items() if name in names}
        failed = [name for name, job in jobs.items() if job["phase"] == "Failed"]
        for name in failed:
            say(f"Job/{name} failed: {jobs[name]['message']}")
        stalled = {name: job["stalled"] for name, job in jobs.items() if job["stalled"]}
        for name, why in stalled.items():
            say(f"Job/{name} is stalled: {why}")
        if failed or stalled:
            return EXIT_ERROR
        open_ = {name: job for name, job in jobs.items() if not job["converged"]}
        if not open_ and (now["fleet_ready"] or not fleet):
            return 0
        if time.monotonic() > deadline:
            for name, job in open_.items():
                say(
                    f"Job/{name} has not reached the desired state: "
                    f"{'; '.join(job['waiting']) or job['step']}"
                )
            if fleet and not now["fleet_ready"]:
                say("not every device is up: see `rankfold status`")
            return EXIT_ERROR
        time.sleep(POLL_S)
