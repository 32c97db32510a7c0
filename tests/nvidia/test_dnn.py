"""Promise: plans of cuDNN are NVIDIA's own: the proxy makes the descriptors that the program made,
with the engine and knobs that it chose, and executes them on the rank's memory; ranks share equal
plans; and no list that a rank sends makes the proxy read or write memory of its own."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from softgpu.harness import CHUNK, Device, Space

from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

from .fake_driver import Fake
from .test_libraries import Functions, of_library

LAUNCH_FAILED = 719
SUCCESS, BAD_PARAM, NOT_SUPPORTED = 0, 2000, 3000
CONVOLUTION, ENGINE, CONFIGURATION, HEURISTIC, PLAN, CHOICE = 1, 2, 3, 4, 5, 7
FORWARD, FILTER, DATA, MULTIPLY, GRAPH, PACK, TENSOR = 10, 11, 12, 13, 15, 16, 17
POINTWISE = 0
HANDLE, TYPE, BOOLEAN, INT64, FLOAT, DOUBLE, ADDRESS, MODE, HEUR_MODE, KNOB = range(10)
DESCRIPTOR, CHARACTER = 15, 24
ANSWER_SLOTS = 2048
VERSION = 92400  # of the fake's cuDNN
X, W, Y = 120, 119, 121
Attribute = tuple[int, int, list[Any]]


class Descriptors:
    """A list of descriptors, as a rank sends it."""

    def __init__(self) -> None:
        self.slots: list[int] = []
        self.count = 0

    def add(self, kind: int, *attributes: Attribute) -> int:
        self.slots.append(kind | len(attributes) << 32)
        for name, of, elements in attributes:
            self.slots.append(name | of << 32 | len(elements) << 40)
            self.slots += [bits(of, each) for each in elements]
        self.count += 1
        return self.count - 1


def bits(kind: int, value: Any) -> int:
    code = {FLOAT: "<f", DOUBLE: "<d"}.get(kind, "<q")
    return int.from_bytes(struct.pack(code, value), "little")


def tensor(to: Descriptors, name: int, size: list[int], stride: list[int], *more: Attribute) -> int:
    described = [(901, TYPE, [0]), (902, INT64, size), (903, INT64, stride), (906, INT64, [name])]
    return to.add(TENSOR, *described, (900, INT64, [16]), *more)


def strides(size: list[int]) -> list[int]:
    return [int(np.prod(size[i + 1 :])) for i in range(len(size))]


def convolution(to: Descriptors, direction: int, case: dict[str, Any]) -> int:
    """The graph."""
    n = len(case["taps"])
    c = to.add(
        CONVOLUTION,
        (100, TYPE, [0]),
        (101, MODE, [1]),
        (106, INT64, [n]),
        (102, INT64, case["dilation"]),
        (103, INT64, case["step"]),
        (104, INT64, case["pad"]),
        (105, INT64, case["pad"]),
    )
    x, w, y = (tensor(to, name, case[key], strides(case[key])) for name, key in NAMES)
    base = {FORWARD: 700, DATA: 706, FILTER: 712}[direction]
    operation = to.add(
        direction,
        (base, case["scalars"], [case["alpha"]]),
        (base + 1, case["scalars"], [case["beta"]]),
        (base + 2, DESCRIPTOR, [c]),
        (base + 3, DESCRIPTOR, [w]),
        (base + 4, DESCRIPTOR, [x]),
        (base + 5, DESCRIPTOR, [y]),
    )
    return to.add(GRAPH, (800, HANDLE, [0]), (801, DESCRIPTOR, [operation]))


NAMES = ((X, "x"), (W, "w"), (Y, "y"))


def plan(to: Descriptors, graph: int, engine: int, knobs: list[tuple[int, int]]) -> None:
    made = to.add(ENGINE, (1300, DESCRIPTOR, [graph]), (1301, INT64, [engine]))
    choices = [to.add(CHOICE, (600, KNOB, [kind]), (601, INT64, [value])) for kind, value in knobs]
    configuration = to.add(CONFIGURATION, (300, DESCRIPTOR, [made]), (302, DESCRIPTOR, choices))
    to.add(PLAN, (400, HANDLE, [0]), (401, DESCRIPTOR, [configuration]))


def query(space: Space, functions: Functions, to: Descriptors) -> list[int]:
    """The status, and what follows it."""
    at = space.put(np.full(ANSWER_SLOTS, -1, np.int64))
    send(space, functions, "cudnnQuery", [at, len(to.slots), *to.slots])
    return [int(n) for n in space.read(at, ANSWER_SLOTS, np.int64)]


def send(space: Space, functions: Functions, name: str, slots: list[int]) -> None:
    size = next(n for n in (256, 1024, 4080) if len(slots) <= n)
    packed = np.array(slots + [0] * (size - len(slots)), np.uint64)
    space.launch(functions(f"{name} {size}"), 1, 1, packed.tobytes())


def execute(
    space: Space, functions: Functions, to: Descriptors, area: int, area_bytes: int, **at: int
) -> None:
    pairs = [each for name, key in NAMES for each in (name, at[key])]
    send(
        space,
        functions,
        "cudnnExecute",
        [0, area, area_bytes, len(pairs) // 2, len(to.slots), VERSION, *pairs, *to.slots],
    )


@pytest.fixture
def device(fake: Fake) -> Iterator[Device]:
    with Device(memory=16 * CHUNK, hal="nvidia") as made:
        yield made


@pytest.fixture
def functions(fake: Fake) -> Functions:
    return of_library("cudnn")


SMALL: dict[str, Any] = {
    "taps": [2],
    "dilation": [1],
    "step": [1],
    "pad": [0],
    "x": [1, 1, 5],
    "w": [1, 1, 2],
    "y": [1, 1, 4],
    "scalars": FLOAT,
    "alpha": 1.0,
    "beta": 0.0,
}


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    spatial = draw(st.integers(1, 3))

    def each(least: int, most: int) -> list[int]:
        return [draw(st.integers(least, most)) for _ in range(spatial)]

    taps, dilation, step, pad = each(1, 3), each(1, 2), each(1, 2), each(0, 2)
    covered = [(t - 1) * d + 1 for t, d in zip(taps, dilation, strict=True)]
    place = [c + draw(st.integers(0, 2)) for c in covered]
    out = [(p + 2 * b - c) // s + 1 for p, b, c, s in zip(place, pad, covered, step, strict=True)]
    images, groups, inside, outside = (draw(st.integers(1, 2)) for _ in range(4))
    return {
        "taps": taps,
        "dilation": dilation,
        "step": step,
        "pad": pad,
        "x": [images, groups * inside, *place],
        "w": [groups * outside, inside, *taps],
        "y": [images, groups * outside, *out],
        "scalars": draw(st.sampled_from([FLOAT, DOUBLE])),
        "alpha": draw(st.sampled_from([1.0, 0.5])),
        "beta": draw(st.sampled_from([0.0, 1.0, -2.0])),
    }


def by_numpy(case: dict[str, Any], x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """y, without the scalars."""
    pad = [(0, 0), (0, 0), *[(p, p) for p in case["pad"]]]
    padded, y = np.pad(x, pad), np.zeros(case["y"])
    inside, outside = w.shape[1], w.shape[0] * w.shape[1] // x.shape[1]
    for tap in np.ndindex(*case["taps"]):
        window = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, s, n in zip(tap, case["dilation"], case["step"], case["y"][2:], strict=True)
        )
        part = padded[(slice(None), slice(None), *window)]
        for o in range(w.shape[0]):
            first = o // outside * inside
            taken = part[:, first : first + inside]
            weights = w[(o, slice(None), *tap)].reshape(1, -1, *[1] * len(tap))
            y[:, o] += (taken * weights).sum(1)
    return y


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@example(case={**SMALL, "scalars": DOUBLE, "beta": -2.0, "alpha": 0.5}, direction=FORWARD, engine=1)
@given(case=cases(), direction=st.sampled_from([FORWARD, FILTER, DATA]), engine=st.integers(0, 2))
def test_a_plan_is_executed_as_the_program_described_it(
    fake: Fake, case: dict[str, Any], direction: int, engine: int
) -> None:
    """A gradient is checked by the sum that it is the gradient of."""
    functions = of_library("cudnn")
    random = np.random.default_rng(0)
    values = {key: random.standard_normal(case[key]).astype(np.float32) for _, key in NAMES}
    with Device(memory=16 * CHUNK, hal="nvidia") as device:
        space = device.space()
        at = {key: space.put(value) for key, value in values.items()}
        to = Descriptors()
        plan(to, convolution(to, direction, case), engine, [(4, 70)])
        status, area_bytes, version, *_ = query(space, functions, to)
        assert (status, area_bytes, version) == (SUCCESS, 512 * engine, VERSION)
        area = space.put(np.zeros(512 * engine + 4, np.uint8))
        execute(space, functions, to, area, area_bytes, **at)
        space.check()
        written = {FORWARD: "y", FILTER: "w", DATA: "x"}[direction]
        found = space.read(at[written], values[written].size, np.float32).astype(np.float64)
    before = values[written].astype(np.float64)
    result = (found.reshape(before.shape) - case["beta"] * before) / case["alpha"]
    wide = {key: value.astype(np.float64) for key, value in values.items()}
    if direction == FORWARD:
        np.testing.assert_allclose(result, by_numpy(case, wide["x"], wide["w"]), atol=1e-4)
        return
    # <gradient, v> is <y, convolution of v>, for each v
    for _ in range(3):
        v = random.standard_normal(before.shape)
        x, w = (v, wide["w"]) if direction == DATA else (wide["x"], v)
        np.testing.assert_allclose(
            (result * v).sum(), (wide["y"] * by_numpy(case, x, w)).sum(), atol=1e-3
        )


# ---- queries ----


def test_the_heuristic_names_engines_knobs_and_notes(device: Device, functions: Functions) -> None:
    to = Descriptors()
    to.add(HEURISTIC, (201, DESCRIPTOR, [convolution(to, FORWARD, SMALL)]), (200, HEUR_MODE, [0]))
    status, count, *rest = query(device.space(), functions, to)
    assert (status, count) == (SUCCESS, 3)
    assert rest[:4] == [2, 0, 1, 4] and rest[4] == 0  # engine 2, no knobs, one note, no behaviour
    assert rest[5:11] == [1, 1, 4, 71, 0, 0]
    assert rest[11:17] == [0, 1, 4, 72, 0, 0]


def test_an_engine_and_a_graph_are_described(device: Device, functions: Functions) -> None:
    space, to = device.space(), Descriptors()
    graph = convolution(to, FORWARD, SMALL)
    assert query(space, functions, to)[:2] == [SUCCESS, 3]
    to.add(ENGINE, (1300, DESCRIPTOR, [graph]), (1301, INT64, [2]))
    assert query(space, functions, to)[:8] == [SUCCESS, 1, 4, 0, 1, 4, 72, 70]


def test_a_configuration_says_what_it_needs(device: Device, functions: Functions) -> None:
    to, configuration = Descriptors(), Descriptors()
    plan(to, convolution(to, FORWARD, SMALL), 2, [])
    configuration.slots = to.slots[:-5]  # without the plan
    assert query(device.space(), functions, configuration)[:5] == [SUCCESS, 1, 1024, 1, 48]


def test_a_plan_is_made_once(fake: Fake, device: Device, functions: Functions) -> None:
    """Ranks share it; the one that was not used for longest is dropped."""

    def made(case: dict[str, Any]) -> int:
        to, before = Descriptors(), fake.calls("cudnnBackendCreateDescriptor")
        plan(to, convolution(to, FORWARD, case), 0, [])
        assert query(device.space(), functions, to)[0] == SUCCESS
        return fake.calls("cudnnBackendCreateDescriptor") - before

    assert [made(SMALL) for _ in range(3)] == [9, 0, 0]
    space = device.space()
    for n in range(1024):
        to = Descriptors()
        plan(to, convolution(to, FORWARD, {**SMALL, "alpha": float(n + 2)}), 0, [])
        send(space, functions, "cudnnQuery", [0, len(to.slots), *to.slots])
    assert made(SMALL) == 9


def test_a_number_is_passed_by_value(device: Device, functions: Functions) -> None:
    """Its value is in the call; what the library reads is memory of the proxy's."""
    space, to = device.space(), Descriptors()
    x, y = tensor(to, X, [3], [1]), tensor(to, Y, [3], [1])
    by = tensor(to, W, [1], [1], (908, BOOLEAN, [1]))
    product = to.add(POINTWISE, (0, 14, [1]), (1, TYPE, [0]))
    operation = to.add(
        MULTIPLY,
        *((name, DESCRIPTOR, [of]) for name, of in ((750, product), (751, x), (752, by), (753, y))),
    )
    plan(to, to.add(GRAPH, (800, HANDLE, [0]), (801, DESCRIPTOR, [operation])), 0, [])
    source, target = space.put(np.array([1, 2, 3], np.float32)), space.put(np.zeros(3, np.float32))
    execute(space, functions, to, 0, 0, x=source, w=bits(FLOAT, 2.5), y=target)
    space.check()
    assert list(space.read(target, 3, np.float32)) == [2.5, 5, 7.5]


