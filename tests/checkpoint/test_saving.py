"""Saved content is restored, stored once, and not stored again."""

from __future__ import annotations

import copy
import threading
from pathlib import Path

import pytest
from blake3 import blake3

from rankfold.checkpoint import store as stores
from rankfold.checkpoint.store import Buffer, Progress, Save, Store, units
from rankfold.checkpoint.store.units import GRAIN, OBJECT_BYTES, PAGE
from support.checkpoints import (
    DEVICE,
    HOST,
    Content,
    example,
    noise,
    opened,
    reading,
    restored,
    saved,
)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return opened(f"memory://{tmp_path}" if request.param == "memory" else str(tmp_path / "a/b"))


def data_bytes(store: Store) -> int:
    return sum(store.data("gpt").values())


def test_saved_content_is_restored(store: Store) -> None:
    first, second = example(1), example(2)
    ids = [saved(store, "gpt", 1, content).id for content in (first, second)]
    assert [str(each) for each in ids] == ["1-1", "1-2"] and store.checkpoints("gpt") == ids
    for each, content in zip(ids, (first, second), strict=True):
        checkpoint = store.checkpoint("gpt", each)
        assert checkpoint.verify() == []
        assert restored(checkpoint) == content
        assert checkpoint.manifest.about == {"step": 1}
    assert store.newest("gpt").checkpoint is not None


