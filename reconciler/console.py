"""What commands print: tables, events, and the view below the events of `watch`.

Data go to stdout, the rest to stderr.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from rankfold.legible import legible
from rankfold.reconciler import report
from rankfold.reconciler.rows import Event
from rankfold.reconciler.store import Store, database
from rankfold.reconciler.values import Json
from rankfold.reconciler.words import clock

REDRAW_S = 0.5  # of what `watch` shows on a terminal
Block = tuple[str, tuple[str, ...], list[tuple[str, ...]]]  # title, head, rows


def say(text: str) -> None:
    """A line to stderr, whatever the strings in it come from."""
    click.echo(legible(text), err=True)


def tell(text: str) -> None:
    """The same to stdout."""
    click.echo(legible(text))


def blocks_of(data: Json) -> list[Block]:
    return [
        ("Jobs", report.JOB_HEAD, report.job_rows(data)),
        ("Devices", report.DEVICE_HEAD, report.device_rows(data)),
    ]


def tables(blocks: list[Block]) -> None:
    """With frames on a terminal, as plain columns elsewhere."""
    if not sys.stdout.isatty():
        for _, head, rows in blocks:
            tell("\n".join(report.columns(head, rows)) + "\n")
        return
    from rich.console import Console

    for block in blocks:
        Console().print(framed(block))


def framed(block: Block) -> Any:
    """A block as a table of rich; what people wrote is text, never markup."""
    from rich.table import Table
    from rich.text import Text

    title, head, rows = block
    table = Table(*head, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(Text(legible(cell)) for cell in row))
    return table


@contextlib.contextmanager
def live_view(state: Path, output: str) -> Iterator[Callable[[], None]]:
    """On a terminal, jobs and devices stay below the printed lines; gives what draws them anew."""
    if output != "text" or not sys.stdout.isatty():
        yield lambda: None
        return
    from rich.console import Console, Group
    from rich.live import Live

    drawn = 0.0
    with Live(console=Console(), auto_refresh=False, transient=True) as live:

        def refresh() -> None:
            nonlocal drawn
            if time.monotonic() - drawn > REDRAW_S:
                data = report.status(report.snapshot(state))
                live.update(Group(*map(framed, blocks_of(data))), refresh=True)
                drawn = time.monotonic()

        yield refresh


# ---- events ------------------------------------------------------------------------------------


def event_line(event: Event) -> str:
    return f"{clock(event.time)}  {event.object}  {event.reason}  {event.message}"


def last_event(state: Path) -> int:
    if not database(state).exists():
        return 0
    with Store(state, readonly=True) as store:
        return max((e.id for e in store.events()), default=0)


def print_events(state: Path, after: int, output: str) -> Iterator[int]:
    """Print the events after the one of this number; gives each number once it is printed."""
    if database(state).exists():
        with Store(state, readonly=True) as store:
            for each in store.events(after=after):
                tell(json.dumps(vars(each)) if output == "json" else event_line(each))
                yield each.id
