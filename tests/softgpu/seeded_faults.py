"""Faults seeded into read-only mappings of both kinds of devices.

Chance detects some of them: other programs each time.
"""

from __future__ import annotations

from support.seeding import Table

BY_CHANCE = "--hypothesis-profile=default"
NVIDIA = ("tests/nvidia/test_read_only.py", BY_CHANCE)
SOFT = (
    "tests/nvidia/test_read_only.py",
    "tests/softgpu/test_read_only.py",
    "tests/softgpu/test_device.py",
    "tests/softgpu/test_own_beneath.py",
    BY_CHANCE,
)

TABLE: Table = {
    "proxy/hal/soft/unforeseen.c": {
        SOFT: {
            "copy-that-nobody-hears-of": ("\tlist_copy(space, chunk, page);", ""),
            "copy-without-content": ("return fill_chunk(device, chunk, at) &&", "return"),
            "copy-of-no-chunk": ("MAP_SHARED | MAP_FIXED", "MAP_PRIVATE | MAP_FIXED"),
            "copy-of-the-page-before": (
                "space->base + page * RF_CHUNK_BYTES, chunk",
                "space->base + (page - 1) * RF_CHUNK_BYTES, chunk",
            ),
            "one-copy-is-told": (
                "space->taken_copies = atomic_load(&entry->next);",
                "space->taken_copies = 0;",
            ),
        },
    },
    "proxy/hal/soft/space.c": {
        SOFT: {
            "all-is-writable": (
                "return writable ? PROT_READ | PROT_WRITE : PROT_READ;",
                "return PROT_READ | PROT_WRITE;",
            ),
            "one-of-many-is-protected": (
                "mprotect(at, bytes, access_of",
                "mprotect(at, RF_CHUNK_BYTES, access_of",
            ),
            "copies-do-not-count": ("\tatomic_fetch_add(&device->chunks_in_use, 1);", ""),
            "copies-are-lost": ("while (soft_space_copied(space, &addr, &chunk))", "while (0)"),
            "chunks-keep-their-content": (
                "if (fallocate(device->memfd,",
                "if (0 && fallocate(device->memfd,",
            ),
            "small-pages": ("if (entry->huge ||", "if (true ||"),
            "pages-for-what-is-not-touched": (
                "!writable || !(entry->overwritten || entry->unzeroed)",
                "!writable",
            ),
            "zeros-are-not-written": ("memset(at, 0, RF_CHUNK_BYTES);", ""),
            "zeros-are-written-each-time": (
                "RF_CHUNK_BYTES);\n\t\tentry->unzeroed = false;",
                "RF_CHUNK_BYTES);",
            ),
            "no-zeros-where-none-may-write": ("\t\tzero_chunk(space->device, chunk);\n", ""),
            "zeros-while-others-read": ("chunk, true, false);", "chunk, true, true);"),
        },
    },
    "proxy/hal/soft/fault.c": {
        SOFT: {
            "copies-are-unforeseen-too": ("!self->kernel ||", ""),
        },
    },
    "proxy/hal/nvidia/issue.c": {
        NVIDIA: {
            "copies-may-write": ("w->copy.dst_pitch, true)", "w->copy.dst_pitch, false)"),
            "fills-may-write": ("w->fill.pitch, true)", "w->fill.pitch, false)"),
        },
    },
    "proxy/hal/nvidia/sums.c": {
        NVIDIA: {
            "sums-may-write": ("i == 0,", "false,"),
        },
    },
    "proxy/hal/nvidia/gemm.c": {
        NVIDIA: {
            "products-may-write": (
                "&g->d, g->m, g->n, g->type_cd, WRITTEN)",
                "&g->d, g->m, g->n, g->type_cd, READ)",
            ),
            "gradients-of-biases-may-write": ("g->flags & SUMMED ? WRITTEN : READ", "READ"),
            "kept-matrices-may-be-written": ("g->flags & RF_GEMM_KEEP ? WRITTEN : READ", "READ"),
        },
    },
    "proxy/hal/nvidia/space.c": {
        NVIDIA: {
            "the-window-is-writable": ("!(device->window[from] & CUDA_READ_ONLY)", "true"),
            "neighbours-get-the-same": (
                "(!changes || (wanted ^ device->window[run]) & CUDA_READ_ONLY)",
                "(!changes)",
            ),
            "the-window-stays-as-it-was": (
                "device->window[i] != wanted;",
                "(device->window[i] ^ wanted) & ~CUDA_READ_ONLY;",
            ),
        },
    },
}
