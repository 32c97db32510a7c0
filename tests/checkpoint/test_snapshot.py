"""A rank's snapshot becomes parts of a checkpoint and comes back as it was; what no rank owns any
more does not travel."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold import image
from rankfold.checkpoint import snapshot
from rankfold.checkpoint.snapshot import Snapshot, Unfit, criu, images_being_copied
from rankfold.checkpoint.snapshot.folder import _namer, _reader
from rankfold.checkpoint.store import Checkpoint, Id, Store
from rankfold.checkpoint.store.names import Place
from rankfold.image import Elsewhere, Image, read_image
from rankfold.interpose.launcher.snapshot.snapshot import fill
from rankfold.proxy.hal.soft.modules import Loader
from support.checkpoints import noise, opened
from support.computing import Computing, sync
from support.devices import devices
from support.kernels import kernels
from support.ring_client import CHUNK, DEV_BASE, RingClient, twins_of
from support.snapshots import (
    LAZY,
    PAGE,
    PARENT,
    PRESENT,
    files,
    image_of,
    message,
    pagemap,
    processes,
    saved_image,
    whole,
)
from support.trained import (
    HOMES,
    MOMENTS,
    OWN,
    PARAMETERS,
    STEPS,
    VARIABLES,
    WORDS,
    begin_alike,
    folded,
    train,
    train_alike,
    trained,
)
from support.trainers import RANKS, Trainer, begin

__all__ = ["kernels"]

STACK = 0x7FFD_0000_0000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return opened(str(tmp_path / "store"))


def stored(store: Store, folders: dict[int, Path]) -> Checkpoint:
    save = store.begin("gpt", 1)
    for rank, folder in folders.items():
        Snapshot(folder).add_to(save, rank)
    return store.checkpoint("gpt", save.finish().id)


def data_bytes(store: Store) -> int:
    return sum(store.data("gpt").values())


def content(folder: Path, address: int, length: int) -> bytes:
    """Bytes of device memory from an image, or from the image of another rank to which it
    refers."""
    begin, found = address - DEV_BASE, b""
    noted = Image([], 0, frozenset(), image.noted(folder / "image"), {})
    for rank, start, end in noted.pieces(begin, begin + length):
        where = folder if rank is None else folder.with_name(f"rank-{rank}")
        with (where / "image").open("rb") as file:
            found += os.pread(file.fileno(), end - start, start)
    return found


def state(folder: Path) -> bytes:
    with (folder / "image").open("rb") as file:
        (size,) = struct.unpack("<Q", os.pread(file.fileno(), 8, (1 << 39) + 16))
        return os.pread(file.fileno(), 32 + size, 1 << 39)


def memory(seed: int = 0) -> dict[int, bytes]:
    """Runs of pages: some are adjacent, and one changes with the seed."""
    return {
        0x400000: noise("code", 3 * PAGE),
        0x400000 + 3 * PAGE: noise(seed, PAGE),
        0x7F00_0000_0000: noise("heap", 70 * PAGE),
        STACK: noise("stack", PAGE),
    }


# ---- host memory -------------------------------------------------------------------------------


def test_criu_s_images_are_restored_byte_for_byte(store: Store, tmp_path: Path) -> None:
    folder, back = tmp_path / "rank", tmp_path / "back/rank"
    processes(folder, memory())
    whole(folder)
    checkpoint = stored(store, {0: folder})
    snapshot.write(checkpoint, {0: back})
    assert files(back) == files(folder)
    assert Snapshot(back).size == Snapshot(folder).size


def test_pages_are_known_by_their_address(store: Store, tmp_path: Path) -> None:
    """One page more in front moves all others within the file, and only it is stored."""
    first, second = tmp_path / "1", tmp_path / "2"
    processes(first, memory())
    processes(second, {0x3FF000: noise("new", PAGE), **memory()})
    for each in (first, second):
        whole(each)
    stored(store, {0: first})
    before = data_bytes(store)
    stored(store, {0: second})
    assert 0 < data_bytes(store) - before < 3 * PAGE


@pytest.mark.parametrize("together", [1 << 30, 0])
def test_files_that_ranks_share_are_read_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    """Pages that several ranks have are stored once, unless they are too many to know all their
    places at one time."""
    folders = {rank: tmp_path / f"rank-{rank}" for rank in range(3)}
    for rank, folder in folders.items():
        processes(folder, memory(rank), rank)
        whole(folder)
    checkpoint = stored(store, folders)
    opened, find = list[Place](), Checkpoint._open

    def counted(self: Checkpoint, place: Place) -> dict[bytes, memoryview]:
        opened.append(place)
        return find(self, place)

    monkeypatch.setattr(Checkpoint, "_open", counted)
    monkeypatch.setattr("rankfold.checkpoint.snapshot.writing.GROUP_BYTES", together)
    back = {rank: tmp_path / "back" / f"rank-{rank}" for rank in folders}
    snapshot.write(checkpoint, back)
    for rank, folder in folders.items():
        for file in (path for path in folder.rglob("*") if path.is_file()):
            assert (back[rank] / file.relative_to(folder)).read_bytes() == file.read_bytes()
    largest = max(checkpoint.manifest.packs, key=lambda at: checkpoint.manifest.packs[at].raw)
    assert (opened.count(largest) == 1) == bool(together)


def test_it_reads_what_criu_has(tmp_path: Path) -> None:
    entries = [(0x1000, 2, PRESENT), (0x3000, 1, PRESENT | LAZY), (0x9000, 7, LAZY)]
    found = criu.parse(pagemap(5, [*entries, (0x20000, 1, PRESENT)]))
    assert found.file == "pages-5.img"
    assert found.runs == [(0x1000, 3 * PAGE, 0), (0x20000, PAGE, 3 * PAGE)]
    assert found.offset(0x2000, 2 * PAGE) == PAGE and found.offset(0x20000, PAGE) == 3 * PAGE
    for outside in (0, 0x4000, 0x9000):
        with pytest.raises(criu.Malformed, match="not in its pages"):
            found.offset(outside, PAGE)
    older = pagemap(5, [])[:8] + message({1: 5}) + message({1: 0x1000, 2: 2})
    assert criu.parse(older).runs == [(0x1000, 2 * PAGE, 0)]


@pytest.mark.parametrize(
    "image",
    [
        b"",
        pagemap(1, [])[:8],
        pagemap(1, [(0x1000, 1, PRESENT | PARENT)]),
        pagemap(1, [(0x1000, 1, 8 | PRESENT)]),
        pagemap(1, [(0x1001, 1, PRESENT)]),
        pagemap(1, [(0x2000, 1, PRESENT), (0x1000, 2, PRESENT)]),
        pagemap(1, [(0x1000, 1, 4)])[:-1],
        pagemap(1, []) + message({1: 0x1000, 2: 1, 3: 1}),
        pagemap(1, []) + message({1: 0x1000}),
        pagemap(1, []) + message({1: 0x1000, 2: 1, 9: 1}),
        pagemap(1, []) + b"\1\0\0\0\x0a",
        pagemap(1, []) + b"\2\0\0\0\x08\xff",
        pagemap(1, [((1 << 64) - PAGE, 2, PRESENT)]),
        pagemap(1, []) + b"\1\0",
    ],
)
def test_a_pagemap_of_another_form_is_refused(image: bytes) -> None:
    with pytest.raises(criu.Malformed):
        criu.parse(image)


# ---- device memory -----------------------------------------------------------------------------


BUFFERS = {
    DEV_BASE: noise("parameters", 100_000),
    DEV_BASE + 100_352: noise("moments", 5000),
    DEV_BASE + 3 * CHUNK - 512: noise("across chunks", 40_000),
    DEV_BASE + 5 * CHUNK: noise("large", 300_000),
}


def test_only_live_buffers_of_an_image_are_saved(store: Store, tmp_path: Path) -> None:
    folder, back = tmp_path / "rank", tmp_path / "back"
    folder.mkdir()
    gone = {DEV_BASE + CHUNK // 2: noise("freed", 300_000)}
    saved_image(folder, BUFFERS, gone)
    whole(folder)
    checkpoint = stored(store, {0: folder})
    parts = [checkpoint.part(0, name) for name in ("image/small", "image/buffers")]
    assert [part.rows for part in parts] == [2, 2]
    assert sorted(extent for part in parts for extent in checkpoint.extents(part)) == [
        (at, -(-len(data) // 512) * 512) for at, data in sorted(BUFFERS.items())
    ]
    snapshot.write(checkpoint, {0: back})
    for address, data in BUFFERS.items():
        assert content(back, address, len(data)) == data
    assert state(back) == state(folder)
    assert (back / "image").stat().st_size == (folder / "image").stat().st_size
    [(address, freed)] = gone.items()
    assert content(folder, address, 8192) == freed[:8192], "its bytes were removed"
    assert content(back, address, len(freed)) == bytes(len(freed))
    assert data_bytes(store) < sum(map(len, BUFFERS.values())) + 20_000


def test_bytes_written_just_behind_a_buffer_are_saved(store: Store, tmp_path: Path) -> None:
    """As far as the allocation reaches."""
    folder, back = tmp_path / "rank", tmp_path / "back"
    folder.mkdir()
    saved_image(folder, {DEV_BASE: noise("asked for", 10_001)}, {})
    beyond = noise("beyond", 10_240 - 10_001)
    with (folder / "image").open("r+b") as file:
        file.seek(10_001)
        file.write(beyond)
    whole(folder)
    snapshot.write(stored(store, {0: folder}), {0: back})
    assert content(back, DEV_BASE + 10_001, len(beyond)) == beyond


def test_a_buffer_that_replicas_share_is_stored_once(store: Store, tmp_path: Path) -> None:
    """The address may differ from rank to rank."""
    parameters = noise("parameters", 1_500_000)
    folders = {rank: tmp_path / str(rank) for rank in range(3)}
    for rank, folder in folders.items():
        folder.mkdir()
        saved_image(folder, {DEV_BASE + rank * 512: parameters}, {})
        whole(folder)
    checkpoint = stored(store, folders)
    assert data_bytes(store) < 1.02 * len(parameters)
    back = {rank: tmp_path / f"back/rank-{rank}" for rank in folders}
    snapshot.write(checkpoint, back)
    for rank, folder in back.items():
        assert content(folder, DEV_BASE + rank * 512, len(parameters)) == parameters


def test_content_that_is_in_host_memory_too_is_stored_once(store: Store, tmp_path: Path) -> None:
    """A batch that was copied from pages to a small buffer; all of its full pages are equal."""
    batch, folder = noise("batch", 15 * PAGE + 100), tmp_path / "rank"
    processes(folder, {**memory(), 0x7000_0000_0000: batch[: 15 * PAGE] + bytes(PAGE)})
    for buffers in ({}, {DEV_BASE: batch}):
        (folder / "image").unlink(missing_ok=True)
        saved_image(folder, buffers, {})
        whole(folder)
        before = data_bytes(store)
        checkpoint = stored(store, {0: folder})
    assert data_bytes(store) - before < 3 * PAGE, "the last page, and what names the others"
    snapshot.write(checkpoint, {0: tmp_path / "back"})
    assert content(tmp_path / "back", DEV_BASE, len(batch)) == batch
    assert files(tmp_path / "back/criu") == files(folder / "criu")


def test_content_that_ranks_share_is_in_the_first_image_only(store: Store, tmp_path: Path) -> None:
    """Adjacent shared buffers become one reference; the bytes between buffers belong to none.
    Checks large and small buffers."""
    at = [DEV_BASE + n * 65536 for n in range(4)]
    large = noise("large", 300 << 10)
    alike = {
        at[0]: noise(0, 65536),
        at[1]: noise(1, 65536),
        at[3]: noise(3, 65536),
        DEV_BASE + CHUNK: large,
    }
    folders = {rank: tmp_path / f"rank-{rank}" for rank in range(2)}
    for rank, folder in folders.items():
        folder.mkdir()
        saved_image(folder, {**alike, at[2]: noise(f"rank {rank}", 65536)}, {})
        whole(folder)
    back = {rank: tmp_path / f"back/rank-{rank}" for rank in folders}
    snapshot.write(stored(store, folders), back)
    assert image.noted(back[0] / "image") == []
    assert image.noted(back[1] / "image") == [
        Elsewhere(0, 2 * 65536, 0),
        Elsewhere(3 * 65536, 4 * 65536, 0),
        Elsewhere(CHUNK, CHUNK + len(large), 0),
    ]
    again = {rank: tmp_path / f"again/rank-{rank}" for rank in folders}
    snapshot.write(stored(opened(f"memory://again/{tmp_path}"), back), again)
    for rank, folder in (*back.items(), *again.items()):
        assert content(folder, at[2], 65536) == noise(f"rank {rank}", 65536)
        assert all(content(folder, address, len(data)) == data for address, data in alike.items())


def test_an_image_gets_its_name_while_a_reader_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the list of the folder and the look at what is in it."""
    part, find = tmp_path / "image.part", Path.glob
    part.write_bytes(b"half")

    def renamed(self: Path, pattern: str) -> Iterator[Path]:
        found = list(find(self, pattern))
        part.rename(tmp_path / "image")
        return iter(found)

    monkeypatch.setattr(Path, "glob", renamed)
    lock = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        assert images_being_copied([tmp_path]) == {tmp_path: 0}
    finally:
        os.close(lock)
    assert images_being_copied([tmp_path]) == {}


