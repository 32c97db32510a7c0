"""Faults seeded into who waits for whom, and for how long: the tests of test_waiting.py or random
programs notice each."""

from __future__ import annotations

from pathlib import Path

import pytest
from barrier.mutants import Mutant
from hypothesis import HealthCheck, Phase, example, given, settings

from support.native import CORE
from support.seeding import noticed
from support.shared_programs import Program

from . import driver, test_waiting
from .driver import Move, Setting, check, schedules, twisted
from .test_turns import CHECKED, FEW
from .test_waiting import sharing
from .world import Library, load

SQUASH = [
    Mutant(
        "who-is-held-for-a-cut-is-waited-for",
        "if (o->world->state != PROXY_JOB_RUNNING && o->intake.held)",
        "if (0)",
    ),
    Mutant(
        "freed-buffers-are-waited-for",
        "if (written(&f->ranges[n]) && (!b || b->freed))",
        "if (0 && b)",
    ),
    Mutant("failed-ranks-are-waited-for", "if (o->async_error)", "if (0)"),
    Mutant(
        "who-writes-otherwise-is-waited-for", "return VERDICT_DIVERGES;", "return VERDICT_WAITS;"
    ),
    Mutant("fills-are-waited-for", "if (i->kind == ITEM_FILL &&", "if (0 &&"),
    Mutant("another-key-will-do", "f->key.a == g->key.a && f->key.b == g->key.b &&", "1 &&"),
    Mutant(
        "another-address-will-do",
        "(!written(x) || (x->addr == y->addr && x->bytes == y->bytes))",
        "1",
    ),
    Mutant("who-shares-a-part-takes-part", "if (!exactly)", "if (0)"),
    Mutant(
        "what-runs-before-is-overtaken",
        "return still && follows(o, s, queue) ?",
        "(void)follows;\n\t\t\treturn still ?",
    ),
    Mutant("a-sharer-left-out", "if (o == r)\n", "if (o == r || team->count)\n"),
    Mutant("others-do-not-know-of-it", "item_row(its)->effect(o, its, &g);", ";"),
    Mutant("others-memory-may-move", "memory_use(&o->memory);", ";"),
    Mutant("others-are-not-counted", "\t\trank_count_squashed(o);\n", ""),
    Mutant("who-goes-alone-gets-no-copy", "\tmemory_request(&r->memory, &q);", "\t(void)q;"),
    Mutant(
        "open-for-what-runs-alone", "if (item_row(i)->needs & NEEDS_ACTIVE)\n\t\tclose_all(r);", ""
    ),
    Mutant("opened-and-closed-in-each-turn", "!memory_may_open(", "0 && !memory_may_open("),
    Mutant("written-without-asking", "if (owns(r, f))", "if (1)"),
]
SLICE = [
    Mutant("nobody-is-let-go", "\t\tgo_alone(j);", "\t\t;"),
    Mutant(
        "let-go-while-something-runs", "|| r->memory.inflight || memory_moving", "|| memory_moving"
    ),
    Mutant(
        "let-go-before-others-had-their-turn",
        "if (work == WORK_KERNEL || r->memory",
        "if (r->memory",
    ),
    Mutant(
        "let-go-as-soon-as-they-stand", "\t\t\t*patience = later(*patience, ALONE_NS);", "\t\t\t;"
    ),
    Mutant(
        "let-go-though-something-has-happened",
        "(last != j || s->stuck_moves != moves)",
        "last != j",
    ),
    Mutant(
        "sleeps-over-who-waits",
        "stuck = s->stuck ? s->stuck_until_ns : UINT64_MAX",
        "stuck = UINT64_MAX",
    ),
    Mutant("never-relents", "\tp->device.relents = true;\n", ""),
    Mutant(
        "sleeps-over-what-is-held", "\tif (s->held_since_ns && !p->device.relents)\n", "\tif (0)\n"
    ),
]
PUMP = [
    Mutant("woken-too-late", "return last - NEAR_WORKS;", "return last + 1;"),
    Mutant("deaf-to-others", "row->heard(i) || i->execution->refs > 1;", "row->heard(i);"),
]
FILES = {"queue/squash.c": SQUASH, "loop/slice.c": SLICE, "queue/pump.c": PUMP}
FAULTS = [(CORE / file, mutant) for file, mutants in FILES.items() for mutant in mutants]
RULES = [rule for name, rule in vars(test_waiting).items() if name.startswith("test_")]


def test_seeded_faults_fit_the_source() -> None:
    for file, mutant in FAULTS:
        assert file.read_text().count(mutant.old) == 1, mutant.name


@pytest.mark.slow
@pytest.mark.parametrize(("file", "mutant"), FAULTS, ids=[mutant.name for _, mutant in FAULTS])
def test_seeded_faults_are_noticed(tmp_path: Path, file: Path, mutant: Mutant) -> None:
    library = load(tmp_path, (file, file.read_text().replace(mutant.old, mutant.new)))
    assert noticed(lambda: all_of(library))


@pytest.mark.slow
def test_nothing_is_noticed_without_one(library: Library) -> None:
    all_of(library)


def all_of(library: Library) -> None:
    for rule in RULES:
        with sharing(library) as here:
            rule(here)
    at_random(library)


def at_random(library: Library) -> None:
    @settings(
        max_examples=200,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(program=twisted(24), schedule=schedules(60), setting=driver.settings)
    @example(CHECKED, FEW, Setting())
    def run(program: Program, schedule: list[Move], setting: Setting) -> None:
        check(library, program, schedule, setting)

    run()
