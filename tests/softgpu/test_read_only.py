"""Read-only mappings on the software GPU: a kernel that writes there continues with a copy of its
own, and who maps the same chunk never sees it. (Other work, for both kinds of devices:
tests/nvidia/test_read_only.py.)"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold.proxy.hal.soft.modules import Loader
from softgpu.harness import CHUNK, DEV_BASE, Device, Space, ffi

OUT_OF_MEMORY, INVALID_VALUE, ILLEGAL_ADDRESS, LAUNCH_FAILED = 2, 1, 700, 719
NOT_READY = 600
HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"

FORM = (
    HEAD
    + """
.visible .entry write(.param .u64 where)
{
    .reg .b32 %%r<3>; .reg .b64 %%rd<4>; .reg .f32 %%f<2>; .reg .b16 %%h<2>;
    ld.param.u64 %%rd0, [where];
    mov.u32 %%r1, %%tid.x; mul.wide.u32 %%rd1, %%r1, 16; add.u64 %%rd0, %%rd0, %%rd1;
    mov.b32 %%r0, 0x5a5a5a5a; mov.b64 %%rd2, 0xfedcba9876543210; mov.f32 %%f0, 0f3F800000;
    mov.b16 %%h0, 0x1234;
    %s;
    ret;
}
"""
)
FORMS = [
    "st.global.b8 [%rd0], %r0",
    "st.global.b16 [%rd0], %h0",
    "st.global.b32 [%rd0], %r0",
    "st.global.b64 [%rd0], %rd2",
    "st.global.v2.b64 [%rd0], {%rd2, %rd2}",
    "st.global.v4.b32 [%rd0], {%r0, %r1, %r0, %r1}",
    "st.b32 [%rd0], %r0",
    "st.volatile.global.b32 [%rd0], %r0",
    "st.release.gpu.global.b32 [%rd0], %r0",
    "atom.global.add.u32 %r2, [%rd0], 1",
    "atom.global.exch.b64 %rd3, [%rd0], %rd2",
    "atom.global.cas.b32 %r2, [%rd0], 0, 7",
    "atom.add.f32 %f1, [%rd0], %f0",
    "atom.global.inc.u32 %r2, [%rd0], 1000",
    "atom.global.max.u64 %rd3, [%rd0], %rd2",
    "red.global.add.u32 [%rd0], 3",
    "red.global.xor.b32 [%rd0], %r0",
    "red.global.min.s64 [%rd0], %rd2",
    "red.global.add.f32 [%rd0], %f0",
]

KERNELS = (
    HEAD
    + """
