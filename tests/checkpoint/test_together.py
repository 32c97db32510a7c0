"""Saves, collections and restores at the same time, operation by operation in any order: nothing
that a checkpoint names is ever missing."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold.checkpoint import store as stores
from rankfold.checkpoint.store import Damaged, Id, Missing, OldIncarnation, Overtaken, Store
from rankfold.checkpoint.store.reading import Fault
from rankfold.checkpoint.store.units import PAGE
from support.checkpoints import DEVICE, HOST, Content, edited, noise, restored, saved
from support.faulty import Disk, Killed, Turns

pytestmark = pytest.mark.unit


def content(n: int) -> Content:
    """Some of it changes each time, some rarely, some comes back."""
    seeds = [n, n // 2, n // 4, n % 2, n % 3, 0]
    return Content(
        {0: {DEVICE: noise(n // 2, 3000)}},
        {
            0: {HOST + at * PAGE: noise(seed, 16) * 256 for at, seed in enumerate(seeds)},
            1: {HOST + at * PAGE: edited(at, seed) for at, seed in enumerate(seeds)},
        },
    )


def opened(disk: Disk) -> Store:
    return stores.open("faulty://store", "fleet", options=disk.option())


class Scene:
    """A job with some checkpoints, an interrupted save and a damaged one among what there is."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.disk = Disk()
        self.contents: dict[Id, Content] = {}
        store = opened(self.disk)
        store.begin_incarnation("gpt", 1)
        for n in range(3):
            self.save(store, n)
        if self.random.random() < 0.3:
            self.disk.fail(self.random.randrange(5, 25), "killed")
            with contextlib.suppress(Killed):
                self.save(store, 3)
            self.disk.quiet()
        # One who acts is interrupted for a while more often than at each operation.
        self.stay = self.random.choice([0.5, 0.9, 0.97])
        self.last = 0

    def choose(self, alive: Sequence[int]) -> int:
        if self.last not in alive or self.random.random() > self.stay:
            self.last = self.random.choice(alive)
        return self.last

    def save(self, store: Store, n: int) -> None:
        save = store.begin("gpt", 1, workers=0)
        content(n).add_to(save)
        self.contents[save.id] = content(n)  # before, for it may be killed after
        save.finish()

    def saver(self, first: int, times: int, *expected: type[Exception]) -> Callable[[], None]:
        def body() -> None:
            store = opened(self.disk)
            for n in range(first, first + times):
                try:
                    self.save(store, n)
                except expected:
                    return

        return body

    def collector(self, times: int) -> Callable[[], None]:
        def body() -> None:
            for _ in range(times):
                opened(self.disk).collect("gpt", self.random.choice([1, 1, 2]))

        return body

    def check(self) -> None:
        store = opened(self.disk)
        listed = store.checkpoints("gpt")
        assert listed
        for each in listed:
            checkpoint = store.checkpoint("gpt", each)
            assert checkpoint.verify() == [], each
            assert restored(checkpoint) == self.contents[each]


def collections_during_saves(seed: int) -> None:
    scene = Scene(seed)
    turns = Turns(scene.disk, scene.choose)
    turns.run(scene.saver(4, 4), scene.collector(3), scene.collector(3))
    scene.check()
    store = opened(scene.disk)
    store.collect("gpt", 1)
    scene.check()
    [last] = store.checkpoints("gpt")
    needed = store.manifest("gpt", last).files
    assert store.data("gpt") == needed, "and nothing else is left"


def a_job_is_restored_while_an_old_uploader_continues(seed: int) -> None:
    """The new incarnation's checkpoint stays until it has one of its own; the old one's uploads end
    at some point, and none that was reported as saved is lost."""
    scene = Scene(seed)
    told: set[Id] = set()

    def old() -> None:
        store = opened(scene.disk)
        for n in range(4, 8):
            try:
                told.add(saved(store, "gpt", 1, content(n), workers=0).id)
            except (OldIncarnation, Overtaken):
                return
            scene.contents[max(told)] = content(n)

    def restore() -> None:
        store = opened(scene.disk)
        for incarnation in range(2, 10):
            newest = store.newest("gpt").checkpoint
            assert newest is not None
            origin = newest.manifest.id
            try:
                store.begin_incarnation("gpt", incarnation, origin)
            except Missing:
                continue  # it was collected before any save used it
            found = restored(store.checkpoint("gpt", origin))
            assert found == scene.contents.get(origin, found)
            at_take.update(told)
            save = store.begin("gpt", incarnation, workers=0)
            content(20).add_to(save)
            scene.contents[save.finish().id] = content(20)
            return

    at_take: set[Id] = set()
    Turns(scene.disk, scene.choose).run(old, restore, scene.collector(2), scene.collector(2))
    store = opened(scene.disk)
    for each in store.checkpoints("gpt"):
        checkpoint = store.checkpoint("gpt", each)
        assert checkpoint.verify() == [], each
        assert restored(checkpoint) == scene.contents.get(each, restored(checkpoint))
    life = store.newest_incarnation("gpt")
    assert life is not None and life.incarnation > 1
    with pytest.raises(OldIncarnation):
        store.begin("gpt", 1)


