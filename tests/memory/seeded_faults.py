"""Faults seeded into the memory of ranks: its rules, or random requests, show each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

from hypothesis import Phase

from memory import (
    test_apart,
    test_beneath,
    test_checking,
    test_copies,
    test_forgetting,
    test_handing,
    test_holding,
    test_joined,
    test_memory,
    test_reusing,
    test_sharing,
)
from memory.machine import run
from memory.world import Make, load, worlds
from support.seeding import Check, Copy, Table


def rules(*modules: ModuleType) -> Iterator[Callable[[Make], None]]:
    """Faults that random runs show too rarely: all tests of these that need only worlds."""
    for module in modules:
        for name, rule in vars(module).items():
            if not name.startswith("test_"):
                continue
            cases: list[dict[str, Any]] = [{}]
            for mark in getattr(rule, "pytestmark", ()):
                key, values = mark.args
                cases = [{**case, key: value} for case in cases for value in values]
            yield from (partial(rule, **case) for case in cases)


def any_requests(copy: Copy) -> Callable[[], None]:
    library = load(copy.folder, copy.changed)

    def check() -> None:
        for rule in rules(
            test_sharing,
            test_apart,
            test_beneath,
            test_handing,
            test_forgetting,
            test_copies,
            test_reusing,
            test_holding,
            test_checking,
            test_memory,
        ):
            with worlds(library) as make:
                rule(make)
        run(library, 1500, phases=[Phase.generate], database=None, report_multiple_bugs=False)

    return check


def joined(copy: Copy) -> Callable[[], None]:
    library = load(copy.folder, copy.changed)

    def check() -> None:
        for rule in rules(test_joined):
            with worlds(library) as make:
                rule(make)

    return check


RULES = Check(any_requests)
JOINED = Check(joined)

TABLE: Table = {
    "interpose/launcher/snapshot/copy_on_write.py": {
        "tests/memory/test_holding.py::test_pages_overwritten_by_a_swap_out_are_set_aside[1]": {
            "set-aside-and-not-taken": (
                "if number := aside[page]:",
                "if (number := aside[page]) and False:",
            ),
        },
        "tests/memory/test_holding.py::test_empty_pages_are_not_set_aside": {
            "nothing-taken-as-something": ("if number != _NOTHING:", "if True:"),
        },
        "tests/memory/test_holding.py::test_an_image_that_is_emptied_cannot_be_copied": {
            "lost-and-not-said": ('if self._get("overflowed"):', "if False:"),
        },
        "tests/memory/test_holding.py::test_a_launcher_that_stops_copying_harms_no_rank": {
            "begun-with-what-was-set-aside-before": (
                "        self.end()\n        self._set",
                "        self._set",
            ),
        },
    },
    "proxy/core/memory/swap.c": {
        RULES: {
            "copied-as-nothing": (
                ("bool zeros = versions_zeros(&m->versions, page_addr(v->page), RF_CHUNK_BYTES);"),
                "bool zeros = true;",
            ),
            "a-new-page-has-what-the-chunk-held": (
                "take_chunk(m, blank, &c);",
                "take_chunk(m, false, &c);",
            ),
            "a-copy-of-zeros-has-what-the-chunk-held": (
                "take_chunk(m, zeros, &c);",
                "take_chunk(m, false, &c);",
            ),
            "forgotten-but-moved": ("|| page_blank(m, v->page)) {", ") {"),
            "forgotten-on-its-way-and-kept": (
                "if (v->copied || page->in_image)",
                "if (page->in_image)",
            ),
            "copies-not-counted": ("m->counted.copies++;", ";"),
            "copied-over-what-was-written": ("if (m->pages[v->page].chunk != v->from)", "if (0)"),
            "written-and-not-told-of": (
                "if (error == CU_NOT_READY)\n\t\tsharing_copied(m);",
                "(void)0;",
            ),
            "not-mapped-at-once": (
                "if (!m->inflight)\n\t\treturn page_remap",
                "if (true)\n\t\treturn page_remap",
            ),
            "prepared-and-kept-past-a-cut": (
                "return page->common || page->chunk;",
                "return page->common || (page->chunk && !page->keyed);",
            ),
            "prepared-and-not-saved": (
                "(page->chunk && !page->saved))",
                "(page->chunk && !page->saved && !page->keyed))",
            ),
            "lies-elsewhere-though-it-leaves": (
                "\tif (!stay)\n\t\treturn page->common || page->chunk;\n",
                "",
            ),
            "in-common-though-they-leave": (
                "if (m->whole || !copies_trusted(m))",
                "if (!copies_trusted(m))",
            ),
            "forgotten-while-it-is-saved": (
                "if (!m->unlooked || m->request.state || memory_moving(m) || image_hold_active(m))",
                "if (!m->unlooked)",
            ),
            "forgotten-at-once": ("most = IN_A_TURN", "most = 800"),
            "forgotten-though-saved-again": (
                "|| !page->in_image || page->saved)",
                "|| !page->in_image)",
            ),
            "forgotten-though-it-lies-nowhere-else": (
                "if (!page->chunk || !page->in",
                "if (!page->in",
            ),
            "never-forgotten": ("m->unlooked = m->live_count;", "m->unlooked = 0;"),
            "leaving-counts-as-spared": ("else if (!m->whole) {", "else {"),
            "alone-and-its-copy-kept": (
                "\tcopy_forget(m, v->page); /* nothing needs the chunk: no second copy */\n",
                "",
            ),
            "out-and-its-old-copy-kept": (
                "\tcopy_forget(m, v->page);\n\tif (v->copied)\n\t\timage_filled",
                "\tif (v->copied)\n\t\timage_filled",
            ),
            "saved-and-not-believed": (
                "\tcopies_named(m, v->page);\n}\n\nstatic void complete_home",
                "}\n\nstatic void complete_home",
            ),
            "saved-though-in-common": (
                "(page->common || (page->chunk && !page->saved)) &&",
                "page->chunk && !page->saved &&",
            ),
            "never-saved-while-it-stays": (
                "if (move_saves(m, m->live[i], stay, &kind))",
                "if (move_saves(m, m->live[i], stay, &kind) || m->pages[m->live[i]].chunk)",
            ),
            "saved-for-good": ("\t\tm->pages[m->live[i]].saved = false;\n", "\t\t;\n"),
            "an-image-dropped-though-not-alone": ("if (!m->alone)\n\t\tm->unlooked = 0;\n", ""),
            "moved-and-not-set-aside": ("\t\timage_changes(m, v->page);\n", "\t\t;\n"),
            "saved-again-and-not-set-aside": (
                "if (v->copied && !c) {\n",
                "if (v->copied && !c && v->kind != MOVE_SAVE) {\n",
            ),
            "dropped-while-it-is-copied": (" || image_hold_active(m))", ")"),
        },
    },
    "proxy/core/versions/versions.c": {
        RULES: {
            "zeros-by-their-beginning": (
                "content(&v->extents[i].content, &zeros) && end_of(v, i) >= addr + bytes;",
                "content(&v->extents[i].content, &zeros);",
            ),
        },
    },
    "proxy/core/memory/content.c": {
        RULES: {
            "digest-kept-after-a-write": ("m->pages[p].digested = 0;", ""),
            "digest-kept-when-all-is-unknown": ("m->contents++;", ""),
            "compared-by-half": ("x->a == y->a && x->b == y->b", "true"),
            "forgotten-though-written": ("m->pages[p].blank = 0;", ""),
            "doubted-but-for-its-digest": (
                "m->pages[page].digested = m->pages[page].blank = 0;",
                ";",
            ),
        },
    },
    "proxy/core/memory/buffers.c": {
        JOINED: {
            "joined-to-none-before": ("while (is_joint(m, first))", "while (0)"),
            "joined-to-none-behind": ("while (is_joint(m, end))", "while (0)"),
            "joined-to-any": ("b[at].joined && b[at - 1].joined &&", ""),
            "joined-over-a-gap": ("b[at - 1].addr + b[at - 1].bytes == b[at].addr;", "true;"),
            "joined-to-what-is-freed": (
                "if (at > 0)\n\t\tset_whole(m, at - 1);\n\tset_whole(m, at);\n\tforget",
                "forget",
            ),
        },
        RULES: {
            "digest-kept-by-a-new-page": ("page->digested = 0;", ""),
            "a-hole-in-a-new-page": ("\t\tpage->hole = false;\n", ""),
        },
    },
    "proxy/core/memory/invalidate.c": {
        RULES: {
            "forgotten-in-part": (
                "*from = page_at(addr + RF_CHUNK_BYTES - 1);",
                "*from = page_at(addr);",
            ),
            "forgotten-but-kept-in-the-image": (
                "if (m->pages[page].in_image && !m->pages[page].chunk && !memory_moving(m))",
                "if (0)",
            ),
            "let-go-of-while-it-is-used": ("&& !m->inflight && !memory_moving(m); i++)", "; i++)"),
            "forgotten-but-brought-from-a-copy": ("\t\tm->pages[page].common = false;\n", ""),
            "forgotten-but-named": (
                "\t\tcontent_unknown(m, page_addr((uint32_t)page), RF_CHUNK_BYTES);\n",
                "",
            ),
            "let-go-of-but-for-its-copy": (
                "page_unmap(m, page);\n\t\tcopy_forget(m, page);\n",
                "page_unmap(m, page);\n",
            ),
            "let-go-of-but-for-the-image": (
                "\t\tif (m->pages[page].in_image)\n\t\t\timage_punch(m, page);\n\t}\n",
                "\t}\n",
            ),
        },
    },
    "proxy/core/memory/request.c": {
        RULES: {
            "nobody-lets-go-for-a-copy": ("take_references(q);", ";"),
            "taken-from-who-stays": (
                "if (needs_move(q, page, &kind) && all_give(q, c, page))",
                "if (0)",
            ),
            "copied-beneath-what-writes-it": (
                "if (page->open && page->chunk == m->pages[m->live[i]].chunk)",
                "if (0)",
            ),
            "opened-beneath-what-may-write-anywhere": (
                "!d->hal->space_own || m->fenced",
                "!d->hal->space_own",
            ),
            "opened-and-not-told-of": (
                "\tsharing_copied(m); /* a kernel may have written there first */\n",
                "",
            ),
            "prepared-at-the-cost-of-who-runs": (
                "(m != d->active && !m->request.state)",
                "!m->request.state",
            ),
            "prepared-beyond-the-room": (
                "((is_prefetching(m) && chunks_available(m->device) < 1) ||",
                "(",
            ),
            "who-runs-waits-for-who-is-prepared": ("stop_prefetching(d);", ";"),
            "each-is-saved-before-it-is-known-who-has-been": (
                "memory_moving(m) || comes_later(q) ||",
                "memory_moving(m) ||",
            ),
            "never-in-common-again": (
                "\tm->whole = m->request.state && m->request.purpose == PURPOSE_SAVE;\n",
                "",
            ),
            "opened-and-shared-before-it-is-written": ("\tpage->write_pending = !q->result;\n", ""),
        },
    },
    "proxy/core/memory/copies.c": {
        RULES: {
            "lies-with-who-holds-something-else": (
                "copies_trusted(o) && content_same(m, o, page);",
                "copies_trusted(o);",
            ),
            "lies-with-who-is-not-saved": ("if (!in_own_image(o, index))", "if (0)"),
            "lies-with-who-has-forgotten-it": (
                "return !m->stopped && !page_blank(m, index) &&",
                "return !m->stopped &&",
            ),
            "lies-with-who-has-failed": (
                "return !m->stopped && !page_blank(m, index) &&",
                "return !page_blank(m, index) &&",
            ),
            "lies-with-another-job": (
                "return o->group == m->group && !m->inflight",
                "return !m->inflight",
            ),
            "a-key-that-is-not-believed": (
                "bool known = !m->inflight && copies_trusted(m);",
                "bool known = !m->inflight;",
            ),
            "a-key-while-it-is-written": (
                "bool known = !m->inflight && copies_trusted(m);",
                "bool known = copies_trusted(m);",
            ),
            "a-key-of-another-page": (
                "*content_digest(m, page) : (struct version){0, 0}",
                "*content_digest(m, 0) : (struct version){0, 0}",
            ),
            "lies-with-who-is-writing": ("!m->inflight && !o->inflight &&", "!m->inflight &&"),
            "lies-elsewhere-while-it-is-written": (
                "!m->inflight && !o->inflight &&",
                "!o->inflight &&",
            ),
            "lies-with-who-is-not-believed": ("copies_trusted(o) && content_same", "content_same"),
            "lies-elsewhere-though-it-is-not-believed": (
                "copies_trusted(m) &&\n\t       copies_trusted(o) && content_same",
                "copies_trusted(o) && content_same",
            ),
            "a-stale-host-copy": (
                "return digest->a == key->a && digest->b == key->b;",
                "return digest && key;",
            ),
            "believed-of-who-has-failed": ("!m->single && !m->stopped &&", "!m->single &&"),
            "believed-of-who-is-doubted": ("!m->stopped && !m->distrusted", "!m->stopped"),
            "an-image-believed-of-who-has-failed": (
                "page->keyed && copies_trusted(m) &&\n\t\t\t       is_copy_of",
                "page->keyed && is_copy_of",
            ),
            "merged-before-it-is-there": (
                "(c && c->hal_seq > d->hal->completed(d->out));",
                "false;",
            ),
            "kept-though-all-wrote-anew": (
                ("\t\tcopy_forget(m, index); /* of what it held before it was written there */\n"),
                "",
            ),
            "copies-of-other-groups": (
                "if (d->all[i]->group == m->group && c && is_copy_of",
                "if (c && is_copy_of",
            ),
            "copies-though-nobody-shares": (
                "return d->shares && !m->single &&",
                "return !m->single &&",
            ),
            "copies-of-who-is-single": ("return d->shares && !m->single &&", "return d->shares &&"),
            "in-an-image-that-was-punched": (
                "(page->in_image && page->keyed &&",
                "(page->keyed &&",
            ),
            "saved-and-copied-again": (
                "return page->saved || (page->in_image",
                "return (page->in_image",
            ),
            "in-common-before-it-is-written": (
                "return !m->inflight && !memory_moving(m) && !m->whole &&",
                "return !memory_moving(m) && !m->whole &&",
            ),
            "in-common-with-who-still-writes": (
                "at_rest(o) && content_same(m, o, page))",
                "content_same(m, o, page))",
            ),
            "in-common-with-who-is-doubted": ("!m->whole && copies_trusted(m);", "!m->whole;"),
            "in-common-though-resident": (
                "return page->buffers && !page->chunk && page->in_image;",
                "return page->buffers && page->in_image;",
            ),
            "in-common-though-nowhere": (
                "return page->buffers && !page->chunk && page->in_image;",
                "return page->buffers && !page->chunk;",
            ),
            "looked-at-once-only": ("\t\tpage->fresh = false;\n", ""),
        },
    },
    "proxy/core/memory/image.c": {
        RULES: {
            "a-copy-with-a-reference-too-many": ("c->refs++;", "c->refs += 2;"),
            "a-hole-filled-twice": ("\tpage->hole = false;\n", ""),
            "spare-though-not-in-the-image": (
                "found.spare += page->in_image;",
                "found.spare += 1;",
            ),
            "punched-and-not-set-aside": ("\timage_changes(m, page);\n\tfallocate", "\tfallocate"),
            "emptied-and-not-said": ("\timage_hold_overflow(m);\n", ""),
            "written-and-not-set-aside": ("\t\timage_changes(m, index);\n", "\t\t;\n"),
        },
    },
    "proxy/core/crosscheck/check.c": {
        RULES: {
            "quiet-between-counts-for-nothing": ("\tc->fruitless = 0;\n", ""),
            "once-in-vain-is-enough": ("#define FRUITLESS_MAX 2u", "#define FRUITLESS_MAX 1u"),
            "not-quiet-is-not-counted": ("\tc->fruitless++;\n", ""),
            "no-patience": ("if (now_ns - c->since_ns < QUIET_NS)", "if (0)"),
            "waited-for-for-ever": ("if (now_ns - c->since_ns < QUIET_NS)", "if (1)"),
            "nobody-looks-again": (
                "return c->state == CHECK_WAITS ? c->since_ns + QUIET_NS : 0;",
                "return 0;",
            ),
            "stopped-twice": (" || (c->key == key && c->number == number))", ")"),
            "one-communicator-for-all": (
                "(c->key == key && c->number == number)",
                "c->number == number",
            ),
            "every-collective": ("if (round != number / c->every)", "if (1)"),
            "one-collective-late": (
                "uint64_t round = (number + count) / c->every;",
                "uint64_t round = (number + count - 1) / c->every;",
            ),
            "arrives-as-others": ("c->due = arrives ? EVERY_PART : 0;", "c->due = 0;"),
            "arrives-each-time": ("\tc->due &= ~c->looks;\n", ""),
            "in-vain-and-still-due": ("\tc->due = 0; /*", "\t/*"),
            "arrives-in-part": ("while (due && !(due & part))", "while (0)"),
            "arrives-and-is-looked-at-twice": (
                "\tc->due &= ~c->looks;\n\tc->key = key;",
                "\tc->due &= ~due_of(c->due, number + count);\n\tc->key = key;",
            ),
            "arrives-and-nothing-else-is-due": (
                "c->looks |= part_of(round);",
                "c->looks = c->looks ? c->looks : part_of(round);",
            ),
            "all-of-it-each-time": (
                "\tif (!c->looks)\n\t\treturn false;",
                "\tif (!c->looks)\n\t\treturn false;\n\tc->looks = EVERY_PART;",
            ),
            "a-turn-by-the-collective": (
                "c->looks |= part_of(round);",
                "c->looks |= part_of(number);",
            ),
            "looked-at-again": ("if (pairs_seen(pairs, digest, who))", "if (0)"),
            "images-are-skipped": (
                "(p->chunk || p->in_image || p->common)",
                "(p->chunk || p->common)",
            ),
            "copies-of-several-are-skipped": (
                "(p->chunk || p->in_image || p->common)",
                "(p->chunk || p->in_image)",
            ),
            "what-counts-for-nothing-is-looked-at": (
                " && !page_blank(m, (uint32_t)page) &&",
                " &&",
            ),
            "no-chunk-is-named": ("chunk ? chunk_number(m->device, chunk) : NO_CHUNK", "NO_CHUNK"),
            "no-call-site": (".call_site = b ? b->call_site : 0,", ""),
            "beyond-a-buffers-end": ("next = next < end ? next : end;", ""),
            "gaps-but-for-their-beginning": (
                "(from == end || add_part(c, m, pairs, NULL, from, end)) &&",
                "",
            ),
            "gaps-but-for-their-end": (
                " &&\n\t       (begin >= to || add_part(c, m, pairs, NULL, begin, to))",
                "",
            ),
            "nothing-behind-the-last": (
                (
                    "return !gaps ||\n"
                    "\t       add_gap(c, m, pairs, end, (end + RF_CHUNK_BYTES - 1) & "
                    "~(RF_CHUNK_BYTES - 1));"
                ),
                "return true;",
            ),
            "freed-and-looked-at": ("if (b->freed)", "if (0)"),
            "the-last-one-again": ("c->count = c->submitted = c->done = 0;", "c->count = 0;"),
            "moved-while-it-is-looked-at": ("\tmemory_use(m);\n", ""),
            "looked-at-for-ever": ("\t\tmemory_used(m);\n", ""),
            "looked-at-while-it-is-written": (
                "if (!m->inflight && !memory_moving(m))",
                "if (!memory_moving(m))",
            ),
            "looked-at-while-it-moves": (
                "if (!m->inflight && !memory_moving(m))",
                "if (!m->inflight)",
            ),
            "more-than-the-queue-has-room-for": (
                "if (!checks->hal->available(checks->stream))",
                "if (0)",
            ),
            "half-a-checksum": ("= part->pair.who.bytes;", "= part->pair.who.bytes / 2;"),
            "written-meanwhile-and-told": (
                "return now.a == pair->digest.a && now.b == pair->digest.b;",
                "return true;",
            ),
            "failed-and-waited-for": (
                "c->state == CHECK_WAITS && !gives_up)",
                "c->state == CHECK_WAITS)",
            ),
            "looked-at-where-the-space-has-failed": (
                "\tgives_up |= hal->space_error(m->space, NULL, 0) != 0;\n",
                "",
            ),
            "the-rest-all-the-same": ("\t\tc->count = c->submitted;\n", ""),
            "the-rest-is-not-missed": ("\t\tc->missed |= c->count != c->submitted;\n", ""),
            "told-before-it-is-there": ("c->parts[c->done].hal_seq <= completed", "true"),
            "missed-and-not-said": ("\t\t\tc->missed = true;\n\t\t\tcontinue;", "\t\t\tcontinue;"),
            "refused-and-told": ("gives_up || !part->hal_seq || ", "gives_up || "),
            "told-of-who-fails": ("gives_up || !part->hal_seq || ", "!part->hal_seq || "),
            "over-and-nobody-hears": (
                "\t\tend_check(c);\n\t\tchanged = true;",
                "\t\tend_check(c);",
            ),
            "a-queue-for-each": ("if (!checks->stream && checks", "if (checks"),
        },
    },
    "proxy/core/memory/image_hold.c": {
        RULES: {
            "set-aside-and-not-noted": ("\tatomic_store(&h->aside[page], number);\n", "\t;\n"),
            "set-aside-each-time": ("|| atomic_load(&h->aside[page]))", ")"),
            "set-aside-as-nothing": ("if (m->pages[page].in_image) {", "if (0) {"),
            "nothing-set-aside-as-something": ("if (m->pages[page].in_image) {", "if (1) {"),
            "set-aside-by-another-number": ("number = ++h->pages;", "number = h->pages++;"),
            "set-aside-at-one-place": ("h->pages * RF_CHUNK_BYTES)", "0)"),
        },
    },
}
