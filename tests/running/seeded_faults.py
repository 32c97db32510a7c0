"""Faults seeded into the line that stderr shows when a kernel fails."""

from __future__ import annotations

from support.seeding import Table

IGNORED = (
    "tests/running/test_failing_programs.py::"
    "test_a_program_that_ignores_errors_gets_no_results_without_a_kernel"
)
REFUSED = (
    "tests/running/test_failing_programs.py::"
    "test_a_kernel_with_a_refused_instruction_fails_its_rank"
)

MAPPED = "tests/running/test_behaviour.py::test_as_specified_folded_and_moved[expandable]"

TABLE: Table = {
    "interpose/client/issue/virtual_memory.c": {
        MAPPED: {
            "content-not-set-aside": ("\t\terror = copy_content(p, true);\n", "\t\t;\n"),
            "content-not-brought-back": (
                "error = copy_content(p, false);\n\tif (!error) {",
                ";\n\tif (!error) {",
            ),
            "unmapped-in-part": ("if (!p || p->at != addr)\n", "if (!p)\n"),
            "handles-not-counted": ("\t\tp->handles++;\n", ""),
            "memory-not-counted": ("error = memory_promise(bytes);", "error = memory_promise(0);"),
            "released-and-still-counted": ("\t\t\tmemory_unpromise(p->bytes);\n", "\t\t\t;\n"),
            "accessible-from-the-start": (
                "\t\tp->accessible = false;\n",
                "\t\tp->accessible = true;\n",
            ),
        },
    },
    "interpose/client/issue/memory.c": {
        MAPPED: {
            "copies-end-at-the-border": (
                "if (!a.mapped || !allocation_find",
                "if (true || !allocation_find",
            ),
            "mapped-memory-is-freed": ("(e->reservation != 0) != (kind >= FREE_MAPPED)", "false"),
            "pieces-are-not-joined": ("&placed, RF_ALLOC_JOINED)", "&placed, 0)"),
        },
    },
    "proxy/core/loop/saved.c": {
        MAPPED: {
            "pieces-apart-after-a-move": ("s->flags = b->joined ? RF_ALLOC_JOINED : 0;", ""),
        },
    },
    "interpose/client/api/pointers.c": {
        MAPPED: {
            "range-is-the-piece": ("(!mapped || a.mapped) &&", "!mapped &&"),
        },
    },
    "proxy/hal/soft/compiler/server.py": {
        (f"{IGNORED}[killed]",): {
            "failed-compilation-is-an-error-to-ignore": (
                'return {"code": UNKNOWN,',
                'return {"code": 218,',
            ),
        },
        (f"{IGNORED}[refused]",): {
            "refusal-is-a-failed-compilation": (
                'result = {"code": error.code,',
                'result = {"code": UNKNOWN,',
            ),
        },
    },
    "proxy/modules.py": {
        (REFUSED,): {
            "refused-kernel-is-an-error-to-ignore": (
                "UNKNOWN if fails else error.code",
                "error.code",
            ),
        },
        (
            "tests/running/test_behaviour.py",
            "-m",
            "slow or not slow",
            "-k",
            "forbidden and refused",
        ): {
            "text-of-the-program-fails-its-rank": ("if is_fatbin(image):", "if True:"),
        },
    },
    "proxy/core/rank/ring.c": {
        "tests/running/test_behaviour.py::test_a_fault_is_said_once_and_where": {
            "rest-of-its-text-lost": ('length > first ? text + first : ""', '""'),
        },
    },
    "proxy/hal/soft/print.c": {
        "tests/running/test_behaviour.py::test_a_fault_is_said_once_and_where": {
            "block-of-several-that-run-as-one": ("block->ctaid[0] + x / width", "block->ctaid[0]"),
        },
    },
}
