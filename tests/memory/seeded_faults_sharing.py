"""Faults seeded into the sharing of pages between ranks."""

from __future__ import annotations

from support.seeding import Table

from .seeded_faults import RULES

TABLE: Table = {
    "proxy/core/memory/sharing.c": {
        RULES: {
            "written-before-it-is-copied": ("if (!page_owned(&m->pages[from]))", "if (0)"),
            "opened-beneath-a-kernel": (
                "return memory_only_exact(m) && !memory_moving(m) &&",
                "return !memory_moving(m) &&",
            ),
            "opened-while-it-moves": (
                "return memory_only_exact(m) && !memory_moving(m) &&",
                "return memory_only_exact(m) &&",
            ),
            "opened-beneath-a-sum-where-that-cannot-be": (
                "!memory_moving(m) && m->device->hal->space_own;",
                "!memory_moving(m);",
            ),
            "open-until-the-sum-is-over": (
                "!most-- || !(has_no_work_in_flight(m) || writes_only_declared(m))",
                "!most-- || !has_no_work_in_flight(m)",
            ),
            "opened-beneath-nothing": (
                "has_no_work_in_flight(m) || writes_only_declared(m) ?",
                "has_no_work_in_flight(m) ?",
            ),
            "not-write_protected-in-who-was-there": (
                "int error = page_write_protect(from, page);",
                "int error = CU_OK;",
            ),
            "merged-while-it-is-written": (
                "return m->device->shares && !m->inflight &&",
                "return m->device->shares &&",
            ),
            "shared-by-who-has-failed": ("!m->stopped &&\n", "\n"),
            "shared-by-whose-space-has-failed": ("!hal->space_error(m->space, NULL, 0);", "hal;"),
            "merged-across-groups": (
                "o->gives = o != m && o->group == m->group &&",
                "o->gives = o != m &&",
            ),
            "taken-across-groups": (
                "if (o != m && o->group == m->group && page_may_be_shared(o, page)",
                "if (o != m && page_may_be_shared(o, page)",
            ),
            "shared-on-its-way-out": ("!page->leaving && ", ""),
            "shared-again-before-it-is-written": ("!page->write_pending &&", ""),
            "open-in-two": ("error = protect_where_open(m, (uint32_t)from + i);", ";"),
            "closed-while-it-moves": (
                "return !m->inflight && !memory_moving(m);",
                "return !m->inflight;",
            ),
            "handed-and-open-in-the-giver": (
                "page->chunk == c ||\n\t    page_write_protect(from, index))",
                "page->chunk == c)",
            ),
            "handed-in-part": (
                "uint64_t page = page_at(addr + RF_CHUNK_BYTES - 1),",
                "uint64_t page = page_at(addr),",
            ),
            "handed-and-not-noted": ("content_unknown(to, page_addr(index), RF_CHUNK_BYTES);", ""),
            "handed-by-who-is-busy": ("!has_no_work_in_flight(from) || !may_share(from) ||", ""),
            "handed-to-who-is-busy": ("!has_no_work_in_flight(to) || !may_share(to))", "0)"),
            "handed-across-groups": ("if (from->group != to->group || ", "if ("),
            "received-by-who-has-failed": (
                "m->stopped || d->hal->space_error",
                "0 && d->hal->space_error",
            ),
            "unforeseen-not-counted": (
                "page_copied(m, (uint32_t)page_at(addr), number);",
                "(void)number;",
            ),
            "unforeseen-but-named": (
                ("if (any) /* what ran behind it may have read it */\n\t\tcontent_all_unknown(m);"),
                "(void)any;",
            ),
            "shared-counted-for-each-rank": ("!(once && shared_before(m, m->live[i]));", "true;"),
            "spared-not-counted": ("to->counted.not_swapped += RF_CHUNK_BYTES;", ";"),
            "unforeseen-not-told": ("m->counted.unforeseen++;", ";"),
            "lost-in-a-merge-and-not-told-of": (
                "\t\tif (!m->pages[page].chunk)\n\t\t\treturn error;\n",
                "",
            ),
            "strays-told-of-again": ("\tm->stray_count = 0;\n", ""),
            "fenced-off-from-what-it-writes": (
                "|| page->write_protected || in_some_range(ranges, count, index))",
                "|| page->write_protected)",
            ),
            "surprise-not-noted": ("m->surprised |= any && !m->fenced;", ";"),
            "open-elsewhere-keeps-it-closed": (
                " && o->pages[page].chunk == m->pages[page].chunk;",
                ";",
            ),
            "opened-though-its-own": (
                "(m, from, to);\n\t\tif (!m->pages[from].write_protected)\n\t\t\tcontinue;\n",
                "(m, from, to);\n",
            ),
            "open-for-all-though-alone": ("count, page_shared(&m->pages[from]));", "count, true);"),
            "in-vain-for-one-and-tried-by-the-others": (
                "if (d->all[i]->group != m->group || !its->buffers)",
                "if (d->all[i] != m)",
            ),
            "in-vain-for-other-jobs-too": (
                "if (d->all[i]->group != m->group || !its->buffers)",
                "if (!its->buffers)",
            ),
            "in-vain-told-again-by-each": (
                "if (page->backoff_by_other && d->turns < page->backoff_until)",
                "if (0)",
            ),
            "told-once-and-never-again": (
                "if (page->backoff_by_other && d->turns < page->backoff_until)",
                "if (page->backoff_by_other)",
            ),
            "apart-for-ever-longer-though-it-pays": ("\t\tforget_backoff(", "\t\t(void)("),
            "pays-for-who-opens-it-alone": (
                "if (page_refers_to(d->all[i], page, m->pages[page].chunk))",
                "if (d->all[i] == m)",
            ),
            "kept-behind-a-fence-and-believed": ("else if (!trusted)", "else if (0)"),
            "trusted-and-not-believed": ("else if (!trusted)", "else"),
            "fenced-off-though-not-there": (
                "if (!page->chunk || page->write_protected ||",
                "if (page->write_protected ||",
            ),
            "owns-but-for-its-first-page": ("m->live[i] >= from &&", "m->live[i] > from &&"),
            "owns-as-far-as-the-next-page": ("m->live[i] < to &&", "m->live[i] <= to &&"),
            "owns-what-is-scattered": (
                "if (m->live[i] >= from && m->live[i] < to &&\n"
                "\t\t\t    !page_owned(&m->pages[m->live[i]]))",
                "if (0)",
            ),
            "open-and-alone-is-not-its-own": (
                "(!page->open || page->chunk->refs == 1)",
                "!page->open",
            ),
            "closed-with-what-was-not-open": ("\t\tif (!page->open)\n\t\t\tcontinue;\n", ""),
            "closed-and-not-its-own": (
                "\t\tif (!page_shared(page)) /* no other rank",
                "\t\tif (false) /* no other rank",
            ),
            "still-open-for-others": (
                "\t\tif (!page_shared(page)) /* no other rank",
                "\t\tif (true) /* no other rank",
            ),
            "closed-while-it-is-written": (
                "!most-- || !(has_no_work_in_flight(m) || writes_only_declared(m))",
                "!most-- || memory_moving(m)",
            ),
            "closed-in-part-and-forgotten": (
                "writes_only_declared(m)))\n\t\t\treturn false",
                "writes_only_declared(m)))\n\t\t\treturn true",
            ),
            "closed-with-what-is-its-own": ("page_shared(page) == page_shared(first))", "true)"),
            "opened-with-a-neighbour": (
                "page->write_protected == first->write_protected &&",
                "true &&",
            ),
            "nothing-is-a-chunk-in-common": (
                "return c && m->pages[page].chunk == c;",
                "return m->pages[page].chunk == c;",
            ),
            "more-sharers-than-there-is-room-for": (
                "*exactly &= all && found < capacity;",
                "*exactly &= all;",
            ),
            "given-on-its-way-in": (
                "(!memory_moving(m) || m->moves->kind == MOVE_OUT) &&",
                "true &&",
            ),
            "given-by-who-is-doubted": ("!m->inflight && !m->distrusted &&", "!m->inflight &&"),
            "given-though-stuck-elsewhere": (" &&\n\t       !page->chunk->unusable;", ";"),
            "taken-by-who-is-doubted": (
                "d->shares && !m->distrusted && i < d->count",
                "d->shares && i < d->count",
            ),
            "taken-from-who-is-busy": ("(!now || may_share(o)) &&", "true &&"),
            "prepared-without-what-others-have": (
                "return find_holder(m, page, false) && !find_holder(m, page, true);",
                "return find_holder(m, page, false);",
            ),
            "prepared-though-others-have-it-soon": (
                "return find_holder(m, page, false) && !find_holder(m, page, true);",
                "return false;",
            ),
            "taken-and-its-image-not-believed": (
                "\tcopies_named(to, page);\n\tif (!error)",
                "\tif (!error)",
            ),
            "zeros-are-spared": ("if (!error && content) {", "if (!error) {"),
            "merged-to-where-fewer-are": ("c->refs < best->refs ||", "0 ||"),
            "a-copy-kept-of-what-was-there": (
                (
                    "\t\tif (m->pages[page].chunk && !copies_has(m, page))\n"
                    "\t\t\tcopy_forget(m, page);\n"
                ),
                "",
            ),
            "received-by-who-has-to-copy": ("m->pages[from].write_protected ? 2 : 4;", "4;"),
            "handed-to-who-does-not-have-it": (
                "!page_may_be_shared(from, index) || !page->buffers ||",
                "!page_may_be_shared(from, index) ||",
            ),
            "handed-and-spared-what-was-there": (
                "to->counted.not_swapped += missing ? RF_CHUNK_BYTES : 0;",
                "to->counted.not_swapped += RF_CHUNK_BYTES;",
            ),
        },
    },
    "proxy/core/memory/chunk.c": {
        RULES: {
            "a-reference-too-few": (
                "set_counts(d, c, c->refs + 1, c->leaving);",
                "set_counts(d, c, c->refs ? c->refs : 1, c->leaving);",
            ),
            "not-write_protected-in-who-comes": (
                "chunk_number(d, c), !c->refs);",
                "chunk_number(d, c), true);",
            ),
            "closed-but-for-neighbours": (
                "space_protect(m->space, page_addr(index), count, false)",
                "space_protect(m->space, page_addr(index), 1, false)",
            ),
            "opened-but-for-neighbours": (
                "space_protect(m->space, page_addr(index), count, true)",
                "space_protect(m->space, page_addr(index), 1, true)",
            ),
            "kept-though-it-has-gone": (
                "page->write_protected = page->open = page->write_pending = false;\n\treturn c;",
                "page->write_protected = page->open = false;\n\treturn c;",
            ),
        },
    },
    "proxy/core/memory/map_result.c": {
        RULES: {
            "adopted-before-the-last-reader-ends": (
                "if (m->inflight || memory_moving(m))",
                "if (memory_moving(m))",
            ),
            "adopted-while-it-moves": ("if (m->inflight || memory_moving(m))", "if (m->inflight)"),
            "adopted-in-vain-but-its-digest-kept": ("m->pages[page].digested = 0;", ""),
            "adopted-though-about-to-be-written": ("&& !page->write_pending &&", "&&"),
            "adoption-waits-for-who-is-busy": (
                " && !o->inflight && content_committed",
                " && content_committed",
            ),
            "adoption-waits-for-another-group": (
                "if (o != m && o->group == m->group &&",
                "if (o != m &&",
            ),
            "adopted-though-copied-each-time": (
                " &&\n\t       (page->backoff_by_other || !sharing_backs_off(m, index));",
                ";",
            ),
            "not-adopted-for-what-happened-to-another": ("(page->backoff_by_other || !", "(!"),
            "adopted-and-not-tried-for-itself": ("m->pages[page].backoff_by_other = false;", ";"),
            "adopted-by-who-has-failed": ("m->stopped || m->distrusted ||", "m->distrusted ||"),
            "adopted-by-who-is-doubted": ("m->stopped || m->distrusted ||", "m->stopped ||"),
            "adopted-though-nobody-shares": ("!m->device->shares || m->stopped", "m->stopped"),
            "adopted-in-part-and-not-told-of": (
                "? MAPPED_DONE : MAPPED_FAILED",
                "? MAPPED_DONE : MAPPED_DONE",
            ),
            "adopted-by-its-first-page": (
                "uint64_t last = page_at(range->addr + range->bytes - 1);",
                "uint64_t last = page_at(range->addr);",
            ),
            "adopted-but-for-the-page-behind-it": (
                "range->addr + range->bytes - 1",
                "range->addr + range->bytes",
            ),
            "adopted-if-what-it-reads-is-there": (
                "if (!(range->use & REACH_WRITTEN) || !range->bytes)",
                "if (!range->bytes)",
            ),
            "adopted-if-what-it-does-not-reach-is-there": (" || !range->bytes)", ")"),
            "noted-as-adopted-though-it-is-not": (
                "versions_back(&m->versions, &before);",
                "versions_close(&before);",
            ),
            "adopted-as-it-was": ("\tcontent_commit(m, f, f->key);\n", ""),
            "adopted-before-it-is-write_protected": (
                (
                    "return !page_write_protect(sharing_giver(m, page), page) &&\n"
                    "\t       !page_remap(m, page, o->pages[page].chunk);"
                ),
                (
                    "return !page_remap(m, page, o->pages[page].chunk) && !page_write_protect(m, "
                    "page);"
                ),
            ),
        },
    },
}
