"""Faults seeded into calls of cuBLAS's routines: a test of them detects each."""

from __future__ import annotations

from support.seeding import Table

_ROUTINES = "tests/nvidia/test_routines.py::"
FACTOR = _ROUTINES + "test_a_factor_is_where_the_pointer_mode_says[False]"
FACTOR_ON_DEVICE = _ROUTINES + "test_a_factor_is_where_the_pointer_mode_says[True]"
SETTINGS = _ROUTINES + "test_a_call_has_the_programs_modes_and_workspace"
CHANGED = _ROUTINES + "test_numbers_of_the_host_that_change_come_back"
STRAY = _ROUTINES + "test_memory_that_is_not_the_ranks_fails_it"
PROGRAMS = _ROUTINES + "test_programs_get_nvidias_routines[SZ]"

LT = _ROUTINES + "test_products_and_transformations_that_only_nvidias_cublaslt_has"

TABLE: Table = {
    "proxy/hal/nvidia/cublaslt_own.c": {
        LT: {
            "no-order-of-a-layout": ("if (order != CUBLASLT_ORDER_COL)", "if (0 && order)"),
            "no-step-of-a-layout": ("if (count == 1)\n\t\treturn;", "return;"),
            "one-half-of-a-factor": (
                "memcpy(aligned, sent, RF_NUMBER_SLOTS * sizeof *sent);",
                "memcpy(aligned, sent, sizeof *sent), aligned[1] = 0;",
            ),
            "one-attribute-of-a-descriptor": ("*i >= RF_LT_ATTRIBUTES ||", "*i >= 2 ||"),
        },
    },
    "interpose/client/api/cublaslt_remote.c": {
        LT: {
            "factors-of-the-host": ("*on_device = address;", "*on_device = address = false;"),
        },
    },
    "interpose/client/api/cublaslt.c": {
        LT: {
            "scales-that-are-ignored": (
                "if (d->set >> foreign[i] & 1)",
                "if (d->set >> foreign[i] & 2 && 0)",
            ),
        },
    },
    "proxy/hal/nvidia/cublas.c": {
        SETTINGS: {
            "no-target-of-sms": (".sm_count = (int)slots[1]", ".sm_count = (int)slots[1] * 0"),
            "no-workspace-of-a-routine": (
                ".workspace = slots[2]",
                ".workspace = slots[2] * 0",
            ),
            "no-atomics": ("slots[0] >> RF_BLAS_ATOMICS & 1", "slots[0] >> RF_BLAS_ATOMICS & 2"),
        },
        FACTOR_ON_DEVICE: {
            "the-hosts-pointer-mode": ("slots[0] & RF_BLAS_ON_DEVICE ? 1 : 0", "0"),
        },
    },
    "proxy/hal/nvidia/calls.c": {
        FACTOR: {
            "an-address-in-place-of-a-number": (
                "a->on_device ? *slots : (uint64_t)(uintptr_t)number",
                "a->on_device || *slots ? *slots : (uint64_t)(uintptr_t)number",
            ),
        },
        CHANGED: {
            "numbers-as-they-were-sent": (
                "memcpy(to, a->numbers[number], rf_outs_of(*kind) * sizeof *to);",
                "memset(to, 0, rf_outs_of(*kind) * sizeof *to);",
            ),
            "one-number-for-all": ('number += strchr("cCuU", *kind) != NULL;', ""),
        },
        f"{STRAY}[workspace]": {
            "any-workspace-of-a-routine": ("case 'b': return slots[2];", "case 'b': return 0;"),
        },
        f"{STRAY}[factor]": {
            "factors-at-any-address": ("return on_device ? *slots : 0;", "return 0;"),
        },
        f"{STRAY}[result]": {
            "results-at-any-address": ("case 'y': return *slots;", "return *slots;"),
        },
    },
    "interpose/client/api/remote.c": {
        PROGRAMS: {
            "no-place-for-a-result": ("s->result = s->count;", "s->result = 0;"),
            "results-that-are-not-stored": ("kinds[i] == 'y' && s->result", "kinds[i] == 'Y'"),
            "half-of-a-number": (
                "memcpy(to, (const void *)at, size);",
                "memcpy(to, (const void *)at, size / 2);",
            ),
            "no-wait-for-a-status": (
                "s.waits = checked && !atomic_load",
                "s.waits = checked && !!atomic_load",
            ),
            "numbers-that-change-on-the-device-only": (
                'strchr("uU", kinds[i]) && !numbers_on_device(s)',
                'strchr("uU", kinds[i]) && numbers_on_device(s) && 0',
            ),
        },
    },
    "interpose/client/api/blas.c": {
        PROGRAMS: {
            "checks-that-launch": ("if (blas_checking)\n\t\treturn", "if (0)\n\t\treturn"),
        },
    },
    "interpose/client/api/cublas.c": {
        PROGRAMS: {
            "pointers-always-of-the-host": (
                "h->modes[BLAS_POINTERS] ? RF_BLAS_ON_DEVICE : 0",
                "0",
            ),
        },
    },
}
