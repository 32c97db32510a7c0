"""What is said of proxies that end: of those that were told to, nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfold.reconciler.layout import Layout
from rankfold.reconciler.model import Observed, SeenDevice
from rankfold.reconciler.processes import Processes
from rankfold.reconciler.store import Store

ONE = "local/soft-0"


def seen(pid: int | None) -> Observed:
    """pid: of the device's proxy, 0 where it does not answer, None where there is none."""
    return Observed({} if pid is None else {ONE: SeenDevice(ONE, pid=pid)})


@pytest.mark.parametrize("answers", [True, False])
def test_a_proxy_that_the_last_reconciler_told_to_end_may_end_under_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setenv("RANKFOLD_RUNTIME", str(tmp_path / "run"))
    layout = Layout(tmp_path)
    with Store(tmp_path) as store:
        last = Processes(layout, store)
        last.started(ONE)
        last.note(seen(7))
        last.all_told_to_end({})

        following = Processes(layout, store)
        following.note(seen(7 if answers else 0))  # still on its way
        following.note(seen(None))
        assert [event.reason for event in store.events()] == []

        following.started(ONE)
        following.note(seen(8))
        following.note(seen(None))
        assert [event.reason for event in store.events()] == ["ProxyEnded"], "nobody told that one"


def test_one_that_could_not_be_told_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKFOLD_RUNTIME", str(tmp_path / "run"))
    layout = Layout(tmp_path)
    with Store(tmp_path) as store:
        last = Processes(layout, store)
        last.note(seen(7))
        last.all_told_to_end({ONE: "it does not answer"})
        Processes(layout, store).note(seen(None))
        assert [event.reason for event in store.events()] == ["ProxyEnded"]
