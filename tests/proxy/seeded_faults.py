"""Faults seeded into contents, cross-check, opaque code, results and time slices."""

from __future__ import annotations

from collections.abc import Callable

from support.seeding import Check, Copy, Table

from . import test_pairs


def pairs(copy: Copy) -> Callable[[], None]:
    library = test_pairs.load(copy.folder, copy.changed)

    def check() -> None:
        for rule in test_pairs.RULES:
            rule(test_pairs.Pairs(library))

    return check


PAIRS = Check(pairs, quick=True)
CONTENTS = ("tests/proxy/test_contents.py", "-k", "not bytes")
CROSSCHECK = ("tests/proxy/test_crosscheck.py",)
OPAQUE = ("tests/proxy/test_opaque.py",)
RESULTS = ("tests/proxy/test_results.py",)
SLICES = (
    "tests/proxy/test_yielding.py",
    "tests/proxy/test_slices.py",
    "tests/proxy/test_preparing.py",
)

LOADED = "tests/proxy/test_waiting_for_code.py"

WORKSPACE = "tests/proxy/test_contents.py::test_a_product_reads_and_writes_its_workspace[True]"

DESCRIBED = "tests/proxy/test_gemm.py::test_a_call_of_another_product_than_is_described_is_refused"

TABLE: Table = {
    "proxy/core/loop/handle_stream.c": {
        DESCRIBED: {
            "lists-that-are-not-described": (
                "listed != !!(g->flags & RF_GEMM_POINTERS) ||",
                "(listed && !g->m) ||",
            ),
            "any-leading-dimension": (
                "if (!stored_as(all[i], how->ld[i], turned))",
                "if (turned > 1)",
            ),
        },
    },
    "proxy/core/loop/api.c": {
        (LOADED, "-k", "fails_its_rank"): {
            "rank-continues-without-code": ("if (a->error == CU_UNKNOWN)", "if (0)"),
            "refused-code-fails-the-rank": ("if (a->error == CU_UNKNOWN)", "if (1)"),
            "module-that-fails-is-ignored": (
                "\t\t\tcode_refused(r, a, ask->bulk, ask->bulk - 1);",
                "\t\t\t;",
            ),
        },
    },
    "proxy/core/queue/launch.c": {
        (LOADED, "-k", "why_a_kernel_cannot_run"): {
            "kernel-without-its-reason": ("f->why_refused ? f->why_refused : f->name", "f->name"),
        },
    },
    "proxy/hal/null/null.c": {
        "tests/proxy/test_null.py::test_a_chunk_of_another_reads_as_zero": {
            "null-keeps-contents": (
                "FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE",
                "FALLOC_FL_KEEP_SIZE",
            ),
        },
        ("tests/proxy/test_null.py::test_only_a_space_that_writes_to_what_it_may_read_fails"): {
            "null-writes-to-what-is-read-only": (
                "[p / RF_CHUNK_BYTES] & access)",
                "[p / RF_CHUNK_BYTES])",
            ),
            "null-protects-for-ever": ("access, chunks);", "PROT_READ, chunks);"),
        },
    },
    "proxy/core/queue/effects.c": {
        WORKSPACE: {
            "workspace-of-any-size": (
                "(struct bound){0, (int64_t)how->workspace_bytes}",
                "(struct bound){0, 1 << 20}",
            ),
        },
        CONTENTS: {
            "open-kernel-believed": ("if (!f->closed ||", "if ("),
            "key-without-scalars": ("digest_read(&d, &launch, params);", ""),
            "key-without-shape": (
                "digest_word(&d, (uint64_t)l->grid[n] << 32 | l->block[n]);",
                ";",
            ),
            "key-without-code": (
                "digest_word(&d, f->identity.a);\n\tdigest_word(&d, f->identity.b);",
                "",
            ),
            "key-without-globals": ("n < f->variable_count; n++)", "n < 0; n++)"),
            "address-that-matters-forgotten": ("w->use & PROXY_VALUE ? word :", ""),
            "atomics-are-ordered": ("(use & PROXY_ATOMIC ? REACH_UNORDERED : 0)", "0"),
            "copies-all-alike": (
                "content_of_bytes(host + from, width)",
                "content_of_bytes(host, 0)",
            ),
            "fills-all-alike": (
                "versions_fill(f->value, f->element);\n\tfor (",
                "versions_fill(7, 1);\n\tfor (",
            ),
            "collectives-all-alike": ("digest_word(&d, p.number++);", ""),
            "every-rank-gets-the-first-part": ("*from = o->count * p->index;", ""),
            "every-rank-is-the-root": ("return root ? o->count : 0;", "return o->count;"),
        },
    },
    "proxy/core/memory/content.c": {
        CONTENTS: {
            "one-version-not-read": (
                "versions_absorb(&m->versions, part.addr, part.bytes, d);",
                "",
            ),
            "distance-not-seen": ("digest_word(d, reach->addr - b->addr);", ""),
            "elsewhere-is-believed": (
                "f->known &= !(bounded && reaches_other_buffer(reach, bound, b));",
                "(void)reaches_other_buffer;",
            ),
            "memory-leads-nowhere": ("if (uses[n] == REACH_WRITTEN && !bounded)", "if (0)"),
            "beyond-the-end-is-nothing": (
                "else if (uses[n] == REACH_WRITTEN && f->known)",
                "else if (0)",
            ),
            "only-its-range-is-unknown": (
                "if (f->writes_outside && !f->trusted)\n\t\t\tpages_unknown(m, range);\n\t\telse ",
                "(void)pages_unknown;\n\t\t",
            ),
            "what-is-written-stays-as-it-was": ("if (!(range->use & REACH_WRITTEN))", ""),
            "parts-described-by-others": ("bool described = false;", "bool described = f->count;"),
            "results-all-alike": ("range * RF_HEAP_BYTES", "0"),
        },
        OPAQUE: {
            "pages-unknown-all-the-same": (
                "if (f->writes_outside && !f->trusted)",
                "if (f->writes_outside)",
            ),
        },
    },
    "proxy/core/crosscheck/pairs.c": {
        CROSSCHECK: {
            "not-compared": (
                ("if (there->pair.sum[0] != pair->sum[0] || there->pair.sum[1] != pair->sum[1]) {"),
                "if (0) {",
            ),
            "nothing-is-kept": ("there->used = ++p->clock;", "there->used = 0;"),
        },
        PAIRS: {
            "half-a-digest": ("x.a == y.a && x.b == y.b", "x.a == y.a"),
            "half-a-checksum": ("|| there->pair.sum[1] != pair->sum[1]", ""),
            "other-half-of-a-checksum": ("there->pair.sum[0] != pair->sum[0] ||", ""),
            "any-communicator": ("return x->key == y->key && ", "return "),
            "any-number": (" && x->number == y->number;", ";"),
            "who-had-it-is-who-has-it": ("*other = there->pair.who;", "*other = pair->who;"),
            "who-was-first-stays": ("\tthere->pair.who = pair->who;\n", ""),
            "any-device": ("there->pair.who.device == who->device &&", ""),
            "any-chunk": ("there->pair.who.chunk == who->chunk &&", ""),
            "nowhere-is-a-chunk": ("who->chunk != NO_CHUNK &&", ""),
            "newest-goes": ("if (set[i].used < found->used)", "if (set[i].used > found->used)"),
            "one-of-two-places": (
                "for (uint32_t i = 0; set && i < WAYS; i++)",
                "for (uint32_t i = 0; set && i < WAYS - 1; i++)",
            ),
            "first-come-first-gone": ("\tthere->used = ++p->clock;\n", ""),
        },
    },
    "proxy/core/crosscheck/check.c": {
        CROSSCHECK: {
            "digest-of-nothing": (
                "content_absorb(m, who->addr, who->bytes, &d);",
                "(void)m, (void)who;",
            ),
            "never-looked-at": ("c->state = CHECK_WAITS;", "return false;"),
            "always-the-same-pages": ("c->looks |= part_of(round);", "c->looks |= part_of(0);"),
            "copies-of-several-are-skipped": (
                "(p->chunk || p->in_image || p->common)",
                "(p->chunk || p->in_image)",
            ),
            "stopped-again-and-again": (
                "return c->every && c->fruitless >= FRUITLESS_MAX;",
                "return 0;",
            ),
        },
    },
    "proxy/core/loop/alarm.c": {
        CROSSCHECK: {
            "not-told-on": ("send_pair(j, 0, MESSAGE_PAIR, pair, &none);", "(void)none;"),
            "others-are-not-told": ("send_pair(j, n, MESSAGE_ALARM, pair, &other);", ";"),
            "shares-all-the-same": (
                "memory_distrust(&j->world.ranks[n]->memory);\n\tsnprintf",
                ";\n\tsnprintf",
            ),
            "shares-where-it-moves": ("if (j->crosscheck.count)\n", "if (0)\n"),
        },
        OPAQUE: {
            "other-devices-do-not-hear": (
                "peer_send(j->peer, n, PEER_CROSSCHECK, &m);\n\tnote_dissent",
                ";\n\tnote_dissent",
            ),
        },
    },
    "proxy/core/loop/saved.c": {
        CROSSCHECK: {
            "forgotten-where-it-moves": ("crosscheck_restore_alarm(r->job, s->text);\n", "\n"),
        },
    },
    "proxy/core/queue/squash.c": {
        CROSSCHECK: {
            "squashed-all-the-same": ("!r->memory.distrusted &&", ""),
        },
    },
    "proxy/core/queue/reuse.c": {
        CROSSCHECK: {
            "there-all-the-same": ("!r->memory.distrusted &&", ""),
        },
    },
    "proxy/core/opaque/launches.c": {
        OPAQUE: {
            "one-rank-is-enough": ("return b->count && b->count == b->voters;", "return b->count;"),
            "once-is-enough": ("#define HOLDS 2u", "#define HOLDS 1u"),
            "effects-not-compared": (
                "if (b->count && !same_version(b->effect, effect)) {",
                "if (0) {",
            ),
            "never-measured-again": (" || now % every == 0)", ")"),
            "each-rank-counts-for-itself": (
                "if (!it->count || number > it->numbers[(it->count - 1) % RECENT])",
                "if (1)",
            ),
            "reads-what-each-has": ("parts_intersect(&b->before, &m->before);", ";"),
            "reads-nothing": ("ranges_add(&it->reads, same) &&", ""),
            "dissent-is-kept-quiet": ("\t\treturn was;", "\t\treturn false;"),
            "strays-are-forgotten": (
                "ranges_add_one(&s->writes, page_addr(pages[i]), RF_CHUNK_BYTES) &&",
                "",
            ),
        },
    },
    "proxy/core/opaque/measure.c": {
        OPAQUE: {
            "contents-have-no-versions": ("note_all(memory, &m->it);", "(void)note_all;"),
            "one-version-for-all": (
                "digest_word(&d, p->sum[0]);\n\t\tdigest_word(&d, p->sum[1]);\n",
                "",
            ),
        },
    },
    "proxy/core/queue/opaque_launch.c": {
        OPAQUE: {
            "key-without-parameters": (
                "digest_bytes(&d, i->data, i->kernel.launch.param_bytes);",
                "",
            ),
            "trusted-while-it-is-measured": (
                "if (r->measure.state && r->measure.item == i)",
                "if (0)",
            ),
            "trusted-all-the-same": ("!r->memory.distrusted &&", ""),
        },
    },
    "proxy/core/loop/opaque_turn.c": {
        OPAQUE: {
            "nobody-hears": ("crosscheck_dissent(r->job, r->measure.name, &dissent);", ";"),
        },
    },
    "proxy/core/memory/transfer.c": {
        RESULTS: {
            "edges-are-left-out": ("if (!is_there(t, at)) {\n", "if (0) {\n"),
            "copied-over-what-others-have": (
                "if (!is_there(t, at) && !may_write(t, at, next - at))",
                "if (0)",
            ),
            "an-operand-begins-anew": (
                "memory_resolve(m, at.addr + t->done,",
                "memory_resolve(m, at.addr,",
            ),
            "as-far-as-the-first-lies-together": ("n = n < other ? n : other;", "(void)other;"),
            "all-parts-of-a-sum-go-to-its-beginning": ("{dst.space, dst.addr + t->done};", "dst;"),
            "what-a-failed-rank-gave-is-added": ("any |= (t->memory", "any |= 0 && (t->memory"),
            "nor-is-the-second-looked-at": ("(t->source && failed(", "(0 && failed("),
        },
    },
    "proxy/core/collective/shape.c": {
        RESULTS: {
            "a-gathering-is-handed-in-part": ("return bytes * nranks;", "return bytes;"),
            "parts-are-handed-as-the-whole": ("default: return 0;\n", "default: return bytes;\n"),
        },
    },
    "proxy/core/collective/op.c": {
        RESULTS: {
            "who-receives-elsewhere-is-left-out": (
                "\t\tif (op->calls[k].recv == op->calls[seat].recv) {",
                "\t\t{",
            ),
        },
    },
    "proxy/core/loop/job_io.c": {
        RESULTS: {
            "nothing-is-let-go-of": (
                "if (j->world.ranks[rank])\n\t\tmemory_forget(",
                "if (0)\n\t\tmemory_forget(",
            ),
        },
    },
    "proxy/core/collective/piece.c": {
        RESULTS: {
            "nothing-is-handed": ("if (call->receiver == i)", "if (1)"),
        },
    },
    "proxy/core/loop/slice.c": {
        SLICES: {
            "never-relents": ("\tp->device.yield_relaxed = true;\n", ""),
            "as-soon-each-time": ("\ts->patience_ns *= 2;\n", ""),
            "relents-for-ever": (
                "p->device.yield_relaxed && holds && rank_runs_marked(p->device.active)",
                "p->device.yield_relaxed && holds",
            ),
            "sleeps-over-it": (
                "\tif (s->blocked_since_ns && !p->device.yield_relaxed)\n",
                "\tif (0)\n",
            ),
            "over-before-it-began": ("r->counters.kernels != p->slice.kernels_before ||", "1 ||"),
            "some-never-have-a-turn": (
                "p->device.memory.turns - since > 2ull * p->device.rank_count",
                "0",
            ),
            "one-after-the-other": ("active->rank ^ apart", "(active->rank + apart) % places"),
            "room-is-waited-for": ("\t\tmemory_cancel(&s->target->memory);", "\t\t;"),
            "nobody-is-prepared-before-a-call": ("ready_before_collective(active) : 0", "0 : 0"),
        },
    },
    "proxy/core/queue/item.c": {
        SLICES: {
            "everything-goes-on": ("device_submits(d, s->head == i)", "device_submits(d, true)"),
        },
    },
}
