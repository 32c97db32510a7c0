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
    Mutant("phase-2-asynchronous", "return r->round <= resolved;",
           "return r->round <= resolved + 1;"),
    Mutant("verdict-not-awaited", "min64(b->verdict, r->complete)", "r->complete"),
    Mutant("one-round-too-far", "m && m->issued < vector_target(b, comm) :",
           "m && m->issued <= vector_target(b, comm) :"),
    Mutant("no-raise", "m->raised = m->issued + 1;\n", "return;\n"),
    Mutant("target-not-told", "t->issued = to;\n\tfor (", "t->issued = before;\n\tfor ("),
    Mutant("cut-with-work-in-flight", "(!r->idle || r->joining || r->owed)",
           "(r->joining || r->owed)"),
    Mutant("one-device-not-heard", "++c->standing < b->device_count",
           "++c->standing + 1 < b->device_count"),
    Mutant("half-joined-forgotten", "incomplete |=", "incomplete |= 0 &&"),
    Mutant("drain-goes-on", "(!b->frozen || b->level != DRAIN ||", "(true ||"),
    Mutant("exit-not-heard", "b->ranks[m->rank].exited = true;", ""),
    Mutant("order-not-compared", "(c->comm && c->comm != m->comm)", "0"),
    Mutant("request-lost", "b->requests > m->b;", "false;"),
    Mutant("request-at-the-cut-lost", "b->leaving |= b->cut;",
           "if (b->cut && !b->leaving)\n\t\treturn;"),
    Mutant("released-cut-believed", "b->leaving |= b->cut;", ""),
    Mutant("cut-not-confirmed", "if (c->stage == STOPPED)\n\t\t\tlead_cut(b, m->from);",
           ""),
    Mutant("cut-not-left", "b->frozen = b->cut = b->leaving = false;", "b->frozen = false;"),
]  # fmt: skip
