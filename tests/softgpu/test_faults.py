"""What a broken kernel may do: fail its own space, with a line that says why. Nothing else."""

from __future__ import annotations

from pathlib import Path

import cuda
import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader, ModuleError, ModuleInfo
from softgpu.harness import CHUNK, DEV_BASE, Device, Space, ffi

ILLEGAL_ADDRESS, LAUNCH_FAILED, INVALID_VALUE = 700, 719, 1
SOURCE = Path(__file__).with_name("kernels.cu")


@pytest.fixture(scope="module")
def module(kernels: Loader) -> ModuleInfo:
    return kernels.module(cuda.ptx(SOURCE, args=["-DNO_REDUX"]).encode(), 1)


@pytest.fixture
def other(device: Device) -> Space:
    """A second rank on the device."""
    return device.space()


def works(loader: Loader, module: ModuleInfo, space: Space) -> bool:
    at = space.put(np.ones(8, np.float32))
    space.launch(loader.function(module, "saxpy"), 1, 8, 2.0, at, at, 8)
    return space.error()[0] == 0 and (space.read(at, 8, np.float32) == 3).all()


@pytest.mark.parametrize("offset", [CHUNK, -CHUNK, 1 << 36, -(1 << 39), (1 << 44) + CHUNK])
@pytest.mark.parametrize("name", ["write_at", "read_at"])
def test_unmapped_addresses(
    kernels: Loader, module: ModuleInfo, space: Space, other: Space, name: str, offset: int
) -> None:
    mine, theirs = space.put(np.arange(8)), other.put(np.arange(8))
    function = kernels.function(module, name)
    arguments = [mine, offset // 4] if name == "write_at" else [mine, mine, offset // 4]
    space.launch(function, 1, 1, *arguments)
    code, text = space.error()
    assert code == ILLEGAL_ADDRESS
    assert name in text
    assert works(kernels, module, other)
    np.testing.assert_array_equal(other.read(theirs, 8, np.int64), np.arange(8))
    # sticky: later work is skipped and still counts as done
    assert not works(kernels, module, space) and space.error() == (code, text)


def test_the_address_is_told(kernels: Loader, module: ModuleInfo, space: Space) -> None:
    mine = space.put(np.arange(8))
    space.launch(kernels.function(module, "write_at"), 1, 1, mine, 5 * CHUNK // 4)
    assert f"{mine + 5 * CHUNK:#x}" in space.error()[1]


def test_null_is_not_memory(kernels: Loader, module: ModuleInfo, space: Space) -> None:
    chunk = ffi.new("uint32_t *")
    assert space.hal.chunk_create(space.device.handle, chunk) == 0
    assert space.hal.space_map(space.handle, DEV_BASE, chunk[0]) == 0
    space.launch(kernels.function(module, "write_at"), 1, 1, 0, 3)
    code, text = space.error()
    assert code == ILLEGAL_ADDRESS and "NULL" in text


def test_the_first_bytes_of_the_window(kernels: Loader, module: ModuleInfo, space: Space) -> None:
    """A base below the window with an index that leads back into it is a valid address."""
    chunk = ffi.new("uint32_t *")
    assert space.hal.chunk_create(space.device.handle, chunk) == 0
    assert space.hal.space_map(space.handle, DEV_BASE, chunk[0]) == 0
    source = """.version 8.0
.target sm_80
.address_size 64
.visible .entry back(.param .u64 p, .param .u32 i)
{
    .reg .b32 %r<2>; .reg .b64 %rd<5>;
    ld.param.u64 %rd0, [p]; ld.param.u32 %r0, [i];
    add.s64 %rd1, %rd0, -4000000000;
    mul.wide.u32 %rd2, %r0, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3+4], %r0;
    ret;
}
"""
    function = kernels.function(kernels.module(source.encode(), 1), "back")
    space.launch(function, 1, 1, DEV_BASE, 1_000_000_001)
    space.check()
    assert space.read(DEV_BASE, 3, np.uint32).tolist() == [0, 0, 1_000_000_001]


def test_shared_memory_beyond_its_end(
    kernels: Loader, module: ModuleInfo, space: Space, other: Space
) -> None:
    out = space.put(np.zeros(1, np.int32))
    space.launch(kernels.function(module, "shared_at"), 1, 1, out, 100_000_000, shared=16)
    code, text = space.error()
    assert code == ILLEGAL_ADDRESS and "shared" in text
    assert works(kernels, module, other)


def test_cancel(
    kernels: Loader, module: ModuleInfo, device: Device, space: Space, other: Space
) -> None:
    at = space.put(np.zeros(1, np.int32))
    work, _keep = space.kernel_work(kernels.function(module, "endless"), 1, 32, at)
    number = device.submit(work)
    device.hal.space_cancel(space.handle)
    device.wait(number)
    code, text = space.error()
    assert code == LAUNCH_FAILED and "endless" in text and "cancel" in text
    assert works(kernels, module, other)


def test_cancel_before_the_kernel_began(
    kernels: Loader, module: ModuleInfo, device: Device, space: Space
) -> None:
    at = space.put(np.zeros(1, np.int32))
    device.hal.space_cancel(space.handle)
    space.launch(kernels.function(module, "endless"), 1, 32, at)
    assert space.error()[0] == LAUNCH_FAILED


@pytest.mark.parametrize("threads", [32, 64])
def test_a_barrier_that_never_opens(
    kernels: Loader, module: ModuleInfo, space: Space, other: Space, threads: int
) -> None:
    at = space.put(np.zeros(1, np.int32))
    space.launch(kernels.function(module, "stuck_barrier"), 1, threads, at)
    assert space.error()[0] == LAUNCH_FAILED
    assert works(kernels, module, other)


def test_trap(kernels: Loader, module: ModuleInfo, space: Space) -> None:
    at = space.put(np.arange(8, dtype=np.int32))
    function = kernels.function(module, "asserts")
    space.launch(function, 1, 8, at, 100)
    space.check()
    space.write(at, np.arange(8, dtype=np.int32))
    space.launch(function, 1, 8, at, 3)
    assert space.error()[0] == LAUNCH_FAILED


@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [(1, 1025, 0), (0, 1, 0), (1, 0, 0), (1, 32, 1 << 20), (1 << 28, 32, 0)],
)
def test_launch_shapes(
    kernels: Loader, module: ModuleInfo, space: Space, grid: int, block: int, shared: int
) -> None:
    at = space.put(np.zeros(8, np.float32))
    space.launch(kernels.function(module, "saxpy"), grid, block, 1.0, at, at, 8, shared=shared)
    assert space.error()[0] == INVALID_VALUE


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r0,%r1}, [%rd0], 16;", "wmma"),
        ("tex.2d.v4.f32.s32 {%f0,%f1,%f2,%f3}, [t, {%r0,%r1}];", "tex"),
        ("cvt.rna.tf32.f32 %r0, %f0;", "cvt.rna.tf32"),
        ("mbarrier.init.shared.b64 [%rd0], 1;", "mbarrier.init"),
        ("mov.u32 %r0, %pm0;", "pm0"),
    ],
)  # fmt: skip
def test_what_is_not_implemented_is_named(kernels: Loader, body: str, named: str) -> None:
    text = f""".version 8.0
.target sm_80
.address_size 64
.visible .entry strange()
{{
    .reg .b32 %r<8>; .reg .b64 %rd<2>; .reg .f32 %f<4>; .reg .b16 %h<2>;
    {body}
    ret;
}}
"""
    with pytest.raises(ModuleError) as caught:
        kernels.function(kernels.module(text.encode(), 1), "strange")
    assert caught.value.code == 801
    assert named in caught.value.message and "strange" in caught.value.message


def test_many_faults_leave_the_workers_alive(kernels: Loader, module: ModuleInfo) -> None:
    with Device(workers=2) as device:
        healthy = device.space()
        for index in range(50):
            space = device.space()
            space.launch(kernels.function(module, "write_at"), 1, 1, DEV_BASE + CHUNK, index)
            assert space.error()[0] == ILLEGAL_ADDRESS
        assert works(kernels, module, healthy)
