"""Faults seeded into the barrier: each breaks one of its properties."""

from __future__ import annotations

from collections.abc import Callable

from barrier import aborts, properties
from barrier.programs import KINDS
from barrier.test_barrier import HEADER, SENT_BEFORE_EXIT, SOURCES, Native
from barrier.world import Violation
from support import native
from support.seeding import Check, Copy, Table


def load(copy: Copy) -> Native:
    sources = [copy.of(source) for source in SOURCES]
    return native.load(native.build(copy.folder, sources, warnings=False), HEADER)


def rules(copy: Copy) -> Callable[[], None]:
    faulty = load(copy)

    def check() -> None:
        for rule in aborts.RULES:
            rule(faulty)
        properties.always_consistent(faulty, "pipeline", SENT_BEFORE_EXIT)
        for seed in range(150):
            properties.tandem_decides(faulty, seed)
            properties.stops_soon(faulty, seed)
            properties.stops_where_it_stands(faulty, seed)
            for kind in KINDS:
                properties.always_consistent(faulty, kind, seed)

    return check


def miscounted(copy: Copy, count: str) -> Callable[[], None]:
    """Any other violation is an error of the test: `count` is named before anything else breaks."""
    faulty = load(copy)

    def check() -> None:
        try:
            for rule in aborts.RULES:
                rule(faulty)
            for seed in range(20):
                properties.always_consistent(faulty, "joining", seed)
        except Violation as violation:
            named = str(violation)
        else:
            return
        if named != count:
            raise RuntimeError(f"another count is named: {named}")
        raise AssertionError(named)

    return check


def wrong_count(count: str) -> Check:
    """Is detected before a save, by the invariant that names the count."""
    return Check(miscounted, (count,))


RULES = Check(rules)

TABLE: Table = {
    "proxy/core/barrier/tandem.c": {
        RULES: {
            "dropped-ack": ("\t\t\tack++;", "\t\t\t;"),
            "early-ack": ("if (b->stopping && r->round == n)", "if (b->stopping)"),
            "window-ignored": ("return r->round < resolved + tandem_window(r);", "return true;"),
            "period-not-learnt": ("if (r->matches[p] >= max32(p, r->longest))", "if (0)"),
            "phase-2-asynchronous": (
                "return r->round <= resolved;",
                "return r->round <= resolved + 1;",
            ),
            "verdict-not-awaited": ("min64(b->verdict, r->complete)", "r->complete"),
        },
    },
    "proxy/core/barrier/coordinator.c": {
        RULES: {
            "one-ack-too-few": ("c->ack >= living", "c->ack + 1 >= living"),
            "one-more-round-all-the-same": (" || !c->offers)", ")"),
            "need-not-summed": ("c->need += m->b;", ""),
            "one-device-not-heard": (
                "++c->drained_count < b->device_count",
                "++c->drained_count + 1 < b->device_count",
            ),
            "half-joined-forgotten": ("let_go |= t->joining &&", "let_go |= 0 &&"),
            "exit-not-heard": ("b->ranks[m->rank].exited = true;", ""),
            "order-not-compared": ("(c->comm && c->comm != m->comm)", "0"),
            "cut-not-confirmed": ("if (c->stage == STOPPED)\n\t\t\tlead_cut(b, m->from);", ""),
            "broken-not-told": (
                "t->broken = true;\n\tbarrier_send_all(",
                "t->broken = true;\n\tif (0) barrier_send_all(",
            ),
            "broken-not-heard": ("if (m->c & 4)\n\t\tlead_broken", "if (0)\n\t\tlead_broken"),
            "broken-is-owed": (
                "owing |= !t->broken && m->issued < t->issued;",
                "owing |= m->issued < t->issued;",
            ),
            "who-waits-for-a-broken-one-forgotten": ("let_go |= t->broken &&", "let_go |= 0 &&"),
        },
    },
    "proxy/core/barrier/barrier.c": {
        RULES: {
            "forgotten-need": ("b->stopping |= m->b > 0;", ""),
            "one-round-too-far": (
                "m && m->issued < vector_target(b, comm) :",
                "m && m->issued <= vector_target(b, comm) :",
            ),
            "drain-goes-on": ("(!b->frozen || b->level != DRAIN ||", "(true ||"),
            "request-lost": ("b->requests > m->b;", "false;"),
            "request-at-the-cut-lost": (
                "b->leaving |= b->cut;",
                "if (b->cut && !b->leaving)\n\t\treturn;",
            ),
            "released-cut-believed": ("b->leaving |= b->cut;", ""),
            "aborted-still-owed": ("\tm->complete = m->issued;\n\tm->ended = true;", ""),
            "abort-not-reported": (
                "\tm->ended = true;\n\tif (b->frozen) {",
                "\tm->ended = true;\n\tif (0) {",
            ),
            "tandem-after-an-abort": (
                "tandem_give_up(b);\n\tm->complete = m->issued;",
                "m->complete = m->issued;",
            ),
            "completes-though-aborted": (
                "if (m && m->ended)\n\t\treturn; /* aborted meanwhile */",
                "",
            ),
            "completed-not-counted": (
                "b->ranks[rank].behind_count--;\n\t\tvector_report(b, m);",
                "b->ranks[rank].behind_count--;",
            ),
            "cut-not-left": ("b->frozen = b->cut = b->leaving = false;", "b->frozen = false;"),
        },
        wrong_count("a member that has gone waits for nothing"): {
            "a-member-that-has-gone-waits-for-nothing": (
                "\tm->complete = m->issued;\n\tm->ended = true;",
                "\tm->ended = true;",
            ),
        },
        wrong_count("a round is complete once it is issued"): {
            "a-round-is-complete-once-it-is-issued": ("\tm->complete++;", "\tm->complete += 2;"),
        },
    },
    "proxy/core/barrier/vector.c": {
        RULES: {
            "no-raise": ("m->raised = m->issued + 1;\n", "return;\n"),
            "target-not-told": ("t->issued = to;\n\tfor (", "t->issued = before;\n\tfor ("),
            "cut-with-work-in-flight": (
                "(!r->idle || r->joining || r->behind_count)",
                "(r->joining || r->behind_count)",
            ),
            "sent-before-exit-forgotten": (" || (m->src != m->dst && m->src == m->rank)", ""),
            "broken-is-owed-here": (
                "return m->broken || broken ? m->complete < m->issued :",
                "return 0 ? m->complete < m->issued :",
            ),
            "broken-is-never-owed": (
                "return m->broken || broken ? m->complete < m->issued :",
                "return m->broken || broken ? false :",
            ),
            "broken-not-counted-anew": (
                "b->ranks[rank].behind_count += vector_behind_on(b, m) - was_behind;",
                "",
            ),
            "waits-not-counted": ("(m->complete < m->issued ? 8 : 0)", "0"),
        },
        wrong_count("communicators on which a rank is below the target"): {
            "communicators-on-which-a-rank-is-below-the-target": (
                "b->ranks[rank].behind_count += vector_behind_on(b, m) - was_behind;",
                "",
            ),
        },
        wrong_count("joinings of a rank"): {
            "joinings-of-a-rank": ("\t\tr->joining -= joining;", ""),
        },
    },
    "proxy/core/barrier/rounds.c": {
        wrong_count("an entry of a table of rounds is found by its key"): {
            "an-entry-of-a-table-of-rounds-is-found-by-its-key": (
                "\t\tfor (uint32_t i = 0; i < t->count; i++)\n\t\t\trounds_place(t, i);",
                "",
            ),
        },
    },
}
