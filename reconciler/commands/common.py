"""What the commands share: exit codes, ways to end, the forms of output."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import click

from rankfold.legible import json_text
from rankfold.reconciler import switches
from rankfold.reconciler.deadlines import STORE_ANSWERS_S
from rankfold.reconciler.report.console import say

EXIT_ERROR, EXIT_CHANGES, EXIT_USAGE, EXIT_INVALID = 1, 2, 64, 65
POLL_S = 0.1


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
    """SIGTERM interrupts like Ctrl-C while this lasts."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, old)


@contextlib.contextmanager
def answering(url: str) -> Iterator[None]:
    """A store that is opened while this lasts does not keep a person waiting: Unavailable."""
    from rankfold.checkpoint.store import Unavailable

    limit = min(STORE_ANSWERS_S, switches.stuck_s())

    def give_up(*_: object) -> None:
        what = f"does not answer within {limit:.0f} s"
        raise Unavailable(url, what, "see that it can be reached")

    old = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
