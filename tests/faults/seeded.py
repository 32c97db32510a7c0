"""Faults seeded into reconciler, launcher, control protocol and demo, one at a time (tree.py)."""

from __future__ import annotations

from faults.tree import Mutant

VERDICT, PROOF = "examples/demo/verdict.py", "examples/demo/proof.py"
RUN, FLEET = "examples/demo/run.py", "examples/demo/fleet.py"
ON_VERDICT, ON_PROOF = "tests/demo/test_verdict.py::", "tests/demo/test_proof.py::"
ON_FLEET = "tests/demo/test_fleet.py::"

DEMO = [
    Mutant("always-identical", VERDICT, "bit_identical=not found", "bit_identical=True",
           ON_VERDICT + "test_one_flipped_bit_of_a_parameter"),
    Mutant("parameters-not-compared", VERDICT, "        if p != q:\n", "        if False:\n",
           ON_VERDICT + "test_one_flipped_bit_of_a_parameter"),
    Mutant("ranks-not-compared", VERDICT, "if each != params[0]:", "if False:",
           ON_VERDICT + "test_one_flipped_bit_on_one_rank"),
    Mutant("losses-not-compared", VERDICT, "        if a != b\n", "        if False\n",
           ON_VERDICT + "test_one_flipped_bit_of_a_loss"),
    Mutant("steps-out-of-order", VERDICT, "if step != len(losses):", "if False:",
           ON_VERDICT + "test_lines_are_all_steps_once_and_in_order"),
    Mutant("noise-ignored", VERDICT, "raise Malformed(f\"{path}:{number}: not a step: {line!r}\")",
           "continue", ON_VERDICT + "test_lines_are_all_steps_once_and_in_order"),
    Mutant("fewer-ranks-ignored", VERDICT, "if len(reference.losses) != len(elastic.losses):",
           "if False:", ON_VERDICT + "test_fewer_ranks"),
    Mutant("cut-parameters-accepted", VERDICT, "if not data or len(data) % 4:", "if not data:",
           ON_VERDICT + "test_parameters_that_are_cut_alike_in_both_are_not_equal"),
    Mutant("partial-line-is-a-step", VERDICT, "_LINE.fullmatch(line)", "_LINE.match(line)",
           ON_VERDICT + "test_partial_lines_are_no_steps"),
    Mutant("kernels-from-birth", PROOF, "- int(counters[\"kernels_here\"])", "- 0",
           ON_PROOF + "test_kernels_are_attributed_exactly"),
    Mutant("others-may-hold-ranks", PROOF, "if len(holders) != 1:", "if False:",
           ON_PROOF + "test_another_device_with_a_rank_breaks_the_claim"),
    Mutant("pids-not-compared", PROOF, "all(len(each) == 1 for each in pids)", "True",
           ON_PROOF + "test_a_pid_that_changes_is_seen"),
    Mutant("no-step-was-lost", PROOF, "return -(-max(extra) // per_step)", "return 0",
           ON_PROOF + "test_lost_steps"),
    Mutant("skipped-steps-ignored", PROOF, "if min(extra) < 0:", "if False:",
           ON_PROOF + "test_lost_steps"),
    Mutant("missing-counters-ignored", PROOF, "if len(epochs) != 1 or not found[0]:", "if False:",
           ON_PROOF + "test_missing_counters_are_no_proof"),
    Mutant("edit-without-effect", FLEET, "        path.write_text(text)\n", "        pass\n",
           ON_FLEET + "test_every_change_is_one_line_of_one_commit"),
    Mutant("edit-of-nothing", FLEET, "if count != 1:", "if False:",
           ON_FLEET + "test_a_field_that_is_not_there_is_not_edited"),
    Mutant("commit-of-nothing", FLEET, "self._git(\"add\", \"--all\")", "pass",
           ON_FLEET + "test_every_change_is_one_line_of_one_commit"),
]  # fmt: skip

DOCTOR, CLI = "reconciler/doctor.py", "reconciler/cli.py"
ON_COMMANDS = "tests/reconciler/test_commands.py::"
COMMANDS = [
    Mutant("any-kernel-will-do", DOCTOR, "ok = tuple(numbers) >= (5, 16)", "ok = True",
           ON_COMMANDS + "test_doctor_knows_which_kernel_is_too_old"),
    Mutant("doctor-does-nothing", CLI, "findings = doctor.examine(state)", "findings = []",
           ON_COMMANDS + "test_doctor_finds_nothing_here"),
    Mutant("doctor-is-always-content", CLI,
           "EXIT_ERROR if any(f.needed and not f.ok for f in findings) else 0", "0",
           ON_COMMANDS + "test_doctor_ends_with_1_where_something_needed_is_missing"),
    Mutant("doctor-never-binds", DOCTOR, "sock.bind(str(path))", "pass",
           ON_COMMANDS + "test_doctor_says_that_a_socket_s_path_is_too_long"),
    Mutant("doctor-leaves-its-socket", DOCTOR, "path.unlink(missing_ok=True)", "pass",
           ON_COMMANDS + "test_doctor_s_socket_is_gone_afterwards"),
    Mutant("doctor-needs-no-git", DOCTOR, "Finding(\"git\", bool(found),", "Finding(\"git\", True,",
           ON_COMMANDS + "test_doctor_misses_git"),
]  # fmt: skip

