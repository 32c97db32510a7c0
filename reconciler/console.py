"""What commands print: tables, events, and the view below the events of `watch`.

Data go to stdout, the rest to stderr.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
NAME_MIN = 16  # characters of a name that are shown on the narrowest terminal
Block = tuple[str, tuple[str, ...], list[tuple[str, ...]]]  # title, head, rows


_screen: Any = None  # rich's console, while `live_view` draws below what is printed


def say(text: str) -> None:
    """A line to stderr, whatever the strings in it come from."""
    _print(legible(text), err=True)


def tell(text: str) -> None:
    """The same to stdout."""
    _print(legible(text), err=False)


def _print(text: str, err: bool) -> None:
    stream = sys.stderr if err else sys.stdout
    if _screen is None or not stream.isatty():
        click.echo(text, err=err)
        return
    from rich.text import Text

    _screen.print(Text(text), soft_wrap=True)  # above what it draws, which it moves


def blocks_of(data: Json, width: int | None = None) -> list[Block]:
    """width: of the terminal on which names have to fit; None: they are shown whole."""
    jobs, devices = report.job_rows(data), report.device_rows(data)
    if width is not None:
        limit = max(NAME_MIN, width // 3)
        names = elided([row[0] for row in jobs], limit)
        places = elided([row[0] for row in devices], limit)
        jobs = [(names[name], *rest) for name, *rest in jobs]
        devices = [
            (places[name], state, memory, _ranks(ranks, names), message)
            for name, state, memory, ranks, message in devices
        ]
    return [("Jobs", report.JOB_HEAD, jobs), ("Devices", report.DEVICE_HEAD, devices)]


def _ranks(ranks: str, names: Mapping[str, str]) -> str:
    parts = (each.rpartition("/") for each in ranks.split())
    return " ".join(f"{names.get(job, job)}/{rank}" for job, _, rank in parts)


def elided(names: Sequence[str], limit: int) -> dict[str, str]:
    """Names of at most `limit` characters, without their middle; those that would look the same
    stay whole."""
    head, tail = limit // 2, limit - limit // 2 - 1
    short = {n: n if len(n) <= limit else f"{n[:head]}…{n[-tail:]}" for n in names}
    seen = Counter(short.values())
    return {name: each if seen[each] == 1 else name for name, each in short.items()}


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
    table = Table(title=title, title_justify="left")
    for name in head:
        table.add_column(name, overflow="fold")
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

    global _screen
    drawn, screen = 0.0, Console()
    options: Any = {"redirect_stdout": False, "redirect_stderr": False, "auto_refresh": False}
    with Live(console=screen, transient=True, **options) as live:

        def refresh() -> None:
            nonlocal drawn
            if time.monotonic() - drawn > REDRAW_S:
                blocks = blocks_of(report.status(report.snapshot(state)), screen.width)
                live.update(Group(*map(framed, blocks)), refresh=True)
                drawn = time.monotonic()

        _screen = screen
        try:
            yield refresh
        finally:
            _screen = None


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
