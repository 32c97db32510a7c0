"""The sums of collectives in host and device memory: the same for both kinds of devices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from softgpu.harness import CHUNK, DEV_BASE, Device, Space, ffi, loader

from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.nvidia.kernels import build as kernels_build
from rankfold.proxy.hal.soft.modules import Loader

from .fake_driver import Fake

ILLEGAL_ADDRESS, MISALIGNED_ADDRESS = 700, 716
FLOAT, INT8, DOUBLE = 7, 0, 8
COUNT = 3 * CHUNK // 4 + 5  # of floats: over three chunks and more
Place = tuple[Any, int]  # of a hal_ref


@pytest.fixture(params=["null", "soft", "nvidia"])
def device(request: pytest.FixtureRequest, fake: Fake) -> Iterator[Device]:
    with Device(hal=request.param, memory=64 << 20) as made:
        yield made


def host(array: np.ndarray[Any, Any]) -> Place:
    return ffi.NULL, array.ctypes.data


def put(space: Space, array: np.ndarray[Any, Any]) -> Place:
    return space.handle, space.put(array)


def reduction(device: Device, dst: Place, a: Place, b: Place, count: int, dtype: int) -> Any:
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_REDUCE})
    for ref, place in zip(
        (work.reduce.dst, work.reduce.a, work.reduce.b), (dst, a, b), strict=True
    ):
        ref.space, ref.addr = place
    work.reduce.count, work.reduce.dtype, work.reduce.op = count, dtype, 0
    return work


def scaling(device: Device, dst: Place, a: Place, count: int, dtype: int, divisor: int) -> Any:
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_SCALE})
    for ref, place in zip((work.scale.dst, work.scale.a), (dst, a), strict=True):
        ref.space, ref.addr = place
    work.scale.count, work.scale.dtype = count, dtype
    work.scale.divide, work.scale.divisor = 1, divisor
    return work


def values(seed: int, count: int = COUNT) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


@pytest.mark.parametrize("where", range(1, 8))
def test_each_operand_may_be_in_device_memory(device: Device, where: int) -> None:
    """Bit 0: dst, 1: a, 2: b; at different places in their chunks."""
    space = device.space()
    a, b, out = values(1), values(2), np.zeros(COUNT, np.float32)
    space.alloc(where * 512)
    dst = (space.handle, space.alloc(out.nbytes)) if where & 1 else host(out)
    at_a = put(space, a) if where & 2 else host(a)
    space.alloc(4096)
    at_b = put(space, b) if where & 4 else host(b)
    device.run(reduction(device, dst, at_a, at_b, COUNT, FLOAT))
    space.check()
    got = space.read(dst[1], COUNT, np.float32) if where & 1 else out
    assert got.tobytes() == (a + b).tobytes()


@pytest.mark.parametrize("in_place", ["a", "b", "both"])
def test_a_sum_in_place_in_device_memory(device: Device, in_place: str) -> None:
    space = device.space()
    a, b = values(1), values(2)
    at_a, at_b = put(space, a), put(space, b)
    if in_place == "both":
        at_b, b = at_a, a
    dst = at_b if in_place == "b" else at_a
    device.run(reduction(device, dst, at_a, at_b, COUNT, FLOAT))
    device.run(scaling(device, dst, dst, COUNT, FLOAT, 3))
    space.check()
    assert (space.read(dst[1], COUNT, np.float32) == (a + b) / np.float32(3)).all()


def test_operands_in_three_ranks_memory(device: Device) -> None:
    spaces = [device.space() for _ in range(3)]
    a, b = values(1), values(2)
    at_a, at_b = put(spaces[1], a), put(spaces[2], b)
    dst = spaces[0].handle, spaces[0].alloc(a.nbytes)
    device.run(reduction(device, dst, at_a, at_b, COUNT, FLOAT))
    assert (spaces[0].read(dst[1], COUNT, np.float32) == a + b).all()
    for space in spaces:
        space.check()


def test_elements_of_one_byte_and_of_eight(device: Device) -> None:
    space = device.space()
    small = np.arange(1001).astype(np.int8)
    at = put(space, small)
    device.run(reduction(device, (at[0], at[1] + 1), (at[0], at[1] + 1), host(small), 999, INT8))
    got = space.read(at[1], 1001, np.int8)
    assert (got[1:1000] == small[1:1000] + small[:999]).all() and got[1000] == small[1000]
    large = np.arange(7, dtype=np.float64)
    at = put(space, large)
    device.run(scaling(device, at, at, 7, DOUBLE, 2))
    assert (space.read(at[1], 7, np.float64) == large / 2).all()


def test_no_elements_at_no_address(device: Device) -> None:
    space = device.space()
    nowhere = space.handle, DEV_BASE + (1 << 50)
    device.run(reduction(device, nowhere, nowhere, nowhere, 0, INT8))
    space.check()


@pytest.mark.parametrize("operand", [0, 1, 2])
@pytest.mark.parametrize("way", ["not mapped", "runs out", "outside"])
def test_memory_that_is_not_there_fails_its_rank(device: Device, operand: int, way: str) -> None:
    """Neither another rank nor the process fails; later work completes."""
    spaces = [device.space() for _ in range(3)]
    data = values(1, 1000)
    places = [put(space, data) for space in spaces]
    bad = spaces[operand]
    places[operand] = (
        bad.handle,
        {
            "not mapped": bad.mapped + 5 * CHUNK,
            "runs out": bad.mapped - 400,
            "outside": DEV_BASE - 4096,
        }[way],
    )
    dst, a, b = places
    device.submit(reduction(device, dst, a, b, 1000, FLOAT))
    out = np.zeros(1000, np.float32)
    device.run(reduction(device, host(out), host(data), host(data), 1000, FLOAT))
    assert bad.error()[0] == ILLEGAL_ADDRESS and "a sum of a collective" in bad.error()[1]
    assert (out == 2 * data).all()
    for space in spaces:
        if space is not bad:
            space.check()
    device.run(reduction(device, host(out), host(data), places[operand], 1000, FLOAT))
    assert (out == 2 * data).all(), "work of a failed rank is skipped"


def test_an_address_between_elements_fails_its_rank(device: Device) -> None:
    space, data = device.space(), values(1, 100)
    at, out = put(space, data), np.zeros(100, np.float32)
    device.run(reduction(device, host(out), (at[0], at[1] + 2), host(data), 10, FLOAT))
    code, text = space.error()
    assert code == MISALIGNED_ADDRESS and "misaligned" in text and not out.any()


def test_operands_in_a_ranks_pinned_memory(device: Device) -> None:
    space, data = device.space(), values(1, 1000)
    arena, base = os.memfd_create("arena"), DEV_BASE + (1 << 39)
    os.pwrite(arena, data.tobytes(), 0)
    os.ftruncate(arena, CHUNK)
    assert device.hal.space_map_host(space.handle, base, arena, 0, CHUNK) == 0
    pinned = space.handle, base
    device.run(reduction(device, put(space, data), pinned, pinned, 1000, FLOAT))
    device.run(reduction(device, pinned, pinned, put(space, data), 1000, FLOAT))
    space.check()
    assert os.pread(arena, data.nbytes, 0) == (2 * data).tobytes()
    os.close(arena)


@pytest.mark.parametrize(
    ("call", "nth", "staged"),
    [
        ("cuLaunchHostFunc", 1, True),
        ("cuLaunchKernelEx", 1, True),
        ("cuLaunchHostFunc", 2, True),
        ("cuLaunchKernelEx", 1, False),
    ],
)
def test_a_call_of_the_driver_that_fails_fails_the_rank_and_keeps_no_buffer(
    fake: Fake, call: str, nth: int, staged: bool
) -> None:
    with Device(hal="nvidia") as device:
        good, data = device.space(), values(1, 1000)
        for _ in range(20):  # more than there are pinned buffers
            bad = device.space()
            at = put(bad, data)
            fake.fail(call, nth, 1)
            device.run(reduction(device, at, host(data) if staged else at, at, 1000, FLOAT))
            assert bad.error()[0] == 1
        at = put(good, data)
        device.run(reduction(device, at, at, at, 1000, FLOAT))
        good.check()
        assert (good.read(at[1], 1000, np.float32) == 2 * data).all()


def checksum(device: Device, place: Place, size: int) -> tuple[int, int]:
    out = ffi.new("uint64_t[2]")
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_CHECKSUM})
    work.checksum.src.space, work.checksum.src.addr = place
    work.checksum.bytes, work.checksum.sum = size, out
    device.run(work)
    return int(out[0]), int(out[1])


def summed(data: bytes, first: int = 0) -> tuple[int, int]:
    """proxy/hal/checksum.c, word by word."""
    mask, a, b = (1 << 64) - 1, 0, 0
    for place in range(0, len(data), 8):
        word = int.from_bytes(data[place : place + 8], "little")
        x = (word ^ ((place // 8 + first) * 0x9E3779B97F4A7C15 & mask)) * 0xFF51AFD7ED558CCD & mask
        x ^= x >> 32
        a += x
        x = x * 0xC4CEB9FE1A85EC53 & mask
        b += x ^ x >> 29
    return a & mask, b & mask


def test_a_checksum_is_the_same_wherever_the_bytes_are(device: Device) -> None:
    """In host memory, and over three chunks of the device; also of what is no multiple of 8."""
    space = device.space()
    data = np.random.default_rng(3).integers(0, 256, 2 * CHUNK + 12345, np.uint8)
    space.alloc(1 << 20)
    at = put(space, data)
    expected = checksum(device, host(data), data.nbytes)
    assert checksum(device, at, data.nbytes) == expected
    few = data[:1003].copy()
    assert checksum(device, host(few), few.nbytes) == summed(few.tobytes())
    assert checksum(device, at, few.nbytes) == summed(few.tobytes())
    for byte in (0, 1000, data.nbytes - 1):
        data[byte] ^= 16
        found = checksum(device, host(data), data.nbytes)
        assert found[0] != expected[0] and found[1] != expected[1]
        data[byte] ^= 16
    swapped = few.copy()
    swapped[:8], swapped[8:16] = few[8:16], few[:8]
    assert checksum(device, host(swapped), few.nbytes) != summed(few.tobytes())


def test_a_checksum_may_begin_anywhere(device: Device) -> None:
    """As the bytes between two buffers do, within a chunk."""
    space = device.space()
    data = np.random.default_rng(3).integers(0, 256, 5000, np.uint8)
    at = put(space, data)
    found = checksum(device, (at[0], at[1] + 1001), 3003)
    assert found == summed(data[1001:4004].tobytes())
    space.check()


def test_a_checksum_of_what_is_not_mapped_fails_its_space(device: Device) -> None:
    space = device.space()
    checksum(device, (space.handle, DEV_BASE + (1 << 30)), 64)
    assert space.error()[0] == ILLEGAL_ADDRESS


class Scratch:
    """The device's memory for sums."""

    def __init__(self, device: Device):
        self.device = device

    def take(self, size: int) -> int:
        return int(self.device.hal.scratch_alloc(self.device.handle, size))

    def give(self, address: int, size: int) -> bool:
        return bool(self.device.hal.scratch_free(self.device.handle, address, size))


