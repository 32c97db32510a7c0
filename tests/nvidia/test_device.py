"""The NVIDIA HAL by itself, over the fake driver: memory, the window, streams, kernels, errors."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from softgpu.harness import CHUNK, Device, Space, ffi

from rankfold import paths
from rankfold.proxy.hal.nvidia.modules import Loader
from rankfold.proxy.native import Native, NativeError
from rankfold.proxy.ptx.errors import ModuleError

from .conftest import Kernels
from .fake_driver import Fake

HERE = Path(__file__).parent
# The header of an ELF file for sm_80.
MACHINE_CODE = b"\x7fELF\2\1\1\x33\7" + bytes(7) + struct.pack("<HHIQQQI", 2, 190, 1, 0, 64, 64, 80)
PINNED = 0x200000000000 + (1 << 39)
OPEN_CALLS = [
    "cuInit",
    "cuDeviceGetCount",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuStreamCreate",
    "cuEventCreate",
    "cuMemGetInfo_v2",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemHostAlloc",
]


@pytest.fixture
def device(fake: Fake) -> Iterator[Device]:
    with Device(memory=16 * CHUNK, hal="nvidia") as made:
        yield made


@pytest.fixture
def doomed(fake: Fake) -> Iterator[Device]:
    """A device that will be lost: its process would end on that, this one continues."""
    with Device(memory=16 * CHUNK, hal="nvidia") as made:
        yield made
    fake.reset()


def words(space: Space, *values: int) -> int:
    return space.put(np.array(values, np.uint32))


def test_a_new_chunk_reads_as_zero(device: Device) -> None:
    space = device.space()
    at = space.alloc(2 * CHUNK)
    assert not space.read(at, 2 * CHUNK, np.uint8).any()
    space.write(at, np.full(CHUNK, 7, np.uint8))
    place = at - at % CHUNK
    assert device.hal.space_unmap(space.handle, place) == 0
    device.hal.chunk_destroy(device.handle, space.chunks[0])
    again = device.space()
    assert not again.read(again.alloc(CHUNK), CHUNK, np.uint8).any()


def test_memory_that_cannot_be_mapped_amid_work_is_mapped_after_it(
    fake: Fake, device: Device, kernels: Kernels
) -> None:
    space = device.space()
    space.launch(kernels("increment"), 1, 32, words(space, *range(32)), 32)
    at = space.alloc(2 * CHUNK)
    space.write(at, np.arange(32, dtype=np.uint32))
    before = fake.calls("cuMemSetAccess")
    fake.fail("cuMemSetAccess", 1, 600)
    space.launch(kernels("increment"), 1, 32, at, 32)
    space.check()
    assert fake.calls("cuMemSetAccess") > before + 1
    assert (space.read(at, 32, np.uint32) == np.arange(1, 33)).all()


def test_gpus_of_another_kind_or_size_have_another_arithmetic(fake: Fake, device: Device) -> None:
    """Each of what is asked counts: one that is not answered makes another number."""
    found = [device.hal.arithmetic(device.handle) for _ in range(2)]
    for nth in (1, 3):  # the fake is of capability 9.0, so the second is 0 either way
        fake.fail("cuDeviceGetAttribute", nth, 1)
        found.append(device.hal.arithmetic(device.handle))
    assert found[0] == found[1] and len(set(found)) == 3


def test_two_ranks_see_their_own_memory_at_one_address(device: Device, kernels: Kernels) -> None:
    """Each switch maps the window anew, and only between kernels: the fake would notice."""
    spaces = [device.space(), device.space()]
    data = [words(space, 10 * rank, 1) for rank, space in enumerate(spaces)]
    assert data[0] == data[1]
    for _ in range(3):
        for space, at in zip(spaces, data, strict=True):
            space.launch(kernels("increment"), 1, 32, at, 2)
    assert [list(s.read(at, 2, np.uint32)) for s, at in zip(spaces, data, strict=True)] == [
        [3, 4],
        [13, 4],
    ]
    for space in spaces:
        space.check()


def test_the_window_is_mapped_only_when_it_changes(
    fake: Fake, device: Device, kernels: Kernels
) -> None:
    space = device.space()
    at = words(space, 0)
    space.launch(kernels("put"), 1, 1, at, 5)
    before = fake.calls("cuMemMap")
    space.launch(kernels("put"), 1, 1, at, 6)
    assert fake.calls("cuMemMap") == before
    more = space.alloc(3 * CHUNK)
    space.launch(kernels("put"), 1, 1, more + 2 * CHUNK, 7)
    assert fake.calls("cuMemMap") == before + 3, "only what is new"
    assert space.read(more + 2 * CHUNK, 1, np.uint32)[0] == 7


def test_memory_that_is_added_is_mapped_while_kernels_run(device: Device, kernels: Kernels) -> None:
    """Memory that is taken away is unmapped when none runs."""
    space = device.space()
    flag, streams = words(space, 0), [device.new_stream(), device.new_stream()]
    running, kept = space.kernel_work(kernels("until_set"), 1, 1, flag)
    device.submit(running, streams[0])
    more = (space.alloc(2 * CHUNK) // CHUNK + 1) * CHUNK
    put, kept2 = space.kernel_work(kernels("put"), 1, 1, more, 9)
    device.wait(device.submit(put, streams[1]), streams[1])
    assert device.hal.completed(streams[0]) == 0
    assert device.hal.space_unmap(space.handle, more) == 0
    waiting, kept3 = space.kernel_work(kernels("put"), 1, 1, flag + 64, 9)
    number = device.submit(waiting, streams[1])
    time.sleep(0.05)
    assert device.hal.completed(streams[1]) == number - 1
    space.write(flag, np.array([1], np.uint32))
    device.wait(number, streams[1])
    space.check()
    assert None not in (kept, kept2, kept3)


def test_a_kernel_of_another_rank_waits_for_the_one_that_runs(
    device: Device, kernels: Kernels
) -> None:
    first, second = device.space(), device.space()
    flag, out = words(first, 0), words(second, 0)
    streams = [device.new_stream(), device.new_stream(), device.stream]
    running, kept = first.kernel_work(kernels("until_set"), 1, 1, flag)
    device.submit(running, streams[0])
    waiting, kept2 = second.kernel_work(kernels("put"), 1, 1, out, 9)
    device.submit(waiting, streams[1])
    time.sleep(0.05)
    assert device.hal.completed(streams[1]) == 0
    first.write(flag, np.array([1], np.uint32))  # copies do not wait
    device.wait(1, streams[0])
    device.wait(1, streams[1])
    assert second.read(out, 1, np.uint32)[0] == 9
    assert kept is not None and kept2 is not None


def test_a_module_variable_is_the_ranks_own(device: Device, kernels: Kernels) -> None:
    """It is where the client put the module's globals, so it moves and swaps with the rank."""
    for _ in range(2):
        space = device.space()
        out, variables = words(space, 0), words(space, 41)
        space.launch(kernels("count"), 1, 1, out, globals_addr=variables)
        space.launch(kernels("count"), 1, 1, out, globals_addr=variables)
        assert space.read(out, 1, np.uint32)[0] == 43
        assert space.read(variables, 1, np.uint32)[0] == 43


