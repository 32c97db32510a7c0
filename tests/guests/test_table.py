"""Each program that has a folder here has a row, and the tests that a row names exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY

from .table import GUESTS, Guest

pytestmark = pytest.mark.unit

HERE = Path(__file__).parent


def test_each_folder_has_a_row() -> None:
    folders = {path.name for path in HERE.iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert folders == {guest.folder.name for guest in GUESTS if guest.folder.parent == HERE}


@pytest.mark.parametrize("guest", GUESTS, ids=str)
def test_the_files_of_each_row_exist(guest: Guest) -> None:
    named = [guest.program, *guest.tests, *([guest.fetched] if guest.fetched else [])]
    assert [path for path in named if not (REPOSITORY / path).exists()] == []
    assert (guest.folder / "computed.py").exists() == bool(guest.computed)
    assert guest.lines or guest.computed or guest.tests, "nothing runs it"