def copy(device: Device, dst: Place, src: Place, size: int) -> Any:
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_COPY})
    work.copy.dst.space, work.copy.dst.addr = dst
    work.copy.src.space, work.copy.src.addr = src
    work.copy.width, work.copy.height = size, 1
    return work


def test_sums_in_scratch_memory_do_not_pass_through_the_host(fake: Fake) -> None:
    """A reduction of several ranks is added, scaled and written on that device."""
    with Device(hal="nvidia", memory=64 << 20) as device:
        space, scratch = device.space(), Scratch(device)
        a, b, c = values(1), values(2), values(3)
        at_a, at_b = put(space, a), put(space, b)
        there = ffi.NULL, scratch.take(a.nbytes)
        before = fake.calls("cuLaunchHostFunc")
        device.run(reduction(device, there, at_a, at_b, COUNT, FLOAT))
        device.run(scaling(device, there, there, COUNT, FLOAT, 3))
        device.run(copy(device, at_a, there, a.nbytes))
        assert fake.calls("cuLaunchHostFunc") == before
        space.check()
        wanted = (a + b) / np.float32(3)
        assert space.read(at_a[1], COUNT, np.float32).tobytes() == wanted.tobytes()
        out = np.zeros(COUNT, np.float32)
        device.run(reduction(device, there, there, host(c), COUNT, FLOAT))
        device.run(copy(device, host(out), there, out.nbytes))
        assert out.tobytes() == (wanted + c).tobytes()
        device.run(copy(device, there, host(c), out.nbytes))
        device.run(reduction(device, host(out), there, there, COUNT, FLOAT))
        assert out.tobytes() == (c + c).tobytes()


