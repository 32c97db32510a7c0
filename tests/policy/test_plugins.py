"""A policy that is not built in runs in a process of its own. If it fails, the last good decision
stays in force, and the next one may succeed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankfold.plugins import NoSuchPolicy, Plugin, installed
from rankfold.policy.vocabulary import Decision, Fleet, Group, Job, Rules
from support.leaks import State
from support.patience import scaled

FLEET = Fleet((Group((0, 1), 2),), 0)
JOBS = [Job(name, 1, 1, 0.0, (0,)) for name in ("a", "b")]
RULES = Rules(1)
GOOD = {"a": Decision((0,))}
Install = Callable[..., Path]


def decided(plugin: Plugin, now: float) -> dict[str, Decision]:
    return plugin.decide(FLEET, JOBS, RULES, now)


def test_an_installed_policy_is_found_and_decides(install: Install, state: State) -> None:
    assert installed() == []
    install("broken", "first_device", "raises")
    assert installed() == ["first_device", "raises"]
    with Plugin("first_device") as plugin:
        assert decided(plugin, 0.0) == GOOD and plugin.failures == []


def test_a_policy_that_is_not_installed(install: Install) -> None:
    install("broken", "first_device")
    with pytest.raises(NoSuchPolicy, match="second"):
        Plugin("second")


FAILURES = {
    "raises": "ValueError: no idea (broken.py:",
    "exits": "its process exited with 3",
    "twice": "device 0 is given to a and to b",
    "nonsense": "ValidationError: Expected `object`, got `int`",
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_policy_that_fails_changes_nothing_and_decides_again(
    name: str, install: Install, state: State
) -> None:
    install("broken", name)
    with Plugin(name) as plugin:
        assert decided(plugin, 0.0) == GOOD
        assert decided(plugin, 1.0) == {}
        (failure,) = plugin.failures
        assert failure.startswith(f"policy {name}: {FAILURES[name]}")
        assert failure.endswith("every job keeps what it has")
        assert decided(plugin, 2.0) == GOOD


def test_a_policy_that_loops_is_killed_at_its_deadline(install: Install, state: State) -> None:
    install("broken", "loops")
    with Plugin("loops", deadline_s=scaled(1.0)) as plugin:
        assert decided(plugin, 0.0) == GOOD
        assert decided(plugin, 1.0) == {}
        assert "timed out: no decision within" in plugin.failures[0]
        assert decided(plugin, 2.0) == GOOD


WAITS_FOR_EVER = """
from rankfold.plugins import Plugin
from rankfold.policy.vocabulary import Fleet, Rules
plugin, nothing = Plugin("loops", deadline_s=1e6), Fleet((), 0)
plugin.decide(nothing, [], Rules(1), 0.0)
print(plugin._process.pid, flush=True)
plugin.decide(nothing, [], Rules(1), 1.0)
"""


def test_a_policy_that_loops_ends_with_a_simulation_that_is_killed(
    install: Install, state: State
) -> None:
    install("broken", "loops")
    command = [sys.executable, "-c", WAITS_FOR_EVER]
    tests = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=tests, stdout=subprocess.PIPE, text=True) as simulation:
        assert simulation.stdout
        policy = int(simulation.stdout.readline())
        simulation.kill()
    until = time.monotonic() + scaled(10)
    while not (ended := os.waitpid(policy, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.01)
    if not ended[0]:
        os.kill(policy, signal.SIGKILL)
    assert ended == (policy, signal.SIGKILL)


def test_a_policy_may_print(
    install: Install, state: State, capfd: pytest.CaptureFixture[str]
) -> None:
    install("broken", "prints")
    with Plugin("prints") as plugin:
        assert decided(plugin, 0.0) == GOOD and decided(plugin, 1.0) == GOOD
    out, err = capfd.readouterr()
    assert out == "" and err == "not a reply\nnor this" * 2


def test_processes_of_a_policy_end_with_it(install: Install, state: State) -> None:
    """The fixture `state` fails the test if the process still lives."""
    install("broken", "starts")
    with Plugin("starts") as plugin:
        assert decided(plugin, 0.0) == GOOD


def test_one_process_gives_all_decisions(install: Install, state: State) -> None:
    install("broken", "number")
    with Plugin("number") as plugin:
        first, second = decided(plugin, 0.0), decided(plugin, 1.0)
    assert first == second and first["a"].note.isdigit()


def test_a_policy_that_cannot_be_imported(install: Install, state: State) -> None:
    folder = install("broken", "missing")
    with Plugin("missing") as plugin:
        assert decided(plugin, 0.0) == {}
        assert "AttributeError: module 'broken' has no attribute 'missing'" in plugin.failures[0]
        (folder / "broken.py").write_text("1 / 0\n")
        assert decided(plugin, 0.0) == {}
        assert "ZeroDivisionError: division by zero (broken.py:1)" in plugin.failures[1]


def test_a_large_request_and_reply_pass(install: Install, state: State) -> None:
    """More than a pipe contains at once."""
    install("broken", "number")
    jobs = [Job(f"job-{number}", 1, 1, 0.0, (0,), note="x" * 100) for number in range(5000)]
    with Plugin("number", deadline_s=scaled(20.0)) as plugin:
        assert len(plugin.decide(FLEET, jobs, RULES, 0.0)) == 5000, plugin.failures