def test_memory_that_was_never_written_takes_no_space(store: Store, tmp_path: Path) -> None:
    folder, back = tmp_path / "rank", tmp_path / "back"
    folder.mkdir()
    written = noise("written", 8192)
    client = DEV_BASE + 8 * CHUNK
    saved_image(folder, {client: written}, {}, empty=9 * CHUNK)
    whole(folder)
    checkpoint = stored(store, {0: folder})
    snapshot.write(checkpoint, {0: back})
    assert content(back, client, len(written)) == written
    assert content(back, client + 8192, 9 * CHUNK) == bytes(9 * CHUNK)
    assert (back / "image").stat().st_blocks * 512 < 200_000


def test_a_job_continues_from_the_store_to_the_same_bits(
    store: Store, tmp_path: Path, kernels: Loader
) -> None:
    clients = [Trainer(rank, RANKS) for rank in range(RANKS)]
    folders = {rank: tmp_path / f"rank-{rank}" for rank in range(RANKS)}
    with devices(kernels, 1) as here:
        here.place(1, clients, [0] * RANKS)
        begin(clients, 5)
        here.compute()
        here.stop(1)
        assert here.natives[0].job_save(1)
        here.saved(0)
        twins = twins_of(clients)
        for client in clients:
            folders[client.rank].mkdir()
            image_of(folders[client.rank], client.image)
            whole(folders[client.rank])
        here.continue_running(1, clients)
        for client in clients:
            for _ in range(5):
                client.step()
        undisturbed = [client.numbers() for client in clients]
        here.leave(1)
    back = {rank: tmp_path / f"back/rank-{rank}" for rank in range(RANKS)}
    snapshot.write(stored(store, folders), back)
    assert any(image.noted(folder / "image") for folder in back.values())
    for twin in twins:
        os.ftruncate(twin.image, 0)
        os.ftruncate(twin.image, 1 << 40)
        fill(back[twin.rank] / "image", twin.image)
        for part in image.noted(back[twin.rank] / "image"):
            with (back[part.rank] / "image").open("rb") as other:
                content = os.pread(other.fileno(), part.end - part.begin, part.begin)
            assert any(content)
            assert os.pread(twin.image, part.end - part.begin, part.begin) == content
    with devices(kernels, 1) as there:
        there.place(2, twins, [0] * RANKS)
        for twin in twins:
            for _ in range(5):
                twin.step()
        assert [twin.numbers() for twin in twins] == undisturbed
        there.leave(2)
    for each in (*clients, *twins):
        each.close()


