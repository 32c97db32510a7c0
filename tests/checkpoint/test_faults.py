"""Kills, failures and damage at any operation: what is listed is what was saved, or is known to be
damaged and is not used."""

from __future__ import annotations

import contextlib
import errno
import json
import random
import time
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rankfold.checkpoint import store as stores
from rankfold.checkpoint.store import (
    Damaged,
    Full,
    Id,
    OldIncarnation,
    Overtaken,
    StoreError,
    Unavailable,
)
from rankfold.checkpoint.store.names import Place
from rankfold.checkpoint.store.units import PAGE
from support.checkpoints import DEVICE, HOST, Content, edited, noise, reading, restored, saved
from support.faulty import Disk, Killed

pytestmark = pytest.mark.unit

SEEDS = st.lists(st.integers(0, 5), min_size=1, max_size=4)
HOW = st.sampled_from(["killed", "killed after", "full", "unreachable"])


def content(seeds: list[int]) -> Content:
    return Content(
        {0: {DEVICE: noise(seeds[0], 2000)}, 1: {DEVICE: noise(seeds[0], 2000)}},
        {
            0: {HOST + at * PAGE: noise(seed, 16) * 256 for at, seed in enumerate(seeds)},
            1: {HOST + at * PAGE: edited(at, seed) for at, seed in enumerate(seeds)},
        },
    )


