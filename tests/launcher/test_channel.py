"""The hand-over of a rank's channel, and who may claim it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rankfold import paths
from rankfold.control import Client, ControlError
from rankfold.interpose.launcher import handshake
from support.leaks import State

from .conftest import Launched, Rig


def answers(fifo: Path) -> Any:
    return json.loads(fifo.read_text())


def claim(client: Client, epoch: int, device: str = "d0") -> list[int]:
    _, fds = client.request("claim", epoch=epoch, device=device)
    return fds


def close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def inodes(fds: list[int]) -> list[int]:
    """Which files these are; closes them."""
    found = [os.fstat(fd).st_ino for fd in fds]
    close(fds)
    return found


def refusal(client: Client, epoch: int, device: str = "d0") -> str:
    with pytest.raises(ControlError) as caught:
        claim(client, epoch, device)
    return caught.value.code


def end(launched: Launched) -> None:
    with launched.client() as client:
        client.request("signal", signum=signal.SIGKILL)
    launched.end()


def owner(rig: Rig) -> tuple[Launched, Path]:
    """A rank that has handed over its channel and lives until the pipe is written to."""
    replies, stop = rig.fifo("answers"), rig.fifo("end")
    launched = rig.program("own", str(replies), str(stop))
    assert answers(replies)[0] == 0
    return launched, stop


def test_layout_is_the_headers(state: State) -> None:
    """handshake.py's numbers are those the compiler sees in channel.h."""
    source = state.folder / "layout.c"
    source.write_text(
        '#include <stdio.h>\n#include "channel.h"\n#define P(x) printf("%llu ", '
        "(unsigned long long)(x))\nint main(void) {\n"
        "P(RF_MAGIC); P(RF_MAJOR); P(RF_MINOR); P(RF_MEMFD_BYTES); P(RF_WINDOW_BYTES);\n"
        "P(sizeof(struct rf_hello)); P(sizeof(struct rf_device)); P(sizeof(struct rf_welcome));\n"
        "P(offsetof(struct rf_header, memfd_bytes)); P(offsetof(struct rf_header, pid));\n"
        "P(offsetof(struct rf_header, world_size)); P(offsetof(struct rf_welcome, device));\n"
        "P(offsetof(struct rf_device, cc_major)); P(offsetof(struct rf_device, l2_bytes));\n"
        "P(offsetof(struct rf_device, blocks_per_sm));\n"
        "return 0; }\n"
    )
    program = state.folder / "layout"
    include = paths.REPOSITORY / "interpose/channel"
    subprocess.run(["gcc", "-std=c11", f"-I{include}", source, "-o", program], check=True)
    printed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    h = handshake
    fields = list(h.DEVICE_DEFAULTS)
    assert [int(word) for word in printed.split()] == [
        *(h.MAGIC, h.MAJOR, h.MINOR, h.MEMFD_BYTES, h.WINDOW_BYTES),
        *(h.HELLO.size, h.DEVICE.size, h.WELCOME.size),
        *(16, 24, 32, h.WELCOME.size - 256 - h.DEVICE.size),
        *(72 + 4 * fields.index("cc_major"), 72 + 4 * fields.index("l2_bytes")),
        72 + 4 * fields.index("blocks_per_sm"),
    ]


@pytest.mark.parametrize(
    ("capability", "threads", "blocks", "shared_kib", "of_a_block_kib"),
    [
        ((12, 0), 1536, 24, 100, 99),
        ((12, 1), 1536, 24, 100, 99),
        ((9, 0), 2048, 32, 228, 227),
        ((8, 0), 2048, 32, 164, 163),
        ((7, 5), 1024, 16, 64, 64),
        ((6, 1), 2048, 32, 96, 96),
    ],
)
def test_a_device_has_the_limits_of_its_compute_capability(
    capability: tuple[int, int], threads: int, blocks: int, shared_kib: int, of_a_block_kib: int
) -> None:
    major, minor = capability
    given: dict[str, int | str] = {"name": "d", "memory_bytes": 1, "cc_major": major}
    given["cc_minor"] = minor

    def reported(**chosen: int) -> dict[str, int]:
        packed = handshake.pack_device({**given, **chosen})
        numbers = handshake.DEVICE.unpack(packed)[2:]
        return dict(zip(handshake.DEVICE_DEFAULTS, numbers, strict=False))

    values = reported()
    assert (values["cc_major"], values["cc_minor"]) == capability
    assert (values["max_threads_per_sm"], values["blocks_per_sm"]) == (threads, blocks)
    assert values["shared_per_sm"] == shared_kib << 10
    assert values["shared_per_block_optin"] == of_a_block_kib << 10
    assert reported(max_threads_per_sm=64)["max_threads_per_sm"] == 64


def test_a_channel_is_accepted_and_kept(rig: Rig) -> None:
    replies = rig.fifo("answers")
    launched = rig.program("say_hello", str(replies), "{}")
    assert answers(replies) == [[0, "4 0 4 Test device"]] * 2
    assert launched.end()["exit_status"] == 0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"bytes": 4096}, "4096 bytes"),
        ({"seals": 0}, "seals"),
        ({"seals": 2}, "seals"),
        ({"magic": 1}, "header"),
        ({"major": 99}, "version"),
        ({"memfd_bytes": 1}, "header"),
        ({"rank": 1}, "rank 1 of 4"),
        ({"world_size": 3}, "rank 0 of 3"),
    ],
)
def test_an_invalid_channel_is_refused(plain_rig: Rig, wrong: dict[str, int], words: str) -> None:
    replies = plain_rig.fifo("answers")
    launched = plain_rig.program("say_hello", str(replies), json.dumps(wrong))
    _, (error, message) = answers(replies)
    assert error == 1 and words in message
    launched.end()


