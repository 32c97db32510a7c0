"""Faults seeded into sums by a library that joins devices: tests of several engines detect them."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from collectives import test_links
from collectives.links import Wishes
from collectives.test_aborts import all_abort
from collectives.test_collectives import engine
from collectives.test_early import SMALL, any_calls, relaxed
from support.seeding import Check, Copy, Table

PIECES = f"-DCOLL_PIECE_BYTES={test_links.PIECE}ull"


def by_chance(run: Callable[[st.DataObject], None], examples: int) -> None:
    @settings(relaxed, max_examples=examples, phases=[Phase.generate], database=None)
    @given(st.data())
    def chance(data: st.DataObject) -> None:
        run(data)

    chance()


def decisions(copy: Copy) -> Callable[[], None]:
    faulty = engine(copy.folder, PIECES, changed=copy.changed)

    def check() -> None:
        test_links.test_no_call_is_made_before_all_have_called(faulty)
        test_links.test_calls_that_differ_are_found_before_the_library_sums(faulty)
        test_links.test_a_library_that_fails_later_fails_the_job(faulty, 0)
        test_links.test_a_refusal_before_a_device_asks_leaves_nothing(faulty)
        by_chance(lambda data: test_links.any_calls(faulty, data), 400)

    return check


def aborts(copy: Copy) -> Callable[[], None]:
    faulty = engine(copy.folder, PIECES, changed=copy.changed)
    return lambda: by_chance(lambda data: all_abort(faulty, data, Wishes()), 400)


def at_the_same_time(copy: Copy) -> Callable[[], None]:
    faulty = engine(copy.folder, SMALL, changed=copy.changed)
    return lambda: by_chance(lambda data: any_calls(faulty, data, Wishes()), 200)


DECISIONS, ABORTS, SUMS = Check(decisions), Check(aborts), Check(at_the_same_time)

TABLE: Table = {
    "proxy/core/collective/agree.c": {
        DECISIONS: {
            "versions-are-not-compared": (
                "return l->offer.version == offer->version ?",
                "return l->offer.version ?",
            ),
            "gpus-are-not-compared": ("if (i != from && l->replied", "if (0 && l->replied"),
            "one-answer-is-enough": (
                "else if (l->replied == all_devices(m))",
                "else if (l->replied)",
            ),
            "a-device-is-not-asked-again": ("l->owes || l->phase == LINK_UNDECIDED", "l->owes"),
            "a-failure-is-not-seen": (
                "\t\tif (l->phase == LINK_USED)\n\t\t\tlost(c, facts->text);\n\t\telse\n",
                "\t\tif (l->phase != LINK_USED)\n",
            ),
        },
    },
    "proxy/core/collective/link.c": {
        DECISIONS: {
            "a-call-before-all-have-called": ("if (!op->agreed || comm", "if (comm"),
        },
        SUMS: {
            "pieces-of-a-later-operation-first": (
                "if (link_carries(c, before) && !before->finished",
                "if (0 && !before->finished",
            ),
            "any-turn": ("p->turn == m->link.begun + 1", "p->turn"),
            "all-pieces-have-the-same-memory": ("(uint32_t)__builtin_ctz(~l->slots)", "0"),
            "pre-multiplied-by-the-library": (
                "p->shape.op == AVG || p->shape.op == PREMUL ? SUM",
                "p->shape.op == AVG ? SUM",
            ),
        },
    },
    "proxy/core/collective/piece.c": {
        DECISIONS: {
            "not-divided": (
                "\t\t\t\t       .dst = p->result.at,\n\t\t\t\t       .a = p->result.at,",
                "\t\t\t\t       .dst = p->scratch.at,\n\t\t\t\t       .a = p->result.at,",
            ),
            "before-the-decision": (
                "return op->comm->link.phase >= LINK_USED;",
                "return true;",
            ),
            "memory-is-not-given-back": (
                "\tif (p->result.lent)\n\t\tlink_give_back(p);\n",
                "",
            ),
        },
    },
    "proxy/core/collective/local_sum.c": {
        SUMS: {
            "only-the-first-node": (
                "for (uint32_t i = 1; i < n; i++) {",
                "for (uint32_t i = 1; i < 1; i++) {",
            ),
        },
    },
    "proxy/core/collective/op.c": {
        DECISIONS: {
            "all-is-one": (
                "if (++op->hellos < m->device_count ||",
                "if (++op->hellos < 1 ||",
            ),
        },
    },
    "proxy/core/collective/abort.c": {
        ABORTS: {
            "an-abort-waits-for-the-library": (
                "p->token && !piece_exchanges(p))\n\t\t\treturn true;",
                "p->token)\n\t\t\treturn true;",
            ),
            "the-communicator-stays": (
                "(p->token && !piece_exchanges(p)) || p->awaited",
                "p->token || p->awaited",
            ),
        },
    },
    "proxy/core/collective/base.c": {
        DECISIONS: {
            "sums-of-a-failed-job-go-on": (
                "\t\t\tc->io.link_cancel(c->io.arg, m->link.at);\n",
                "\t\t\t;\n",
            ),
        },
    },
}