def test_pinned_memory_is_at_its_address_for_kernels_and_copies(
    device: Device, kernels: Kernels, tmp_path: Path
) -> None:
    ranks = []
    for rank in range(2):
        file = tmp_path / str(rank)
        file.write_bytes(bytes(1 << 20))
        space = device.space()
        with file.open("r+b") as opened:
            fd = opened.fileno()
            assert device.hal.space_map_host(space.handle, PINNED, fd, 0, 1 << 20) == 0
        ranks.append((file, space))
    for rank, (file, space) in enumerate(ranks):
        space.launch(kernels("put"), 1, 1, PINNED + 8, 100 + rank)
        space.write(PINNED + 12, np.array([rank], np.uint32))
        at = words(space, 0)
        work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_COPY})
        work.copy.dst.space, work.copy.dst.addr = space.handle, at
        work.copy.src.space, work.copy.src.addr = space.handle, PINNED + 8
        work.copy.width = work.copy.dst_pitch = work.copy.src_pitch = 4
        work.copy.height = 1
        device.run(work)
        assert space.read(at, 1, np.uint32)[0] == 100 + rank
        assert np.frombuffer(file.read_bytes()[8:16], np.uint32).tolist() == [100 + rank, rank]
        space.check()


def test_copies_larger_than_all_staging_buffers(device: Device) -> None:
    space = device.space()
    data = np.random.default_rng(1).integers(0, 256, 20 << 20, np.uint8)
    assert (space.read(space.put(data), len(data), np.uint8) == data).all()


