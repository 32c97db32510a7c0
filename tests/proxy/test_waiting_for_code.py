"""Promise: while code of a rank is loaded or compiled, its device says so, and not that the rank
computes on the host."""

from __future__ import annotations

import select
import struct

import pytest

from rankfold.proxy.native import EVENT_FUNCTION, EVENT_MODULE, Native
from rankfold.proxy.ptx.arithmetic import Use
from rankfold.proxy.ptx.errors import (
    INVALID_IMAGE,
    INVALID_PTX,
    NO_BINARY_FOR_GPU,
    NOT_FOUND,
    UNKNOWN,
)
from rankfold.proxy.ptx.info import Access, FunctionInfo, ModuleInfo, module_info
from rankfold.proxy.ptx.sets import Sets
from support.computing import (
    FIRST_FUNCTION,
    FUNCTION_GET,
    MODULE,
    MODULE_DATA,
    MODULE_LOAD,
    NAMES,
    Computing,
    source,
)
from support.ring_client import (
    BULK_BYTES,
    DEV_BASE,
    OFF_BULK,
    attach,
    device,
    hand_over,
    leave,
    until,
)


def at(native: Native) -> str:
    found = native.rank_status(1, 0)
    assert found is not None
    return found.at


def token_of(native: Native, kind: int) -> int:
    """The token of the request that the core makes to the proxy's Python code."""
    tokens: list[int] = []

    def has_token() -> bool:
        tokens.extend(event.token for event in native.events() if event.kind == kind)
        return bool(tokens)

    until(has_token, native)
    return tokens[0]


def test_a_rank_that_waits_for_its_code() -> None:
    rank, image = Computing(0, 1, DEV_BASE), source()
    rank.map[OFF_BULK : OFF_BULK + len(image)] = image
    with device() as native:
        attach(native, rank)
        assert at(native) == "host"
        rank.post(MODULE_DATA, struct.pack("<QQII", MODULE, 0, len(image), 0))
        rank.begin(MODULE_LOAD, struct.pack("<QQII", MODULE, len(image), 1, 0))
        token = token_of(native, EVENT_MODULE)
        assert at(native) == "code"
        native.module_ready(token, NOT_FOUND)
        assert rank.finish() == NOT_FOUND and at(native) == "host"
        leave(native)
    rank.close()


def reason_in(rank: Computing, bulk: int) -> str:
    first = OFF_BULK + bulk * BULK_BYTES
    return bytes(rank.map[first : first + 1000]).split(b"\0")[0].decode()


WORD = Sets(words=((24, Use.READ),))
VARIABLE = (Access(1 << 20, 8, Use.READ, 0),)


@pytest.mark.parametrize(
    ("sets", "variables", "reason"),
    [(WORD, (), "byte 24 of its parameters"), (Sets(), VARIABLE, "its module's variables")],
)
def test_the_reason_of_a_refusal_reaches_the_rank(
    sets: Sets, variables: tuple[Access, ...], reason: str
) -> None:
    """Code that cannot be loaded is refused, and access sets beyond a kernel's own memory."""
    rank, image = Computing(0, 1, DEV_BASE), source()
    rank.map[OFF_BULK : OFF_BULK + len(image)] = image
    module = module_info(image.decode())
    kernel = FunctionInfo("tally", 0, ((0, 24),), 24, 0, 1024, 9, 0, 0, 80, sets, variables)
    with device() as native:
        attach(native, rank)

        def load(error: int, info: ModuleInfo | None, why: str) -> int:
            rank.post(MODULE_DATA, struct.pack("<QQII", MODULE, 0, len(image), 0))
            rank.begin(MODULE_LOAD, struct.pack("<QQII", MODULE, len(image), 1, 3))
            native.module_ready(token_of(native, EVENT_MODULE), error, info, why)
            return rank.finish()

        assert load(INVALID_PTX, None, "no .version") == INVALID_PTX
        assert reason_in(rank, 2) == "no .version"
        assert load(0, module, "") == 0
        rank.begin(FUNCTION_GET, struct.pack("<QQII", MODULE, 50, 4, 5) + b"tally")
        native.function_ready(token_of(native, EVENT_FUNCTION), 0, kernel)
        assert rank.finish() == INVALID_IMAGE
        assert reason_in(rank, 4).startswith("kernel tally: ") and reason in reason_in(rank, 4)
        leave(native)
    rank.close()


