"""A switch that says nothing sensible is refused by name, before a job is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankfold import switches
from support.command import Rankfold
from support.leaks import State
from support.patience import scaled

BAD = [
    ("RANKFOLD_REST_SAVE_AFTER", "soon", "it must be a number of seconds, or never"),
    ("RANKFOLD_REST_SAVE_AFTER", "-1", "it must be a number of seconds, or never"),
    ("RANKFOLD_LINGER", "nan", "it must be a number of seconds"),
    ("RANKFOLD_STUCK", "inf", "it must be a number of seconds"),
    ("RANKFOLD_HOST_MEMORY", "16G", "it must be a number of bytes"),
    ("RANKFOLD_CACHE_MIB", "4GiB", "it must be a number of MiB"),
    ("RANKFOLD_QUANTUM", "5m", "it must be a number of seconds"),
    ("RANKFOLD_CRIU_STUCK", "-1", "it must be a number of seconds"),
    ("RANKFOLD_VALIDATE", "-5", "it must be a number of collectives"),
    ("RANKFOLD_SHARE", "no", "it must be 0 or 1"),
    ("RANKFOLD_NVIDIA_SHARE", "true", "it must be 0 or 1"),
]


@pytest.mark.parametrize(("name", "value", "remedy"), BAD)
def test_a_command_refuses_it(name: str, value: str, remedy: str, rankfold: Rankfold) -> None:
    done = rankfold.run("status", **{name: value})
    assert done.returncode == 64
    assert f"{name} is '{value}'; {remedy}\n" in done.stderr


def test_so_does_a_reconciler_that_was_not_started_by_a_command(state: State) -> None:
    command = [sys.executable, "-m", "rankfold.reconciler.daemon", "--state", str(state.path)]
    done = subprocess.run(
        command,
        env={"RANKFOLD_STUCK": "x"},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 1
    assert done.stderr == "rankfold: RANKFOLD_STUCK is 'x'; it must be a number of seconds\n"


def test_values_of_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in [
        ("REST_SAVE_AFTER", "never"),
        ("LINGER", "0.5"),
        ("STUCK", ""),
        ("HOST_MEMORY", "4096"),
    ]:
        monkeypatch.setenv(f"RANKFOLD_{name}", value)
    switches.check()
    assert switches.rest_save_after_s() is None
    assert (switches.linger_s(), switches.stuck_s()) == (0.5, switches.STUCK_S)
    assert switches.host_memory() == 4096


def test_a_command_names_a_variable_that_is_no_switch(rankfold: Rankfold) -> None:
    done = rankfold.run("status", RANKFOLD_QUANTM="1", RANKFOLD_COLOUR="blue")
    assert done.returncode == 0
    no = "has no effect: rankfold knows no such switch"
    assert f"RANKFOLD_QUANTM {no}; did you mean RANKFOLD_QUANTUM?\n" in done.stderr
    assert f"RANKFOLD_COLOUR {no}\n" in done.stderr
