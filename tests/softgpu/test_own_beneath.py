"""A read-only page of the software GPU gets a chunk of its own while kernels run: who reads there
cannot tell, and what a kernel writes there at that moment is not lost."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.harness import CHUNK, Device, Space, ffi
from softgpu.test_read_only import HEAD, KERNELS, same, sharing

INVALID_VALUE, NOT_READY = 1, 600

WATCH = (
    HEAD
    + """
.visible .entry watch(.param .u64 base, .param .u32 bytes, .param .u64 stop, .param .u64 out)
{   // counts words that are not 0x5a5a5a5a, until `stop`; at out: how many, rounds, has begun
    .reg .b32 %r<6>; .reg .b64 %rd<5>; .reg .pred %p<3>;
    ld.param.u64 %rd0, [base]; ld.param.u32 %r0, [bytes]; ld.param.u64 %rd1, [stop];
    ld.param.u64 %rd2, [out]; mov.u32 %r2, 0; mov.u32 %r5, 0;
    mov.u32 %r4, 1; st.volatile.global.u32 [%rd2+8], %r4;
$again:
    mov.u32 %r1, 0;
$next:
    cvt.u64.u32 %rd3, %r1; add.u64 %rd4, %rd0, %rd3;
    ld.volatile.global.u32 %r3, [%rd4];
    setp.ne.u32 %p0, %r3, 0x5a5a5a5a;
    @%p0 add.u32 %r2, %r2, 1;
    add.u32 %r1, %r1, 1028;
    setp.lt.u32 %p1, %r1, %r0;
    @%p1 bra $next;
    add.u32 %r5, %r5, 1;
    ld.volatile.global.u32 %r4, [%rd1];
    setp.eq.u32 %p2, %r4, 0;
    @%p2 bra $again;
    st.global.u32 [%rd2], %r2; st.global.u32 [%rd2+4], %r5;
    ret;
}
"""
)


def new_chunk(space: Space) -> int:
    chunk = ffi.new("uint32_t *")
    assert space.hal.chunk_create(space.device.handle, chunk) == 0
    return int(chunk[0])


def own(space: Space, address: int, chunk: int) -> int:
    return int(space.hal.space_own(space.handle, address, chunk))


def wait_for_reader(space: Space, out: int) -> None:
    while not space.read(out + 8, 1, np.uint32)[0]:
        time.sleep(0.001)


def test_a_concurrent_reader_sees_no_difference(kernels: Loader) -> None:
    pages = 6
    watch = kernels.function(kernels.module(WATCH.encode(), 1), "watch")
    data = np.full(pages * CHUNK, 0x5A, np.uint8)
    with Device(workers=2, memory=32 * CHUNK) as device:
        one, two, at = sharing(device, data)
        one.mapped = one.next = at + pages * CHUNK
        stop, out = one.put(np.zeros(CHUNK, np.uint8)), one.put(np.zeros(3, np.uint32))
        other = device.new_stream()
        work, kept = one.kernel_work(watch, 1, 1, at, pages * CHUNK, stop, out)
        number = device.submit(work, other)
        wait_for_reader(one, out)
        scratch = device.space()
        for page in range(pages):
            chunk = new_chunk(one)
            assert scratch.map(at + page * CHUNK, chunk) == 0
            scratch.write(at + page * CHUNK, data[:CHUNK])
            assert own(one, at + page * CHUNK, chunk) == 0
            assert own(one, at + page * CHUNK, chunk) == NOT_READY, "it is writable"
        one.write(stop, np.ones(1, np.uint32))
        device.wait(number, other)
        one.check()
        assert kept is not None and one.copied() == {}
        mismatches, rounds = one.read(out, 2, np.uint32)
        assert rounds > 0 and mismatches == 0
        one.write(at, np.zeros(pages * CHUNK, np.uint8))
        assert same(two, at, data) and not one.read(at, pages * CHUNK, np.uint8).any()


@pytest.mark.parametrize("turn", range(3))
def test_a_concurrent_reader_of_zeros_does_not_see_what_the_chunk_held(
    kernels: Loader, turn: int
) -> None:
    del turn
    pages = 48
    text = WATCH.replace("0x5a5a5a5a", "0")
    text = text.replace("1028", str(CHUNK // 32 + 4))  # often in each page: zeros are written soon
    watch = kernels.function(kernels.module(text.encode(), 1), "watch")
    with Device(workers=2, memory=160 * CHUNK) as device:
        one, _, at = sharing(device, np.zeros(pages * CHUNK, np.uint8))
        one.mapped = one.next = at + pages * CHUNK
        held = device.space()
        old = held.put(np.full(pages * CHUNK, 7, np.uint8))
        for page in range(pages):
            assert device.hal.space_unmap(held.handle, old + page * CHUNK) == 0
            device.hal.chunk_destroy(device.handle, held.chunks[page])
        taken = [new_chunk(one) for _ in range(pages)]
        assert set(taken) == set(held.chunks)
        held.chunks.clear()
        stop, out = one.put(np.zeros(CHUNK, np.uint8)), one.put(np.zeros(3, np.uint32))
        other = device.new_stream()
        work, kept = one.kernel_work(watch, 1, 1, at, pages * CHUNK, stop, out)
        number = device.submit(work, other)
        wait_for_reader(one, out)
        for page in range(pages):
            assert own(one, at + page * CHUNK, taken[page]) == 0
            time.sleep(0.002)  # lets the reader run, on a busy machine too
        one.write(stop, np.ones(1, np.uint32))
        device.wait(number, other)
        one.check()
        assert kept is not None
        mismatches, rounds = one.read(out, 2, np.uint32)
        assert rounds > 0 and mismatches == 0


@pytest.mark.parametrize("opened", [False, True])
def test_no_addition_is_lost(kernels: Loader, opened: bool) -> None:
    """Nothing is copied if the page is made writable as it is."""
    pages, threads = 8, 1 << 17
    spread = kernels.function(kernels.module(KERNELS.encode(), 1), "spread")
    for _ in range(6):
        with Device(workers=2, memory=32 * CHUNK) as device:
            zeros = np.zeros(pages * CHUNK, np.uint8)
            one, two, at = sharing(device, zeros)
            new = [new_chunk(one) for _ in range(pages)]
            queues = [device.stream, device.new_stream()]
            work, kept = one.kernel_work(spread, threads // 256, 256, at, pages)
            numbers = [device.submit(work, queue) for queue in queues]
            told: list[int] = []
            for page in reversed(range(pages)):
                where = at + page * CHUNK
                if opened:
                    assert one.protect(where, 1, True) == 0
                else:
                    told.append(own(one, where, new[page]))
            for number, queue in zip(numbers, queues, strict=True):
                device.wait(number, queue)
            one.check()
            copied = one.copied()
            assert kept is not None and set(told) <= {0, NOT_READY}
            if not opened:
                assert len(copied) == told.count(NOT_READY)
                assert same(two, at, zeros)
            words = one.read(at, pages * CHUNK // 4, np.uint32).reshape(pages, -1)
            assert (words[:, : threads // pages] == 2).all()


def test_unmapped_pages_cannot_be_owned(device: Device) -> None:
    space = device.space()
    at = space.alloc(CHUNK)
    chunk = new_chunk(space)
    for address, number in ((at - CHUNK, chunk), (at + 4096, chunk), (0, chunk), (at, 1 << 20)):
        assert own(space, address, number) == INVALID_VALUE
