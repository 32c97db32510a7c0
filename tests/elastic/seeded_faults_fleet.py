"""Faults seeded into what makes the elastic runtime a part of a fleet, and into its levels of
determinism."""

from __future__ import annotations

from support.seeding import Table

DEVICE = "tests/elastic/test_device.py"
RUN = f"{DEVICE}::test_a_run_is_started_held_and_ended_by_its_first_device"
FOLDER = "tests/elastic/test_state_folder.py"
RESTORE = f"{FOLDER}::test_a_restored_rank_begins_again_with_the_saved_state"
LEVELS = "tests/elastic/test_determinism.py"
FLEET = "tests/elastic/test_fleet.py"

TABLE: Table = {
    "proxy/runs.py": {
        RUN: {
            "each-device-leads": ("return self.device == 0", "return True"),
            "one-process-for-all-devices": ("processes=len(placement.devices)", "processes=1"),
            "cores-are-not-passed-on": ("if all(placement.cores) else", "if False else"),
            "continues-at-no-step": ("job.step = run", "job.began = run"),
            "cut-is-saved-before-it-is-reached": (
                'if job.state != "cut":\n            raise ControlError("no_cut", f"job {job.'
                'placement.job} is not at a cut")\n        job.saved_bytes',
                'if False:\n            raise ControlError("no_cut", f"job {job.'
                'placement.job} is not at a cut")\n        job.saved_bytes',
            ),
            "bytes-of-all-ranks": (
                "for rank in self.local}\n        names",
                "for rank in range(9)}\n        names",
            ),
            "all-ranks-are-awaited": ('job.awaited = run.get("awaited")', "pass"),
            "progress-is-not-noticed": (
                'job.moved_at = time.monotonic() - run.get("quiet_s", 0.0)',
                "pass",
            ),
            "held-after-a-withdrawal": (
                'job.ask("release", lambda _reply: self._query(job))',
                "pass",
            ),
        },
        f"{DEVICE}::test_devices_have_cores_of_their_own_and_share_them_when_there_are_more": {
            "same-cores-for-all-devices": ("(first + each) %", "each %"),
        },
        f"{DEVICE}::test_a_detach_ends_when_the_processes_have_ended": {
            "detached-before-the-processes-end": (
                '        job.ask("suspend", lambda reply: self._suspended(job, reply))',
                '        job.ask("suspend", lambda reply: None)\n        self._suspended(job, {})',
            ),
        },
        f"{DEVICE}::test_processes_that_were_killed_before_the_cut_are_held_again": {
            "refusal-is-not-reported": (
                '"reason": self.reason if self.stopping else ""',
                '"reason": ""',
            ),
            "held-once": (
                '            job.state = "stopping" if job.stopping else "running"\n'
                "            self._hold(job)",
                '            job.state = "stopping" if job.stopping else "running"',
            ),
        },
        f"{DEVICE}::test_requests_for_another_epoch_or_incarnation_are_refused": {
            "earlier-epoch-is-placed": (
                "if old and old.placement.epoch > placement.epoch:",
                "if False:",
            ),
            "earlier-incarnation-is-placed": (
                "if old and old.placement.incarnation > placement.incarnation:",
                "if False:",
            ),
            "placed-while-another-epoch-runs": ('if old and old.state != "saved":', "if False:"),
        },
    },
    "interpose/launcher/state_folder.py": {
        f"{FOLDER}::test_a_snapshot_has_the_newest_state_of_its_rank[0]": {
            "oldest-state-is-saved": ("return max(found", "return min(found"),
            "last-name-is-saved": (
                "key=lambda each: int(each.name[5:]), default=None",
                "key=lambda each: each.name, default=None",
            ),
            "state-of-all-ranks-is-not-saved": ("*(SHARED if rank == 0 else ())", "*()"),
            "saved-while-it-runs": ("if not self.frozen:", "if False:"),
        },
        f"{FOLDER}::test_a_snapshot_has_the_newest_state_of_its_rank[1]": {
            "state-of-rank-0-is-saved": ('f"rank-{rank}.pt"', '"rank-0.pt"'),
        },
        RESTORE: {
            "logs-are-not-cut": ("            snapshot.cut(config.log, about.logs)\n", ""),
            "state-is-not-restored": ("            self._copy(Path(folder, FILES))\n", ""),
            "earlier-incarnation-stays": (
                "                    shutil.rmtree(other, ignore_errors=True)",
                "                    pass",
            ),
            "restored-state-is-the-snapshot": (
                "shutil.copyfile(file, place / file.name)",
                "os.link(file, place / file.name)",
            ),
            "restored-over-a-rank": (
                "        if self.launcher.started is not None:\n            raise",
                "        if False:\n            raise",
            ),
        },
        f"{FOLDER}::test_a_snapshot_of_another_rank_is_refused": {
            "any-ranks-snapshot-is-restored": (
                "            snapshot.compare(about, config.rank, config.world_size, "
                "config.image_bytes)\n",
                "",
            ),
        },
    },
    "elastic/determinism.py": {
        f"{LEVELS}::test_no_limit_of_a_type_changes_the_bits_of_the_code_path_of_d2": {
            "onednn-uses-all-instructions": ('    "ONEDNN_MAX_CPU_ISA": "AVX2",\n', ""),
        },
        f"{LEVELS}::test_d2_is_refused_on_a_cpu_without_its_instructions": {
            "code-path-is-not-pinned": ("    os.environ.update(CODE_PATH)\n", ""),
            "any-cpu-will-do": ("if each not in flags", "if False"),
            "code-path-is-not-checked": ("if capability != CAPABILITY:", "if False:"),
        },
        f"{LEVELS}::test_d2_is_refused_when_pytorch_has_been_imported": {
            "pinned-too-late": ("if name in sys.modules:", "if False:"),
        },
    },
    "elastic/host.py": {
        f"{LEVELS}::test_d0_has_the_bits_of_stock_processes_until_their_number_changes": {
            "each-level-is-d0": (
                "        if self.stage.keeps_bits:\n            with",
                "        if False:\n            with",
            ),
        },
    },
    "reconciler/model/runtimes.py": {
        f"{FLEET}::test_a_description_that_does_not_fit_the_runtime_is_refused": {
            "jobs-of-proxies-get-cpus": (
                "return _of(device) == job.runtime",
                "return True",
            ),
            "any-type-of-device-is-accepted": ("if each not in DEVICES[runtime]", "if False"),
            "any-command-is-a-script": (
                "runtime == ELASTIC and not _is_script(command)",
                "False",
            ),
        },
        "tests/reconciler/test_spec.py::"
        "test_a_job_that_says_when_to_save_it_is_refused_where_nothing_can_be_saved": {
            "saves-of-elastic-jobs-need-criu": (
                'return "" if job.runtime == ELASTIC else no_processes',
                "return no_processes",
            ),
            "saves-of-processes-do-not-need-criu": (
                'return "" if job.runtime == ELASTIC else no_processes',
                'return ""',
            ),
        },
        f"{FLEET}::test_changes_of_the_file_and_commands_change_no_bit": {
            "output-is-elsewhere": ('f"{folder}/logs", script', "state, script"),
        },
    },
}
