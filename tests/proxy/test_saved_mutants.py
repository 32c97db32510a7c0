"""Faults seeded into what is saved of a rank and read again: tests/proxy/test_saved.py must notice
each."""

from __future__ import annotations

from barrier.mutants import Mutant

from support.seeding import seeded

SAVED = [
    Mutant("kernels-not-counted-on", "s->kernels = r->counters.kernels;", ""),
    Mutant("collectives-not-counted-on", "s->collectives = r->counters.collectives;", ""),
    Mutant("records-not-counted-on", "s->records = r->intake.records;", ""),
    Mutant("switches-not-counted-on", "s->switches = r->counters.switches;", ""),
    Mutant("squashed-not-counted-on", "s->squashed = r->counters.squashed;", ""),
    Mutant("spared-not-counted-on", "s->spared = r->memory.counted.spared;", ""),
    Mutant("copies-not-counted-on", "s->copies = r->memory.counted.copies;", ""),
    Mutant("unforeseen-not-counted-on", "s->unforeseen = r->memory.counted.unforeseen;", ""),
    Mutant("error-forgotten", "s->async_error = r->async_error;", ""),
    Mutant("its-text-forgotten",
           "memcpy(s->error_text, r->error_text, sizeof s->error_text);", ""),
    Mutant("another-rank", "s->rank != r->rank || ", ""),
    Mutant("another-world", "s->world_size != r->job->world_size ||", ""),
    Mutant("another-place-in-the-ring", " ||\n\t    s->tail != r->ring.tail.bytes)", ")"),
    Mutant("requests-counted-anew", "ring_from(r, s->seq);", ""),
    Mutant("call-site-forgotten", "s->call_site = b->call_site;", ""),
    Mutant("not-stable-any-more", "s->stable = b->stable;", ""),
    Mutant("a-page-beyond-the-heap", "s->chunk >= HEAP_PAGES || ", ""),
    Mutant("a-page-without-a-buffer", " || !r->memory.pages[s->chunk].buffers", ""),
    Mutant("versions-forgotten",
           "int error = versions_load(&r->memory.versions, s + 1, s->bytes);", "int error = 0;"),
    Mutant("flags-of-a-stream", "s->flags = from->flags;\n\ts->priority", "s->priority"),
    Mutant("priority-of-a-stream", "s->priority = from->priority;", ""),
    Mutant("streams-without-end", "r->queue.stream_count >= STREAMS_MAX || ", ""),
    Mutant("a-stream-twice", " || table_has(&r->objects, s->id))\n\t\treturn CU_INVALID_VALUE;\n"
           "\treturn stream_new", ")\n\t\treturn CU_INVALID_VALUE;\n\treturn stream_new"),
    Mutant("never-recorded", "s->recorded = from->last != NULL;", "s->recorded = false;"),
    Mutant("recorded-now", "from->last ? w->now_ns - from->last->time_ns : 0", "0"),
    Mutant("flags-of-an-event", "s->flags = from->flags;\n\treturn true;\n}\n\n"
           "static int restore_event", "return true;\n}\n\nstatic int restore_event"),
    Mutant("where-variables-lie", "s->globals_addr = m->globals_addr;", ""),
    Mutant("a-hash-without-end", " || s->hash[64])", ")"),
    Mutant("more-image-than-there-is", "s->image_bytes > s->r.bytes - sizeof *s ||", ""),
    Mutant("parameters-of-a-function", "s->param_bytes = from->param_bytes;", ""),
    Mutant("threads-of-a-function", "s->max_threads = from->max_threads;", ""),
    Mutant("a-longer-name-than-there-is", "!m || s->name_bytes > s->r.bytes - sizeof *s", "!m"),
    Mutant("few-communicators", "!bytes && room <= COMMS_BYTES_MAX; room *= 4",
           "!bytes && room <= 4096; room *= 4"),
    Mutant("another-communicator", "!n || key != s->key", "!n"),
    Mutant("collectives-issued-anew", "s->issued = from->issued;", ""),
    Mutant("handles-twice", "return twice ? CU_INVALID_VALUE", "return 0 ? CU_INVALID_VALUE"),
    Mutant("alarms-forgotten", "guard_known(r->job, s->text);", ""),
    Mutant("an-alarm-without-end",
           "if (s->text[sizeof s->text - 1])\n\t\treturn CU_INVALID_VALUE;", ""),
]  # fmt: skip

test_seeded_faults_fit_the_source, test_seeded_faults_are_noticed = seeded(
    [("loop/saved.c", each) for each in SAVED],
    "tests/proxy/test_saved.py",
)
