"""Faults seeded into the reconciler and its commands."""

from __future__ import annotations

from support.seeding import Table

TABLE: Table = {
    "reconciler/report/doctor.py": {
        "tests/reconciler/test_commands.py::test_doctor_knows_which_kernel_is_too_old": {
            "any-kernel-will-do": ("ok = tuple(numbers) >= (5, 16)", "ok = True"),
        },
        "tests/reconciler/test_commands.py::test_doctor_says_that_a_socket_s_path_is_too_long": {
            "doctor-never-binds": ("sock.bind(str(path))", "pass"),
        },
        "tests/reconciler/test_commands.py::test_doctor_s_socket_is_gone_afterwards": {
            "doctor-leaves-its-socket": ("path.unlink(missing_ok=True)", "pass"),
        },
        "tests/reconciler/test_commands.py::test_doctor_misses_git": {
            "doctor-needs-no-git": ('Finding("git", bool(path),', 'Finding("git", True,'),
        },
    },
    "reconciler/commands/run.py": {
        (
            "tests/reconciler/test_stalls.py::test_run_prints_a_reason_again_only_after_another_one"
        ): {
            "run-repeats-why-it-waits": (
                'say(f"rankfold: {why}")\n            self.reported = why',
                'say(f"rankfold: {why}")\n        self.reported = why',
            ),
        },
    },
    "reconciler/commands/looking.py": {
        "tests/reconciler/test_commands.py::test_doctor_finds_nothing_here": {
            "doctor-does-nothing": ("findings = doctor.examine(state)", "findings = []"),
        },
        (
            "tests/reconciler/test_commands.py::"
            "test_doctor_ends_with_1_where_something_needed_is_missing"
        ): {
            "doctor-is-always-content": (
                "EXIT_ERROR if any(f.needed and not f.ok for f in findings) else 0",
                "0",
            ),
        },
    },
    "reconciler/source/yamldoc.py": {
        "tests/reconciler/test_spec.py::test_a_wrong_addition_to_a_job": {
            "last-of-two-keys-wins": ("if key in result or (", "if ("),
        },
        "tests/reconciler/test_spec.py::test_a_file_that_explodes_is_refused": {
            "no-bound-on-values": (
                "level: int) -> None:\n        self.count += 1",
                "level: int) -> None:\n        self.count += 0",
            ),
        },
        "tests/reconciler/test_yaml.py::test_refused_yaml_is_named_with_its_line": {
            "tags-ignored": ('node.tag in ("", "!") or', "True or"),
        },
        "tests/reconciler/test_spec.py::test_lines_survive_nesting_and_lists": {
            "lines-forgotten": ("self.document.lines.update({(*path", "dict({(*path"),
        },
        (
            "tests/reconciler/test_spec.py::"
            "test_values_that_no_program_or_file_name_can_hold_are_faults"
        ): {
            "zero-bytes-accepted": ('if "\\0" in value:', "if False:"),
        },
    },
    "reconciler/observe/sharing.py": {
        (
            "tests/reconciler/test_sharing.py::"
            "test_nothing_is_reported_of_another_epoch_or_while_it_rests"
        ): {
            "sharing-of-an-earlier-epoch": ("report.epoch == record.epoch", "True"),
        },
        "tests/reconciler/test_sharing.py::test_overhead_is_a_share_of_all_its_devices_time": {
            "overhead-of-one-device": (
                "seconds = sum(each.seconds for each in spent)",
                "seconds = spent[0].seconds",
            ),
        },
        (
            "tests/reconciler/test_sharing.py::"
            "test_beyond_five_percent_there_is_a_condition_with_what_most_of_it_is"
        ): {
            "overhead-of-a-beginning": ('shares["seconds"] < STARTUP_S', "False"),
            "overhead-that-is-little": ("total <= OVERHEAD_MAX", "False"),
            "overhead-for-another-reason": ("max(REASONS, key=", "min(REASONS, key="),
        },
    },
    "reconciler/model/recorded.py": {
        "tests/reconciler/test_figures.py::test_device_seconds_count_devices_and_not_ranks": {
            "seconds-of-ranks": (
                "now - self.placed_since) * len(set(self.placement))",
                "now - self.placed_since) * len(self.placement)",
            ),
            "seconds-of-now-only": ("return self.gpu_seconds + self._since", "return self._since"),
        },
        (
            "tests/reconciler/test_figures.py::"
            "test_a_pause_lasts_from_the_first_device_s_cut_to_the_last_one_s_release"
        ): {
            "no-pause-at-all": ("else max(0.0, end - start)", "else 0.0"),
            "converged-at-once": ("max(0.0, self.converged_at - wanted)", "0.0"),
        },
        (
            "tests/reconciler/test_figures.py::test_a_resumed_job_s_pause_begins_with_its_placement"
        ): {
            "resumed-pause-from-the-cut": (
                "self.placed_at if self.from_gpus == 0 else self.cut_at",
                "self.cut_at",
            ),
        },
        (
            "tests/reconciler/test_figures.py::"
            "test_a_suspended_job_s_pause_ends_when_its_devices_are_seen_free"
        ): {
            "suspension-ends-with-a-release": (
                "self.freed_at if self.to_gpus == 0 else self.released_at",
                "self.released_at",
            ),
        },
    },
    "reconciler/observe/changes.py": {
        (
            "tests/reconciler/test_figures.py::"
            "test_a_pause_lasts_from_the_first_device_s_cut_to_the_last_one_s_release"
        ): {
            "pause-from-the-last-cut": ("cut_at=min(", "cut_at=max("),
            "pause-to-the-first-release": ("last = max(", "last = min("),
        },
        "tests/reconciler/test_figures.py::test_a_cut_is_a_cut_of_all_devices": {
            "half-a-cut": (
                "everywhere = bool(observed_jobs) and len(observed_jobs) == devices_now(record)",
                "everywhere = bool(observed_jobs)",
            ),
            "other-epochs-count": ("        and there.epoch == record.epoch\n", ""),
        },
        (
            "tests/reconciler/test_figures.py::"
            "test_an_observed_but_different_object_has_not_converged"
        ): {
            "converged-unseen": (
                "if (converged or change.cause) and _fulfilled(change, record):",
                "if _fulfilled(change, record):",
            ),
        },
        (
            "tests/reconciler/test_figures.py::"
            "test_a_change_has_not_converged_on_another_number_of_devices"
        ): {
            "converged-elsewhere": (
                ("return devices_now(record) == change.to_gpus and change.released_at is not None"),
                "return change.released_at is not None",
            ),
        },
        (
            "tests/reconciler/test_figures.py::"
            "test_a_suspended_job_s_pause_ends_when_its_devices_are_seen_free"
        ): {
            "freed-unseen": ('all(h is None or h.state == "saved" for h in holders)', "True"),
        },
    },
    "reconciler/act/saves.py": {
        (
            "tests/reconciler/test_recovery_actions.py::"
            "test_repeated_failures_are_reported_with_their_number"
        ): {
            "requests-without-end": ("tries < saving.REQUEST_TRIES", "True"),
        },
        (
            "tests/reconciler/test_recovery_actions.py::"
            "test_a_save_that_fails_lets_everybody_go_and_says_why"
        ): {
            "a-failed-save-lets-nobody-go": (
                'if error or action.devices or save.why != "rest":',
                "if not error:",
            ),
        },
        (
            "tests/reconciler/test_recovery_actions.py::"
            "test_a_journal_that_cannot_be_written_does_not_hold_the_job"
        ): {
            "a-full-journal-holds-the-job": (
                (
                    "            yield from self._resume_ranks(action)\n            raise\n"
                    "        cut = time.monotonic()"
                ),
                "            raise\n        cut = time.monotonic()",
            ),
        },
        (
            "tests/reconciler/test_recovery_actions.py::"
            "test_the_last_checkpoints_are_known_and_a_request_is_answered"
        ): {
            "checkpoints-without-end": ("checkpoint)[-action.keep :]", "checkpoint)"),
        },
    },
    "reconciler/act/transfers.py": {
        (
            "tests/reconciler/test_recovery_actions.py::"
            "test_a_restore_is_another_incarnation_and_leaves_its_ranks_frozen"
        ): {
            "a-restore-of-the-same-incarnation": (
                "incarnation=record.incarnation + 1,",
                "incarnation=record.incarnation,",
            ),
        },
        (
            "tests/reconciler/test_recovery_actions.py::"
            "test_remains_of_others_are_removed_before_an_upload"
        ): {
            "later-saves-tidied-away": ("tidy(job, used, record.saves)", "tidy(job, used)"),
            "what-rests-on-disk-removed": (
                "(record.save, record.restore, record.local_snapshot)",
                "(record.save, record.restore)",
            ),
        },
    },
    "reconciler/act/restores.py": {
        (
            "tests/reconciler/test_recovery_actions.py::"
            "test_nothing_begins_anew_before_the_old_launchers_are_seen_gone"
        ): {
            "anew-beside-the-old": ("if self.node.lives(job, rank):", "if False:"),
        },
    },
    "reconciler/journal/journal.py": {
        "tests/reconciler/test_figures.py::test_events_are_bounded_and_repetitions_noted_once": {
            "events-without-bound": ("(EVENTS_MAX,)", "(1 << 60,)"),
            "every-repetition-noted": ("if last == (reason, message):", "if False:"),
        },
        "tests/reconciler/test_journal.py::test_a_file_of_another_version_is_left_as_it_is": {
            "any-format-of-the-journal": ("if version != SCHEMA_VERSION:", "if False:"),
        },
        (
            "tests/reconciler/test_journal.py::"
            "test_a_row_that_does_not_hold_what_it_should_is_named"
        ): {
            "any-row": (
                "            raise self._bad_row(table, row, error) from error",
                "            return kind()",
            ),
            "rows-not-looked-at": ("                self.check()\n", "                pass\n"),
        },
        ("tests/reconciler/test_journal.py::test_a_long_lived_job_keeps_its_past_for_a_while"): {
            "other-jobs-actions-forgotten": (
                "WHERE job = ? ORDER BY rowid DESC",
                "WHERE job != ? ORDER BY rowid DESC",
            ),
        },
    },
    "reconciler/source/reader.py": {
        (
            "tests/reconciler/test_watching.py::"
            "test_a_remote_that_falls_silent_has_a_deadline_and_is_asked_again"
        ): {
            "fetches-once": (" or now - self._fetched_at >= FETCH_S", ""),
        },
        "tests/reconciler/test_saves.py::test_a_directory_is_read_when_it_has_rested": {
            "read-at-once": ("            if looked == before:\n", "            if True:\n"),
        },
        "tests/reconciler/test_saves.py::test_a_file_that_never_stops_changing_is_reported": {
            "restless-for-ever": ("if time.monotonic() > deadline:", "if False:"),
        },
        (
            "tests/reconciler/test_backoff.py::"
            "test_a_source_that_stays_away_is_opened_again_ever_later"
        ): {
            "no-back-off-of-sources": ("min(AGAIN_MAX_S, again * 2)", "AGAIN_MIN_S"),
            "back-off-without-bound": ("min(AGAIN_MAX_S, again * 2)", "again * 2"),
        },
    },
    "reconciler/source/git.py": {
        (
            "tests/reconciler/test_watching.py::"
            "test_a_remote_that_falls_silent_has_a_deadline_and_is_asked_again"
        ): {
            "git-runs-on": (
                "            except BaseException:\n                _end(process)\n",
                "            except BaseException:\n                pass\n",
            ),
        },
    },
    "reconciler/source/refs.py": {
        "tests/reconciler/test_watching.py::test_half_a_mirror_is_made_anew": {
            "half-a-clone": (
                'if not (self.repo / "HEAD").exists():',
                (
                    'new = self.repo.with_suffix(".new")\n'
                    '        if not new.exists() and not (self.repo / "HEAD").exists():'
                ),
            ),
            "locked-for-ever": ('if ".lock" in str(error):', "if False:"),
        },
        "tests/reconciler/test_reader.py::test_a_repository_elsewhere_is_mirrored_and_fetched": {
            "fetch-never-fetches": ("self._fetch(self.git)", "pass"),
        },
    },
    "reconciler/source/revision.py": {
        "tests/reconciler/test_saves.py::test_each_refusal_names_the_file_and_the_way_out": {
            "empty-files-accepted": ("if lost and not file.documents:", "if False:"),
            "half-a-file-accepted": (
                "if not file.ended and file.path not in never_ended:",
                "if False:",
            ),
        },
        "tests/reconciler/test_saves.py::test_a_file_cut_anywhere_suspends_no_job": {
            "lost-ends-accepted": ("had[-1] in lost and kept_here < len(", "False and len("),
        },
        "tests/reconciler/test_saves.py::test_intended_edits_are_accepted": {
            "any-loss-refused": ("had[-1] in lost and kept_here < len(", "lost or 0 > len("),
        },
    },
    "reconciler/source/spec.py": {
        "tests/reconciler/test_saves.py::test_a_folder_that_cannot_be_read_is_not_empty": {
            "unreadable-is-empty": ("onerror=fail", "onerror=lambda error: None"),
        },
        (
            "tests/reconciler/test_spec.py::"
            "test_other_faults_of_a_document_with_a_value_that_cannot_be_used_are_reported"
        ): {
            "one-fault-hides-others": (
                "if not _touches(each[0], doc.unusable)]",
                "if not doc.unusable]",
            ),
            "reported-twice": ("if not _touches(each[0], doc.unusable)]", "]"),
        },
    },
    "reconciler/source/schemas.py": {
        (
            "tests/reconciler/test_secrets.py::"
            "test_a_slip_next_to_a_secret_is_refused_without_revealing_it"
        ): {
            "values-of-env-told": ("if path[:2] != ENV and path not in ((), ENV[:1]):", "if True:"),
        },
    },
    "reconciler/node/environment.py": {
        "tests/reconciler/test_secrets.py::test_variables_chosen_from_an_environment": {
            "all-is-inherited": (
                "return _chosen(ours, INHERITED) | dict(job.env)",
                "return dict(ours) | dict(job.env)",
            ),
        },
        "tests/reconciler/test_secrets.py::test_no_output_log_or_file_has_a_secret": {
            "values-of-env-shown": (
                "return [name for name, _ in env]",
                'return [f"{name}={value}" for name, value in env]',
            ),
        },
    },
    "reconciler/source/followed.py": {
        "tests/reconciler/test_saves.py::test_an_emptied_file_is_refused_and_its_job_runs_on": {
            "empty-files-not-looked-for": ("faults += emptied_files(loaded, objects)", "pass"),
        },
    },
    "reconciler/observe/processes.py": {
        (
            "tests/reconciler/test_processes.py::"
            "test_a_device_that_starts_slowly_or_hangs_is_not_bad"
        ): {
            "slow-is-bad": (
                "if len(starts) >= BAD_AFTER and name not in observed_devices and",
                "if len(starts) >= BAD_AFTER and",
            ),
        },
        (
            "tests/reconciler/test_processes.py::"
            "test_a_device_whose_proxy_ends_again_and_again_is_bad_until_it_answers"
        ): {
            "bad-for-ever": ("if n not in devices or not devices[n].ready}", "}"),
            "bad-is-not-kept": ('self.journal.set("failing", now)', "pass"),
        },
    },
    "reconciler/act/takeover.py": {
        (
            "tests/reconciler/test_takeover.py::"
            "test_nothing_is_restored_while_a_copy_runs_on_this_machine"
        ): {
            "restored-beside-another-copy": ("if state is not None:", "if False:"),
            "who-moves-is-taken-to-rest": (" and not record.placement", ""),
        },
        (
            "tests/reconciler/test_takeover.py::"
            "test_jobs_that_run_end_when_the_store_reports_that_they_continue_elsewhere"
        ): {
            "taken-over-and-runs-on": ("if taken and now.step", "if False and now.step"),
            "taken-back-and-ended": (" and now.known == before[job]", ""),
        },
        (
            "tests/reconciler/test_takeover.py::"
            "test_a_store_that_cannot_be_asked_ends_nothing_and_that_is_said"
        ): {
            "one-that-is-silent-is-one-that-answers": (
                "if all(why and not taken for taken, why in answers.values()):",
                "if False:",
            ),
        },
    },
    "reconciler/node/launchers.py": {
        ("tests/reconciler/test_takeover.py::test_a_killed_query_of_the_store_has_not_answered"): {
            "who-asked-and-was-killed-has-answered": (
                "_last_words(words) or exited",
                "_last_words(words) and exited",
            ),
        },
    },
    "reconciler/journal/retention.py": {
        "tests/reconciler/test_retention.py::test_runs_of_the_last_day_are_kept_however_many": {
            "runs-of-today-forgotten": ("> DAY_S", "> -1e9"),
        },
        "tests/reconciler/test_retention.py::test_the_last_completed_runs_are_kept": {
            "runs-forgotten-that-go-on": (' and record.step == "ended"', ""),
            "jobs-of-files-forgotten": (" and each.source is None", ""),
        },
        (
            "tests/reconciler/test_retention.py::test_the_last_files_of_devices_in_no_pool_are_kept"
        ): {
            "locks-that-are-held-removed": (" and not is_locked(file)", ""),
        },
    },
}
