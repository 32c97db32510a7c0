"""Faults seeded into calls of NVIDIA's cuDNN: a test of them detects each."""

from __future__ import annotations

from support.seeding import Table

_DNN = "tests/nvidia/test_dnn.py::"
EXECUTED = _DNN + "test_a_plan_is_executed_as_the_program_described_it"
NAMED = _DNN + "test_the_heuristic_names_engines_knobs_and_notes"
DESCRIBED = _DNN + "test_an_engine_and_a_graph_are_described"
ONCE = _DNN + "test_a_plan_is_made_once"
BY_VALUE = _DNN + "test_a_number_is_passed_by_value"
LARGER = _DNN + "test_a_gpu_that_needs_a_larger_workspace_gets_one"
STRAY = _DNN + "test_memory_that_is_not_the_ranks_is_refused[y]"
STRAY_AREA = _DNN + "test_memory_that_is_not_the_ranks_is_refused[area]"
NO_ADDRESS = _DNN + "test_no_attribute_is_an_address[6]"
OTHER_VERSION = _DNN + "test_a_plan_of_another_version_is_refused"
ONLY_PLANS = _DNN + "test_only_plans_are_executed"
FOLDED = _DNN + "test_folded_and_moved_the_results_are_the_same[convolutions]"
LAYERS = _DNN + "test_folded_and_moved_the_results_are_the_same[layers]"
HOSTILE = _DNN + "test_descriptors_of_a_hostile_rank_are_refused"

TABLE: Table = {
    "proxy/hal/nvidia/dnn.c": {
        EXECUTED: {
            "elements-of-the-wrong-size": ("case KIND_DOUBLE:\n", ""),
            "no-address-of-the-last-tensor": (
                "t.count = exec.tensors;",
                "t.count = exec.tensors - 1;",
            ),
        },
        NAMED: {
            "results-without-knobs": (
                "answer_knobs(a, configuration, CONFIGURATION_KNOBS",
                "answer_knobs(a, engine, CONFIGURATION_KNOBS",
            ),
        },
        DESCRIBED: {
            "knobs-without-a-stride": ("KNOB_INFO, numbers, 4);", "KNOB_INFO, numbers, 2);"),
        },
        ONCE: {
            "made-for-each-query": (
                "	if (p) {\n		*at = p->next;",
                "	if (!p) {\n		*at = p->next;",
            ),
            "kept-for-ever": ("drop_plans(device, DNN_PLANS_MAX);", ""),
        },
        BY_VALUE: {
            "an-address-of-the-program": ("t->at[i] = &t->value[i];", ";"),
        },
        LARGER: {
            "the-programs-workspace": ("exec.area = spare;", ""),
        },
        STRAY: {
            "any-tensor": (
                "else if (value && !nvidia_space_has(space, value))",
                "else if (!space)",
            ),
        },
        STRAY_AREA: {
            "any-workspace-of-a-plan": (
                "(exec.area_bytes && !nvidia_space_has(space, exec.area))",
                "!space",
            ),
        },
        NO_ADDRESS: {
            "addresses-in-descriptors": (
                "	case KIND_DESCRIPTOR: return 8;\n	case KIND_ADDRESS:\n",
                "	case KIND_ADDRESS:\n	case KIND_DESCRIPTOR: return 8;\n",
            ),
        },
        OTHER_VERSION: {
            "plans-of-any-version": ("exec.version != cudnn.cudnnGetVersion()", "!space"),
        },
        ONLY_PLANS: {
            "any-descriptor-is-executed": ("if (!status && p->type != PLAN)", "if (!device)"),
        },
    },
    "interpose/client/api/dnn_graph.c": {
        FOLDED: {
            "released-too-early": (
                "r->of[i].node = dnn_node_share(d->node);",
                "r->of[i].node = d->node;",
            ),
            "no-count-of-the-results": (
                "*count = to && most > 0 && most < r->count ? most : r->count;",
                "*count = most;",
            ),
        },
    },
    "interpose/client/api/dnn_answers.c": {
        FOLDED: {
            "another-engine": (
                "next_number(from), false) &&\n",
                "next_number(from) * 0, false) &&\n",
            ),
        },
    },
    "interpose/client/api/dnn_descriptors.c": {
        LAYERS: {
            "no-dropout-of-a-network": (
                "dnn_put(d->slots + RF_RNN_SLOTS - RF_DROPOUT_SLOTS, 'o', dropout);",
                "(void)dropout;",
            ),
            "lengths-of-the-first-only": (
                "run[run_count++] = (uint32_t)lengths[i]",
                "run[run_count++] = (uint32_t)lengths[0]",
            ),
            "states-that-are-not-filled": ("return fill && states", "return !states"),
        },
    },
    "interpose/client/api/remote.c": {
        LAYERS: {
            "no-place-where-null-is-given": (
                'strchr("ilm", kinds[i]) && to)',
                'strchr("ilm", kinds[i]))',
            ),
        },
    },
    "proxy/hal/nvidia/dnn_descriptors.c": {
        LAYERS: {
            "strides-for-sizes": ("size[i] = low(slots[1 + i]);", "size[i] = high(slots[1 + i]);"),
        },
        HOSTILE: {
            "states-of-anybody": (
                "if (slots[2] && !nvidia_space_has(space, slots[2]))",
                "if (slots[2] && !space)",
            ),
            "missing-lengths": ("if (filled < count)", "if (!count)"),
        },
    },
    "proxy/hal/nvidia/calls.c": {
        LAYERS: {
            "doubles-in-the-wrong-order": (
                "memcpy(&a->doubles[a->double_count++], slots, sizeof *slots);",
                "memcpy(&a->doubles[1 - a->double_count++], slots, sizeof *slots);",
            ),
        },
    },
}