def test_content_in_the_image_of_another_rank_is_stored_with_each(
    store: Store, tmp_path: Path, kernels: Loader
) -> None:
    folders = {rank: tmp_path / f"rank-{rank}" for rank in range(3)}
    with folded(kernels, 3) as (here, ranks):
        train_alike(ranks)
        here.stop(1)
        assert here.natives[0].job_save(1)
        here.saved(0)
        for rank in ranks:
            folders[rank.rank].mkdir()
            if rank.rank:
                os.pwrite(rank.image, b"of before", PARAMETERS - DEV_BASE)
            image_of(folders[rank.rank], rank.image)
            whole(folders[rank.rank])
        here.continue_running(1, ranks)
    back = {rank: tmp_path / "back" / f"rank-{rank}" for rank in range(3)}
    snapshot.write(stored(store, folders), back)
    once = Elsewhere(PARAMETERS - DEV_BASE, PARAMETERS - DEV_BASE + 4 * WORDS, 0)
    first = (PARAMETERS - DEV_BASE) // CHUNK * CHUNK
    for number, folder in back.items():
        with (folder / "image").open("rb") as now, (folders[number] / "image").open("rb") as then:
            assert read_image(now.fileno()).elsewhere == []
            there = Elsewhere(first, first + CHUNK, 0)
            assert (there in read_image(then.fileno()).elsewhere) == (number > 0)
            assert any(os.pread(then.fileno(), CHUNK, first)) == (number == 0)
        for at, expected in zip((PARAMETERS, MOMENTS), trained(3, STEPS), strict=True):
            assert content(folder, at, 4 * WORDS) == struct.pack(f"<{WORDS}I", *expected)
        with (folder / "image").open("rb") as now:
            assert any(os.pread(now.fileno(), 4 * WORDS, once.begin)) == (number == 0)
        noted = image.noted(folder / "image")
        held = any(e.begin <= once.begin and once.end <= e.end and e.rank == 0 for e in noted)
        assert held == (number > 0), "what all hold is written for the first"
    again = stored(store, back)
    for number in back:
        part = again.part(number, "image/buffers")
        assert part == store.checkpoint("gpt", Id(1, 1)).part(number, "image/buffers")
        assert part.rows > 0
    alone = opened(f"memory://alone/{tmp_path}")
    snapshot.write(stored(alone, {2: folders[2]}), {2: tmp_path / "alone"})
    for at, expected in zip((PARAMETERS, MOMENTS), trained(3, STEPS), strict=True):
        assert content(tmp_path / "alone", at, 4 * WORDS) == struct.pack(f"<{WORDS}I", *expected)
    shutil.rmtree(folders[0])
    with pytest.raises(Unfit, match="rank-0: has no image, and that image also has memory"):
        stored(store, {2: folders[2]})