def test_a_gpu_that_needs_a_larger_workspace_gets_one(device: Device, functions: Functions) -> None:
    space, to = device.space(), Descriptors()
    plan(to, convolution(to, FORWARD, SMALL), 2, [])
    at = {key: space.put(np.ones(case_size(key), np.float32)) for _, key in NAMES}
    execute(space, functions, to, 0, 0, **at)
    space.check()
    assert list(space.read(at["y"], 4, np.float32)) == [2] * 4


def case_size(key: str) -> int:
    return int(np.prod(SMALL[key]))


# ---- lists of a hostile rank ----


def refused(
    device: Device, functions: Functions, slots: list[int], status: int = BAD_PARAM
) -> None:
    """The rank fails, and no other."""
    space, other = device.space(), device.space()
    send(space, functions, "cudnnExecute", slots)
    code, text = space.error()
    assert code == LAUNCH_FAILED and f"gave status {status} of its library" in text
    other.check()


@pytest.mark.parametrize("key", ["x", "w", "y", "area"])
def test_memory_that_is_not_the_ranks_is_refused(
    device: Device, functions: Functions, key: str
) -> None:
    space, to = device.space(), Descriptors()
    plan(to, convolution(to, FORWARD, SMALL), 1, [])
    at = {name: space.put(np.ones(256, np.float32)) for name in ("x", "w", "y", "area")}
    at[key] = np.zeros(256).ctypes.data
    area = at.pop("area")
    execute(space, functions, to, area, 512, **at)
    assert space.error()[0] == LAUNCH_FAILED


