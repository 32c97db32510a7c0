"""`rankfold inspect` prints real channels and saved states, and damaged ones in words."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankfold import inspect, records
from support.ring_client import (
    DEV_BASE,
    EVENT_CREATE,
    STREAM_CREATE,
    RingClient,
    attach,
    device,
    leave,
    settle,
)

CHANNEL = records.channel().constants
RING = CHANNEL["RF_OFF_RING"]
HEAD, TAIL = (records.channel().structs["rf_header"][name].offset for name in ("head", "tail"))
STATE = records.saved().constants["STATE_OFFSET"]


def text(path: Path | str, consumed: int = 20) -> tuple[list[str], bool]:
    """The lines, and whether something was damaged."""
    found = inspect.Found()
    return list(inspect.lines(Path(path), consumed, found)), found.damaged


def of(fd: int) -> str:
    return f"/proc/self/fd/{fd}"


@pytest.fixture
def client() -> Iterator[RingClient]:
    client = RingClient()
    yield client
    client.close()


def served(client: RingClient) -> None:
    """Some requests, served, and their state saved at a cut."""
    with device() as native:
        attach(native, client)
        client.alloc(DEV_BASE, 4096)
        client.write(DEV_BASE, b"some bytes")
        client.post(STREAM_CREATE, struct.pack("<QIi", 17, 1, 0))
        client.post(EVENT_CREATE, struct.pack("<QII", 18, 0, 0))
        assert client.read(DEV_BASE, 4) == b"some"
        native.barrier(1, True)
        settle(native, 1, "cut")
        assert native.job_leave(1)
        settle(native, 1, "saved")
        leave(native)


def copied(fd: int, at: int, size: int, path: Path) -> Path:
    path.write_bytes(os.pread(fd, size, at))
    return path


def test_a_real_ring_is_printed(client: RingClient) -> None:
    served(client)
    client.post(STREAM_CREATE, struct.pack("<QIi", 19, 0, 0))
    lines, damaged = text(of(client.fd))
    assert not damaged
    assert lines[0] == f"channel of rank 0 of 1, process {os.getpid()}, version 1.0"
    assert lines[1] == "  epoch 1: not served"
    assert "  reply slots: 1 ANSWERED" in lines
    at = lines.index("consumed requests, 5 of 5 that are still there:")
    assert lines[at + 1] == "  1 ALLOC addr=0x200000000000 bytes=4096 call_site=0 stable=0 flags=0"
    assert lines[at + 2].startswith("  2 COPY stream=1 dst=0x200000000000 ")
    assert "src_place=INLINE" in lines[at + 2] and lines[at + 5].endswith(" slot 1")
    assert lines[at + 6 :] == [
        "waiting requests:",
        "  6 STREAM_CREATE stream=19 flags=0 priority=0",
    ]


def test_the_newest_consumed_requests_are_printed(client: RingClient) -> None:
    """It prints records from before the ring wrapped around; older ones have been overwritten."""
    with device() as native:
        attach(native, client)
        for _ in range(70):
            client.call(EVENT_CREATE, struct.pack("<QII", 0, 0, 0) + bytes(60_000 % 32768))
        count = client.seq
        for _ in range(100):
            client.write(DEV_BASE, bytes(30_000))
            client.call(24)
        leave(native)
    lines, damaged = text(of(client.fd), consumed=3)
    assert not damaged and count < client.seq
    at = next(n for n, line in enumerate(lines) if line.startswith("consumed requests, 3 of "))
    assert [int(line.split()[0]) for line in lines[at + 1 : at + 4]] == [
        client.seq - 2,
        client.seq - 1,
        client.seq,
    ]
    kept = int(lines[at].split()[4])
    assert 100 < kept < client.seq


def test_a_real_saved_state_is_printed(client: RingClient, tmp_path: Path) -> None:
    served(client)
    lines, damaged = text(of(client.image))
    assert not damaged
    assert lines[0].startswith("saved state, version ") and lines[1] == "  checksum: right"
    assert lines[3].startswith("  RANK capacity_chunks=32 ") and " seq=5 " in lines[3]
    assert "  BUFFER addr=0x200000000000 bytes=4096 call_site=0 stable=0 flags=0" in lines
    assert "  STREAM id=17 flags=1 priority=0" in lines
    assert lines[-1] == "  END"
    cut_out = copied(client.image, STATE, 1 << 16, tmp_path / "state")
    assert text(cut_out) == (lines, False)


def test_a_state_that_a_proxy_would_refuse_is_said_to_be_so(
    client: RingClient, tmp_path: Path
) -> None:
    served(client)
    good = os.pread(client.image, 4096, STATE)
    path = tmp_path / "state"
    path.write_bytes(good[:60] + b"\1" + good[61:])
    assert text(path)[1] and "  checksum: wrong, a proxy refuses this state" in text(path)[0]
    path.write_bytes(good[:8] + b"\x63" + good[9:])
    lines, damaged = text(path)
    assert damaged and lines[1].startswith("  this rankfold reads version ")
    path.write_bytes(good[:100])
    lines, damaged = text(path)
    assert damaged and lines[-2] == "  RANK with 68 of at least 376 bytes"
    assert lines[-1].endswith(": the file ends here")


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        (HEAD, 1 << 40, "the ring's counts are invalid"),
        (HEAD, 1, "the ring's counts are invalid"),
        (RING + 64 * 7, 12, "12 bytes is not the size of a record"),
        (RING + 64 * 7, 1 << 20, "where at most"),
        (8, 99, "this rankfold reads version 1 only"),
    ],
)
def test_impossible_values_are_named(
    client: RingClient, tmp_path: Path, at: int, value: int, words: str
) -> None:
    served(client)
    client.post(STREAM_CREATE, struct.pack("<QIi", 19, 0, 0))
    data = bytearray(os.pread(client.fd, RING + 8192, 0))
    assert struct.unpack_from("<Q", data, TAIL)[0] == 64 * 7
    size = 8 if at == HEAD else 4
    data[at : at + size] = value.to_bytes(size, "little")
    path = tmp_path / "channel"
    path.write_bytes(data)
    lines, damaged = text(path)
    assert damaged and words in lines[-1]


def test_files_that_end_too_early_are_printed_as_far_as_they_go(
    client: RingClient, tmp_path: Path
) -> None:
    served(client)
    client.post(STREAM_CREATE, struct.pack("<QIi", 19, 0, 0))
    for size, words in (
        (100, "header is cut off after 100 of"),
        (0x1000 + 300, "reply slots: the file ends before slot 2"),
        (RING + 64 * 7, "the file ends before it"),
    ):
        lines, damaged = text(copied(client.fd, 0, size, tmp_path / "channel"))
        assert damaged and any(words in line for line in lines)


@pytest.fixture(scope="module")
def samples() -> tuple[bytes, bytes]:
    """The beginning of a channel, and a saved state."""
    client = RingClient()
    served(client)
    client.post(STREAM_CREATE, struct.pack("<QIi", 19, 0, 0))
    found = os.pread(client.fd, RING + 1024, 0), os.pread(client.image, 2048, STATE)
    client.close()
    return found


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_damage_is_a_crash(
    samples: tuple[bytes, bytes], tmp_path: Path, data: st.DataObject
) -> None:
    sample = bytearray(data.draw(st.sampled_from(samples)))
    places = st.one_of(st.integers(8, 800), st.integers(8, len(sample) - 1))
    for _ in range(data.draw(st.integers(0, 4))):
        sample[min(data.draw(places), len(sample) - 1)] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged"
    path.write_bytes(
        sample[: data.draw(st.one_of(st.just(len(sample)), st.integers(8, len(sample))))]
    )
    lines, _damaged = text(path)
    assert lines and all(line.isprintable() for line in lines)


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rankfold", "inspect", *args],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_says_how_it_went(client: RingClient, tmp_path: Path) -> None:
    served(client)
    whole = copied(client.fd, 0, RING + 8192, tmp_path / "whole")
    done = command(str(whole), "--consumed", "1")
    assert done.returncode == 0 and "consumed requests, 1 of 5" in done.stdout
    assert command(str(copied(client.fd, 0, 700, tmp_path / "cut"))).returncode == 1
    other = tmp_path / "other"
    other.write_text("something else")
    done = command(str(other))
    assert done.returncode == 1 and "neither a rank's channel nor its image" in done.stderr
    done = command(str(tmp_path / "nothing"))
    assert done.returncode == 1 and "No such file" in done.stderr
