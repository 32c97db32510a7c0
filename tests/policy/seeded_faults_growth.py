"""Faults seeded into how idle devices are shared."""

from __future__ import annotations

from support.seeding import Table

GROWTH = "tests/policy/test_growth.py"

TABLE: Table = {
    "policy/growth.py": {
        f"{GROWTH}::test_the_devices_are_shared_almost_as_well_as_possible": {
            "number-of-devices-dropped": ("-job.factor(at) / added", "-job.factor(at)"),
        },
        f"{GROWTH}::test_jobs_exchange_devices_if_that_is_better": {
            "no-exchange": ("        _exchange(jobs, left)\n", "        pass\n"),
            "loss-forgotten": ("takes.factor(upper) + gives.factor(lower)", "takes.factor(upper)"),
        },
        f"{GROWTH}::test_shares_are_useful_and_leave_no_device_idle": {
            "more-than-are-left": ("if -added <= left:", "if True:"),
            "one-step-each": (
                "            jobs[place].at = at\n        offer(place)\n",
                "            jobs[place].at = at\n",
            ),
        },
        f"{GROWTH}::test_jobs_that_are_equal_grow_in_their_order": {
            "the-last-first": ("-added, place, at)", "-added, -place, at)"),
        },
    },
    "policy/idle.py": {
        f"{GROWTH}::test_a_higher_tier_grows_first": {
            "tiers-grow-together": (
                "(each.alike.precedence[:2], groups)",
                "(0, groups)",
            ),
        },
    },
}