def test_a_plan_of_another_version_is_refused(device: Device, functions: Functions) -> None:
    """An engine's number means an algorithm in one version of cuDNN only."""
    to = Descriptors()
    plan(to, convolution(to, FORWARD, SMALL), 0, [])
    refused(device, functions, [0, 0, 0, 0, len(to.slots), VERSION - 1, *to.slots], NOT_SUPPORTED)


@pytest.mark.parametrize("kind", [ADDRESS, CHARACTER, 26, 33, 255])
def test_no_attribute_is_an_address(device: Device, functions: Functions, kind: int) -> None:
    to = Descriptors()
    to.add(TENSOR, (902, kind, [1 << 40]))
    assert query(device.space(), functions, to)[0] == NOT_SUPPORTED


def test_only_plans_are_executed(device: Device, functions: Functions) -> None:
    to = Descriptors()
    convolution(to, FORWARD, SMALL)
    refused(device, functions, [0, 0, 0, 1, len(to.slots), VERSION, X, 0, *to.slots])
    pack = Descriptors()
    pack.add(PACK, (1000, INT64, [1]))
    assert query(device.space(), functions, pack)[0] == NOT_SUPPORTED


@pytest.mark.parametrize(
    ("tensors", "length"),
    [((1 << 63) + 200, None), (1 << 60, None), (0, 1 << 60), (100, 250), (0, 0)],
)
def test_lengths_that_do_not_fit_are_refused(
    device: Device, functions: Functions, tensors: int, length: int | None
) -> None:
    to = Descriptors()
    plan(to, convolution(to, FORWARD, SMALL), 0, [])
    sent = len(to.slots) if length is None else length
    none = [0] * (2 * tensors % (1 << 64) if tensors > 1 << 63 else 0)
    refused(device, functions, [0, 0, 0, tensors, sent, VERSION, *none, *to.slots])


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    places=st.lists(
        st.tuples(st.integers(0, 400), st.one_of(st.integers(0, 20), st.integers(0, 2**64 - 1))),
        min_size=1,
        max_size=6,
    ),
    length=st.one_of(st.none(), st.integers(0, 2**64 - 1)),
)
def test_any_list_is_answered(
    fake: Fake, places: list[tuple[int, int]], length: int | None
) -> None:
    """Changed anywhere, a list gets a status, and the next one its answer."""
    functions, to = of_library("cudnn"), Descriptors()
    plan(to, convolution(to, FORWARD, SMALL), 1, [(4, 70)])
    whole = list(to.slots)
    for at, value in places:
        to.slots[at % len(whole)] = value
    with Device(memory=16 * CHUNK, hal="nvidia") as device:
        space = device.space()
        at = space.put(np.full(ANSWER_SLOTS, -1, np.int64))
        sent = len(whole) if length is None else length
        send(space, functions, "cudnnQuery", [at, sent, *to.slots])
        assert space.read(at, 1, np.int64)[0] >= 0
        to.slots = whole
        assert query(space, functions, to)[:2] == [SUCCESS, 512]


