"""Faults seeded into the planner."""

from __future__ import annotations

from support.seeding import Table

TABLE: Table = {
    "reconciler/plan/placement.py": {
        (
            "tests/reconciler/test_placement.py::test_every_rank_is_placed_once_in_order_and_evenly"
        ): {
            "uneven-blocks": (
                "small, larger = divmod(world_size, devices)",
                "small, larger = 1, world_size - devices",
            ),
        },
        "tests/reconciler/test_placement.py::test_no_other_even_cut_needs_fewer_tree_nodes": {
            "cost-of-a-cut-ignored": ("or cost < found[count][0]", "or False"),
        },
    },
    "reconciler/plan/index.py": {
        (
            "tests/reconciler/test_plan.py::"
            "test_ranks_see_the_least_numbers_of_the_gpus_that_their_job_may_get"
        ): {
            "numbers-of-the-last-gpu": (
                "least[name] = min(value, least.get(name, value))",
                "least[name] = value",
            ),
        },
        (
            "tests/reconciler/test_plan.py::"
            "test_devices_are_given_away_only_when_they_are_seen_free"
        ): {
            "saved-is-not-free": (
                "any(j.state in HOLDING for j in observed.jobs)",
                "bool(observed.jobs)",
            ),
        },
        "tests/reconciler/test_plan.py::test_a_device_that_still_shows_a_job_is_not_free": {
            "free-unseen": (
                "return not any(j.state in HOLDING for j in observed.jobs) and",
                "return",
            ),
        },
        (
            "tests/reconciler/test_plan.py::"
            "test_a_device_full_of_the_code_of_earlier_jobs_begins_anew_before_the_next_one"
        ): {
            "moved-job-loses-its-proxy": ("all(device not in record.placement", "all(True"),
        },
    },
    "policy/turn.py": {
        (
            "tests/reconciler/test_plan.py::"
            "test_first_come_first_served_and_the_first_is_not_overtaken"
        ): {
            "first-is-overtaken": (
                "self._claim(unit, wanting.alike.precedence)",
                "pass",
            ),
        },
        "tests/reconciler/test_plan.py::test_a_job_that_can_never_fit_stalls_and_delays_no_other": {
            "impossible-holds-all-up": (
                "if self.could_have(unit) >= fewest:",
                "if True:",
            ),
        },
        (
            "tests/reconciler/test_fewer.py::"
            "test_it_continues_with_those_that_are_there_and_returns_to_all"
        ): {
            "never-with-fewer": (
                "return max(1, wanted - bad) if job.shrinks and not is_elastic(job) else wanted",
                "return wanted",
            ),
        },
        "tests/reconciler/test_fewer.py::test_it_waits_where_nothing_is_left": {
            "with-none": ("return max(1, wanted - bad)", "return wanted - bad"),
        },
        "tests/reconciler/test_fewer.py::test_devices_that_others_have_are_waited_for": {
            "with-whatever-is-there": ("return max(1, wanted - bad)", "return 1"),
            "no-claim-on-fewer": (
                "if self.could_have(unit) >= fewest:",
                "if self.could_have(unit) >= job.devices:",
            ),
        },
        "tests/reconciler/test_fewer.py::test_no_job_gives_up_a_device_that_serves_it": {
            "given-up-for-fewer": ("if there < max(fewest, held):", "if there < fewest:"),
        },
        (
            "tests/reconciler/test_fewer.py::"
            "test_memory_that_does_not_suffice_is_reported_and_not_waited_for"
        ): {
            "folded-without-memory": (
                "if not self.memory_allows(job, there):",
                "if there == job.devices and not self.memory_allows(job, there):",
            ),
        },
        "tests/policy/test_decide.py::test_backfill_passes_a_job_that_does_not_fit": {
            "backfill-waits-too": ("if not self._backfill:", "if True:"),
        },
    },
    "policy/fifo.py": {
        "tests/policy/test_decide.py::test_the_order_of_the_jobs_does_not_matter": {
            "order-matters": (
                'sorted(jobs, key=attrgetter("created", "name"))',
                "list(jobs)",
            ),
        },
    },
    "policy/causes.py": {
        "tests/policy/test_decide.py::test_a_change_has_a_cause_and_disturbs_a_job_that_runs": {
            "fault-is-not-named": ('return "fault"', 'return "spec"'),
        },
    },
    "policy/free.py": {
        "tests/policy/test_decide.py::test_two_jobs_get_different_devices": {
            "given-twice": ("del each[: bisect_right(each, taken[-1])]", "pass"),
        },
    },
    "policy/srtf.py": {
        "tests/policy/test_decide.py::test_the_shortest_jobs_run_and_disturb_longer_ones": {
            "victim-not-named": ("elif job.name not in fits and job.own and", "elif False and"),
            "longest-first": ("job.remaining, job.created", "-job.remaining, job.created"),
        },
        "tests/policy/test_decide.py::test_no_device_is_given_twice_by_srtf": {
            "victims-keep-devices-that-others-get": (
                "left[group] -= job.devices",
                "left[group] -= job.devices - len(job.own)",
            ),
        },
    },
    "policy/mapping.py": {
        "tests/policy/test_mapping.py::test_no_mapping_has_a_shorter_step": {
            "devices-not-counted": ("if sum(each.devices * _slots(each", "if sum(_slots(each"),
            "one-type-only": (
                "for each in used)\n    return Mapping",
                "for each in used[:1])\n    return Mapping",
            ),
        },
        "tests/policy/test_mapping.py::test_capability_is_either_throughput_or_waste": {
            "as-printed": (
                "(each.devices * (each.capability - slots / mapping.step)",
                "(1 * (each.capability - slots / mapping.step)",
            ),
        },
    },
    "policy/host_memory.py": {
        "tests/reconciler/test_plan.py::test_host_memory_is_counted_before_folding": {
            "host-memory-not-counted": (
                "return need <= before or self.others(name) + need <= self._limit",
                "return True",
            ),
        },
        (
            "tests/reconciler/test_plan.py::"
            "test_host_memory_is_counted_before_a_suspension_and_over_all_jobs"
        ): {
            "others-memory-not-counted": (
                "return self._sum - self._needs.get(name, 0)",
                "return 0",
            ),
        },
    },
    "reconciler/model/fitting.py": {
        "tests/reconciler/test_plan.py::test_device_kinds_are_not_mixed_and_are_respected": {
            "kinds-are-mixed": (
                "for group in groups if group.device.type == kind",
                "for group in groups",
            ),
        },
        (
            "tests/reconciler/test_commands.py::"
            "test_run_refuses_more_devices_than_there_are_of_one_type"
        ): {
            "devices-of-two-types": (
                "return max(self.count(job, record).values(), default=0)",
                "return sum(self.count(job, record).values())",
            ),
        },
    },
    "reconciler/plan/allocation.py": {
        (
            "tests/reconciler/test_fewer.py::"
            "test_a_job_that_has_not_begun_is_not_started_with_fewer"
        ): {
            "started-with-fewer": (
                "shrinks=record.fixed is not None and not keeps_its_number(record)",
                "shrinks=not keeps_its_number(record)",
            ),
        },
        (
            "tests/reconciler/test_fewer.py::"
            "test_a_job_whose_bits_depend_on_their_number_waits_for_its_devices"
        ): {
            "other-bits": (
                "shrinks=record.fixed is not None and not keeps_its_number(record)",
                "shrinks=record.fixed is not None",
            ),
        },
        ("tests/reconciler/test_fewer.py::test_a_device_kept_by_an_unresponsive_job_is_not_bad"): {
            "others-losses-count": ("n in failing and n not in index.held", "n in failing"),
        },
        "tests/reconciler/test_fewer.py::test_a_device_that_hangs_is_not_bad": {
            "hung-is-bad": (
                "n in failing and n not in index.held",
                "not self.index.is_up(n) and n not in self.index.held",
            ),
        },
    },
    "reconciler/plan/proxies.py": {
        (
            "tests/reconciler/test_plan.py::"
            "test_a_job_on_a_device_that_the_journal_does_not_know_is_removed"
        ): {
            "strangers-stay": (
                'if there.state != "saved" and _is_unknown(index, there.job):',
                "if False:",
            ),
        },
        "tests/reconciler/test_plan.py::test_a_device_that_leaves_the_pool_is_emptied_first": {
            "withdrawn-pools-stay": (
                "if name not in index.devices:\n            ready = False",
                "if False:\n            ready = False",
            ),
        },
    },
    "reconciler/plan/steps.py": {
        (
            "tests/reconciler/test_fewer.py::"
            "test_it_continues_with_those_that_are_there_and_returns_to_all"
        ): {
            "degraded-is-as-desired": (
                "if running and job.name in self.allocation.degraded:",
                "if False:",
            ),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_the_store_is_queried_now_and_then_for_the_owners_of_the_jobs_that_it_knows"
        ): {
            "store-not-asked": (
                "if query := saving.querying(index, self._running, now):",
                "if False:",
            ),
        },
        ("tests/reconciler/test_recovery.py::test_ranks_that_stand_still_for_nothing_are_let_go"): {
            "frozen-for-ever": (
                "elif frozen := self._frozen(job.name):\n            self.actions.append(",
                "elif frozen := ():\n            self.actions.append(",
            ),
        },
        ("tests/reconciler/test_recovery.py::test_a_launcher_that_hangs_holds_no_job_at_its_cut"): {
            "a-cut-as-long-as-a-launcher-hangs": (
                'if stand and "lost" not in states.values():',
                "if False:",
            ),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_an_old_copy_of_a_rank_is_ended_before_anything_is_let_go"
        ): {
            "an-old-incarnation-lives-on": (
                "if observed.incarnation != record.incarnation",
                "if False",
            ),
        },
    },
    "reconciler/plan/__init__.py": {
        "tests/reconciler/test_fewer.py::test_it_is_no_change_that_a_plan_shows_forever": {
            "degraded-is-a-plan": ("and name not in observed.failing", ""),
        },
    },
    "reconciler/plan/saving.py": {
        (
            "tests/reconciler/test_recovery.py::"
            "test_the_store_is_queried_now_and_then_for_the_owners_of_the_jobs_that_it_knows"
        ): {
            "only-who-is-due-is-asked-about": (
                "return QueryStore(tuple(each.name for each in known))",
                "return QueryStore(tuple(each.name for each in known[:1]))",
            ),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_a_store_that_does_not_answer_is_asked_ever_later"
        ): {
            "silent-store-asked-as-often": (
                "_doubled(QUERY_STORE_AGAIN_S, last.silent)",
                "QUERY_STORE_AGAIN_S",
            ),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_a_clock_that_was_set_back_does_not_put_the_next_save_off"
        ): {
            "saves-wait-for-a-clock-set-back": (
                "if job.save_every_s and not 0 <= now - record.saved_at < job.save_every_s:",
                "if job.save_every_s and now - record.saved_at >= job.save_every_s:",
            ),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_a_job_that_does_not_come_to_a_cut_continues_unsaved"
        ): {
            "saves-hold-a-job-up": ("if not 0 <= now - save.since < CUT_WITHIN_S:", "if False:"),
        },
        "tests/reconciler/test_recovery.py::test_a_save_that_was_cut_off_long_ago_is_given_up": {
            "saves-are-gone-on-with-for-ever": (
                (
                    'if save.stage == "stopping" or 0 <= now - save.since < CUT_WITHIN_S + '
                    "SAVE_AGAIN_S:"
                ),
                "if True:",
            ),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_jobs_that_cannot_be_saved_here_are_reported_and_not_saved"
        ): {
            "what-cannot-be-saved-is-tried": (
                "if _no_saves(index, job) or not record.saved_at:",
                "if not record.saved_at:",
            ),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_an_elastic_job_is_saved_where_processes_cannot_be"
        ): {
            "elastic-jobs-need-criu": (
                "return runtimes.no_saves(job, index.observed.no_saves)",
                "return index.observed.no_saves",
            ),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_a_job_that_cannot_be_stored_rests_in_memory_and_is_not_tried_in_a_loop"
        ): {
            "rest-is-tried-in-a-loop": (
                (
                    "job.store and not (record.save_error and 0 <= now - record.saved_at < "
                    "REST_AGAIN_S)"
                ),
                "job.store",
            ),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_a_job_that_is_resumed_while_it_is_stored_continues_and_is_not_ended"
        ): {
            "an-old-checkpoint-is-rested-in": (
                'rest = rests and save.why == "rest" and _unchanged_since_save(index, record)',
                "rest = rests",
            ),
        },
        "tests/reconciler/test_recovery.py::test_an_upload_that_takes_long_is_not_begun_again": {
            "two-uploads-at-once": ("    if transfer.lives:\n        return None\n", ""),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_an_upload_that_cannot_be_done_is_given_up_while_the_job_continues"
        ): {
            "uploads-for-ever": ("(save.tries >= TRIES and not rests)", "False"),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_an_upload_that_hangs_is_begun_again_and_given_up_after_so_many_times"
        ): {
            "hung-uploads-for-ever": ("if save.tries < TRIES or rests:", "if True:"),
        },
    },
    "reconciler/plan/restoring.py": {
        (
            "tests/reconciler/test_recovery.py::"
            "test_a_job_rests_in_the_store_without_a_process_and_continues_where_it_was"
        ): {
            "rest-before-the-ranks-are-gone": (
                (
                    "return Vacate(record.name, live) if live else Rest(record.name, "
                    "record.stored)\n\n\ndef fetching"
                ),
                "return Rest(record.name, record.stored)\n\n\ndef fetching",
            ),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_a_checkpoint_that_is_damaged_is_said_and_skipped"
        ): {
            "the-bad-checkpoint-again": (
                "without=(*record.unusable, id)",
                "without=record.unusable",
            ),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_a_restore_that_fails_leaves_nothing_and_is_tried_again"
        ): {
            "what-a-failed-restore-began-stays": (
                'if restore.failed or any(each.state == "exited" for each in ranks.values()):',
                "if False:",
            ),
        },
    },
    "reconciler/plan/ending.py": {
        "tests/reconciler/test_recovery.py::test_after_so_many_restarts_it_has_failed": {
            "restarts-for-ever": ("and record.restarts < job.max_restarts:", ":"),
        },
        "tests/reconciler/test_recovery.py::test_a_cancelled_job_does_not_restart": {
            "cancelled-and-restarted": ("if ending.phase == RESTARTING and unwanted:", "if False:"),
        },
        (
            "tests/reconciler/test_recovery.py::"
            "test_a_command_that_cannot_be_started_is_not_started_again"
        ): {
            "restarts-what-never-ran": (
                "if failed is None or _never_ran(index, record, failed):",
                "if failed is None:",
            ),
        },
        ("tests/reconciler/test_recovery.py::test_a_checkpoint_that_is_on_its_way_is_waited_for"): {
            "a-checkpoint-under-way-is-forgotten": (
                'if record.save is not None and record.save.stage == "uploading":',
                "if False:",
            ),
        },
    },
}
