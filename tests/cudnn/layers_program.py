"""A rank that calls cuDNN as PyTorch does: convolutions through the backend API, and batch
normalisation, in each type, and compares them with NumPy's.

Prints a line with a hash of each result's bits. Arguments: the number of rounds, and
the types.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import sys
from ctypes import byref, c_double, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

RUNTIME = ctypes.CDLL("libcudart.so.13")
DNN = ctypes.CDLL("libcudnn.so.9")
Array = np.ndarray[Any, Any]
FLOAT, DOUBLE, HALF, BFLOAT16 = 0, 1, 2, 9
HANDLE, DATA_TYPE, INT64, AS_FLOAT, AS_DOUBLE, POINTER, MODE, HEURISTIC, DESCRIPTOR = (
    *(0, 1, 3, 4, 5, 6, 7, 8),
    15,
)
CONVOLUTION, ENGINE, CONFIGURATION, HEURISTICS, PLAN, GRAPH, PACK, TENSOR = (
    1,
    2,
    3,
    4,
    5,
    15,
    16,
    17,
)
FORWARD, FILTER, DATA = 10, 11, 12  # descriptors; of each the attributes of x, w, y, and the rest
ATTRIBUTES = {
    FORWARD: {"alpha": 700, "beta": 701, "conv": 702, "w": 703, "x": 704, "y": 705},
    DATA: {"alpha": 706, "beta": 707, "conv": 708, "w": 709, "x": 710, "y": 711},
    FILTER: {"alpha": 712, "beta": 713, "conv": 714, "w": 715, "x": 716, "y": 717},
}
SHAPE_MISMATCH, NOT_FINALIZED, NOT_SUPPORTED = 2008, 2004, 3000
TOLERANCE = {FLOAT: 1e-5, DOUBLE: 1e-12, HALF: 2e-3, BFLOAT16: 2e-2}
# (images, channels, places), channels of y, window, padding, step, dilation, groups
Case = tuple[tuple[int, ...], int, tuple[int, ...], int, int, int, int]
CASES: list[Case] = [
    ((2, 3, 7, 6), 4, (3, 3), 1, 1, 1, 1),
    ((3, 4, 5, 5), 6, (1, 1), 0, 1, 1, 1),
    ((2, 3, 7, 6), 1, (3, 3), 1, 1, 1, 1),
    ((2, 3, 4, 4), 1, (4, 4), 0, 1, 1, 1),
    ((2, 1, 5, 4), 1, (2, 2), 0, 1, 1, 1),
    ((2, 4, 9, 8), 6, (3, 2), 1, 2, 1, 2),
    ((2, 4, 9, 8), 4, (2, 3), 2, 1, 2, 4),
    ((2, 2, 9), 3, (3,), 1, 2, 1, 1),
    ((2, 2, 4, 5, 4), 4, (2, 3, 2), 1, 2, 1, 2),
]


def good(status: int) -> None:
    if status:
        raise SystemExit(f"status {status}")


def bits(numbers: Array, kind: int) -> Array:
    """As they are stored in that type."""
    if kind == BFLOAT16:
        words = numbers.astype(np.float32).view(np.uint32)
        return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)
    return numbers.astype({FLOAT: np.float32, DOUBLE: np.float64, HALF: np.float16}[kind])


def numbers_of(stored: Array, kind: int) -> Array:
    if kind == BFLOAT16:
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)


class Tensor:
    """Numbers on the device; `last`: stored with the channels last."""

    def __init__(self, numbers: Array, kind: int, last: bool = False):
        self.kind, self.last, self.at = kind, last, c_void_p()
        self.order = [0, *range(2, numbers.ndim), 1] if last else list(range(numbers.ndim))
        stored = np.ascontiguousarray(bits(numbers, kind).transpose(self.order))
        self.shape, self.stored = numbers.shape, stored
        strides = [step // stored.itemsize for step in stored.strides]
        self.strides = [strides[self.order.index(i)] for i in range(numbers.ndim)]
        self.exact = numbers_of(stored, kind).transpose(np.argsort(self.order))
        good(RUNTIME.cudaMalloc(byref(self.at), c_size_t(stored.nbytes)))
        size = c_size_t(stored.nbytes)
        good(RUNTIME.cudaMemcpy(self.at, c_void_p(stored.ctypes.data), size, 1))

    def now(self) -> Array:
        out = np.empty_like(self.stored)
        good(RUNTIME.cudaMemcpy(c_void_p(out.ctypes.data), self.at, c_size_t(out.nbytes), 2))
        self.hash = hashlib.sha256(out.tobytes()).hexdigest()[:16]
        return numbers_of(out, self.kind).transpose(np.argsort(self.order))

    def free(self) -> None:
        good(RUNTIME.cudaFree(self.at))


class Descriptor:
    def __init__(self, kind: int):
        self.at = c_void_p()
        good(DNN.cudnnBackendCreateDescriptor(kind, byref(self.at)))

    def set(self, name: int, kind: int, *values: Any) -> Descriptor:
        good(self.try_set(name, kind, *values))
        return self

    def try_set(self, name: int, kind: int, *values: Any) -> int:
        types: dict[int, Any] = {INT64: c_int64, AS_FLOAT: c_float, AS_DOUBLE: c_double}
        plain: Any = types.get(kind, c_void_p if kind in (HANDLE, POINTER, DESCRIPTOR) else c_int)
        given = [value.at if isinstance(value, Descriptor) else value for value in values]
        array = (plain * len(given))(*given)
        status: int = DNN.cudnnBackendSetAttribute(self.at, name, kind, c_int64(len(given)), array)
        return status

    def final(self) -> Descriptor:
        good(DNN.cudnnBackendFinalize(self.at))
        return self

    def free(self) -> None:
        good(DNN.cudnnBackendDestroyDescriptor(self.at))


def describe(tensor: Tensor, number: int) -> Descriptor:
    made = Descriptor(TENSOR).set(901, DATA_TYPE, tensor.kind)
    made.set(902, INT64, *tensor.shape).set(903, INT64, *tensor.strides)
    return made.set(906, INT64, number).set(900, INT64, 16).final()


def operation(kind: int, tensors: dict[str, Tensor], case: Case) -> Descriptor:
    _, _, window, pad, step, dilation, _ = case
    n, any_type = len(window), tensors["x"].kind
    sums = DOUBLE if any_type == DOUBLE else FLOAT
    conv = Descriptor(CONVOLUTION).set(100, DATA_TYPE, sums).set(101, MODE, 1).set(106, INT64, n)
    conv.set(105, INT64, *[pad] * n).set(104, INT64, *[pad] * n)
    conv.set(103, INT64, *[step] * n).set(102, INT64, *[dilation] * n).final()
    made, names = Descriptor(kind), ATTRIBUTES[kind]
    made.set(names["conv"], DESCRIPTOR, conv)
    for name, tensor in tensors.items():
        part = describe(tensor, ord(name))
        made.set(names[name], DESCRIPTOR, part)
        part.free()
    conv.free()
    scalar = AS_DOUBLE if any_type == DOUBLE else AS_FLOAT
    return made.set(names["alpha"], scalar, 1.0).set(names["beta"], scalar, 0.0)


def convolve(handle: c_void_p, kind: int, tensors: dict[str, Tensor], case: Case) -> None:
    """Through a graph, a heuristic and a plan, as the programs do."""
    op = operation(kind, tensors, case).final()
    graph = Descriptor(GRAPH).set(800, HANDLE, handle).set(801, DESCRIPTOR, op).final()
    heuristics = Descriptor(HEURISTICS).set(201, DESCRIPTOR, graph).set(200, HEURISTIC, 3).final()
    found, one = c_int64(), Descriptor(CONFIGURATION)
    DNN.cudnnBackendGetAttribute(heuristics.at, 202, DESCRIPTOR, c_int64(0), byref(found), None)
    assert found.value == 1
    results = (c_void_p * 1)(one.at)
    good(DNN.cudnnBackendGetAttribute(heuristics.at, 202, DESCRIPTOR, c_int64(1), None, results))
    plan = Descriptor(PLAN).set(401, DESCRIPTOR, one).set(400, HANDLE, handle).final()
    bytes_needed, workspace = c_int64(), c_void_p()
    good(DNN.cudnnBackendGetAttribute(plan.at, 402, INT64, c_int64(1), None, byref(bytes_needed)))
    good(RUNTIME.cudaMalloc(byref(workspace), c_size_t(bytes_needed.value or 1)))
    pack = Descriptor(PACK).set(1001, POINTER, *[t.at for t in tensors.values()])
    pack.set(1000, INT64, *map(ord, tensors)).set(1003, POINTER, workspace).final()
    good(DNN.cudnnBackendExecute(handle, plan.at, pack.at))
    for each in (op, graph, heuristics, one, plan, pack):
        each.free()
    good(RUNTIME.cudaFree(workspace))


def windows(x: Array, case: Case) -> Array:
    """(images, channels, taps, places), from the padded x."""
    _, _, window, pad, step, dilation, _ = case
    padded = np.pad(x, [(0, 0), (0, 0), *[(pad, pad)] * len(window)])
    places = [
        (size - (taps - 1) * dilation - 1) // step + 1
        for size, taps in zip(padded.shape[2:], window, strict=True)
    ]
    found = []
    for tap in itertools.product(*map(range, window)):
        part = padded
        for i, (n, t) in enumerate(zip(places, tap, strict=True)):
            part = part.take(np.arange(n) * step + t * dilation, axis=i + 2)
        found.append(part)
    return np.stack(found, axis=2)


def expected(x: Array, w: Array, dy: Array | None, case: Case) -> list[Array]:
    """y, or the gradients of x and w."""
    groups, seen = case[6], windows(x, case)
    places = seen.shape[3:]
    split = seen.reshape(len(x), groups, x.shape[1] // groups, w[0, 0].size, -1)
    filters = w.reshape(groups, len(w) // groups, w.shape[1], -1)
    if dy is None:
        y = np.einsum("goct,ngctp->ngop", filters, split)
        return [y.reshape(len(x), len(w), *places)]
    slope = dy.reshape(len(x), groups, len(w) // groups, -1)
    dw = np.einsum("ngop,ngctp->goct", slope, split).reshape(w.shape)
    covering = windows(np.arange(x.size, dtype=np.float64).reshape(x.shape) + 1, case)
    spread = np.einsum("goct,ngop->ngctp", filters, slope).reshape(covering.shape)
    sums = np.zeros(x.size + 1)
    np.add.at(sums, covering.astype(np.int64), spread)
    return [sums[1:].reshape(x.shape), dw]


def check(name: str, kind: int, result: Tensor, right: Array) -> None:
    mine, scale = result.now(), max(1.0, float(np.abs(right).max()))
    error = float(np.abs(mine - right).max()) / scale
    if not error < TOLERANCE[kind]:
        raise SystemExit(f"{name}: error {error}")
    print(name, result.hash, flush=True)


def convolutions(handle: c_void_p, seed: int, kinds: tuple[int, ...]) -> None:
    random = np.random.default_rng(seed)
    for kind, case, last in itertools.product(kinds, CASES, (False, True)):
        size, out, window, *_, groups = case
        x = Tensor(random.standard_normal(size), kind, last)
        w = Tensor(random.standard_normal((out, size[1] // groups, *window)), kind, last)
        right = expected(x.exact, w.exact, None, case)[0]
        y = Tensor(np.full(right.shape, np.nan), kind, last)
        convolve(handle, FORWARD, {"x": x, "w": w, "y": y}, case)
        check(f"forward {kind} {case} {last}", kind, y, right)
        dy = Tensor(np.array(random.standard_normal(right.shape)), kind, last)
        dx, dw = (Tensor(np.full(each, np.nan), kind, last) for each in (x.shape, w.shape))
        right_x, right_w = expected(x.exact, w.exact, dy.exact, case)
        convolve(handle, DATA, {"x": dx, "w": w, "y": dy}, case)
        check(f"data {kind} {case} {last}", kind, dx, right_x)
        convolve(handle, FILTER, {"x": x, "w": dw, "y": dy}, case)
        check(f"filter {kind} {case} {last}", kind, dw, right_w)
        for each in (x, w, y, dy, dx, dw):
            each.free()


def legacy(tensor: Tensor) -> c_void_p:
    made, n = c_void_p(), len(tensor.shape)
    good(DNN.cudnnCreateTensorDescriptor(byref(made)))
    sizes, strides = (c_int * n)(*tensor.shape), (c_int * n)(*tensor.strides)
    good(DNN.cudnnSetTensorNdDescriptor(made, tensor.kind, n, sizes, strides))
    return made


def normalise(handle: c_void_p, seed: int, kind: int, mode: int, last: bool) -> None:
    random, size = np.random.default_rng(seed), (3, 4, 5, 6)
    sums = DOUBLE if kind == DOUBLE else FLOAT
    axes: tuple[int, ...] = (0,) if mode == 0 else (0, 2, 3)
    x = Tensor(random.standard_normal(size) * 2 + 3, kind, last)
    dy = Tensor(random.standard_normal(size), kind, last)
    y, dx = (Tensor(np.full(size, np.nan), kind, last) for _ in range(2))
    shape = x.exact.mean(axes, keepdims=True).shape
    scale, bias, average, spread = (Tensor(random.random(shape) + 0.5, sums) for _ in range(4))
    mean, deviation, d_scale, d_bias = (Tensor(np.full(shape, np.nan), sums) for _ in range(4))
    number = c_double if kind == DOUBLE else c_float
    one, zero = byref(number(1)), byref(number(0))
    of_x, of_scale = legacy(x), legacy(scale)
    ends = (c_double(0.1), average.at, spread.at, c_double(1e-5), mean.at, deviation.at)
    good(
        DNN.cudnnBatchNormalizationForwardTraining(
            *(handle, mode, one, zero, of_x, x.at, of_x, y.at, of_scale, scale.at, bias.at, *ends)
        )
    )
    name = f"{kind} {mode} {last}"
    m, v = x.exact.mean(axes, keepdims=True), x.exact.var(axes, keepdims=True)
    d, count = 1 / np.sqrt(v + 1e-5), x.exact.size / m.size
    hat = (x.exact - m) * d
    check(f"training {name}", kind, y, hat * scale.exact + bias.exact)
    check(f"mean {name}", sums, mean, m)
    check(f"deviation {name}", sums, deviation, d)
    check(f"average {name}", sums, average, 0.9 * average.exact + 0.1 * m)
    right = 0.9 * spread.exact + 0.1 * v * count / (count - 1)
    check(f"spread {name}", sums, spread, right)
    good(
        DNN.cudnnBatchNormalizationBackward(
            *(handle, mode, one, zero, one, zero, of_x, x.at, of_x, dy.at, of_x, dx.at),
            *(of_scale, scale.at, d_scale.at, d_bias.at, c_double(1e-5), mean.at, deviation.at),
        )
    )
    slope, product = dy.exact.sum(axes, keepdims=True), (dy.exact * hat).sum(axes, keepdims=True)
    check(f"d_scale {name}", sums, d_scale, product)
    check(f"d_bias {name}", sums, d_bias, slope)
    right = scale.exact * d * (dy.exact - slope / count - hat * product / count)
    check(f"dx {name}", kind, dx, right)
    good(
        DNN.cudnnBatchNormalizationForwardInference(
            *(handle, mode, one, zero, of_x, x.at, of_x, y.at, of_scale, scale.at, bias.at),
            *(average.at, spread.at, c_double(1e-5)),
        )
    )
    m, v = average.now(), spread.now()
    right = (x.exact - m) / np.sqrt(v + 1e-5) * scale.exact + bias.exact
    check(f"inference {name}", kind, y, right)
    for tensor in (x, dy, y, dx, scale, bias, average, spread, mean, deviation, d_scale, d_bias):
        tensor.free()


def errors_of(handle: c_void_p) -> dict[str, int]:
    """The errors for what is wrong, or not served."""
    case: Case = ((1, 1, 4, 4), 1, (3, 3), 0, 1, 1, 1)
    x, w = Tensor(np.ones((1, 1, 4, 4)), FLOAT), Tensor(np.ones((1, 1, 3, 3)), FLOAT)
    y, small = Tensor(np.ones((1, 1, 2, 2)), FLOAT), Tensor(np.ones((1, 1, 1, 2)), FLOAT)
    half = Tensor(np.ones((1, 1, 2, 2)), HALF)
    good_one = operation(FORWARD, {"x": x, "w": w, "y": y}, case).final()
    fresh, tensor = Descriptor(GRAPH), Descriptor(TENSOR)
    pointwise = c_void_p()
    bad = {
        "shape": operation(FORWARD, {"x": x, "w": w, "y": small}, case),
        "types": operation(FORWARD, {"x": x, "w": w, "y": half}, case),
    }
    return {
        **{name: DNN.cudnnBackendFinalize(made.at) for name, made in bad.items()},
        "not final": Descriptor(FORWARD).try_set(704, DESCRIPTOR, tensor),
        "two operations": fresh.try_set(801, DESCRIPTOR, good_one, good_one),
        "attribute": tensor.try_set(909, INT64, 0),
        "descriptor": DNN.cudnnBackendCreateDescriptor(0, byref(pointwise)),
        "pooling": DNN.cudnnPoolingForward(handle, *[None] * 7),
    }


def main() -> None:
    handle = c_void_p()
    good(DNN.cudnnCreate(byref(handle)))
    print("told", errors_of(handle), flush=True)
    kinds = tuple(map(int, sys.argv[2].split(",")))
    for seed in range(int(sys.argv[1])):
        for kind, last in itertools.product(kinds, (False, True)):
            for mode in (0, 1, 2):
                if mode or not last:
                    normalise(handle, seed, kind, mode, last)
        convolutions(handle, seed, kinds)
    good(DNN.cudnnDestroy(handle))


if __name__ == "__main__":
    main()
