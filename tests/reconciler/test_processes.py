"""Promise: the reconciler reports a proxy that exits unless it was requested to; it marks devices
bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model.observed import Observed, ObservedDevice
from rankfold.reconciler.observe.processes import BAD_AFTER, Processes, still_bad

ONE = "local/soft-0"


def seen(pid: int | None) -> Observed:
    """pid: of the device's proxy, 0 where it does not answer, None where there is none."""
    return Observed({} if pid is None else {ONE: ObservedDevice(ONE, pid=pid)})


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("RANKFOLD_RUNTIME", str(tmp_path / "run"))
    return Layout(tmp_path)


@pytest.mark.parametrize("answers", [True, False])
def test_a_proxy_that_the_last_reconciler_requested_to_end_may_end_under_the_next(
    tmp_path: Path, layout: Layout, answers: bool
) -> None:
    with Journal(tmp_path) as journal:
        last = Processes(layout, journal)
        last.started(ONE)
        last.update(seen(7), [ONE])
        last.all_requested_to_end({})

        following = Processes(layout, journal)
        following.update(seen(7 if answers else 0), [ONE])  # still on its way
        following.update(seen(None), [ONE])
        assert [event.reason for event in journal.events()] == []

        following.started(ONE)
        following.update(seen(8), [ONE])
        following.update(seen(None), [ONE])
        assert [event.reason for event in journal.events()] == ["ProxyEnded"], "only once"


def test_one_that_could_not_be_requested_to_end_is_missed(tmp_path: Path, layout: Layout) -> None:
    with Journal(tmp_path) as journal:
        last = Processes(layout, journal)
        last.update(seen(7), [ONE])
        last.all_requested_to_end({ONE: "it does not answer"})
        Processes(layout, journal).update(seen(None), [ONE])
        assert [event.reason for event in journal.events()] == ["ProxyEnded"]


def starting() -> Observed:
    return Observed({ONE: ObservedDevice(ONE, ready=False)})


def fails_to_start(processes: Processes, times: int = BAD_AFTER) -> None:
    """Its proxy is started so often, and ends each time."""
    for _ in range(times):
        processes.started(ONE)
        processes.update(starting(), [ONE])
        processes.update(seen(None), [ONE])


def test_a_device_whose_proxy_ends_again_and_again_is_bad_until_it_answers(
    tmp_path: Path, layout: Layout
) -> None:
    layout.proxy_file(ONE, ".log").write_text("before\nno such device\n")
    with Journal(tmp_path) as journal:
        processes = Processes(layout, journal)
        fails_to_start(processes, BAD_AFTER - 1)
        assert processes.failing == {}
        fails_to_start(processes, 1)
        assert processes.failing == {ONE: "no such device"}

        following = Processes(layout, journal)
        processes.started(ONE)
        processes.update(starting(), [ONE])
        assert following.failing == processes.failing == still_bad(following.failing, starting())
        assert still_bad(following.failing, seen(7)) == {}
        following.update(seen(7), [ONE])
        assert following.failing == Processes(layout, journal).failing == {}
        fails_to_start(following, BAD_AFTER - 1)
        assert following.failing == {}, "it is counted anew"


def test_a_device_that_starts_slowly_or_hangs_is_not_bad(tmp_path: Path, layout: Layout) -> None:
    with Journal(tmp_path) as journal:
        processes = Processes(layout, journal)
        fails_to_start(processes, BAD_AFTER - 1)
        processes.started(ONE)
        processes.update(starting(), [ONE])
        assert processes.failing == {}
        processes.update(seen(7), [ONE])
        processes.update(seen(None), [ONE])
        assert processes.failing == {}, "it answered"


def test_one_whose_proxy_cannot_be_started_is_bad_and_forgotten_when_it_is_not_desired(
    tmp_path: Path, layout: Layout
) -> None:
    with Journal(tmp_path) as journal:
        processes = Processes(layout, journal)
        for _ in range(BAD_AFTER):
            processes.tried(ONE, "no more processes")
        processes.update(seen(None), [ONE])
        assert processes.failing == {ONE: "no more processes"}
        processes.update(seen(None), [])
        assert Processes(layout, journal).failing == {}


def test_the_reconciler_that_follows_an_orderly_end_finds_out_anew(
    tmp_path: Path, layout: Layout
) -> None:
    with Journal(tmp_path) as journal:
        processes = Processes(layout, journal)
        fails_to_start(processes)
        processes.all_requested_to_end({})
        assert Processes(layout, journal).failing == {}
