"""Output of the commands: tables, events, and the view below the events of `watch`.

Data go to stdout, everything else to stderr.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from rankfold.legible import legible
from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.journal.rows import Event
from rankfold.reconciler.journal.tables import database
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.report import lines, snapshot, text
from rankfold.reconciler.report.lines import emit
from rankfold.reconciler.report.status import status_of
from rankfold.reconciler.wording import time_of_day

REDRAW_S = 0.5  # for the view of `watch` on a terminal
NAME_MIN = 16  # least characters of a name that are shown on a narrow terminal
MESSAGE_LINES = 4  # of a message in a table on a terminal; `describe` prints all of it
WRAPPED = ("RANKS", "MESSAGE")  # columns that become narrower on a narrow terminal
Block = tuple[str, tuple[str, ...], list[tuple[str, ...]]]  # title, head, rows


def blocks_of(data: Json, width: int | None = None) -> list[Block]:
    """The tables of a status. width: of the terminal, to shorten names; None: do not shorten."""
    jobs, devices = text.job_rows(data), text.device_rows(data)
    if width is not None:
        limit = max(NAME_MIN, width // 3)
        names = elided([row[0] for row in jobs], limit)
        places = elided([row[0] for row in devices], limit)
        jobs = [(names[name], *rest) for name, *rest in jobs]
        devices = [
            (places[name], *rest, _ranks(ranks, names), message)
            for name, *rest, ranks, message in devices
        ]
    blocks: list[Block] = [
        ("Jobs", text.JOB_HEAD, jobs),
        ("Devices", text.device_head(data), devices),
    ]
    if services := text.service_rows(data):
        blocks.insert(0, ("Services", text.SERVICE_HEAD, services))
    return blocks


def _ranks(ranks: str, names: Mapping[str, str]) -> str:
    parts = (each.rpartition("/") for each in ranks.split())
    return " ".join(f"{names.get(job, job)}/{rank}" for job, _, rank in parts)


def elided(names: Sequence[str], limit: int) -> dict[str, str]:
    """Shorten names to at most `limit` characters, each different from the others. The middle of a
    long name is cut out; for names that would become equal, another part is. Names that no single
    cut keeps different stay whole."""
    shown = {name: name for name in names if len(name) <= limit}
    groups: dict[str, list[str]] = {}
    for name in names:
        if name not in shown:
            groups.setdefault(_cut(name, limit, limit // 2), []).append(name)
    heads = sorted(range(limit), key=lambda head: abs(head - limit // 2))
    for group in groups.values():
        taken = set(shown.values())
        cuts = [{name: _cut(name, limit, head) for name in group} for head in heads]
        fit = (each for each in cuts if _all_differ(each, taken))
        shown.update(next(fit, {name: name for name in group}))
    return {name: shown[name] for name in names}


def _cut(name: str, limit: int, head: int) -> str:
    tail = limit - head - 1
    return f"{name[:head]}…{name[len(name) - tail :]}"


def _all_differ(cut: Mapping[str, str], taken: set[str]) -> bool:
    return len(set(cut.values())) == len(cut) and taken.isdisjoint(cut.values())


def tables(blocks: list[Block]) -> None:
    """Print tables: with frames on a terminal, as plain columns otherwise."""
    if not sys.stdout.isatty():
        for _, head, rows in blocks:
            emit("\n".join(text.columns(head, rows)) + "\n")
        return
    from rich.console import Console

    console = Console()
    for block in blocks:
        console.print(framed(block, console.width))


def framed(block: Block, width: int) -> Any:
    """A block as a table of rich, at most `width` columns wide. Cells are plain text, never markup.
    A long message is wrapped and cut; cells of other columns stay whole."""
    from rich.table import Table
    from rich.text import Text

    title, head, rows = block
    table = Table(title=title, title_justify="left")
    longest = max((len(row[0]) for row in rows), default=0)
    for i, name in enumerate(head):
        whole = longest <= width // 2 if i == 0 else name not in WRAPPED
        table.add_column(name, overflow="fold", no_wrap=whole)
    for row in rows:
        *cells, message = (Text(legible(cell)) for cell in row)
        table.add_row(*cells, _Message(message))
    return table


class _Message:
    """A text of rich that is cut after MESSAGE_LINES lines."""

    def __init__(self, text: Any):
        self.text = text

    def __rich_measure__(self, console: Any, options: Any) -> Any:
        return self.text.__rich_measure__(console, options)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        lines = list(self.text.wrap(console, options.max_width, overflow="fold"))
        if len(lines) > MESSAGE_LINES:
            lines = lines[:MESSAGE_LINES]
            lines[-1].truncate(max(0, options.max_width - 1))
            lines[-1].append("…")
        yield from lines


@contextlib.contextmanager
def live_view(state: Path, output: str) -> Iterator[Callable[[], None]]:
    """On a terminal, keep jobs and devices below the printed lines; yields the function to
    redraw."""
    if output != "text" or not sys.stdout.isatty():
        yield lambda: None
        return
    from rich.console import Console, Group
    from rich.live import Live

    drawn, screen = 0.0, Console()
    options: Any = {"redirect_stdout": False, "redirect_stderr": False, "auto_refresh": False}
    with Live(console=screen, transient=True, **options) as live:

        def refresh() -> None:
            nonlocal drawn
            if time.monotonic() - drawn > REDRAW_S:
                blocks = blocks_of(status_of(snapshot.snapshot(state)), screen.width)
                tables = (framed(block, screen.width) for block in blocks)
                live.update(Group(*tables), refresh=True)
                drawn = time.monotonic()

        lines.screen = screen
        try:
            yield refresh
        finally:
            lines.screen = None


# ---- events ------------------------------------------------------------------------------------


def event_line(event: Event) -> str:
    return f"{time_of_day(event.time)}  {event.object}  {event.reason}  {event.message}"


def last_event(state: Path) -> int:
    if not database(state).exists():
        return 0
    with Journal(state, readonly=True) as journal:
        return journal.last_event()


def print_events(state: Path, after: int, output: str) -> Iterator[int]:
    """Print the events after number `after`; yield each number once it is printed."""
    if database(state).exists():
        with Journal(state, readonly=True) as journal:
            for each in journal.events(after=after):
                emit(json.dumps(structs.asdict(each)) if output == "json" else event_line(each))
                yield each.id
