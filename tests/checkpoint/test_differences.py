"""Promise: slightly changed content is stored as its difference from the previous content, and
restored unchanged."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankfold.checkpoint import store as stores
from rankfold.checkpoint.store import Checkpoint, Damaged, Manifest, Store, units
from rankfold.checkpoint.store.manifest import PackUse
from rankfold.checkpoint.store.names import Place
from rankfold.checkpoint.store.units import PAGE, Malformed, PackIndex
from support.checkpoints import HOST, Content, edited, noise, opened, restored, saved
from support.faulty import Disk

pytestmark = pytest.mark.unit

PAGES = 40
EDIT = 600  # bytes that an edited page adds, its list and its table with it: most are digests


def content(*edits: int) -> Content:
    """So many pages of noise, some of them edited; and bytes of no constant length."""
    pages = {HOST + n * PAGE: edited(n, edits[n] if n < len(edits) else 0) for n in range(PAGES)}
    log = noise("log", 5000) + bytes(len(edits))
    return Content({}, {0: pages, 1: pages}, {"log": log})


def indexes(store: Store, manifest: Manifest) -> dict[Place, PackIndex]:
    found = {}
    for place in manifest.packs:
        data = store.files.get(f"jobs/gpt/data/{place.name}")
        found[place] = units.decode_index(bytes.fromhex(place.digest), data)
    return found


def of_differences(store: Store, manifest: Manifest) -> list[PackIndex]:
    """Its packs of differences; what they refer to is there, itself."""
    found = indexes(store, manifest)
    there = {unit for index in found.values() if not index.references for unit in index.units}
    differences = [index for index in found.values() if index.references]
    for index in differences:
        assert there.issuperset(index.references)
    return differences


def data_bytes(store: Store) -> int:
    return sum(store.data("gpt").values())


def harm_first_page(store: Store, manifest: Manifest) -> Place:
    """In the pack, which is not compressed."""
    [(place, index)] = [
        (place, index) for place, index in indexes(store, manifest).items() if index.raw % PAGE == 0
    ]
    file = Path(store.url, "jobs/gpt/data", place.name)
    data = bytearray(file.read_bytes())
    assert not index.coded
    data[index.start] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)
    return place


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return opened(str(tmp_path / "store"))


def test_a_page_that_was_edited_takes_little(store: Store) -> None:
    saved(store, "gpt", 1, content())
    manifests = {}
    for n in range(1, 12):
        before = data_bytes(store)
        manifest = saved(store, "gpt", 1, content(n, n))
        assert 0 < data_bytes(store) - before < 2 * EDIT
        assert of_differences(store, manifest)
        [used] = [use.used for use in manifest.packs.values() if use.rows == PAGES]
        assert used == PAGES * PAGE, "the page is needed, though as a reference"
        manifests[n] = manifest
    for n, manifest in manifests.items():
        checkpoint = store.checkpoint("gpt", manifest.id)
        assert checkpoint.verify() == [] and restored(checkpoint) == content(n, n)


def test_references_of_differences_are_kept(store: Store) -> None:
    saved(store, "gpt", 1, content())
    for n in range(1, 12):
        manifest = saved(store, "gpt", 1, content(*range(n)))
        store.collect("gpt", 1)
        assert store.data("gpt") == manifest.files
        checkpoint = store.checkpoint("gpt", manifest.id)
        assert checkpoint.verify() == [] and restored(checkpoint) == content(*range(n))


def test_a_pack_is_kept_with_all_that_it_refers_to(store: Store) -> None:
    """The pack's references include units that no checkpoint needs any more, because a check reads
    all of the pack."""
    for pages in ({0: 0}, {0: 0, 1: 0}, {0: 1, 1: 1}, {1: 1}):
        content = Content({}, {0: {HOST + n * PAGE: edited(n, seed) for n, seed in pages.items()}})
        manifest = saved(store, "gpt", 1, content)
        if pages == {0: 1, 1: 1}:
            used = [use.used for use in manifest.packs.values() if use.raw == PAGE]
            assert used == [PAGE, PAGE], "as references"
    store.collect("gpt", 1)
    assert store.data("gpt") == manifest.files
    checkpoint = store.checkpoint("gpt", manifest.id)
    assert checkpoint.verify() == [] and restored(checkpoint) == content


def test_content_that_returns_is_found(store: Store) -> None:
    for edits in ((), (1,), (2,)):
        saved(store, "gpt", 1, content(*edits))
    before = data_bytes(store)
    manifest = saved(store, "gpt", 1, content(2))
    assert data_bytes(store) == before
    assert [use.used for use in manifest.packs.values() if use.rows == PAGES] == [PAGES * PAGE]
    store.collect("gpt", 1)
    assert restored(store.checkpoint("gpt", manifest.id)) == content(2)
    manifest = saved(store, "gpt", 1, content(3, 2))  # while nothing knows of the first page's 1
    assert restored(store.checkpoint("gpt", manifest.id)) == content(3, 2)


def test_a_unit_that_differs_much_is_stored_whole(store: Store) -> None:
    """A later edit differs from the unit that was stored whole."""
    page, whole = bytearray(noise("first", PAGE)), 0
    for n in range(16):
        page[n * PAGE // 16 : (n + 1) * PAGE // 16] = noise(n, PAGE // 16)
        before = data_bytes(store)
        manifest = saved(store, "gpt", 1, Content({}, {0: {HOST: bytes(page)}}))
        assert store.checkpoint("gpt", manifest.id).verify() == []
        whole += data_bytes(store) - before > PAGE
    assert whole == 4, "each fifth: a quarter of all bytes at most have changed"


def test_a_difference_from_an_abandoned_pack_is_stored_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankfold.checkpoint.store.store.SPARE_BYTES", 0)
    first = saved(store, "gpt", 1, content())
    for _ in range(3):
        manifest = saved(store, "gpt", 1, Content({}, {0: {HOST: edited(0, 1)}}))
        of_differences(store, manifest)
        assert store.checkpoint("gpt", manifest.id).verify() == []
    assert not manifest.packs.keys() & first.packs.keys()


@pytest.mark.slow
def test_packs_that_are_nearly_empty_are_not_referred_to(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankfold.checkpoint.store.store.SPARE_BYTES", 0)
    saved(store, "gpt", 1, content())
    dropped = 0
    for n in range(1, PAGES):
        pages = {HOST + m * PAGE: edited(m, n if m % 7 == n % 7 else 0) for m in range(n, PAGES)}
        before = store.manifest("gpt", store.checkpoints("gpt")[-1]).packs
        manifest = saved(store, "gpt", 1, Content({}, {0: pages}))
        dropped += bool(before.keys() - manifest.packs.keys())
        checkpoint = store.checkpoint("gpt", manifest.id)
        assert checkpoint.verify() == [] and restored(checkpoint).pages[0] == pages
        of_differences(store, manifest)
        store.collect("gpt", 1)
    assert dropped


def test_a_reader_reads_no_more_than_is_worth_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(store, "gpt", 1, content())
    monkeypatch.setattr("rankfold.checkpoint.store.predecessor.READ_BYTES_MAX", -1)
    manifest = saved(store, "gpt", 1, content(1))
    assert not of_differences(store, manifest)
    assert restored(store.checkpoint("gpt", manifest.id)) == content(1)


def test_unreadable_references_are_not_used() -> None:
    disk = Disk()
    store = stores.open("faulty://s", "fleet", options=disk.option())
    store.begin_incarnation("gpt", 1)
    saved(store, "gpt", 1, content(), workers=0)
    save = store.begin("gpt", 1, workers=0)

    def before(operation: str, path: str) -> None:
        if operation == "get" and "/data/" in path:
            raise OSError(errno.EIO, "Input/output error")

    disk.before = before
    content(1).add_to(save)
    manifest = save.finish()
    disk.quiet()
    assert not of_differences(store, manifest)
    assert restored(store.checkpoint("gpt", manifest.id)) == content(1)


def test_nothing_differs_from_what_is_damaged(store: Store) -> None:
    """Though no rank has read it yet."""
    harm_first_page(store, saved(store, "gpt", 1, content()))
    manifest = saved(store, "gpt", 1, content(1))
    differing = {digest for index in of_differences(store, manifest) for digest, _ in index.units}
    assert units.digest_of(edited(0, 1)) not in differing


def test_the_file_with_the_reference_is_named(store: Store) -> None:
    first = saved(store, "gpt", 1, content())
    manifest = saved(store, "gpt", 1, content(1))
    checkpoint = store.checkpoint("gpt", manifest.id)
    place = harm_first_page(store, first)
    [fault] = checkpoint.verify()
    assert fault.place == place and "memory of rank 0, memory of rank 1" in fault.reason
    with pytest.raises(Damaged, match=place.name):
        restored(checkpoint)
    newest = store.newest("gpt")
    assert newest.checkpoint is None and len(newest.skipped) == 2
    assert store.damaged("gpt") == {place}
    manifest = saved(store, "gpt", 1, content(2))
    assert store.checkpoint("gpt", manifest.id).verify() == []


def test_the_ranks_that_need_a_reference_are_listed(store: Store) -> None:
    first, second = (
        saved(store, "gpt", 1, Content({}, {5: {HOST: edited(0, edit)}})) for edit in range(2)
    )
    place = harm_first_page(store, first)
    [fault] = store.checkpoint("gpt", second.id).verify()
    assert fault.place == place and "memory of rank 5" in fault.reason


def forged(store: Store, *packs: tuple[PackIndex, bytes]) -> Checkpoint:
    """A checkpoint of these packs."""
    manifest, named = saved(store, "gpt", 1, Content()), {}
    for index, file in packs:
        place = Place("1-1-00000000", "packs", index.digest.hex())
        store.files.create(f"jobs/gpt/data/{place.name}", file)
        named[place] = PackUse(index.size, index.rows, index.raw, 0)
    return Checkpoint(store.files, replace(manifest, packs=named))


def one(data: bytes, reference: bytes | None = None) -> tuple[PackIndex, bytes]:
    """A pack with one unit, which differs from that reference."""
    digest = units.digest_of(data)
    if reference is None:
        return units.encode_pack([(digest, data)])
    named = (units.digest_of(reference), len(reference))
    return units.encode_pack([(digest, units.difference(data, reference))], [named])


def test_a_reference_that_is_nowhere_is_a_fault(store: Store) -> None:
    """The fault is in the pack that names the reference. The test writes that pack again, with a
    name that is its digest."""
    saved(store, "gpt", 1, content())
    manifest = saved(store, "gpt", 1, content(1))
    place, index = next(
        (place, index)
        for place, index in indexes(store, manifest).items()
        if index.references and index.raw % PAGE == 0
    )
    raw = units.decode_pack(index, store.files.get(f"jobs/gpt/data/{place.name}"))
    differences = [(digest, bytes(data)) for digest, data in units.split_pack(index, raw)]
    forgery, file = units.encode_pack(differences, [(bytes(32), n) for _, n in index.references])
    at = place._replace(digest=forgery.digest.hex())
    store.files.create(f"jobs/gpt/data/{at.name}", file)
    packs = {each: use for each, use in manifest.packs.items() if each != place}
    packs[at] = PackUse(forgery.size, forgery.rows, forgery.raw, 0)
    [fault] = Checkpoint(store.files, replace(manifest, packs=packs)).verify()
    assert fault.place == at and "differs from one that none of its files contains" in fault.reason


def test_a_difference_of_a_difference_is_refused(store: Store) -> None:
    """A chain of references is refused, because reading it might never end."""
    checkpoint = forged(store, one(b"a", b"b"), one(b"b", b"a"))
    with pytest.raises(Damaged, match="differs from one that none of its files contains"):
        checkpoint.unit(units.digest_of(b"a"))


@pytest.mark.parametrize("last", [0, 1])
def test_a_unit_is_read_where_it_is_stored_whole(store: Store, last: int) -> None:
    """It may be what something else differs from."""
    packs = [one(b"abc"), one(b"abd", b"abc"), one(b"abd"), one(b"xbd", b"abd")]
    checkpoint = forged(store, *packs[:: 1 - 2 * last])
    assert bytes(checkpoint.unit(units.digest_of(b"xbd"))) == b"xbd"


def test_a_reference_of_another_length_is_refused(store: Store) -> None:
    index, file = one(b"abc", b"abcd")
    row = units._UNIT.pack(units.digest_of(b"abcd"), 3)
    head = file[: index.start - len(row)] + row
    forgery = index._replace(digest=units.digest_of(head))
    checkpoint = forged(store, one(b"abcd"), (forgery, head + file[index.start :]))
    with pytest.raises(Damaged, match="differs from one that none of its files contains"):
        checkpoint.unit(units.digest_of(b"abc"))


@given(st.binary(min_size=1, max_size=100), st.binary(max_size=100))
def test_the_difference_of_a_difference_is_what_it_was(data: bytes, reference: bytes) -> None:
    found = units.difference(data, reference)
    assert len(found) == len(data) and units.difference(found, reference) == data
    assert units.difference(data, data) == bytes(len(data))


@given(
    st.lists(
        st.tuples(st.binary(min_size=32, max_size=32), st.binary(min_size=1, max_size=9)),
        min_size=1,
        max_size=5,
    )
)
def test_an_index_says_what_each_unit_differs_from(given: list[tuple[bytes, bytes]]) -> None:
    references = [(digest[::-1], n) for n, (digest, _) in enumerate(given)]
    for each in ([], references):
        index, file = units.encode_pack(given, each)
        assert units.decode_index(index.digest, file) == index
        assert index.rows == len(given) + len(each) and list(index.references) == each
        assert units.decode_pack(index, file) == b"".join(data for _, data in given)
    odd = bytearray(units.encode_pack([given[0]])[1])
    odd[12] |= 2  # a pack of differences with one row
    head = bytes(odd[: units.header_bytes(1)])
    with pytest.raises(Malformed):
        units.decode_index(units.digest_of(head), head)
