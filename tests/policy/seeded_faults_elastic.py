"""Faults seeded into the resizing of elastic jobs."""

from __future__ import annotations

from support.seeding import Table

ELASTIC = "tests/policy/test_elastic.py"

TABLE: Table = {
    "policy/lending.py": {
        f"{ELASTIC}::test_as_few_jobs_as_possible_give_up_devices": {
            "disturbed-for-nothing": ("if each[1] <= -missing:", "if False:"),
        },
        f"{ELASTIC}::test_only_devices_that_a_job_may_use_count": {
            "for-nothing": ("        if missing > 0:\n            return None\n", ""),
        },
        f"{ELASTIC}::test_jobs_that_cannot_be_helped_take_no_time_for_each_elastic_job": {
            "every-lender-is-considered": (
                " or number > self._most(groups, precedence)",
                "",
            ),
        },
        f"{ELASTIC}::test_others_shrink_before_one_without_a_guarantee_is_suspended": {
            "suspended-before-others-shrink": (
                "for suspend in (False, True):",
                "for suspend in (True, False):",
            ),
        },
        f"{ELASTIC}::test_a_job_that_would_need_too_much_host_memory_keeps_its_devices": {
            "host-memory-forgotten": (
                "if not memory.allows(job.name, job.world_size, job.rank_memory, left, job.need):",
                "if False:",
            ),
        },
        f"{ELASTIC}::test_no_job_is_suspended_for_one_that_would_then_need_too_much_host_memory": {
            "need-of-the-borrower-forgotten": (
                "        self._memory.note(job.name, max(job.need, need))\n",
                "",
            ),
        },
        f"{ELASTIC}::test_host_memory_is_kept_for_a_job_until_others_have_given_up_devices": {
            "memory-given-to-a-third-job": (
                "        self._memory.note(job.name, max(job.need, need))\n",
                "",
            ),
        },
    },
    "policy/turn.py": {
        f"{ELASTIC}::test_devices_are_given_up_only_if_no_job_before_in_line_takes_them": {
            "taken-by-another-borrower": ("        self.awaited.append(set(groups))\n", ""),
        },
        f"{ELASTIC}::test_a_job_that_cannot_start_takes_nothing": {
            "for-one-that-is-blocked": ("self.lend is None or job.blocked or", "False or"),
        },
        f"{ELASTIC}::test_idle_devices_are_lent_although_a_job_has_a_claim_on_them": {
            "claims-keep-devices-idle": (
                "if group not in claimed or claimed[group] > above]",
                "if group not in claimed]",
            ),
        },
        f"{ELASTIC}::test_free_devices_are_kept_for_a_job_until_others_have_given_up_the_rest": {
            "given-to-a-third-job": (
                "        self.free.take(groups, min(free, wanted - len(option.own)))\n",
                "",
            ),
        },
    },
    "policy/idle.py": {
        f"{ELASTIC}::test_idle_devices_are_lent_although_a_job_has_a_claim_on_them": {
            "grows-once": ("< sizes_of(job)[-1]:", "< sizes_of(job)[0]:"),
        },
        f"{ELASTIC}::test_a_job_moves_to_grow_only_after_a_while": {
            "at-once": ("0 <= now - job.since < delay", "False"),
            "never-after-the-clock-is-set-back": (
                "0 <= now - job.since < delay",
                "now - job.since < delay",
            ),
        },
    },
    "policy/fifo.py": {
        "tests/policy/test_decide.py::test_a_fleet_may_list_devices_of_jobs_as_free": {
            "devices-of-others-are-free": ("if turn.free.any_of(every):", "if False:"),
        },
        f"{ELASTIC}::test_a_job_that_lost_a_device_continues_on_a_useful_number": {
            "a-useless-device-is-kept": (
                "return own[: largest(sizes_of(job), len(own)) or len(own)]",
                "return own",
            ),
        },
    },
    "policy/sizes.py": {
        f"{ELASTIC}::test_useful_numbers_of_devices_are_those_that_make_a_job_faster": {
            "one-too-few": (
                "ranks > 1 and (devices := folds(world_size, ranks - 1)) <= most",
                "ranks > 1 and (devices := folds(world_size, ranks - 1)) < most",
            ),
        },
    },
    "simulator/events.py": {
        "tests/simulate/test_events.py::test_a_resize_takes_as_long_as_the_costs_say": {
            "resizes-cost-a-resume": ("pause = self._costs.resize", "pass"),
            "devices-are-free-at-once": (
                "given = set(before).difference(devices)",
                "given = set(before) if not devices else ()",
            ),
            "waits-only-for-jobs-before-it": (
                "key=lambda each: not self._releases(each, changes[each])",
                "key=lambda each: self._releases(each, changes[each])",
            ),
        },
        "tests/simulate/test_events.py::test_elastic_jobs_do_their_work_and_no_more[fifo]": {
            "as-fast-on-fewer-devices": (
                "active.left *= slowness / active.slowness",
                "pass",
            ),
        },
    },
}
