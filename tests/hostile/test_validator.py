"""Promise: a fault in the core's own counters and lists is seen, and named, before it does harm.

One line of the core is changed, and `short.c` runs a rank that does some of everything. Sanitizer
builds check the whole core (core_invalid) after each turn of its loop. The builds that people run
check what is cheap in each place, and the whole core before a save.
"""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY
from support.patience import scaled

from .programs import UNCHECKED, built


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in the source and is replaced by `new`. `said`: the invariants of
    which one is named then."""

    name: str
    source: str
    old: str
    new: str
    said: str


MUTANTS = [
    Mutant(
        "weight-not-taken-back",
        "queue/stream.c",
        "r->queue->items -= i->weight;",
        ";",
        "the weight of a rank's items",
    ),
    Mutant(
        "work-not-counted",
        "queue/item.c",
        "\t\tmemory_use(&r->memory);",
        "\t\t;",
        "works in flight|work that has completed was counted",
    ),  # whichever is checked first
    Mutant(
        "sum-forgotten",
        "memory/transfer.c",
        "\tif (t->memory && t->hal_seq)\n\t\tmemory_used_exact(",
        "\tif (t->memory && t->hal_seq)\n\t\tmemory_used(",
        "works in flight that write where they say",
    ),
    Mutant(
        "mark-kept",
        "queue/event.c",
        "if (!m || --m->refs)",
        "if (!m || m->refs)",
        "references to a mark",
    ),
    Mutant(
        "fence-counts-one-more",
        "queue/fence.c",
        "\tf->left--;\n}\n\n",
        "}\n\n",
        "streams that a fence waits for",
    ),
    Mutant(
        "use-forgotten",
        "loop/python_request.c",
        "\tmodule_use(f->module);",
        "\t;",
        "uses of a module",
    ),
    Mutant(
        "question-not-counted",
        "loop/python_request.c",
        "r->pending += slot != 0;",
        ";",
        "questions that the client waits for",
    ),
    Mutant(
        "reply-not-counted",
        "rank/ring.c",
        "\t\tr->ring.replies--;",
        "\t\t;",
        "requests that are not answered",
    ),
    Mutant("missing-page", "memory/chunk.c", "m->missing -= mapped(", "mapped(", "missing pages"),
    Mutant(
        "chunk-not-counted",
        "memory/chunk.c",
        ".held = true};\n\td->used++;\n\treturn",
        ".held = true};\n\treturn",
        "used chunks",
    ),
    Mutant(
        "rank-not-counted",
        "loop/job.c",
        "\tr->job->world.attached--;",
        "\t;",
        "attached ranks of a job",
    ),
    Mutant(
        "goal-outlives-its-cut",
        "loop/job.c",
        "\t\tj->world.state = PROXY_JOB_SAVED;\n\tj->goal = GOAL_RUN;",
        "\t\tj->world.state = PROXY_JOB_SAVED;\n\tif (j->goal != GOAL_LEAVE) j->goal = GOAL_RUN;",
        "a job is being saved that does not stand at a cut",
    ),
]


# What the builds that people run see, by checks at the place and before a save (invariant.h).
ALWAYS_SEEN = [
    Mutant(
        "work-not-counted",
        "queue/item.c",
        "\t\tmemory_use(&r->memory);",
        "\t\t;",
        "work that has completed was counted",
    ),
    Mutant(
        "mark-kept",
        "queue/event.c",
        "if (!m || --m->refs)",
        "if (!m || m->refs)",
        "references to a mark",
    ),
    Mutant(
        "use-forgotten",
        "loop/python_request.c",
        "\tmodule_use(f->module);",
        "\t;",
        "a module counts its uses",
    ),
    Mutant(
        "chunk-not-counted",
        "memory/chunk.c",
        ".held = true};\n\td->used++;\n\treturn",
        ".held = true};\n\treturn",
        "a chunk that is given back has no pages",
    ),
    Mutant(
        "page-not-counted",
        "memory/chunk.c",
        "count(d, c, c->refs + 1, c->leaving);",
        "count(d, c, c->refs, c->leaving);",
        "a page that is unmapped is one of its chunk's pages",
    ),
    Mutant(
        "promise-not-counted",
        "memory/swap.c",
        "\td->reserved += promised;",
        "\t;",
        "a chunk that a move takes was reserved",
    ),
    Mutant(
        "pages-of-others-swept",
        "memory/buffers.c",
        "if (!m->pages[m->live[i - 1]].buffers)",
        "if (m->live_count)",
        "a page that is forgotten belongs to no buffer",
    ),
]


def said_by(mutant: Mutant, folder: Path, build: tuple[str, ...] = ()) -> str:
    """What `short` prints on stderr with this fault in its core."""
    source = REPOSITORY / "proxy/core" / mutant.source
    text = source.read_text()
    assert text.count(mutant.old) == 1, "the source has changed: adapt the mutant"
    changed, program = folder / source.name, folder / "seeded"
    changed.write_text(text.replace(mutant.old, mutant.new))
    make = subprocess.run(
        [
            "make",
            "--silent",
            "-f",
            "tests/hostile/build.mk",
            "seeded",
            f"OUT={program}",
            f"INSTEAD=proxy/core/{mutant.source}",
            f"CHANGED={changed}",
            *build,
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert make.returncode == 0, make.stderr
    done = subprocess.run(
        [program], capture_output=True, text=True, check=False, timeout=scaled(60)
    )
    return done.stderr


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_seeded_fault_is_seen(mutant: Mutant, tmp_path: Path) -> None:
    built("plain/all")
    said = said_by(mutant, tmp_path)
    invariants = mutant.said.split("|")
    assert any(f"rankfold: broken invariant: {each} (" in said for each in invariants), said


@pytest.mark.parametrize("mutant", ALWAYS_SEEN, ids=lambda m: m.name)
def test_a_seeded_fault_is_seen_by_the_build_that_people_run(
    mutant: Mutant, tmp_path: Path
) -> None:
    folder = built("plain/all", UNCHECKED).parent.parent.relative_to(REPOSITORY)
    said = said_by(mutant, tmp_path, (f"BUILD={folder}", *UNCHECKED))
    assert f"rankfold: broken invariant: {mutant.said} (" in said


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
