"""A fault seeded into versions of what is computed: a test of two types of device detects it."""

from __future__ import annotations

from support.seeding import Table

OTHER_TYPE = (
    "tests/nvidia/test_fleet.py::test_results_of_another_device_type_are_not_reused[compared]"
)

OWN = "tests/nvidia/test_machine_code.py::test_each_rank_has_its_own_variables"
CONSTANTS = (
    "tests/nvidia/test_machine_code.py::test_constants_are_copied_once_a_program_knows_an_address"
)
AGAIN = (
    "tests/nvidia/test_machine_code.py::"
    "test_variables_are_copied_to_the_driver_only_if_they_are_not_there"
)
WAITING = (
    "tests/nvidia/test_machine_code.py::"
    "test_launches_that_use_a_modules_variables_wait_for_each_other"
)
CROSSING = "tests/nvidia/test_machine_code.py::test_a_variable_may_cross_chunks"
CHOSEN = "tests/nvidia/test_machine_code.py::test_the_code_of_the_gpu_is_chosen"
COMPARED = (
    "tests/nvidia/test_machine_code.py::"
    "test_kernels_and_variables_are_those_of_the_ptx[parameters-90]"
)
EMPTY = "tests/nvidia/test_machine_code.py::test_objects_without_content_are_no_variables"

TOGETHER = "tests/nvidia/test_completions.py::test_works_are_reported_together[False]"
NO_ONE = "tests/nvidia/test_completions.py::test_launches_that_no_one_waits_for_are_launches_only"

_PINNED = "tests/nvidia/test_pinned.py::"
WHEREVER = _PINNED + "test_memory_that_a_client_uses_is_registered_wherever_it_is"
NEXT = _PINNED + "test_the_next_rank_at_these_addresses_gets_its_own"

_BLOCKS = "tests/nvidia/test_blocks.py::"
PARTED = _BLOCKS + "test_chunks_that_are_not_together_any_more_are_divided"
UNDER_WAY = _BLOCKS + "test_content_moves_when_copies_are_done"
CHANGING = _BLOCKS + "test_memory_that_changes_at_each_turn_stays_in_chunks"

ADDED = "tests/nvidia/test_device.py::test_memory_that_is_added_is_mapped_while_kernels_run"
ASKED = "tests/nvidia/test_fleet.py::test_calls_that_the_driver_answers"
REFUSED = "tests/nvidia/test_fleet.py::test_calls_that_other_devices_refuse"

