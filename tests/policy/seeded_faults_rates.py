"""Faults seeded into the measuring of rates, and into what follows from them."""

from __future__ import annotations

from support.seeding import Table

RATES = "tests/policy/test_rates.py"
MEASURED = "tests/reconciler/test_rates.py"

SPEED = "tests/policy/test_speed.py"
HISTORY = "tests/reconciler/test_history.py"

TABLE: Table = {
    "policy/sizes.py": {
        f"{SPEED}::test_a_job_of_which_nothing_is_known_is_as_fast_as_its_ranks_allow": {
            "ranks-divided-evenly": ("return -(-ranks // devices)", "return ranks / devices"),
        },
    },
    "policy/speed.py": {
        f"{SPEED}::test_two_numbers_of_devices_give_all_others": {
            "all-reduce-forgotten": ("min(float(ranks), a / c)", "0.0"),
            "all-reduce-in-proportion": ("return 1.0 - 1.0 / devices", "return 1.0 * devices"),
        },
        f"{SPEED}::test_rates_of_the_job_are_exact": {
            "model-replaces-measurements": (
                "        if nearest == devices:\n            return per_s\n",
                "",
            ),
            "history-goes-first": ("past | own", "own | past"),
        },
        f"{SPEED}::test_any_rates_in_any_order_give_the_same_speed_above_0": {
            "last-of-the-list-counts": (
                'sorted(rates, key=attrgetter("at", "per_s"))',
                "list(rates)",
            ),
        },
        f"{SPEED}::test_an_all_reduce_that_takes_all_the_time_is_not_extrapolated": {
            "extrapolated": ("float(ranks) if c <= 0", "1e9 if c <= 0"),
        },
        f"{SPEED}::test_history_is_corrected_by_what_the_job_does_now": {
            "history-is-not-corrected": ("per_s * factor for", "per_s for"),
            "first-rate-counts": ("last = max((each", "last = min((each"),
        },
        f"{HISTORY}::test_rates_that_cannot_be_are_not_followed": {
            "impossible-rates-count": ("and LEAST <= each.per_s <= MOST", ""),
        },
        f"{SPEED}::test_more_than_10_percent_is_reported": {
            "every-difference-is-reported": ("DEVIATION = 0.1", "DEVIATION = 0.0"),
        },
    },
    "policy/growth.py": {
        f"{SPEED}::test_no_job_gets_devices_that_made_it_slower_for_an_hour": {
            "growth-that-makes-slower": (" if job.factor(at) > GAIN)", ")"),
        },
        f"{SPEED}::test_devices_go_to_the_job_that_they_make_faster_as_was_measured": {
            "speeds-ignored": (
                "tuple(map(speed.on, options))",
                "tuple(map(float, options))",
            ),
        },
    },
    "reconciler/model/history.py": {
        f"{HISTORY}::test_a_job_has_the_rates_of_others_with_its_program": {
            "own-rates-are-those-of-others": ("if whose != job.name:", "if True:"),
            "only-the-last-job-counts": ("key=_age))[-2:]", "key=_age))[-1:]"),
        },
        f"{HISTORY}::test_another_program_is_none[other2]": {
            "environment-ignored": ("tuple(sorted(job.env)), ", ""),
        },
        f"{HISTORY}::test_another_type_of_device_counts_as_the_speeds_of_the_types_say": {
            "speeds-of-types-ignored": ("per_s=each.per_s * factor)", "per_s=each.per_s)"),
            "the-other-type-goes-first": ("if chosen not in of_type:", "if True:"),
        },
    },
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
        f"{SPEED}::test_no_job_gets_devices_that_made_it_slower_for_an_hour": {
            "slower-forever": (
                "if 0 <= now - each.at < RETRY_S\n",
                "if True\n",
            ),
        },
        f"{RATES}::test_a_job_that_was_disturbed_often_enough_keeps_its_devices": {
            "budget-ignored": ("if job.name in spent:", "if False:"),
        },
        f"{RATES}::test_growth_that_made_a_job_slower_is_taken_back": {
            "no-reason": ('if decision.cause == "spec" and decision.devices:', "if False:"),
        },
    },
    "reconciler/journal/journal.py": {
        f"{HISTORY}::test_the_rates_of_jobs_that_are_removed_stay": {
            "rates-of-removed-jobs-are-lost": (
                "[*known, measured][-MEASURED_MAX:]",
                "[*known][-MEASURED_MAX:]",
            ),
            "rates-of-removed-jobs-grow-without-limit": (
                "[*known, measured][-MEASURED_MAX:]",
                "[*known, measured]",
            ),
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
        f"{HISTORY}::test_the_first_rate_of_a_job_is_compared_with_those_of_others": {
            "others-are-not-compared": (
                "record.rates, history, rate.at)",
                "record.rates, (), rate.at)",
            ),
        },
        f"{MEASURED}::test_a_rate_that_is_not_as_estimated_is_reported_once": {
            "reported-again": ("        elif last is None:\n", "        else:\n"),
        },
        f"{MEASURED}::test_a_job_that_became_slower_is_reported_once": {
            "measured-again-meanwhile": ("and _holds(last, rate.at)", "and False"),
        },
    },
    "reconciler/plan/allocation.py": {
        f"{MEASURED}::test_a_job_that_grew_and_became_slower_moves_back": {
            "rates-are-not-given-to-the-policy": ("rates=record.rates,", "rates=(),"),
        },
        f"{HISTORY}::test_a_job_does_not_get_devices_that_made_another_one_slower": {
            "history-is-not-given-to-the-policy": (
                "history=self._history_of(job, record),",
                "history=(),",
            ),
        },
    },
}
