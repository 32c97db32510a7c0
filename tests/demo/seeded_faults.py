"""Faults seeded into the demo: its verdict, its proof and its repository."""

from __future__ import annotations

from support.seeding import Table

TABLE: Table = {
    "examples/demo/verdict.py": {
        "tests/demo/test_verdict.py::test_one_flipped_bit_of_a_parameter": {
            "always-identical": ("bit_identical=not found", "bit_identical=True"),
            "parameters-not-compared": ("        if p != q:\n", "        if False:\n"),
        },
        "tests/demo/test_verdict.py::test_one_flipped_bit_on_one_rank": {
            "ranks-not-compared": ("if each != params[0]:", "if False:"),
        },
        "tests/demo/test_verdict.py::test_one_flipped_bit_of_a_loss": {
            "losses-not-compared": ("        if a != b\n", "        if False\n"),
        },
        "tests/demo/test_verdict.py::test_lines_are_all_steps_once_and_in_order": {
            "steps-out-of-order": ("if step != len(losses):", "if False:"),
            "noise-ignored": (
                'raise Malformed(f"{path}:{number}: not a step: {line!r}")',
                "continue",
            ),
        },
        "tests/demo/test_verdict.py::test_fewer_ranks": {
            "fewer-ranks-ignored": (
                "if len(reference.losses) != len(elastic.losses):",
                "if False:",
            ),
        },
        "tests/demo/test_verdict.py::test_parameters_that_are_cut_alike_in_both_are_not_equal": {
            "cut-parameters-accepted": ("if not data or len(data) % 4:", "if not data:"),
        },
        "tests/demo/test_verdict.py::test_partial_lines_are_no_steps": {
            "partial-line-is-a-step": ("_LINE.fullmatch(line)", "_LINE.match(line)"),
        },
    },
    "examples/demo/proof.py": {
        "tests/demo/test_proof.py::test_the_proof_states_the_sharing_that_the_fleet_counted": {
            "sharing-claimed-where-it-is-off": (
                'on=any(each.get("on") for each in sharing)',
                "on=True",
            ),
        },
        "tests/demo/test_proof.py::test_kernels_are_attributed_exactly": {
            "kernels-from-birth": ('- int(counters["kernels_here"])', "- 0"),
        },
        "tests/demo/test_proof.py::test_another_device_with_a_rank_breaks_the_claim": {
            "others-may-hold-ranks": ("if len(holders) != 1:", "if False:"),
        },
        "tests/demo/test_proof.py::test_a_pid_that_changes_is_seen": {
            "pids-not-compared": ("all(len(each) == 1 for each in pids)", "True"),
        },
        "tests/demo/test_proof.py::test_lost_steps": {
            "no-step-was-lost": ("return -(-max(extra) // per_step)", "return 0"),
            "skipped-steps-ignored": ("if min(extra) < 0:", "if False:"),
        },
        "tests/demo/test_proof.py::test_missing_counters_are_no_proof": {
            "missing-counters-ignored": ("if len(epochs) != 1 or not found[0]:", "if False:"),
        },
    },
    "examples/demo/fleet.py": {
        "tests/demo/test_fleet.py::test_every_change_is_one_line_of_one_commit": {
            "edit-without-effect": ("        path.write_text(text)\n", "        pass\n"),
            "commit-of-nothing": ('self._git("add", "--all")', "pass"),
        },
        "tests/demo/test_fleet.py::test_a_field_that_is_not_there_is_not_edited": {
            "edit-of-nothing": ("if count != 1:", "if False:"),
        },
    },
}
