"""A small network trained by tinygrad: an ordinary script, which knows nothing of rankfold.

Usage: train.py STEPS. Data and initial weights come from NumPy with a fixed seed; prints one line
per step. The same numbers in NumPy: twin.py.
"""

import sys

import numpy as np
from tinygrad import Context, Tensor, TinyJit, nn

FEATURES, HIDDEN, CLASSES, BATCH = 16, 32, 4, 64


class Net:
    """Two layers."""

    def __init__(self, rng: np.random.Generator):
        self.w1 = parameter(rng, FEATURES, HIDDEN)
        self.w2 = parameter(rng, HIDDEN, CLASSES)

    def __call__(self, x: Tensor) -> Tensor:
        return (x @ self.w1).relu() @ self.w2


def parameter(rng: np.random.Generator, *shape: int) -> Tensor:
    values = rng.standard_normal(shape, dtype=np.float32) / np.float32(shape[0] ** 0.5)
    return Tensor(values)


def main() -> None:
    steps = int(sys.argv[1])
    rng = np.random.default_rng(7)
    net = Net(rng)
    centres = rng.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    optimizer = nn.optim.Adam([net.w1, net.w2], lr=0.01)

    @TinyJit
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = net(x).sparse_categorical_crossentropy(y).backward()
        return loss.realize(*optimizer.schedule_step())

    with Context(TRAINING=1):
        for number in range(steps):
            labels = rng.integers(0, CLASSES, BATCH).astype(np.int32)
            noise = rng.standard_normal((BATCH, FEATURES), dtype=np.float32)
            loss = step(Tensor(centres[labels] + noise).realize(), Tensor(labels).realize())
            print(f"step {number} loss {loss.item():.9g}", flush=True)


if __name__ == "__main__":
    main()
