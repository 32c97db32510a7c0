"""Promise: on a terminal, `watch` shows each event once and whole, and one picture below them."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator

import pyte
import pytest
from rich.console import Console

from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.report.console import MESSAGE_LINES, elided, event_line, framed
from rankfold.reconciler.report.text import JOB_HEAD
from support.command import Rankfold, Specs

LONG = "train-a-large-language-model-for-a-long-time"


class Terminal:
    """A real terminal in which a command runs, with all that ever scrolled out of it."""

    def __init__(self, rankfold: Rankfold, columns: int, lines: int, *arguments: str):
        self.columns = columns
        self.screen = pyte.HistoryScreen(columns, lines, history=10_000, ratio=1)
        self.stream, self.lock = pyte.ByteStream(self.screen), threading.Lock()
        self.main, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
        environment = {**rankfold.environment, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES"):  # these take precedence over the terminal's own size
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rankfold", *arguments],
            start_new_session=True,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment,
        )
        os.close(terminal)
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: the command has ended
            while data := os.read(self.main, 1 << 16):
                with self.lock:
                    self.stream.feed(data)

    def shown(self) -> str:
        """The screen now, its lines one after the other: what is wrapped is whole again."""
        with self.lock:
            return "".join(self.screen.display)

    def everything(self) -> str:
        """The same with what has scrolled out above it."""
        with self.lock:
            columns = range(self.columns)
            above = ["".join(row[x].data for x in columns) for row in self.screen.history.top]
            return "".join([*above, *self.screen.display])

    def whole(self) -> str:
        """Everything, if both tables are drawn to their ends; empty while they are redrawn."""
        everything = self.everything()
        shown = everything[-self.columns * self.screen.lines :]
        return everything if shown.count("└") == 2 else ""

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0
        self.reader.join()
        os.close(self.main)


@contextlib.contextmanager
def watching(rankfold: Rankfold, specs: Specs, columns: int, lines: int) -> Iterator[Terminal]:
    terminal = Terminal(rankfold, columns, lines, "watch", str(specs.folder))
    try:
        yield terminal
    finally:
        terminal.end()


@pytest.mark.usual("80-24")
@pytest.mark.parametrize("columns, lines", [(80, 24), (110, 40)])
def test_every_event_is_legible_once_and_the_picture_is_drawn_once(
    rankfold: Rankfold, specs: Specs, columns: int, lines: int
) -> None:
    names = [f"{LONG}-on-one-{letter}-half" for letter in "ab"]
    specs.pool(2)
    with watching(rankfold, specs, columns, lines) as terminal:
        for name in names:
            specs.job(name, gpus=1, ranks=1)
        rankfold.until(lambda: [j["phase"] for j in rankfold.status()["jobs"]] == ["Running"] * 2)
        for _ in range(3):
            rankfold("suspend", names[0], "--override")
            rankfold.until(lambda: rankfold.job(names[0])["phase"] == "Suspended")
            rankfold("resume", names[0], "--override")
            rankfold.until(lambda: rankfold.job(names[0])["phase"] == "Running")
        away = specs.folder.with_name("away")
        specs.folder.rename(away)
        lost = f"rankfold: {specs.folder} does not exist; waiting for it"
        rankfold.until(lambda: lost in terminal.everything())
        away.rename(specs.folder)
        rankfold.until(lambda: "rankfold: recovered, continuing" in terminal.everything())
        with Journal(rankfold.state.path, readonly=True) as journal:
            lines_of_events = [event_line(each) for each in journal.events()]
        rankfold.until(lambda: lines_of_events[-1] in terminal.everything())
        rankfold.until(lambda: "cannot" not in terminal.shown())
        everything = rankfold.until(terminal.whole)
        shown = everything[-columns * lines :]
        for line in (*lines_of_events, lost, "rankfold: recovered, continuing"):
            times = max(1, lines_of_events.count(line))  # the same may happen twice in a second
            assert everything.count(line) == times, f"{line}\n{terminal.screen.display}"
        assert everything.count(" PHASE ") == shown.count(" PHASE ") == 1, "one picture"
        assert everything.count(" STATE ") == shown.count(" STATE ") == 1
        for name, each in elided(names, columns // 3).items():
            assert each in shown, f"{name}\n{terminal.screen.display}"
    assert " PHASE " not in terminal.everything(), "what was drawn is gone"
    everything = terminal.everything()
    for line in lines_of_events:
        assert everything.count(line) == lines_of_events.count(line), f"{line}\n{everything}"


def test_names_that_are_elided_can_be_distinguished() -> None:
    apart = elided(["short", "a-name-that-is-long-1", "a-name-that-is-long-2"], 16)
    assert apart["short"] == "short"
    assert apart["a-name-that-is-long-1"] == "a-name-t…-long-1"
    assert all(len(each) <= 16 for each in apart.values()) and len(set(apart.values())) == 3
    for middle in ("a-name-that-{}-is-long-enough", "a-name-{}that-is-long-enough"):
        names = [middle.format(i) for i in range(10)]
        alike = elided(names, 16)
        assert all(len(each) == 16 for each in alike.values()), "another part is cut out"
        assert len(set(alike.values())) == 10
    differ_in_two_places = [f"{a}{'-' * 60}{b}" for a in "ab" for b in "cd"]
    assert len(set(elided(differ_in_two_places, 16).values())) == 4
    no_cut_tells_apart = [f"{'-' * 30}{each}{'-' * 30}" for each in "ab"]
    assert elided(no_cut_tells_apart, 16) == {name: name for name in no_cut_tells_apart}


@pytest.mark.parametrize("width", [80, 110])
def test_a_long_message_wraps_and_is_cut_while_names_stay_whole(width: int) -> None:
    names = [f"{LONG}-on-one-{letter}-half" for letter in "ab"]
    message = f"since 07:00:00 its source cannot be read: /tmp/{'a-folder/' * 60} does not exist"
    short = list(elided(names, width // 3).values())
    rows: list[tuple[str, ...]] = [
        (name, "Suspended", "1024", "1000/1024", message) for name in short
    ]
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(framed(("Jobs", JOB_HEAD, rows), width))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for whole in (*short, "Suspended", "1000/1024", *JOB_HEAD):
        assert whole in shown, shown
    assert shown.count("\n") == 5 + 2 * MESSAGE_LINES, f"title, frame and head, then rows\n{shown}"
    assert shown.count("…") == 2 * 2, "one in each name, one where each message is cut"
