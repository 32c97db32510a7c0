"""Whatever is asked of the memory of ranks, in any order; faults seeded into it are noticed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase

from . import test_beneath as beneath
from . import test_copies as copies
from . import test_forgetting as forgetting
from . import test_handing as handing
from . import test_memory as requests
from . import test_sharing as sharing
from .machine import run
from .mutants import MUTANTS, Fault
from .world import ROOM, Make, load, worlds


def test_any_requests_in_any_order(library: tuple[Any, Any]) -> None:
    run(library, 80)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_any_requests_in_any_order_at_length(library: tuple[Any, Any]) -> None:
    run(library, 5000)


# What chance shows too seldom.
RULES: tuple[Callable[[Make], None], ...] = (
    partial(sharing.test_what_a_rank_that_has_failed_holds_is_not_shared, told=False),
    partial(sharing.test_what_a_rank_that_has_failed_holds_is_not_shared, told=True),
    sharing.test_what_was_copied_is_not_shared_again_before_it_is_written,
    sharing.test_where_there_is_no_chunk_for_a_copy_the_others_let_go,
    sharing.test_what_only_begins_with_zeros_is_copied,
    sharing.test_what_was_freed_is_zeros_when_it_is_allocated_again,
    sharing.test_what_nobody_foresaw_is_of_one_rank_alone,
    sharing.test_what_is_open_is_not_closed_while_it_moves,
    sharing.test_ranks_of_two_groups_share_nothing,
    sharing.test_what_is_still_to_be_written_is_not_shared,
    sharing.test_what_is_on_its_way_out_is_not_shared,
    sharing.test_content_that_is_lost_when_pages_become_one_is_told_of,
    sharing.test_what_a_work_behind_a_fence_is_known_to_write_stays_open,
    beneath.test_a_copy_does_not_wait_for_work_that_only_reads,
    beneath.test_what_is_being_written_for_all_is_not_copied_meanwhile,
    beneath.test_what_may_write_anywhere_is_noticed_as_long_as_it_runs,
    partial(beneath.test_what_a_kernel_writes_before_the_copy_is_there_stays, when="told"),
    partial(beneath.test_what_a_kernel_writes_before_the_copy_is_there_stays, when="untold"),
    partial(beneath.test_what_a_kernel_writes_before_the_copy_is_there_stays, when="over"),
    beneath.test_what_a_kernel_writes_before_its_page_is_opened_stays,
    handing.test_what_one_has_received_others_refer_to,
    handing.test_a_part_of_a_page_is_not_handed,
    handing.test_what_is_handed_is_not_what_it_was,
    handing.test_nothing_is_handed_to_or_by_who_is_busy_or_has_failed,
    forgetting.test_what_is_forgotten_is_not_moved_out,
    forgetting.test_what_the_image_has_of_it_goes_once,
    forgetting.test_what_is_forgotten_on_its_way_out_leaves_nothing,
    forgetting.test_what_is_written_counts_again,
    forgetting.test_what_a_work_of_which_nothing_is_known_may_have_written_counts,
    forgetting.test_what_several_have_on_the_host_is_not_brought_to_who_forgets_it,
    forgetting.test_what_was_forgotten_is_not_what_others_still_hold,
    forgetting.test_what_is_let_go_of_leaves_nothing_on_the_host,
    copies.test_ranks_that_leave_together_need_no_copy_in_common,
    copies.test_a_copy_goes_when_all_have_written_something_else,
    copies.test_who_goes_out_finds_no_copy_of_another_group,
    copies.test_a_chunk_of_several_goes_out_once_and_comes_in_for_all,
    copies.test_what_was_moved_in_and_has_not_changed_is_not_moved_out,
    copies.test_a_rank_that_has_failed_does_not_believe_its_image,
    partial(copies.test_a_rank_that_has_failed_believes_no_copy, how="faulted"),
    partial(copies.test_a_rank_that_has_failed_believes_no_copy, how="stopped"),
    partial(copies.test_a_rank_that_has_failed_believes_no_copy, how="doubted"),
    partial(copies.test_a_copy_outlives_the_ranks_that_made_it, keeper=0),
    partial(copies.test_who_is_saved_has_all_in_its_own_image, stay=True),
    copies.test_what_ranks_write_alike_on_the_host_lies_there_once,
    copies.test_a_page_in_the_making_is_left_alone,
    copies.test_a_copy_that_is_being_made_is_not_there_yet,
    copies.test_ranks_of_two_groups_have_no_copy_in_common,
    copies.test_what_the_image_held_before_is_not_what_it_holds,
    requests.test_a_prefetch_takes_nothing_of_the_active_rank,
    requests.test_a_prefetch_takes_what_room_there_is,
    requests.test_who_runs_gets_room_from_who_is_prepared,
    partial(requests.test_who_is_prepared_is_saved_as_it_was, prepared=True),
)


def test_seeded_faults_fit_the_source() -> None:
    for mutant in MUTANTS:
        assert (ROOM / mutant.file).read_text().count(mutant.old) == 1, mutant.name


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_seeded_faults_are_noticed(tmp_path: Path, mutant: Fault) -> None:
    text = (ROOM / mutant.file).read_text()
    assert text.count(mutant.old) == 1
    changed = tmp_path / Path(mutant.file).name
    changed.write_text(text.replace(mutant.old, mutant.new))
    library = load(tmp_path, changed)
    with pytest.raises((AssertionError, BaseExceptionGroup)):
        for rule in RULES:
            with worlds(library) as make:
                rule(make)
        run(library, 1500, phases=[Phase.generate], database=None, report_multiple_bugs=False)
