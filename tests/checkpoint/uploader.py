"""Saves the same content again and again until it is killed: python -m checkpoint.uploader FOLDER
SEED. Prints the id of each checkpoint that exists."""

from __future__ import annotations

import sys

from rankfold.checkpoint import store as stores
from support.checkpoints import DEVICE, HOST, Content, noise

PAGE, PIECE = 4096, 1 << 20


def content(seed: int) -> Content:
    buffers = {
        rank: {DEVICE + (n << 30): noise((rank, n, seed), PIECE) for n in range(3)}
        for rank in range(2)
    }
    pages = {HOST + n * PAGE: noise((n, seed), 64) * 64 for n in range(300)}
    return Content(buffers, {0: pages}, {"core": noise(seed, 5000)})


def main() -> None:
    folder, seed = sys.argv[1], int(sys.argv[2])
    store = stores.open(folder, "fleet")
    store.begin_incarnation("gpt", 1)
    print("begun", flush=True)
    while True:
        save = store.begin("gpt", 1)
        content(seed).add_to(save)
        print(save.finish({"seed": seed}).id, flush=True)
        seed += 1


if __name__ == "__main__":
    main()
