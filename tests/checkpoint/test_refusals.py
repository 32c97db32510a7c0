"""Promise: each refusal names the URL, the object and the remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from blake3 import blake3

from rankfold.checkpoint import store as stores
from rankfold.checkpoint.store import Damaged, Id, Missing, OldIncarnation, Refused, Unavailable
from rankfold.checkpoint.store.documents import seal
from support.checkpoints import example, opened, restored, saved

pytestmark = pytest.mark.unit


def resealed(file: Path, **fields: object) -> None:
    """Writes a document anew as a person would who changes it on purpose."""
    document = {**json.loads(file.read_text()), **fields}
    document.pop("digest")
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    file.write_text(json.dumps({**document, "digest": blake3(text).hexdigest()}))


def test_another_fleet_s_store(tmp_path: Path) -> None:
    stores.open(str(tmp_path / "s"), "one")
    with pytest.raises(Refused, match=f"{tmp_path}/s: .*fleet 'one', this is 'other'; give each"):
        stores.open(str(tmp_path / "s"), "other")
    assert stores.open_existing(str(tmp_path / "s")).fleet == "one"


def test_a_folder_with_other_things(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(Refused, match="contains other files"):
        stores.open(str(tmp_path), "fleet")
    assert [each.name for each in tmp_path.iterdir()] == ["photos"]
    (tmp_path / "store.json").write_text('{"name": "a shop"}')
    with pytest.raises(Refused, match=r"store.json: was not written by rankfold; name another"):
        stores.open(str(tmp_path), "fleet")


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="has no checkpoints"):
        stores.open_existing(str(tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    with pytest.raises(Unavailable, match="nosuchkind"):
        stores.open("nosuchkind://there", "fleet")
    (tmp_path / "file").write_text("")
    with pytest.raises((Unavailable, Missing), match="file"):
        stores.open(str(tmp_path / "file" / "s"), "fleet")


def test_a_newer_format(tmp_path: Path) -> None:
    store = opened(str(tmp_path))
    for _ in range(3):
        manifest = saved(store, "gpt", 1, example(1))
    file = tmp_path / f"jobs/gpt/manifests/{manifest.id}.json"
    resealed(file, version=4)
    with pytest.raises(Refused, match=r"1-3.json: has version 4 of the format.* use the newer"):
        store.checkpoint("gpt", manifest.id)
    newest = store.newest("gpt")
    assert newest.checkpoint and newest.checkpoint.manifest.id == Id(1, 2)
    assert [each.id for each in newest.skipped] == [manifest.id]
    before = store.data("gpt")
    with pytest.raises(Refused, match="nothing was removed; collect with the newer"):
        store.collect("gpt", 1)
    assert store.data("gpt") == before and len(store.checkpoints("gpt")) == 3
    resealed(tmp_path / "store.json", version=4)
    with pytest.raises(Refused, match="newer"):
        stores.open(str(tmp_path), "fleet")


def test_an_older_format(tmp_path: Path) -> None:
    """A store of the older format has no differences; a newer rankfold continues with it."""
    store = opened(str(tmp_path))
    first = saved(store, "gpt", 1, example(1)).id
    for file in tmp_path.rglob("*.json"):
        resealed(file, version=1)
    store = opened(str(tmp_path))
    assert restored(store.checkpoint("gpt", first)) == example(1)
    second = saved(store, "gpt", 1, example(2))
    assert second.base == first and restored(store.checkpoint("gpt", second.id)) == example(2)


@pytest.mark.parametrize(
    ("written", "harmed"), [('"version":3', '"version":6'), ("-check", "-chick")]
)
def test_a_flipped_bit_makes_nothing_newer(tmp_path: Path, written: str, harmed: str) -> None:
    """A newer store, or another owner's, is refused: its files would never be collected."""
    store = opened(str(tmp_path))
    for _ in range(3):
        manifest = saved(store, "gpt", 1, example(1))
    file = tmp_path / "jobs/gpt/manifests/1-1.json"
    file.write_text(file.read_text().replace(written, harmed))
    with pytest.raises(Damaged):
        store.checkpoint("gpt", Id(1, 1))
    assert store.collect("gpt", 1).checkpoints == (Id(1, 2), Id(1, 1))
    assert store.checkpoints("gpt") == [manifest.id]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("kind", "claim", "kind"),
        ("id", "1-9", "is the manifest of 1-9"),
        ("job", "other", "other"),
        ("parts", "none", "parts"),
        ("more", 1, "more"),
        ("sources", {"../../etc": {}}, "sources"),
    ],
)
def test_a_manifest_that_the_schema_does_not_allow(
    tmp_path: Path, field: str, value: object, said: str
) -> None:
    store = opened(str(tmp_path))
    manifest = saved(store, "gpt", 1, example(1))
    resealed(tmp_path / "jobs/gpt/manifests/1-1.json", **{field: value})
    with pytest.raises(Damaged, match=said):
        store.checkpoint("gpt", manifest.id)


