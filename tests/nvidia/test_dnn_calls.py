"""Promise: cuDNN's functions outside of its backend API get the numbers, lists and descriptors that
the program gave, and no number that a rank sends makes the library read memory of the proxy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from softgpu.harness import CHUNK, Device, Space

from .fake_driver import Fake
from .test_dnn import BAD_PARAM, LAUNCH_FAILED, NOT_SUPPORTED, SUCCESS, device, functions
from .test_libraries import Functions, of_library

__all__ = ["device", "functions"]

SOFTMAX = 1
HEAD = 2 * 9 + 13 + 8  # slots before the lists
SYMBOLS = 3


def pairs(numbers: list[int]) -> list[int]:
    """Numbers of 32 bits, two in a slot."""
    packed = np.array(numbers + [1] * (len(numbers) % 2), np.int32)
    return [int(n) for n in packed.view(np.uint64)]


def row(numbers: list[int], present: int = 1) -> list[int]:
    return [present | len(numbers) << 32, *pairs(numbers + [0] * (24 - len(numbers)))]


def tensor(size: list[int]) -> list[int]:
    strides = [int(np.prod(size[i + 1 :])) for i in range(len(size))]
    shape = [n | stride << 32 for n, stride in zip(size, strides, strict=True)]
    return [1 | len(size) << 32, *shape, *[0] * (8 - len(size))]


def loss(
    of: list[int],
    inputs: list[int],
    lengths: list[int],
    labels: list[int],
    size: list[int],
    sequences: int | None = None,
    count: int | None = None,
) -> list[int]:
    """The slots of a call. `of`: addresses and sizes as in struct rf_dnn_ctc."""
    sent = [len(inputs) if sequences is None else sequences]
    sent.append(len(labels) if count is None else count)
    lists = pairs(inputs + lengths + labels)
    return [*tensor(size), *tensor(size), *row([0, SOFTMAX, 0, 0]), *of, *sent, *lists]


def ask(space: Space, functions: Functions, slots: list[int]) -> list[int]:
    """The status of cudnnGetCTCLossWorkspaceSize, and the bytes. Behind the lists there are more
    labels, which are not the call's."""
    at = space.put(np.full(3, -1, np.int64))
    packed = np.array([at, *slots, *[1 | 1 << 32] * (255 - len(slots))], np.uint64)
    function = functions("cudnnGetCTCLossWorkspaceSize 256")
    space.launch(function, 1, 1, packed.tobytes())
    return [int(n) for n in space.read(at, 3, np.int64)][:2]


def test_a_loss_is_computed_of_the_labels_that_were_sent(
    device: Device, functions: Functions
) -> None:
    space = device.space()
    x = np.log(np.array([[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]], np.float32))
    at, costs = space.put(x), space.put(np.zeros(2, np.float32))
    gradients, area = space.put(np.zeros(6, np.float32)), space.put(np.zeros(256, np.uint8))
    of = [at, costs, gradients, area, 68, 0]
    slots = loss(of, [1, 1], [0, 1], [2], [1, 2, SYMBOLS])
    assert ask(space, functions, slots) == [SUCCESS, 64 + 4]
    packed = np.array([0, *slots, *[0] * (255 - len(slots))], np.uint64)
    space.launch(functions("cudnnCTCLoss 256"), 1, 1, packed.tobytes())
    space.check()
    np.testing.assert_allclose(space.read(costs, 2, np.float32), [-math.log(0.5), -math.log(0.25)])
    wanted = [0.5 - 1, 0.25, 0.25, 0.25, 0.5, 0.25 - 1]
    np.testing.assert_allclose(space.read(gradients, 6, np.float32), wanted, rtol=1e-6)


FITS = ([0] * 6, [2, 2], [1, 2], [1, 1, 2], [4, 2, SYMBOLS])


@pytest.mark.parametrize(
    "slots",
    [
        loss([0] * 6, [2], [1], [1], [4, 2, SYMBOLS]),
        loss([0] * 6, [2, 2], [1, 2], [1, 1], [4, 2, SYMBOLS]),
        loss([0] * 6, [2, 2], [1, -1], [1, 1], [4, 2, SYMBOLS]),
        loss([0] * 6, [2, 2], [1, 1], [1, 1], [4, 2]),
        loss(*FITS, sequences=1 << 40),
        loss(*FITS, sequences=(1 << 63) + 2),
        loss(*FITS, count=1 << 40),
        loss(*FITS, count=(1 << 64) - 1),
    ],
    ids=["sequences", "labels", "length", "dimensions", "many", "more", "far", "farther"],
)
def test_lists_that_say_more_than_has_come_are_refused(
    device: Device, functions: Functions, slots: list[int]
) -> None:
    space = device.space()
    assert ask(space, functions, slots)[0] == BAD_PARAM
    assert ask(space, functions, loss(*FITS)) == [SUCCESS, 64 + 4 * 3]
    space.check()


def test_gradients_of_more_sequences_are_refused(device: Device, functions: Functions) -> None:
    slots = loss(*FITS)
    slots[11] += 1  # one more sequence in their tensor
    assert ask(device.space(), functions, slots)[0] == BAD_PARAM


