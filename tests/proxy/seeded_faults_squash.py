"""Faults seeded into which rank writes what is shared.

A rank that waits without success continues alone when the job stands still. So a wait past a free
or a cut is detected by how often that happens.
"""

from __future__ import annotations

from support.seeding import Table

SQUASHING = (
    "tests/proxy/test_partners.py",
    "tests/proxy/test_squashing.py",
    "tests/proxy/test_shared_programs.py",
)

TABLE: Table = {
    "proxy/core/queue/squash.c": {
        SQUASHING: {
            "another-key-will-do": ("f->key.a == g->key.a && f->key.b == g->key.b &&", "1 &&"),
            "fills-are-waited-for": ("if (i->kind == ITEM_FILL &&", "if (0 &&"),
            "fills-want-room": (" && chunks_for_all(r, f, count))", ")"),
            "a-sharer-left-out": ("if (o == r)\n", "if (o == r || team->count)\n"),
            "others-do-not-know-of-it": ("item_row(its)->effect(o, its, &g);", ";"),
            "others-memory-may-move": ("memory_use(&o->memory);", ";"),
            "written-without-asking": ("if (owns_written(r, f))", "if (1)"),
            "held-by-what-is-gone": ("squash_not_first(o, its);", ";"),
            "failed-ranks-are-waited-for": ("if (o->async_error)", "if (0)"),
            "freed-buffers-are-waited-for": (
                "if (is_written(&f->ranges[n]) && (!b || b->freed))",
                "if (0 && b)",
            ),
            "who-is-held-for-a-cut-is-waited-for": (
                "if (o->world->state != PROXY_JOB_RUNNING && o->intake.record_waits)",
                "if (0)",
            ),
            "order-of-streams-forgotten": ("if (!ready_open(o, s) ||", "if (!s->next ||"),
            "what-runs-before-is-overtaken": (
                "return still && queue_orders(o, s, queue) ?",
                "(void)queue_orders;\n\t\t\treturn still ?",
            ),
            "kept-from-its-copy": (" && !memory_waits(&o->memory)", ""),
            "who-may-write-anywhere-takes-part": (" && !o->memory.fenced", ""),
            "kernels-being-loaded-are-others": (
                " ||\n\t\t    ready_item(s->next) != ITEM_READY)",
                ")",
            ),
            "what-may-write-anywhere-owns-what-it-must": (
                ("if (!f->known)\n\t\treturn memory_owns(&r->memory, RF_DEV_BASE, RF_HEAP_BYTES);"),
                "",
            ),
            "who-shares-the-beginning-shares-all": (
                "(struct memory_range){f->ranges[n].addr, f->ranges[n].bytes};",
                "(struct memory_range){f->ranges[n].addr, 1};",
            ),
            "who-shares-a-part-takes-part": ("if (!exactly)", "if (0)"),
            "squashed-though-that-is-off": (
                " && !r->device->no_squash && !r->memory",
                " && !r->memory",
            ),
            "open-for-what-comes-next": (
                "(verdict == VERDICT_OWNED && pages_closed(r, i, f) && fence_set",
                "(verdict == VERDICT_OWNED && fence_set",
            ),
            "open-and-nobody-knows": ("\tr->queue->squashing.open = true;\n", ""),
            "never-opened-early": ("bool may = f.known &&", "bool may = 0 && f.known &&"),
            "who-comes-first-counts-for-itself": ("\tf->unordered = false;\n\ti->", "\ti->"),
            "who-comes-first-counts-for-others": ("\t\tg.unordered = false;\n", ""),
            "others-have-a-version-of-their-own": ("\t\tg.key = f->key;\n", ""),
            "a-fence-owes-nothing": ("\ts->fence_waits |= r->memory.fenced;\n", ""),
            "what-is-owed-is-not-given": (
                "if (r->queue->squashing.fence_waits)\n\t\treturn false;",
                "",
            ),
            "owed-for-ever": ("\tr->queue->squashing.fence_waits = false;\n", ""),
            "owed-until-it-is-fenced": (
                "!r->queue->squashing.fence_waits || r->memory.fenced)",
                "!r->queue->squashing.fence_waits)",
            ),
            "first-before-what-is-owed": (
                "if (!may && !r->queue->squashing.fence_waits)",
                "if (!may)",
            ),
            "a-fault-is-one-ranks": ("i->execution->memory = &r->memory;", ""),
        },
    },
    "proxy/core/memory/map_result.c": {
        SQUASHING: {
            "of-one-page-is-enough": (
                "if (!holds(m, (uint32_t)page))\n\t\t\t\treturn false;",
                "if (holds(m, (uint32_t)page))\n\t\t\t\treturn true;",
            ),
            "open-in-who-gives-it": (
                "return !page_write_protect(sharing_giver(m, page), page) &&\n\t       ",
                "return ",
            ),
        },
    },
    "proxy/core/queue/reuse.c": {
        SQUASHING: {
            "what-other-streams-do-is-over": (
                "i && i != o->next && o != s; i = i->next)",
                "0; i = i->next)",
            ),
            "what-is-being-written-is-there": (
                "row->there(r, i) && in_order(r, s)",
                "row->there(r, i)",
            ),
            "trusted-where-nothing-is-shared": ("r->device->memory.shares && !", "!"),
            "trusted-where-nothing-is-squashed": ("!r->device->no_squash && ", ""),
            "trusted-alone": (" &&\n\t       r->world->attached > 1;", ";"),
            "not-there-while-a-host-function-runs": (" && r->memory.inflight; n++)", "; n++)"),
            "taken-however-long-that-takes": (" && !r->queue->squashing.concurrent)", ")"),
            "fills-are-kernels": ("if (row->needs & NEEDS_ACTIVE)\n\t\trank", "rank"),
        },
    },
    "proxy/core/queue/execution.c": {
        SQUASHING: {
            "completed-before-the-work-ended": (
                "e->reported || hal->completed(e->queue) >= e->number",
                "1",
            ),
            "writes-that-nothing-foresaw-are-let-pass": (
                "if (!e->error && e->memory->surprised)",
                "if (0)",
            ),
        },
    },
    "proxy/core/loop/slice.c": {
        SQUASHING: {
            "nobody-is-let-go": ("\t\tcontinue_alone(j);", "\t\t;"),
        },
    },
}