LAUNCHER, PROCESS = "interpose/launcher.py", "interpose/process.py"
ON_RANK = "tests/launcher/test_rank_process.py::"
ON_CHANNEL, ON_CONFIG = "tests/launcher/test_channel.py::", "tests/launcher/test_config.py::"
LAUNCHERS = [
    Mutant("every-exit-is-0", LAUNCHER, "self.end(os.waitstatus_to_exitcode(status), None)",
           "self.end(0, None)", ON_RANK + "test_exit_status_is_recorded"),
    Mutant("signal-not-recorded", LAUNCHER, "-exit_status if exit_status < 0 else None", "None",
           ON_RANK + "test_death_by_signal_is_recorded"),
    Mutant("children-live-on", LAUNCHER,
           "            process.kill_the_rest(self.namespaced)\n            self.end(",
           "            self.end(",
           ON_RANK + "test_what_the_rank_leaves_running_is_killed"),
    Mutant("orphans-not-reaped", LAUNCHER, "self.server.add(ours, self._children)", "pass",
           ON_RANK + "test_orphans_are_reaped_while_the_rank_runs"),
    Mutant("two-launchers", LAUNCHER, "fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass",
           ON_RANK + "test_a_rank_has_one_launcher_and_one_end"),
    Mutant("ended-rank-starts-again", LAUNCHER, "if os.path.exists(config.exit_file):", "if False:",
           ON_RANK + "test_a_rank_has_one_launcher_and_one_end"),
    Mutant("namespaces-given-up", LAUNCHER,
           "if not failure.namespace or config.namespaces == \"require\":",
           "if not failure.namespace:",
           ON_RANK + "test_required_namespaces_are_not_given_up_silently"),
    Mutant("terminal-ends-launcher", LAUNCHER, "signal.signal(signum, signal.SIG_IGN)", "pass",
           ON_RANK + "test_terminal_signals_do_not_end_the_launcher"),
    Mutant("old-epoch-served", LAUNCHER, "if epoch < self.epoch or (", "if False and (",
           ON_CHANNEL + "test_the_higher_epoch_wins"),
    Mutant("overtaken-claim-waits-on", LAUNCHER, "if other.message.epoch < epoch]", "if False]",
           ON_CHANNEL + "test_a_waiting_claim_is_overtaken_by_a_higher_epoch"),
    Mutant("end-not-told", LAUNCHER,
           "self.server.post(channel, {\"event\": \"exited\", \"exit_status\": exit_status})",
           "pass",
           ON_CHANNEL + "test_who_claimed_is_told_of_the_end"),
    Mutant("image-of-the-first-kept", LAUNCHER,
           "            os.close(self._image)\n            self._image = self._make_image()\n",
           "", ON_CHANNEL + "test_a_second_process_waits_for_the_firsts_end"),
    Mutant("users-preload-first", LAUNCHER, "[*first, *map(_preloaded, preload), *users]",
           "[*first, *users, *map(_preloaded, preload)]",
           ON_CONFIG + "test_ours_comes_before_what_the_user_preloads"),
    Mutant("users-settings-overruled", LAUNCHER, "env.setdefault(\"USE_LIBUV\", \"0\")",
           "env[\"USE_LIBUV\"] = \"0\"", ON_CONFIG + "test_the_users_settings_hold"),
    Mutant("signals-stay-blocked", PROCESS, "signal.pthread_sigmask(signal.SIG_SETMASK, ())",
           "pass",
           ON_RANK + "test_a_rank_starts_with_no_signal_ignored_or_blocked"),
    Mutant("output-for-all-to-read", PROCESS, "(1, os.open(command.out, append, 0o600))",
           "(1, os.open(command.out, append, 0o644))",
           ON_RANK + "test_output_is_appended_and_private"),
    Mutant("output-overwritten", PROCESS, "os.O_WRONLY | os.O_CREAT | os.O_APPEND",
           "os.O_WRONLY | os.O_CREAT | os.O_TRUNC",
           ON_RANK + "test_output_is_appended_and_private"),
    Mutant("pids-of-the-inside", PROCESS, "int(os.readlink(\"self\", dir_fd=proc))", "os.getpid()",
           ON_RANK + "test_pids_are_those_the_outside_sees"),
    Mutant("same-first-pid", PROCESS, "first = PIDS_PER_RANK * (rank % slots + 1)",
           "first = PIDS_PER_RANK",
           ON_RANK + "test_two_ranks_may_have_any_pids_in_their_namespaces"),
    Mutant("reason-not-looked-for", PROCESS, "if not os.path.isdir(workdir):", "if False:",
           ON_RANK + "test_commands_that_cannot_start"),
    Mutant("signal-for-the-rank-alone", PROCESS, "os.kill(-1, signum)", "os.kill(2, signum)",
           ON_RANK + "test_a_signal_reaches_rank_and_children"),
]  # fmt: skip

