"""Faults seeded into the launcher."""

from __future__ import annotations

from support.seeding import Table

TABLE: Table = {
    "interpose/launcher/launcher.py": {
        "tests/launcher/test_rank_process.py::test_exit_status_is_recorded": {
            "every-exit-is-0": (
                "self._first_ended(os.waitstatus_to_exitcode(status), reaped)",
                "self._first_ended(0, reaped)",
            ),
        },
        "tests/launcher/test_rank_process.py::test_death_by_signal_is_recorded": {
            "signal-not-recorded": ("-exit_status if exit_status < 0 else None", "None"),
        },
        "tests/launcher/test_rank_process.py::test_orphans_are_reaped_while_the_rank_runs": {
            "orphans-not-reaped": ("self.server.add(ours, self._children)", "pass"),
        },
        "tests/launcher/test_channel.py::test_the_higher_epoch_wins": {
            "old-epoch-served": ("if epoch < self.epoch or (", "if False and ("),
        },
        "tests/launcher/test_channel.py::test_a_waiting_claim_is_overtaken_by_a_higher_epoch": {
            "overtaken-claim-waits-on": ("if other.message.epoch < epoch]", "if False]"),
        },
        "tests/launcher/test_channel.py::test_the_claimer_is_notified_of_the_end": {
            "end-not-told": (
                'self.server.post(channel, {"event": "exited", "exit_status": exit_status})',
                "pass",
            ),
        },
        "tests/launcher/test_channel.py::test_a_second_process_waits_for_the_firsts_end": {
            "image-of-the-first-kept": (
                (
                    "            os.close(self._image)\n"
                    "            self._image = self._make_image()\n"
                ),
                "",
            ),
        },
    },
    "interpose/launcher/start.py": {
        "tests/launcher/test_rank_process.py::test_a_rank_has_one_launcher_and_one_end": {
            "two-launchers": ("fcntl.flock(log_file, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"),
            "ended-rank-starts-again": ("if os.path.exists(config.exit_file):", "if False:"),
        },
        (
            "tests/launcher/test_rank_process.py::"
            "test_required_namespaces_are_not_given_up_silently"
        ): {
            "namespaces-given-up": (
                'if not failure.namespace or config.namespaces == "require":',
                "if not failure.namespace:",
            ),
        },
        "tests/launcher/test_rank_process.py::test_terminal_signals_do_not_end_the_launcher": {
            "terminal-ends-launcher": ("signal.signal(signum, signal.SIG_IGN)", "pass"),
        },
        (
            "tests/launcher/test_several.py::"
            "test_the_reconciler_learns_why_a_launcher_does_not_start"
        ): {
            "a-launcher-that-failed-is-no-error": ("return int(any(statuses))", "return 0"),
        },
        "tests/launcher/test_several.py::test_more_than_start_at_once_all_start": {
            "only-eight-launchers": (
                "        if starting == AT_ONCE:\n",
                (
                    "        if starting == AT_ONCE:\n            break\n"
                    "        if starting == AT_ONCE:\n"
                ),
            ),
        },
    },
    "interpose/launcher/rank/remains.py": {
        "tests/launcher/test_rank_process.py::test_processes_that_outlive_the_rank_are_killed": {
            "children-live-on": ("if process.killed_all(self.launcher.namespaced):", "if True:"),
        },
    },
    "interpose/launcher/rest.py": {
        "tests/launcher/test_rest.py::test_a_rank_that_dies_of_criu_s_end_says_so": {
            "criu-not-blamed": ("and exit_status != -process.KILL", "and False"),
        },
        "tests/launcher/test_rest.py::test_a_connection_to_the_outside_ends": {
            "outside-waited-for": ("self._end_connections(self._outside)", "pass"),
        },
        "tests/launcher/test_rest.py::test_each_line_is_there_once": {
            "lines-twice": ("snapshot.cut(self.launcher.config.log, about.logs)", "pass"),
        },
        "tests/launcher/test_rest.py::test_ranks_continue_talking_to_each_other": {
            "no-wall": ("            self._build_wall(about)\n", ""),
        },
        "tests/launcher/test_rest.py::test_a_rank_that_criu_s_end_leaves_alive_is_ended": {
            "half-dumped-lives-on": (
                (
                    "            process.signal_all(process.KILL, self.launcher.namespaced)\n"
                    "            return"
                ),
                "            return",
            ),
        },
    },
    "interpose/launcher/config.py": {
        (
            "tests/launcher/test_config.py::"
            "test_user_preloads_come_before_ours_and_nvidia_s_libraries_after"
        ): {
            "users-wrappers-last": (
                "[*wrappers, *map(_preloaded, preload), *replaced]",
                "[*map(_preloaded, preload), *wrappers, *replaced]",
            ),
        },
        "tests/launcher/test_config.py::test_the_users_settings_hold": {
            "users-settings-overruled": (
                "env |= settings.not_in(env)",
                "env |= settings.SETTINGS",
            ),
        },
    },
    "interpose/launcher/rank/process.py": {
        (
            "tests/launcher/test_rank_process.py::"
            "test_a_rank_starts_with_no_signal_ignored_or_blocked"
        ): {
            "signals-stay-blocked": ("signal.pthread_sigmask(signal.SIG_SETMASK, ())", "pass"),
        },
        "tests/launcher/test_rank_process.py::test_output_is_appended_and_private": {
            "output-for-all-to-read": (
                "(1, os.open(command.out, append, 0o600))",
                "(1, os.open(command.out, append, 0o644))",
            ),
            "output-overwritten": (
                "os.O_WRONLY | os.O_CREAT | os.O_APPEND",
                "os.O_WRONLY | os.O_CREAT | os.O_TRUNC",
            ),
        },
        "tests/launcher/test_rank_process.py::test_pids_are_those_the_outside_sees": {
            "pids-of-the-inside": ('int(os.readlink("self", dir_fd=proc))', "os.getpid()"),
        },
        (
            "tests/launcher/test_rank_process.py::"
            "test_two_ranks_may_have_any_pids_in_their_namespaces"
        ): {
            "same-first-pid": (
                "first = PIDS_PER_RANK * (rank % slots + 1)",
                "first = PIDS_PER_RANK",
            ),
        },
        "tests/launcher/test_rank_process.py::test_commands_that_cannot_start": {
            "reason-not-looked-for": ("if not os.path.isdir(workdir):", "if False:"),
        },
        "tests/launcher/test_rank_process.py::test_a_signal_reaches_rank_and_children": {
            "signal-for-the-rank-alone": ("os.kill(-1, signum)", "os.kill(2, signum)"),
        },
    },
    "interpose/launcher/criu/images.py": {
        "tests/launcher/test_images.py::test_only_an_interrupted_call_begins_anew": {
            "calls-stay-interrupted": ("    registers.put(_AX, call)\n", ""),
            "signals-are-forgotten": ("or _has_signals(core)", "or False"),
        },
    },
    "interpose/launcher/snapshot/channel.py": {
        "tests/launcher/test_images.py::test_unconsumed_records_are_kept": {
            "record-in-the-making-lost": ('max(head, header["writing"])', "head"),
            "claimed-slots-lost": ("if not busy >> slot & 1:", "if True:"),
        },
    },
    "interpose/launcher/criu/sockets.py": {
        "tests/launcher/test_rest.py::test_ranks_continue_talking_to_each_other": {
            "connections-of-ranks-ended": ("astuple(each) not in ends", "True"),
        },
    },
    "interpose/launcher/criu/command.py": {
        "tests/launcher/test_rest.py::test_a_restored_rank_does_nothing_before_it_is_thawed": {
            "restored-and-gone": ('echo 1 >"$RANK_CGROUP/cgroup.freeze"', "true"),
        },
    },
    "interpose/launcher/snapshot/background_copy.py": {
        (
            "tests/launcher/test_background_copy.py::"
            "test_a_rank_that_is_ended_is_there_until_it_is_copied[while-signal]"
        ): {
            "ended-before-it-is-copied": ("self._copy.ends.append(then)", "then()"),
        },
        (
            "tests/launcher/test_background_copy.py::"
            "test_a_rank_that_is_ended_is_there_until_it_is_copied[forever-vacate]"
        ): {
            "who-hangs-over-a-copy-is-waited-for": (
                "            if work.look():\n                os.kill(pid",
                "            if False:\n                os.kill(pid",
            ),
        },
        "tests/launcher/test_background_copy.py::test_the_next_snapshot_waits_for_it": {
            "the-next-is-not-waited-with": (
                "if self._copy is None or not self._copy.rank_thawed:",
                "if True:",
            ),
        },
        (
            "tests/launcher/test_background_copy.py::"
            "test_a_process_killed_during_it_costs_that_snapshot_only[copies]"
        ): {
            "copied-and-not-locked": ("fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_UN"),
        },
    },
    "interpose/launcher/files/tracker.py": {
        (
            "tests/launcher/test_background_copy.py::"
            "test_a_job_that_swaps_continues_from_it_with_the_same_bits[False]"
        ): {
            "who-copies-is-of-the-rank": ("if e.pid not in self.workers", ""),
        },
        "tests/launcher/test_files.py::test_files_are_set_back_to_what_they_were[again]": {
            "names-below-renamed-folders-lost": ("in _below(new):", "in ():"),
        },
    },
    "interpose/launcher/files/restoring.py": {
        "tests/launcher/test_files.py::test_files_are_set_back_to_what_they_were[again]": {
            "later-files-stay": ("elif made and path not in self._present:", "elif False:"),
        },
        (
            "tests/launcher/test_files.py::"
            "test_a_database_comes_back_in_the_middle_of_a_transaction"
        ): {
            "files-with-other-numbers": (
                "if not self._stays(entry) and not self._rewritten(entry):",
                "if not self._stays(entry):",
            ),
        },
        "tests/launcher/test_files.py::test_ranks_that_share_a_file_are_both_set_back": {
            "first-rank-loses-its-file": (
                "if self._done.get(entry.path) == [list(entry.was), now]:",
                "if False:",
            ),
        },
    },
    "interpose/launcher/snapshot/snapshot.py": {
        "tests/launcher/test_rest.py::test_an_unfit_snapshot_is_refused_before_anything_starts": {
            "states-of-any-version": ("about.state not in (0, version):", "False:"),
        },
        (
            "tests/launcher/test_files.py::"
            "test_an_input_that_differs_is_named_and_nothing_is_changed[other]"
        ): {
            "inputs-not-looked-at": ("restoring.compare(saved)", "pass"),
        },
    },
    "interpose/launcher/criu/undumpable.py": {
        "tests/launcher/test_own_namespaces.py::test_unsaveable_namespaces_are_named[--net-net]": {
            "sandbox-not-seen": ("{'self' if first else rank.pid}", "{rank.pid}"),
        },
        (
            "tests/launcher/test_own_namespaces.py::test_unsaveable_namespaces_are_named[--mount-mnt]"
        ): {
            "mounts-of-its-own-not-seen": ("return own != rank.mounts", "return False"),
        },
    },
}
