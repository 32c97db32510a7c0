"""Faults seeded into what is saved of a rank and read again."""

from __future__ import annotations

from support.seeding import Table

SAVED = ("tests/proxy/test_saved.py", "tests/proxy/test_saving.py")

TABLE: Table = {
    "proxy/core/loop/saved.c": {
        SAVED: {
            "kernels-not-counted-on": ("s->kernels = r->counters.kernels;", ""),
            "collectives-not-counted-on": ("s->collectives = r->counters.collectives;", ""),
            "records-not-counted-on": ("s->records = r->intake.records;", ""),
            "switches-not-counted-on": ("s->switches = r->counters.switches;", ""),
            "squashed-not-counted-on": ("s->squashed = r->counters.squashed;", ""),
            "spared-not-counted-on": ("s->not_swapped = r->memory.counted.not_swapped;", ""),
            "copies-not-counted-on": ("s->copies = r->memory.counted.copies;", ""),
            "unforeseen-not-counted-on": ("s->unforeseen = r->memory.counted.unforeseen;", ""),
            "error-forgotten": ("s->async_error = r->async_error;", ""),
            "its-text-forgotten": (
                'snprintf(s->error_text, sizeof s->error_text, "%.*s", RF_FAULT_BYTES - 1,',
                'snprintf(s->error_text, sizeof s->error_text, "%.*s", 0,',
            ),
            "another-rank": ("s->rank != r->rank || ", ""),
            "another-world": ("s->world_size != r->job->world.size ||", ""),
            "another-place-in-the-ring": (" ||\n\t    s->tail != r->ring.tail.bytes)", ")"),
            "requests-counted-anew": ("ring_from(r, s->seq);", ""),
            "call-site-forgotten": ("s->call_site = b->call_site;", ""),
            "not-stable-any-more": ("s->stable = b->stable;", ""),
            "a-page-beyond-the-heap": ("s->chunk >= HEAP_PAGES || ", ""),
            "a-page-without-a-buffer": (" || !r->memory.pages[s->chunk].buffers", ""),
            "a-page-of-nobody": (" ||\n\t    s->image_owner >= r->job->world.size)", ")"),
            "with-whom-it-lies-is-not-said": (
                "s->image_owner = other ? other->rank : m->rank;",
                "s->image_owner = m->rank;",
            ),
            "that-it-lies-elsewhere-is-not-said": ("w->elsewhere += other != NULL;", ""),
            "versions-forgotten": (
                "int error = versions_load(&r->memory.versions, s + 1, s->bytes);",
                "int error = 0;",
            ),
            "flags-of-a-stream": ("s->flags = from->flags;\n\ts->priority", "s->priority"),
            "priority-of-a-stream": ("s->priority = from->priority;", ""),
            "streams-without-end": ("r->queue->stream_count >= STREAMS_MAX || ", ""),
            "a-stream-twice": (
                (
                    " || table_has(&r->objects, s->id))\n\t\treturn CU_INVALID_VALUE;\n"
                    "\treturn stream_new"
                ),
                ")\n\t\treturn CU_INVALID_VALUE;\n\treturn stream_new",
            ),
            "never-recorded": ("s->recorded = from->last != NULL;", "s->recorded = false;"),
            "recorded-now": ("from->last ? w->now_ns - from->last->time_ns : 0", "0"),
            "flags-of-an-event": (
                "s->flags = from->flags;\n\treturn true;\n}\n\nstatic int restore_event",
                "return true;\n}\n\nstatic int restore_event",
            ),
            "where-variables-lie": ("s->globals_addr = m->globals_addr;", ""),
            "a-hash-without-end": (" || s->hash[64])", ")"),
            "more-image-than-there-is": ("s->image_bytes > s->r.bytes - sizeof *s ||", ""),
            "parameters-of-a-function": ("s->param_bytes = from->param_bytes;", ""),
            "threads-of-a-function": ("s->max_threads = from->max_threads;", ""),
            "a-longer-name-than-there-is": ("!m || s->name_bytes > s->r.bytes - sizeof *s", "!m"),
            "few-communicators": (
                "!bytes && capacity <= COMMS_BYTES_MAX; capacity *= 4",
                "!bytes && capacity <= 4096; capacity *= 4",
            ),
            "another-communicator": ("!n || key != s->key", "!n"),
            "collectives-issued-anew": ("s->issued = from->issued;", ""),
            "handles-twice": ("return twice ? CU_INVALID_VALUE", "return 0 ? CU_INVALID_VALUE"),
            "alarms-forgotten": ("crosscheck_restore_alarm(r->job, s->text);", ""),
            "an-alarm-without-end": (
                "if (s->text[sizeof s->text - 1])\n\t\treturn CU_INVALID_VALUE;",
                "",
            ),
            "the-first-alarm-again": ("g->alarms[i], sizeof", "g->alarms[0], sizeof"),
            "an-alarm-too-few": ("i < g->count; i++", "i + 1 < g->count; i++"),
            "requests-begin-anew": ("intake_from(r, s->records);", ""),
            "error-not-taken-over": ("fault_from(r, s->async_error, s->error_text);", ""),
            "chunks-of-which-nothing-is-there": (
                "if (!other && !m->pages[m->live[i]].in_image)\n\t\t\tcontinue;",
                "",
            ),
            "what-the-image-holds-is-zeros": (
                (
                    "content_unknown(&r->memory, RF_DEV_BASE + s->chunk * RF_CHUNK_BYTES, "
                    "RF_CHUNK_BYTES);"
                ),
                "",
            ),
            "what-the-image-holds-is-not-known": (
                "memory_image_holds(&r->memory, (uint32_t)s->chunk);",
                "",
            ),
            "versions-that-cannot-be-are-a-want-of-memory": (
                "error == ENOMEM ? CU_OUT_OF_MEMORY : error ? CU_INVALID_VALUE : CU_OK",
                "error ? CU_OUT_OF_MEMORY : CU_OK",
            ),
            "streams-that-every-rank-has": ("if (o->id < RF_HANDLE_FIRST)\n\t\treturn true;", ""),
            "all-events-are-recorded": ("if (s->recorded && !event_from", "if (!event_from"),
            "events-grow-younger": ("now - s->age_ns", "now + s->age_ns"),
            "half-a-module-forgotten": ("m->loaded ? 0 : m->image_bytes", "0"),
            "half-a-module-empty": ("if (extra)\n\t\tmemcpy(s + 1, m->image, extra);", ""),
            "what-arrives-not-counted-on": ("module_arrives(r, m);", ""),
            "half-a-module-is-loaded": ("if (!m->hash[0])\n\t\treturn CU_OK;", ""),
            "modules-stay-away": (
                "return python_request_module(r, m, 0, 0, 0) ? CU_OK : CU_OUT_OF_MEMORY;",
                "return CU_OK;",
            ),
            "functions-stay-away": (
                "return python_request_function(r, f, 0, 0) ? CU_OK : CU_OUT_OF_MEMORY;",
                "return CU_OK;",
            ),
            "unloaded-and-saved": ("if (m->doomed)", "if (0)"),
            "a-function-of-what-was-unloaded": ("if (from->module->doomed)", "if (0)"),
            "shared-memory-of-a-function": (
                "s->static_shared_bytes = from->static_shared_bytes;",
                "",
            ),
            "a-function-is-nothing-before-it-is-compiled": (
                "function_from(f, s->param_bytes, s->max_threads, s->static_shared_bytes);",
                "",
            ),
            "communicators-beyond-their-record": (
                (
                    "if (s->bytes > s->r.bytes - sizeof *s)\n\t\treturn CU_INVALID_VALUE;\n"
                    "\tif (!coll"
                ),
                "if (!coll",
            ),
            "a-communicator-without-members": ("if (!n || key != s->key)", "if (key != s->key)"),
            "the-barrier-does-not-know-it": (
                "barrier_comm(r->job->world.barrier, r->rank, s->key, members, n, s->issued);",
                "",
            ),
        },
    },
    "proxy/core/loop/state.c": {
        SAVED: {
            "taken-up-though-part-lies-elsewhere": ("if (h->elsewhere)", "if (0)"),
            "how-much-lies-elsewhere-is-of-before": (
                "h->elsewhere = w.elsewhere;",
                "h->elsewhere |= w.elsewhere;",
            ),
        },
    },
}
