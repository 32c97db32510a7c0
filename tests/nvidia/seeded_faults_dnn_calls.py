"""Faults seeded into calls of cuDNN outside of its backend API: a test of them detects each."""

from __future__ import annotations

from support.seeding import Table

_CALLS = "tests/nvidia/test_dnn_calls.py::"
COMPUTED = _CALLS + "test_a_loss_is_computed_of_the_labels_that_were_sent"
SAYS_MORE = _CALLS + "test_lists_that_say_more_than_has_come_are_refused"
GRADIENTS = _CALLS + "test_gradients_of_more_sequences_are_refused"
MEMORY = _CALLS + "test_memory_of_a_loss_is_the_ranks[3]"
ALGORITHMS = _CALLS + "test_algorithms_are_the_librarys"
SPACE = _CALLS + "test_no_more_algorithms_are_asked_for_than_have_space"
ROWS = _CALLS + "test_rows_of_a_hostile_rank_are_refused"
LOSSES = "tests/nvidia/test_dnn.py::test_folded_and_moved_the_results_are_the_same[losses]"

TABLE: Table = {
    "proxy/hal/nvidia/dnn_ctc.c": {
        COMPUTED: {
            "lists-in-another-order": (
                "l->label_lengths = numbers + sequences;",
                "l->label_lengths = numbers;",
            ),
        },
        SAYS_MORE + "[labels]": {"labels-that-have-not-come": ("sum <= l->of.labels", "sum >= 0")},
        SAYS_MORE + "[length]": {
            "lengths-below-zero": ("if (l->label_lengths[i] < 0)", "if (!count)"),
        },
        SAYS_MORE + "[sequences]": {
            "other-sequences": (
                "(uint32_t)tensor[2] == sequences",
                "(uint32_t)tensor[2] >= sequences",
            ),
        },
        SAYS_MORE + "[far]": {
            "as-many-labels-as-are-said": ("l->of.labels > count - 2 * sequences", "!count"),
        },
        GRADIENTS: {
            "gradients-of-anything": ("gradients[0] && !has_seq", "!gradients && !has_seq"),
        },
        MEMORY: {
            "any-workspace-of-a-loss": (
                "of->gradients, of->area};",
                "of->gradients, of->gradients};",
            ),
        },
    },
    "interpose/client/api/dnn_ctc.c": {
        LOSSES: {
            "labels-before-lengths": (
                "memcpy((char *)next + lengths, from.label_lengths, lengths);",
                "memcpy((char *)next + lengths, from.input_lengths, lengths);",
            ),
            "no-descriptor-of-the-loss": ("dnn_put(next, RF_ROW_CTC, descriptor);", ""),
        },
    },
    "interpose/client/api/dnn_rows.c": {
        LOSSES: {
            "numbers-in-the-place-of-others": (
                "memcpy(row_numbers(d), numbers, count * sizeof *numbers);",
                "memcpy(row_numbers(d) + 1, numbers, count * sizeof *numbers);",
            ),
        },
    },
    "proxy/hal/nvidia/dnn_rows.c": {
        ROWS + "[filter0-convolution0]": {
            "any-dimensions": ("r->n[2] > (int)RF_TENSOR_DIMENSIONS", "!made"),
        },
        ROWS + "[filter2-convolution2]": {
            "any-places": (
                "int places = r->n[5], status;\n\n\tif (places < 1 || places > (int)RF_PLACES)",
                "int places = r->n[5], status;\n\n\tif (places < 1)",
            ),
        },
    },
    "proxy/hal/nvidia/calls.c": {
        ALGORITHMS: {
            "no-results": ("memcpy(to, a->results, sizeof a->results);", "(void)to;"),
        },
        SPACE: {
            "as-many-results-as-are-said": (
                "*slots < RF_RESULTS ? *slots : RF_RESULTS",
                "*slots",
            ),
        },
    },
}
