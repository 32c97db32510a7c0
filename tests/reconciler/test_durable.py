"""Content that was durable on the disk is distinguished from later content, and only from that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankfold.reconciler.node.durable import CHANGES, LIST, Damaged, check, sync_all

MIB = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files: one short, one mostly holes, with content in the third MiB and at the end."""
    found = tmp_path / "saves" / "1"
    (found / "rank-0").mkdir(parents=True)
    (found / CHANGES).write_text("{}")
    (found / "rank-0/about.json").write_text("{}")
    (found / "rank-0/link").symlink_to("nowhere")
    with (found / "rank-0/image").open("wb") as image:
        image.seek(2 * MIB + 17)
        image.write(b"content")
        image.truncate(5 * MIB + 3)
        image.seek(5 * MIB)
        image.write(b"end")
    sync_all(found, [tmp_path / "not-there"], above=2)
    return found


def test_an_unchanged_file_is_complete(folder: Path) -> None:
    check(folder)


def test_other_processes_write_next_to_what_is_settled(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module, under the name that it has until it is whole."""
    modules, find = tmp_path / "modules", Path.rglob
    modules.mkdir()

    def renamed(self: Path, pattern: str) -> Iterator[Path]:
        found = list(find(self, pattern))
        return iter([*found, self / ".hash.1.17.18"] if self == modules else found)

    monkeypatch.setattr(Path, "rglob", renamed)
    sync_all(folder, [modules])
    check(folder)
    monkeypatch.setattr(Path, "rglob", lambda self, _: iter([self / "rank-1"]))
    with pytest.raises(FileNotFoundError):
        sync_all(folder)


def test_a_restore_may_write_into_the_folder(folder: Path) -> None:
    (folder / CHANGES).write_text('{"put": {}}')
    (folder / "rank-0/restore.log").write_text("done")
    check(folder)


def test_zeros_are_as_good_as_holes(folder: Path) -> None:
    image = folder / "rank-0/image"
    data = image.read_bytes()
    assert image.stat().st_blocks * 512 < len(data), "there are no holes here"
    image.unlink()
    image.write_bytes(data)
    check(folder)


def _flip(at: int) -> Callable[[Path], None]:
    def flip(folder: Path) -> None:
        fd = os.open(folder / "rank-0/image", os.O_RDWR)
        byte = os.pread(fd, 1, at)[0]
        os.pwrite(fd, bytes([byte ^ 1]), at)
        os.close(fd)

    return flip


def _swap(folder: Path) -> None:
    """The same content, one MiB further on."""
    image = folder / "rank-0/image"
    data = image.read_bytes()
    image.write_bytes(bytes(MIB) + data[: 3 * MIB] + data[4 * MIB :])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_flip(2 * MIB + 20), "image has content other"),
        (_flip(4 * MIB + 1), "image has content other"),
        (_flip(5 * MIB + 2), "image has content other"),
        (_swap, "image has content other"),
        (lambda folder: os.truncate(folder / "rank-0/image", 5 * MIB), "has 5242880 bytes, not"),
        (lambda folder: (folder / "rank-0/image").unlink(), "image no longer exists"),
        (lambda folder: (folder / LIST).unlink(), "is incomplete"),
        (lambda folder: (folder / LIST).write_text("[1"), "is incomplete"),
    ],
)
def test_damage_is_named(folder: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(folder)
    with pytest.raises(Damaged, match=said):
        check(folder)