# ---- functions outside of the backend API ----

LSTM_OF_FIVE = 1 | 2 << 16 | 2 << 24  # a cell, and its biases


def rnn(states: int, layers: int = 1) -> list[int]:
    sizes = [0, 5 | 7 << 32, 7 | layers << 32]
    return [LSTM_OF_FIVE, *sizes, 1, bits(FLOAT, 0.5), states, 96, 3]


def sequences(runs: list[tuple[int, int]], count: int, run_count: int | None = None) -> list[int]:
    packed = [length | times << 32 for length, times in runs]
    first = 1 | (len(runs) if run_count is None else run_count) << 32
    return [first, 6 | count << 32, 5, 0, *packed, *[0] * (256 - len(packed))]


def sizes_of(space: Space, functions: Functions, rnn: list[int], sequences: list[int]) -> list[int]:
    at = space.put(np.full(3, -1, np.int64))
    slots = [at, *rnn, 1, *sequences]
    space.launch(functions("cudnnGetRNNTempSpaceSizes"), 1, 1, np.array(slots, np.uint64).tobytes())
    return [int(n) for n in space.read(at, 3, np.int64)]


def test_sequences_of_any_lengths_are_described(device: Device, functions: Functions) -> None:
    space = device.space()
    states = space.put(np.zeros(96, np.uint8))
    assert sizes_of(space, functions, rnn(states), sequences([(6, 2), (3, 1)], 3)) == [0, 64, 128]
    space.check()


