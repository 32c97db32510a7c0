"""Promise: following a directory costs no more if it contains other files."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankfold import inotify
from rankfold.reconciler.source import folder, reader, spec
from support.command import JOB, POOL

pytestmark = pytest.mark.unit

JOB_TEXT = JOB.format(name="gpt", command='["true"]', ranks=4, gpus=4, extra="")


def fill(place: Path, unrelated: int) -> None:
    """A pool, a job, and so many other files in folders of a hundred."""
    place.mkdir()
    (place / "pool.yaml").write_text(POOL)
    (place / "sub").mkdir()
    (place / "sub/job.yaml").write_text(JOB_TEXT)
    for number in range(unrelated):
        inner = place / f"data-{number // 100}" if number % 2 else place / ".git" / f"{number}"
        inner.mkdir(parents=True, exist_ok=True)
        (inner / f"{number}.bin").touch()


@contextlib.contextmanager
def counted() -> Iterator[dict[str, int]]:
    """How often what looks at files and folders is called."""
    counts = dict.fromkeys(("stat", "scandir", "open"), 0)

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            counts[name] += 1
            return real(*arguments, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("stat", "scandir"):
            patch.setattr(os, name, counting(name, getattr(os, name)))
        patch.setattr(Path, "read_text", counting("open", Path.read_text))
        patch.setattr(Path, "read_bytes", counting("open", Path.read_bytes))
        yield counts


def watches(source: reader.DirectorySource) -> int:
    (descriptor,) = source._files.descriptors()
    return Path(f"/proc/self/fdinfo/{descriptor}").read_text().count("inotify wd:")


def has_events(source: reader.DirectorySource) -> bool:
    return bool(select.select(source._files.descriptors(), [], [], 0)[0])


def costs(place: Path) -> list[dict[str, int]]:
    """The cost of ten polls without a change, and of one edit."""
    source, found = reader.DirectorySource(place), []
    try:
        assert source.poll() is not None
        with counted() as counts:
            assert [source.poll() for _ in range(10)] == [None] * 10
        found.append(counts)
        (place / "sub/job.yaml").write_text(JOB_TEXT + "# edited\n")
        with counted() as counts:
            assert source.poll() is not None
        found.append(counts)
    finally:
        source.close()
    return found


def test_files_that_are_none_of_it_cost_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "few", 0)
    fill(tmp_path / "many", 3000)
    few, many = costs(tmp_path / "few"), costs(tmp_path / "many")
    assert few == many
    assert few[0]["scandir"] == few[0]["open"] == few[1]["scandir"] == 0
    assert few[0]["stat"] <= 40, "of ten looks at rest: whether the directory is still there"


def test_only_folders_that_are_followed_and_their_files_are_watched(tmp_path: Path) -> None:
    place = tmp_path / "many"
    fill(place, 3000)
    source = reader.DirectorySource(place)
    try:
        assert source.poll() is not None
        assert watches(source) == 2 + 2 + 30, "files, their folders, folders that may get some"
        unrelated = place / "data-1/101.bin"
        with unrelated.open("w") as file:
            for _ in range(100):
                file.write("x")
                file.flush()
        os.utime(unrelated)
        (place / ".git/0/0.bin").unlink()
        assert not has_events(source), "nothing wakes it"
        (place / "data-1/new.bin").touch()
        with counted() as counts:
            assert source.poll() is None
        assert counts["scandir"] == 0
        shutil.rmtree(place / "sub")
        assert source.poll() is not None
        assert watches(source) == 1 + 1 + 30
    finally:
        source.close()


def test_a_change_wakes_it(tmp_path: Path) -> None:
    fill(tmp_path / "few", 0)
    source = reader.DirectorySource(tmp_path / "few")
    job = tmp_path / "few/sub/job.yaml"
    try:
        assert source.poll() is not None
        with job.open("ab", buffering=0) as file:  # stays open, as a log does
            for step in (
                lambda: file.write(b"#\n"),
                lambda: job.rename(job.with_name("other.yaml")),
                lambda: (tmp_path / "few/deep/er").mkdir(parents=True),
                lambda: (tmp_path / "few/deep/er/x.yml").write_text(""),
                lambda: os.utime(tmp_path / "few/pool.yaml"),
            ):
                step()
                assert has_events(source)
                source.poll()
                assert not has_events(source)
    finally:
        source.close()


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_another_folder_under_the_same_name_is_followed(tmp_path: Path, how: str) -> None:
    fill(tmp_path / "few", 0)
    sub = tmp_path / "few/sub"
    source = reader.DirectorySource(tmp_path / "few")
    try:
        assert source.poll() is not None
        shutil.rmtree(sub) if how == "removed" else sub.rename(tmp_path / "away")
        sub.mkdir()
        for name in ("one", "two"):
            (sub / f"{name}.yaml").write_text(JOB_TEXT.replace("gpt", name))
            revision = source.poll()
            assert revision is not None and name in revision.loaded.desired.jobs
        if how == "moved":
            (tmp_path / "away/new.yaml").touch()
            assert not has_events(source), "what was moved away is no longer watched"
    finally:
        source.close()


def test_links_are_followed_wherever_they_lead(tmp_path: Path) -> None:
    """Kubernetes replaces what a link leads to; nothing in the directory changes."""
    fill(tmp_path / "few", 0)
    for release in ("one", "two"):
        (tmp_path / release).mkdir()
        (tmp_path / release / "b.yaml").write_text(JOB_TEXT.replace("gpt", release))
    current = tmp_path / "current"
    current.symlink_to("one")
    (tmp_path / "few/b.yaml").symlink_to(current / "b.yaml")
    source = reader.DirectorySource(tmp_path / "few")
    try:
        first = source.poll()
        assert first is not None and set(first.loaded.desired.jobs) == {"gpt", "one"}
        current.unlink()
        gone = source.poll()
        assert gone is not None and set(gone.loaded.desired.jobs) == {"gpt"}
        current.symlink_to("two")
        second = source.poll()
        assert second is not None and set(second.loaded.desired.jobs) == {"gpt", "two"}
    finally:
        source.close()


def test_a_single_file_is_followed_next_to_many(tmp_path: Path) -> None:
    fill(tmp_path / "few", 0)
    for number in range(100):
        (tmp_path / f"few/{number}.bin").touch()
    source = reader.DirectorySource(tmp_path / "few/pool.yaml")
    try:
        first = source.poll()
        assert first is not None and not first.loaded.desired.jobs
        (tmp_path / "few/more.yaml").write_text(JOB_TEXT)
        assert source.poll() is None and watches(source) == 2
        new = tmp_path / "few/new"
        new.write_text(POOL.replace("count: 4", "count: 3"))
        new.rename(tmp_path / "few/pool.yaml")
        assert source.poll() is not None
    finally:
        source.close()


# ---- against a search of the whole tree ----------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "a.yaml", "b.yml", "c.txt", ".hidden", ".h.yaml", "d.yaml"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "mkdir", "remove", "move", "link", "exchange"]), PATHS, PATHS
    ),
    max_size=12,
)


def take(root: Path, what: str, one: Path, other: Path) -> None:
    """One change, where it is possible."""
    with contextlib.suppress(OSError, shutil.Error):
        if what == "write":
            one.write_text(f"{one}{other}")
        elif what == "mkdir":
            one.mkdir(parents=True)
        elif what == "remove":
            shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
        elif what == "move":
            one.rename(other)
        elif what == "link":
            other.symlink_to(one)
        else:  # another folder or file under the same name
            one.rename(root.parent / "away")
            other.rename(one)


@pytest.mark.usual("True")
@pytest.mark.parametrize("blind", [False, True])
@settings(max_examples=150, deadline=None)
@given(rounds=st.lists(STEPS, min_size=1, max_size=4))
@example(  # a file gets the name that a folder had
    rounds=[[("mkdir", "a.yaml", "")], [("move", "a.yaml", "b"), ("write", "a.yaml", "")]]
)
def test_it_finds_what_a_search_finds(
    blind: bool, rounds: list[list[tuple[str, str, str]]], tmp_path_factory: Any
) -> None:
    place = tmp_path_factory.mktemp("tree") / "specs"
    place.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        if blind:
            patch.setattr(inotify, "Inotify", no_more)
        files = folder.Files(place)
    try:
        assert files.blind == blind
        files.look()
        for steps in rounds:
            for what, one, other in steps:
                take(place, what, place / one, place / other)
            before = files.look()
            assert files.paths() == spec.yaml_files(place)
            assert files.look() == before
    finally:
        files.close()


def no_more() -> None:
    raise OSError(24, "Too many open files")


def test_without_watches_changes_are_found_by_looking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(inotify.Inotify, "watch", refuse)
    fill(tmp_path / "few", 0)
    source = reader.DirectorySource(tmp_path / "few")
    try:
        assert source.poll() is not None
        (tmp_path / "few/sub/job.yaml").write_text(JOB_TEXT + "# edited\n")
        assert source.poll() is not None
        (tmp_path / "few/sub/job.yaml").unlink()
        assert source.poll() is not None
    finally:
        source.close()


def test_the_kind_of_a_file_system_is_known() -> None:
    assert folder._type_of(os.stat("/proc").st_dev) == "proc"
    assert folder._type_of(os.makedev(4000, 1)) == ""


def test_events_that_keep_coming_are_for_the_next_call(tmp_path: Path) -> None:
    """As where another process writes all the time: each event here leads to another one."""
    queue = inotify.Inotify()
    queue.watch(str(tmp_path), inotify.CREATE)
    try:
        (tmp_path / "0").touch()
        for calls in range(1, 4):
            for event in queue.read():
                assert int(event.name) < 100, "a call does not end"
                (tmp_path / str(int(event.name) + 1)).touch()
            assert len(list(tmp_path.iterdir())) == calls + 1
    finally:
        queue.close()