.visible .entry spread(.param .u64 base, .param .u32 pages)
{   // thread i adds 1 to word i / pages of page i % pages
    .reg .b32 %r<8>; .reg .b64 %rd<4>;
    ld.param.u64 %rd0, [base]; ld.param.u32 %r0, [pages];
    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    rem.u32 %r5, %r4, %r0; div.u32 %r6, %r4, %r0;
    mul.wide.u32 %rd1, %r5, 2097152; mul.wide.u32 %rd2, %r6, 4;
    add.u64 %rd0, %rd0, %rd1; add.u64 %rd0, %rd0, %rd2;
    red.global.add.u32 [%rd0], 1;
    ret;
}
.visible .entry poke(.param .u64 one, .param .u64 two, .param .u32 value)
{   // thread 0 writes at `one`, thread 1 at `two`
    .reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p<1>;
    ld.param.u64 %rd0, [one]; ld.param.u64 %rd1, [two]; ld.param.u32 %r0, [value];
    mov.u32 %r1, %tid.x; setp.eq.u32 %p0, %r1, 0;
    @%p0 st.global.b32 [%rd0], %r0;
    @!%p0 st.global.b32 [%rd1], %r0;
    ret;
}
.visible .entry bump(.param .u64 one, .param .u64 two, .param .u32 value)
{   // the same, atomically
    .reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p<1>;
    ld.param.u64 %rd0, [one]; ld.param.u64 %rd1, [two]; ld.param.u32 %r0, [value];
    mov.u32 %r1, %tid.x; setp.eq.u32 %p0, %r1, 0;
    @%p0 atom.global.exch.b32 %r2, [%rd0], %r0;
    @!%p0 atom.global.exch.b32 %r2, [%rd1], %r0;
    ret;
}
.visible .entry forward(.param .u64 from, .param .u64 to)
{
    .reg .b32 %r<2>; .reg .b64 %rd<2>;
    ld.param.u64 %rd0, [from]; ld.param.u64 %rd1, [to];
    ld.global.b32 %r0, [%rd0]; st.global.b32 [%rd1], %r0;
    ret;
}
"""
)


@pytest.fixture(scope="module")
def function(kernels: Loader) -> Any:
    module = kernels.module(KERNELS.encode(), 1)
    return lambda name: kernels.function(module, name)


def some(seed: int, chunks: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, chunks * CHUNK, np.uint8)


def sharing(device: Device, data: np.ndarray[Any, Any]) -> tuple[Space, Space, int]:
    """Two spaces that map the same chunks, with this content, and where: read-only."""
    one, two = device.space(), device.space()
    at = one.put(data)
    assert one.protect(at, len(one.chunks), False) == 0
    for index, chunk in enumerate(one.chunks):
        assert two.map(at + index * CHUNK, chunk, False) == 0
    return one, two, at


def same(space: Space, at: int, data: np.ndarray[Any, Any]) -> bool:
    return bool((space.read(at, data.nbytes, np.uint8) == data.view(np.uint8)).all())


def other_chunks(one: Space, copied: dict[int, int]) -> bool:
    return not set(copied.values()) & set(one.chunks)


# ---- kernels ----


def test_read_only_pages_can_be_read(device: Device, function: Any) -> None:
    data = some(1)
    one, two, at = sharing(device, data)
    two.mapped = two.next = at + CHUNK  # next to it
    out = two.alloc(4)
    two.launch(function("forward"), 1, 1, at + 400, out)
    two.check()
    assert two.read(out, 1, np.uint32)[0] == data[400:404].view(np.uint32)[0]
    assert same(one, at, data) and same(two, at, data) and two.copied() == {}


@pytest.mark.parametrize("form", FORMS)
def test_whatever_a_kernel_writes_stays_its_own(kernels: Loader, form: str) -> None:
    """The same is done to memory that is not shared; then the bytes must be the same."""
    function = kernels.function(kernels.module((FORM % form).encode(), 1), "write")
    data = some(2)
    with Device() as device:
        one, two, at = sharing(device, data)
        alone = device.space()
        assert alone.put(data) == at
        where = at + CHUNK // 2 + 4096
        for turn in range(2):
            for space in (one, alone):
                space.launch(function, 1, 32, where)
                space.check()
            copied = one.copied()
            assert list(copied) == ([] if turn else [at]) and other_chunks(one, copied)
            assert same(one, at, alone.read(at, CHUNK, np.uint8))
        assert same(two, at, data) and two.copied() == alone.copied() == {}


def test_the_last_and_the_first_bytes_of_pages(kernels: Loader, function: Any) -> None:
    data = some(3, 3)
    with Device() as device:
        one, two, at = sharing(device, data)
        one.launch(function("poke"), 1, 2, at + CHUNK - 4, at + CHUNK, 77)
        assert sorted(one.copied()) == [at, at + CHUNK]
        expected = data.view(np.uint32).copy()
        expected[CHUNK // 4 - 1 : CHUNK // 4 + 1] = 77
        assert same(one, at, expected) and same(two, at, data)


@pytest.mark.parametrize("streams", [1, 2])
def test_workers_that_write_to_the_same_pages(function: Any, streams: int) -> None:
    """One launch that workers share, or two concurrently. No addition is lost."""
    pages, threads = 8, 1 << 17
    for _ in range(4):
        with Device(workers=2, memory=16 * CHUNK) as device:
            one, two, at = sharing(device, np.zeros(pages * CHUNK, np.uint8))
            queues = [device.stream, device.new_stream()][:streams]
            work, kept = one.kernel_work(function("spread"), threads // 256, 256, at, pages)
            numbers = [device.submit(work, queue) for queue in queues]
            for number, queue in zip(numbers, queues, strict=True):
                device.wait(number, queue)
            one.check()
            assert kept is not None and len(one.copied()) == pages
            words = one.read(at, pages * CHUNK // 4, np.uint32).reshape(pages, -1)
            assert (words[:, : threads // pages] == streams).all()
            assert not words[:, threads // pages :].any()
            assert not two.read(at, pages * CHUNK, np.uint8).any()


def test_a_kernel_that_is_cancelled_while_pages_are_copied(function: Any) -> None:
    """At any moment: the others continue, and no chunk is lost."""
    pages = 6
    for step in range(12):
        with Device(workers=2, memory=8 * CHUNK) as device:
            one, two, at = sharing(device, some(4, pages))
            work, kept = one.kernel_work(function("spread"), 512, 256, at, pages)
            number = device.submit(work)
            timer = threading.Timer(0.0003 * step, device.hal.space_cancel, (one.handle,))
            timer.start()
            device.wait(number)
            timer.join()
            assert kept is not None and one.error()[0] in (0, LAUNCH_FAILED)
            assert same(two, at, some(4, pages))
            two.launch(function("poke"), 1, 2, at, at + 8, 1)
            two.check()
            assert list(two.copied()) == [at]


# ---- chunks ----


def fill_up(device: Device) -> int:
    """How many chunks the device still gives; they are gone then."""
    count, chunk = 0, ffi.new("uint32_t *")
    while device.hal.chunk_create(device.handle, chunk) == 0:
        count += 1
    return count


def test_copies_go_beyond_the_capacity_and_count(function: Any) -> None:
    with Device(memory=4 * CHUNK) as device:
        one, two, at = sharing(device, some(5, 3))
        one.launch(function("spread"), 1, 32, at, 2)
        copied = one.copied()
        assert sorted(copied) == [at, at + CHUNK]
        assert all(chunk < 8 for chunk in copied.values())
        assert max(copied.values()) >= 4 and fill_up(device) == 0, "five of four are held"
        third = device.space()
        for address, chunk in copied.items():
            assert third.map(address, chunk, False) == 0
        assert same(third, at, one.read(at, 2 * CHUNK, np.uint8))
        assert third.map(at + 2 * CHUNK, 8, False) == INVALID_VALUE
        for index, old in enumerate(one.chunks[:2]):
            assert device.hal.space_unmap(two.handle, at + index * CHUNK) == 0
            device.hal.chunk_destroy(device.handle, old)
        assert fill_up(device) == 1


def test_chunks_that_a_kernel_is_taking_are_not_lost(function: Any) -> None:
    """The device reports that it is full only when all chunks are accounted for: not while a kernel
    has taken a chunk and not reported it yet."""
    pages, chunks, answers = 12, 18, set[int]()
    chunk = ffi.new("uint32_t *")
    for _ in range(20):
        with Device(workers=1, memory=chunks * CHUNK) as device:
            one, _two, at = sharing(device, some(8, pages))
            known = pages
            work, kept = one.kernel_work(function("spread"), 512, 256, at, pages)
            number = device.submit(work)
            while device.hal.completed(device.stream) < number:
                error = device.hal.chunk_create(device.handle, chunk)
                answers.add(error)
                if error == 0:
                    device.hal.chunk_destroy(device.handle, chunk[0])
                assert error in (0, NOT_READY) or known >= chunks
                known += len(one.copied())
            one.check()
            assert kept is not None and known + len(one.copied()) == 2 * pages
            assert device.hal.chunk_create(device.handle, chunk) == OUT_OF_MEMORY
        if NOT_READY in answers:
            return
    raise AssertionError(answers)


def test_without_memory_for_a_copy_the_kernel_fails(function: Any) -> None:
    """Twice the capacity there is; the text names the address."""
    with Device(memory=4 * CHUNK) as device:
        data = some(6)
        one, two, at = sharing(device, data)
        more = [device.space() for _ in range(4)]
        for space in more:
            assert space.map(at, one.chunks[0], False) == 0
        assert fill_up(device) == 3
        for space in more:
            space.launch(function("poke"), 1, 1, at, at, 9)
            space.check()
        one.launch(function("poke"), 1, 1, at + 64, at, 9)
        code, text = one.error()
        assert code == ILLEGAL_ADDRESS and "poke" in text and f"{at + 64:#x}" in text
        assert "outside the footprint" in text
        assert same(two, at, data)


def test_a_removed_space_takes_unrequested_copies_with_it(function: Any) -> None:
    with Device(memory=4 * CHUNK) as device:
        one, two, at = sharing(device, some(7, 2))
        one.launch(function("spread"), 1, 32, at, 2)
        device.spaces.remove(one)
        device.hal.space_destroy(one.handle)
        assert same(two, at, some(7, 2))
        assert fill_up(device) == 2


# ---- protect ----


def test_writable_pages_are_written_in_place(device: Device, function: Any) -> None:
    data = some(8, 3)
    one, two, at = sharing(device, data)
    assert one.protect(at + CHUNK, 1, True) == 0
    one.launch(function("poke"), 1, 2, at + CHUNK, at + 2 * CHUNK - 4, 5)
    one.check()
    assert one.copied() == {}
    expected = data.view(np.uint32).copy()
    expected[[CHUNK // 4, CHUNK // 2 - 1]] = 5
    assert same(one, at, expected) and same(two, at, expected), "it is the same chunk"
    assert one.protect(at, 3, False) == 0
    one.launch(function("poke"), 1, 2, at + CHUNK, at + CHUNK, 6)
    assert list(one.copied()) == [at + CHUNK] and same(two, at, expected)


def test_protect_refuses_what_is_not_mapped(device: Device, space: Space) -> None:
    at = space.alloc(2 * CHUNK)
    for address, chunks in (
        (at - CHUNK, 1),
        (at + CHUNK, 2),
        (at + 4096, 1),
        (at, 0),
        (DEV_BASE + (1 << 40) - CHUNK, 2),
        (0, 1),
    ):
        assert space.protect(address, chunks, False) == INVALID_VALUE
    assert space.protect(at, 2, False) == 0 and space.protect(at, 2, True) == 0


def large_pages() -> int:
    """KiB of shared memory that this process maps by large pages."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("ShmemPmdMapped"))


