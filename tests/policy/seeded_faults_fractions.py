"""Faults seeded into the fractions that tiers guarantee."""

from __future__ import annotations

from support.seeding import Table

FRACTIONS = "tests/policy/test_fractions.py"
RECORDS = "tests/reconciler/test_fractions.py"

TABLE: Table = {
    "policy/fractions.py": {
        f"{FRACTIONS}::test_no_hour_of_an_admitted_philly_job_is_violated": {
            "all-fit": ("< need - FIT:", "< 0:"),
        },
        f"{FRACTIONS}::test_the_eleventh_has_to_wait": {
            "all-are-admitted": ("if there < need - FIT", "if 1e9 < need"),
        },
        f"{FRACTIONS}::test_jobs_are_admitted_while_they_fit_and_stay_admitted": {
            "admission-is-taken-back": (
                "(others if job.guaranteed is None else admitted)",
                "others",
            ),
        },
        f"{FRACTIONS}::test_a_job_that_is_not_admitted_is_treated_as_basic": {
            "basic-is-forgotten": ("replace(job, tier=TIERS[0], admitted=False)", "job"),
        },
        f"{FRACTIONS}::test_an_admitted_job_keeps_what_it_needs_of_a_range": {
            "range-is-not-kept": ("guarantee=least,", "guarantee=job.guarantee,"),
        },
        f"{FRACTIONS}::test_ten_jobs_with_seven_tenths_run_on_eight_devices": {
            "no-turns": (
                "basis=GUARANTEED, priority=0, behind=behind",
                "basis=GUARANTEED, priority=0",
            ),
        },
        (
            f"{FRACTIONS}::"
            "test_an_admitted_job_of_several_devices_gets_those_of_jobs_that_take_turns"
        ): {
            "priority-before-guarantee": (
                "basis=GUARANTEED, priority=priority, guarantee",
                "guarantee",
            ),
        },
        f"{FRACTIONS}::test_a_job_needs_the_fewest_devices_on_which_its_fraction_holds": {
            "demand-is-forgotten": ("return job.demand or job.devices", "return job.devices"),
            "pauses-are-forgotten": ("+ behind + pauses)", "+ behind)"),
        },
        f"{FRACTIONS}::test_progress_is_counted_in_periods": {
            "violations-are-forgotten": ("+ whole * is_violated(before)", ""),
        },
        f"{FRACTIONS}::test_it_does_not_matter_how_often_progress_is_counted": {
            "period-begins-late": ("        begun=end,", "        begun=now,"),
        },
    },
    "simulator/whole.py": {
        f"{FRACTIONS}::test_ten_jobs_with_seven_tenths_run_on_eight_devices": {
            "turns-end-unnoticed": ("return min(turn, min(ends", "return min(math.inf, min(ends"),
        },
    },
    "reconciler/model/recorded.py": {
        f"{RECORDS}::test_time_without_devices_counts_and_time_after_the_end_does_not": {
            "counts-after-the-end": ('found is None or self.step == "ended"', "found is None"),
            "waiting-is-progress": ("if since > found.until:", "if False:"),
        },
    },
    "reconciler/plan/allocation.py": {
        f"{RECORDS}::test_a_rule_that_changes_is_guaranteed_anew": {
            "old-rule-stays": ("if rule is None or now != (", "if rule is None or () == ("),
        },
        f"{RECORDS}::test_a_job_is_admitted_and_another_one_says_that_it_is_not": {
            "says-nothing": ("decision.admitted is False and", "False and"),
            "guarantee-of-a-suspended-job": (
                "elif not decision.admitted and had is not None:",
                "elif False:",
            ),
        },
    },
}
