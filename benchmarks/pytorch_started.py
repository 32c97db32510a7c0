"""Runs a PyTorch program and prints when it has imported torch and finished its first step.

    pytorch_started.py PROGRAM ARGUMENT …

Each report on stderr is a line ``started NAME <seconds> <processor seconds of this process>``.
Python runs it with PyTorch, without rankfold's packages. Without a program it only imports torch.
"""

import os
import runpy
import sys
import time


def report(name: str, since: float) -> None:
    spent = time.process_time()
    line = f"started {name} {time.monotonic() - since:.6f} {spent:.6f}\n"
    os.write(2, line.encode())


class FirstStep:
    """Standard output that reports the first line that begins with ``step``."""

    def __init__(self, since: float):
        self.since, self.kept, self.reported = since, sys.stdout, False

    def write(self, text: str) -> int:
        if not self.reported and text.startswith("step "):
            report("step", self.since)
            self.reported = True
        return self.kept.write(text)

    def flush(self) -> None:
        self.kept.flush()


def main() -> None:
    begin = time.monotonic()
    report("python", begin)
    import torch

    assert torch.__version__
    report("torch", begin)
    if len(sys.argv) > 1:
        del sys.argv[0]
        sys.path[0] = os.path.dirname(sys.argv[0])
        sys.stdout = FirstStep(time.monotonic())  # type: ignore[assignment]
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
