"""A rank whose processes share what Python's multiprocessing gives them, without fork:
``multiprocessing_program.py METHOD FOLDER``."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Lock, Semaphore
from pathlib import Path
from typing import Any


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


def square(number: int) -> int:
    return number * number


def echo(asked: Queue[int | None], told: Queue[int], room: Semaphore, held: Lock) -> None:
    """Waits for the lock, and for words, most of the time."""
    with held:
        told.put(-1)
    while (number := asked.get()) is not None:
        room.acquire()
        told.put(number + 1)


def main(method: str, folder: str) -> None:
    context: Any = multiprocessing.get_context(method)
    asked, told = context.Queue(), context.Queue()
    room, held = context.Semaphore(5), context.Lock()
    held.acquire()
    worker = context.Process(target=echo, args=(asked, told, room, held))
    worker.start()
    with context.Pool(2) as pool:
        print(pool.map(square, range(4)), flush=True)
        asked.put(1)  # read behind the lock
        room.acquire()
        Path(folder, "ready").write_text("x")
        wait_for(f"{folder}/go")
        print(pool.map(square, range(4, 8)), flush=True)
        held.release()
        asked.put(2)
        print([told.get(timeout=20) for _ in range(3)], flush=True)
        asked.put(None)
        worker.join()
        free = 0
        while room.acquire(block=False):
            free += 1
        print(free, worker.exitcode, flush=True)
    pool.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