def test_nonsense_harms_no_other_connection(plain_rig: Rig) -> None:
    replies = plain_rig.fifo("answers")
    launched = plain_rig.program("nonsense", str(replies))
    not_a_memfd, unreadable, other_version, good = answers(replies)
    assert unreadable[0] == 1 and "cannot be used" in unreadable[1]
    assert not_a_memfd[0] == 1 and "not a memfd" in not_a_memfd[1]
    assert other_version[0] == 1 and "same version" in other_version[1]
    assert good[0] == 0
    launched.end()


def test_a_second_process_waits_for_the_firsts_end(rig: Rig) -> None:
    replies, continue_running = rig.fifo("answers"), rig.fifo("end")
    launched = rig.program("two_owners", str(replies), str(continue_running))
    asked, refused = answers(replies)
    assert asked[0] == refused[0] == 1
    assert "uses the device already" in refused[1]
    with launched.client() as client:
        before = inodes(claim(client, 1))
        continue_running.write_text("x")
        assert answers(replies)[0] == 0
        assert client.channel.fill()
        notice = client.channel.take()
        assert notice is not None and notice.head.event == "channel"
        after = inodes(claim(client, 1))
    assert before[0] != after[0] and before[1] != after[1], "channel and image are fresh"
    continue_running.write_text("x")
    assert launched.end()["exit_status"] == 0


def test_a_claim_waits_for_the_channel(rig: Rig) -> None:
    ready, replies, stop = rig.fifo("ready"), rig.fifo("answers"), rig.fifo("end")
    program = f'cat "{ready}"; exec "$0" "$@"'
    launched = rig.launch(*("sh", "-c", program), *rig.argv("own", str(replies), str(stop)))
    with launched.client() as client, launched.client() as other:
        client.channel.send({"id": 7, "op": "claim", "epoch": 1, "device": "d0"})
        assert other.request("status")[0]["channel"] is False
        assert not readable(client)
        ready.write_text("go")
        assert answers(replies)[0] == 0
        assert client.channel.fill()
        taken = client.channel.take()
        assert taken is not None
        fds = taken.fds
        assert taken.head.id == 7 and taken.head.ok
        assert [os.fstat(fd).st_size for fd in fds] == [
            handshake.MEMFD_BYTES,
            handshake.WINDOW_BYTES,
        ]
        close(fds)
        status, _ = other.request("status")
        assert (status["channel"], status["epoch"]) == (True, 1)
    stop.write_text("x")
    launched.end()


def readable(client: Client) -> bool:
    return bool(select.select([client.channel.sock], [], [], 0)[0])


def test_the_higher_epoch_wins(rig: Rig) -> None:
    launched, stop = owner(rig)
    with launched.client() as one, launched.client() as two:
        first = inodes(claim(one, 3))
        assert inodes(claim(one, 3)) == first, "asked twice, it answers twice the same"
        assert refusal(two, 2, "d1") == "stale"
        assert refusal(two, 3, "d1") == "stale"
        assert inodes(claim(two, 4, "d1")) == first, "the next server gets the same files"
        assert refusal(one, 3) == "stale"
    stop.write_text("x")
    launched.end()


def test_a_waiting_claim_is_overtaken_by_a_higher_epoch(plain_rig: Rig) -> None:
    ready = plain_rig.fifo("ready")
    launched = plain_rig.program("wait_forever", str(ready))
    ready.read_text()
    with launched.client() as one, launched.client() as two, launched.client() as third:
        one.channel.send({"id": 1, "op": "claim", "epoch": 1, "device": "d0"})
        assert third.request("status")[0]["channel"] is False
        two.channel.send({"id": 1, "op": "claim", "epoch": 2, "device": "d1"})
        assert one.channel.fill()
        taken = one.channel.take()
        assert taken is not None and taken.head.error and taken.head.error.code == "stale"
        assert third.request("status")[0]["epoch"] == 2
        assert not readable(two)
        third.request("signal", signum=signal.SIGKILL)
        assert two.channel.fill()
        taken = two.channel.take()
        assert taken is not None and taken.head.error and taken.head.error.code == "exited"
    launched.end()


def test_the_claimer_is_notified_of_the_end(rig: Rig) -> None:
    launched, _stop = owner(rig)
    with launched.client() as client:
        close(claim(client, 1))
        client.channel.send({"id": 9, "op": "signal", "signum": int(signal.SIGABRT)})
        seen = []
        while client.channel.fill():
            while (taken := client.channel.take()) is not None:
                seen.append(taken.decode())
    assert [m for m in seen if "event" in m] == [
        {"v": 1, "event": "exited", "exit_status": -signal.SIGABRT}
    ]
    assert launched.end()["signal"] == signal.SIGABRT


def test_the_image_outlives_its_claims(rig: Rig) -> None:
    """One server writes to the image, and the next server reads it."""
    launched, stop = owner(rig)
    far = handshake.WINDOW_BYTES - 4096
    with launched.client() as client:
        fds = claim(client, 1)
        os.pwrite(fds[1], b"saved", far)
        close(fds)
    with launched.client() as client:
        fds = claim(client, 2, "d1")
        assert os.pread(fds[1], 5, far) == b"saved"
        assert os.fstat(fds[1]).st_blocks * 512 <= 1 << 16, "the image is sparse"
        close(fds)
    stop.write_text("x")
    launched.end()
