"""Faults seeded into the planner's side of ranges of devices, and into their validation."""

from __future__ import annotations

from support.seeding import Table

RANGES = "tests/reconciler/test_ranges.py"
TIERS = "tests/reconciler/test_tiers.py"
USAGE = "tests/reconciler/test_usage.py"
SPEC = "tests/reconciler/test_spec.py"

LIMITS = "tests/reconciler/test_time_limits.py"
FORECAST = "tests/reconciler/test_forecast.py"
FIGURES = "tests/reconciler/test_figures.py"

TABLE: Table = {
    "reconciler/report/forecast.py": {
        f"{FORECAST}::test_a_job_on_an_unresponsive_device_is_not_expected_to_end": {
            "unresponsive-job-ends": ('if job.wants != "nothing"  #', "if True  #"),
        },
        f"{FORECAST}::test_a_job_that_lacks_host_memory_is_not_expected_to_start": {
            "memory-ignored": ('NEED_MORE = ("HostMemory", "TooManyRanks")', "NEED_MORE = ()"),
        },
        f"{FORECAST}::test_a_plan_says_when_a_job_that_is_suspended_has_devices_again": {
            "suspended-jobs-forgotten": ("if each.before and not each.now", "if False"),
        },
        f"{FORECAST}::test_new_jobs_disturb_and_delay_others": {
            "delay-not-shown": ('each["start"] != each["startWithout"]', "False"),
        },
    },
    "reconciler/commands/desired.py": {
        f"{FORECAST}::test_new_jobs_are_tried_with_and_without_a_reconciler": {
            "new-job-is-the-oldest": ("structs.replace(job, created=now)", "job"),
        },
    },
    "reconciler/observe/changes.py": {
        f"{FIGURES}::test_a_decision_of_the_policy_is_a_change_until_another_one_is_followed": {
            "persons-change-is-superseded": ("(not last.cause or last", "(last"),
            "restart-is-a-change": (" or followed or restarts:", " or followed:"),
            "change-that-is-over-is-followed": ("last and is_open(last) and", "last and"),
        },
        f"{FIGURES}::test_a_decision_that_is_taken_back_is_no_longer_followed": {
            "followed-for-ever": ("return bool(change.cause) and stays and", "return False and"),
        },
        f"{FIGURES}::test_a_job_that_waits_without_devices_has_been_suspended_as_decided": {
            "never-suspended": ("if (converged or change.cause) and", "if converged and"),
        },
    },
    "reconciler/plan/ending.py": {
        f"{LIMITS}::test_a_job_ends_after_its_time_limit": {
            "limit-ignored": (" or _over_time(job, record, now)", ""),
        },
    },
    "reconciler/plan/allocation.py": {
        f"{RANGES}::test_a_job_grows_shrinks_for_another_one_and_grows_again": {
            "range-forgotten": ("guarantee=job.gpus_min,", "guarantee=None,"),
            "held-devices-cannot-be-lent": ("tuple(group.positions),", "(),"),
            "lenders-not-named": ("if decision.disturbs:", "if False:"),
        },
        f"{TIERS}::test_a_job_that_shrinks_says_why": {
            "tier-not-passed-on": ("            tier=job.tier,\n", ""),
            "reason-forgotten": ("if decision.cause and decision.reason:", "if False:"),
        },
        f"{TIERS}::test_the_minimum_run_time_ends_with_time_alone": {
            "minimum-run-time-not-passed-on": ("min_runtime=job.min_runtime_s,", ""),
            "priority-not-passed-on": ("            priority=job.priority,\n", ""),
        },
        f"{RANGES}::test_a_job_moves_to_grow_only_after_the_delay": {
            "grows-at-once": ("since=record.placed_since or 0.0,", "since=0.0,"),
        },
    },
    "reconciler/plan/steps.py": {
        f"{USAGE}::test_a_placement_has_the_tier_and_the_cause_of_its_decision": {
            "purpose-forgotten": (
                "self._next_epoch(record), target, purpose)",
                "self._next_epoch(record), target)",
            ),
        },
    },
    "reconciler/model/recorded.py": {
        f"{LIMITS}::test_on_fewer_devices_it_may_run_longer": {
            "folded-time-counts-in-full": (
                "now - self.placed_since) / ranks",
                "now - self.placed_since)",
            ),
        },
        f"{LIMITS}::test_the_limit_is_for_the_most_devices_that_it_requests": {
            "limit-on-a-device-for-each-rank": ("job.time_limit_s / ranks -", "job.time_limit_s -"),
        },
        f"{LIMITS}::test_time_without_devices_does_not_count": {
            "run-time-forgotten": ('"ran": self.ran_so_far(now),', '"ran": 0.0,'),
        },
        f"{FIGURES}::test_pauses_of_a_job_are_those_of_its_last_moves": {
            "resume-costs-nothing": (' + self.pauses.get("resume", 0.0)', ""),
        },
        f"{USAGE}::test_device_seconds_continue_after_a_restart_of_the_reconciler": {
            "uses-not-kept": (
                '"usage": self.usage_so_far(now),',
                '"usage": {},',
            ),
        },
    },
    "reconciler/report/usage.py": {
        f"{USAGE}::test_a_journal_of_an_earlier_version_has_only_the_sum": {
            "earlier-uses-lost": ("if rest > 1e-3:", "if False:"),
        },
    },
    "reconciler/journal/rows.py": {
        f"{RANGES}::test_a_number_given_by_hand_replaces_the_range": {
            "range-stays": ('job = job.with_gpus(fields["gpus"])', "pass"),
        },
    },
    "reconciler/source/revision.py": {
        f"{RANGES}::test_a_plan_shows_both_ends_of_a_range_and_which_jobs_are_disturbed": {
            "every-range-disturbs": (
                "stops |= set() if job.elastic and job.least <= now <= job.gpus else",
                "stops |= set() if False else",
            ),
        },
    },
    "reconciler/source/spec.py": {
        f"{SPEC}::test_ranges_that_the_pools_or_the_determinism_exclude": {
            "demand-above-every-pool": (
                'needed["spec", "gpus", "demand"] = job.demand',
                "pass",
            ),
            "bits-depend-on-the-policy": ('given["determinism"] == "D0"', "False"),
        },
        f"{SPEC}::test_a_range_of_devices": {
            "one-number-is-a-range": ("least if least < most else None", "least"),
        },
    },
}