@pytest.mark.parametrize("place", range(4))
def test_memory_of_a_loss_is_the_ranks(device: Device, functions: Functions, place: int) -> None:
    space, other = device.space(), device.space()
    of = [space.put(np.zeros(64, np.float32)) for _ in range(4)] + [256, 0]
    of[place] = np.zeros(64).ctypes.data
    slots = loss(of, [2, 2], [1, 2], [1, 1, 2], [4, 2, SYMBOLS])
    packed = np.array([0, *slots, *[0] * (255 - len(slots))], np.uint64)
    space.launch(functions("cudnnCTCLoss 256"), 1, 1, packed.tobytes())
    code, text = space.error()
    assert code == LAUNCH_FAILED and f"gave status {BAD_PARAM} of its library" in text
    other.check()


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    places=st.lists(
        st.tuples(
            st.integers(18, HEAD + 3), st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1))
        ),
        min_size=1,
        max_size=4,
    )
)
def test_any_numbers_of_a_loss_are_answered(fake: Fake, places: list[tuple[int, int]]) -> None:
    with Device(memory=16 * CHUNK, hal="nvidia") as device:
        functions, space, slots = of_library("cudnn"), device.space(), loss(*FITS)
        for at, value in places:
            slots[at] = value | (1 if at == 18 else 0)
        assert ask(space, functions, slots)[0] >= 0
        assert ask(space, functions, loss(*FITS)) == [SUCCESS, 64 + 4 * 3]
        space.check()


# ---- convolutions ----

FILTER = [0, 0, 3, 1, 1, 2]
CONVOLUTION = [1, 0, 0, 1, 0, 1, 0, 1, 1]
ALGORITHMS = "cudnnGetConvolutionForwardAlgorithm_v7"


def algorithms(
    space: Space, functions: Functions, filter: list[int], convolution: list[int], most: int
) -> list[int]:
    """The status, the number, and six slots for each."""
    at = space.put(np.full(3 + 32 * 6, -1, np.int64))
    slots = [at, *tensor([1, 1, 5]), *filter, *convolution, *tensor([1, 1, 4]), most]
    space.launch(functions(ALGORITHMS), 1, 1, np.array(slots, np.uint64).tobytes())
    return [int(n) for n in space.read(at, 3 + 32 * 6, np.int64)]


def test_algorithms_are_the_librarys(device: Device, functions: Functions) -> None:
    space = device.space()
    status, count, *found = algorithms(space, functions, row(FILTER), row(CONVOLUTION), 2)
    assert (status, count) == (SUCCESS, 2)
    assert [found[6 * i] for i in range(2)] == [2, 0]  # their numbers, and a status of 0
    assert found[12:-1] == [0] * (30 * 6)
    space.check()


@example(most=(1 << 64) - 1)
@example(most=33)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(most=st.integers(3, 2**64 - 1))
def test_no_more_algorithms_are_asked_for_than_have_space(fake: Fake, most: int) -> None:
    with Device(memory=16 * CHUNK, hal="nvidia") as device:
        functions, space = of_library("cudnn"), device.space()
        assert algorithms(space, functions, row(FILTER), row(CONVOLUTION), most)[:2] == [0, 3]
        assert fake.most() <= 32


@pytest.mark.parametrize(
    ("filter", "convolution"),
    [
        (row([0, 0, 1 << 20, 1, 1, 2]), row(CONVOLUTION)),
        (row([0, 0, -1, 1, 1, 2]), row(CONVOLUTION)),
        (row(FILTER), row([1, 0, 0, 1, 0, 7])),
        (row(FILTER), row([1, 0, 0, 1, 0, -1])),
        (row(FILTER), row([1, 0, 0, 1, 0, 0])),
    ],
)
def test_rows_of_a_hostile_rank_are_refused(
    device: Device, functions: Functions, filter: list[int], convolution: list[int]
) -> None:
    space = device.space()
    assert algorithms(space, functions, filter, convolution, 3)[0] == BAD_PARAM
    assert algorithms(space, functions, row(FILTER), row(CONVOLUTION), 3)[0] == SUCCESS
    space.check()


def test_an_algorithm_that_is_not_there_fails_the_rank_alone(
    device: Device, functions: Functions
) -> None:
    space, other = device.space(), device.space()
    x, w, y = (space.put(np.ones(n, np.float32)) for n in (5, 2, 4))
    one = int(np.array([1], np.float32).view(np.uint32)[0])
    slots = [0, one, *tensor([1, 1, 5]), x, *row(FILTER), w, *row(CONVOLUTION), 77, 0, 0, 0]
    slots += [*tensor([1, 1, 4]), y]
    function = functions("cudnnConvolutionForward")
    space.launch(function, 1, 1, np.array(slots, np.uint64).tobytes())
    code, text = space.error()
    assert code == LAUNCH_FAILED and f"gave status {NOT_SUPPORTED} of its library" in text
    other.check()
