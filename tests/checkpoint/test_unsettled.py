"""A store whose listing names what no reader can read: every call ends, and names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfold.checkpoint.store import Id, Missing, Unavailable, names
from rankfold.checkpoint.store.checking import check
from support.checkpoints import example, opened, restored, saved

pytestmark = pytest.mark.unit


def link_to_nothing(folder: Path, name: str) -> None:
    (folder / name).symlink_to("nothing")


def test_an_incarnation_that_is_listed_and_not_there(tmp_path: Path) -> None:
    store = opened(str(tmp_path))
    first = saved(store, "gpt", 1, example(1)).id
    name = names.incarnation("gpt", 2)
    link_to_nothing(tmp_path, name)
    with pytest.raises(Missing, match=rf"{name}: is listed, but does not exist; remove it"):
        store.newest_incarnation("gpt")
    with pytest.raises(Missing, match=name):
        saved(store, "gpt", 1, example(2))
    assert any(name in fault for report in check(store) for fault in report.faults)
    assert store.checkpoints("gpt") == [first]
    (tmp_path / name).unlink()
    assert saved(store, "gpt", 1, example(2)).id == Id(1, 2)


def test_the_next_save_repairs_a_fence_that_is_listed_and_not_there(tmp_path: Path) -> None:
    store = opened(str(tmp_path))
    saved(store, "gpt", 1, example(1))
    link_to_nothing(tmp_path, names.fence("gpt", Id(1, 2)))
    assert next(check(store)).faults
    for seed in (2, 3):
        saved(store, "gpt", 1, example(seed))
    assert not any(report.faults for report in check(store))
    newest = store.newest("gpt").checkpoint
    assert newest and restored(newest) == example(3)


def test_a_claim_that_is_listed_and_not_there_counts_as_given_up(tmp_path: Path) -> None:
    store = opened(str(tmp_path))
    saved(store, "gpt", 1, example(1))
    link_to_nothing(tmp_path, names.claim("gpt", Id(1, 2)))
    assert saved(store, "gpt", 1, example(2)).id == Id(1, 3)


def test_a_number_that_no_save_can_have(tmp_path: Path) -> None:
    """A folder has the claim's name: it cannot be created, and is not listed as a file."""
    store = opened(str(tmp_path))
    saved(store, "gpt", 1, example(1))
    name = names.claim("gpt", Id(1, 2))
    (tmp_path / name).mkdir()
    with pytest.raises(Unavailable, match=rf"{name}: .* numbers for a save were taken"):
        saved(store, "gpt", 1, example(2))
    (tmp_path / name).rmdir()
    assert saved(store, "gpt", 1, example(2)).id == Id(1, 2)
