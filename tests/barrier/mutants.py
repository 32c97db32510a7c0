"""Faults seeded into the barrier, one at a time: each must be noticed by the properties."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` occurs exactly once in the source and is replaced by `new`."""

    name: str
    old: str
    new: str


MUTANTS = [
    Mutant("dropped-ack", "\t\t\tack++;", "\t\t\t;"),
    Mutant("early-ack", "if (b->stopping && r->round == n)", "if (b->stopping)"),
    Mutant("one-ack-too-few", "c->ack >= living", "c->ack + 1 >= living"),
    Mutant("one-more-round-all-the-same", " || !c->offers)", ")"),
    Mutant("forgotten-need", "b->stopping |= m->b > 0;", ""),
    Mutant("need-not-summed", "c->need += m->b;", ""),
    Mutant("window-ignored", "return r->round < resolved + tandem_window(r);", "return true;"),
    Mutant("period-not-learnt", "if (r->matches[p] >= max32(p, r->longest))", "if (0)"),
    Mutant(
        "phase-2-asynchronous", "return r->round <= resolved;", "return r->round <= resolved + 1;"
    ),
    Mutant("verdict-not-awaited", "min64(b->verdict, r->complete)", "r->complete"),
    Mutant(
        "one-round-too-far",
        "m && m->issued < vector_target(b, comm) :",
        "m && m->issued <= vector_target(b, comm) :",
    ),
    Mutant("no-raise", "m->raised = m->issued + 1;\n", "return;\n"),
    Mutant("target-not-told", "t->issued = to;\n\tfor (", "t->issued = before;\n\tfor ("),
    Mutant(
        "cut-with-work-in-flight", "(!r->idle || r->joining || r->owed)", "(r->joining || r->owed)"
    ),
    Mutant(
        "one-device-not-heard",
        "++c->standing < b->device_count",
        "++c->standing + 1 < b->device_count",
    ),
    Mutant("half-joined-forgotten", "let_go |= t->joining &&", "let_go |= 0 &&"),
    Mutant("drain-goes-on", "(!b->frozen || b->level != DRAIN ||", "(true ||"),
    Mutant("exit-not-heard", "b->ranks[m->rank].exited = true;", ""),
    Mutant("sent-before-exit-forgotten", " || (m->src != m->dst && m->src == m->rank)", ""),
    Mutant("order-not-compared", "(c->comm && c->comm != m->comm)", "0"),
    Mutant("request-lost", "b->requests > m->b;", "false;"),
    Mutant(
        "request-at-the-cut-lost",
        "b->leaving |= b->cut;",
        "if (b->cut && !b->leaving)\n\t\treturn;",
    ),
    Mutant("released-cut-believed", "b->leaving |= b->cut;", ""),
    Mutant("cut-not-confirmed", "if (c->stage == STOPPED)\n\t\t\tlead_cut(b, m->from);", ""),
    Mutant("aborted-still-owed", "\tm->complete = m->issued;\n\tm->gone = true;", ""),
    Mutant(
        "abort-not-reported",
        "\tm->gone = true;\n\tif (b->frozen) {",
        "\tm->gone = true;\n\tif (0) {",
    ),
    Mutant(
        "tandem-after-an-abort",
        "tandem_give_up(b);\n\tm->complete = m->issued;",
        "m->complete = m->issued;",
    ),
    Mutant(
        "completes-though-aborted", "if (m && m->gone)\n\t\treturn; /* aborted meanwhile */", ""
    ),
    Mutant(
        "broken-not-told",
        "t->broken = true;\n\tbarrier_send_all(",
        "t->broken = true;\n\tif (0) barrier_send_all(",
    ),
    Mutant("broken-not-heard", "if (m->c & 4)\n\t\tlead_broken", "if (0)\n\t\tlead_broken"),
    Mutant(
        "broken-is-owed",
        "owing |= !t->broken && m->issued < t->issued;",
        "owing |= m->issued < t->issued;",
    ),
    Mutant("who-waits-for-a-broken-one-forgotten", "let_go |= t->broken &&", "let_go |= 0 &&"),
    Mutant(
        "broken-is-owed-here",
        "return m->broken || broken ? m->complete < m->issued :",
        "return 0 ? m->complete < m->issued :",
    ),
    Mutant(
        "broken-is-never-owed",
        "return m->broken || broken ? m->complete < m->issued :",
        "return m->broken || broken ? false :",
    ),
    Mutant("broken-not-counted-anew", "b->ranks[rank].owed += vector_owes_on(b, m) - owed;", ""),
    Mutant("waits-not-counted", "(m->complete < m->issued ? 8 : 0)", "0"),
    Mutant(
        "completed-not-counted",
        "b->ranks[rank].owed--;\n\t\tvector_report(b, m);",
        "b->ranks[rank].owed--;",
    ),
    Mutant("cut-not-left", "b->frozen = b->cut = b->leaving = false;", "b->frozen = false;"),
]
