"""The demo's display: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .run import WORLD_SIZE, Record

_BARS = " ▁▂▃▄▅▆▇█"
_LINES_SHOWN = 14


class Screen:
    """Shows runs. `show` is called often; a line of news stays visible."""

    def __init__(self) -> None:
        plain = bool(os.environ.get("NO_COLOR"))
        self.console = Console(highlight=False, no_color=plain)
        self.live: Live | None = None
        self._news: list[str] = []
        self._title = ""
        self._reported = 0  # steps at the last plain line of progress
        self._compiled = 0  # kernels, at the last such line

    def line(self, text: str) -> None:
        """Print a line that stays, outside of a run."""
        self.console.print(text, soft_wrap=True)

    @contextlib.contextmanager
    def run(self, title: str) -> Iterator[None]:
        """Display a run; the table is removed at its end, the news stay."""
        self._title, self._news, self._reported = title, [], 0
        self.line(f"[bold]{title}[/bold]")
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, refresh_per_second=8, transient=True) as self.live:
            yield
        self.live = None
        for each in self._news:
            self.line(each)

    def show(self, record: Record, news: str) -> None:
        """Show the run so far; `news` is empty or a line to keep."""
        if news:
            stamp = f"  {record.seconds:6.1f} s  {news}"
            self._news.append(stamp)
            if not self.live:
                self.line(stamp)
        if self.live:
            self.live.update(self._table(record))
        elif not record.step_times and record.compiled >= self._compiled + 25:
            self._compiled = record.compiled
            self.line(f"           {_beginning(record)}")
        elif len(record.step_times) >= self._reported + 25:
            self._reported = len(record.step_times)
            self.line(f"           step {self._reported}: loss {_mean_loss(record, -1):.3f}")

    def _table(self, record: Record) -> Panel:
        devices = Table(box=box.SIMPLE_HEAD, expand=True, padding=(0, 1))
        for heading in ("device", "ranks"):
            devices.add_column(heading)
        for heading in ("memory in use", "switches", "swapped out"):
            devices.add_column(heading, justify="right")
        for device in record.last.status["devices"] if record.samples else []:
            ranks = [each.rpartition("/")[2] for each in device["ranks"]]
            used = f"{device['used'] / 2**20:.0f} of {device['memory'] / 2**20:.0f} MiB"
            counters = device["counters"]
            swapped = f"{counters.get('swapped_out', 0) / 2**20:.0f} MiB"
            switches = f"{counters.get('switches', 0):,}"
            devices.add_row(device["name"], _chips(ranks), used, switches, swapped)
        done = len(record.step_times)
        progress = Table.grid(padding=(0, 1))
        loss = f"loss {_mean_loss(record, -1):.3f} {_spark(record)}" if done else _beginning(record)
        progress.add_row(
            f"step {done} of {record.steps}",
            ProgressBar(total=record.steps, completed=done, width=30),
            loss,
        )
        lines = Text("\n".join(self._news[-_LINES_SHOWN:]))
        return Panel(Group(devices, progress, lines), title=self._title, border_style="dim")


def _beginning(record: Record) -> str:
    return f"before the first step, {record.compiled} kernels are compiled"


def _chips(ranks: list[str]) -> Text:
    text = Text()
    for rank in ranks:
        text.append(f" {rank} ", style=f"white on color({(33, 130, 166, 28)[int(rank) % 4]})")
        text.append(" ")
    return text


def _mean_loss(record: Record, index: int) -> float:
    step = range(len(record.step_times))[index]
    return sum(record.losses[step]) / WORLD_SIZE


def _spark(record: Record, width: int = 24) -> str:
    """The loss so far as a row of bars."""
    done = len(record.step_times)
    values = [_mean_loss(record, i * done // width) for i in range(width)] if done >= width else []
    if not values:
        return ""
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in values)
