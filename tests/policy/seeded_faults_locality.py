"""Faults seeded into what keeps jobs in one node or domain, and moves others for them."""

from __future__ import annotations

from support.seeding import Table

TESTS = "tests/policy/test_locality.py"
FIGURES = "tests/reconciler/test_figures.py"
LIVE = "tests/reconciler/test_locality.py"

SIMULATED = "tests/simulate/test_locality.py"
WINDOW = f"{SIMULATED}::test_nodes_are_made_free_when_a_window_begins"

TABLE: Table = {
    "policy/windows.py": {
        f"{SIMULATED}::test_a_window_begins_each_day": {
            "the-present-moment-is-later": ("(now - at) / day) + 1", "(now - at) / day)"),
        },
    },
    "simulator/whole.py": {
        f"{WINDOW}[00:01-00:02-moves0]": {
            "window-begins-unnoticed": (
                "turn = min(turn, opens(self._windows, now))",
                "pass",
            ),
            "one-move-in-each-window": ("self._moved.append(known)", "pass"),
        },
    },
    "simulator/runs.py": {
        f"{WINDOW}[00:01-00:02-moves0]": {
            "always-open": (
                "if windows and is_open(windows, int(now // 60) % DAY):",
                "if windows:",
            ),
        },
    },
    "policy/places.py": {
        f"{TESTS}::test_the_domain_and_node_with_the_fewest_free_devices_that_suffice_are_filled": {
            "worst-fit": (
                "min(enough, key=lambda each: each[0])",
                "max(enough, key=lambda each: each[0])",
            ),
        },
        f"{TESTS}::test_a_job_of_one_domain_is_not_placed_across_domains": {
            "nodes-of-any-domain": ('"domain": (group.domain,),', '"domain": (),'),
        },
        f"{TESTS}::test_devices_are_taken_from_the_fewest_nodes": {
            "small-nodes-first": (
                "else max(units, key=lambda each: each[0])",
                "else min(units, key=lambda each: each[0])",
            ),
        },
    },
    "policy/moving.py": {
        f"{TESTS}::test_no_other_moves_take_less_time": {
            "pauses-ignored": (
                "more = (cost[0] + mover.seconds,",
                "more = (cost[0],",
            ),
        },
        f"{TESTS}::test_a_job_that_frees_more_than_is_missing_does_not_move_for_nothing": {
            "first-way-taken": (
                "(self._best is None or cost < self._best) and",
                "self._best is None and",
            ),
        },
        f"{TESTS}::test_no_job_moves_if_that_does_not_place_the_other_one": {
            "moves-to-no-place": (
                "if need <= (most := sum(free[group] for group in there)):",
                "if (most := sum(free[group] for group in there)) >= 0:",
            ),
        },
        f"{TESTS}::test_a_job_of_a_domain_moves_within_its_domain_only": {
            "moves-anywhere": (
                "there = [group for group in groups if group in free]",
                "there = [group for group in free if group not in self._leave]",
            ),
        },
    },
    "policy/precedence.py": {
        f"{TESTS}::test_when_a_job_does_not_move": {
            "moves-in-its-time": (
                "moves_for = level_of(job) + protected",
                "moves_for = level_of(job)",
            ),
            "moves-for-any-tier": (
                "moves_for = level_of(job) + protected",
                "moves_for = 0 + protected",
            ),
            "moves-beyond-its-budget": (
                "moves_for = max(moves_for, level_when_spent(borrows=False))",
                "pass",
            ),
        },
    },
    "policy/fifo.py": {
        f"{TESTS}::test_a_node_is_made_free_in_a_window_only": {
            "free-nodes-always": ("if rules.compacts and", "if"),
        },
    },
    "policy/defragmentation.py": {
        f"{TESTS}::test_when_a_job_does_not_move": {
            "exempt-moves": ("or job.name in self._exempt", ""),
        },
        f"{TESTS}::test_a_domain_is_made_free_before_a_node": {
            "nodes-first": (
                'kinds: tuple[Locality, Locality] = ("domain", "node")',
                'kinds: tuple[Locality, Locality] = ("node", "domain")',
            ),
        },
        f"{TESTS}::test_when_no_node_is_made_free": {
            "guaranteed-leave": ("return job.basis != GUARANTEED and", "return"),
            "leaves-in-its-time": ("not in self._spent and not protected", "not in self._spent"),
            "leaves-while-others-wait": ("if waits or so_far.moved", "if so_far.moved"),
        },
        f"{TESTS}::test_windows_only_make_places_free_and_end": {
            "moves-to-empty-nodes": (
                "others = (at for other in partly if other is not unit for at in other)",
                "others = (at for other in units if other is not unit for at in other)",
            ),
        },
    },
    "policy/turn.py": {
        f"{TESTS}::test_a_job_that_loses_a_device_stays_in_its_node_if_it_can": {
            "leaves-its-node": (
                "(never, missing, -len(its), free, at)",
                "(never, missing, free, at)",
            ),
        },
        f"{TESTS}::test_a_job_that_waits_has_a_claim_on_each_node_that_could_have_it": {
            "no-claim": ("if self.could_have(unit) >= fewest:", "if False:"),
            "claim-on-small-nodes": ("if self.could_have(unit) >= fewest:", "if True:"),
        },
        f"{TESTS}::test_a_job_that_is_to_be_in_one_node_from_now_on_moves": {
            "straddling-is-enough": (
                "enough = self.unit_with(job, own) is not None",
                "enough = True",
            ),
        },
    },
    "policy/idle.py": {
        f"{TESTS}::test_an_elastic_job_grows_within_its_node": {
            "grows-anywhere": (
                "key = (each.alike.precedence[:2], groups)",
                "key = (each.alike.precedence[:2], job.groups)",
            ),
        },
    },
    "policy/fractions.py": {
        f"{TESTS}::test_a_fraction_is_guaranteed_if_a_node_has_enough": {
            "guaranteed-across-nodes": (
                "groups = _where(places, job, need, left)",
                "groups = job.groups",
            ),
        },
    },
    "reconciler/observe/changes.py": {
        f"{FIGURES}::test_a_move_to_as_many_other_devices_is_a_change": {
            "moves-are-no-changes": ("(now == gpus and cause not in MOVES)", "now == gpus"),
            "moves-are-withdrawn": ("stays = not elsewhere", "pass"),
        },
    },
    "reconciler/model/fitting.py": {
        f"{LIVE}::test_a_small_job_moves_and_the_job_of_one_node_starts": {
            "nodes-are-one-group": (
                "device.only_for, device.domain, device.node",
                "device.only_for",
            ),
        },
        f"{LIVE}::test_why_a_job_of_one_node_waits": {
            "most-of-all-nodes": (
                'if job.locality == "any":\n            return max',
                "if True:\n            return max",
            ),
        },
    },
}
