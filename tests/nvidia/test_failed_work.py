"""Work that the driver has not done never counts as done, in a save or on another device."""

from __future__ import annotations

import struct
from pathlib import Path

import cuda
import pytest
from hostile.records import FUNCTION_GET, LAUNCH, MODULE_DATA, MODULE_LOAD

from rankfold import paths
from rankfold.proxy.hal.nvidia.modules import Loader
from rankfold.proxy.native import EVENT_SAVED, Event, Native
from support.answers import answering
from support.fleet import Fleet, MiB, until
from support.leaks import State
from support.ring_client import (
    CHUNK,
    DEV_BASE,
    DEVICE_SYNC,
    OFF_BULK,
    RingClient,
    attach,
    device,
    leave,
    settle,
)

from .fake_driver import Fake

ELEMENTS = 2 * CHUNK // 4
INCREMENT = struct.pack("<QQ6I4IQI", 1, 17, 1, 1, 1, 128, 1, 1, 0, 12, 0, 0, DEV_BASE, ELEMENTS)


def computed(native: Native, client: RingClient) -> None:
    """A rank with two chunks of memory on the device, at a cut."""
    ptx = cuda.ptx(Path(__file__).parent / "programs.cu").encode()
    attach(native, client)
    client.alloc(DEV_BASE, 2 * CHUNK)
    client.map[OFF_BULK : OFF_BULK + len(ptx)] = ptx
    client.post(MODULE_DATA, struct.pack("<QQII", 16, 0, len(ptx), 0))
    assert client.call(MODULE_LOAD, struct.pack("<QQII", 16, len(ptx), 1, 0)) == 0
    assert client.call(FUNCTION_GET, struct.pack("<QQII", 16, 17, 1, 9) + b"increment") == 0
    client.post(LAUNCH, INCREMENT)
    assert client.call(DEVICE_SYNC) == 0
    native.barrier(1, True)
    settle(native, 1, "cut")


def save(native: Native, told: list[Event]) -> Event:
    """How a save ends that is asked for now."""
    told.clear()
    assert native.job_save(1)
    until(lambda: any(each.kind == EVENT_SAVED for each in told), 20, "the save ends")
    return next(each for each in told if each.kind == EVENT_SAVED)


@pytest.mark.parametrize("nth", [0, 1, 2, 3, 4])
def test_a_save_whose_copy_fails_is_none(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, nth: int
) -> None:
    """It is refused with the driver's reason, whichever of its four copies that was."""
    monkeypatch.setenv("RANKFOLD_TEST_HAL", "nvidia")
    loader, told = Loader(paths.native("lib/librankfold-proxy.so"), (9, 0)), list[Event]()
    client = RingClient()
    try:
        with device(64 * MiB, share=False) as native, answering(native, loader, events=told):
            computed(native, client)
            before = fake.calls("cuMemcpyAsync")
            fake.fail("cuMemcpyAsync", nth, 1)
            over = save(native, told)
            assert over.state == "cut"
            if nth:
                assert "copy: CUDA_ERROR_INVALID_VALUE" in over.text
            else:
                assert over.text == "" and fake.calls("cuMemcpyAsync") - before == 4
            leave(native)
    finally:
        client.close()


@pytest.mark.slow
def test_no_sum_of_a_lost_device_reaches_another(
    state: State, fake_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its context ends while an all-reduce waits for the other device's rank. That never hears
    that all is well, nor sees what no rank has added up."""
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(fake_path))
    monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")
    program = str(cuda.build(Path(__file__).parent / "fault_amid_sum.cu"))
    with Fleet(state, memory=64 * MiB, kinds=("nvidia", "nvidia")) as fleet:
        job = fleet.start("sums", [program], [0, 0, 1], memory=32 * MiB)

        def reason() -> str:
            (told,) = fleet.status(fleet.names[1])["jobs"]
            return str(told["reason"]) if told["state"] == "failed" else ""

        assert "local/nvidia-0 was lost" in until(reason, 60, "the job has failed")
        assert job.output(2) == "begins\n" and job.exit_status(2) is None