def test_pages_protected_often_become_large_pages(device: Device, function: Any) -> None:
    """While another space writes to it; then it is closed as fast as one page is, or nearly."""
    pages, rounds = 8, 30
    one, two, at = sharing(device, np.zeros(pages * CHUNK, np.uint8))
    assert two.protect(at, pages, True) == 0
    for _ in range(rounds):
        work, kept = two.kernel_work(function("spread"), 512, 256, at, pages)
        number = device.submit(work)
        assert one.protect(at, pages, True) == one.protect(at, pages, False) == 0
        device.wait(number)
        assert kept is not None
    for space in (one, two):
        words = space.read(at, pages * CHUNK // 4, np.uint32).reshape(pages, -1)
        assert (words[:, : 512 * 256 // pages] == rounds).all()
    for _ in range(100):
        if large_pages() >= pages * CHUNK >> 10:
            break
        time.sleep(0.1)
    else:
        pytest.skip("the system has no large pages for shared memory")
    one.launch(function("spread"), 1, 32, at, pages)
    assert len(one.copied()) == pages and two.read(at, 1, np.uint32)[0] == rounds
    assert one.read(at, 1, np.uint32)[0] == rounds + 1


# ---- anything ----

SPACES, PAGES, CAPACITY = 3, 3, 4
PITCH = 1048572  # of the words that are looked at: the first, one within, and nearly the last
WORDS = 3
SPACE, PAGE = st.integers(0, SPACES - 1), st.integers(0, PAGES - 1)
WORD = st.integers(0, WORDS - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), SPACE, PAGE, st.booleans()),
        st.tuples(st.just("share"), SPACE, PAGE, SPACE, PAGE, st.booleans()),
        st.tuples(st.just("protect"), SPACE, PAGE, st.integers(1, PAGES), st.booleans()),
        st.tuples(st.just("unmap"), SPACE, PAGE),
        st.tuples(
            st.just("kernel"), SPACE, st.sampled_from(["poke", "bump"]), PAGE, WORD, PAGE, WORD
        ),
        st.tuples(
            st.just("kernel"), SPACE, st.sampled_from(["poke", "bump"]), PAGE, WORD, PAGE, WORD
        ),
        st.tuples(st.just("copy"), SPACE, PAGE, WORD),
    ),
    min_size=5,
    max_size=40,
)


