"""Which of the calls that a freeze has interrupted begin anew: none ends early, none waits
forever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rankfold.interpose.launcher.freeze.interrupted import Wait, restarted

CALL = (232, 4, 0x1000, 1, 5000, 0, 0, 0x7FFE0000, 0x7F0012345680)
RUNS = st.lists(st.integers(0, 30), min_size=1, max_size=30)


@given(timeout=st.integers(1, 30), runs=RUNS)
def test_a_call_that_looks_the_same_ends_when_its_time_is_over_and_no_sooner(
    timeout: int, runs: list[int]
) -> None:
    """`runs`: how long the rank ran between two freezes."""
    known: Wait | None = restarted(Wait(7, CALL), None, timeout, 0)
    waited = 0
    for ran in runs:
        # It has ended, and is another one, after EINTR or because its time was over.
        waited = 0 if known is None or ran >= timeout else waited + ran
        known = restarted(Wait(7, CALL), known, timeout, ran)
        assert (known is None) == (waited >= timeout)


@given(runs=RUNS)
def test_without_a_timeout_a_call_always_begins_anew(runs: list[int]) -> None:
    known = None
    for ran in runs:
        known = restarted(Wait(7, CALL), known, None, ran)
        assert known is not None


@given(runs=RUNS, which=st.integers(0, len(CALL) - 1))
def test_another_call_has_not_waited(runs: list[int], which: int) -> None:
    for number, ran in enumerate(runs):
        call = tuple(each + (number if at == which else 0) for at, each in enumerate(CALL))
        before = tuple(each + (number - 1 if at == which else 0) for at, each in enumerate(CALL))
        assert restarted(Wait(7, call), Wait(7, before, 29), 30, ran) == Wait(7, call)
