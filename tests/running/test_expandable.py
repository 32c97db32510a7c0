"""Memory that a program maps and unmaps piece by piece has the content that a plain model of it
has, wherever the job runs."""

from __future__ import annotations

from collections.abc import Sequence

import cuda
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running.test_behaviour import run_and_move

from support.leaks import State

PROGRAM = cuda.PROGRAMS / "expandable.cu"
NUMBER = st.integers(0, 11)
WHAT = st.sampled_from("ccmmmmuurtwwfkgx")
STEPS = st.lists(st.builds("{}{},{},{}".format, WHAT, NUMBER, NUMBER, NUMBER), max_size=80)


@pytest.mark.slow
def test_any_steps_folded_and_moved(state: State) -> None:
    program = cuda.build(PROGRAM)
    count = 0

    @settings(
        max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(steps=STEPS)
    def check(steps: Sequence[str]) -> None:
        nonlocal count
        count += 1
        job = run_and_move(state, program, f"steps-{count}", *steps)
        (state.folder / "go-on").unlink()
        assert [job.errors(rank) for rank in (0, 1)] == ["", ""]

    check()