def test_ranges_of_every_length(store: Store) -> None:
    lengths = [1, 511, OBJECT_BYTES - 1, OBJECT_BYTES, GRAIN - 1, GRAIN, GRAIN + 1, 2 * GRAIN + 5]
    buffers = {DEVICE + (n << 30): noise(n, length) for n, length in enumerate(lengths)}
    runs = {HOST + n * PAGE: noise(n, PAGE) for n in (0, 1, 14, 15, 16, 17, 200)}
    blobs = {"none": b"", "long": noise("long", 2 * GRAIN + 1)}
    content = Content({0: buffers, 1: {}}, {0: runs}, blobs)
    manifest = saved(store, "gpt", 1, content)
    checkpoint = store.checkpoint("gpt", manifest.id)
    assert checkpoint.verify() == []
    assert restored(checkpoint) == content
    for name, data in blobs.items():
        assert checkpoint.content(checkpoint.part(None, name)) == data
    # The pages of one list are those of an aligned run.
    extents = checkpoint.extents(checkpoint.part(0, "memory"))
    assert [(at - HOST) // PAGE for at, _ in extents] == [0, 14, 16, 200]


def test_a_replica_is_stored_once(store: Store, tmp_path: Path) -> None:
    alone = opened(f"memory://alone/{tmp_path}")
    for where, ranks in ((alone, 1), (store, 8)):
        replica = {DEVICE: noise(0, GRAIN + 100), DEVICE + (1 << 30): noise(1, 40_000)}
        saved(where, "gpt", 1, Content(dict.fromkeys(range(ranks), replica)))
    assert data_bytes(store) == data_bytes(alone)


def test_the_next_one_stores_what_changed(store: Store) -> None:
    content = example(0, kib=3000)
    first = saved(store, "gpt", 1, content)
    before = data_bytes(store)
    again = saved(store, "gpt", 1, content)
    assert data_bytes(store) == before and again.base == first.id
    changed = copy.deepcopy(content)
    changed.pages[0][HOST] = noise("changed", PAGE)
    saved(store, "gpt", 1, changed)
    # The page, the list of its run and its table, in one pack.
    assert before < data_bytes(store) < before + PAGE + 64 * units.DIGEST + 64 * 48 + 1000


def test_a_piece_is_a_file_by_its_hash(tmp_path: Path) -> None:
    store, data = opened(str(tmp_path)), noise(0, GRAIN)
    saved(store, "gpt", 1, Content({0: {DEVICE: data}}))
    [file] = tmp_path.glob(f"jobs/gpt/data/*/objects/{blake3(data).hexdigest()}")
    assert file.read_bytes() == data


def test_host_pages_are_compressed_and_noise_is_not(store: Store) -> None:
    pages = {HOST + n * PAGE: (b"%8d" % n) * 512 for n in range(1000)}
    assert saved(store, "gpt", 1, Content({}, {0: pages})).stored < 1000 * PAGE / 4
    data = noise(0, OBJECT_BYTES - 1)
    manifest = saved(store, "gpt", 1, Content({0: {DEVICE: data}}))
    assert len(data) < manifest.stored < len(data) + 1000


def test_parts_are_given_by_several_threads_and_progress_is_reported(store: Store) -> None:
    content, told = example(0, ranks=6, kib=2000), list[int]()

    def progress(now: Progress) -> None:
        told.append(now.uploaded)

    save = store.begin("gpt", 1, progress=progress)
    threads = [
        threading.Thread(
            target=Content({rank: content.buffers[rank]}, {rank: content.pages[rank]}).add_to,
            args=[save],
        )
        for rank in range(6)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    Content(blobs=content.blobs).add_to(save)
    manifest = save.finish()
    assert restored(store.checkpoint("gpt", manifest.id)) == content
    assert max(told) == save.progress.uploaded == save.progress.files == data_bytes(store)
    assert save.progress.added == manifest.size


def test_units_in_one_place_are_read_once(store: Store) -> None:
    """Whichever rank has it there, and at whatever address."""
    data, read = noise(0, GRAIN + 100), list[tuple[str, int]]()

    def buffer(address: int, place: str) -> Buffer:
        def content(at: int, length: int) -> bytes:
            read.append((place, at))
            return data[at : at + length]

        return Buffer(address, len(data), content, lambda at, length: (place, at, length))

    save = store.begin("gpt", 1)
    for rank, place in enumerate(["a", "a", "b"]):
        save.buffers(rank, "device", [buffer(DEVICE, place), buffer(2 * DEVICE, place)])
    assert read == [("a", 0), ("a", GRAIN), ("b", 0), ("b", GRAIN)]
    manifest = save.finish()
    checkpoint = store.checkpoint("gpt", manifest.id)
    both = {DEVICE: data, 2 * DEVICE: data}
    assert restored(checkpoint).buffers == {0: both, 1: both, 2: both}
    assert save.progress.added == manifest.size and save.progress.found >= 5 * len(data)
    with pytest.raises(stores.Refused, match="has ended"):
        save.buffers(3, "device", [buffer(DEVICE, "a")])


def test_equal_units_of_two_threads_are_stored_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has seen that it does not exist, and the other one is faster."""
    page, waits = noise(0, PAGE), [True]
    find = Save._difference

    def slow(save: Save, data: bytes, before: bytes | None) -> object:
        if waits and data == page:
            waits.clear()
            save.pages(1, "memory", [(HOST, page)])
        return find(save, data, before)

    monkeypatch.setattr(Save, "_difference", slow)
    saved(store, "gpt", 1, Content({}, {0: {HOST: page}}))
    assert not waits and PAGE < data_bytes(store) < 2 * PAGE


def test_wrong_parts_are_refused(store: Store) -> None:
    save = store.begin("gpt", 1)
    for pages in ([(HOST + 1, bytes(PAGE))], [(HOST, bytes(PAGE - 1))], [(HOST, bytes(PAGE))] * 2):
        with pytest.raises(ValueError):
            save.pages(0, "memory", pages)
    for buffers in (
        [reading(DEVICE, b"1234"), reading(DEVICE + 3, b"5")],
        [reading(DEVICE, b"")],
        [Buffer(DEVICE, 5, lambda at, length: b"1234")],
        [reading((1 << 64) - 1, b"12")],
    ):
        with pytest.raises(ValueError):
            save.buffers(0, "device", buffers)
    save.blob(0, "it", [b"1"])
    with pytest.raises(ValueError, match="given twice"):
        save.blob(0, "it", [b"2"])
    assert [part.name for part in save.finish().parts] == ["it"]
    with pytest.raises(stores.Refused, match="has ended"):
        save.blob(0, "more", [b"2"])


def test_packs_that_are_nearly_empty_do_not_travel_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that never changes must not keep every pack that ever contained it."""
    monkeypatch.setattr("rankfold.checkpoint.store.store.SPARE_BYTES", 0)
    store = opened(str(tmp_path))
    raw = []
    for n in range(8):
        pages = {HOST + at * PAGE: noise((at, n if at >= n else at), PAGE) for at in range(20)}
        manifest = saved(store, "gpt", 1, Content({}, {0: pages}))
        assert store.checkpoint("gpt", manifest.id).verify() == []
        store.collect("gpt", 1)
        raw.append(sum(use.raw for use in manifest.packs.values()))
    assert max(raw) < 3.5 * 20 * PAGE
