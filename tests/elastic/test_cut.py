"""The step before which processes save or exit is one that none of them has begun."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rankfold.elastic.cut import NEVER, Cut, Marks

pytestmark = pytest.mark.unit


@pytest.fixture
def cut() -> Iterator[Cut]:
    cut = Cut(None, 3)
    yield cut
    cut.close()


def test_a_checkpoint_that_is_requested_before_the_first_step_comes_after_it(cut: Cut) -> None:
    """State is first saved after a step."""
    assert cut.save_now() == 1
    assert cut.begin(0) == Marks(NEVER, 1)


def test_a_request_is_for_the_step_after_the_last_that_has_begun(cut: Cut) -> None:
    cut.continue_from(7)
    assert cut.begin(7) == Marks(NEVER, NEVER)
    assert (cut.save_now(), cut.end_now()) == (8, 8)
    assert cut.begin(8) == Marks(8, 8)
    assert cut.end_now() == 8, "some are there already"
    assert cut.ends(8) and not cut.ends(7)
    cut.no_end()
    assert not cut.ends(8)


def test_a_worker_that_others_wait_for_is_named(cut: Cut) -> None:
    """Ranks 0 and 1 share a process, and rank 2 has one: it waits where this is not noted."""
    assert cut.awaited() == [0, 1, 2]
    cut.called(0)
    cut.waits(0, True)
    cut.called(2)
    assert cut.awaited() == [1]
    cut.called(1)
    cut.waits(0, False)
    assert cut.awaited() == [0, 1, 2]