class Store(RuleBasedStateMachine):
    """A job's store, and what was saved in it: in `contents` what may be there, in `owed` what
    must."""

    def __init__(self) -> None:
        super().__init__()
        self.disk, self.incarnation = Disk(), 1
        self.contents: dict[Id, list[Content]] = {}
        self.owed: set[Id] = set()
        self.harmed: set[str] = set()  # files, by their names on the disk
        self.unseen: set[str] = set()  # of these, who would know has to read them
        self.interrupted: list[int] | None = None
        self.open()
        self.store.begin_incarnation("gpt", 1)

    @rule()
    def open(self) -> None:
        """Another process, which knows nothing."""
        self.store = stores.open("faulty://s", "fleet", options=self.disk.option())

    def _save(self, seeds: list[int]) -> None:
        save = self.store.begin("gpt", self.incarnation, workers=0)
        self.contents.setdefault(save.id, []).append(content(seeds))
        content(seeds).add_to(save)
        self.owed.add(save.finish().id)
        self.interrupted = None

    @rule(seeds=SEEDS)
    def save(self, seeds: list[int]) -> None:
        self._save(seeds)

    @rule(seeds=SEEDS, at=st.integers(0, 60), how=HOW)
    def save_disturbed(self, seeds: list[int], at: int, how: str) -> None:
        self.disk.fail(at, how)
        try:
            self._save(seeds)
        except (Killed, Unavailable):
            self.interrupted = seeds
        finally:
            self.disk.quiet()

    @precondition(lambda self: self.interrupted is not None)
    @rule()
    def save_again(self) -> None:
        assert self.interrupted is not None
        self._save(self.interrupted)

    @rule(keep=st.integers(1, 3))
    def collect(self, keep: int) -> None:
        good = self._seem_good()
        try:
            removed = set(self.store.collect("gpt", keep).checkpoints)
        except Damaged:  # a claim or an incarnation that was harmed
            assert self._harmed("/claims/") or self._harmed("/incarnations/")
            return
        kept = [each for each in good if each not in removed]
        assert len(kept) >= min(keep, len(good)), "the last K that are not known to be damaged"
        assert kept == good[len(good) - len(kept) :]
        self.owed -= removed

    @rule(keep=st.integers(1, 3), at=st.integers(0, 60), how=HOW)
    def collect_disturbed(self, keep: int, at: int, how: str) -> None:
        before = set(self.store.checkpoints("gpt")) if not self._harmed("/incarnations/") else set()
        self.disk.fail(at, how)
        try:
            self.store.collect("gpt", keep)
        except (Killed, StoreError):
            pass
        finally:
            self.disk.quiet()
        if before:
            self.owed -= before - set(self.store.checkpoints("gpt"))

    @precondition(lambda self: not self._harmed("/incarnations/"))
    @rule()
    def restore(self) -> None:
        """The next incarnation; the one before saves no more."""
        newest = self.store.newest("gpt")
        old = self.store.begin("gpt", self.incarnation, workers=0)
        self.contents.setdefault(old.id, []).append(content([9]))
        content([9]).add_to(old)
        self.incarnation += 1
        origin = newest.checkpoint.manifest.id if newest.checkpoint else None
        self.store.begin_incarnation("gpt", self.incarnation, origin)
        with pytest.raises(OldIncarnation):
            old.finish()
        if newest.checkpoint:
            again = self.store.checkpoint("gpt", newest.checkpoint.manifest.id)
            assert restored(again) in self.contents[again.manifest.id]

    @rule(seed=st.integers(0, 1 << 32), how=st.sampled_from(["flip", "truncate", "remove"]))
    def harm(self, seed: int, how: str) -> None:
        names = [
            name
            for name in sorted(self.disk.files)
            if "/data/" in name or "/manifests/" in name or "/claims/" in name
        ]
        if not names:
            return
        draw = random.Random(seed)
        name = draw.choice(names)
        data, at = self.disk.files[name], draw.randrange(len(self.disk.files[name]) or 1)
        if how == "remove":
            del self.disk.files[name]
        elif how == "truncate":
            self.disk.files[name] = data[:at]
        elif data:
            flipped = data[at] ^ 1 << draw.randrange(8)
            self.disk.files[name] = data[:at] + bytes([flipped]) + data[at + 1 :]
            self.unseen |= {name} - self.harmed
        if how != "flip":
            self.unseen.discard(name)
        self.harmed.add(name)

    def _harmed(self, kind: str) -> bool:
        return any(kind in name for name in self.harmed)

    def _name(self, name: str) -> str:
        return f"s/{name}"

    def _files(self, each: Id) -> set[str] | None:
        """The files of a checkpoint; None if its manifest was damaged."""
        if self._name(f"jobs/gpt/manifests/{each}.json") in self.harmed:
            return None
        files = self.store.manifest("gpt", each).files
        return {self._name(f"jobs/gpt/data/{place.name}") for place in files}

    def _sound(self, each: Id) -> bool:
        """Nothing of it was harmed."""
        files = self._files(each)
        return files is not None and not files & self.harmed

    def _good(self) -> list[Id]:
        return [each for each in self.store.checkpoints("gpt") if self._sound(each)]

    def _seem_good(self) -> list[Id]:
        """Nothing is wrong with them that can be known without reading them whole."""
        marked = {self._name(f"jobs/gpt/data/{place.name}") for place in self.store.damaged("gpt")}
        bad = (self.harmed - self.unseen) | marked
        files = {each: self._files(each) for each in self.store.checkpoints("gpt")}
        return [each for each, of in files.items() if of is not None and not of & bad]

    @invariant()
    def what_is_listed_is_what_was_saved(self) -> None:
        listed = self.store.checkpoints("gpt")
        gone = {
            each
            for each in self.owed
            if self._name(f"jobs/gpt/manifests/{each}.json") in self.harmed
        }
        assert self.owed <= set(listed) | gone
        for each in listed:
            try:
                checkpoint = self.store.checkpoint("gpt", each)
                faults = checkpoint.verify()
                if not faults:
                    assert restored(checkpoint) in self.contents[each]
            except Damaged:
                faults = [Place("", "", "")]  # type: ignore[list-item]
            assert not (faults and self._sound(each)), (each, faults)

    @invariant()
    def the_newest_is_the_newest_that_is_sound(self) -> None:
        newest = self.store.newest("gpt")
        skipped = [each.id for each in newest.skipped]
        assert not any(self._sound(each) for each in skipped)
        if newest.checkpoint:
            assert restored(newest.checkpoint) in self.contents[newest.checkpoint.manifest.id]
        else:
            assert not self._good()


