"""Faults seeded into sums that begin before all members have called."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from collectives.test_collectives import engine
from collectives.test_early import (
    SMALL,
    any_calls,
    relaxed,
    test_a_prescaled_input_is_scaled_once,
    test_elements_begin_where_they_want,
    test_the_rank_whose_input_holds_the_sum,
)
from support.seeding import Check, Copy, Table


def early_sums(copy: Copy) -> Callable[[], None]:
    faulty = engine(copy.folder, SMALL, changed=copy.changed)

    @settings(relaxed, max_examples=600, phases=[Phase.generate], database=None)
    @given(st.data())
    def chance(data: st.DataObject) -> None:
        any_calls(faulty, data)

    def check() -> None:
        test_the_rank_whose_input_holds_the_sum(faulty, [0, 1, 2, 3], {3})
        test_a_prescaled_input_is_scaled_once(faulty, 8)
        test_elements_begin_where_they_want(faulty)
        chance()

    return check


EARLY_SUMS = Check(early_sums)

TABLE: Table = {
    "proxy/core/collective/early_sum.c": {
        EARLY_SUMS: {
            "sums-of-the-wrong-two": (
                "seats[1] = op_holder(op, high);",
                "seats[1] = op_holder(op, (struct tree_node){high.lo, high.lo + 1});",
            ),
            "what-is-const-is-added-to": (
                (
                    "static bool in_place(const struct coll_call *call) { return call->send == "
                    "call->recv; }"
                ),
                ("static bool in_place(const struct coll_call *call) { return call->send != 1; }"),
            ),
            "the-one-that-holds-is-forgotten": (
                "op->early.seats[!op->early.keeper]",
                "op->early.seats[op->early.keeper]",
            ),
            "held-before-all-is-added": (
                "if (++op->early.ended == op->early.pieces)",
                "if (++op->early.ended == 1)",
            ),
            "only-the-first-piece": (
                "(op->early.next < op->early.pieces || begin_sum(c, op))",
                "(op->early.next < 1 || begin_sum(c, op))",
            ),
            "two-sums-at-a-time": ("early_under_way(op) ||\n", "0 ||\n"),
            "nothing-is-let-go-of": ("c->io.forget(c->io.arg,", "(void)(c->io.arg,"),
        },
    },
    "proxy/core/collective/op.c": {
        EARLY_SUMS: {
            "scaled-twice": ("op == PREMUL && n->hi - n->lo == 1;", "op == PREMUL;"),
            "not-scaled": ("return op->shape.op == PREMUL && n", "return 0 && n"),
            "always-the-first-elements": (
                ".at = {.addr = send + at * size}",
                ".at = {.addr = send}",
            ),
            "elements-begin-anywhere": ("&& send % size == 0)", ")"),
        },
    },
}
