"""Faults seeded into what happens to devices on which a job does not start."""

from __future__ import annotations

from support.seeding import Table

GRANTS = "tests/reconciler/test_grants.py"

TABLE: Table = {
    "reconciler/plan/grants.py": {
        f"{GRANTS}::test_devices_go_to_others_if_a_job_does_not_start_there": {
            "never-late": ("        record.granted_at > 0\n", "        record.granted_at > 1e18\n"),
            "late-for-ever": ("START_WITHIN_S + AGAIN_S\n", "1e18\n"),
        },
        f"{GRANTS}::test_saves_and_restores_are_starts": {
            "save-is-no-start": ("record.save is not None and record.save.stage", '"uploading"'),
        },
        f"{GRANTS}::test_a_fetch_that_makes_progress_is_a_start": {
            "fetch-is-no-start": (
                "transfer is None or not transfer.lives or transfer.stuck",
                "True",
            ),
        },
        f"{GRANTS}::test_a_job_that_was_suspended_is_not_late": {
            "never-cleared": ("return 0.0 if had else None", "return None"),
        },
    },
    "policy/precedence.py": {
        f"{GRANTS}::test_a_late_job_goes_last_takes_nothing_and_does_not_grow": {
            "late-job-keeps-its-place": ("job.on_devices or not job.late", "True"),
        },
    },
    "policy/turn.py": {
        f"{GRANTS}::test_a_late_job_goes_last_takes_nothing_and_does_not_grow": {
            "late-job-takes-from-others": (
                "or job.late or job.name in self.patient",
                "or job.name in self.patient",
            ),
        },
    },
    "policy/idle.py": {
        f"{GRANTS}::test_a_late_job_goes_last_takes_nothing_and_does_not_grow": {
            "late-job-grows": ("    if job.late:\n", "        if False:\n"),
        },
    },
}