PLACEMENT, YAML = "reconciler/placement.py", "reconciler/yamldoc.py"
ON_PLACEMENT, ON_SPEC = "tests/reconciler/test_placement.py::", "tests/reconciler/test_spec.py::"
FILES = [
    Mutant("uneven-blocks", PLACEMENT, "small, larger = divmod(world_size, devices)",
           "small, larger = 1, world_size - devices",
           ON_PLACEMENT + "test_every_rank_is_placed_once_in_order_and_evenly"),
    Mutant("cost-of-a-cut-ignored", PLACEMENT, "or cost < found[count][0]", "or False",
           ON_PLACEMENT + "test_no_other_even_cut_needs_fewer_tree_nodes"),
    Mutant("last-of-two-keys-wins", YAML, "if key in result:", "if False:",
           ON_SPEC + "test_a_wrong_addition_to_a_job"),
    Mutant("no-bound-on-values", YAML, "if self.count > NODES_MAX or len(path) > 50:",
           "if len(path) > 50:", ON_SPEC + "test_a_file_that_explodes_is_refused"),
    Mutant("lines-forgotten", YAML, "self.document.lines[(*path, key)] = line", "pass",
           ON_SPEC + "test_lines_survive_nesting_and_lists"),
    Mutant("zero-bytes-accepted", YAML, "if \"\\0\" in value:", "if False:",
           ON_SPEC + "test_values_that_no_program_or_file_name_can_hold_are_faults"),
]  # fmt: skip

CHANGES, ACT = "reconciler/changes.py", "reconciler/act.py"
MODEL, STORE = "reconciler/model.py", "reconciler/store.py"
ON_FIGURES = "tests/reconciler/test_figures.py::"
ON_PAUSE = "test_a_pause_lasts_from_the_first_device_s_cut_to_the_last_one_s_release"
FIGURES = [
    Mutant("no-pause-at-all", MODEL, "else max(0.0, end - start)", "else 0.0",
           ON_FIGURES + ON_PAUSE),
    Mutant("resumed-pause-from-the-cut", MODEL,
           "self.placed_at if self.from_gpus == 0 else self.cut_at", "self.cut_at",
           ON_FIGURES + "test_a_resumed_job_s_pause_begins_with_its_placement"),
    Mutant("suspension-ends-with-a-release", MODEL,
           "self.freed_at if self.to_gpus == 0 else self.released_at", "self.released_at",
           ON_FIGURES + "test_a_suspended_job_s_pause_ends_when_its_devices_are_seen_free"),
    Mutant("converged-at-once", MODEL, "max(0.0, self.converged_at - self.wanted_at)", "0.0",
           ON_FIGURES + ON_PAUSE),
    Mutant("pause-from-the-last-cut", CHANGES, "cut_at=min(", "cut_at=max(", ON_FIGURES + ON_PAUSE),
    Mutant("pause-to-the-first-release", CHANGES, "last = max(", "last = min(",
           ON_FIGURES + ON_PAUSE),
    Mutant("half-a-cut", CHANGES, "everywhere = bool(seen) and len(seen) == devices_now(record)",
           "everywhere = bool(seen)", ON_FIGURES + "test_a_cut_is_a_cut_of_all_devices"),
    Mutant("other-epochs-count", CHANGES, "        and there.epoch == record.epoch\n", "",
           ON_FIGURES + "test_a_cut_is_a_cut_of_all_devices"),
    Mutant("converged-unseen", CHANGES, "if converged and _fulfilled(change, record):",
           "if _fulfilled(change, record):",
           ON_FIGURES + "test_what_is_observed_without_being_as_desired_has_not_converged"),
    Mutant("converged-elsewhere", CHANGES,
           "return devices_now(record) == change.to_gpus and change.released_at is not None",
           "return change.released_at is not None",
           ON_FIGURES + "test_a_change_has_not_converged_on_another_number_of_devices"),
    Mutant("freed-unseen", CHANGES, "all(h is None or h.state == \"saved\" for h in holders)",
           "True", ON_FIGURES + "test_a_suspended_job_s_pause_ends_when_its_devices_are_seen_free"),
    Mutant("seconds-of-ranks", ACT, "held * len(set(record.placement))",
           "held * len(record.placement)",
           ON_FIGURES + "test_device_seconds_count_devices_and_not_ranks"),
    Mutant("seconds-of-now-only", ACT, "return record.gpu_seconds + held *", "return held *",
           ON_FIGURES + "test_device_seconds_count_devices_and_not_ranks"),
    Mutant("events-without-bound", STORE, "(EVENTS_KEPT,)", "(1 << 60,)",
           ON_FIGURES + "test_events_are_bounded_and_repetitions_noted_once"),
    Mutant("every-repetition-noted", STORE, "if last == (reason, message):", "if False:",
           ON_FIGURES + "test_events_are_bounded_and_repetitions_noted_once"),
    Mutant("any-format-of-the-journal", STORE, "if version != SCHEMA_VERSION:", "if False:",
           "tests/reconciler/test_store.py::test_a_file_of_another_version_is_left_as_it_is"),
]  # fmt: skip

