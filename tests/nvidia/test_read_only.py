"""Read-only mappings: what both kinds of devices promise, and what a fault does on NVIDIA's."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from softgpu import gemm
from softgpu.gemm import DRELU, GELU, KEEP, SUM_A, Gemm, Matrix
from softgpu.harness import CHUNK, Device, Space, ffi

from .conftest import Kernels
from .fake_driver import Fake

INVALID_VALUE, ILLEGAL_ADDRESS = 1, 700


@pytest.fixture(params=["soft", "nvidia"])
def either(request: pytest.FixtureRequest, fake: Fake) -> Iterator[Device]:
    with Device(hal=request.param, memory=16 * CHUNK) as made:
        yield made


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


def some(chunks: int = 2) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(0, 2**32, chunks * CHUNK // 4, np.uint32)


def sharing(device: Device, data: np.ndarray[Any, Any]) -> tuple[Space, Space, int]:
    """Two spaces that map the same chunks, with this content, and where: read-only."""
    one, two = device.space(), device.space()
    at = one.put(data)
    assert one.protect(at, len(one.chunks), False) == 0
    for index, chunk in enumerate(one.chunks):
        assert two.map(at + index * CHUNK, chunk, False) == 0
    two.mapped = two.next = one.mapped
    return one, two, at


def is_there(space: Space, at: int, data: np.ndarray[Any, Any]) -> bool:
    return bool((space.read(at, len(data), data.dtype) == data).all())


# ---- both kinds ----


def copying(device: Device, dst: tuple[Any, int], src: tuple[Any, int]) -> Any:
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_COPY})
    work.copy.dst.space, work.copy.dst.addr = dst
    work.copy.src.space, work.copy.src.addr = src
    work.copy.width, work.copy.height = 64, 3
    work.copy.dst_pitch = work.copy.src_pitch = 1024
    return work


def filling(device: Device, dst: tuple[Any, int], src: tuple[Any, int]) -> Any:
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_FILL})
    work.fill.dst.space, work.fill.dst.addr = dst
    work.fill.width, work.fill.height, work.fill.pitch = 16, 3, 1024
    work.fill.value, work.fill.element = 3, 4
    return work


def reducing(device: Device, dst: tuple[Any, int], src: tuple[Any, int]) -> Any:
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_REDUCE})
    for ref, place in ((work.reduce.dst, dst), (work.reduce.a, dst), (work.reduce.b, src)):
        ref.space, ref.addr = place
    work.reduce.count, work.reduce.dtype = 64, 3
    return work


def scaling(device: Device, dst: tuple[Any, int], src: tuple[Any, int]) -> Any:
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_SCALE})
    work.scale.dst.space, work.scale.dst.addr = dst
    work.scale.a.space, work.scale.a.addr = src
    work.scale.count, work.scale.dtype, work.scale.scalar = 64, 3, b"\2" + bytes(7)
    return work


KINDS = [copying, filling, reducing, scaling]


@pytest.mark.parametrize("kind", KINDS)
def test_work_that_would_write_fails_its_space(either: Device, kind: Any) -> None:
    """The first rows of it may be in memory that is writable."""
    data = some()
    one, two, at = sharing(either, data)
    src = two.handle, two.put(np.ones(4096, np.uint8))
    where = at + CHUNK + 512
    either.run(kind(either, (one.handle, where), src))
    code, text = one.error()
    assert code == ILLEGAL_ADDRESS and "read-only" in text
    named = re.search("0x[0-9a-f]+", text)
    assert named and where <= int(named[0], 16) < where + 3 * 1024
    assert two.error() == (0, "") and is_there(two, at, data)
    assert one.copied() == two.copied() == {}


@pytest.mark.parametrize("kind", KINDS)
def test_work_may_read_it(either: Device, kind: Any) -> None:
    data = some()
    one, two, at = sharing(either, data)
    dst = two.put(np.ones(4096, np.uint8))
    either.run(kind(either, (two.handle, dst), (one.handle, at)))
    for space in (one, two):
        space.check()
        assert is_there(space, at, data)
    assert (two.read(dst, 16, np.uint32) != 0x01010101).any(), "it has been written"


def test_a_writable_page_keeps_its_chunk(either: Device) -> None:
    data = some()
    one, two, at = sharing(either, data)
    assert one.protect(at + CHUNK, 1, True) == 0
    one.write(at + CHUNK, np.arange(8, dtype=np.uint32))
    one.check()
    data[CHUNK // 4 : CHUNK // 4 + 8] = range(8)
    assert is_there(two, at, data)
    one.write(at + CHUNK - 32, np.arange(8, dtype=np.uint32))
    assert one.error()[0] == ILLEGAL_ADDRESS and is_there(two, at, data)


def test_only_what_is_mapped_is_protected(either: Device) -> None:
    space = either.space()
    at = space.put(some())
    for address, chunks in ((at - CHUNK, 1), (at + CHUNK, 2), (at + 4096, 1), (at, 0), (8, 1)):
        assert space.protect(address, chunks, False) == INVALID_VALUE
    assert space.protect(at, 2, False) == 0
    assert either.hal.space_unmap(space.handle, at) == 0
    assert space.map(at, space.chunks[0]) == 0
    space.write(at, some(1))
    space.check()


@pytest.mark.parametrize("which", ["d", "bias", "aux"])
def test_a_product_that_would_write_fails_its_space(either: Device, which: str) -> None:
    data = some(1)
    one, two, at = sharing(either, data)
    one.mapped = one.next = two.mapped
    a, b, d, more = (one.put(np.ones((8, 8), np.float32)) for _ in range(4))
    call = Gemm(8, 8, 8, Matrix(a, 1, 8), Matrix(b, 1, 8), Matrix(8, 1, 8), Matrix(d, 1, 8))
    shared = {
        "d": replace(call, d=Matrix(at, 1, 8)),
        "bias": replace(call, bias=at, flags=SUM_A),
        "aux": replace(call, aux=Matrix(at, 1, 8), flags=GELU | KEEP),
    }
    reads = {
        "d": replace(call, beta=1.0, c=Matrix(at, 1, 8)),
        "bias": replace(call, bias=at),
        "aux": replace(call, aux=Matrix(at, 1, 128), flags=DRELU),
    }
    gemm.run(either, one, reads[which])
    one.check()
    gemm.run(either, one, shared[which])
    code, text = one.error()
    assert code == ILLEGAL_ADDRESS and "read-only" in text and more
    assert is_there(two, at, data) and one.copied() == {}


# ---- kernels of NVIDIA's ----


def test_kernels_see_what_is_read_only(device: Device, kernels: Kernels) -> None:
    one, two, at = sharing(device, np.ones(4, np.uint32))
    two.launch(kernels("until_set"), 1, 1, at)
    one.launch(kernels("until_set"), 1, 1, at)
    one.check()
    two.check()


def test_protection_costs_no_mapping(fake: Fake, device: Device, kernels: Kernels) -> None:
    """Neighbours with equal access are opened in one call."""
    space = device.space()
    at = space.alloc(6 * CHUNK)
    space.launch(kernels("put"), 1, 1, at, 5)

    def calls() -> tuple[int, ...]:
        return tuple(fake.calls(f"cuMem{name}") for name in ("Map", "Unmap", "SetAccess"))

    before = calls()
    assert space.protect(at + CHUNK, 4, False) == 0
    space.launch(kernels("put"), 1, 1, at, 6)
    assert calls() == (before[0], before[1], before[2] + 1)
    assert space.protect(at + 2 * CHUNK, 1, True) == 0
    assert space.protect(at + 4 * CHUNK, 1, True) == 0
    space.launch(kernels("put"), 1, 1, at + 4 * CHUNK, 7)
    assert calls() == (before[0], before[1], before[2] + 3)
    space.check()
    assert space.read(at + 4 * CHUNK, 1, np.uint32)[0] == 7


def test_each_space_has_its_own_access(fake: Fake, device: Device, kernels: Kernels) -> None:
    """The same chunk at the same place: a switch changes nothing but the access."""
    one, two, at = sharing(device, np.ones(4, np.uint32))
    assert one.protect(at, 1, True) == 0
    two.launch(kernels("until_set"), 1, 1, at)
    before = fake.calls("cuMemMap")
    one.launch(kernels("put"), 1, 1, at, 5)
    two.launch(kernels("until_set"), 1, 1, at)
    assert fake.calls("cuMemMap") == before
    one.check()
    two.check()
    assert two.read(at, 1, np.uint32)[0] == 5


def test_access_that_could_not_be_changed_is_made_anew(
    fake: Fake, device: Device, kernels: Kernels
) -> None:
    one, two, at = sharing(device, np.ones(4, np.uint32))
    two.launch(kernels("until_set"), 1, 1, at)
    assert one.protect(at, 1, True) == 0
    fake.fail("cuMemSetAccess", 1, 2)
    one.launch(kernels("put"), 1, 1, at, 5)
    assert one.error()[0] == 2
    two.launch(kernels("until_set"), 1, 1, at)
    two.check()


@pytest.mark.parametrize("name", ["put", "increment"])
def test_a_kernels_write_ends_the_context(doomed: Device, kernels: Kernels, name: str) -> None:
    """The chunk is unchanged; it is read where the fake has it, because nothing runs any more."""
    one, _two, at = sharing(doomed, np.full(4, 3, np.uint32))
    one.launch(kernels(name), 1, 1, at, 2)
    code, text = one.error()
    assert code == ILLEGAL_ADDRESS and "outside the footprint" in text and "read-only" in text
    assert ctypes.c_uint32.from_address(at).value == 3
    assert one.copied() == {}


def test_a_fault_of_a_rank_that_shares_nothing_says_nothing_of_it(
    doomed: Device, kernels: Kernels
) -> None:
    space = doomed.space()
    space.launch(kernels("fault"), 1, 1, 0)
    assert space.error()[0] == ILLEGAL_ADDRESS and "footprint" not in space.error()[1]
