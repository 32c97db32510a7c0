"""Rules for aborted communicators that chance shows too seldom: one short story each.

In each of them the ranks have more to do, and the job stops before they have done it.
"""

from __future__ import annotations

from typing import Any

from barrier.properties import run
from barrier.world import WORLD, Group, Init, Record, Round, Sync, Transfer, Violation, Work, World

Native = tuple[Any, Any]
MORE: list[Record] = [Work(), Sync()] * 300
ROUND = Group((Round(WORLD),))


def _joined(native: Native, *programs: list[Record]) -> World:
    """A rank per device; all have joined one communicator, and nothing else has happened."""
    n = len(programs)
    init = Init(WORLD, tuple(range(n)))
    world = World(native, [[init, *p, *MORE] for p in programs], list(range(n)), n, seed=n)
    for rank in range(n):
        world.turn("consume", rank)
    world.settle()
    return world


def _stops(world: World) -> None:
    run(world, lambda: world.at_cut, "after the request", hurry=False)
    world.check_cut()
    if any(r.exited for r in world.ranks):
        raise Violation("the job stopped only when a rank had nothing more to do")
    world.close()


def a_channel_that_its_receiver_never_used(native: Native) -> None:
    """A rank that has aborted the communicator does not owe what is sent to it."""
    world = _joined(native, [Group((Transfer(0, 1),))], [])
    world.turn("consume", 0)
    world.abort_now(1, WORLD)
    world.settle()
    world.request(0)
    _stops(world)


def a_round_that_completes_in_spite_of_the_abort(native: Native) -> None:
    """A rank waits for it when the stop is requested; as soon as it is complete, the job stands."""
    world = _joined(native, [ROUND], [ROUND])
    for rank in range(2):
        world.turn("consume", rank)
    world.turn("complete", 1)
    world.abort_now(1, WORLD)
    world.settle()
    world.request(0)
    world.settle()
    world.turn("complete", 0)
    _stops(world)


def an_unfinished_round_of_the_meta_allreduce(native: Native) -> None:
    """All abort the communicator that spans the job while one of its rounds is under way."""
    world = _joined(native, [ROUND, ROUND], [ROUND])
    for rank in range(2):
        world.turn("consume", rank)
    for rank in range(2):
        world.turn("complete", rank)
    world.settle()
    world.turn("consume", 0)
    world.settle()
    for rank in range(2):
        world.abort_now(rank, WORLD)
    world.settle()
    world.request(0)
    _stops(world)


def a_round_that_one_member_has_begun(native: Native) -> None:
    """Its number is the target; the member that never called it owes nothing."""
    world = _joined(native, [ROUND], [], [])
    world.turn("consume", 0)
    world.abort_now(2, WORLD)
    world.request(0)
    world.settle()
    world.abort_now(0, WORLD)
    world.settle()
    _stops(world)


def a_round_that_needs_a_member_with_something_else_before(native: Native) -> None:
    """It joins a communicator first, which no other rank owes it: all may run while a rank
    waits."""
    world = _joined(native, [ROUND], [Init(5, (1,)), ROUND], [ROUND])
    for rank in (0, 2):
        world.turn("consume", rank)
    world.abort_now(2, WORLD)
    world.lost[0, WORLD, 1] = False
    world.request(0)
    world.settle()
    _stops(world)


RULES = (
    a_round_that_needs_a_member_with_something_else_before,
    a_channel_that_its_receiver_never_used,
    a_round_that_completes_in_spite_of_the_abort,
    an_unfinished_round_of_the_meta_allreduce,
    a_round_that_one_member_has_begun,
)