def test_copies_behind_a_kernel_leave_buffers_for_others(
    fake: Fake, device: Device, kernels: Kernels
) -> None:
    """The kernel waits for a copy in another stream, and more than all buffers hold for it."""
    space = device.space()
    flag, at = words(space, 0), space.alloc(20 << 20)
    data = np.random.default_rng(2).integers(0, 256, 20 << 20, np.uint8)
    stream = device.new_stream()
    running, params = space.kernel_work(kernels("until_set"), 1, 1, flag)
    device.submit(running, stream)
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_COPY})
    work.copy.dst.space, work.copy.dst.addr = space.handle, at
    work.copy.src.addr, work.copy.width, work.copy.height = data.ctypes.data, len(data), 1
    work.copy.dst_pitch = work.copy.src_pitch = len(data)
    before = fake.calls("cuMemcpyAsync")
    number = device.submit(work, stream)
    while fake.calls("cuMemcpyAsync") < before + 8:
        time.sleep(0.001)
    space.write(flag, np.ones(1, np.uint32))
    device.wait(number, stream)
    assert params is not None and (space.read(at, len(data), np.uint8) == data).all()


def test_rows_of_a_copy_within_the_device(device: Device) -> None:
    space = device.space()
    data = np.arange(3 * CHUNK, dtype=np.uint32).view(np.uint8)[: 2 * CHUNK]
    src, dst = space.put(data), space.alloc(2 * CHUNK)
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_COPY})
    work.copy.dst.space = work.copy.src.space = space.handle
    work.copy.dst.addr, work.copy.src.addr = dst, src + 100
    work.copy.width, work.copy.height = 1000, 1200
    work.copy.dst_pitch, work.copy.src_pitch = 1100, 1700
    device.run(work)
    got = space.read(dst, 1200 * 1100, np.uint8).reshape(1200, 1100)[:, :1000]
    want = np.lib.stride_tricks.as_strided(data[100:], (1200, 1000), (1700, 1))
    assert (got == want).all()


def test_host_arithmetic_in_the_streams_order(device: Device) -> None:
    a, b = np.arange(1000, dtype=np.float32), np.full(1000, 0.5, np.float32)
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_REDUCE})
    work.reduce.dst.addr = work.reduce.a.addr = a.ctypes.data
    work.reduce.b.addr = b.ctypes.data
    work.reduce.count, work.reduce.dtype, work.reduce.op = 1000, 7, 0
    device.submit(work)
    device.run(work)
    assert (a == np.arange(1000, dtype=np.float32) + 1).all()


@pytest.mark.parametrize("kibibytes", [0, 40, 44, 48, 219])
def test_shared_memory_beyond_48_kib_counts_the_kernels_own(
    device: Device, kernels: Kernels, kibibytes: int
) -> None:
    """8 KiB are in the kernel. More than 48 KiB in all are to be asked for, 227 are the GPU's."""
    space = device.space()
    at = words(space, 0)
    space.launch(kernels("sharing"), 1, 1, at, 5, shared=kibibytes << 10)
    space.check()
    assert space.read(at, 1, np.uint32)[0] == 5
    space.launch(kernels("sharing"), 1, 1, at, 5, shared=220 << 10)
    assert space.error()[0] == 1


# ---- what goes wrong ----


def test_an_address_that_is_not_mapped_fails_its_rank_only(device: Device) -> None:
    bad, good = device.space(), device.space()
    bad.write(bad.next + 5 * CHUNK, np.zeros(4, np.uint8))
    assert bad.error() == (700, "copy: an address that is not mapped")
    at = words(good, 3)
    assert good.read(at, 1, np.uint32)[0] == 3
    good.check()


