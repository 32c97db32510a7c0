"""Faults seeded into the precedence of jobs, and into what follows from it."""

from __future__ import annotations

from support.seeding import Table

EVENTS = "tests/simulate/test_events.py"
TIERS = "tests/policy/test_tiers.py"
ALIKE = "tests/policy/test_alike.py::test_jobs_that_are_alike_are_decided_on_as_if_they_were_alone"

TABLE: Table = {
    "policy/precedence.py": {
        ALIKE: {
            "all-priorities-are-alike": (
                "job.tier, job.priority, job.basis,",
                "job.tier, job.basis,",
            ),
        },
        f"{TIERS}::test_a_job_is_not_shrunk_during_its_minimum_run_time": {
            "shrunk-during-the-minimum-run-time": (
                "level = level_of_growth(job) + protected",
                "level = level_of_growth(job)",
            ),
        },
        f"{TIERS}::test_jobs_resume_by_tier_priority_and_age": {
            "tier-forgotten": (
                "return (level_of(job), job.priority, job.guarantee != 0, job.behind)",
                "return (0, job.priority, job.guarantee != 0, job.behind)",
            ),
            "priority-forgotten": (
                "return (level_of(job), job.priority, job.guarantee != 0, job.behind)",
                "return (level_of(job), 0, job.guarantee != 0, job.behind)",
            ),
        },
        f"{TIERS}::test_the_minimum_run_time_holds_for_the_own_tier_only": {
            "minimum-run-time-forgotten": (
                "return 0 <= now - job.since < job.min_runtime",
                "return False",
            ),
            "held-for-ever-when-the-clock-is-set-back": (
                "return 0 <= now - job.since < job.min_runtime",
                "return now - job.since < job.min_runtime",
            ),
            "held-against-every-tier": (
                "above = (level_of(job), math.inf, True",
                "above = (9, 0.0, True",
            ),
        },
    },
    "policy/lending.py": {
        f"{TIERS}::test_a_higher_tier_is_not_shrunk": {
            "shrunk-for-any-tier": ("if level >= self.terms.shrinks_for:", "if True:"),
        },
        f"{TIERS}::test_jobs_of_one_precedence_do_not_suspend_each_other": {
            "suspended-by-its-like": (
                "if precedence > above else 0",
                "if precedence[:3] >= above[:3] else 0",
            ),
            "guarantee-forgotten": ("if precedence > above else 0", ""),
        },
        f"{TIERS}::test_the_lowest_tier_is_suspended_first": {
            "first-in-line-is-suspended": (
                "for importance in sorted(by_importance):",
                "for importance in sorted(by_importance, reverse=True):",
            ),
        },
        f"{TIERS}::test_the_job_that_is_cheapest_to_stop_is_suspended": {
            "pause-ignored": (
                "(self.terms.importance, self.job.pause, -self",
                "(self.terms.importance, 0.0, -self",
            ),
        },
        f"{TIERS}::test_no_job_is_suspended_for_one_that_still_does_not_fit": {
            "suspended-for-nothing": ("        if missing > 0:\n            return None\n", ""),
        },
        f"{TIERS}::test_devices_that_the_borrower_cannot_use_do_not_count": {
            "devices-of-other-groups-counted": (
                "number -= min(len(lender.kept) - left, self._in(lender, groups))",
                "number -= len(lender.kept) - left",
            ),
        },
        f"{TIERS}::test_one_job_is_suspended_if_it_is_enough": {
            "suspended-although-others-are-enough": ("if each[1] <= -missing:", "if False:"),
        },
    },
    "simulator/whole.py": {
        f"{EVENTS}::test_a_minimum_run_time_ends_although_no_job_arrives_or_ends": {
            "minimum-run-time-ends-unnoticed": ("(known.job.min_runtime, rules", "(0.0, rules"),
            "rounded-down": ("while end - known.got_at < seconds:", "while False:"),
        },
        f"{EVENTS}::test_a_job_grows_when_the_growth_delay_is_over": {
            "growth-delay-ends-unnoticed": (
                "rules.growth_delay if elastic else 0.0",
                "0.0",
            ),
        },
    },
    "simulator/runs.py": {
        f"{EVENTS}::test_a_job_of_a_lower_tier_is_suspended_for_one_of_a_higher": {
            "simulated-without-tiers": ("len(first) > 1 or", ""),
        },
    },
    "policy/turn.py": {
        ALIKE: {
            "old-decision-after-a-claim": (
                "                self.claimed[group] = precedence\n"
                "                self.changes += 1\n",
                "                self.claimed[group] = precedence\n",
            ),
            "old-decision-after-devices-are-given": (
                "        self.changes += 1\n        new = self.free.take(",
                "        new = self.free.take(",
            ),
        },
        "tests/policy/test_alike.py::test_a_job_that_waits_is_not_like_one_of_another_tier": {
            "all-that-wait-are-alike": ("id(wanting.alike),", "0,"),
        },
        "tests/policy/test_fractions.py::test_a_decision_says_whether_the_fraction_is_guaranteed": {
            "all-that-wait-are-admitted-alike": ("job.late, job.admitted,", "job.late,"),
        },
        f"{TIERS}::test_a_job_waits_for_free_devices_before_others_give_up_theirs": {
            "nobody-waits": ("or job.name in self.patient:", ":"),
        },
        f"{TIERS}::test_idle_devices_are_used_by_a_job_that_can_be_suspended_again": {
            "claims-hold-against-lower-tiers": (
                "if group not in claimed or claimed[group] > above]",
                "if group not in claimed]",
            ),
        },
        f"{TIERS}::test_a_job_that_would_keep_idle_devices_for_its_minimum_run_time_gets_none": {
            "claims-forget-the-minimum-run-time": (
                "alike.terms(job, job.min_runtime > 0,",
                "alike.terms(job, False,",
            ),
        },
        f"{TIERS}::test_no_job_gives_up_devices_that_one_suspended_before_would_take[backfill]": {
            "taken-by-one-that-is-suspended": ("self.suspended.update(job.groups)", "pass"),
        },
    },
    "policy/fifo.py": {
        f"{TIERS}::test_a_job_waits_for_free_devices_before_others_give_up_theirs": {
            "since-its-creation": ("max(job.created, job.waits_since)", "job.created"),
            "waits-when-the-clock-is-set-back": ("and 0 <= now - max(", "and now - max("),
        },
        "tests/policy/test_fractions.py::test_a_guarantee_does_not_wait_for_the_preemption_delay": {
            "guarantees-wait": (
                "turn.patient = patient.difference(guaranteed)",
                "turn.patient = patient",
            ),
        },
    },
    "policy/causes.py": {
        f"{TIERS}::test_an_elastic_job_of_a_lower_tier_loses_its_guarantee": {
            "tier-not-named": ("if job.tier != other.tier:", "if False:"),
        },
        f"{TIERS}::test_a_lower_priority_gives_up_devices_first": {
            "cause-is-always-the-tier": ('return "tier" if higher else "order"', 'return "tier"'),
        },
    },
}
