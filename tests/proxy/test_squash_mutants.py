"""Faults seeded into who writes what is shared: tests/proxy/test_partners.py, test_squashing.py or
test_shared_programs.py must notice each.

Whoever waits without success is let go when the job stands still: so what waits past a free or
a cut is noticed by how often that happens."""

from __future__ import annotations

from barrier.mutants import Mutant

from support.seeding import seeded

SQUASH = [
    Mutant("another-key-will-do", "f->key.a == g->key.a && f->key.b == g->key.b &&", "1 &&"),
    Mutant("fills-are-waited-for", "if (i->kind == ITEM_FILL &&", "if (0 &&"),
    Mutant("fills-want-room", " && chunks_for_all(r, f, count))", ")"),
    Mutant("a-sharer-left-out", "if (o == r)\n", "if (o == r || team->count)\n"),
    Mutant("others-do-not-know-of-it", "item_row(its)->effect(o, its, &g);", ";"),
    Mutant("others-memory-may-move", "memory_use(&o->memory);", ";"),
    Mutant("written-without-asking", "if (owns(r, f))", "if (1)"),
    Mutant("held-by-what-is-gone", "not_first(o, its);", ""),
    Mutant("failed-ranks-are-waited-for", "if (o->async_error)", "if (0)"),
    Mutant(
        "freed-buffers-are-waited-for",
        "if (written(&f->ranges[n]) && (!b || b->freed))",
        "if (0 && b)",
    ),
    Mutant(
        "who-is-held-for-a-cut-is-waited-for",
        "if (o->world->state != PROXY_JOB_RUNNING && o->intake.held)",
        "if (0)",
    ),
    Mutant("order-of-streams-forgotten", "if (!ready_open(o, s) ||", "if (!s->next ||"),
    Mutant(
        "what-runs-before-is-overtaken",
        "return still && follows(o, s, queue) ?",
        "(void)follows;\n\t\t\treturn still ?",
    ),
    Mutant("while-its-page-is-copied", "!memory_moving(&o->memory) && ", ""),
    Mutant("kept-from-its-copy", " && !memory_waits(&o->memory)", ""),
    Mutant("who-may-write-anywhere-takes-part", " && !o->memory.fenced", ""),
    Mutant(
        "kernels-being-loaded-are-others", " ||\n\t\t    ready_item(s->next) != ITEM_READY)", ")"
    ),
    Mutant(
        "what-may-write-anywhere-owns-what-it-must",
        "if (!f->known)\n\t\treturn memory_owns(&r->memory, RF_DEV_BASE, RF_HEAP_BYTES);",
        "",
    ),
    Mutant(
        "who-shares-the-beginning-shares-all",
        "(struct memory_range){f->ranges[n].addr, f->ranges[n].bytes};",
        "(struct memory_range){f->ranges[n].addr, 1};",
    ),
    Mutant("who-shares-a-part-takes-part", "if (!exactly)", "if (0)"),
    Mutant("squashed-though-that-is-off", " && !r->device->apart && !r->memory", " && !r->memory"),
    Mutant(
        "open-for-what-comes-next",
        "(verdict == VERDICT_OWNED && closed(r, i, f) && fenced",
        "(verdict == VERDICT_OWNED && fenced",
    ),
    Mutant("open-and-nobody-knows", "\tr->queue->squashing.open = true;\n", ""),
    Mutant("never-opened-early", "bool may = f.known &&", "bool may = 0 && f.known &&"),
    Mutant("who-comes-first-counts-for-itself", "\tf->unordered = false;\n\ti->", "\ti->"),
    Mutant("who-comes-first-counts-for-others", "\t\tg.unordered = false;\n", ""),
    Mutant("others-have-a-version-of-their-own", "\t\tg.key = f->key;\n", ""),
    Mutant("a-fence-owes-nothing", "\ts->owed |= r->memory.fenced;\n", ""),
    Mutant("what-is-owed-is-not-given", "if (r->queue->squashing.owed)\n\t\treturn false;", ""),
    Mutant("owed-for-ever", "\tr->queue->squashing.owed = false;\n", ""),
    Mutant(
        "owed-until-it-is-fenced",
        "!r->queue->squashing.owed || r->memory.fenced)",
        "!r->queue->squashing.owed)",
    ),
    Mutant("first-before-what-is-owed", "if (!may && !r->queue->squashing.owed)", "if (!may)"),
    Mutant("a-fault-is-one-ranks", "i->execution->memory = &r->memory;", ""),
]
OTHERS = [
    (
        "memory/map_result.c",
        Mutant(
            "of-one-page-is-enough",
            "if (!holds(m, (uint32_t)page))\n\t\t\t\treturn false;",
            "if (holds(m, (uint32_t)page))\n\t\t\t\treturn true;",
        ),
    ),
    (
        "memory/map_result.c",
        Mutant(
            "open-in-who-gives-it",
            "return !page_write_protect(sharing_giver(m, page), page) &&\n\t       ",
            "return ",
        ),
    ),
    (
        "queue/reuse.c",
        Mutant(
            "what-other-streams-do-is-over",
            "i && i != o->next && o != s; i = i->next)",
            "0; i = i->next)",
        ),
    ),
    (
        "queue/execution.c",
        Mutant(
            "completed-before-the-work-ended",
            "e->told || hal->completed(e->queue) >= e->number",
            "1",
        ),
    ),
    (
        "queue/execution.c",
        Mutant(
            "writes-that-nothing-foresaw-are-let-pass",
            "if (!e->error && e->memory->surprised)",
            "if (0)",
        ),
    ),
    (
        "queue/reuse.c",
        Mutant(
            "what-is-being-written-is-there",
            "row->there(r, i) && in_order(r, s)",
            "row->there(r, i)",
        ),
    ),
    (
        "queue/reuse.c",
        Mutant("trusted-where-nothing-is-shared", "r->device->memory.shares && !", "!"),
    ),
    ("queue/reuse.c", Mutant("trusted-where-nothing-is-squashed", "!r->device->apart && ", "")),
    ("queue/reuse.c", Mutant("trusted-alone", " &&\n\t       r->world->attached > 1;", ";")),
    (
        "queue/reuse.c",
        Mutant("not-there-while-a-host-function-runs", " && r->memory.inflight; n++)", "; n++)"),
    ),
    (
        "queue/reuse.c",
        Mutant("taken-however-long-that-takes", " && !r->queue->squashing.concurrent)", ")"),
    ),
    (
        "queue/reuse.c",
        Mutant("fills-are-kernels", "if (row->needs & NEEDS_ACTIVE)\n\t\trank", "rank"),
    ),
    ("loop/slice.c", Mutant("nobody-is-let-go", "\t\tgo_alone(j);", "\t\t;")),
]
FILES = [("queue/squash.c", each) for each in SQUASH] + OTHERS

test_seeded_faults_fit_the_source, test_seeded_faults_are_noticed = seeded(
    FILES,
    "tests/proxy/test_partners.py",
    "tests/proxy/test_squashing.py",
    "tests/proxy/test_shared_programs.py",
)
