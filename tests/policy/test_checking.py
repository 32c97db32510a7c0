"""Decisions that cannot be carried out are refused with a reason."""

from __future__ import annotations

import pytest

from rankfold.policy.checking import NOTE_MAX, objection
from rankfold.policy.vocabulary import Decision, Fleet, Group, Job

pytestmark = pytest.mark.unit

FLEET = Fleet((Group((0, 1, 2), 3), Group((3,), 1)), 0)
JOBS = [
    Job("a", 4, 2, 0.0, (0,), own=(0, 1), placed=2, on_devices=True, least=1, most=3),
    Job("b", 1, 1, 0.0, (0,)),
    Job("rests", 1, 1, 0.0, (0,), wants="none"),
    Job("elsewhere", 1, 1, 0.0, (0,), own=(9,), placed=1, on_devices=True),
]


@pytest.mark.parametrize(
    "decisions",
    [
        {},
        {"a": Decision((0, 1), stays=True), "b": Decision((2,))},
        {"a": Decision((1,)), "b": Decision((0,))},
        {"a": Decision((2, 1, 0)), "b": Decision(None, "devices")},
        {"a": Decision(()), "b": Decision((1,))},
        {"elsewhere": Decision((9,)), "rests": Decision(())},
    ],
)
def test_valid_decisions_are_accepted(decisions: dict[str, Decision]) -> None:
    assert objection(FLEET, JOBS, decisions) == ""


REFUSED = {
    "there is no job 'c'": {"c": Decision((0,))},
    "device 2 is given to a and to b": {"a": Decision((2,)), "b": Decision((2,))},
    "device 1 is given to a and to b": {"b": Decision((1,))},
    "device 2 is given to a and to a": {"a": Decision((2, 2))},
    "device 3 is not free, or not for b": {"b": Decision((3,))},
    "device 9 is not free, or not for b": {"b": Decision((9,)), "elsewhere": Decision(())},
    "device -1 is not free, or not for b": {"b": Decision((-1,))},
    "a gets 4 devices; it can use 1 to 3": {"a": Decision((0, 1, 2, 3))},
    "b gets 2 devices; it can use 1": {"a": Decision(()), "b": Decision((0, 1))},
    "rests wants no devices": {"rests": Decision((2,))},
    "a has devices: it stays, gets others, or gets none, which is ()": {"a": Decision(None)},
    f"the note of b has more than {NOTE_MAX} characters": {"b": Decision((), note="x" * 1001)},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_invalid_decisions_are_refused(reason: str) -> None:
    assert objection(FLEET, JOBS, REFUSED[reason]) == reason
