"""Promise: a broken kernel fails only its own space, with a line that says why."""

from __future__ import annotations

from pathlib import Path

import cuda
import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.errors import ModuleError
from rankfold.proxy.ptx.info import ModuleInfo
from softgpu.harness import CHUNK, DEV_BASE, Device, Space, ffi

ILLEGAL_ADDRESS, MISALIGNED, LAUNCH_FAILED, INVALID_VALUE = 700, 716, 719, 1
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


def test_the_address_is_reported(kernels: Loader, module: ModuleInfo, space: Space) -> None:
    mine = space.put(np.arange(8))
    space.launch(kernels.function(module, "write_at"), 1, 1, mine, 5 * CHUNK // 4)
    assert f"{mine + 5 * CHUNK:#x}" in space.error()[1]


def test_null_is_not_memory(kernels: Loader, module: ModuleInfo, space: Space) -> None:
    chunk = ffi.new("uint32_t *")
    assert space.hal.chunk_create(space.device.handle, chunk) == 0
    assert space.hal.space_map(space.handle, DEV_BASE, chunk[0], True) == 0
    space.launch(kernels.function(module, "write_at"), 1, 1, 0, 3)
    code, text = space.error()
    assert code == ILLEGAL_ADDRESS and "NULL" in text


def test_the_first_bytes_of_the_window(kernels: Loader, module: ModuleInfo, space: Space) -> None:
    """A base below the window with an index that leads back into it is a valid address."""
    chunk = ffi.new("uint32_t *")
    assert space.hal.chunk_create(space.device.handle, chunk) == 0
    assert space.hal.space_map(space.handle, DEV_BASE, chunk[0], True) == 0
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


REGISTERS = """.version 8.6
.target sm_90
.address_size 64
.const .b32 table[4] = {1, 2, 3, 4};
.visible .entry stray(.param .u64 where, .param .u64 out)
{
    .shared .b32 words[4]; .local .b32 own[4];
    .reg .b32 %r<2>; .reg .b64 %rd<4>; .reg .b128 %q;
    ld.param.u64 %rd0, [where];
    cvt.u32.u64 %r1, %rd0;
    mov.b32 %r0, 1; mov.b64 %rd2, 2; mov.b128 %q, {%rd2, %rd2};
    cvta.shared.u64 %rd1, 0; cvta.local.u64 %rd3, 0; // so that generic addresses may be those
    st.local.b32 [own], %r0; st.shared.b32 [words], %r0;
"""
RESULTS = """
    ld.param.u64 %rd0, [out]; st.global.b32 [%rd0], %r0; st.global.b64 [%rd0+8], %rd2;
    ret;
}
"""
FAR = 0x300000000
STRAYS = [  # what is done, and where
    *(
        (f"{what};", at)
        for at in (0, 8, DEV_BASE - 16, DEV_BASE + (1 << 40), 1 << 63, (1 << 64) - 4)
        for what in (
            "ld.global.b32 %r0, [%rd0]",
            "st.global.v4.b32 [%rd0], {%r0, %r0, %r0, %r0}",
            "atom.global.add.u32 %r0, [%rd0], 1",
            "red.global.min.s64 [%rd0], %rd2",
            "ld.global.nc.b8 %r0, [%rd0]",
            "ld.const.b32 %r0, [%rd0]",
            "ld.volatile.global.b64 %rd2, [%rd0]",
            "st.release.gpu.global.b32 [%rd0], %r0",
            "ld.b32 %r0, [%rd0]",
            "st.b8 [%rd0], %r0",
            "atom.cas.b32 %r0, [%rd0], 1, 2",
            "cp.async.ca.shared.global [words], [%rd0], 16",
        )
    ),
    *(
        (f"{what};", at)
        for at in (256 << 10, 1 << 24, (1 << 32) - 16, (1 << 40) - 16)
        for what in (
            "ld.shared.b32 %r0, [%rd0]",
            "st.shared.b64 [%rd0], %rd2",
            "atom.shared.inc.u32 %r0, [%rd0], 5",
            "ld.shared.v2.b64 {%rd2, %rd1}, [%rd0]",
        )
    ),
    *(
        (f"{what};", at)
        for at in (256 << 10, (1 << 32) - 16)
        for what in (
            "ld.shared.b32 %r0, [%r1]",
            "st.shared.b8 [%r1], %r0",
            "cp.async.ca.shared.global [%r1], [%rd0], 4",
        )
    ),
    *(
        (f"{what};", at)
        for at in (16, 4096, FAR, (1 << 64) - 8)
        for what in (
            "ld.local.b32 %r0, [%rd0]",
            "st.local.b64 [%rd0], %rd2",
            "ld.local.b8 %r0, [%rd0]",
        )
    ),
    *(
        (f"{what};", tag << 40 | at)
        for tag, at in (
            (0x10, 256 << 10),
            (0x11, 16),
            (0x12, 64),
            (0x13, 0),
            (0x14, 16),
            (0x11, FAR),
        )
        for what in ("ld.b32 %r0, [%rd0]", "st.b32 [%rd0], %r0", "atom.exch.b32 %r0, [%rd0], 3")
    ),
    *(
        (f"{what};", at)
        for at in (16, 1 << 20, FAR)
        for what in ("ld.param.b32 %r0, [%rd0]", "ld.param.b64 %rd2, [%rd0]")
    ),
    # 128 bits that are not aligned, too
    *(
        (f"{what};", at)
        for at in (0, DEV_BASE + CHUNK + 8)
        for what in ("atom.global.exch.b128 %q, [%rd0], %q",)
    ),
]


def test_strays_in_every_space(kernels: Loader, module: ModuleInfo) -> None:
    """Wherever an address leads and whatever is done there: the rank's error, and nothing else."""
    instructions = sorted({instruction for instruction, _ in STRAYS})
    entries = [
        REGISTERS.replace("stray", f"stray{i}") + what + RESULTS
        for i, what in enumerate(instructions)
    ]
    head, entries = entries[0], [entry[entry.index(".visible") :] for entry in entries[1:]]
    whole = kernels.module("\n".join([head, *entries]).encode(), 1)
    for instruction, where in STRAYS:
        with Device() as device:
            space, name = device.space(), f"stray{instructions.index(instruction)}"
            space.launch(kernels.function(whole, name), 1, 1, where, space.alloc(16))
            code, text = space.error()
            expected = (ILLEGAL_ADDRESS, MISALIGNED) if where % 16 else (ILLEGAL_ADDRESS,)
            assert code in expected and name in text, f"{instruction} at {where:#x}: {text}"
            assert works(kernels, module, device.space())


INDEXED = """.version 8.6
.target sm_90
.address_size 64
.visible .entry at(.param .u64 base, .param .u32 index)
{
    .shared .align 16 .b8 words[64]; .reg .b32 %r<6>; .reg .b64 %rd<6>; .reg .b128 %q;
    ld.param.u64 %rd0, [base]; ld.param.u32 %r0, [index];
    mov.u64 %rd1, words; mul.wide.u32 %rd2, %r0, 4; mov.b32 %r5, 0; mov.b32 %r2, 0;
    mov.b128 %q, {%rd2, %rd2};
    add.s64 %rd3, %rd0, %rd2; // %rd0 + 4 * index
    shl.b32 %r1, %r0, 2; mul.wide.s32 %rd4, %r1, 4;
    add.s64 %rd5, %rd0, %rd4; // %rd0 + 16 * index
"""
USED = """
    and.b64 %rd1, %rd0, -16; st.global.b32 [%rd1+512], %r2; st.global.b64 [%rd1+520], %rd2;
    mov.b128 {%rd1, %rd2}, %q; st.shared.b64 [words], %rd2;
    ret;
}
"""
# The instruction, the base's offset from a multiple of 16, the index, and whether it is aligned.
ALIGNMENTS = [
    ("ld.global.b32 %r2, [%rd0]", 4, 0, True),
    ("ld.global.b8 %r2, [%rd0]", 7, 0, True),
    ("st.global.b64 [%rd0+4], %rd2", 4, 0, True),
    ("st.global.b64 [%rd0+4], %rd2", 8, 0, False),
    ("ld.global.v2.b32 {%r2, %r3}, [%rd3]", 8, 2, True),
    ("ld.global.v2.b32 {%r2, %r3}, [%rd3]", 8, 3, False),
    ("ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd3]", 0, 4, True),
    ("ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd3]", 4, 3, True),
    ("ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd3]", 0, 3, False),
    ("st.global.v4.b32 [%rd5], {%r5, %r5, %r5, %r5}", 0, 3, True),
    ("st.global.v4.b32 [%rd5+4], {%r5, %r5, %r5, %r5}", 12, 3, True),
    ("st.global.v4.b32 [%rd5], {%r5, %r5, %r5, %r5}", 8, 3, False),
    ("st.v2.b64 [%rd5], {%rd0, %rd0}", 8, 1, False),
    ("ld.b64 %rd2, [%rd0]", 4, 0, False),
    ("ld.b64 %rd2, [%rd0]", 8, 0, True),
    ("ld.global.b128 %q, [%rd5]", 8, 0, False),
    ("atom.global.add.u32 %r2, [%rd3], 1", 4, 1, True),
    ("red.global.max.u64 [%rd3], %rd2", 0, 1, False),
    ("cp.async.cg.shared.global [%rd1], [%rd5], 16", 0, 1, True),
    ("cp.async.cg.shared.global [%rd1], [%rd5], 16", 4, 1, False),
]


def test_an_address_of_eight_bytes_or_more_is_a_multiple_of_the_size(
    kernels: Loader, module: ModuleInfo
) -> None:
    instructions = sorted({instruction for instruction, *_ in ALIGNMENTS})
    head, body = INDEXED.split(".visible", 1)
    entries = [
        ".visible" + body.replace("at(", f"at{i}(") + f"{what};" + USED
        for i, what in enumerate(instructions)
    ]
    whole = kernels.module((head + "".join(entries)).encode(), 1)
    for instruction, distance, index, aligned in ALIGNMENTS:
        with Device() as device:
            space, name = device.space(), f"at{instructions.index(instruction)}"
            where = space.alloc(4096) + distance
            space.launch(kernels.function(whole, name), 2, 64, where, index)
            code, text = space.error()
            assert code == (0 if aligned else MISALIGNED), f"{instruction}, {distance}: {text}"
            assert aligned or (name in text and "misaligned" in text)
            assert works(kernels, module, device.space())


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
        ("wgmma.fence.sync.aligned;", "wgmma compute_90"),
        ("tex.2d.v4.f32.s32 {%f0,%f1,%f2,%f3}, [t, {%r0,%r1}];", "tex linear"),
        ("cvt.rn.satfinite.e2m1x2.f32 %h0, %f0, %f1;", "e2m1x2"),
        ("cp.async.bulk.prefetch.L2.global [%rd0], 16;", "cp.async.bulk.prefetch"),
        ("mov.u32 %r0, %pm0;", "pm0"),
    ],
)
def test_unimplemented_instructions_are_named(kernels: Loader, body: str, named: str) -> None:
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
    for word in ("strange", *named.split()):
        assert word in caught.value.message


def test_many_faults_leave_the_workers_alive(kernels: Loader, module: ModuleInfo) -> None:
    with Device(workers=2) as device:
        healthy = device.space()
        for index in range(50):
            space = device.space()
            space.launch(kernels.function(module, "write_at"), 1, 1, DEV_BASE + CHUNK, index)
            assert space.error()[0] == ILLEGAL_ADDRESS
        assert works(kernels, module, healthy)
