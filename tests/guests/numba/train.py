"""A small network trained by kernels of Numba, an ordinary script: ``train.py STEPS``."""

import sys

import numpy as np
from numba import cuda, float32

SIZE, BATCH = 32, 64


@cuda.jit
def forward(x, w, out):
    row, column = cuda.grid(2)
    if row < out.shape[0] and column < out.shape[1]:
        total = float32(0.0)
        for k in range(x.shape[1]):
            total += x[row, k] * w[k, column]
        out[row, column] = total if total > 0 else float32(0.0)


@cuda.jit
def backward(x, out, target, w, rate):
    k, column = cuda.grid(2)
    if k < w.shape[0] and column < w.shape[1]:
        total = float32(0.0)
        for row in range(x.shape[0]):
            if out[row, column] > 0:
                total += x[row, k] * (out[row, column] - target[row, column])
        w[k, column] -= rate * total / x.shape[0]


def main() -> None:
    rng = np.random.default_rng(7)
    w = cuda.to_device(rng.standard_normal((SIZE, SIZE), dtype=np.float32))
    wanted = rng.standard_normal((SIZE, SIZE), dtype=np.float32)
    out = cuda.device_array((BATCH, SIZE), np.float32)
    threads = (8, 8)
    for step in range(int(sys.argv[1])):
        x = rng.standard_normal((BATCH, SIZE), dtype=np.float32)
        target = np.maximum(x @ wanted, 0)
        here, there = cuda.to_device(x), cuda.to_device(target)
        forward[(BATCH // 8, SIZE // 8), threads](here, w, out)
        backward[(SIZE // 8, SIZE // 8), threads](here, out, there, w, np.float32(0.05))
        loss = np.float32(np.square(out.copy_to_host() - target).sum(dtype=np.float64))
        print(f"step {step} loss {loss:.9g}", flush=True)
    np.save("parameters.npy", w.copy_to_host())


if __name__ == "__main__":
    main()
