"""On a local file system a checkpoint is named when all that it names would survive a loss of
power: files are synced before they have a name, folders before the manifest has one."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rankfold.checkpoint.store import Full, Store
from rankfold.checkpoint.store.names import Place
from support import disk
from support.checkpoints import DEVICE, Content, example, noise, opened, reading, restored, saved
from support.leaks import State


class Recorder:
    """Records the calls of os.fsync and os.link, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.did: list[tuple[str, str]] = []
        fsync, link = os.fsync, os.link

        def synced(file: int) -> None:
            self.did.append(("synced", os.readlink(f"/proc/self/fd/{file}")))
            fsync(file)

        def linked(source: str, name: str, **more: Any) -> None:
            folder = os.readlink(f"/proc/self/fd/{more['dst_dir_fd']}")
            if source.startswith("/proc"):
                assert ("synced", os.readlink(source)) in self.did, "synced before it has a name"
            link(source, name, **more)
            self.did.append(("named", f"{folder}/{name}"))

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "link", linked)

    def at(self, what: str, name: str) -> int:
        return self.did.index((what, name))

    def last(self, what: str, name: str) -> int:
        return len(self.did) - 1 - self.did[::-1].index((what, name))


def test_the_manifest_comes_when_all_that_it_names_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(str(tmp_path / "s"))
    recorder = Recorder(monkeypatch)
    manifest = saved(store, "gpt", 1, example(1, kib=2000))
    named = recorder.at("named", str(tmp_path / "s/jobs/gpt/manifests/1-1.json"))
    assert manifest.objects and manifest.packs
    for place in manifest.files:
        path = tmp_path / "s/jobs/gpt/data" / place.name
        there = recorder.at("named", str(path))
        for folder in (path.parent, *path.parents[1:6]):
            synced = [n for n, each in enumerate(recorder.did) if each == ("synced", str(folder))]
            assert any(there < n < named for n in synced), f"{folder} was not synced in between"
    assert named < recorder.last("synced", str(tmp_path / "s/jobs/gpt/manifests"))


def test_a_doomed_manifest_is_there_before_the_other_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(str(tmp_path))
    for n in range(2):
        saved(store, "gpt", 1, example(n))
    remove = store.files.remove

    def removed(name: str) -> None:
        if "/manifests/" in name:
            assert (tmp_path / name.replace("/manifests/", "/doomed/")).exists()
        remove(name)

    monkeypatch.setattr(store.files, "remove", removed)
    assert len(store.collect("gpt", 1).checkpoints) == 1
    assert not list((tmp_path / "jobs/gpt/doomed").iterdir())


def test_without_files_that_have_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS."""
    real = os.open

    def without(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", without)
    store = opened(str(tmp_path))
    manifest = saved(store, "gpt", 1, example(1))
    assert restored(store.checkpoint("gpt", manifest.id)) == example(1)
    assert not list(tmp_path.rglob("*.part"))


def test_a_disk_that_is_full(state: State) -> None:
    with disk.small_disk(state) as place:
        store: Store = opened(str(place / "store"))
        first = saved(store, "gpt", 1, example(1))
        content = Content({0: {DEVICE + (n << 30): noise(n, 1 << 20) for n in range(3)}})
        ballast = disk.fill(place)
        with pytest.raises(Full, match=r"No space left on device; free some space"):
            saved(store, "gpt", 1, content)
        assert store.checkpoints("gpt") == [first.id]
        assert store.checkpoint("gpt", first.id).verify() == []
        ballast.unlink()
        save = store.begin("gpt", 1)
        content.add_to(save)
        assert restored(store.checkpoint("gpt", save.finish().id)) == content
        del store, save


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    store = opened(str(tmp_path))
    saved(store, "gpt", 1, example(1))
    save = store.begin("gpt", 1)
    with pytest.raises(RuntimeError, match="the device is gone"):

        def gone(at: int, length: int) -> bytes:
            raise RuntimeError("the device is gone")

        save.buffers(0, "device", [reading(DEVICE, b"1")._replace(read=gone)])
    save.close()
    assert len(store.checkpoints("gpt")) == 1
    assert {Place.parse(place.name) for place in store.data("gpt")}


def test_one_of_several_makes_a_file(tmp_path: Path) -> None:
    files = opened(str(tmp_path)).files
    with ThreadPoolExecutor(8) as pool:
        for n in range(20):
            makes = [partial(files.create, f"f/{n}", b"%d" % who) for who in range(8)]
            made = [each.result() for each in [pool.submit(make) for make in makes]]
            assert made.count(True) == 1 and files.get(f"f/{n}") == b"%d" % made.index(True)
    assert files.create("f/0", b"again") is False
