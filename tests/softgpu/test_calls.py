"""Calls: functions that come back to themselves, virtual ones, and memory from the stack."""

from __future__ import annotations

from pathlib import Path

import cuda
import numpy as np
import pytest

from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.ptx.info import ModuleInfo
from softgpu.harness import Space
from softgpu.test_heap import variables_with_heap

SOURCE = Path(__file__).with_name("calls.cu")
STACK_FULL = 714
STATE = np.dtype([("number", "<i4"), ("sum", "<f8"), ("letters", "u1", 5)], align=True)


@pytest.fixture(scope="module", params=["compute_75", "compute_90"])
def module(request: pytest.FixtureRequest, kernels: Loader) -> ModuleInfo:
    return kernels.module(cuda.ptx(SOURCE, args=[f"-arch={request.param}"]).encode(), 1)


def globals_of(module: ModuleInfo, space: Space) -> int:
    return space.put(np.frombuffer(module.globals_image or b"\0", np.uint8))


def fib(n: int) -> int:
    return n if n < 2 else fib(n - 1) + fib(n - 2)


class State:
    """As in calls.cu."""

    def __init__(self, number: int):
        self.number, self.sum, self.letters = number, 0.25, [1, 2, 3, 4, 5]


def descend(state: State, depth: int, outer: int) -> State:
    """The same state goes down and comes back changed."""
    if depth == 0:
        state.sum += outer
        return state
    before = state.number
    state.number += depth
    state.letters[depth % 5] += 1
    here = state.number
    descend(state, depth - 1, depth if depth % 2 else outer)
    state.sum += depth * 0.5 + here + outer
    state.letters[0] += before
    return state


def test_recursion(kernels: Loader, module: ModuleInfo, space: Space) -> None:
    threads = 64
    data = np.random.default_rng(1).integers(-50, 50, (threads, 16)).astype(np.int32)
    numbers, states = space.put(np.zeros(threads, np.int32)), space.put(np.zeros(threads, STATE))
    where = space.put(data)
    space.launch(kernels.function(module, "recursion"), 1, threads, numbers, where, states)
    space.check()
    wanted = [fib(i % 16) + (1_000_000 if i % 2 else 100_000) for i in range(threads)]
    assert space.read(numbers, threads, np.int32).tolist() == wanted
    got = space.read(where, data.size, np.int32).reshape(data.shape)
    np.testing.assert_array_equal(got, np.sort(data, axis=1))
    for me, found in enumerate(space.read(states, threads, STATE)):
        state = descend(State(me), me % 9, me * 100)
        letters = [letter % 256 for letter in state.letters]
        assert (found["number"], found["sum"]) == (state.number, state.sum)
        assert found["letters"].tolist() == letters


def test_lanes_that_go_down_together(kernels: Loader, module: ModuleInfo, space: Space) -> None:
    values = np.arange(32, dtype=np.int32) ** 2
    at = space.put(values)
    space.launch(kernels.function(module, "rotations"), 1, 32, at)
    space.check()
    wanted = sum(np.roll(values, -step) for step in range(6))
    np.testing.assert_array_equal(space.read(at, 32, np.int32), wanted)


def test_virtual_functions_that_meet_themselves(
    kernels: Loader, module: ModuleInfo, space: Space
) -> None:
    at = space.put(np.zeros(8, np.int32))
    globals_addr = globals_of(module, space)
    values = np.frombuffer(module.globals_image, np.uint8)
    assert values.size
    space.launch(kernels.function(module, "virtuals"), 1, 8, at, globals_addr=globals_addr)
    space.check()
    wanted = [20 + t + 2 if t % 2 else 10 + t + 1 for t in range(8)]
    assert space.read(at, 8, np.int32).tolist() == wanted


def test_a_table_that_holds_a_function_that_frees(
    kernels: Loader, module: ModuleInfo, space: Space
) -> None:
    """Whether or not a thread deletes."""
    at, globals_addr = space.put(np.zeros(8, np.int32)), globals_of(module, space)
    space.launch(kernels.function(module, "count"), 1, 8, at, globals_addr=globals_addr)
    space.check()
    assert space.read(at, 8, np.int32).tolist() == [101, 102] * 4
    heap = space.put(np.array([4096, 0, *range(510)], np.uint64))
    globals_addr = variables_with_heap(module, space, heap)
    for total in (2, 3, 4):  # each time the same memory
        space.launch(kernels.function(module, "frees"), 1, 8, at, globals_addr=globals_addr)
        space.check()
        assert space.read(at, 8, np.int32).tolist() == [101 * total, 102 * total] * 4


def test_a_full_stack_is_an_error(kernels: Loader, module: ModuleInfo, space: Space) -> None:
    at = space.put(np.zeros(1, np.int32))
    space.launch(kernels.function(module, "runaway"), 1, 32, at)
    code, text = space.error()
    assert code == STACK_FULL and "runaway" in text and "stack" in text


def backwards(n: int) -> int:
    total = 0
    for i in range(n - 1, -1, -1):
        total = 3 * total + i * n
    return total


def test_memory_from_the_stack(kernels: Loader, module: ModuleInfo, space: Space) -> None:
    """A thousand times more than fits: each is given back when its function returns."""
    at = space.put(np.zeros(32, np.int32))
    space.launch(kernels.function(module, "stack_memory"), 1, 32, at, 300)
    space.check()
    each = [backwards(n) for n in range(300)]
    wanted = [sum(each[(t + i) % 300] for i in range(1000)) % (1 << 32) for t in range(32)]
    assert space.read(at, 32, np.uint32).tolist() == wanted


def test_more_than_the_stack_holds(kernels: Loader, module: ModuleInfo, space: Space) -> None:
    at = space.put(np.zeros(1, np.int32))
    space.launch(kernels.function(module, "too_much"), 1, 1, at, 1 << 20)
    assert space.error()[0] == STACK_FULL
