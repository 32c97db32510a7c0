"""Faults seeded into which rank waits for which, and for how long: the tests of test_waiting.py, or
random programs, show each."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, example, given, settings

from support.seeding import Check, Copy, Table
from support.shared_programs import Program
from turns import driver, test_waiting
from turns.driver import Move, Setting, check, schedules, twisted
from turns.test_turns import CHECKED, FEW
from turns.test_waiting import sharing
from turns.world import Library, load

RULES = [rule for name, rule in vars(test_waiting).items() if name.startswith("test_")]


def waiting(copy: Copy) -> Callable[[], None]:
    library = load(copy.folder, (copy.source, copy.changed.read_text()))
    return lambda: all_of(library)


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


WAITING = Check(waiting)

TABLE: Table = {
    "proxy/core/queue/squash.c": {
        WAITING: {
            "who-is-held-for-a-cut-is-waited-for": (
                "if (o->world->state != PROXY_JOB_RUNNING && o->intake.record_waits)",
                "if (0)",
            ),
            "freed-buffers-are-waited-for": (
                "if (is_written(&f->ranges[n]) && (!b || b->freed))",
                "if (0 && b)",
            ),
            "failed-ranks-are-waited-for": ("if (o->async_error)", "if (0)"),
            "who-writes-otherwise-is-waited-for": (
                "return VERDICT_DIVERGES;",
                "return VERDICT_WAITS;",
            ),
            "fills-are-waited-for": ("if (i->kind == ITEM_FILL &&", "if (0 &&"),
            "another-key-will-do": ("f->key.a == g->key.a && f->key.b == g->key.b &&", "1 &&"),
            "another-address-will-do": (
                "(!is_written(x) || (x->addr == y->addr && x->bytes == y->bytes))",
                "1",
            ),
            "who-shares-a-part-takes-part": ("if (!exactly)", "if (0)"),
            "what-runs-before-is-overtaken": (
                "return still && queue_orders(o, s, queue) ?",
                "(void)queue_orders;\n\t\t\treturn still ?",
            ),
            "a-sharer-left-out": ("if (o == r)\n", "if (o == r || team->count)\n"),
            "others-do-not-know-of-it": ("item_row(its)->effect(o, its, &g);", ";"),
            "others-memory-may-move": ("memory_use(&o->memory);", ";"),
            "others-are-not-counted": ("\t\trank_count_squashed(o);\n", ""),
            "who-goes-alone-gets-no-copy": ("\tmemory_request(&r->memory, &q);", "\t(void)q;"),
            "open-for-what-runs-alone": (
                "if (item_row(i)->needs & NEEDS_ACTIVE)\n\t\tclose_all(r);",
                "",
            ),
            "opened-and-closed-in-each-turn": ("!memory_may_open(", "0 && !memory_may_open("),
            "written-without-asking": ("if (owns_written(r, f))", "if (1)"),
        },
    },
    "proxy/core/loop/slice.c": {
        WAITING: {
            "nobody-is-let-go": ("\t\tcontinue_alone(j);", "\t\t;"),
            "let-go-while-something-runs": (
                "|| r->memory.inflight || memory_moving",
                "|| memory_moving",
            ),
            "let-go-before-others-had-their-turn": (
                "if (work == WORK_KERNEL || r->memory",
                "if (r->memory",
            ),
            "let-go-as-soon-as-they-stand": (
                "\t\t\t*patience = later_of(*patience, ALONE_NS);",
                "\t\t\t;",
            ),
            "let-go-though-something-has-happened": (
                "(last != j || s->stuck_moves != moves)",
                "last != j",
            ),
            "sleeps-over-who-waits": (
                "stuck = s->stuck ? s->stuck_until_ns : UINT64_MAX",
                "stuck = UINT64_MAX",
            ),
            "never-relents": ("\tp->device.yield_relaxed = true;\n", ""),
            "sleeps-over-what-is-held": (
                "\tif (s->blocked_since_ns && !p->device.yield_relaxed)\n",
                "\tif (0)\n",
            ),
        },
    },
    "proxy/core/queue/pump.c": {
        WAITING: {
            "woken-too-late": ("return last - NEAR_WORKS;", "return last + 1;"),
            "deaf-to-others": ("row->awaited(i) || i->execution->refs > 1;", "row->awaited(i);"),
        },
    },
}
