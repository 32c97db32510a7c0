"""Runs a command under a watchdog: once it has printed a line, it must print another one within so
many seconds of the monotonic clock, or it is killed, and so are we.

    python watched.py SECONDS COMMAND…

Its lines are passed on. ``clocks-RANK`` says how many seconds of the wall clock the monotonic one
has not seen.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

LOOK_S = 0.05


def main(patience: float, command: list[str]) -> int:
    apart = time.time() - time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    fed: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_S):
            silent = time.monotonic() - fed[-1] if fed else 0.0
            if silent > patience:
                process.kill()
                print(f"the watchdog has bitten after {silent:.1f} s", file=sys.stderr, flush=True)
                os._exit(3)

    watching = threading.Thread(target=watch)
    watching.start()
    for line in process.stdout:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        fed[:] = [time.monotonic()]
    over.set()
    watching.join()
    missed = time.time() - time.monotonic() - apart
    with open(f"clocks-{os.environ['RANK']}", "w") as file:
        file.write(f"{missed:.3f}\n")
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
