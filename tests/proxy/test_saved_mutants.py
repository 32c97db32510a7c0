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
    Mutant("its-text-forgotten", "memcpy(s->error_text, r->error_text, sizeof s->error_text);", ""),
    Mutant("another-rank", "s->rank != r->rank || ", ""),
    Mutant("another-world", "s->world_size != r->job->world.size ||", ""),
    Mutant("another-place-in-the-ring", " ||\n\t    s->tail != r->ring.tail.bytes)", ")"),
    Mutant("requests-counted-anew", "ring_from(r, s->seq);", ""),
    Mutant("call-site-forgotten", "s->call_site = b->call_site;", ""),
    Mutant("not-stable-any-more", "s->stable = b->stable;", ""),
    Mutant("a-page-beyond-the-heap", "s->chunk >= HEAP_PAGES || ", ""),
    Mutant("a-page-without-a-buffer", " || !r->memory.pages[s->chunk].buffers", ""),
    Mutant("a-page-of-nobody", " ||\n\t    s->lies_with >= r->job->world.size)", ")"),
    Mutant(
        "with-whom-it-lies-is-not-said",
        "s->lies_with = other ? other->rank : m->rank;",
        "s->lies_with = m->rank;",
    ),
    Mutant("that-it-lies-elsewhere-is-not-said", "w->elsewhere += other != NULL;", ""),
    Mutant(
        "versions-forgotten",
        "int error = versions_load(&r->memory.versions, s + 1, s->bytes);",
        "int error = 0;",
    ),
    Mutant("flags-of-a-stream", "s->flags = from->flags;\n\ts->priority", "s->priority"),
    Mutant("priority-of-a-stream", "s->priority = from->priority;", ""),
    Mutant("streams-without-end", "r->queue->stream_count >= STREAMS_MAX || ", ""),
    Mutant(
        "a-stream-twice",
        " || table_has(&r->objects, s->id))\n\t\treturn CU_INVALID_VALUE;\n\treturn stream_new",
        ")\n\t\treturn CU_INVALID_VALUE;\n\treturn stream_new",
    ),
    Mutant("never-recorded", "s->recorded = from->last != NULL;", "s->recorded = false;"),
    Mutant("recorded-now", "from->last ? w->now_ns - from->last->time_ns : 0", "0"),
    Mutant(
        "flags-of-an-event",
        "s->flags = from->flags;\n\treturn true;\n}\n\nstatic int restore_event",
        "return true;\n}\n\nstatic int restore_event",
    ),
    Mutant("where-variables-lie", "s->globals_addr = m->globals_addr;", ""),
    Mutant("a-hash-without-end", " || s->hash[64])", ")"),
    Mutant("more-image-than-there-is", "s->image_bytes > s->r.bytes - sizeof *s ||", ""),
    Mutant("parameters-of-a-function", "s->param_bytes = from->param_bytes;", ""),
    Mutant("threads-of-a-function", "s->max_threads = from->max_threads;", ""),
    Mutant("a-longer-name-than-there-is", "!m || s->name_bytes > s->r.bytes - sizeof *s", "!m"),
    Mutant(
        "few-communicators",
        "!bytes && capacity <= COMMS_BYTES_MAX; capacity *= 4",
        "!bytes && room <= 4096; room *= 4",
    ),
    Mutant("another-communicator", "!n || key != s->key", "!n"),
    Mutant("collectives-issued-anew", "s->issued = from->issued;", ""),
    Mutant("handles-twice", "return twice ? CU_INVALID_VALUE", "return 0 ? CU_INVALID_VALUE"),
    Mutant("alarms-forgotten", "crosscheck_known(r->job, s->text);", ""),
    Mutant(
        "an-alarm-without-end", "if (s->text[sizeof s->text - 1])\n\t\treturn CU_INVALID_VALUE;", ""
    ),
    Mutant("the-first-alarm-again", "g->alarms[i], sizeof", "g->alarms[0], sizeof"),
    Mutant("an-alarm-too-few", "i < g->count; i++", "i + 1 < g->count; i++"),
    Mutant("requests-begin-anew", "intake_from(r, s->records);", ""),
    Mutant("error-not-taken-over", "fault_from(r, s->async_error, s->error_text);", ""),
    Mutant(
        "chunks-of-which-nothing-is-there",
        "if (!other && !m->pages[m->live[i]].in_image)\n\t\t\tcontinue;",
        "",
    ),
    Mutant(
        "what-the-image-holds-is-zeros",
        "content_unknown(&r->memory, RF_DEV_BASE + s->chunk * RF_CHUNK_BYTES, RF_CHUNK_BYTES);",
        "",
    ),
    Mutant(
        "what-the-image-holds-is-not-known",
        "memory_image_holds(&r->memory, (uint32_t)s->chunk);",
        "",
    ),
    Mutant(
        "versions-that-cannot-be-are-a-want-of-memory",
        "error == ENOMEM ? CU_OUT_OF_MEMORY : error ? CU_INVALID_VALUE : CU_OK",
        "error ? CU_OUT_OF_MEMORY : CU_OK",
    ),
    Mutant("streams-that-every-rank-has", "if (o->id < RF_HANDLE_FIRST)\n\t\treturn true;", ""),
    Mutant("all-events-are-recorded", "if (s->recorded && !event_from", "if (!event_from"),
    Mutant("events-grow-younger", "now - s->age_ns", "now + s->age_ns"),
    Mutant("half-a-module-forgotten", "m->loaded ? 0 : m->image_bytes", "0"),
    Mutant("half-a-module-empty", "if (extra)\n\t\tmemcpy(s + 1, m->image, extra);", ""),
    Mutant("what-arrives-not-counted-on", "module_arrives(r, m);", ""),
    Mutant("half-a-module-is-loaded", "if (!m->hash[0])\n\t\treturn CU_OK;", ""),
    Mutant(
        "modules-stay-away",
        "return python_request_module(r, m, 0, 0) ? CU_OK : CU_OUT_OF_MEMORY;",
        "return CU_OK;",
    ),
    Mutant(
        "functions-stay-away",
        "return python_request_function(r, f, 0, 0) ? CU_OK : CU_OUT_OF_MEMORY;",
        "return CU_OK;",
    ),
    Mutant("unloaded-and-saved", "if (m->doomed)", "if (0)"),
    Mutant("a-function-of-what-was-unloaded", "if (from->module->doomed)", "if (0)"),
    Mutant(
        "shared-memory-of-a-function", "s->static_shared_bytes = from->static_shared_bytes;", ""
    ),
    Mutant(
        "a-function-is-nothing-before-it-is-compiled",
        "function_from(f, s->param_bytes, s->max_threads, s->static_shared_bytes);",
        "",
    ),
    Mutant(
        "communicators-beyond-their-record",
        "if (s->bytes > s->r.bytes - sizeof *s)\n\t\treturn CU_INVALID_VALUE;\n\tif (!coll",
        "if (!coll",
    ),
    Mutant("a-communicator-without-members", "if (!n || key != s->key)", "if (key != s->key)"),
    Mutant(
        "the-barrier-does-not-know-it",
        "barrier_comm(r->job->world.barrier, r->rank, s->key, members, n, s->issued);",
        "",
    ),
]

STATE = [
    Mutant("taken-up-though-part-lies-elsewhere", "if (h->elsewhere)", "if (0)"),
    Mutant(
        "how-much-lies-elsewhere-is-of-before",
        "h->elsewhere = w.elsewhere;",
        "h->elsewhere |= w.elsewhere;",
    ),
]

test_seeded_faults_fit_the_source, test_seeded_faults_are_noticed = seeded(
    [("loop/saved.c", each) for each in SAVED] + [("loop/state.c", each) for each in STATE],
    "tests/proxy/test_saved.py",
    "tests/proxy/test_saving.py",
)