def test_a_digest_that_is_another_documents(tmp_path: Path) -> None:
    store = opened(str(tmp_path))
    saved(store, "gpt", 1, example(1))
    file = tmp_path / "jobs/gpt/manifests/1-1.json"
    file.write_text(file.read_text().replace('"step":1', '"step":2'))
    with pytest.raises(Damaged, match="does not have the digest that it names"):
        store.checkpoint("gpt", Id(1, 1))


def test_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    store = opened(str(tmp_path))
    saved(store, "gpt", 1, example(1))
    with pytest.raises(Missing, match="gpt has no checkpoint 1-7; it has: 1-1"):
        store.checkpoint("gpt", Id(1, 7))
    with pytest.raises(Missing, match="restore another"):
        store.begin_incarnation("gpt", 2, Id(1, 7))
    with pytest.raises(Refused, match="not a valid job name"):
        store.checkpoints("../up")


def test_incarnations(tmp_path: Path) -> None:
    store = stores.open(str(tmp_path), "fleet")
    with pytest.raises(
        Refused, match="incarnation 1 of gpt has not been begun; take the job first"
    ):
        store.begin("gpt", 1)
    store.begin_incarnation("gpt", 1, owner="here")
    save = store.begin("gpt", 1)
    assert store.begin_incarnation("gpt", 1, owner="here").incarnation == 1, "asked again"
    with pytest.raises(Refused, match="has been begun by here"):
        store.begin_incarnation("gpt", 1, owner="there")
    store.begin_incarnation("gpt", 3, owner="there")
    message = (
        "gpt continues as incarnation 3, begun by there; incarnation 1 has ended; kill its "
        "remaining processes"
    )
    for refused in (
        lambda: store.begin("gpt", 1),
        save.finish,
        lambda: store.begin_incarnation("gpt", 2, owner="here"),
    ):
        with pytest.raises(OldIncarnation, match=message.replace("1 has ended", "[12] has ended")):
            refused()
    assert not list(tmp_path.glob("jobs/gpt/manifests/*"))


def test_a_job_is_taken_over_by_who_begins_it_after_what_its_owner_knew(tmp_path: Path) -> None:
    """Whatever number that one has come to meanwhile, and not by itself."""
    store = opened(str(tmp_path))
    store.begin_incarnation("gpt", 2, owner="here")
    store.refuse_taken_over("gpt", 1, "here")
    store.refuse_taken_over("gpt", 2, "there")
    with pytest.raises(OldIncarnation, match="continues as incarnation 2, begun by here; leave it"):
        store.refuse_taken_over("gpt", 1, "there")
    store.refuse_taken_over("gpt", 0, "there")
    store.refuse_taken_over("other", 1, "there")


def test_late_writes_of_an_old_incarnation_do_not_count(tmp_path: Path) -> None:
    """It was asked before the new one began, and writes its manifest afterwards."""
    store = opened(str(tmp_path))
    manifest = saved(store, "gpt", 1, example(1))
    store.begin_incarnation("gpt", 2, manifest.id)
    late = tmp_path / "jobs/gpt/manifests/1-2.json"
    late.write_bytes((tmp_path / "jobs/gpt/manifests/1-1.json").read_bytes())
    resealed(late, id="1-2")
    assert store.checkpoints("gpt") == [manifest.id]
    newest = store.newest("gpt").checkpoint
    assert newest and newest.manifest.id == manifest.id
    assert store.collect("gpt", 3).checkpoints == (Id(1, 2),)
    assert not late.exists()


def test_a_save_is_given_up(tmp_path: Path) -> None:
    store = opened(str(tmp_path))
    save = store.begin("gpt", 1)
    example(1, kib=3000).add_to(save)
    save.abandon()
    assert store.data("gpt")
    again = store.begin("gpt", 1)
    assert not again.resumed and again.id != save.id
    store.collect("gpt", 1)
    assert not store.data("gpt")
    assert not list(tmp_path.glob("jobs/gpt/data/*")), "no empty folder stays"
    with pytest.raises(Refused):
        save.finish()


def test_a_document_of_ours_is_allowed_by_the_schema() -> None:
    with pytest.raises(ValueError, match="fleet"):
        seal("root", fleet="")


def test_damaged_records_are_named(tmp_path: Path) -> None:
    store = opened(str(tmp_path))
    saved(store, "gpt", 1, example(1))
    claim = tmp_path / "jobs/gpt/claims/1-1.json"
    claim.write_text(claim.read_text()[:-5])
    with pytest.raises(Damaged, match=r"claims/1-1.json.*nothing was removed; the next save"):
        store.collect("gpt", 1)
    saved(store, "gpt", 1, example(2))
    assert len(store.collect("gpt", 1).checkpoints) == 1
    life = tmp_path / "jobs/gpt/incarnations/1.json"
    life.write_text("{}")
    with pytest.raises(Damaged, match=r"incarnations/1.json"):
        store.begin("gpt", 1)
    store.begin_incarnation("gpt", 2, None)
    assert store.begin("gpt", 2).id.incarnation == 2
