"""The journal's file."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rankfold.reconciler.store import Store, StoreError, database


def test_who_looks_while_it_is_made_sees_nothing_or_all_of_it(tmp_path: Path) -> None:
    """Whoever runs `status` when the fleet's first command has just begun."""
    for attempt in range(30):
        state = tmp_path / str(attempt)
        path, looked = database(state), 0
        writer = threading.Thread(target=lambda: Store(state).close())  # noqa: B023
        writer.start()
        while writer.is_alive() or not looked:
            if path.exists():
                with Store(state, readonly=True) as store:
                    assert store.records() == {}
                looked += 1
        writer.join()
        assert [file.name for file in state.glob("*.new*")] == []


def test_what_a_killed_one_left_is_not_used(tmp_path: Path) -> None:
    for name in ("rankfold.new", "rankfold.new-wal", "rankfold.new-shm"):
        (tmp_path / name).write_bytes(b"torn")
    with Store(tmp_path) as store:
        assert store.records() == {}
    assert list(tmp_path.glob("*.new*")) == []


def test_a_file_of_another_version_is_left_as_it_is(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.db.execute("PRAGMA user_version=7")
    for readonly in (False, True):
        with pytest.raises(StoreError, match="has format 7, this rankfold knows 1"):
            Store(tmp_path, readonly=readonly)
