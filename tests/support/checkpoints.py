"""Stores of checkpoints for tests: contents to save, and what was restored of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from rankfold.checkpoint import store as stores
from rankfold.checkpoint.store import Buffer, Checkpoint, Manifest, Save, Store
from rankfold.checkpoint.store.units import PAGE

DEVICE = 0x2000_0000_0000
HOST = 0x7000_0000_0000


def noise(seed: object, length: int) -> bytes:
    return random.Random(repr(seed)).randbytes(length)


def edited(number: int, seed: object) -> bytes:
    """A page that differs little from others of its number."""
    page = bytearray(noise(("page", number), PAGE))
    page[1000:1008] = noise(("edit", seed), 8)
    return bytes(page)


@dataclass
class Content:
    """The content of a job's ranks: device buffers and host pages by address, and named bytes."""

    buffers: dict[int, dict[int, bytes]] = field(default_factory=dict)
    pages: dict[int, dict[int, bytes]] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)

    def add_to(self, save: Save) -> None:
        for rank, buffers in self.buffers.items():
            save.buffers(
                rank, "device", [reading(address, data) for address, data in buffers.items()]
            )
        for rank, pages in self.pages.items():
            save.pages(rank, "memory", pages.items())
        for name, data in self.blobs.items():
            save.blob(None, name, [data[:1000], data[1000:]])


def reading(address: int, data: bytes) -> Buffer:
    return Buffer(address, len(data), lambda at, length: data[at : at + length])


def example(seed: object, ranks: int = 2, kib: int = 64) -> Content:
    """Parameters that replicas share, and what each rank has alone."""
    shared = noise(("shared", seed), kib << 10)
    return Content(
        {
            rank: {DEVICE: shared, DEVICE + (1 << 30): noise((rank, seed), 5000)}
            for rank in range(ranks)
        },
        {
            rank: {
                HOST + n * 3 * PAGE: noise((rank, n, seed if n % 7 == 0 else 0), 64) * 64
                for n in range(40)
            }
            for rank in range(ranks)
        },
        {"core": noise(("core", seed), 3000)},
    )


def restored(checkpoint: Checkpoint) -> Content:
    """Reads all of a checkpoint, and puts it together again."""
    content = Content()
    for part in checkpoint.parts:
        found = {address: bytearray(length) for address, length in checkpoint.extents(part)}
        starts = sorted(found)
        for address, data in checkpoint.read(part):
            start = max(s for s in starts if s <= address)
            found[start][address - start : address - start + len(data)] = data
        if part.kind == "blob":
            content.blobs[part.name] = bytes(found.get(0, b""))
            continue
        assert part.rank is not None
        if part.kind == "buffers":
            content.buffers[part.rank] = {address: bytes(data) for address, data in found.items()}
        else:
            content.pages[part.rank] = {
                address + n: bytes(data[n : n + PAGE])
                for address, data in found.items()
                for n in range(0, len(data), PAGE)
            }
    return content


def saved(store: Store, job: str, incarnation: int, content: Content, **more: Any) -> Manifest:
    save = store.begin(job, incarnation, **more)
    content.add_to(save)
    return save.finish({"step": 1})


def opened(url: str, job: str = "gpt", **options: Any) -> Store:
    """A store whose job has begun its first incarnation."""
    store = stores.open(url, "fleet", options=options)
    store.begin_incarnation(job, 1)
    return store
