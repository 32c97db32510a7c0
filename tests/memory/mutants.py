"""Faults seeded into the memory room, one at a time: each must be noticed by the tests."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    file: str
    old: str
    new: str


MUTANTS = [
    Fault("written-before-it-is-copied", "sharing.c", "if (!owned(&m->pages[from]))", "if (0)"),
    Fault("copied-as-nothing", "moves.c",
          "bool zeros = versions_zeros(&m->versions, page_addr(v->page), RF_CHUNK_BYTES);",
          "bool zeros = true;"),
    Fault("zeros-by-their-beginning", "../versions/versions.c",
          "return same(&v->extents[i].content, &zeros) && end_of(v, i) >= addr + bytes;",
          "return same(&v->extents[i].content, &zeros);"),
    Fault("a-reference-too-few", "chunk.c", "count(d, c, c->refs + 1, c->leaving);",
          "count(d, c, c->refs ? c->refs : 1, c->leaving);"),
    Fault("not-guarded-in-who-comes", "chunk.c", "chunk_number(d, c), !c->refs);",
          "chunk_number(d, c), true);"),
    Fault("not-guarded-in-who-was-there", "sharing.c", "int error = page_guard(from, page);",
          "int error = CU_OK;"),
    Fault("merged-while-it-is-written", "sharing.c",
          "return m->device->shares && !m->inflight &&", "return m->device->shares &&"),
    Fault("shared-by-who-has-failed", "sharing.c", "!m->stopped &&\n", "\n"),
    Fault("shared-by-whose-space-has-failed", "sharing.c",
          "!hal->space_error(m->space, NULL, 0);", "hal;"),
    Fault("digest-kept-after-a-write", "content.c", "m->pages[p].digested = 0;", ""),
    Fault("digest-kept-when-all-is-unknown", "content.c", "m->contents++;", ""),
    Fault("digest-kept-by-a-new-page", "buffers.c", "page->digested = 0;", ""),
    Fault("compared-by-half", "content.c", "x->a == y->a && x->b == y->b", "true"),
    Fault("merged-across-groups", "sharing.c", "o->gives = o != m && o->group == m->group &&",
          "o->gives = o != m &&"),
    Fault("taken-across-groups", "sharing.c", "if (o != m && o->group == m->group && has(o, page)",
          "if (o != m && has(o, page)"),
    Fault("shared-on-its-way-out", "sharing.c", "!page->leaving && ", ""),
    Fault("shared-again-before-it-is-written", "sharing.c", "!page->kept &&", ""),
    Fault("open-in-two", "sharing.c",
          "error = quiet(m) ? guard_others(m, (uint32_t)from) : CU_NOT_READY;",
          "error = quiet(m) ? CU_OK : CU_NOT_READY;"),
    Fault("closed-while-it-moves", "sharing.c", "return !m->inflight && !memory_moving(m);",
          "return !m->inflight;"),
    Fault("handed-and-open-in-the-giver", "sharing.c",
          "page->chunk == c || page_guard(from, index))", "page->chunk == c)"),
    Fault("handed-in-part", "sharing.c", "uint64_t page = page_at(addr + RF_CHUNK_BYTES - 1),",
          "uint64_t page = page_at(addr),"),
    Fault("handed-and-not-noted", "sharing.c",
          "content_unknown(to, page_addr(index), RF_CHUNK_BYTES);", ""),
    Fault("handed-by-who-is-busy", "sharing.c", "!quiet(from) || !gives(from) || ", ""),
    Fault("handed-to-who-is-busy", "sharing.c", " || !quiet(to) || !gives(to))", ")"),
    Fault("handed-across-groups", "sharing.c", "if (from->group != to->group || ", "if ("),
    Fault("forgotten-in-part", "forget.c", "*from = page_at(addr + RF_CHUNK_BYTES - 1);",
          "*from = page_at(addr);"),
    Fault("forgotten-though-written", "content.c", "m->pages[p].blank = 0;", ""),
    Fault("forgotten-but-moved", "moves.c", "|| page_blank(m, v->page);", ";"),
    Fault("forgotten-but-kept-in-the-image", "forget.c",
          "if (m->pages[page].in_image && !m->pages[page].chunk && !memory_moving(m))", "if (0)"),
    Fault("let-go-of-while-it-is-used", "forget.c", "&& !m->inflight && !memory_moving(m); i++)",
          "; i++)"),
    Fault("forgotten-on-its-way-and-kept", "moves.c", "} else if (v->hal_seq) {",
          "} else if (0) {"),
    Fault("received-by-who-has-failed", "sharing.c", "m->stopped || d->hal->space_error",
          "0 && d->hal->space_error"),
    Fault("unforeseen-not-counted", "sharing.c", "page_copied(m, (uint32_t)page_at(addr), number);",
          "(void)number;"),
    Fault("unforeseen-but-named", "sharing.c",
          "if (any) /* what ran behind it may have read it */\n\t\tcontent_all_unknown(m);",
          "(void)any;"),
    Fault("shared-counted-for-each-rank", "sharing.c",
          "!(once && shared_before(m, m->live[i]));", "true;"),
    Fault("spared-not-counted", "sharing.c", "to->counted.spared += RF_CHUNK_BYTES;", ";"),
    Fault("copies-not-counted", "moves.c", "m->counted.copies++;", ";"),
    Fault("unforeseen-not-told", "sharing.c", "m->counted.unforeseen++;", ";"),
    Fault("nobody-lets-go-for-a-copy", "request.c", "take_references(q);", ";"),
    Fault("taken-from-who-stays", "request.c",
          "if (needs(q, page, &kind) && all_give(q, c, page))", "if (0)"),
]  # fmt: skip
