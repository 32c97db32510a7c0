"""A failed action is tried again, later each time, up to a limit."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankfold.reconciler import loop
from rankfold.reconciler.model.values import Json
from rankfold.reconciler.source import reader

pytestmark = pytest.mark.unit


def test_an_action_that_fails_again_waits_twice_as_long_up_to_a_bound() -> None:
    wait, delays = loop.Backoff(), []
    for now in range(100, 120):
        wait.failed(float(now))
        assert wait.due == now + wait.delay
        delays.append(wait.delay)
    assert delays[0] == loop.BACKOFF_MIN_S > 0
    assert delays[-1] == loop.BACKOFF_MAX_S
    for before, after in itertools.pairwise(delays):
        assert after == min(loop.BACKOFF_MAX_S, 2 * before)


def test_permanent_errors_wait_longest_at_once() -> None:
    wait = loop.Backoff()
    wait.failed(100.0, permanent=True)
    assert wait.delay == loop.BACKOFF_MAX_S


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """How long a source_reader waited each time; it gets the word to end after the twelfth."""
    found: list[float] = []

    class Noting(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is not None and threading.current_thread().name == "source":
                found.append(timeout)
                if len(found) == 12:
                    self.set()
                return self.is_set()
            return super().wait(timeout)

    with monkeypatch.context() as patched:
        patched.setattr("rankfold.reconciler.source.reader.threading.Event", Noting)
        yield found


def test_a_source_that_stays_away_is_opened_again_ever_later(
    waits: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened = 0

    def away(_description: Json, _state: Path) -> reader.Source:
        nonlocal opened
        opened += 1
        raise reader.SourceError("it does not exist")

    monkeypatch.setattr(reader, "open_source", away)
    source_reader = reader.Reader({"dir": str(tmp_path)}, tmp_path)
    source_reader._thread.join()
    reading = source_reader.take()
    source_reader.close()
    assert reading is not None and reading.error == "it does not exist"
    assert opened == len(waits) == 12
    assert waits[0] == reader.AGAIN_MIN_S and waits[-1] == reader.AGAIN_MAX_S
    assert waits == sorted(waits)