@pytest.mark.parametrize("kind", [EVENT_MODULE, EVENT_FUNCTION])
@pytest.mark.parametrize("error", [INVALID_PTX, UNKNOWN])
def test_code_that_rankfold_fails_to_load_fails_its_rank(kind: int, error: int) -> None:
    """Code that it refuses is for the program to handle."""
    rank, image = Computing(0, 1, DEV_BASE), source()
    rank.map[OFF_BULK : OFF_BULK + len(image)] = image
    with device() as native:
        attach(native, rank)
        rank.post(MODULE_DATA, struct.pack("<QQII", MODULE, 0, len(image), 0))
        rank.begin(MODULE_LOAD, struct.pack("<QQII", MODULE, len(image), 1, 3))
        token = token_of(native, EVENT_MODULE)
        if kind == EVENT_MODULE:
            native.module_ready(token, error, None, "why not")
        else:
            native.module_ready(token, 0, module_info(image.decode()))
            assert rank.finish() == 0
            rank.begin(FUNCTION_GET, struct.pack("<QQII", MODULE, 50, 4, 5) + b"tally")
            native.function_ready(token_of(native, EVENT_FUNCTION), error, None, "why not")
        assert rank.finish() == error
        found = native.rank_status(1, 0)
        assert found is not None
        failed = (UNKNOWN, "why not") if error == UNKNOWN else (0, "")
        assert (found.error, found.error_text) == failed
        leave(native)
    rank.close()


def test_a_moved_rank_says_why_a_kernel_cannot_run_there() -> None:
    """Its module's answer may come after its kernel's."""
    rank, image = Computing(0, 1, DEV_BASE), source()
    rank.map[OFF_BULK : OFF_BULK + len(image)] = image
    kernel = FunctionInfo("store", 0, ((0, 24),), 24, 0, 1024, 9, 0, 0, 80, Sets(), ())
    with device() as here, device() as there:
        attach(here, rank)
        rank.post(MODULE_DATA, struct.pack("<QQII", MODULE, 0, len(image), 0))
        rank.begin(MODULE_LOAD, struct.pack("<QQII", MODULE, len(image), 1, 3))
        here.module_ready(token_of(here, EVENT_MODULE), 0, module_info(image.decode()))
        assert rank.finish() == 0
        function = struct.pack("<QQII", MODULE, FIRST_FUNCTION, len(kernel.name), 5)
        rank.begin(FUNCTION_GET, function + kernel.name.encode())
        here.function_ready(token_of(here, EVENT_FUNCTION), 0, kernel)
        assert rank.finish() == 0
        hand_over(here, rank, 1, there, 2)
        there.function_ready(token_of(there, EVENT_FUNCTION), NO_BINARY_FOR_GPU, None, "no code")
        rank.launch(NAMES[0], DEV_BASE, DEV_BASE, 1, 1)
        until(lambda: there.rank_status(2, 0).error != 0, there)  # type: ignore[union-attr]
        found = there.rank_status(2, 0)
        assert found is not None
        assert (found.error, found.error_text) == (NO_BINARY_FOR_GPU, "no code")
        leave(there, 2)
    rank.close()


def test_requests_that_keep_coming_are_for_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a rank that sends requests all the time would keep its proxy from all else."""
    monkeypatch.setattr("rankfold.proxy.native.EVENTS_AT_ONCE", 2)
    rank = Computing(0, 1, DEV_BASE)
    with device() as native:
        attach(native, rank)
        for number in range(5):
            rank.post(MODULE_DATA, struct.pack("<QQII", MODULE + number, 0, 16, 0))
            rank.begin(MODULE_LOAD, struct.pack("<QQII", MODULE + number, 16, 1, 0), number + 1)
        until(lambda: native.rank_status(1, 0).records == 10, native)  # type: ignore[union-attr]
        found = []
        while select.select([native.event_fd], [], [], 0)[0]:
            found.append(len(list(native.events())))
        assert max(found) == 2 and sum(found) >= 5
        leave(native)
    rank.close()