def test_known_content_is_named_by_its_key(tmp_path: Path) -> None:
    """The name contains the offset in the chunk; unknown content is named by its image and its
    offset there."""
    seen = Image([], 0, frozenset(), [], {0: b"a", 2: b"a", 3: b"b"})
    names, others = (_namer(seen, tmp_path / name, 0) for name in ("rank-0", "rank-1"))
    assert names(10, 20) == names(2 * CHUNK + 10, 20) == others(10, 20)
    assert len({names(at, 20) for at in (10, 11, CHUNK + 10, 3 * CHUNK + 10)}) == 4
    assert names(10, 20) != names(10, 21)
    assert names(CHUNK + 10, 20) != others(CHUNK + 10, 20)
    assert names(CHUNK - 5, 10) == (
        (b"a", CHUNK - 5, CHUNK),
        (tmp_path / "rank-0", CHUNK, CHUNK + 5),
    )


@pytest.mark.parametrize("shares", [True, False])
def test_equal_content_on_two_devices_is_read_once(
    store: Store, tmp_path: Path, kernels: Loader, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    """The proxies know equal content by its versions. A rank's own content is read separately, and
    so is all content if versions are not trusted."""
    folders = {rank: tmp_path / f"rank-{rank}" for rank in range(2)}
    ranks = [Computing(rank, 2, VARIABLES) for rank in range(2)]
    with devices(kernels, 2, share=shares) as here:
        here.place(1, ranks, [0, 1])
        for rank in ranks:
            rank.load(HOMES, 2 * CHUNK)
        assert [rank.finish() for rank in ranks] == [0, 0]
        begin_alike(ranks)
        for step in range(STEPS):
            for rank in ranks:
                train(rank, step)
            sync(ranks)
        here.stop(1)
        assert all(native.job_save(1) for native in here.natives)
        here.saved(0)
        for rank in ranks:
            folders[rank.rank].mkdir()
            image_of(folders[rank.rank], rank.image)
            whole(folders[rank.rank])
        here.continue_running(1, ranks)
        here.leave(1)
    read, find = list[int](), _reader

    def counted(found: Image, files: Any, start: int) -> Callable[[int, int], bytes]:
        reads = find(found, files, start)

        def one(at: int, length: int) -> bytes:
            read.append(DEV_BASE + start + at)
            return reads(at, length)

        return one

    monkeypatch.setattr("rankfold.checkpoint.snapshot.folder._reader", counted)
    back = {rank: tmp_path / f"back/rank-{rank}" for rank in folders}
    snapshot.write(stored(store, folders), back)
    for at, home in zip((PARAMETERS, MOMENTS, OWN), (*HOMES[:2], HOMES[3]), strict=True):
        times = 1 if shares and at != OWN else 2
        assert read.count(home) == times, hex(at)
        for number, folder in folders.items():
            assert content(back[number], home, 2 * CHUNK) == content(folder, home, 2 * CHUNK)
    for at, expected in zip((PARAMETERS, MOMENTS), trained(2, STEPS), strict=True):
        assert content(back[1], at, 4 * WORDS) == struct.pack(f"<{WORDS}I", *expected)
    for rank in ranks:
        rank.close()


@given(
    parts=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9), st.integers(0, 3)), max_size=6),
    begin=st.integers(0, 60),
    size=st.integers(1, 60),
)
def test_each_byte_is_read_where_it_is_stored(
    parts: list[tuple[int, int, int]], begin: int, size: int
) -> None:
    """Parts of any size, which may touch; `parts`: a gap, bytes, a rank."""
    at, elsewhere, owner = 0, [], dict[int, int]()
    for gap, length, rank in parts:
        elsewhere.append(Elsewhere(at + gap, at + gap + length, rank))
        at += gap + length
        owner |= dict.fromkeys(range(at - length, at), rank)
    found = list(Image([], 0, frozenset(), elsewhere, {}).pieces(begin, begin + size))
    assert [first for _, first, _ in found] == [begin, *(last for *_, last in found)][: len(found)]
    assert sum(last - first for _, first, last in found) == size
    for who, first, last in found:
        assert first < last
        assert {owner.get(byte) for byte in range(first, last)} == {who}
    # The same place for who has it there, and for who has it in that one's image.
    by_rank = groupby(range(begin, begin + size), lambda byte: owner.get(byte, 0))
    runs = [(Path(f"rank-{rank}"), list(run)) for rank, run in by_rank]
    expected = tuple((path, run[0], run[-1] + 1) for path, run in runs)
    whole = [Elsewhere(byte, byte + 1, owner.get(byte, 0)) for byte in range(begin, begin + size)]
    for viewer, other in ((0, elsewhere), (5, whole)):
        seen = Image([], 0, frozenset(), other, {})
        assert _namer(seen, Path(f"rank-{viewer}"), begin)(0, size) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[[0, 4096]]",
        "[[0, 4096, 1], [2048, 8192, 1]]",
        "[[4096, 4096, 1]]",
        '{"0": 1}',
        "[[-4096, 0, 1]]",
        "[[0, 549755817984, 1]]",
        "[[0, 4096, -1]]",
        '[["a", "b", "c"]]',
    ],
)
def test_a_note_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    saved_image(tmp_path, BUFFERS, {})
    whole(tmp_path)
    (tmp_path / image.NOTE).write_text(text)
    with pytest.raises(Unfit, match=r"image: has an image\.elsewhere"):
        Snapshot(tmp_path)


