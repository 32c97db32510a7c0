"""Chunks, spaces, queues, copies, fills and the arithmetic of collectives."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softgpu.harness import CHUNK, DEV_BASE, Device, Space, ffi
from support import native

OUT_OF_MEMORY, INVALID_VALUE, ILLEGAL_ADDRESS = 2, 1, 700
PINNED = DEV_BASE + (1 << 39)


def test_capacity_and_zeroed_chunks() -> None:
    with Device(memory=3 * CHUNK) as device:
        space = device.space()
        at = space.put(np.full(3 * CHUNK // 4, 7, np.uint32))
        chunk = ffi.new("uint32_t *")
        assert device.hal.chunk_create(device.handle, chunk) == OUT_OF_MEMORY
        assert device.hal.space_unmap(space.handle, at + CHUNK) == 0
        device.hal.chunk_destroy(device.handle, space.chunks[1])
        assert device.hal.chunk_create(device.handle, chunk) == 0
        assert device.hal.space_map(space.handle, at + CHUNK, chunk[0], True) == 0
        got = space.read(at, 3 * CHUNK // 4, np.uint32).reshape(3, -1)
        assert (got[0] == 7).all() and (got[1] == 0).all() and (got[2] == 7).all()


def held_by_the_host() -> int:
    """Bytes that the chunks of all devices of this process take."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "rankfold-device" in str(link.readlink()):
                stat = link.stat()
                found[stat.st_ino] = stat.st_blocks * 512
    return sum(found.values())