class Model:
    """The expected content and mapping of chunks, and the device. An empty space replaces one
    that has failed."""

    def __init__(self, device: Device, function: Any) -> None:
        self.device, self.function = device, function
        self.spaces = [device.space() for _ in range(SPACES)]
        self.chunks: dict[int, list[int]] = {}
        self.maps: dict[tuple[int, int], tuple[int, bool]] = {}
        self.value = 0

    @staticmethod
    def at(page: int, word: int = 0) -> int:
        return DEV_BASE + (1 + page) * CHUNK + word * PITCH

    def create(self, s: int, page: int, writable: bool) -> None:
        if (s, page) in self.maps:
            return
        chunk = ffi.new("uint32_t *")
        error = self.device.hal.chunk_create(self.device.handle, chunk)
        assert error == (OUT_OF_MEMORY if len(self.chunks) >= CAPACITY else 0)
        if not error:
            assert chunk[0] not in self.chunks and chunk[0] < 2 * CAPACITY
            self.chunks[chunk[0]] = [0] * WORDS
            self.map(s, page, chunk[0], writable)

    def map(self, s: int, page: int, chunk: int, writable: bool) -> None:
        assert self.spaces[s].map(self.at(page), chunk, writable) == 0
        self.maps[s, page] = chunk, writable

    def share(self, s: int, page: int, other: int, place: int, writable: bool) -> None:
        if (s, page) in self.maps and (other, place) not in self.maps:
            self.map(other, place, self.maps[s, page][0], writable)

    def protect(self, s: int, page: int, count: int, writable: bool) -> None:
        pages = range(page, page + count)
        error = self.spaces[s].protect(self.at(page), count, writable)
        if any((s, p) not in self.maps for p in pages):
            assert error == INVALID_VALUE
            return
        assert error == 0
        for p in pages:
            self.maps[s, p] = self.maps[s, p][0], writable

    def unmap(self, s: int, page: int) -> None:
        if (s, page) in self.maps:
            assert self.device.hal.space_unmap(self.spaces[s].handle, self.at(page)) == 0
            self.forget(s, page)

    def forget(self, s: int, page: int) -> None:
        """The mapping is gone; its chunk is, with the last one."""
        chunk, _ = self.maps.pop((s, page))
        if chunk not in (c for c, _ in self.maps.values()):
            self.device.hal.chunk_destroy(self.device.handle, chunk)
            del self.chunks[chunk]

    def replace(self, s: int) -> None:
        self.device.spaces.remove(self.spaces[s])
        self.device.hal.space_destroy(self.spaces[s].handle)
        for page in range(PAGES):
            if (s, page) in self.maps:
                self.forget(s, page)
        self.spaces[s] = self.device.space()

    def kernel(self, s: int, name: str, p: int, w: int, q: int, v: int) -> None:
        if (s, p) not in self.maps or (s, q) not in self.maps:
            return
        (first, one), (second, two) = self.maps[s, p], self.maps[s, q]
        if first == second and one != two:
            return  # the copy has the other write or not, as it comes
        self.value += 1
        space = self.spaces[s]
        expected = {x for x in (p, q) if not self.maps[s, x][1]}
        enough = len(self.chunks) + len(expected) <= 2 * CAPACITY
        space.launch(self.function(name), 1, 2, self.at(p, w), self.at(q, v), self.value)
        copied = {(at - self.at(0)) // CHUNK: chunk for at, chunk in space.copied().items()}
        for page, chunk in copied.items():
            assert page in expected and chunk not in self.chunks
            old, _ = self.maps[s, page]
            self.chunks[chunk] = list(self.chunks[old])
            self.maps[s, page] = chunk, True
            if old not in (c for c, _ in self.maps.values()):
                self.device.hal.chunk_destroy(self.device.handle, old)
                del self.chunks[old]
        if not enough:
            assert space.error()[0] == ILLEGAL_ADDRESS
            for page in (p, q):  # some of it may have been done
                if self.maps[s, page][1]:
                    self.look(s, page)
            self.replace(s)
            return
        space.check()
        assert set(copied) == expected
        for page, word in ((p, w), (q, v)):
            self.chunks[self.maps[s, page][0]][word] = self.value

    def look(self, s: int, page: int) -> None:
        """The present content counts as right, in a page that may be written."""
        chunk = self.maps[s, page][0]
        others = [key for key, (c, _) in self.maps.items() if c == chunk and key[0] != s]
        if others:
            self.chunks[chunk] = self.read(*others[0])

    def copy(self, s: int, page: int, word: int) -> None:
        if (s, page) not in self.maps:
            return
        self.value += 1
        space = self.spaces[s]
        space.write(self.at(page, word), np.array([self.value], np.uint32))
        chunk, writable = self.maps[s, page]
        if writable:
            space.check()
            self.chunks[chunk][word] = self.value
        else:
            assert space.error()[0] == ILLEGAL_ADDRESS and "read-only" in space.error()[1]
            assert space.copied() == {}
            self.replace(s)

    def read(self, s: int, page: int) -> list[int]:
        out = np.zeros(WORDS, np.uint32)
        work = ffi.new("struct hal_work *", {"kind": self.device.lib.HAL_COPY})
        work.copy.dst.addr = out.ctypes.data
        work.copy.src.space, work.copy.src.addr = self.spaces[s].handle, self.at(page)
        work.copy.width, work.copy.height = 4, WORDS
        work.copy.dst_pitch, work.copy.src_pitch = 4, PITCH
        self.device.run(work)
        return [int(x) for x in out]

    def check(self) -> None:
        for (s, page), (chunk, _) in self.maps.items():
            assert self.read(s, page) == self.chunks[chunk], (s, page)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_any_sequence(function: Any, steps: list[tuple[Any, ...]]) -> None:
    with Device(memory=CAPACITY * CHUNK) as device:
        model = Model(device, function)
        for name, *arguments in steps:
            getattr(model, name)(*arguments)
            model.check()