# ---- what is refused ---------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "rank"
    processes(made, memory())
    saved_image(made, BUFFERS, {})
    whole(made)
    yield made


def test_a_snapshot_that_is_not_whole_is_refused(folder: Path) -> None:
    (folder / "about.json").unlink()
    with pytest.raises(Unfit, match=r"rank: has no about.json: the snapshot is incomplete; save"):
        Snapshot(folder)
    (folder / "about.json").write_text("{")
    with pytest.raises(Unfit, match=r"about.json: is not JSON"):
        Snapshot(folder)


def test_pages_that_are_cut_off_are_refused(folder: Path) -> None:
    os.truncate(folder / "criu/pages-1.img", 3 * PAGE)
    with pytest.raises(Unfit, match=r"criu/pages-1.img: has 12288 bytes, and criu/pagemap-17.img "):
        Snapshot(folder)
    (folder / "criu/pages-1.img").unlink()
    with pytest.raises(Unfit, match="is not named by anything else"):
        Snapshot(folder)


def test_an_image_that_is_cut_off_is_refused(folder: Path) -> None:
    """Its state is what is at its end: it would be that of a rank that has saved nothing."""
    about = json.loads((folder / "about.json").read_text()) | {"image_bytes": 1 << 40}
    (folder / "about.json").write_text(json.dumps(about))
    Snapshot(folder)
    os.truncate(folder / "image", 1 << 39)
    with pytest.raises(Unfit, match=r"image: has 549755813888 bytes, not 1099511627776"):
        Snapshot(folder)