def test_descriptors_of_a_hostile_rank_are_refused(device: Device, functions: Functions) -> None:
    """The states of a dropout are the rank's, and a description says no more than it has."""
    space = device.space()
    states, own = space.put(np.zeros(96, np.uint8)), np.zeros(96, np.uint8).ctypes.data
    whole = sequences([(6, 2), (3, 1)], 3)
    assert sizes_of(space, functions, rnn(own), whole)[0] == BAD_PARAM
    assert sizes_of(space, functions, rnn(states), sequences([(6, 2)], 3))[0] == BAD_PARAM
    for wrong in (sequences([(6, 1)], 1 << 20), sequences([(6, 1)], 1, run_count=1 << 20)):
        assert sizes_of(space, functions, rnn(states), wrong)[0] == NOT_SUPPORTED
    assert sizes_of(space, functions, rnn(states), whole)[0] == SUCCESS
    space.check()
    space.launch(
        functions("cudnnSetDropoutDescriptor"),
        1,
        1,
        np.array([0, 1, 0, own, 96, 3], np.uint64).tobytes(),
    )
    assert space.error()[0] == LAUNCH_FAILED


# ---- the whole way ----

PROGRAMS = {
    "convolutions": 1 + 3 * 6,
    "layers": 1 + 4 * 6,
    "losses": 5 * 6,
    "older": 7 * 6,
    "tensors": 10 * 6,
}  # and their lines
STEPS = 6


@pytest.fixture
def driver(fake_path: Path, libraries_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(fake_path))
    monkeypatch.setenv("RANKFOLD_LIBRARIES", str(libraries_path))
    monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")


def start(fleet: Fleet, program: str, name: str, placement: list[int]) -> RunningJob:
    built = cuda.build(Path(__file__).parent / f"{program}.cu")
    return fleet.start(name, [str(built), str(STEPS)], placement, memory=32 * MiB)


def outputs(job: RunningJob) -> list[str]:
    assert job.wait() == [0] * job.world_size, [job.errors(r) for r in range(job.world_size)]
    return [job.output(rank) for rank in range(job.world_size)]


@pytest.mark.usual("convolutions", "layers", "losses")
@pytest.mark.parametrize("program", PROGRAMS)
def test_folded_and_moved_the_results_are_the_same(
    driver: None, state: State, program: str
) -> None:
    with Fleet(state, memory=16 * MiB, kinds=("nvidia", "nvidia")) as fleet:
        wanted = outputs(start(fleet, program, "apart", [0, 1]))
        assert wanted[0] != wanted[1] and wanted[0].count("\n") == PROGRAMS[program]
        if program == "convolutions":
            # The fake's deterministic engines need these.
            assert wanted[0].startswith("workspaces 512 512 0\n")
        assert outputs(start(fleet, program, "folded", [0, 0])) == wanted
        job = start(fleet, program, "moved", [0, 0])
        until(lambda: job.output(0).count("\n") >= 5)
        job.move([fleet.names[1], fleet.names[0]])
        assert outputs(job) == wanted
