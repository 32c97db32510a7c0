"""Faults seeded into the core's own counters and lists: an invariant names each.

`short.c` runs a rank that does some of everything. Sanitizer builds check the whole core
(core_invalid) after each turn of its loop. The builds that people run check what is cheap in each
place, and the whole core before a save (invariant.h).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from hostile.programs import UNCHECKED, built
from rankfold.paths import REPOSITORY
from support.patience import scaled
from support.seeding import Check, Copy, Table


def named(copy: Copy, invariant: str, options: tuple[str, ...]) -> Callable[[], None]:
    """The check fails where `short` names the invariant: one of several between bars."""
    folder = built("plain/all", options).parent.parent.relative_to(REPOSITORY)
    program, source = copy.folder / "seeded", copy.source.relative_to(REPOSITORY)
    make = [
        "make",
        "--silent",
        "-f",
        "tests/hostile/build.mk",
        "seeded",
        f"BUILD={folder}",
        f"OUT={program}",
        f"INSTEAD={source}",
        f"CHANGED={copy.changed}",
        *options,
    ]
    done = subprocess.run(make, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    texts = [f"rankfold: broken invariant: {each} (" for each in invariant.split("|")]

    def check() -> None:
        short = subprocess.run([program], capture_output=True, text=True, timeout=scaled(60))
        print(short.stderr, flush=True)
        assert not any(text in short.stderr for text in texts)

    return check


def checked(invariant: str) -> Check:
    """Named by the build that checks the whole core after each turn."""
    return Check(named, (invariant, ()), quick=True)


def unchecked(invariant: str) -> Check:
    """Named by the build that people run."""
    return Check(named, (invariant, UNCHECKED), quick=True)


TABLE: Table = {
    "proxy/core/queue/stream.c": {
        checked("the weight of a rank's items"): {
            "weight-not-taken-back": ("r->queue->items -= i->weight;", ";"),
        },
    },
    "proxy/core/queue/item.c": {
        checked("works in flight|work that has completed was counted"): {
            "work-not-counted": ("\t\tmemory_use(&r->memory);", "\t\t;"),
        },
        unchecked("work that has completed was counted"): {
            "work-not-counted-as-people-run-it": ("\t\tmemory_use(&r->memory);", "\t\t;"),
        },
    },
    "proxy/core/memory/transfer.c": {
        checked("works in flight that write where they say"): {
            "sum-forgotten": (
                "\tif (t->memory && t->hal_seq)\n\t\tmemory_used_exact(",
                "\tif (t->memory && t->hal_seq)\n\t\tmemory_used(",
            ),
        },
    },
    "proxy/core/queue/event.c": {
        checked("references to a mark"): {
            "mark-kept": ("if (!m || --m->refs)", "if (!m || m->refs)"),
        },
        unchecked("references to a mark"): {
            "mark-kept-as-people-run-it": ("if (!m || --m->refs)", "if (!m || m->refs)"),
        },
    },
    "proxy/core/queue/fence.c": {
        checked("streams that a fence waits for"): {
            "fence-counts-one-more": ("\tf->left--;\n}\n\n", "}\n\n"),
        },
    },
    "proxy/core/loop/python_request.c": {
        checked("uses of a module"): {
            "use-forgotten": ("\tmodule_use(f->module);", "\t;"),
        },
        checked("requests whose replies the client awaits"): {
            "question-not-counted": ("r->pending += slot != 0;", ";"),
        },
        unchecked("a module counts its uses"): {
            "use-forgotten-as-people-run-it": ("\tmodule_use(f->module);", "\t;"),
        },
    },
    "proxy/core/rank/ring.c": {
        checked("requests that are not answered"): {
            "reply-not-counted": ("\t\tr->ring.replies--;", "\t\t;"),
        },
    },
    "proxy/core/memory/chunk.c": {
        checked("missing pages"): {
            "missing-page": ("m->missing -= map_chunk(", "map_chunk("),
        },
        checked("used chunks"): {
            "chunk-not-counted": (
                ".held = true};\n\td->used++;\n\treturn",
                ".held = true};\n\treturn",
            ),
        },
        unchecked("a chunk that is given back has no pages"): {
            "chunk-not-counted-as-people-run-it": (
                ".held = true};\n\td->used++;\n\treturn",
                ".held = true};\n\treturn",
            ),
        },
        unchecked("a page that is unmapped is one of its chunk's pages"): {
            "page-not-counted-as-people-run-it": (
                "set_counts(d, c, c->refs + 1, c->leaving);",
                "set_counts(d, c, c->refs, c->leaving);",
            ),
        },
    },
    "proxy/core/loop/job.c": {
        checked("attached ranks of a job"): {
            "rank-not-counted": ("\tr->job->world.attached--;", "\t;"),
        },
        checked("a job is being saved that does not stand at a cut"): {
            "goal-outlives-its-cut": (
                "\t\tj->world.state = PROXY_JOB_SAVED;\n\tj->goal = GOAL_RUN;",
                (
                    "\t\tj->world.state = PROXY_JOB_SAVED;\n"
                    "\tif (j->goal != GOAL_LEAVE) j->goal = GOAL_RUN;"
                ),
            ),
        },
    },
    "proxy/core/memory/swap.c": {
        unchecked("a chunk that a move takes was reserved"): {
            "promise-not-counted-as-people-run-it": ("\td->reserved += promised;", "\t;"),
        },
    },
    "proxy/core/memory/buffers.c": {
        unchecked("a page that is forgotten belongs to no buffer"): {
            "pages-of-others-swept-as-people-run-it": (
                "if (!m->pages[m->live[i - 1]].buffers)",
                "if (m->live_count)",
            ),
        },
    },
}


def named_as_people_run_it() -> set[str]:
    """The invariants that the build that people run names."""
    checks = [each for detectors in TABLE.values() for each in detectors if isinstance(each, Check)]
    return {
        text
        for check in checks
        if UNCHECKED in check.arguments
        for text in check.arguments[0].split("|")
    }