def test_names_that_are_no_files_are_refused(folder: Path) -> None:
    (folder / "criu/parent").symlink_to("/")
    with pytest.raises(Unfit, match=r"criu/parent: is neither a file nor a folder"):
        Snapshot(folder)


@pytest.mark.parametrize(
    ("at", "what"),
    [
        (8, "has no saved state of version"),
        (12, "names 0 chunks of other ranks, not"),
        (16, "has a saved state of"),
        (32, "no record at"),
        (36, "no record at"),
    ],
)
def test_a_state_that_no_proxy_wrote_is_refused(folder: Path, at: int, what: str) -> None:
    with (folder / "image").open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff" * 8, (1 << 39) + at)
    with pytest.raises(Unfit, match=what):
        Snapshot(folder)


def test_a_rank_that_has_saved_nothing_yet(store: Store, tmp_path: Path) -> None:
    folder, back = tmp_path / "rank", tmp_path / "back"
    folder.mkdir()
    client = RingClient()
    image_of(folder, client.image)
    client.close()
    whole(folder)
    snapshot.write(stored(store, {0: folder}), {0: back})
    assert (back / "image").stat().st_size == 1 << 40 and not (back / "image").stat().st_blocks


def test_parts_that_lead_elsewhere_are_refused(store: Store, tmp_path: Path) -> None:
    for name in ("../outside", "/outside", "criu/../../outside"):
        save = store.begin("gpt", 1)
        save.blob(0, name, [b"1"])
        save.blob(0, "about.json", [b"{}"])
        checkpoint = store.checkpoint("gpt", save.finish().id)
        with pytest.raises(Unfit, match="not the name of a file in a folder"):
            snapshot.write(checkpoint, {0: tmp_path / "back"})
    assert not (tmp_path / "outside").exists()


def test_a_rank_that_a_checkpoint_lacks_is_named(store: Store, folder: Path) -> None:
    checkpoint = stored(store, {0: folder})
    with pytest.raises(Unfit, match="has no snapshot of rank 1; restore another checkpoint"):
        snapshot.write(checkpoint, {0: folder / "back", 1: folder / "other"})
    assert not (folder / "back").exists()