WATCH, GIT, REVISION = "reconciler/watch.py", "reconciler/git.py", "reconciler/revision.py"
SPEC_, ENVIRONMENT = "reconciler/spec.py", "reconciler/environment.py"
ON_SAVES, ON_SECRETS = "tests/reconciler/test_saves.py::", "tests/reconciler/test_secrets.py::"
ON_WATCHING = "tests/reconciler/test_watching.py::"
ON_SILENCE = ON_WATCHING + "test_a_remote_that_falls_silent_has_a_deadline_and_is_asked_again"
ON_SLIPS = ON_SECRETS + "test_a_slip_beside_a_secret_is_refused_without_telling_it"
SOURCES = [
    Mutant("fetches-once", WATCH, "now - self._fetched_at < FETCH_S", "True", ON_SILENCE),
    Mutant("git-runs-on", GIT, "            except BaseException:\n                _end(process)\n",
           "            except BaseException:\n                pass\n", ON_SILENCE),
    Mutant("half-a-clone", WATCH, "if not (self.repo / \"HEAD\").exists():",
           "new = self.repo.with_suffix(\".new\")\n            if not new.exists() and "
           "not (self.repo / \"HEAD\").exists():",
           ON_WATCHING + "test_half_a_mirror_is_made_anew"),
    Mutant("locked-for-ever", WATCH, "if \".lock\" in str(error):", "if False:",
           ON_WATCHING + "test_half_a_mirror_is_made_anew"),
    Mutant("read-at-once", WATCH, "            if looked == before:\n", "            if True:\n",
           ON_SAVES + "test_a_directory_is_read_when_it_has_rested"),
    Mutant("restless-for-ever", WATCH, "if time.monotonic() > deadline:", "if False:",
           ON_SAVES + "test_what_changes_all_the_time_is_told"),
    Mutant("empty-files-accepted", REVISION, "if lost and not file.documents:", "if False:",
           ON_SAVES + "test_each_refusal_names_the_file_and_the_way_out"),
    Mutant("lost-ends-accepted", REVISION, "had[-1] in lost and kept < len(had)", "False",
           ON_SAVES + "test_a_file_cut_anywhere_suspends_no_job"),
    Mutant("any-loss-refused", REVISION, "had[-1] in lost and kept < len(had)", "lost",
           ON_SAVES + "test_what_is_meant_is_accepted"),
    Mutant("unreadable-is-empty", SPEC_, "onerror=fail", "onerror=lambda error: None",
           ON_SAVES + "test_a_folder_that_cannot_be_read_is_not_empty"),
    Mutant("values-of-env-told", SPEC_, "if path[:2] != ENV and path not in ((), ENV[:1]):",
           "if True:", ON_SLIPS),
    Mutant("yaml-quotes", "reconciler/yamldoc.py", "problem = _unquoted(", "problem = (", ON_SLIPS),
    Mutant("all-is-inherited", ENVIRONMENT, "return _chosen(ours, INHERITED) | dict(job.env)",
           "return dict(ours) | dict(job.env)",
           ON_SECRETS + "test_what_is_chosen_of_an_environment"),
]  # fmt: skip

MUTANTS = [*DEMO, *COMMANDS, *LAUNCHERS, *FILES, *FIGURES, *SOURCES]
