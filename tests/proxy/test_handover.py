"""Promise: a program cannot tell that its rank was handed over, whatever it had made, changed and
destroyed before; and what is handed over is as large as what is alive, whatever has been.

Two ranks do the same, one of them is handed over again and again: all that they are answered and
all memory must be equal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hostile.records import (
    COMM_DESTROY,
    MODULE_DATA,
    MODULE_UNLOAD,
    REDOP_CREATE,
    REDOP_DESTROY,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankfold.proxy.hal.soft.modules import Loader
from support.moving_rank import GLOBALS, OPERATIONS, Operation, Program, alive, moving
from support.ring_client import (
    ASYNC_ERROR,
    DEVICE_SYNC,
    EVENT_CREATE,
    EVENT_DESTROY,
    STREAM_CREATE,
    STREAM_DESTROY,
    RingClient,
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 40), st.integers(0, 40)),
        st.just(("move", 0, 0)),
    ),
    max_size=60,
)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_any_creates_changes_and_destroys(kernels: Loader, steps: list[Operation]) -> None:
    with moving(kernels) as moved, moving(kernels) as stays:
        for made in (moved, stays):
            alive(made.program)
        for step in [*steps, ("move", 0, 0)]:
            if step[0] == "move":
                moved.move()
            else:
                assert moved.program.do(step) == stays.program.do(step), step
        assert moved.program.look() == stays.program.look()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=500, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
def test_any_creates_changes_and_destroys_at_length(
    kernels: Loader, steps: list[Operation]
) -> None:
    test_any_creates_changes_and_destroys.hypothesis.inner_test(kernels, steps)  # type: ignore[attr-defined]


def pairs(make: Callable[[int], tuple[int, bytes]], end: int) -> Callable[[RingClient, int], None]:
    """Makes so many with MAKE (their opcode and body, by handle), and destroys each at once."""

    def run(client: RingClient, count: int) -> None:
        for handle in range(10_000, 10_000 + count):
            opcode, body = make(handle)
            client.post(opcode, body)
            client.post(end, struct.pack("<Q", handle))
            if handle % 500 == 0:
                assert client.call(DEVICE_SYNC) == 0

    return run


HISTORY: dict[str, tuple[Callable[[RingClient, int], None], int]] = {
    "streams": (
        pairs(lambda h: (STREAM_CREATE, struct.pack("<QIi", h, 0, 0)), STREAM_DESTROY),
        10_000,
    ),
    "events": (
        pairs(lambda h: (EVENT_CREATE, struct.pack("<QII", h, 0, 0)), EVENT_DESTROY),
        10_000,
    ),
    "reductions": (
        pairs(lambda h: (REDOP_CREATE, struct.pack("<QQII8x", h, 20, 7, 0)), REDOP_DESTROY),
        10_000,
    ),
    "modules": (
        pairs(lambda h: (MODULE_DATA, struct.pack("<QQII", h, 0, 64, 0)), MODULE_UNLOAD),
        1_000,
    ),
}


@pytest.mark.parametrize("kind", HISTORY)
def test_a_state_does_not_grow_with_history(kernels: Loader, kind: str) -> None:
    run, count = HISTORY[kind]
    with moving(kernels) as m:
        alive(m.program)
        small = m.move()
        run(m.program.client, count)
        assert m.program.client.call(DEVICE_SYNC) == 0
        assert m.program.client.u32(ASYNC_ERROR) == 0
        assert m.move() == small


def load_and_join(program: Program, n: int) -> None:
    for name in ("module", "function", "comm", "split"):
        assert all(error == 0 for error, _ in program.do((name, -1, 1))), name
    program.do(("module", 0, 0))  # refused
    program.do(("function", -1, 0))  # of a module that is not there
    last = program.handles
    program.client.call(MODULE_UNLOAD, struct.pack("<Q", last["module"][-2]))
    program.client.free(GLOBALS + 512 * program.loads)
    for comm in last["comm"][-2:]:
        program.client.call(COMM_DESTROY, struct.pack("<Q", comm))
    program.do(("alloc", 7, n))
    program.do(("free", 7, 0))


def test_a_state_does_not_grow_with_what_was_loaded_and_joined(kernels: Loader) -> None:
    """The same for what is answered by others: modules with functions, communicators, buffers."""
    with moving(kernels) as m:
        alive(m.program)
        load_and_join(m.program, 0)  # memory that was never used is known to be zero, freed is not
        small = m.move()
        for n in range(1, 100):
            load_and_join(m.program, n)
        assert m.program.client.call(DEVICE_SYNC) == 0
        assert m.move() == small < 16_384
