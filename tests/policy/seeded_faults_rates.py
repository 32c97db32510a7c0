"""Faults seeded into the measuring of rates, and into what follows from them."""

from __future__ import annotations

from support.seeding import Table

RATES = "tests/policy/test_rates.py"
MEASURED = "tests/reconciler/test_rates.py"

TABLE: Table = {
    "policy/rates.py": {
        f"{RATES}::test_growth_that_made_a_job_faster_or_no_slower_is_kept": {
            "no-margin": ("SLOWER = 0.95", "SLOWER = 1.0"),
        },
        f"{RATES}::test_a_rate_that_was_measured_badly_decides_nothing": {
            "noise-ignored": ("DEVIATIONS = 2.0", "DEVIATIONS = 0.0"),
        },
        f"{RATES}::test_the_job_grows_again_after_an_hour_and_is_measured_again": {
            "never-tried-again": ("0 <= now - each.at < RETRY_S and ", ""),
            "tried-again-at-once": ("RETRY_S = 3600.0", "RETRY_S = 1.0"),
        },
        f"{RATES}::test_a_job_that_was_disturbed_often_enough_keeps_its_devices": {
            "budget-ignored": ("if job.name in spent:", "if False:"),
        },
        f"{RATES}::test_growth_that_made_a_job_slower_is_taken_back": {
            "no-reason": ('if decision.cause == "spec" and decision.devices:', "if False:"),
        },
    },
    "reconciler/rates.py": {
        f"{MEASURED}::test_bursts_of_steps_are_not_mistaken_for_a_difference": {
            "edges-ignored": ("self._most / seconds / 2", "0.0"),
        },
        f"{MEASURED}::test_the_time_before_the_first_steps_and_pauses_do_not_count": {
            "start-counts": ("now + SETTLE_S", "now"),
            "saves-count": (
                'record.save is not None and record.save.stage != "uploading"',
                "False",
            ),
            "barriers-count": (' or there.state != "running"', ""),
        },
        f"{MEASURED}::test_rates_that_were_measured_long_ago_are_not_compared": {
            "always-compared": ("if rate.at - begun > FRESH_S:", "if False:"),
            "old-rate-compared": ("and 0 <= begun - each.at <= FRESH_S", ""),
        },
        f"{MEASURED}::test_a_job_that_became_slower_is_reported_once": {
            "measured-again-meanwhile": ("and _holds(last, rate.at)", "and False"),
        },
    },
    "reconciler/plan/allocation.py": {
        f"{MEASURED}::test_a_job_that_grew_and_became_slower_moves_back": {
            "rates-are-not-given-to-the-policy": ("rates=record.rates,", "rates=(),"),
        },
    },
}
