"""Faults seeded into reconciler, launcher, control protocol and demo, one at a time (tree.py)."""

from __future__ import annotations

from faults.tree import Mutant

VERDICT, PROOF = "examples/demo/verdict.py", "examples/demo/proof.py"
RUN, FLEET = "examples/demo/run.py", "examples/demo/fleet.py"
ON_VERDICT, ON_PROOF = "tests/demo/test_verdict.py::", "tests/demo/test_proof.py::"
ON_FLEET = "tests/demo/test_fleet.py::"

DEMO = [
    Mutant("always-identical", VERDICT, "bit_identical=not found", "bit_identical=True",
           ON_VERDICT + "test_one_flipped_bit_of_a_parameter"),
    Mutant("parameters-not-compared", VERDICT, "        if p != q:\n", "        if False:\n",
           ON_VERDICT + "test_one_flipped_bit_of_a_parameter"),
    Mutant("ranks-not-compared", VERDICT, "if each != params[0]:", "if False:",
           ON_VERDICT + "test_one_flipped_bit_on_one_rank"),
    Mutant("losses-not-compared", VERDICT, "        if a != b\n", "        if False\n",
           ON_VERDICT + "test_one_flipped_bit_of_a_loss"),
    Mutant("steps-out-of-order", VERDICT, "if step != len(losses):", "if False:",
           ON_VERDICT + "test_lines_are_all_steps_once_and_in_order"),
    Mutant("noise-ignored", VERDICT, "raise Malformed(f\"{path}:{number}: not a step: {line!r}\")",
           "continue", ON_VERDICT + "test_lines_are_all_steps_once_and_in_order"),
    Mutant("fewer-ranks-ignored", VERDICT, "if len(reference.losses) != len(elastic.losses):",
           "if False:", ON_VERDICT + "test_fewer_ranks"),
    Mutant("cut-parameters-accepted", VERDICT, "if not data or len(data) % 4:", "if not data:",
           ON_VERDICT + "test_parameters_that_are_cut_alike_in_both_are_not_equal"),
    Mutant("partial-line-is-a-step", VERDICT, "_LINE.fullmatch(line)", "_LINE.match(line)",
           ON_VERDICT + "test_partial_lines_are_no_steps"),
    Mutant("kernels-from-birth", PROOF, "- int(counters[\"kernels_here\"])", "- 0",
           ON_PROOF + "test_kernels_are_attributed_exactly"),
    Mutant("others-may-hold-ranks", PROOF, "if len(holders) != 1:", "if False:",
           ON_PROOF + "test_another_device_with_a_rank_breaks_the_claim"),
    Mutant("pids-not-compared", PROOF, "all(len(each) == 1 for each in pids)", "True",
           ON_PROOF + "test_a_pid_that_changes_is_seen"),
    Mutant("no-step-was-lost", PROOF, "return -(-max(extra) // per_step)", "return 0",
           ON_PROOF + "test_lost_steps"),
    Mutant("skipped-steps-ignored", PROOF, "if min(extra) < 0:", "if False:",
           ON_PROOF + "test_lost_steps"),
    Mutant("missing-counters-ignored", PROOF, "if len(epochs) != 1 or not found[0]:", "if False:",
           ON_PROOF + "test_missing_counters_are_no_proof"),
    Mutant("edit-without-effect", FLEET, "        path.write_text(text)\n", "        pass\n",
           ON_FLEET + "test_every_change_is_one_line_of_one_commit"),
    Mutant("edit-of-nothing", FLEET, "if count != 1:", "if False:",
           ON_FLEET + "test_a_field_that_is_not_there_is_not_edited"),
    Mutant("commit-of-nothing", FLEET, "self._git(\"add\", \"--all\")", "pass",
           ON_FLEET + "test_every_change_is_one_line_of_one_commit"),
]  # fmt: skip

DOCTOR, CLI = "reconciler/doctor.py", "reconciler/cli.py"
ON_COMMANDS = "tests/reconciler/test_commands.py::"
COMMANDS = [
    Mutant("any-kernel-will-do", DOCTOR, "ok = tuple(numbers) >= (5, 16)", "ok = True",
           ON_COMMANDS + "test_doctor_knows_which_kernel_is_too_old"),
    Mutant("doctor-does-nothing", CLI, "findings = doctor.examine(state)", "findings = []",
           ON_COMMANDS + "test_doctor_finds_nothing_here"),
    Mutant("doctor-is-always-content", CLI,
           "EXIT_ERROR if any(f.needed and not f.ok for f in findings) else 0", "0",
           ON_COMMANDS + "test_doctor_ends_with_1_where_something_needed_is_missing"),
    Mutant("doctor-never-binds", DOCTOR, "sock.bind(str(path))", "pass",
           ON_COMMANDS + "test_doctor_says_that_a_socket_s_path_is_too_long"),
    Mutant("doctor-leaves-its-socket", DOCTOR, "path.unlink(missing_ok=True)", "pass",
           ON_COMMANDS + "test_doctor_s_socket_is_gone_afterwards"),
    Mutant("doctor-needs-no-git", DOCTOR, "Finding(\"git\", bool(found),", "Finding(\"git\", True,",
           ON_COMMANDS + "test_doctor_misses_git"),
]  # fmt: skip

MUTANTS = [*DEMO, *COMMANDS]
