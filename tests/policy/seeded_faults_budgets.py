"""Faults seeded into the budgets of disturbances, and into the queue."""

from __future__ import annotations

from support.seeding import Table

BUDGETS = "tests/policy/test_budgets.py"
QUEUE = "tests/reconciler/test_queue.py"

TABLE: Table = {
    "policy/precedence.py": {
        f"{BUDGETS}::test_a_job_is_not_shrunk_and_does_not_grow_when_its_budget_is_spent": {
            "shrunk-with-a-spent-budget": (
                "        level = max(level, level_when_spent(job.basis == BORROWS))\n",
                "",
            ),
        },
        f"{BUDGETS}::test_a_job_is_suspended_as_often_as_its_tier_allows": {
            "budget-forgotten": (
                "for at in job.disturbed) >= most",
                "for at in job.disturbed) < 0",
            ),
            "budget-is-never-there-again": ("sum(0 <= now - at < BUDGET_S", "sum(0 <= now - at"),
            "one-more-than-allowed": (
                "for at in job.disturbed) >= most",
                "for at in job.disturbed) > most",
            ),
        },
        f"{BUDGETS}::test_a_guarantee_is_not_limited": {
            "held-against-guarantees": (
                "return len(TIERS) * (WITHIN if borrows else GUARANTEED)",
                "return len(TIERS) * (WITHIN if borrows else 9)",
            ),
        },
        f"{BUDGETS}::test_a_quota_gets_back_its_devices_whatever_the_budget": {
            "held-against-quotas": (
                "return len(TIERS) * (WITHIN if borrows else GUARANTEED)",
                "return len(TIERS) * GUARANTEED",
            ),
        },
    },
    "policy/idle.py": {
        f"{BUDGETS}::test_a_job_is_not_shrunk_and_does_not_grow_when_its_budget_is_spent": {
            "grows-with-a-spent-budget": ("job.name not in spent and not 0", "not 0"),
        },
    },
    "policy/turn.py": {
        f"{BUDGETS}::test_a_spent_budget_keeps_a_job_off_claimed_devices": {
            "claims-forgotten": (
                "terms(job, job.min_runtime > 0, job.name in self.spent)",
                "terms(job, job.min_runtime > 0, False)",
            ),
        },
        f"{BUDGETS}::test_each_job_that_waits_has_its_place": {
            "jobs-with-devices-are-in-the-queue": (
                "if not decisions[job.name].devices]",
                "]",
            ),
        },
    },
    "simulator/whole.py": {
        f"{BUDGETS}::test_the_simulation_continues_when_a_budget_is_there_again": {
            "budget-ends-unnoticed": ("for at in _recent(known.disturbed, now):", "for at in ():"),
        },
    },
    "reconciler/report/differences.py": {
        f"{QUEUE}::test_a_plan_names_the_jobs_that_others_disturb": {
            "moves-are-not-reported": ("planned.causes.get(name) in _SHOWN or", ""),
            "pauses-are-not-reported": ("round(record.pause_s, 3) or None", "None"),
        },
    },
    "reconciler/report/text.py": {
        f"{QUEUE}::test_describe_says_why_a_job_was_moved": {
            "cause-of-changes-is-not-shown": ('        change["cause"],\n', ""),
        },
    },
    "reconciler/findings.py": {
        f"{QUEUE}::test_a_disturbance_is_recorded": {
            "disturbances-are-not-recorded": ("disturbed=(*recent, at)", "disturbed=()"),
            "changes-by-hand-are-disturbances": (
                "not change.from_gpus or change.cause not in DISTURBING",
                "not change.from_gpus",
            ),
        },
    },
    "reconciler/plan/allocation.py": {
        f"{QUEUE}::test_a_job_whose_budget_is_spent_is_not_moved": {
            "disturbances-are-not-considered": ("            disturbed=record.disturbed,\n", ""),
        },
        f"{QUEUE}::test_a_job_that_waits_has_its_place": {
            "queue-forgotten": ("self.queue[job.name] = decision.position", "pass"),
        },
    },
}