def test_a_kernels_fault_ends_the_context_for_all_ranks(doomed: Device, kernels: Kernels) -> None:
    culprit, other = doomed.space(), doomed.space()
    at = words(other, 1)
    culprit.launch(kernels("fault"), 1, 1, 0)
    code, text = culprit.error()
    assert code == 700 and "CUDA_ERROR_ILLEGAL_ADDRESS" in text and "all ranks" in text
    assert other.error()[0] == 709, "its context was destroyed"
    other.read(at, 1, np.uint32)  # ends, though nothing runs any more
    assert doomed.hal.space_create(doomed.handle, ffi.new("struct hal_space **")) == 700


@pytest.mark.parametrize(
    ("call", "error"),
    [("cuLaunchKernelEx", 701), ("cuMemMap", 2), ("cuMemSetAccess", 2), ("cuMemcpyAsync", 1)],
)
def test_a_call_that_fails_fails_the_rank_it_was_for(
    fake: Fake, device: Device, kernels: Kernels, call: str, error: int
) -> None:
    space, other = device.space(), device.space()
    at = words(space, 1)
    fake.fail(call, 1, error)
    if call == "cuMemcpyAsync":
        space.read(at, 1, np.uint32)
    else:
        space.launch(kernels("put"), 1, 1, at, 5)
    assert space.error()[0] == error
    other.launch(kernels("put"), 1, 1, words(other, 0), 5)
    assert other.error() == (0, "")


def test_memory_whose_mapping_failed_half_way_is_mapped_anew(
    fake: Fake, device: Device, kernels: Kernels
) -> None:
    """The next rank gets the same chunk at the same address, where it is mapped without access."""
    first, second = device.space(), device.space()
    at = words(first, 1)
    fake.fail("cuMemSetAccess", 1, 2)
    first.launch(kernels("put"), 1, 1, at, 5)
    assert first.error()[0] == 2
    assert device.hal.space_unmap(first.handle, at - at % CHUNK) == 0
    device.hal.chunk_destroy(device.handle, first.chunks[0])
    assert words(second, 1) == at and second.chunks == first.chunks
    second.launch(kernels("put"), 1, 1, at, 5)
    second.check()
    assert second.read(at, 1, np.uint32)[0] == 5


@pytest.mark.parametrize(
    "call",
    ["cuStreamWriteValue64_v2", "cuMemsetD2D8Async", "cuEventRecord", "cuStreamWaitEvent"],
)
def test_without_these_nothing_can_continue(fake: Fake, doomed: Device, call: str) -> None:
    space = doomed.space()
    fake.fail(call, 1, 999)
    space.write(space.alloc(16), np.zeros(16, np.uint8))
    assert space.error()[0] in (999, 709)


def test_a_failed_ranks_work_is_skipped(device: Device, kernels: Kernels) -> None:
    space = device.space()
    at = words(space, 1)
    device.hal.space_cancel(space.handle)
    space.launch(kernels("put"), 1, 1, at, 5)
    assert space.error() == (719, "the rank's work was cancelled")


@pytest.mark.slow
def test_a_cancelled_kernel_that_does_not_end_loses_the_device(
    doomed: Device, kernels: Kernels
) -> None:
    space = doomed.space()
    flag = words(space, 0)
    work, kept = space.kernel_work(kernels("until_set"), 1, 1, flag)
    doomed.submit(work)
    out, sums = np.zeros(4, np.uint32), np.ones(4, np.float32)
    copy = ffi.new("struct hal_work *", {"kind": doomed.lib.HAL_COPY})
    copy.copy.dst.addr, copy.copy.src.space, copy.copy.src.addr = (
        out.ctypes.data,
        space.handle,
        flag,
    )
    copy.copy.width, copy.copy.height = out.nbytes, 1
    copy.copy.dst_pitch = copy.copy.src_pitch = out.nbytes
    doomed.submit(copy)
    add = ffi.new("struct hal_work *", {"kind": doomed.lib.HAL_REDUCE})
    add.reduce.dst.addr = add.reduce.a.addr = add.reduce.b.addr = sums.ctypes.data
    add.reduce.count, add.reduce.dtype = 4, 7
    number = doomed.submit(add)
    time.sleep(0.1)
    doomed.hal.space_cancel(space.handle)
    started = time.monotonic()
    doomed.wait(number)
    assert time.monotonic() - started > 9
    code, _text = space.error()
    assert code == 719 and kept is not None
    other = doomed.hal.space_create(doomed.handle, ffi.new("struct hal_space **"))
    assert other == 719, "the device is given up"
    doomed.hal.stream_destroy(doomed.streams.pop())
    ctypes.c_uint32.from_address(flag).value = 1  # the fake's memory is ours
    time.sleep(0.2)
    assert not out.any() and (sums == 1).all(), "the memory may belong to another buffer by now"


