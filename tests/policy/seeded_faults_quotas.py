"""Faults seeded into quotas, and into the longest wait."""

from __future__ import annotations

from support.seeding import Table

QUOTAS = "tests/policy/test_quotas.py"
RECONCILER = "tests/reconciler/test_quotas.py"

TABLE: Table = {
    "policy/quotas.py": {
        f"{QUOTAS}::test_idle_devices_are_lent_and_reclaimed": {
            "all-jobs-are-within-their-quota": (
                "covered = fewest if fewest <= left else 0",
                "covered = fewest",
            ),
        },
        f"{QUOTAS}::test_growth_beyond_the_quota_is_given_up_for_a_lower_tier": {
            "growth-is-never-within-the-quota": (
                "self._covered[job.name] += more",
                "self._covered[job.name] += 0",
            ),
        },
        f"{QUOTAS}::test_jobs_of_no_quota_have_the_devices_that_no_quota_has": {
            "all-devices-are-for-jobs-without-a-quota": (
                "max(0, self._fleet - named)",
                "self._fleet",
            ),
        },
        f"{QUOTAS}::test_a_quota_borrows_no_more_than_its_limit": {
            "borrowing-limit-forgotten": ("left[quota.name] -= fewest", ""),
        },
        f"{QUOTAS}::test_an_elastic_job_grows_up_to_the_limit": {
            "growth-is-not-limited": ("if most < job.devices:", "if False:"),
        },
        f"{QUOTAS}::test_a_quota_lends_no_more_than_its_limit": {
            "lending-limit-forgotten": ("            lent -= fewest\n", ""),
        },
        f"{QUOTAS}::test_a_use_counts_half_a_day_later": {
            "uses-never-expire": ("return used * left +", "return used +"),
        },
        f"{QUOTAS}::test_the_quota_that_had_less_borrows_first": {
            "weight-forgotten": ("math.log(2) / quota.weight", "math.log(2)"),
            "the-one-that-had-most-goes-first": (
                "return -math.floor(devices / step)",
                "return math.floor(devices / step)",
            ),
        },
        f"{QUOTAS}::test_a_job_that_waited_too_long_goes_first_for_a_while": {
            "wait-without-end": ("return now - began >= rules.max_wait", "return False"),
            "it-keeps-its-devices-without-end": (
                "0 <= now - job.since < rules.max_wait / AGED_PART",
                "True",
            ),
            "it-loses-its-devices-at-once": (
                "0 <= now - job.since < rules.max_wait / AGED_PART",
                "False",
            ),
        },
        f"{QUOTAS}::test_a_higher_tier_takes_no_devices_within_another_quota": {
            "covered-in-the-order-of-creation": (
                "sorted(self._of[quota.name], key=_order)",
                "self._of[quota.name]",
            ),
        },
    },
    "policy/precedence.py": {
        f"{QUOTAS}::test_a_job_within_its_quota_goes_before_a_higher_tier_that_borrows": {
            "basis-forgotten": (
                "return len(TIERS) * job.basis + (0",
                "return 0 * job.basis + (0",
            ),
        },
        f"{QUOTAS}::test_jobs_that_waited_too_long_do_not_suspend_each_other": {
            "tiers-of-those-that-waited": (
                "    if job.basis == AGED:\n        return (level_of(job), 0.0, True, 0.0)\n",
                "    if job.basis == AGED:\n"
                "        return (level_of(job), job.created, True, 0.0)\n",
            ),
        },
    },
    "policy/lending.py": {
        f"{QUOTAS}::test_growth_beyond_the_quota_is_given_up_for_a_lower_tier": {
            "growth-beyond-the-quota-is-kept": (
                "return self.beyond if level >= self.terms.shrinks_beyond else 0",
                "return 0",
            ),
        },
    },
    "policy/fractions.py": {
        f"{QUOTAS}::test_a_fraction_is_guaranteed_within_the_quota_only": {
            "guaranteed-beyond-the-quota": (
                "if job.covered is not None and need > job.covered + FIT:",
                "if False:",
            ),
        },
    },
    "policy/fifo.py": {
        f"{QUOTAS}::test_a_limit_that_is_lowered_suspends_jobs": {
            "limits-do-not-stop-jobs": (
                "if barred and job.name in barred and turn",
                "if barred and job.name in barred and not job.own and turn",
            ),
        },
    },
    "reconciler/model/recorded.py": {
        f"{RECONCILER}::test_uses_of_a_quota_are_kept": {
            "uses-since-the-placement-forgotten": (
                "return decayed(before, len(set(self.placement)), now - since)",
                "return before",
            ),
        },
    },
    "reconciler/plan/allocation.py": {
        f"{RECONCILER}::test_a_quota_gets_back_what_it_lent": {
            "quota-forgotten": ("            quota=job.quota,\n", ""),
        },
        f"{RECONCILER}::test_the_quota_that_used_less_borrows": {
            "uses-forgotten": (
                "self._used(now) if index.desired.quotas else {}",
                "{}",
            ),
        },
    },
    "reconciler/source/spec.py": {
        "tests/reconciler/test_spec.py::test_quotas_above_the_fleet_are_refused": {
            "any-sum-of-quotas": ("            if total > most:\n", "            if False:\n"),
        },
        "tests/reconciler/test_spec.py::test_a_job_of_a_quota_that_does_not_exist_is_refused": {
            "any-name-of-a-quota": (
                "            if rule is None:\n",
                "            if rule is None:\n                continue\n",
            ),
        },
    },
}
