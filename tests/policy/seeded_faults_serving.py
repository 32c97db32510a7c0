"""Faults seeded into services: how many replicas run, and what is taken for them."""

from __future__ import annotations

from support.seeding import Table

SERVING = "tests/policy/test_serving.py"
SERVICES = "tests/reconciler/test_services.py"

TABLE: Table = {
    "policy/serving.py": {
        f"{SERVING}::test_numbers_of_replicas": {
            "one-replica-too-few": (
                "math.ceil(load / per_replica)",
                "math.floor(load / per_replica)",
            ),
            "fewest-forgotten": ("max(least, math.ceil(", "max(0, math.ceil("),
        },
        f"{SERVING}::test_more_at_once_and_fewer_after_the_delay": {
            "fewer-at-once": ("if now - since < delay:", "if now - since < 0:"),
            "never-fewer": ("if now - since < delay:", "if True:"),
            "peak-forgotten": ("max(before.most, wanted)", "wanted"),
            "delay-continues": ("if before is None or wanted >= before.number:", "if False:"),
        },
        f"{SERVING}::test_a_clock_that_is_set_back_starts_the_delay_again": {
            "waits-for-the-old-time": (
                "if before.since is not None and before.since <= now:",
                "if before.since is not None:",
            ),
        },
        f"{SERVING}::test_limits_that_change_hold_at_once": {
            "old-limits": (
                "return least if found is None else min(most, max(least, found.number))",
                "return least if found is None else found.number",
            ),
        },
    },
    "policy/causes.py": {
        f"{SERVING}::test_training_is_shrunk_before_it_is_suspended_by_tier": {
            "cause-forgotten": ("if any(each.serving for each in lender.borrowers):", "if False:"),
            "replica-moves-by-spec": (
                'return "serving" if job.serving else "spec"',
                'return "spec"',
            ),
        },
    },
    "reconciler/journal/rows.py": {
        f"{SERVICES}::test_the_number_of_replicas_follows_the_load": {
            "one-idle-too-few": ("idle=job.replica >= number", "idle=job.replica > number"),
        },
    },
    "reconciler/journal/journal.py": {
        f"{SERVICES}::test_the_number_of_replicas_follows_the_load": {
            "plan-is-kept": (
                "policy = self._policy(), self._replicas()",
                "policy = self._policy()",
            ),
        },
    },
    "reconciler/services.py": {
        f"{SERVICES}::test_a_load_that_cannot_be_read_changes_nothing": {
            "forgotten-when-unknown": ("        return before\n", "        return None\n"),
        },
    },
    "reconciler/observe/loads.py": {
        f"{SERVICES}::test_loads": {
            "waits-for-a-writer": ("os.O_RDONLY | os.O_NONBLOCK", "os.O_RDWR | os.O_NONBLOCK"),
            "infinite-load": (" or not 0 <= value <= LOAD_MAX", ""),
        },
        f"{SERVICES}::test_loads_at_urls": {
            "answer-without-deadline": ("if time.monotonic() > deadline:", "if False:"),
            "answer-without-limit": ("if len(content) > URL_BYTES_MAX:", "if False:"),
            "first-value-only": ("math.fsum(_float(each) for each in values)", "_float(values[0])"),
        },
    },
    "reconciler/plan/ending.py": {
        f"{SERVICES}::test_a_replica_restarts_however_it_ended": {
            "success-is-the-end": ('(*RESTARTABLE, "Completed")', "RESTARTABLE"),
            "cancelled-restarts": (
                "if job is not None and job.service is not None and not job.cancelled:",
                "if job is not None and job.service is not None:",
            ),
        },
        f"{SERVICES}::test_a_replica_that_keeps_exiting_waits_before_it_starts_again": {
            "no-pause": ("return 0.0 if ran_for >= RAN_S else RESTART_S", "return 0.0"),
            "always-pauses": ("return 0.0 if ran_for >= RAN_S else RESTART_S", "return RESTART_S"),
        },
    },
    "reconciler/source/revision.py": {
        f"{SERVICES}::test_a_service_may_be_lowered_in_a_watched_directory": {
            "replicas-are-files": ("name = object.spec.service.replica(0)", "pass"),
        },
        f"{SERVICES}::test_a_plan_starts_no_replica_that_rests": {
            "planned-as-if-all-ran": (
                "created=known.created, idle=known.idle",
                "created=known.created",
            ),
            "new-ones-run": ("jobs[name] = in_service(job, {})", "jobs[name] = job"),
        },
    },
    "reconciler/source/spec.py": {
        f"{SERVICES}::test_replicas_and_jobs_share_their_names": {
            "names-not-compared": ('self._name(file, doc, "Job", job.name)', "pass"),
        },
        f"{SERVICES}::test_a_service_of_a_quota_and_a_url": {
            "metric-forgotten": ('if "metric" in load else ""', 'if False else ""'),
            "quota-of-replicas-too-small": (
                'least = ("spec", "replicas"), job.service.least',
                'least = ("spec", "replicas"), 1',
            ),
        },
    },
}
