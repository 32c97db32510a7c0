"""Promise: a job that stands at a cut can be saved and continue in place; what was saved is all of
it, and continues elsewhere to the same bits.

Ranks of one job, several to a device, compute and reduce floats. At a cut they are saved where they
are; channels and images are copied; the job continues undisturbed, and the copies on other devices.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest

from rankfold.image import read_image
from rankfold.proxy.hal.soft.modules import Loader
from rankfold.proxy.native import EXIT_REPLACED, NativeError
from support.devices import devices, only_saved
from support.ring_client import (
    CHUNK,
    DEV_BASE,
    DEVICE_SYNC,
    TAIL,
    attach,
    leave,
    settle,
    twins_of,
    until,
)
from support.trained import (
    MOMENTS,
    PARAMETERS,
    STEPS,
    WORDS,
    folded,
    shared,
    train_alike,
    trained,
    words,
)
from support.trainers import HEAP, RANKS, Trainer, begin

STATE, STATE_TAIL = 1 << 39, 32 + 16 + 48  # in the image: the header, then the first record


@pytest.fixture
def clients() -> Iterator[list[Trainer]]:
    made = [Trainer(rank, RANKS) for rank in range(RANKS)]
    yield made
    for client in made:
        client.close()


@pytest.mark.several_devices
@pytest.mark.parametrize("elsewhere", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_saved_in_place_it_continues_and_so_does_the_copy_elsewhere(
    kernels: Loader, clients: list[Trainer], elsewhere: list[int]
) -> None:
    """Both do what was requested while it waited."""
    with devices(kernels, 2, chunks=8) as here:  # each has room for one and a half of its ranks
        here.place(1, clients, [0, 0, 1, 1])
        begin(clients, 5)
        here.compute()
        here.stop(1)
        for client in clients:
            client.step()
        assert all(native.job_save(1) for native in here.natives)
        for event in here.saved(0):
            assert (event.state, event.text) == ("cut", "")
            assert event.size > 2 * HEAP
        used = [native.status()["used"] for native in here.natives]
        assert all(bytes_ > 0 for bytes_ in used), "what was resident still is"
        twins = twins_of(clients)
        for twin in twins:
            (tail,) = struct.unpack("<Q", os.pread(twin.image, 8, STATE + STATE_TAIL))
            assert tail == twin.u64(TAIL) < twin.head
        assert [native.status()["used"] for native in here.natives] == used
        here.continue_running(1, clients)
        for client in clients:
            for _ in range(5):
                client.step()
        undisturbed = [client.numbers() for client in clients]
        here.leave(1)
    with devices(kernels, 1 + max(elsewhere)) as there:
        there.place(2, twins, elsewhere)
        for twin in twins:
            for _ in range(5):
                twin.step()
        assert [twin.numbers() for twin in twins] == undisturbed
        there.leave(2)
    for twin in twins:
        twin.close()


@pytest.mark.several_devices
def test_saved_twice_and_then_released_it_continues_elsewhere(
    kernels: Loader, clients: list[Trainer]
) -> None:
    """At one cut, and the same is written each time; and at the next one what has changed since."""
    with devices(kernels, 2) as here, devices(kernels, 1) as there:
        here.place(1, clients, [0, 1, 0, 1])
        begin(clients, 3)
        here.compute()
        here.stop(1)
        for n in range(2):
            assert all(native.job_save(1) for native in here.natives)
            here.saved(n)
        first = twins_of(clients)
        here.continue_running(1, clients)
        for client in clients:
            client.step()
        here.stop(1)
        assert all(native.job_save(1) for native in here.natives)
        assert all(native.job_leave(1) for native in here.natives)  # whether or not it is over
        for native in here.natives:
            settle(native, 1, "saved")
            native.job_close(1)
            assert native.status()["used"] == 0
        for client in first:
            client.step()
        there.place(2, first, [0] * RANKS)
        expected = [client.numbers() for client in first]
        there.leave(2)
        there.place(3, clients, [0] * RANKS)
        assert [client.numbers() for client in clients] == expected
        there.leave(3)
    for client in first:
        client.close()


def test_shared_pages_are_saved_once_and_completed_before_a_move(
    kernels: Loader,
) -> None:
    with folded(kernels, 3) as (here, ranks):
        train_alike(ranks)
        here.stop(1)
        assert here.natives[0].job_save(1)
        here.saved(0)
        first, *others = (read_image(rank.image).elsewhere for rank in ranks)
        for each in (PARAMETERS - DEV_BASE, MOMENTS - DEV_BASE):
            page = each // CHUNK * CHUNK
            assert all((page, page + CHUNK, 0) in elsewhere for elsewhere in others)
            written = [os.pread(rank.image, 4 * WORDS, each) for rank in ranks]
            assert any(written[0]) and not any(written[1] + written[2])
        assert first == []
        half, twins = ranks[1].twin(), twins_of(ranks)
        here.continue_running(1, ranks)
    with devices(kernels, 1) as there:
        native = there.natives[0]
        native.job_open(2, 2, 0, 1, [0] * 3, -1)
        with pytest.raises(NativeError, match="rank 1: part of its memory is still in other"):
            native.rank_attach(2, 1, half.fd, half.image)
        leave(native, 2)
        there.place(3, twins, [0] * 3)
        for at, expected in zip((PARAMETERS, MOMENTS), trained(3, STEPS), strict=True):
            assert [words(rank, at) for rank in twins] == [expected] * 3
        there.leave(3)
    for client in (half, *twins):
        client.close()


def test_a_rank_whose_process_was_replaced_meanwhile_keeps_no_copy(kernels: Loader) -> None:
    """Its next process begins with nothing, and its image is not kept for others."""
    with shared(kernels, 3) as (native, ranks):
        native.barrier(1, True)
        settle(native, 1, "cut")
        assert native.job_save(1)
        native.rank_exited(1, 0, EXIT_REPLACED)
        until(lambda: native.rank_status(1, 0) is None, native)  # when it has been saved
        images = [read_image(each.image) for each in ranks[1:]]
        owners = [{chunk.rank for chunk in image.elsewhere} for image in images]
        had_state = bool(read_image(ranks[0].image).state)
        assert owners == ([{0}, {0}] if had_state else [set(), {1}])


def test_a_save_needs_a_cut_and_is_void_when_that_is_released(
    kernels: Loader, clients: list[Trainer]
) -> None:
    with devices(kernels, 1) as here:
        native = here.natives[0]
        here.place(1, clients, [0] * RANKS)
        begin(clients, 1)
        assert not native.job_save(1)
        here.stop(1)
        assert native.job_save(1)
        assert here.saved(0)[0].text == ""
        here.continue_running(1, clients)
        for client in clients:
            assert client.call(DEVICE_SYNC) == 0
        here.leave(1)
        native.job_open(2, 2, 0, 1, [0] * RANKS, -1)
        with pytest.raises(NativeError, match="is lost"):
            native.rank_attach(2, 0, clients[0].fd, clients[0].image)
        leave(native, 2)


@pytest.mark.several_devices
def test_a_save_that_the_release_overtakes_fails_and_the_job_continues(
    kernels: Loader, clients: list[Trainer]
) -> None:
    """The next save contains later changes, though parts of the first were written."""
    with devices(kernels, 2) as here, devices(kernels, 1) as there:
        here.place(1, clients, [0, 1, 1, 1])
        clients[1].alloc(DEV_BASE + 2 * HEAP, 40 * CHUNK)
        begin(clients, 1)
        reasons = set[str]()
        for n in range(50):
            here.stop(1)
            assert here.natives[1].job_save(1)
            here.natives[0].barrier(1, False)
            until(lambda: len(only_saved(here.told[1])) > n, here.natives[1])  # noqa: B023
            reasons.add(only_saved(here.told[1])[n].text)
            here.continue_running(1, clients)
            for client in clients:
                client.step()
            if len(reasons - {""}):
                break
        assert reasons - {""} == {"the cut was released while the job was being saved"}
        here.stop(1)
        assert all(native.job_save(1) for native in here.natives)
        here.saved(0)
        until(lambda: len(only_saved(here.told[1])) > n + 1, here.natives[1])
        assert only_saved(here.told[1])[n + 1].text == ""
        twins = twins_of(clients)
        here.continue_running(1, clients)
        there.place(2, twins, [0] * RANKS)
        for client in (*clients, *twins):
            client.step()
        assert [twin.numbers() for twin in twins] == [client.numbers() for client in clients]
        here.leave(1)
        there.leave(2)
    for twin in twins:
        twin.close()


def test_an_image_holds_no_second_copy_of_a_rank_that_is_alone(kernels: Loader) -> None:
    """Once it continues: by and by, without being called."""
    client = Trainer(0, 1)
    with devices(kernels, 1) as here:
        native = here.natives[0]
        attach(native, client)
        client.load()
        client.launch()
        assert client.call(DEVICE_SYNC) == 0
        before = os.fstat(client.image).st_blocks
        here.stop(1)
        assert native.job_save(1)
        here.saved(0)
        assert os.fstat(client.image).st_blocks * 512 >= HEAP
        here.continue_running(1, [client])
        until(lambda: os.fstat(client.image).st_blocks <= before + 64, native)
        here.leave(1)
    client.close()
