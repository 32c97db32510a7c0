"""Snapshots of ranks for tests: their images made by a proxy's core, those of processes as CRIU
writes them."""

from __future__ import annotations

import functools
import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankfold import records
from rankfold.image import NOTE, own_ranges, state_range
from rankfold.interpose.launcher.files import sparse
from support.ring_client import DEVICE_SYNC, RingClient, attach, device, settle

PAGE = 4096
PRESENT, LAZY, PARENT = 4, 2, 1


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def message(fields: Mapping[int, int]) -> bytes:
    body = b"".join(varint(key << 3) + varint(value) for key, value in fields.items())
    return struct.pack("<I", len(body)) + body


def pagemap(pages: int, entries: Sequence[tuple[int, int, int]]) -> bytes:
    """A pagemap as CRIU 4.2 writes it, of (address, pages, flags), for `pages-PAGES.img`."""
    rows = [message({1: address, 2: 0, 4: flags, 5: count}) for address, count, flags in entries]
    return struct.pack("<II", 0x54564319, 0x56084025) + message({1: pages}) + b"".join(rows)


def whole(folder: Path, **more: Any) -> None:
    """Writes about.json, which makes the snapshot complete."""
    about = {"version": 1, "job": "gpt", "logs": {"out": 10, "err": 0}, **more}
    about["has_channel"] = (folder / "image").exists()
    (folder / "about.json").write_text(json.dumps(about))


def processes(folder: Path, memory: Mapping[int, bytes], seed: int = 0) -> None:
    """The part of CRIU: runs of whole pages by address, of a process and of a memfd, and others."""
    criu = folder / "criu"
    criu.mkdir(parents=True)
    runs = sorted(memory.items())
    entries = [(address, len(data) // PAGE, PRESENT) for address, data in runs]
    (criu / "pagemap-17.img").write_bytes(pagemap(1, [*entries, (1 << 46, 5, LAZY)]))
    (criu / "pages-1.img").write_bytes(b"".join(data for _, data in runs))
    (criu / "pagemap-shmem-9.img").write_bytes(pagemap(2, [(0, 1, PRESENT), (PAGE * 9, 1, 6)]))
    (criu / "pages-2.img").write_bytes(bytes(PAGE) + struct.pack("<I", seed) * 1024)
    (criu / "pagemap-18.img").write_bytes(pagemap(3, []))
    (criu / "pages-3.img").write_bytes(b"")
    (criu / "core-17.img").write_bytes(struct.pack("<I", seed) * 300)
    (criu / "stats-dump").write_bytes(b"")


def image_of(folder: Path, descriptor: int) -> None:
    """As the launcher does."""
    sparse.copy_out(
        descriptor, folder / "image", [*own_ranges(descriptor), state_range(descriptor)]
    )


def saved_image(
    folder: Path, buffers: Mapping[int, bytes], freed: Mapping[int, bytes], empty: int = 0
) -> None:
    """The image of a rank that has these buffers and had others before. Behind what is written of
    each buffer come so many bytes that never were."""
    image_of(folder, _saved(tuple(buffers.items()), tuple(freed.items()), empty).image)


@functools.cache
def _saved(
    buffers: tuple[tuple[int, bytes], ...], freed: tuple[tuple[int, bytes], ...], empty: int
) -> RingClient:
    client = RingClient()
    with device() as native:
        attach(native, client)
        for address, data in buffers + freed:
            client.alloc(address, len(data) + empty)
            for offset in range(0, len(data), 8192):
                client.write(address + offset, data[offset : offset + 8192])
            assert client.call(DEVICE_SYNC) == 0
        for address, _ in freed:
            client.free(address)
        assert client.call(DEVICE_SYNC) == 0
        native.barrier(1, True)
        settle(native, 1, "cut")
        assert native.job_leave(1)
        settle(native, 1, "saved")
        native.job_close(1)
    return client


def image_with_module(folder: Path, digest: str) -> None:
    """The image of a rank that has loaded a module of this hash, and has nothing else."""
    saved = records.saved()
    header, record = saved.structs["state_header"], saved.structs["state_module"]
    end, room = saved.opcodes["END"], 128
    state = struct.pack("<IHHQ", room, saved.opcodes["MODULE"].number, 0, 0)
    state += struct.pack("<QQQ72s", 16, 0, 0, digest.encode()).ljust(room - 16, b"\0")
    assert record.size <= room
    state += struct.pack("<IHHQ", 64, end.number, 0, 0).ljust(64, b"\0")
    magic, version = (saved.constants[f"STATE_{name}"] for name in ("MAGIC", "VERSION"))
    head = struct.pack("<QIIQQ", magic, version, 0, len(state), 0)
    assert len(head) == header.size
    with (folder / "image").open("xb") as file:
        file.truncate(1 << 40)
        os.pwrite(file.fileno(), head + state, saved.constants["STATE_OFFSET"])


def files(folder: Path) -> dict[str, bytes]:
    """All but the image, which is large, and the note of what of it is in others'."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("image", NOTE)
    }