def test_chunks_that_are_overwritten_keep_the_hosts_pages() -> None:
    """Free ones keep them, some; whoever takes one to be read as zero gets zeros; a device that is
    empty has no memory of the host's."""
    before, stay, chunks = held_by_the_host(), 64, 70
    with Device(memory=chunks * CHUNK) as device:
        space, chunk = device.space(), ffi.new("uint32_t *")
        at = space.put(np.full(chunks * CHUNK // 4, 7, np.uint32))

        def chunks_held() -> int:
            return (held_by_the_host() - before) // CHUNK

        def leave(n: int) -> None:
            assert device.hal.space_unmap(space.handle, at + n * CHUNK) == 0
            device.hal.chunk_destroy(device.handle, space.chunks[n])

        leave(0)
        leave(1)
        assert chunks_held() == chunks
        for n, create in enumerate((device.hal.chunk_create_unclean, device.hal.chunk_create)):
            assert create(device.handle, chunk) == 0
            assert device.hal.space_map(space.handle, at + n * CHUNK, chunk[0], True) == 0
            space.chunks[n] = chunk[0]
        assert chunks_held() == chunks, "what is there is written over"
        assert (space.read(at + CHUNK, CHUNK // 4, np.uint32) == 0).all()
        for n in range(chunks - 1):
            leave(n)
        assert chunks_held() == stay + 1
        leave(chunks - 1)
        assert chunks_held() == 0
        space.chunks.clear()


MADV_COLLAPSE, PR_SET_THP_DISABLE, MAP_FIXED = 25, 41, 16
LIBC = ctypes.CDLL(None, use_errno=True)


def huge_pages() -> int:
    """How many huge pages this process has mapped of the chunks of all devices."""
    mappings = Path("/proc/self/smaps").read_text().split("rankfold-device")[1:]
    sizes = [re.search(r"ShmemPmdMapped: *([0-9]+) kB", each) for each in mappings]
    return sum(int(size[1]) for size in sizes if size) * 1024 // CHUNK


def system_makes_huge_pages() -> bool:
    """Returns whether a memfd's small pages become a huge one on request."""
    fd = os.memfd_create("probe")
    os.ftruncate(fd, CHUNK)
    os.pwrite(fd, b"content", 0)
    reserved = mmap.mmap(-1, 2 * CHUNK)
    start = ctypes.addressof(ctypes.c_char.from_buffer(reserved))
    at = start + -start % CHUNK
    access, how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED
    assert LIBC.mmap(ctypes.c_void_p(at), CHUNK, access, how, fd, 0) != -1
    os.close(fd)
    return int(LIBC.madvise(ctypes.c_void_p(at), CHUNK, MADV_COLLAPSE)) == 0


def test_chunks_that_are_not_touched_take_nothing_of_the_host() -> None:
    before = held_by_the_host()
    with Device(memory=64 * CHUNK) as device:
        device.space().alloc(64 * CHUNK)
        assert held_by_the_host() == before


@pytest.mark.parametrize("refused", [False, True])
def test_chunks_that_are_used_again_are_huge_pages(refused: bool) -> None:
    """Their content is the same with small ones, and a device soon requests no more of them."""
    if not refused and not system_makes_huge_pages():
        pytest.skip("the system makes no huge pages: Linux before 6.1, or shmem_enabled is deny")
    chunks = 20
    values = np.arange(chunks * CHUNK // 4, dtype=np.uint32)
    LIBC.prctl(PR_SET_THP_DISABLE, int(refused), 0, 0, 0)
    try:
        with Device(memory=chunks * CHUNK) as device:
            space, number = device.space(), ffi.new("uint32_t *")
            at = space.put(values)
            assert huge_pages() == 0, "they may never be touched"
            for n, chunk in enumerate(space.chunks):
                assert device.hal.space_unmap(space.handle, at + n * CHUNK) == 0
                device.hal.chunk_destroy(device.handle, chunk)
                assert device.hal.chunk_create_unclean(device.handle, number) == 0
                assert space.map(at + n * CHUNK, number[0]) == 0
                space.chunks[n] = number[0]
            space.write(at, values)
            assert huge_pages() == (0 if refused else chunks)
            for n, chunk in enumerate(space.chunks):
                assert device.hal.space_unmap(space.handle, at + n * CHUNK) == 0
                assert space.map(at + n * CHUNK, chunk) == 0
            assert (space.read(at, len(values), np.uint32) == values).all()
            assert huge_pages() == (0 if refused else chunks)
    finally:
        LIBC.prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


@pytest.mark.parametrize("how", ["writable", "read-only", "owned", "let go and taken again"])
def test_memory_that_held_something_is_taken_as_zeros(how: str) -> None:
    with Device(memory=3 * CHUNK) as device:
        space, chunk = device.space(), ffi.new("uint32_t *")
        at = space.put(np.full(2 * CHUNK // 4, 7, np.uint32))
        assert device.hal.space_unmap(space.handle, at) == 0
        device.hal.chunk_destroy(device.handle, space.chunks[0])
        assert device.hal.chunk_create(device.handle, chunk) == 0
        assert chunk[0] == space.chunks[0]
        if how == "let go and taken again":
            device.hal.chunk_destroy(device.handle, chunk[0])
            assert device.hal.chunk_create(device.handle, chunk) == 0
        if how == "owned":
            assert space.map(at, space.chunks[1], writable=False) == 0
            assert device.hal.space_own(space.handle, at, chunk[0]) == 0
        else:
            assert space.map(at, chunk[0], writable=how != "read-only") == 0
        assert (space.read(at, CHUNK // 4, np.uint32) == 0).all()
        if how != "read-only":
            space.write(at, np.full(CHUNK // 4, 5, np.uint32))
            assert space.protect(at, 1, writable=False) == 0
            assert space.map(at, chunk[0]) == 0, "mapped anew it has what was written"
            assert (space.read(at, CHUNK // 4, np.uint32) == 5).all()


def test_map_refuses_what_is_outside_or_crooked(device: Device, space: Space) -> None:
    chunk = ffi.new("uint32_t *")
    assert device.hal.chunk_create(device.handle, chunk) == 0
    for address in (DEV_BASE + 4096, DEV_BASE - CHUNK, DEV_BASE + (1 << 40), 0):
        assert device.hal.space_map(space.handle, address, chunk[0], True) == INVALID_VALUE
    assert device.hal.space_map(space.handle, DEV_BASE, 1 << 20, True) == INVALID_VALUE


def test_spaces_share_nothing_but_what_is_mapped_twice(device: Device) -> None:
    one, two = device.space(), device.space()
    a, b = one.put(np.arange(100)), two.put(np.arange(100) * 2)
    assert a == b
    np.testing.assert_array_equal(one.read(a, 100, np.int64), np.arange(100))
    assert device.hal.space_unmap(two.handle, b) == 0
    assert device.hal.space_map(two.handle, b, one.chunks[0], True) == 0
    np.testing.assert_array_equal(two.read(b, 100, np.int64), np.arange(100))


def test_host_memory_in_the_window(device: Device, space: Space) -> None:
    fd = os.memfd_create("arena")
    os.ftruncate(fd, 1 << 16)
    assert device.hal.space_map_host(space.handle, PINNED, fd, 4096, 8192) == 0
    space.write(PINNED + 100, np.arange(10, dtype=np.int32))
    assert os.pread(fd, 40, 4196) == np.arange(10, dtype=np.int32).tobytes()
    assert device.hal.space_map_host(space.handle, PINNED + 7, fd, 4096, 8192) == INVALID_VALUE
    os.close(fd)


@settings(max_examples=30)
@given(
    width=st.integers(1, 70),
    height=st.integers(0, 9),
    gaps=st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_copy_of_rows(width: int, height: int, gaps: tuple[int, int]) -> None:
    with Device() as device:
        one, two = device.space(), device.space()
        rng = np.random.default_rng(1)
        source = rng.integers(0, 256, (9, width + gaps[0])).astype(np.uint8)
        target = rng.integers(0, 256, (9, width + gaps[1])).astype(np.uint8)
        src, dst = one.put(source), two.put(target)
        work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_COPY})
        copy = work.copy
        copy.dst.space, copy.dst.addr, copy.dst_pitch = two.handle, dst, width + gaps[1]
        copy.src.space, copy.src.addr, copy.src_pitch = one.handle, src, width + gaps[0]
        copy.width, copy.height = width, height
        device.run(work)
        target[:height, :width] = source[:height, :width]
        np.testing.assert_array_equal(
            two.read(dst, target.size, np.uint8).reshape(target.shape), target
        )


@pytest.mark.parametrize(("element", "value"), [(1, 0xAB), (2, 0xBEEF), (4, 0xDEADBEEF)])
def test_fill(device: Device, space: Space, element: int, value: int) -> None:
    at = space.put(np.zeros(1000, np.uint8))
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_FILL})
    fill = work.fill
    fill.dst.space, fill.dst.addr = space.handle, at + 4
    fill.width, fill.height, fill.pitch, fill.value, fill.element = 5, 3, 100, value, element
    device.run(work)
    wanted = np.zeros(1000, np.uint8)
    for row in range(3):
        pattern = np.frombuffer(value.to_bytes(4, "little")[:element] * 5, np.uint8)
        wanted[4 + 100 * row : 4 + 100 * row + 5 * element] = pattern
    np.testing.assert_array_equal(space.read(at, 1000, np.uint8), wanted)


def test_copies_outside_of_what_is_mapped_fail_the_space_only(device: Device) -> None:
    good = device.space()
    at = good.put(np.arange(10))
    for address, nbytes in (
        (DEV_BASE + 64 * CHUNK, 8),
        (at + CHUNK - 8, 16),
        (DEV_BASE + (1 << 40) - 4, 8),
    ):
        bad = device.space()
        bad.put(np.arange(10))
        bad.write(address, np.zeros(nbytes, np.uint8))
        code, text = bad.error()
        assert code == ILLEGAL_ADDRESS and "copy" in text
        before = bad.read(at, 1, np.int64)  # skipped, but over
        assert before[0] == 0
    np.testing.assert_array_equal(good.read(at, 10, np.int64), np.arange(10))
    good.check()


def test_a_full_queue_refuses_and_keeps_its_order(device: Device, space: Space) -> None:
    at = space.put(np.zeros(4, np.uint8))
    room = device.hal.available(device.stream)
    assert room >= 64
    last = 0
    accepted = 0
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_FILL})
    work.fill.dst.space, work.fill.dst.addr = space.handle, at
    work.fill.width, work.fill.height, work.fill.element = 4, 1, 1
    for index in range(1000):
        work.fill.value = index & 255
        number = device.hal.submit(device.stream, work)
        if number == 0:
            continue
        accepted += 1
        assert number == last + 1 or last == 0
        last, value = number, index & 255
    device.wait(last)
    assert accepted >= room
    np.testing.assert_array_equal(space.read(at, 4, np.uint8), [value] * 4)


COUNT = 1_000_000
ENOUGH_S = 20.0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_each_work_is_done_once_however_it_comes(workers: int, tmp_path: Path) -> None:
    """Submitted at the moment when the worker has nothing more to do, or just before or after."""
    value, three, one = np.zeros(1, np.uint64), np.full(1, 3, np.uint64), np.ones(1, np.uint64)
    many = ctypes.CDLL(str(native.build(tmp_path, [Path(__file__).with_name("submit.c")])))
    many.submit_many.restype = ctypes.c_uint64
    with Device(workers=workers) as device:
        works = ffi.new("struct hal_work[2]")
        for work, op, operand in zip(works, (1, 0), (three, one), strict=True):  # times 3, plus 1
            work.kind = device.lib.HAL_REDUCE
            work.reduce.dst.addr = work.reduce.a.addr = value.ctypes.data
            work.reduce.b.addr = operand.ctypes.data
            work.reduce.count, work.reduce.dtype, work.reduce.op = 1, 5, op
        table = ffi.addressof(device.hal)
        pointers = (int(ffi.cast("uintptr_t", p)) for p in (table, device.stream, works))
        number = many.submit_many(*map(ctypes.c_void_p, pointers), COUNT, ctypes.c_double(ENOUGH_S))
        device.wait(number)
    assert number == COUNT or (number % 2 == 0 and number >= 1000)
    expected = 0
    for _ in range(number // 2):
        expected = (3 * expected + 1) % 2**64
    assert value[0] == expected


def test_streams_run_concurrently() -> None:
    with Device(workers=2) as device:
        space = device.space()
        streams = [device.new_stream() for _ in range(5)]
        at = space.put(np.zeros((5, 1 << 16), np.uint8))
        numbers = []
        for round_ in range(20):
            for index, stream in enumerate(streams):
                work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_FILL})
                work.fill.dst.space, work.fill.dst.addr = space.handle, at + (index << 16)
                work.fill.width, work.fill.height, work.fill.element = 1 << 16, 1, 1
                work.fill.value = round_ + index
                numbers.append((device.submit(work, stream), stream))
        for number, stream in numbers:
            device.wait(number, stream)
        got = space.read(at, 5 << 16, np.uint8).reshape(5, -1)
        assert (got == 19 + np.arange(5)[:, None]).all()


# ---- the arithmetic of collectives -------------------------------------------------------------

TYPES = {
    0: np.int8,
    1: np.uint8,
    2: np.int32,
    3: np.uint32,
    4: np.int64,
    5: np.uint64,
    6: np.float16,
    7: np.float32,
    8: np.float64,
}
BFLOAT16 = 9


def _values(dtype: Any, seed: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, 500, dtype=dtype, endpoint=True)
    with np.errstate(all="ignore"):
        values = (rng.standard_normal(500) * np.exp2(rng.uniform(-20, 20, 500))).astype(dtype)
    values[rng.permutation(500)[:60]] = np.tile(
        np.array([0.0, -0.0, np.inf, -np.inf, np.nan, np.finfo(dtype).smallest_subnormal]), 10
    ).astype(dtype)
    return values


def _reduce(device: Device, dtype: int, op: int, a: Any, b: Any) -> Any:
    out = np.empty_like(a)
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_REDUCE})
    refs = (work.reduce.dst, work.reduce.a, work.reduce.b)
    for ref, array in zip(refs, (out, a, b), strict=True):
        ref.addr = array.ctypes.data
    work.reduce.count, work.reduce.dtype, work.reduce.op = len(a), dtype, op
    device.run(work)
    return out


def _maximum(a: Any, b: Any, larger: bool) -> Any:
    if np.issubdtype(a.dtype, np.integer):
        return np.maximum(a, b) if larger else np.minimum(a, b)
    pick = np.fmax(a, b) if larger else np.fmin(a, b)
    positive = (~np.signbit(a) | ~np.signbit(b)) if larger else (~np.signbit(a) & ~np.signbit(b))
    return np.where((a == 0) & (b == 0), np.where(positive, 0.0, -0.0).astype(a.dtype), pick)


def _same(got: Any, wanted: Any) -> None:
    unsigned = f"uint{8 * got.itemsize}"
    nan = np.isnan(got) & np.isnan(wanted)
    np.testing.assert_array_equal(
        np.where(nan, 0, got.view(unsigned)), np.where(nan, 0, wanted.view(unsigned))
    )
    assert len(set(got.view(unsigned)[nan].tolist())) <= 1, "NaN has one pattern"


@pytest.mark.parametrize("dtype", TYPES)
def test_reduce(device: Device, dtype: int) -> None:
    a, b = _values(TYPES[dtype], 1), _values(TYPES[dtype], 2)
    with np.errstate(all="ignore"):
        for op, wanted in enumerate((a + b, a * b, _maximum(a, b, True), _maximum(a, b, False))):
            _same(_reduce(device, dtype, op, a, b), wanted.astype(a.dtype))


def _to_bfloat16(x: Any) -> Any:
    bits = x.view(np.uint32).astype(np.uint64)
    return np.where(np.isnan(x), 0x7FFF, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def test_reduce_bfloat16(device: Device) -> None:
    a, b = (_to_bfloat16(_values(np.float32, s)) for s in (1, 2))
    wide = [(x.astype(np.uint32) << 16).view(np.float32) for x in (a, b)]
    with np.errstate(all="ignore"):
        for op, wanted in enumerate((wide[0] + wide[1], wide[0] * wide[1])):
            np.testing.assert_array_equal(_reduce(device, BFLOAT16, op, a, b), _to_bfloat16(wanted))


def _scale(device: Device, dtype: int, a: Any, scalar: Any, divisor: int) -> Any:
    out = np.empty_like(a)
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_SCALE})
    work.scale.dst.addr, work.scale.a.addr = out.ctypes.data, a.ctypes.data
    work.scale.count, work.scale.dtype, work.scale.divide, work.scale.divisor = (
        len(a),
        dtype,
        divisor > 0,
        divisor,
    )
    if scalar is not None:
        work.scale.scalar = scalar.tobytes().ljust(8, b"\0")
    device.run(work)
    return out


@pytest.mark.parametrize("dtype", TYPES)
def test_scale(device: Device, dtype: int) -> None:
    a = _values(TYPES[dtype], 1)
    with np.errstate(all="ignore"):
        _same(_scale(device, dtype, a, a.dtype.type(3), 0), (a * a.dtype.type(3)).astype(a.dtype))
        if np.issubdtype(a.dtype, np.integer):
            wanted = np.array([int(abs(int(x)) // 3 * (1 if x > 0 else -1)) for x in a]).astype(
                a.dtype
            )
        else:
            wanted = (a / a.dtype.type(3)).astype(a.dtype)
        _same(_scale(device, dtype, a, None, 3), wanted)


@pytest.mark.parametrize("dtype", [10, 11, 99])
def test_unknown_types_are_refused(device: Device, dtype: int) -> None:
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_REDUCE})
    work.reduce.dtype = dtype
    assert device.hal.submit(device.stream, work) == 0
    assert device.hal.completed(device.stream) == 0
