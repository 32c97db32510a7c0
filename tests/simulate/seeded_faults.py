"""Faults seeded into the simulator, and into the schedulers that follow its fleet."""

from __future__ import annotations

from support.seeding import Table

EVENTS = "tests/simulate/test_events.py"
FORECAST = "tests/simulate/test_forecast.py"
PLOT = "tests/simulate/test_plot.py"
WORKLOADS = "tests/simulate/test_workloads.py"
TRACES = "tests/simulate/test_traces.py"
FOLLOWING = "tests/policy/test_incremental.py"
ALONE = "tests/simulate/test_alone.py"

QUEUED = "tests/simulate/test_queued.py"
PUBLISHED = "tests/simulate/test_published.py"

MIXED = f"{WORKLOADS}::test_a_mixed_job"

TABLE: Table = {
    "policy/mixing.py": {
        "tests/policy/test_mixing.py::test_jobs_take_devices_that_fewer_others_can_use": {
            "the-first-group-is-taken": ("-added, users[group], at)", "-added, at, at)"),
        },
        "tests/policy/test_mixing.py::test_the_devices_are_shared_well": {
            "numbers-of-devices-ignored": (
                "(-gain / added, -added, users",
                "(-gain, -added, users",
            ),
        },
        "tests/policy/test_mixing.py::test_no_device_is_given_twice_and_a_fixed_point_is_reached": {
            "devices-are-given-twice": ("free[job.groups[at]] += added", "pass"),
        },
    },
    "policy/idle.py": {
        "tests/policy/test_mixing.py::test_a_higher_tier_grows_first": {
            "tiers-mix-together": ("levels.setdefault(level, [])", "levels.setdefault(0, [])"),
        },
    },
    "simulator/events.py": {
        f"{MIXED}_is_as_fast_as_eq_1_says": {
            "types-are-equal": (
                "used = [(counts[kind], each)",
                "used = [(counts[kind], 1.0)",
            ),
            "devices-of-the-type-before": (
                "bisect_right(self._last, position)",
                "bisect_right(self._last, position - 1)",
            ),
        },
        f"{MIXED}_continues_with_its_work_when_its_devices_change": {
            "work-is-not-scaled": ("active.left *= slowness / active.slowness", "pass"),
        },
        "tests/simulate/test_actions.py::test_each_action_has_its_cost_and_its_reason": {
            "cost-of-actions-forgotten": (
                "before, devices, pause, *why)",
                "before, devices, 0.0, *why)",
            ),
        },
        f"{EVENTS}::test_costs_delay_jobs_and_are_counted_as_lost": {
            "suspension-frees-at-once": ("if self._costs.suspend:", "if False:"),
            "pause-is-progress": ("active.paused += paused", "pass"),
        },
        f"{EVENTS}::test_a_pause_that_a_suspension_cuts_short_counts_as_long_as_it_was": {
            "pause-shortens-the-job": (
                "active.end - max(now, active.computes_at)",
                "active.end - now",
            ),
        },
        f"{EVENTS}::test_work_is_conserved": {
            "work-begins-anew": (
                "active.left = max(0.0, active.end - max(now, active.computes_at))",
                "pass",
            ),
        },
        f"{EVENTS}::test_a_job_gets_no_more_devices_than_there_are": {
            "more-than-there-are": (
                "devices = min(job.max, kind.most(job.locality))",
                "devices = job.max",
            ),
        },
        f"{EVENTS}::test_it_decides_as_the_planner_would_on_all_jobs": {
            "remaining-not-updated": (
                "self._scheduler.expect(active.job.name, pause + active.left, now, pause)",
                "pass",
            ),
        },
    },
    "simulator/trace.py": {
        f"{EVENTS}::test_a_job_with_fewer_devices_than_ranks_takes_longer": {
            "ranks-divided-evenly": (
                "math.ceil(self.world_size / devices)",
                "(self.world_size / devices)",
            ),
        },
    },
    "simulator/result.py": {
        "tests/simulate/test_actions.py::test_a_job_that_is_suspended_resumes": {
            "resumed-is-started": ('return "start" if first else "resume"', 'return "start"'),
        },
        f"{EVENTS}::test_percentiles_are_values_that_occur": {
            "one-too-late": (
                "math.ceil(len(ordered) * part / 100) - 1",
                "len(ordered) * part // 100",
            ),
        },
    },
    "simulator/forecast.py": {
        f"{FORECAST}::test_a_job_that_is_suspended_later_continues_with_what_it_has_left": {
            "begins-anew": (
                "            self.left = max(0.0, self.left - ",
                "            max(0.0, self.left - ",
            ),
        },
        f"{FORECAST}::test_a_job_whose_end_is_not_known_frees_no_device": {
            "unknown-ends-at-once": (
                "if self.left is None or not self.devices:",
                "if not self.devices:",
            ),
        },
        f"{FORECAST}::test_a_job_takes_longer_where_devices_have_several_ranks": {
            "folding-costs-nothing": ("max(0.0, self.left) * self._ranks()", "max(0.0, self.left)"),
        },
        f"{FORECAST}::test_devices_in_use_count_for_their_quota_from_now_on": {
            "use-of-quotas-forgotten": ("shares.change(job, len(job.own), now)", "pass"),
        },
    },
    "simulator/whole.py": {
        f"{ALONE}::test_the_decisions_are_those_on_all_jobs": {
            "devices-of-jobs-that-ended-are-not-free": (
                "self._free.put(known.job.groups[0], known.devices)",
                "pass",
            ),
            "jobs-that-could-grow-have-all": (
                "return len(decision.devices or ()) >= most and",
                "return bool(decision.devices) and",
            ),
        },
        f"{ALONE}::test_a_job_that_finds_enough_free_devices_takes_no_time_for_the_others": {
            "each-decision-is-on-all-jobs": (
                "if self._alone and len(jobs) == len(self._known):",
                "if False:",
            ),
        },
        f"{FORECAST}::test_a_suspended_job_continues_with_what_it_had_left": {
            "devices-forgotten": ("self.devices = job.own", "self.devices = ()"),
        },
    },
    "simulator/plot.py": {
        f"{PLOT}::test_a_long_trace_is_averaged_and_loses_no_device_second": {
            "change-counted-twice": ("since, devices, at = time,", "since, devices, at = left,"),
        },
        f"{PLOT}::test_areas_are_one_above_another": {
            "areas-not-stacked": ("            below = above\n", ""),
        },
        f"{PLOT}::test_names_are_text_and_not_markup": {
            "name-is-markup": ("return escape(text, quote=False)", "return text"),
        },
    },
    "reconciler/commands/simulate.py": {
        "tests/simulate/test_command.py::test_wrong_use": {
            "nan-is-a-time": ("if math.isnan(number):", "if False:"),
        },
        "tests/simulate/test_actions.py::test_grants_only_lead_to_the_same_outcome": {
            "grants-in-another-order": ("sorted(result.spans, key=first)", "result.spans[::-1]"),
        },
        "tests/simulate/test_actions.py::test_the_command_writes_a_table": {
            "trace-overwritten": ("        _keep_inputs(option, path, inputs)\n", ""),
            "one-file-for-both": ("if len(written) != len(set(written)):", "if False:"),
        },
    },
    "simulator/table.py": {
        f"{TRACES}::test_files_that_are_no_regular_ones_are_refused_at_once": {
            "devices-are-read": ("if stat.S_ISREG(mode):", "if not stat.S_ISFIFO(mode):"),
        },
        f"{TRACES}::test_errors_are_refused_with_line_and_column": {
            "first-column": ("start = 1 + sum(", "start = 1 + 0 * sum("),
            "open-end": ("if not text.endswith", "if False and not text.endswith"),
            "any-float": ("if NUMBER.fullmatch(value) else", "if value[-1:].isdigit() else"),
        },
    },
    "simulator/formats.py": {
        f"{TRACES}::test_errors_are_refused_with_line_and_column": {
            "rounded-work-is-kept": ('_lasts(row, "work", job)', "pass"),
        },
        f"{TRACES}::test_errors_in_a_philly_trace": {
            "order-not-checked": ("if jobs and seconds < jobs[-1].arrival:", "if False:"),
            "fleet-not-checked": (
                "if fewest > (most := kind.most(locality)):",
                "if not (most := 1):",
            ),
        },
    },
    "simulator/queued.py": {
        f"{QUEUED}::test_the_decisions_are_those_on_all_jobs": {
            "lines-without-precedence": (
                "return (job.groups, tier, job.priority, job.guarantee != 0, job.begun)",
                "return (job.groups,)",
            ),
            "guarantees-of-lines-ignored": (
                "lambda job, decision: not decision.admitted, 1",
                "lambda job, decision: True, 0",
            ),
            "a-place-in-line-kept": ("                    self._leave(known.job)\n", ""),
        },
        f"{QUEUED}::test_lines_are_decided_on_until_one_of_their_jobs_waits": {
            "only-two-start": ("if not self._still(jobs[last], found[last]):", "if False:"),
        },
        f"{QUEUED}::test_a_decision_takes_no_time_for_the_jobs_that_wait": {
            "all-that-wait-are-decided-on": (
                "for _, name in line[: numbers[key]]:",
                "for _, name in line:",
            ),
        },
    },
    "simulator/runs.py": {
        f"{QUEUED}::test_with_other_limits_every_job_is_decided_on": {
            "backfill-leaves-jobs-out": ('return name != "backfill" and not', "return not"),
            "waits-ignored": (
                "limits = bool(rules.quotas) or rules.max_wait > 0",
                "limits = bool(rules.quotas)",
            ),
        },
    },
    "simulator/published.py": {
        f"{PUBLISHED}::test_las_demotes_a_job_that_was_served_for_16_device_hours": {
            "demoted-at-an-event-only": ("if devices and not known.job.note:", "if False:"),
        },
        f"{PUBLISHED}::test_optimus_counts_what_is_left_of_a_job_in_steps": {
            "left-on-any-number": ("folds(job.world_size, self._share[job.name])", "1"),
        },
        f"{PUBLISHED}::test_each_kind_of_device_is_decided_on_apart": {
            "kinds-together": ("parts[job.groups[0]].append(job)", "parts[0].append(job)"),
        },
        f"{PUBLISHED}::test_traces_that_they_cannot_run_are_refused": {
            "locality-ignored": ('if any(job.locality != "any" for job in jobs):', "if False:"),
            "fewest-devices-ignored": ("if job.min > 1:", "if False:"),
        },
    },
    "simulator/easyscale.py": {
        f"{WORKLOADS}::test_a_job_that_keeps_its_bits_may_mix_types": {
            "steps-of-one-type": (
                'steps_s = SAME_BITS.get(row.text("application"), steps_s)',
                "pass",
            ),
            "the-faster-the-slower": ("step_s / of_type[each.type]", "of_type[each.type] / step_s"),
        },
        f"{WORKLOADS}::test_a_job_of_easyscale_takes_its_steps_on_the_type_that_it_prefers": {
            "always-the-first-type": ("steps_s[TYPES.index(preferred)]", "steps_s[0]"),
            "parts-of-steps": ("math.ceil(epochs * EPOCH * samples", "(epochs * EPOCH * samples"),
        },
        f"{WORKLOADS}::test_its_rows_are_sorted_and_replaced_and_the_last_has_no_end": {
            "not-sorted": (
                "sorted(jobs.values(), key=lambda job: job.arrival)",
                "[*jobs.values()]",
            ),
        },
    },
    "simulator/gavel.py": {
        f"{WORKLOADS}::test_numbers_that_were_not_measured_have_the_speed_of_the_next_lower_one": {
            "speed-of-fewer-devices": (
                "measured[nearest] * devices / nearest",
                "measured[nearest]",
            ),
        },
        f"{WORKLOADS}::test_errors_in_a_workload_of_gavel": {
            "clusters-in-one-order": ("last.get(cluster, (0.0, 0))", 'last.get("a", (0.0, 0))'),
        },
    },
    "simulator/pollux.py": {
        "tests/simulate/test_pollux.py::test_one_device_accumulates_a_batch_above_the_smallest": {
            "one-go-on-one-device": ("more = max(1, more)", "pass"),
        },
        "tests/simulate/test_pollux.py::test_a_placement_counts_as_the_least_of_its_rotations": {
            "sorted-placement": (
                "turned = min(placement[at:] + placement[:at] for at in range(len(placement)))",
                "turned = placement",
            ),
        },
        "tests/policy/test_published.py::test_each_job_takes_as_long_as_published[3]": {
            "fractions-of-seconds": (
                "round((end - self.progress) / rate)",
                "(end - self.progress) / rate",
            ),
            "mean-of-epoch-ends": ("min(epochs[at].progress", "max(epochs[at].progress"),
        },
    },
    "simulator/ticks.py": {
        "tests/simulate/test_pollux.py::test_a_policy_gets_its_notes_back": {
            "notes-forgotten": ("active.note = decision.note", "pass"),
        },
        "tests/simulate/test_pollux.py::test_a_changed_placement_costs_a_pause[200]": {
            "pause-forgotten": ("active.pause -= pause", "active.pause = 0.0"),
        },
    },
    "policy/incremental.py": {
        f"{FOLLOWING}::test_they_decide_the_same": {
            "last-waiting-first": (
                "(_, name), kind = heapq.heappop(heads)",
                "(_, name), kind = heads.pop()",
            ),
        },
        f"{FOLLOWING}::test_a_job_that_still_fits_is_not_stopped": {
            "stopped-and-started-again": ("if stopped.pop(rank[2], None) is None:", "if True:"),
        },
        f"{EVENTS}::test_an_event_does_not_cost_more_where_more_jobs_wait_and_run": {
            "every-job-is-considered": (
                "return (job.groups[0], job.devices)",
                "return (job.groups[0], hash(job.name))",
            ),
        },
    },
    "policy/ranked.py": {
        f"{FOLLOWING}::test_sizes_before_a_key_are_added_up": {
            "sum-not-reduced": ("self._sums[block] -= size", "pass"),
            "empty-block-stays-last": ("if not keys and len(self._keys) > 1:", "if False:"),
        },
    },
}