@pytest.mark.parametrize("call", OPEN_CALLS)
def test_a_device_that_cannot_be_opened_says_why(
    fake_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """In a process of its own: the driver is initialised once."""
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(fake_path))
    monkeypatch.setenv("RANKFOLD_FAKE_FAIL", f"{call}:1:2")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in _open()


@pytest.mark.parametrize(
    ("driver", "arguments", "reason"),
    [
        ("/nowhere/libcuda.so.1", "", "no NVIDIA driver"),
        (str(paths.native("lib/libcuda.so.1")), "", "rankfold's client library"),
        (str(paths.native("lib/librankfold-proxy.so")), "", "the driver has no cuInit"),
        ("", "index=3", "there is no GPU 3: the driver shows 1"),
        ("", "memory=64 << 30", "lower its memory"),
        ("", "cc=(12, 0)", "has compute capability 9.0, less than the pool's 12.0"),
    ],
)
def test_missing_features_of_the_driver_are_named(
    fake_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, arguments: str, reason: str
) -> None:
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", driver or str(fake_path))
    assert reason in _open(arguments)


def test_a_second_device_in_one_process_is_refused(device: Device) -> None:
    with pytest.raises(NativeError, match="does not provide the addresses"):
        Native("nvidia", 4 * CHUNK, (8, 0), 1.0, 1)


def _open(arguments: str = "") -> str:
    """Why a device cannot be opened."""
    program = (
        "from rankfold.proxy.native import Native\n"
        f"Native(**{{**dict(hal='nvidia', memory=8 << 20, cc=(8, 0), speed=1.0, workers=1), "
        f"**dict({arguments})}})\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


ALLOCATING = """.version 8.0
.target sm_75
.address_size 64
.extern .func (.param .b64 out) malloc (.param .b64 bytes);
.extern .func free (.param .b64 address);
.func within() {
    .param .b64 o, b; st.param.b64 [b], 8; call.uni (o), malloc, (b); ret;
}
.visible .entry takes() { call.uni within; ret; }
.visible .entry gives() { .param .b64 b; st.param.b64 [b], 8; call.uni free, (b); ret; }
.visible .entry chooses(.param .u64 f) {
    .reg .b64 %f; ld.param.u64 %f, [f]; P: .callprototype _ (); call.uni %f, (), P; ret;
}
.visible .entry holds(.param .u64 at) {
    .reg .b64 %f, %at; mov.u64 %f, within; ld.param.u64 %at, [at]; st.global.u64 [%at], %f; ret;
}
.visible .entry adds() { ret; }
"""


def test_kernels_that_allocate_are_refused_by_name(device: Device) -> None:
    """Those that call malloc or free, and those that call what may by its address."""
    loader = Loader(paths.native("lib/librankfold-proxy.so"), (9, 0))
    module = loader.module(ALLOCATING.encode(), 1)
    for name in ("takes", "gives", "chooses"):
        with pytest.raises(ModuleError, match=f"kernel {name}: malloc and free in kernels") as seen:
            loader.function(module, name)
        assert seen.value.code == 801
    for name in ("holds", "adds"):  # reach the driver, which is a fake
        with pytest.raises(ModuleError, match=f"the driver has no kernel {name}"):
            loader.function(module, name)


def test_machine_code_of_another_gpu_and_bad_ptx_are_refused(device: Device) -> None:
    loader = Loader(paths.native("lib/librankfold-proxy.so"), (9, 0))
    with pytest.raises(ModuleError, match="no PTX"):
        loader.module(MACHINE_CODE + bytes(100), 0)
    with pytest.raises(ModuleError, match="not PTX"):
        loader.module(b"nonsense", 1)
