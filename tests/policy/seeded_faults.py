"""Faults seeded into policies that are not built in, and into the check of their decisions."""

from __future__ import annotations

from support.seeding import Table

CHECKING = "tests/policy/test_checking.py::test_invalid_decisions_are_refused"
PLUGINS = "tests/policy/test_plugins.py"

TABLE: Table = {
    "policy/checking.py": {
        CHECKING: {
            "given-twice": ("if position in holders:", "if False:"),
            "not-free": ("if position not in job.own and", "if False and"),
            "too-many": ("if devices and not least <=", "if False and not least <="),
            "those-without-a-decision-do-not-count": (
                "if decision is None or decision.stays:\n        return job.own",
                "if decision is None:\n        return ()",
            ),
        },
    },
    "rankfold/plugins.py": {
        f"{PLUGINS}::test_a_policy_that_loops_is_killed_at_its_deadline": {
            "not-started-again": (
                "except Failed:\n            self.close()",
                "except Failed:\n            pass",
            ),
        },
        f"{PLUGINS}::test_processes_of_a_policy_end_with_it": {
            "only-its-process": (
                "os.killpg(process.pid, signal.SIGKILL)",
                "os.kill(process.pid, signal.SIGKILL)",
            ),
        },
        f"{PLUGINS}::test_a_policy_that_fails_changes_nothing_and_decides_again": {
            "not-checked": (
                "if wrong := objection(fleet, jobs, decisions):",
                "if wrong := objection(fleet, jobs, {}):",
            ),
        },
    },
    "rankfold/plugin_process.py": {
        f"{PLUGINS}::test_a_policy_that_loops_ends_with_a_simulation_that_is_killed": {
            "outlives-what-started-it": (
                "    ctypes.CDLL(None).prctl(1, signal.SIGKILL)",
                "    pass",
            ),
        },
        f"{PLUGINS}::test_a_policy_may_print": {"output-is-a-reply": ("os.dup2(2, 1)", "pass")},
    },
}
