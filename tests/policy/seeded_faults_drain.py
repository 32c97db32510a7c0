"""Faults seeded into the draining of devices."""

from __future__ import annotations

from support.seeding import Table

DRAIN = "tests/policy/test_drain.py"
PLANNED = "tests/reconciler/test_drain.py"

TABLE: Table = {
    "policy/turn.py": {
        f"{DRAIN}::test_without_another_device_it_waits_and_returns": {
            "stays-on-drained-devices": (
                "if job.on_devices and job.drained and not disturbs:",
                "if False:",
            ),
        },
        f"{DRAIN}::test_it_continues_on_fewer_as_when_devices_are_bad": {
            "drained-jobs-need-as-many": (" if job.on_devices and not job.drained else 0", ""),
        },
        f"{DRAIN}::test_it_stays_while_host_memory_does_not_suffice": {
            "drained-jobs-exceed-host-memory": ("if self.memory_allows(job, 0):\n", "if True:\n"),
        },
        f"{DRAIN}::test_a_lower_tier_makes_way_and_a_protected_one_does_not": {
            "drained-jobs-wait-for-no-other": ("job.drained and not disturbs:", "job.drained:"),
        },
    },
    "reconciler/plan/allocation.py": {
        f"{PLANNED}::test_a_new_job_gets_no_drained_device": {
            "drained-devices-are-given": (
                "            and not index.is_drained(names[position])\n",
                "",
            ),
        },
        f"{PLANNED}::test_a_job_waits_on_its_devices_while_others_are_started": {
            "started-devices-forgotten": ("self._coming(group) if self._drained else 0", "0"),
        },
        f"{PLANNED}::test_a_job_moves_and_the_device_returns_to_service": {
            "drained-devices-are-kept": (
                "        if self.index.is_drained(device):\n",
                "        if False:\n",
            ),
        },
    },
    "reconciler/report/differences.py": {
        f"{PLANNED}::test_a_plan_says_whom_a_drain_disturbs": {
            "drained-jobs-not-planned": ('(*DISTURBING, "drain")', "DISTURBING"),
        },
    },
}
