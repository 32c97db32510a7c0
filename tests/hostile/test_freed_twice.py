"""Memory that is freed twice: the rank aborts before the same memory is given out twice."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

from rankfold.paths import REPOSITORY

FREED_TWICE = """
#include "heap.h"
int main(void)
{
    struct heap h;
    struct heap_request r = {.bytes = 4096};
    struct heap_placed at;
    if (!heap_init(&h, 1 << 30) || !heap_alloc(&h, &r, &at))
        return 1;
    heap_free(&h, at.addr, 1, true);
    heap_free(&h, at.addr, 2, true);
    return 0;
}
"""


def test_a_rank_aborts_before_it_gives_out_memory_twice(tmp_path: Path) -> None:
    client, source, program = REPOSITORY / "interpose/client", tmp_path / "x.c", tmp_path / "x"
    source.write_text(FREED_TWICE)
    subprocess.run(
        [
            "gcc",
            "-std=c11",
            "-D_GNU_SOURCE",
            f"-I{REPOSITORY / 'interpose/channel'}",
            f"-I{client / 'issue'}",
            "-o",
            str(program),
            str(source),
            str(client / "issue/heap.c"),
            str(client / "issue/placement.c"),
        ],
        check=True,
    )
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGABRT
    assert "broken invariant: memory that is freed was allocated (" in done.stderr
