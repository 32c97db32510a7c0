"""A seeded fault is noticed where an assertion fails or the process crashes, and nowhere else."""

from __future__ import annotations

import os
import signal

import pytest

from support.seeding import noticed


def fails() -> None:
    raise AssertionError


def several_fail() -> None:
    raise ExceptionGroup("two", [AssertionError(), ExceptionGroup("one", [AssertionError()])])


def is_wrong() -> None:
    raise KeyError("what a test forgot")


def exits() -> None:
    os._exit(7)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_failed_assertion_and_a_crash_are_noticed() -> None:
    assert noticed(fails) and noticed(several_fail) and noticed(os.abort)
    assert not noticed(lambda: None)


@pytest.mark.parametrize(
    ("check", "said"),
    [(is_wrong, "what a test forgot"), (exits, "exited with 7"), (is_killed, "exited with -9")],
)
def test_whatever_else_happens_fails_the_test(check: object, said: str) -> None:
    assert callable(check)
    with pytest.raises(AssertionError, match=said):
        noticed(check)
