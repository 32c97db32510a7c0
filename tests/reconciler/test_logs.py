"""Promise: `run` and `logs` show the output of ranks while it grows."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from rankfold.interpose.launcher.snapshot import snapshot
from rankfold.reconciler.report.logs import LINE_BYTES, Follower

pytestmark = pytest.mark.unit


def test_lines_are_whole_and_a_progress_bar_does_not_pile_up(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A progress bar may not end its line for days. Its output is shown anyway, each byte once."""
    follower = Follower(tmp_path, range(2), prefix=True)
    bar, shown = b"", b""
    with (tmp_path / "rank-0.out").open("wb") as zero, (tmp_path / "rank-1.out").open("wb") as one:
        for number in range(2000):
            state = b"\r%5d of 2000: %s" % (number, b"=" * 200)
            bar += state
            zero.write(state)
            one.write(b"half ")
            zero.flush()
            one.flush()
            follower.pump()
            shown += capfdbinary.readouterr().out
            kept = sum(len(stream.rest) for stream in follower._streams)
            assert kept <= LINE_BYTES + 3 * len(state) + 5 * 2000
        one.write(b"whole\n")
    follower.finish()
    shown += capfdbinary.readouterr().out
    lines = shown.split(b"\n")[:-1]
    assert b"".join(line[4:] for line in lines if line.startswith(b"[0] ")) == bar
    assert [line[4:] for line in lines if line.startswith(b"[1] ")] == [b"half " * 2000 + b"whole"]


def test_a_line_of_many_megabytes_is_printed_in_parts_and_never_held(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    follower = Follower(tmp_path, range(2), prefix=True)
    (tmp_path / "rank-0.out").write_bytes(b"x" * (1 << 23))
    (tmp_path / "rank-1.out").write_bytes(b"one\n" + b"y" * 100_000)
    follower.pump()
    assert all(len(stream.rest) <= LINE_BYTES for stream in follower._streams)
    with (tmp_path / "rank-0.out").open("ab") as log:
        log.write(b"X\nnext\n")
    with (tmp_path / "rank-1.out").open("ab") as log:
        log.write(b"Y")
    follower.pump()
    follower.finish()
    shown = capfdbinary.readouterr().out.split(b"\n")
    assert shown[-1] == b""
    assert {line[:4] for line in shown[:-1]} == {b"[0] ", b"[1] "}
    of = [b"".join(line[4:] for line in shown if line[:4] == b"[%d] " % rank) for rank in (0, 1)]
    assert of == [b"x" * (1 << 23) + b"Xnext", b"one" + b"y" * 100_000 + b"Y"]
    assert b"[0] next" in shown and b"[1] one" in shown


class Log:
    """One rank's standard output, a follower of it, and what that has printed."""

    def __init__(self, folder: Path, printed: pytest.CaptureFixture[bytes], prefix: bool):
        self.folder, self.printed, self.path = folder, printed, folder / "rank-0.out"
        self.prefix = prefix

    @functools.cached_property
    def follower(self) -> Follower:
        return Follower(self.folder, [0], self.prefix)

    def write(self, text: bytes) -> bytes:
        """Append to the log; gives what is printed of it."""
        with self.path.open("ab") as file:
            file.write(text)
        return self.look()

    def look(self) -> bytes:
        self.follower.pump()
        return self.printed.readouterr().out

    def restore(self, size: int) -> None:
        """Do to the log what a restore of the rank does."""
        snapshot.cut(lambda kind: str(self.folder / f"rank-0.{kind}"), {"out": size, "err": 0})


@pytest.fixture(params=[True, False], ids=["prefix", "plain"])
def log(
    request: pytest.FixtureRequest, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> Log:
    return Log(tmp_path, capfdbinary, request.param)


def lines(log: Log, *texts: bytes) -> bytes:
    prefix = b"[0] " if log.prefix else b""
    return b"".join(prefix + text + b"\n" for text in texts)


@pytest.mark.parametrize("how", ["emptied", "rotated", "removed", "shortened"])
def test_a_log_that_is_emptied_or_replaced_is_followed_from_its_beginning(
    log: Log, how: str
) -> None:
    shown = log.write(b"one of many lines\nhalf a li")
    if how == "emptied":
        os.truncate(log.path, 0)
    elif how == "shortened":
        os.truncate(log.path, 4)
    elif how == "rotated":
        log.path.rename(log.path.with_suffix(".1"))
        log.path.write_bytes(b"a longer text than that which was there before\n")
    else:
        log.path.unlink()
        shown += log.look()
    shown += log.look() + log.write(b"two\n") + log.write(b"three\n")
    new = {
        "emptied": [b"two"],
        "removed": [b"two"],
        "shortened": [b"one two"],
        "rotated": [b"a longer text than that which was there before", b"two"],
    }[how]
    assert shown == lines(log, b"one of many lines", b"half a li", *new, b"three")


def test_output_repeated_after_a_restore_is_printed_once(log: Log) -> None:
    shown = log.write(b"step 1\nstep 2\nstep 3\n")
    for again in (b"step 2\nstep 3\n", b"step 2\nstep 3\nstep 4\n"):
        log.restore(7)
        assert log.look() == b"", "cut"
        assert log.write(again[:7]) == log.write(again[7:]) == b"", "printed before"
        shown += log.write(b"step 5\n" if b"step 4" in again else b"step 4\n")
    assert shown == lines(log, *(b"step %d" % n for n in range(1, 6)))


def test_a_log_that_is_emptied_while_its_rank_repeats_itself_is_followed(log: Log) -> None:
    """The restore explains its own cut, and no later one."""
    shown = log.write(b"step 1\nstep 2\nstep 3\n")
    log.restore(0)
    shown += log.look() + log.write(b"step 1\nstep 2\n")
    os.truncate(log.path, 0)
    shown += log.look() + log.write(b"step 3\n")
    assert shown == lines(log, b"step 1", b"step 2", b"step 3", b"step 3")


def test_a_cut_that_is_announced_and_seen_later_is_no_truncation(log: Log) -> None:
    """The last lines of a rank that was killed are printed between the note and the cut."""
    shown = log.write(b"step 1\nstep 2\n")
    (log.folder / "rank-0.cut").write_text('{"out": 7}')
    shown += log.write(b"step 3\n")
    os.truncate(log.path, 7)
    shown += log.look() + log.write(b"step 2\nstep 3\n") + log.write(b"step 4\n")
    assert shown == lines(log, *(b"step %d" % n for n in range(1, 5)))
