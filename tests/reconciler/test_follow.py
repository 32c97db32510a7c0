"""What ranks print, as `run` and `logs` show it while it grows."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfold.reconciler.follow import LINE_BYTES, Follower


def test_lines_are_whole_and_a_progress_bar_does_not_pile_up(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """A bar has no line's end for days. What it printed is shown, each byte once."""
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