def test_scratch_memory_is_given_to_one_at_a_time(fake: Fake) -> None:
    """Any takes and gives: no one's memory is another's; what has room somewhere is given."""
    mib = 1 << 20
    with Device(hal="nvidia") as device:
        scratch = Scratch(device)
        base = scratch.take(1)
        assert scratch.give(base, 1)
        assert not scratch.give(base - 4096, mib) and not scratch.give(base + 64 * mib, mib)

        sizes = st.sampled_from([1, mib, mib + 1, 4 * mib, 30 * mib, 64 * mib])

        @given(st.lists(st.integers(0, 63) | sizes, max_size=30))
        def any_takes_and_gives(steps: list[int]) -> None:
            """A small number gives back, of what is held; another takes so many bytes."""
            held: dict[int, int] = {}
            try:
                for step in steps:
                    if 1 != step < mib:
                        if held:
                            at = sorted(held)[step % len(held)]
                            assert scratch.give(at, held.pop(at))
                        continue
                    at, wide = scratch.take(step), (step + mib - 1) // mib
                    used = {(a - base) // mib + i for a, n in held.items() for i in range(n // mib)}
                    if at:
                        mine = {(at - base) // mib + i for i in range(wide)}
                        assert not used & mine and max(mine) < 64
                        held[at] = wide * mib
                    else:
                        starts = range(65 - wide)
                        free = [i for i in starts if not used.intersection(range(i, i + wide))]
                        assert wide == 64 or not free
            finally:
                for at, size in held.items():
                    assert scratch.give(at, size)

        any_takes_and_gives()
        assert scratch.take(63 * mib) == base, "all of it has been given back"


# ---- the kernels ------------------------------------------------------------------------------

TYPES: dict[str, type[Any]] = {
    "int8": np.int8,
    "uint8": np.uint8,
    "int32": np.int32,
    "uint32": np.uint32,
    "int64": np.int64,
    "uint64": np.uint64,
    "half": np.float16,
    "float": np.float32,
    "double": np.float64,
    "bfloat16": np.uint16,
}
ODD: dict[type[Any], list[int]] = {  # bits of numbers where rounding, signs and what is none matter
    np.float16: [0, 0x8000, 1, 0x83FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00, 0x7E01, 0xFFFF, 0x3C00],
    np.float32: [
        0,
        1 << 31,
        1,
        0x807FFFFF,
        0x00800000,
        0x7F7FFFFF,
        0x7F800000,
        0xFF800000,
        0x7FC00001,
        0xFFFFFFFF,
        0x3F800000,
        0x34000000,
    ],
    np.float64: [
        0,
        1 << 63,
        1,
        0x800FFFFFFFFFFFFF,
        1 << 52,
        0x7FEFFFFFFFFFFFFF,
        0x7FF << 52,
        0xFFF << 52,
        0x7FF8000000000001,
        (1 << 64) - 1,
        0x3FF << 52,
    ],
    np.uint16: [0, 0x8000, 1, 0x807F, 0x0080, 0x7F7F, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x3F80],
}


def test_the_ptx_is_what_its_source_compiles_to() -> None:
    """Its header names the source that it was made from; `make gpu-ptx` makes it anew."""
    first = kernels_build.TARGET.read_text().splitlines()[0]
    assert first.endswith(kernels_build.digest()), "`make gpu-ptx`"


def mixed(kind: type[Any], seed: int) -> np.ndarray[Any, Any]:
    """Numbers of a type: each odd one next to each other one, and random bits."""
    random = np.random.default_rng(seed)
    size = np.dtype(kind).itemsize
    bits = np.frombuffer(random.bytes(600 * size), f"u{size}")
    odd = np.array(ODD.get(kind, [0, 1, (1 << 8 * size) - 1, 1 << (8 * size - 1)]), f"u{size}")
    pairs = np.repeat(odd, len(odd)) if seed == 1 else np.tile(odd, len(odd))
    return np.concatenate([pairs, bits]).view(kind)


@pytest.mark.parametrize("name", list(TYPES))
def test_each_type_has_its_own_kernels(fake: Fake, name: str) -> None:
    """On the device, in its memory, as in the host's; of a thousand odd numbers."""
    a, b = mixed(TYPES[name], 1), mixed(TYPES[name], 2)
    dtype, out = list(TYPES).index(name), np.zeros_like(a)
    with Device(hal="nvidia") as device:
        space = device.space()
        at_a, at_b = put(space, a), put(space, b)
        at = space.handle, space.alloc(a.nbytes)
        for op in range(4):
            for dst, left, right in ((at, at_a, at_b), (host(out), host(a), host(b))):
                work = reduction(device, dst, left, right, len(a), dtype)
                work.reduce.op = op
                device.run(work)
            assert space.read(at[1], len(a), a.dtype).tobytes() == out.tobytes(), op
        for dst, src in ((at, at_a), (host(out), host(a))):
            device.run(scaling(device, dst, src, len(a), dtype, 3))
        assert space.read(at[1], len(a), a.dtype).tobytes() == out.tobytes()
        space.check()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    folder = tmp_path_factory.mktemp("sums")
    with loader(REPOSITORY / "build/tests/kernels", folder / "c.sock") as made:
        yield made


@pytest.mark.usual("bfloat16", "float", "half", "int8")
@pytest.mark.parametrize("name", list(TYPES))
def test_the_kernels_leave_the_bits_that_the_host_leaves(made: Loader, name: str) -> None:
    """The PTX that GPUs get, run by the software GPU, against its own sums on the host."""
    with Device(memory=64 << 20) as device:
        space = device.space()
        module = made.module(kernels_build.TARGET.read_bytes(), 1)
        a, b = mixed(TYPES[name], 1), mixed(TYPES[name], 2)
        at_a, at_b = put(space, a), put(space, b)
        ours, theirs = space.alloc(a.nbytes), space.alloc(a.nbytes)
        dtype, count = list(TYPES).index(name), len(a)
        for op in range(4):
            work = reduction(device, (space.handle, theirs), at_a, at_b, count, dtype)
            work.reduce.op = op
            device.run(work)
            function = made.function(module, f"sum_{name}")
            space.launch(function, 8, 64, ours, at_a[1], at_b[1], count, op)
            space.check()
            assert (
                space.read(ours, a.nbytes, np.uint8).tobytes()
                == space.read(theirs, a.nbytes, np.uint8).tobytes()
            ), op
        scalar = a[-1:].tobytes().ljust(8, b"\0")
        for divide, divisor in ((1, 3), (1, 64), (0, 0)):
            work = scaling(device, (space.handle, theirs), at_a, count, dtype, divisor)
            work.scale.divide = divide
            ffi.memmove(work.scale.scalar, scalar, 8)
            device.run(work)
            function = made.function(module, f"scale_by_{name}")
            by = int.from_bytes(scalar, "little")
            space.launch(function, 8, 64, ours, at_a[1], count, divide, divisor, by)
            space.check()
            assert (
                space.read(ours, a.nbytes, np.uint8).tobytes()
                == space.read(theirs, a.nbytes, np.uint8).tobytes()
            ), (divide, divisor)


def test_the_kernel_of_checksums_finds_what_the_host_finds(made: Loader) -> None:
    with Device(memory=64 << 20) as device:
        space = device.space()
        function = made.function(made.module(kernels_build.TARGET.read_bytes(), 1), "checksum")
        data = np.frombuffer(np.random.default_rng(3).bytes(70_003), np.uint8).copy()
        at = put(space, data)
        for first, size, word, blocks in (
            (0, 70_003, 0, 8),
            (0, 70_000, 5, 3),
            (0, 3, 7, 1),
            (0, 8, 0, 2),
            (5, 1_003, 0, 2),
        ):
            out = space.put(np.zeros(2 * blocks, np.uint64))
            space.launch(function, blocks, 64, at[1] + first, size, word, out)
            space.check()
            shares = space.read(out, 2 * blocks, np.uint64).reshape(blocks, 2).sum(axis=0)
            found = tuple(int(each) for each in shares)
            wanted = summed(data[first : first + size].tobytes(), word)
            assert found == wanted, (first, size, word, blocks)