class TestStore(Store.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(max_examples=25, stateful_step_count=15)


@pytest.mark.slow
@pytest.mark.timeout(1200)
class TestStoreLong(Store.TestCase):  # type: ignore[misc,valid-type]
    settings = settings(max_examples=500, stateful_step_count=40)


# ---- one fault at each operation ---------------------------------------------------------------


def begun(disk: Disk) -> Any:
    store = stores.open("faulty://s", "fleet", options=disk.option())
    store.begin_incarnation("gpt", 1)
    saved(store, "gpt", 1, content([1, 2, 3]), workers=0)
    return store


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "killed after", "full", "unreachable"])
def test_a_save_that_is_interrupted_anywhere_continues(how: str) -> None:
    for at in range(100):
        disk = Disk()
        store = begun(disk)
        first = disk.operations
        disk.fail(at, how)
        try:
            saved(store, "gpt", 1, content([4, 2, 5]), workers=0)
        except (Killed, Unavailable) as error:
            if how == "full":
                assert isinstance(error, Full) and "free some space" in str(error)
        if disk.operations - first <= at:
            return
        disk.quiet()
        store = stores.open("faulty://s", "fleet", options=disk.option())
        before = store.data("gpt")
        finished = {store.manifest("gpt", each).id for each in store.checkpoints("gpt")}
        save = store.begin("gpt", 1, workers=0)
        content([4, 2, 5]).add_to(save)
        save.finish()
        began = {place.folder for place in before if Id.of_folder(place.folder) not in finished}
        assert not began or (save.resumed and began == {save._folder})
        for each in store.checkpoints("gpt"):
            assert store.checkpoint("gpt", each).verify() == []
        stored = [place.digest for place in store.data("gpt")]
        assert len(stored) == len(set(stored)), "nothing was stored twice"
    raise AssertionError("a save takes more operations than that")


def test_a_fault_in_the_pool_is_the_save_s_own() -> None:
    disk = Disk()
    store = begun(disk)
    save = store.begin("gpt", 1, workers=4)
    disk.fail(0, "unreachable")
    with pytest.raises(Unavailable, match=r"faulty://s/jobs/gpt/data/.*rank 3.*Connection refused"):
        for n in range(50):
            save.buffers(3, f"device {n}", [reading(DEVICE, noise(n, 1 << 20))])
        save.finish()
    disk.quiet()
    save.close()
    assert store.begin("gpt", 1).resumed


# ---- what each rule is for ---------------------------------------------------------------------


def test_a_slow_store_is_waited_for() -> None:
    """The manifest comes when all that it names is there."""
    disk = Disk()
    store = begun(disk)
    missing: list[str] = []

    def before(operation: str, path: str) -> None:
        if operation == "create" and "/data/" in path:
            time.sleep(0.02)

    def after(operation: str, path: str) -> None:
        if "/manifests/" in path:
            [newest] = [
                name
                for name in disk.files
                if name.endswith(path.rpartition("/")[2]) and "/manifests/" in name
            ]
            sources = json.loads(disk.files[newest])["sources"]
            missing.extend(
                name
                for folder, source in sources.items()
                for name in source["objects"]
                if f"s/jobs/gpt/data/{folder}/objects/{name}" not in disk.files
            )

    disk.before, disk.after = before, after
    large = Content({0: {DEVICE + (n << 30): noise(n, 1 << 20) for n in range(12)}})
    saved(store, "gpt", 1, large, workers=4)
    assert missing == []


def test_uploaded_units_are_not_uploaded_again() -> None:
    disk, asked = Disk(), list[str]()
    large = Content({0: {DEVICE + (n << 30): noise(n, 1 << 20) for n in range(6)}})
    store = begun(disk)

    def before(operation: str, path: str) -> None:
        if operation == "create" and "/data/" in path:
            if len(asked) in (3, 6):
                asked.append("")
                raise OSError(errno.EIO, "Input/output error")
            asked.append(path)

    disk.before = before
    for _ in range(2):
        with pytest.raises(Unavailable, match="Input/output error; what was saved so far is kept"):
            saved(store, "gpt", 1, large, workers=0)
    manifest = saved(store, "gpt", 1, large, workers=0)
    asked = [path for path in asked if path]
    assert len(asked) == len(set(asked)) == len(manifest.files) == 7
    assert restored(store.checkpoint("gpt", manifest.id)) == large


def harmed(disk: Disk, place: Place) -> None:
    name = f"s/jobs/gpt/data/{place.name}"
    disk.files[name] = disk.files[name][:-1] + bytes([disk.files[name][-1] ^ 1])


