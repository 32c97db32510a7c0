"""Faults seeded into NCCL between devices: a test of three proxies over the fake driver detects
each."""

from __future__ import annotations

from support.seeding import Table

_NCCL = "tests/nvidia/test_nccl.py::"
BITS = _NCCL + "test_the_sums_are_those_of_nccl[[0, 1]]"
HANGS = _NCCL + "test_all_devices_use_the_tree_if_one_cannot_use_nccl[init hangs]"
WITHOUT = _NCCL + "test_all_devices_use_the_tree_if_one_cannot_use_nccl[one without]"
KILLED = _NCCL + "test_a_proxy_that_is_killed_fails_its_jobs_and_no_other[a sum that hangs]"
FAILS = _NCCL + "test_a_library_that_fails_fails_the_job_and_says_so"

TABLE: Table = {
    "proxy/hal/nvidia/nccl.c": {
        BITS: {
            "a-call-in-progress-is-not-awaited": (
                "while (result == IN_PROGRESS && !atomic",
                "while (0 && !atomic",
            ),
            "sums-end-when-they-begin": (
                "uint64_t done = atomic_load(l->counter);",
                "uint64_t done = l->issued;",
            ),
            "destroyed-without-an-end": (
                "settle(l, nccl.ncclCommFinalize(l->communicator), now_ns() + CLOSE_NS)",
                "nccl.ncclCommDestroy(l->communicator)",
            ),
        },
        HANGS: {
            "connecting-has-no-limit": ("(!until || now_ns() < until)", "(until || !until)"),
        },
        KILLED: {
            "what-is-cancelled-goes-on": (
                "atomic_load(&l->stopping) && l->communicator)",
                "atomic_load(&l->stopping) && 0)",
            ),
        },
        FAILS: {
            "a-failed-call-counts": (
                '\t\tfail_call(l, "ncclAllReduce", result);\n\t\treturn;\n\t}\n\tif',
                "\t\tl->issued += 0;\n\t}\n\tif",
            ),
        },
    },
    "proxy/hal/nvidia/libraries.c": {
        BITS: {
            "nvidia-s-own-is-taken-for-ours": (
                'dlsym(handle, "api_nccl_any")',
                'dlsym(handle, "pncclAllReduce")',
            ),
        },
    },
    "proxy/core/loop/job.c": {
        KILLED: {
            "a-failed-job-waits-for-its-sums": (
                "\tif (j->world.coll)\n\t\tcoll_links_end(j->world.coll);\n",
                "",
            ),
        },
        BITS: {
            "links-are-not-looked-at": (
                "if (coll_links_turn(j->world.coll))",
                "if (0 && coll_links_turn(j->world.coll))",
            ),
        },
    },
    "proxy/epochs.py": {
        BITS: {
            "the-level-stays-here": ('if p.determinism == "D0":', 'if p.determinism == "D3":'),
        },
    },
    "proxy/core/loop/job_links.c": {
        WITHOUT: {
            "the-reason-is-lost": (
                'sizeof j->links.why_not, "%s", why_not);',
                'sizeof j->links.why_not, "%s", "");',
            ),
        },
    },
}
