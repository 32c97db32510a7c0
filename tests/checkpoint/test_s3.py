"""A store on S3, against a server that speaks its protocol."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rankfold.checkpoint import store as stores
from rankfold.checkpoint.store import Full, Refused, Unavailable
from rankfold.checkpoint.store.files import connect
from support import s3
from support.checkpoints import DEVICE, Content, example, noise, opened, restored, saved


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    with s3.server() as found:
        yield found


@pytest.mark.slow
def test_checkpoints_on_s3(options: dict[str, Any]) -> None:
    url = "s3://bucket/some/checkpoints"
    store = opened(url, **options)
    contents = [example(n, kib=2000) for n in range(2)]
    ids = [saved(store, "gpt", 1, each).id for each in contents]
    again = stores.open(url, "fleet", options=options)
    for each, content in zip(ids, contents, strict=True):
        checkpoint = again.checkpoint("gpt", each)
        assert checkpoint.verify() == [] and restored(checkpoint) == content
    with pytest.raises(Refused, match="fleet 'fleet', this is 'other'"):
        stores.open(url, "other", options=options)
    assert again.collect("gpt", 1).checkpoints == tuple(reversed(ids[:-1]))
    assert again.checkpoint("gpt", ids[-1]).verify() == []
    assert again.data("gpt") == again.manifest("gpt", ids[-1]).files


def test_trying_to_write_leaves_nothing(options: dict[str, Any]) -> None:
    store = stores.open("s3://bucket/tried", "fleet", options=options)
    store.files.create("probe/of one that was killed", b"")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: store.need_writable(), range(8)))
    assert list(store.files.below("")) == ["store.json"] and store.jobs() == []


def test_an_interrupted_save_continues_on_s3(options: dict[str, Any]) -> None:
    store = opened("s3://bucket/interrupted", **options)
    content = Content({rank: {DEVICE: noise(rank, 1 << 20)} for rank in range(4)})
    save = store.begin("gpt", 1)
    Content({0: content.buffers[0], 1: content.buffers[1]}).add_to(save)
    save._drain()
    save = stores.open("s3://bucket/interrupted", "fleet", options=options).begin("gpt", 1)
    content.add_to(save)
    manifest = save.finish()
    assert save.resumed and restored(store.checkpoint("gpt", manifest.id)) == content
    assert 2 << 20 <= save.progress.uploaded < 3 << 20


def test_one_of_several_makes_a_file(options: dict[str, Any]) -> None:
    """S3 decides: PUT with If-None-Match."""
    files = [connect("s3://bucket/race", options) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: files[n].create("one", b"%d" % n), range(4)))
    assert sorted(made) == [False, False, False, True]
    assert files[0].get("one") == b"%d" % made.index(True)
    assert files[0].below("") == {"one": 1} and files[0].below("none") == {}


@pytest.mark.slow
def test_an_answer_that_is_lost_is_no_other_uploader(options: dict[str, Any]) -> None:
    """A caller that writes the manifest again finds its own one there."""
    line = s3.Line(options["endpoint_url"])
    try:
        store = opened("s3://bucket/lost", **{**options, "endpoint_url": line.url})
        for number, lost in enumerate((b"claims", b"manifests"), 1):
            line.loses = b"PUT /bucket/lost/jobs/gpt/" + lost
            content = example(number)
            manifest = saved(store, "gpt", 1, content)
            assert not line.loses
            assert restored(store.checkpoint("gpt", manifest.id)) == content
    finally:
        line.close()


def test_a_server_that_is_gone(options: dict[str, Any]) -> None:
    store = opened("s3://bucket/gone", **options)
    save = store.begin("gpt", 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    store.files.fs = connect("s3://bucket/gone", {**options, "endpoint_url": nobody}).fs
    store.files.fs.retries = 1  # it waits longer before each
    with pytest.raises(Unavailable, match="s3://bucket/gone") as raised:
        example(1).add_to(save)
        save.finish()
    assert not isinstance(raised.value, Full) and "save again" in str(raised.value)
    with pytest.raises(Unavailable, match="s3://bucket/gone"):
        store.checkpoints("gpt")
    missing = {**options, "key": "k"}
    with pytest.raises(stores.StoreError, match="no-such-bucket"):
        stores.open("s3://no-such-bucket/x", "fleet", options=missing).begin_incarnation("gpt", 1)