TABLE: Table = {
    "proxy/hal/nvidia/tensor_map.c": {
        f"{ASKED}[tensor_maps]": {
            "tensor-at-another-address": (
                "(void *)(uintptr_t)m->addr;",
                "(void *)(uintptr_t)(m->addr + 64);",
            ),
            "tensor-map-not-returned": ("memcpy(out, &map, RF_TENSOR_MAP_BYTES);", ""),
        },
    },
    "interpose/client/api/tensor_maps.c": {
        f"{ASKED}[tensor_maps]": {
            "tensor-map-of-the-program-kept": (
                "\t\tmemcpy(map, reply.map, sizeof *map);\n",
                "\t\t;\n",
            ),
            "tensor-without-its-sizes": ("memcpy(m->dim, dim, rank * sizeof *dim);", ""),
        },
        f"{REFUSED}[tensor_maps-tensor maps (cuTensorMapEncodeTiled) are not supported by"
        " rankfold on]": {
            "tensor-map-refused-silently": ("if (error == NOT_SUPPORTED)", "if (0)"),
        },
    },
    "interpose/client/issue/clusters.c": {
        f"{ASKED}[clusters]": {
            "clusters-that-do-not-divide-the-grid": ("if (!side || grid[i] % side)", "if (!side)"),
            "large-clusters-without-leave": (
                "!error && blocks > PORTABLE_MAX && !f->large_clusters",
                "0",
            ),
            "leave-not-passed-on": ("m->large = f->large_clusters;", ""),
        },
    },
    "interpose/client/issue/launch.c": {
        f"{ASKED}[clusters]": {"clusters-not-sent": (".cluster = l->cluster};", "};")},
    },
    "proxy/hal/nvidia/blocks.c": {
        PARTED: {
            "content-of-a-divided-block-stays-there": (
                "error = copy_chunks(device, b, true);",
                "error = CUDA_SUCCESS;",
            ),
        },
    },
    "proxy/hal/nvidia/space.c": {
        ADDED: {
            "memory-is-unmapped-while-kernels-run": (
                "if (device->window[i] != entry &&\n\t\t    (device->window[i] ||",
                "if (device->window[i] != entry && entry &&\n\t\t    (device->window[i] ||",
            ),
        },
        CHANGING: {
            "a-change-of-a-region-is-not-seen": (
                "space->settled[place / CUDA_BLOCK_CHUNKS] = 0;",
                "",
            ),
        },
    },
    "proxy/core/loop/rank.c": {
        WHEREVER: {
            "pins-of-a-rank-that-comes-are-not-read": (
                "job->world.size <= RF_PINNED_SLOTS",
                "job->world.size > RF_PINNED_SLOTS",
            ),
        },
    },
    "proxy/hal/nvidia/pins.c": {
        NEXT: {
            "a-space-leaves-its-registrations": (
                "\tchange(space, wanted);\n",
                "\tif (!closing)\n\t\tchange(space, wanted);\n",
            ),
        },
    },
    "proxy/hal/nvidia/issue.c": {
        f"{ASKED}[clusters]": {
            "clusters-not-launched": ("\tif (cluster)\n", "\tif (0)\n"),
        },
        UNDER_WAY: {
            "content-moves-beneath-copies": (
                "idle &= nvidia_completed(s) == s->issued && !s->row && !s->column;",
                "idle &= true;",
            ),
        },
        TOGETHER: {
            "each-work-is-reported": (
                "s->issued - s->reported >= CUDA_REPORT_EVERY",
                "s->issued - s->reported >= 1",
            ),
        },
    },
    "proxy/core/queue/pump.c": {
        NO_ONE: {
            "each-work-is-awaited": ("each ? 0 : last", "0"),
        },
    },
    "proxy/hal/nvidia/variables.c": {
        OWN: {
            "variables-not-copied-back": (
                "if (!variables->all[i].constant)\n\t\t\tdone = copy(",
                "if (variables->all[i].constant)\n\t\t\tdone = copy(",
            ),
            "variables-of-the-last-rank": (
                "if (!variables->all[i].constant || variables->differ)",
                "if (variables->differ)",
            ),
        },
        CONSTANTS: {
            "constants-as-the-last-rank-left-them": (
                "variables->differ |= w->kernel.globals_known;",
                "variables->differ = w->kernel.globals_known;",
            ),
        },
        WAITING: {
            "variables-of-two-launches-at-once": (
                "if (variables->in_use)",
                "if (!variables->in_use)",
            ),
        },
        AGAIN: {
            "variables-copied-although-there": (
                "variables->number = w->kernel.globals_number;",
                "variables->number = 0;",
            ),
            "variables-that-a-program-wrote-not-copied": (
                "variables->number == w->kernel.globals_number &&\n\t    !w->kernel.globals_known)",
                "variables->number == w->kernel.globals_number)",
            ),
        },
        CROSSING: {
            "a-variable-begins-again-in-the-next-chunk": (
                "uint64_t own = globals + v->offset + done;",
                "uint64_t own = globals + v->offset;",
            ),
        },
    },
    "proxy/hal/nvidia/cubin.py": {
        COMPARED: {
            "large-parameters-as-small-ones": ("0x45: (0, 0xFFFFFF)", "0x45: (18, 0x3FFF)"),
        },
        EMPTY: {
            "small-variables-have-no-content": (
                "symbol.bytes == 1 and not section.data and _LIBRARIES.search(symbol.name)",
                "symbol.bytes == 1 and not section.data",
            ),
        },
    },
    "proxy/ptx/fatbin.py": {
        CHOSEN: {
            "code-of-one-architecture-on-newer-ones": (
                "return arch == capability",
                "return arch <= capability",
            ),
            "code-of-another-generation": (
                "return arch // 10 == capability // 10 and arch <= capability",
                "return arch <= capability",
            ),
        },
    },
    "proxy/core/queue/effects.c": {
        OTHER_TYPE: {
            "all-devices-compute-alike": (
                (
                    "\tdigest_word(d, r->device->arithmetic.a);\n"
                    "\tdigest_word(d, r->device->arithmetic.b);\n"
                ),
                "\t(void)r;\n",
            ),
        },
    },
}