def test_a_restore_verifies_every_unit() -> None:
    for seed in range(2):
        disk = Disk()
        store = begun(disk)
        large = Content({0: {DEVICE: noise(0, 2 << 20)}}, {}, {"core": noise(1, 9000)})
        manifest = saved(store, "gpt", 1, large)
        harmed(disk, next(iter(manifest.objects if seed else manifest.packs)))
        with pytest.raises(Damaged, match=r"faulty://s/jobs/gpt/.*; checkpoint 1-2 of gpt cannot"):
            restored(store.checkpoint("gpt", manifest.id))
        assert len(store.checkpoint("gpt", manifest.id).verify()) == 1


def test_no_flipped_bit_gets_through() -> None:
    """Flips each bit of a pack that contains tables, a list and units that zstd does not
    shorten."""
    disk = Disk()
    store = begun(disk)
    pages = {HOST + at * PAGE: noise(at, PAGE) for at in range(3)}
    some = Content({0: {DEVICE + (n << 30): noise(n, 50) for n in range(4)}}, {0: pages})
    manifest = saved(store, "gpt", 1, some)
    assert len(manifest.packs) == 3 and not manifest.objects
    for place in manifest.packs:
        name = f"s/jobs/gpt/data/{place.name}"
        whole = disk.files[name]
        for at in {*range(0, len(whole), 97), *range(max(0, len(whole) - 200), len(whole))}:
            flipped = bytes([whole[at] ^ 1 << at % 8])
            disk.files[name] = whole[:at] + flipped + whole[at + 1 :]
            with contextlib.suppress(Damaged):
                assert restored(store.checkpoint("gpt", manifest.id)) == some
        disk.files[name] = whole


def test_damaged_ones_are_not_among_the_last_that_are_kept() -> None:
    disk = Disk()
    store = begun(disk)
    for n in range(2):
        manifest = saved(store, "gpt", 1, content([6 + n, 8 + n]))
        own = [p for p in manifest.packs if Id.of_folder(p.folder) == manifest.id]
        harmed(disk, own[0])
    newest = store.newest("gpt")
    assert newest.checkpoint and newest.checkpoint.manifest.id == Id(1, 1)
    assert store.collect("gpt", 1).checkpoints == ()
    fourth = saved(store, "gpt", 1, content([9, 9, 9]))
    assert store.collect("gpt", 1).checkpoints == (Id(1, 3), Id(1, 2), Id(1, 1))
    assert store.checkpoints("gpt") == [fourth.id]
    assert not store.damaged("gpt"), "of what is gone no mark stays"


def test_ones_that_lack_something_are_not_among_the_last_that_are_kept() -> None:
    """This holds before any reader has noticed the lack."""
    for length in (None, 10):
        disk = Disk()
        store = begun(disk)
        second = saved(store, "gpt", 1, content([7]))
        [own] = [p for p in second.packs if Id.of_folder(p.folder) == second.id][:1]
        name = f"s/jobs/gpt/data/{own.name}"
        if length is None:
            del disk.files[name]
        else:
            disk.files[name] = disk.files[name][:length]
        saved(store, "gpt", 1, content([8, 9]))
        assert store.collect("gpt", 2).checkpoints == ()
        saved(store, "gpt", 1, content([9, 9, 9]))
        assert store.collect("gpt", 2).checkpoints == (Id(1, 2), Id(1, 1))


def test_a_number_that_was_used_is_not_used_again() -> None:
    """Though the claim that had it was lost."""
    disk = Disk()
    store = begun(disk)
    saved(store, "gpt", 1, content([4]))
    for number in (3, 4):
        store.begin("gpt", 1, workers=0).close()
        del disk.files[f"s/jobs/gpt/claims/1-{number}.json"]
    store.collect("gpt", 1)
    last = saved(store, "gpt", 1, content([6]))
    assert last.id == Id(1, 5) and store.checkpoints("gpt") == [Id(1, 2), last.id]


def test_a_save_that_is_overtaken_finishes_nothing() -> None:
    disk = Disk()
    store = begun(disk)
    first, second = (store.begin("gpt", 1, workers=0) for _ in range(2))
    assert second.resumed
    content([7]).add_to(first)
    with pytest.raises(Overtaken, match="taken over by another uploader"):
        first.finish()
    assert f"s/jobs/gpt/manifests/{first.id}.json" not in disk.files
    content([8]).add_to(second)
    assert restored(store.checkpoint("gpt", second.finish().id)) == content([8])
