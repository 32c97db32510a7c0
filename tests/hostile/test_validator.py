"""Promise: a fault in the core's own counters and lists is seen at the turn in which it happens.

One line of the core is changed; `short.c` runs a rank that does some of everything, on a core that
looks at itself (core_invalid) after each turn of its loop.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY
from support.patience import scaled

from .programs import built


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in the source and is replaced by `new`; what is said then."""

    name: str
    source: str
    old: str
    new: str
    said: str


MUTANTS = [
    Mutant("weight-not-taken-back", "queue/stream.c", "r->queue.items -= i->weight;", ";",
           "the weight of a rank's items"),
    Mutant("work-not-counted", "queue/item.c", "\t\tmemory_use(&r->memory);", "\t\t;",
           "works in flight"),
    Mutant("sum-forgotten", "memory/transfer.c",
           "\tif (t->memory && t->hal_seq)\n\t\tmemory_used_exact(",
           "\tif (t->memory && t->hal_seq)\n\t\tmemory_used(",
           "works in flight that write where they say"),
    Mutant("mark-kept", "queue/event.c", "if (!m || --m->refs)", "if (!m || m->refs)",
           "references to a mark"),
    Mutant("fence-counts-one-more", "queue/fence.c", "\tf->left--;\n}\n\n", "}\n\n",
           "streams that a fence waits for"),
    Mutant("use-forgotten", "loop/ask.c", "\tmodule_use(f->module);", "\t;", "uses of a module"),
    Mutant("question-not-counted", "loop/ask.c", "r->pending += slot != 0;", ";",
           "questions that the client waits for"),
    Mutant("reply-not-counted", "rank/ring.c", "\t\tr->ring.replies--;", "\t\t;",
           "requests that are not answered"),
    Mutant("missing-page", "memory/chunk.c", "m->missing -= mapped(", "mapped(", "missing pages"),
    Mutant("chunk-not-counted", "memory/chunk.c", ".held = true};\n\td->used++;\n\treturn",
           ".held = true};\n\treturn", "used chunks"),
    Mutant("rank-not-counted", "loop/job.c", "\tr->job->attached--;", "\t;",
           "attached ranks of a job"),
    Mutant("goal-outlives-its-cut", "loop/job.c",
           "\t\tj->state = PROXY_JOB_SAVED;\n\tj->goal = GOAL_RUN;",
           "\t\tj->state = PROXY_JOB_SAVED;\n\tif (j->goal != GOAL_LEAVE) j->goal = GOAL_RUN;",
           "a job is being saved that does not stand at a cut"),
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_seeded_fault_is_seen(mutant: Mutant, tmp_path: Path) -> None:
    source = REPOSITORY / "proxy/core" / mutant.source
    text = source.read_text()
    assert text.count(mutant.old) == 1, "the source has changed: adapt the mutant"
    changed, program = tmp_path / source.name, tmp_path / "seeded"
    changed.write_text(text.replace(mutant.old, mutant.new))
    built("plain/all")
    make = subprocess.run(
        ["make", "--silent", "-f", "tests/hostile/build.mk", "seeded", f"OUT={program}",
         f"INSTEAD=proxy/core/{mutant.source}", f"CHANGED={changed}"],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert make.returncode == 0, make.stderr
    done = subprocess.run(
        [program], capture_output=True, text=True, check=False, timeout=scaled(60)
    )
    assert f"core_invalid: {mutant.said}\n" in done.stderr, done.stderr