def two_uploaders_of_one_job(seed: int) -> None:
    """One takes the other's save over: no checkpoint is of both."""
    scene = Scene(seed)
    who = [scene.saver(at, 3, Overtaken) for at in (4, 8)]
    Turns(scene.disk, scene.choose).run(*who, scene.collector(2))
    store = opened(scene.disk)
    for each in store.checkpoints("gpt"):
        checkpoint = store.checkpoint("gpt", each)
        assert checkpoint.verify() == []
        assert restored(checkpoint) in [content(n) for n in range(12)]


def test_a_reader_finds_what_is_missing_and_nothing_wrong() -> None:
    """A reader that has not taken the job may come too late."""
    for seed in range(20):
        scene = Scene(seed)
        store = opened(scene.disk)
        oldest = store.checkpoint("gpt", store.checkpoints("gpt")[0])

        def read(oldest: stores.Checkpoint = oldest, scene: Scene = scene) -> None:
            with contextlib.suppress(Damaged):
                assert restored(oldest) == scene.contents[oldest.manifest.id]

        Turns(scene.disk, scene.choose).run(read, scene.collector(1))


# ---- one thing at each operation of a collection -----------------------------------------------


def found_damaged(store: Store, each: Id) -> None:
    """Somebody finds that what this checkpoint alone has is damaged: the one before is the last."""
    files = store.manifest("gpt", each).files
    own = [place for place in files if Id.of_folder(place.folder) == each]
    store.mark("gpt", [Fault(place, "flipped") for place in own])


def a_save_begins(store: Store) -> Callable[[], None]:
    found_damaged(store, Id(1, 3))
    save = store.begin("gpt", 1, workers=0)

    def finish() -> None:
        content(1).add_to(save)
        assert store.checkpoint("gpt", save.finish().id).verify() == []

    return finish


def a_save_comes_and_goes(store: Store) -> Callable[[], None]:
    a_save_begins(store)()
    return lambda: None


def the_job_is_restored(store: Store) -> Callable[[], None]:
    try:
        store.begin_incarnation("gpt", 2, Id(1, 2))
    except Missing:
        return lambda: None
    return lambda: _restores(store, Id(1, 2))


def _restores(store: Store, origin: Id) -> None:
    assert restored(store.checkpoint("gpt", origin)) == content(origin.number - 1)


EVENTS = [a_save_begins, a_save_comes_and_goes, the_job_is_restored]


@pytest.mark.parametrize("event", EVENTS, ids=lambda each: each.__name__)
def test_within_a_collection(event: Callable[[Store], Callable[[], None]]) -> None:
    three = Disk()
    store = opened(three)
    store.begin_incarnation("gpt", 1)
    for n in range(3):
        saved(store, "gpt", 1, content(n), workers=0)
    for at in range(200):
        disk, rest = Disk(), list[Callable[[], None]]()
        disk.files = dict(three.files)
        store = opened(disk)
        first = disk.operations

        def before(
            operation: str,
            path: str,
            disk: Disk = disk,
            last: int = first + at + 1,
            rest: list[Callable[[], None]] = rest,
        ) -> None:
            if disk.operations == last:
                disk.quiet()
                rest.append(event(opened(disk)))

        disk.before = before
        store.collect("gpt", 1)
        if not rest:
            return
        rest[0]()
        for each in store.checkpoints("gpt"):
            assert store.checkpoint("gpt", each).verify() == [], (at, each)
    raise AssertionError("a collection takes more operations than that")


def test_a_restore_within_two_collections() -> None:
    """One collection dooms the checkpoint while another, which began before the restore, is about
    to remove doomed manifests."""
    three = Disk()
    store = opened(three)
    store.begin_incarnation("gpt", 1)
    for n in range(3):
        saved(store, "gpt", 1, content(n), workers=0)
    last = 0
    for at in range(200):
        disk, rest = Disk(), list[Callable[[], None]]()
        disk.files = dict(three.files)

        def within_both(
            operation: str, path: str, disk: Disk = disk, rest: list[Callable[[], None]] = rest
        ) -> None:
            if disk.operations == last:
                disk.quiet()
                rest.append(the_job_is_restored(opened(disk)))

        def within_one(operation: str, path: str, disk: Disk = disk, at: int = at) -> None:
            nonlocal last
            if operation == "list" and path.endswith("/doomed"):
                last = disk.operations + at + 1
                disk.before = within_both
                opened(disk).collect("gpt", 1)

        disk.before = within_one
        opened(disk).collect("gpt", 2)
        if not rest:
            assert at > 10
            return
        rest[0]()
    raise AssertionError("a collection takes more operations than that")


TOGETHER = [
    collections_during_saves,
    a_job_is_restored_while_an_old_uploader_continues,
    two_uploaders_of_one_job,
]


@pytest.mark.usual("collections_during_saves")
@pytest.mark.parametrize("scenario", TOGETHER, ids=lambda each: each.__name__)
def test_in_some_orders(scenario: Callable[[int], None]) -> None:
    settings(max_examples=40)(given(st.integers(0, 1 << 32))(scenario))()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", TOGETHER, ids=lambda each: each.__name__)
def test_in_many_orders(scenario: Callable[[int], None]) -> None:
    settings(max_examples=1000)(given(st.integers(0, 1 << 32))(scenario))()
