"""Faults seeded into calls of NVIDIA's libraries (cuFFT, cuSOLVER, cuBLAS): a test of them detects
each."""

from __future__ import annotations

from support.seeding import Table

_LIBRARIES = "tests/nvidia/test_libraries.py::"
LAYOUTS = _LIBRARIES + "test_transforms_of_any_layout_are_those_of_numpy"
ONCE = _LIBRARIES + "test_a_plan_is_made_once"
LARGER = _LIBRARIES + "test_a_gpu_that_needs_a_larger_work_area_gets_one"
STRAY = _LIBRARIES + "test_memory_that_is_not_the_ranks_fails_it[7]"
ANSWER = _LIBRARIES + "test_an_answer_goes_to_memory_of_the_rank_only"
LISTED = _LIBRARIES + "test_functions_that_are_not_listed_are_not_called"
DESCRIPTOR = _LIBRARIES + "test_a_descriptor_is_what_the_program_has_set[0]"
FOLDED = _LIBRARIES + "test_folded_and_moved_the_results_are_the_same"

_PRODUCTS = "tests/nvidia/test_own_products.py::"
AS_IT_IS = _PRODUCTS + "test_each_call_of_cublas_is_made_as_it_is"
PREFERENCE = _PRODUCTS + "test_cublaslt_gets_the_programs_workspace_and_preference"
ASKED_ONCE = _PRODUCTS + "test_the_heuristic_is_asked_once_for_equal_products[False]"
NO_ALGORITHM = _PRODUCTS + "test_without_an_algorithm_cublaslt_chooses_in_the_call"
NOT_ITS_OWN = _PRODUCTS + "test_a_workspace_that_is_not_the_ranks_fails_it[0-1]"

BUILTINS = _LIBRARIES + "test_nvrtcs_builtins_are_loaded_before_what_needs_them"
CUT_OFF = _LIBRARIES + "test_a_library_that_cannot_be_loaded_says_why[part]"

TABLE: Table = {
    "proxy/hal/nvidia/libraries.c": {
        CUT_OFF: {"cut-off-library-is-loaded": ("if (is_cut_off(path))", "if (0)")},
        BUILTINS: {"nvrtc-without-its-builtins": ("\t\topen_builtins(folder);", "\t\t;")},
    },
    "proxy/hal/nvidia/algorithms.c": {
        ASKED_ONCE: {
            "asked-for-each-place": (
                "q.g.stream = q.g.a.addr = q.g.b.addr = q.g.c.addr = q.g.d.addr = 0;",
                "q.g.stream = q.g.a.addr = q.g.b.addr = q.g.c.addr = 0;",
            ),
            "one-algorithm-for-all-alignments": (
                "memcmp(&(*at)->question, question, sizeof *question)",
                "memcmp(&(*at)->question, question, offsetof(struct question, aligned))",
            ),
        },
        PREFERENCE: {
            "no-preferred-workspace": ("k->how ? k->how->most_bytes : 0", "0"),
        },
    },
    "proxy/hal/nvidia/cublas.c": {
        AS_IT_IS: {
            "b-transposed-as-a": (
                "how->op[0],\n\t\t\t      how->op[1],",
                "how->op[0],\n\t\t\t      how->op[0],",
            ),
            "no-workspace": ("if (of->workspace)", "if (!of->workspace)"),
            "scalars-in-host-memory": ("call->g.flags & RF_GEMM_SCALARS ? 1 : 0", "0"),
        },
    },
    "proxy/hal/nvidia/cublaslt.c": {
        NO_ALGORITHM: {
            "an-algorithm-that-the-program-does-not-have": (
                "bool without = how && !how->aligned[0];",
                "bool without = false;",
            ),
        },
    },
    "proxy/hal/nvidia/gemm.c": {
        NOT_ITS_OWN: {
            "any-workspace": (
                "return !how->workspace || is_mapped(",
                "return !how->workspace || !is_mapped(",
            ),
        },
    },
    "proxy/hal/nvidia/fft.c": {
        LAYOUTS: {
            "layouts-as-if-packed": ("f->embedded ? out : NULL", "NULL"),
        },
        ONCE: {
            "one-plan-for-all-sizes": (
                "memcmp(&(*at)->fft, fft, sizeof *fft)",
                "memcmp(&(*at)->fft, fft, sizeof fft->rank)",
            ),
            "plans-that-stay": (
                "drop_beyond(device, PLANS_MAX);",
                "drop_beyond(device, UINT32_MAX);",
            ),
        },
        LARGER: {
            "a-work-area-that-is-too-small": (
                "!status && plan->area_bytes > call.area_bytes",
                "!status && plan->area_bytes < call.area_bytes",
            ),
        },
    },
    "proxy/hal/nvidia/cusolver.c": {
        DESCRIPTOR: {
            "descriptors-as-the-library-makes-them": (
                "slots[0] & RF_JACOBI_SWEEPS",
                "slots[0] & 128",
            ),
        },
    },
    "proxy/hal/nvidia/calls.c": {
        STRAY: {
            "addresses-of-anything": (
                "address && !nvidia_space_has(",
                "!address && !nvidia_space_has(",
            ),
        },
        ANSWER: {
            "answers-to-anywhere": (
                "nvidia_space_resolve(space, to, true, &at) < slots * sizeof *answer",
                "(at = to, !space)",
            ),
        },
        LISTED: {
            "functions-of-any-library": (
                (
                    "(strcmp(library_names[call->library], library) != 0 ||\n"
                    "\t\t\t\t\tstrcmp(call->name, name) != 0)"
                ),
                "strcmp(call->name, name) != 0 + !library",
            ),
        },
        FOLDED: {
            "results-in-another-order": (
                "(uint64_t)(uintptr_t)&a->outs[a->out_count++]",
                "(uint64_t)(uintptr_t)&a->outs[1 - a->out_count++]",
            ),
        },
    },
}
