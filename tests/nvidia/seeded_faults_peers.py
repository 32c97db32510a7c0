"""Faults seeded into collectives from GPU to GPU: a test of outboxes, or of three proxies over the
fake driver, detects each."""

from __future__ import annotations

from support.seeding import Table

_PEERS = "tests/nvidia/test_peers.py::"
BITS = _PEERS + "test_all_collectives_have_the_same_bits_and_none_goes_through_the_host"
COUNTED = _PEERS + "test_memory_of_outboxes_is_counted_and_given_back"
FAILS = _PEERS + "test_a_call_that_fails_leaves_nothing_and_may_be_repeated"
STRANGE = _PEERS + "test_memory_that_is_no_outbox_is_refused"
_PAIR = _PEERS + "test_a_pair_of_gpus_without_access_uses_host_memory"
ONE_WAY = f"{_PAIR}[one way]"
IMPORT = f"{_PAIR}[refused import]"
MEET = _PEERS + "test_jobs_that_meet_on_the_same_gpus_do_not_meet_in_memory"

TABLE: Table = {
    "proxy/core/memory/transfer.c": {
        BITS: {
            "a-reader-is-told-before-the-work-is-over": (
                "q->first->hal_seq <= completed)",
                "q->first->hal_seq <= completed + 1)",
            ),
        },
    },
    "proxy/core/collective/piece.c": {
        BITS: {
            "partial-sums-for-no-reader-in-particular": (
                "owner ? 0 : device_bit(plan->owner)",
                "owner ? 0 : ~0ull",
            ),
        },
    },
    "proxy/core/loop/outboxes.c": {
        IMPORT: {
            "a-failed-import-is-ignored": (
                "if (p->device.hal->outbox_open(p->device.opened, &found, a->error, "
                "a->error_bytes))\n\t\t\treturn;",
                "p->device.hal->outbox_open(p->device.opened, &found, a->error, a->error_bytes);",
            ),
        },
    },
    "proxy/core/loop/job.c": {
        MEET: {
            "outboxes-of-a-job-that-has-ended-are-kept": ("\toutboxes_close(j);\n", ""),
        },
    },
    "proxy/hal/nvidia/outbox.c": {
        ONE_WAY: {
            "access-is-not-asked-for": ("peer != device->ordinal &&\n", "peer < 0 &&\n"),
        },
        COUNTED: {
            "a-handle-is-not-released": (
                "\td->cuMemRelease(device->outbox_handles[slot]);\n",
                "",
            ),
        },
        f"{FAILS}[cuMemSetAccess-outbox_open]": {
            "a-mapping-without-access-is-left": (
                "\t\td->cuMemUnmap(place_of(device, i), CUDA_OUTBOX_BYTES);\n\t\treturn error;",
                "\t\treturn error;",
            ),
            "an-import-that-is-not-mapped-is-left": ("\t\td->cuMemRelease(handle);\n", "\t\t;\n"),
        },
        f"{FAILS}[cuMemMap-outbox_create]": {
            "a-descriptor-is-left": ("\t\tif (fd >= 0)\n\t\t\tclose(fd);\n", ""),
        },
        STRANGE: {
            "an-outbox-of-any-size": ("outbox->bytes != CUDA_OUTBOX_BYTES", "!outbox->bytes"),
        },
    },
    "proxy/hal/nvidia/hal.c": {
        COUNTED: {
            "memory-of-the-first-job-is-not-there": (
                "\tnvidia_outbox_prepare(device); /*",
                "\t/*",
            ),
        },
    },
}
