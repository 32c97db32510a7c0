"""Promise: the check of order reports accesses that nothing orders, and no others."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from order.world import (
    ATOMIC,
    BLOCKING,
    BYTES,
    FREE,
    KINDS,
    RACES_MAX,
    READ,
    WRITE,
    Access,
    Race,
    Step,
    check,
    load,
    races_of,
)

W, R, A = (Access(0, 4, use) for use in (WRITE, READ, ATOMIC))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(tmp_path_factory.mktemp("order"))


def run(stream: int, *accesses: Access) -> Step:
    return "run", stream, list(accesses)


# ---- one rule each: steps between a write in one stream and a read in another ----

RULES: dict[str, tuple[int, list[Step], int, bool]] = {
    "nothing": (4, [], 5, True),
    "one stream": (4, [], 4, False),
    "an event": (4, [("record", 1, 4), ("wait", 5, 1)], 5, False),
    "an event of before": (4, [("record", 1, 5), ("wait", 5, 1)], 5, True),
    "a wait for an event that was never recorded": (4, [("wait", 5, 1)], 5, True),
    "an event that was recorded anew": (
        4,
        [("record", 1, 4), ("record", 1, 5), ("wait", 5, 1)],
        5,
        True,
    ),
    "a wait in a third stream": (4, [("record", 1, 4), ("wait", 3, 1)], 5, True),
    "two events, by way of a third stream": (
        4,
        [("record", 1, 4), ("wait", 3, 1), ("record", 2, 3), ("wait", 5, 2)],
        5,
        False,
    ),
    "the host waited for the event": (4, [("record", 1, 4), ("see", 1)], 5, False),
    "the host waited for the stream": (4, [("see stream", 4)], 5, False),
    "the host waited for the other stream": (4, [("see stream", 5)], 5, True),
    "the host waited for the device": (4, [("see all",)], 5, False),
    "blocking streams": (2, [], 3, True),
    "blocking, then legacy": (2, [], 1, False),
    "legacy, then blocking": (1, [], 2, False),
    "non-blocking, then legacy": (4, [], 1, True),
    "legacy, then non-blocking": (1, [], 4, True),
    "something in the legacy stream": (2, [run(1)], 3, False),
    "something in the legacy stream, non-blocking": (4, [run(1)], 5, True),
    "a record in the legacy stream": (2, [("record", 1, 1)], 3, False),
    "the legacy stream's event": (2, [("record", 1, 1), ("wait", 4, 1)], 4, False),
    "the legacy stream waits for an event": (4, [("record", 1, 4), ("wait", 1, 1)], 3, False),
    "the host waited for the legacy stream": (2, [("see stream", 1)], 4, False),
    "its stream was destroyed": (4, [("destroy", 4)], 5, True),
    "its stream was destroyed, legacy": (2, [("destroy", 2)], 1, False),
    "its stream was destroyed, another one came": (
        4,
        [("destroy", 4), ("create", 9, FREE)],
        9,
        True,
    ),
    "its stream was destroyed, one came, the host waited for that": (
        4,
        [("destroy", 4), ("create", 9, FREE), run(9), ("see stream", 9)],
        5,
        True,
    ),
    "the memory was freed": (4, [("forget", 0, 4)], 5, False),
    "half of it was freed": (4, [("forget", 0, 2)], 5, True),
    "memory next to it was freed": (4, [("forget", 4, 4)], 5, True),
}


@pytest.mark.parametrize("name", RULES)
def test_ordered_and_unordered_accesses(library: Any, name: str) -> None:
    first, between, second, races = RULES[name]
    program = [run(first, W), *between, run(second, R)]
    assert races_of(library, program) == ([Race(0, len(program) - 1, True)] if races else [])
    check(library, program)


# Programs that each found a bug once, and the steps at which a race is reported.
KNOWN: list[tuple[list[Step], list[int]]] = [
    # A stream that replaces one whose work the host has seen complete.
    (
        [run(4, W), ("see stream", 4), ("destroy", 4), ("create", 9, FREE), run(9, W), run(5, R)],
        [5],
    ),
    # The first of a communicator's operations is before the third.
    ([("turn", 4, [W], 7), ("turn", 5, [], 7), ("turn", 3, [R], 7)], []),
]


@pytest.mark.parametrize(("program", "second"), KNOWN)
def test_past_bugs(library: Any, program: list[Step], second: list[int]) -> None:
    assert [race.second for race in races_of(library, program)] == second
    check(library, program)


@pytest.mark.parametrize(
    ("first", "second", "races"),
    [
        (R, R, False),
        (R, W, True),
        (W, R, True),
        (W, W, True),
        (A, A, False),
        (A, R, True),
        (R, A, True),
        (A, W, True),
        (W, A, True),
    ],
)
def test_one_of_the_two_writes(library: Any, first: Access, second: Access, races: bool) -> None:
    """Atomic additions may come in any order."""
    assert bool(races_of(library, [run(4, first), run(5, second)])) == races


@pytest.mark.parametrize(
    ("first", "second", "certain"),
    [
        (Access(0, 8, WRITE, False), Access(0, 8, READ, False), False),
        (Access(0, 8, WRITE, False), Access(0, 8, READ), True),
        (Access(2, 4, WRITE, False), Access(0, 8, READ), True),
        (Access(0, 8, WRITE, False), Access(2, 4, READ), False),
        (Access(0, 8, WRITE), Access(2, 4, READ, False), True),
        (Access(0, 4, WRITE), Access(2, 4, READ, False), False),
    ],
)
def test_a_hull_with_gaps_races_for_certain_where_the_other_has_all_of_it(
    library: Any, first: Access, second: Access, certain: bool
) -> None:
    assert races_of(library, [run(4, first), run(5, second)]) == [Race(0, 1, certain)]


def test_collectives_of_one_communicator_come_one_after_another(library: Any) -> None:
    assert races_of(library, [("turn", 4, [W], 7), ("turn", 5, [R], 7)]) == []
    assert races_of(library, [("turn", 4, [W], 7), ("turn", 5, [R], 8)]) == [Race(0, 1, True)]
    assert races_of(library, [run(4, W), ("turn", 4, [], 7), ("turn", 5, [], 7), run(5, R)]) == []


def test_a_pair_is_reported_once_however_often_it_comes(library: Any) -> None:
    ffi, lib = library
    found = []
    callback = ffi.callback("order_report", lambda _to, race: found.append(race.second.number))
    order = lib.order_open(callback, ffi.NULL)
    for stream in (4, 5):
        lib.order_stream(order, stream, FREE)
    for step in range(100):
        for stream, name, use in ((4, b"update", WRITE), (5, b"gather", READ)):
            lib.order_operation(order, stream, name, 2 * step + stream)
            lib.order_access(order, 64 * step, 64, use, True)
    assert found == [5]
    for step in range(100):
        lib.order_operation(order, 5, b"step %d" % step, 1000 + step)
        lib.order_access(order, 0, 64, WRITE, True)
    assert len(found) == RACES_MAX
    lib.order_close(order)


def test_streams_that_come_and_go_are_no_end_of_it(library: Any) -> None:
    """A place is used again when the host has seen all of it; too many at once end the check."""
    ffi, lib = library
    callback = ffi.callback("order_report", lambda _to, _race: None)
    order = lib.order_open(callback, ffi.NULL)
    for stream in range(1, 1000):
        lib.order_stream(order, stream, BLOCKING)
        lib.order_operation(order, stream, b"x", stream)
        lib.order_stream_destroyed(order, stream)
        if stream % 100 == 0:
            lib.order_host_saw_all(order)
    assert lib.order_ended(order) == ffi.NULL
    for stream in range(1000, 1300):
        lib.order_stream(order, stream, BLOCKING)
    assert b"too many streams" in ffi.string(lib.order_ended(order))
    lib.order_operation(order, 1299, b"x", 1)
    lib.order_access(order, 0, 4, WRITE, True)
    lib.order_close(order)


def test_memory_that_is_cut_into_very_many_parts_is_forgotten(library: Any) -> None:
    """It may find fewer races then; it reports nothing that is no race."""
    ffi, lib = library
    found = []
    callback = ffi.callback("order_report", lambda _to, race: found.append(race.second.number))
    order = lib.order_open(callback, ffi.NULL)
    for stream in (4, 5):
        lib.order_stream(order, stream, FREE)
    for n in range(70000):
        lib.order_operation(order, 4, b"x", n)
        lib.order_access(order, 16 * n, 8, WRITE, True)
    assert lib.order_ended(order) == ffi.NULL and found == []
    lib.order_operation(order, 5, b"y", 70000)
    lib.order_access(order, 16 * 69999, 8, READ, True)
    assert found == [70000]
    lib.order_close(order)


# ---- any program ----


@st.composite
def accesses(draw: st.DrawFn) -> Access:
    at = draw(st.integers(0, BYTES - 1))
    return Access(
        at,
        draw(st.integers(1, BYTES - at)),
        draw(st.sampled_from([READ, WRITE, WRITE, ATOMIC])),
        draw(st.sampled_from([True, True, True, False])),
    )


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    live = list(KINDS)
    steps: list[Step] = []
    fresh = 10
    for _ in range(draw(st.integers(1, 24))):
        what = draw(
            st.sampled_from(
                ["run"] * 8
                + [
                    "turn",
                    "record",
                    "record",
                    "wait",
                    "wait",
                    "see",
                    "see stream",
                    "see all",
                    "forget",
                    "create",
                    "destroy",
                ]
            )
        )
        stream, event = draw(st.sampled_from(live)), draw(st.integers(0, 2))
        if what == "run":
            steps.append((what, stream, draw(st.lists(accesses(), min_size=1, max_size=2))))
        elif what == "turn":
            steps.append((what, stream, draw(st.lists(accesses(), max_size=2)), event))
        elif what == "record":
            steps.append((what, event, stream))
        elif what == "wait":
            steps.append((what, stream, event))
        elif what == "see":
            steps.append((what, event))
        elif what == "see stream":
            steps.append((what, stream))
        elif what == "forget":
            at = draw(st.integers(0, BYTES - 1))
            steps.append((what, at, draw(st.integers(1, BYTES - at))))
        elif what == "create":
            live.append(fresh)
            steps.append((what, fresh, draw(st.sampled_from([BLOCKING, FREE]))))
            fresh += 1
        elif what == "destroy":
            if stream != 1:
                live.remove(stream)
                steps.append((what, stream))
        else:
            steps.append((what,))
    return steps


@settings(max_examples=300, deadline=None)
@given(program=programs())
def test_for_any_program_races_are_reported_if_and_only_if_they_exist(
    library: Any, program: list[Step]
) -> None:
    check(library, program)


# ---- seeded faults ----


def some_programs() -> list[list[Step]]:
    """The same for each fault: those of the rules above, and many that are drawn."""
    found = [[run(a, W), *between, run(b, R)] for a, between, b, _races in RULES.values()]
    found += [program for program, _second in KNOWN]
    draw = random.Random(11)

    def drawn() -> list[Access]:
        return [
            Access(at, draw.randint(1, 8), draw.choice([READ, WRITE, ATOMIC]), draw.random() < 0.7)
            for at in (draw.randint(0, 8) for _ in range(draw.randint(1, 2)))
        ]

    for _ in range(1500):
        steps: list[Step] = []
        for _ in range(draw.randint(2, 14)):
            stream, event = draw.choice(list(KINDS)), draw.randint(0, 1)
            steps.append(
                draw.choice(
                    [
                        ("run", stream, drawn()),
                        ("run", stream, drawn()),
                        ("run", stream, drawn()),
                        ("turn", stream, drawn(), event),
                        ("record", event, stream),
                        ("wait", stream, event),
                        ("see", event),
                        ("see stream", stream),
                        ("forget", draw.randint(0, 8), draw.randint(1, 8)),
                    ]
                )
            )
        found.append(steps)
    return found


def all_of_them(library: Any) -> None:
    for program in some_programs():
        check(library, program)
