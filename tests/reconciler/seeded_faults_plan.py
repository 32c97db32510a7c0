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
    "reconciler/model/fitting.py": {
        (
            "tests/reconciler/test_plan.py::"
            "test_ranks_see_the_least_compute_capability_of_gpus_whose_pool_gives_none"
        ): {
            "a-gpu-whose-capability-is-not-known-has-none": (
                "major, minor = min(known, default=(0, 0))",
                "major, minor = min([cc_of(d) or (0, 0) for d in devices])",
            ),
        },
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
            "tests/reconciler/test_plan.py::"
            "test_ranks_see_the_least_compute_capability_of_gpus_whose_pool_gives_none"
        ): {
            "gpus-of-any-capability-are-alike": (
                "Groups(index.for_jobs.values())",
                "Groups(index.devices.values())",
            ),
        },
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
