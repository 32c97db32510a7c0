"""Files that are being saved, or whose save went wrong: no job is suspended for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankfold.reconciler.journal.journal import Journal
from rankfold.reconciler.model.recorded import Record
from rankfold.reconciler.source import reader, spec
from rankfold.reconciler.source.revision import cut_files, emptied_files, revision_faults
from support.command import JOB, POOL, Rankfold, Specs


def job(name: str, extra: str = "") -> str:
    return JOB.format(name=name, command='["true"]', ranks=1, gpus=1, extra=extra)


WHOLE = f"# ours\n{POOL}---\n{job('first', 'env: {A: b}')}---\n{job('second', 'suspend: false')}"


class Accepted:
    """Applies other texts to a fleet that runs the jobs of `texts`."""

    def __init__(self, folder: Path, texts: dict[str, str]):
        self.journal = Journal(folder)
        loaded = self.load(texts)
        assert loaded.faults == []
        self.journal.accept(loaded.desired, loaded.origins, "directory /x", "1")
        self.never_ended = [n for n, text in texts.items() if not text.endswith("\n")]
        self.started = {
            name: Record(name, "placed", 1, ("local/soft-0",), fixed=each, device_type="soft")
            for name, each in loaded.desired.jobs.items()
        }
        for record in self.started.values():
            self.journal.save(record)

    def load(self, texts: dict[str, str]) -> spec.Loaded:
        return spec.load_texts(texts, dict.fromkeys(texts, "/"))

    def faults(self, texts: dict[str, str], followed: bool = True) -> list[str]:
        loaded, objects = self.load(texts), self.journal.objects()
        found = loaded.faults or revision_faults(loaded, self.started, frozenset())
        found = found + emptied_files(loaded, objects)
        if followed:
            found += cut_files(loaded, objects, self.never_ended)
        return [str(fault) for fault in found]

    def suspends(self, texts: dict[str, str]) -> list[str]:
        """The jobs that accepting it would suspend."""
        try:
            with self.journal.transaction():
                loaded = self.load(texts)
                self.journal.accept(loaded.desired, loaded.origins, "directory /x", "2")
                jobs = [o.effective() for o in self.journal.objects() if o.kind == "Job"]
                raise InterruptedError
        except InterruptedError:
            return [each.name for each in jobs if getattr(each, "suspended", False)]


@pytest.fixture
def accepted(tmp_path: Path) -> Iterator[Callable[..., Accepted]]:
    made: list[Accepted] = []

    def accept(texts: dict[str, str]) -> Accepted:
        made.append(Accepted(tmp_path / str(len(made)), texts))
        return made[-1]

    yield accept
    for each in made:
        each.journal.close()


EDITED = WHOLE.replace("gpus: 1", "gpus: 1   # one", 1).replace("A: b}", "A: b}\n  # more", 1)
SHAPES = {
    "as it was": (WHOLE, WHOLE),
    "edited": (WHOLE, EDITED),
    "explicit ends": (WHOLE.replace("---", "...\n---"), WHOLE.replace("---", "...\n---")),
    "one job": (job("first"), job("first", "env: {}")),
    "without an end": (WHOLE.rstrip(), WHOLE.rstrip()),
    "a comment behind": (WHOLE + "# the end\n", WHOLE + "# the end\n"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_file_cut_anywhere_suspends_no_job(shape: str, accepted: Callable[..., Accepted]) -> None:
    before, after = SHAPES[shape]
    fleet = accepted({"fleet.yaml": before})
    harmless = 0
    for length in range(len(after)):
        cut = {"fleet.yaml": after[:length]}
        if not fleet.faults(cut):
            assert fleet.suspends(cut) == [], (
                f"cut at {length}: {after[max(0, length - 40) : length]!r}"
            )
            harmless += 1
    assert harmless < len(after) / 2, "most cuts are seen"
    assert fleet.faults({"fleet.yaml": after}) == []


def test_intended_edits_are_accepted(accepted: Callable[..., Accepted]) -> None:
    fleet = accepted({"fleet.yaml": WHOLE, "more.yaml": job("third"), "note.yaml": job("fourth")})
    meant = {
        "an edit": WHOLE.replace("gpus: 1", "gpus: 1 "),
        "a first one less": POOL + "---\n" + job("second"),
        "one that has another name": WHOLE.replace("name: second", "name: other"),
        "one more": WHOLE + "---\n" + job("other"),
        "another order": "---\n".join([job("second"), job("first", "env: {A: b}"), POOL]),
    }
    rest = {"more.yaml": job("third"), "note.yaml": job("fourth")}
    for what, text in meant.items():
        assert fleet.faults({"fleet.yaml": text, **rest}) == [], what
    assert fleet.faults({"fleet.yaml": WHOLE}) == [], "removed files"
    moved = {"fleet.yaml": WHOLE + "---\n" + job("third"), "more.yaml": "# moved\n"}
    assert fleet.faults({**moved, "note.yaml": job("fourth")}) == []


def test_each_refusal_names_the_file_and_the_way_out(accepted: Callable[..., Accepted]) -> None:
    fleet = accepted({"fleet.yaml": WHOLE, "more.yaml": job("third")})
    rest = {"fleet.yaml": WHOLE}
    for empty in ("", "# all of it\n", "---\n"):
        for followed in (True, False):
            (told,) = fleet.faults({**rest, "more.yaml": empty}, followed)
            assert "more.yaml:1: -: holds no document, but Job/third came from it" in told
    shorter = WHOLE.partition("---\n# ")[0].rpartition("---\n")[0]
    (told,) = fleet.faults({"fleet.yaml": shorter, "more.yaml": job("third")})
    assert "ends before Job/second, which came from it" in told and "`rankfold apply -f`" in told
    assert fleet.faults({"fleet.yaml": shorter, "more.yaml": job("third")}, followed=False) == []
    (told,) = fleet.faults({**rest, "more.yaml": job("third").rstrip()})
    assert "its last line has no end: partly saved? End it with a newline" in told


# ---- a directory at rest -----------------------------------------------------------------------


class Meanwhile(threading.Event):
    """While a source waits for the directory to rest, the next of `happen` happens."""

    def __init__(self, *happen: Callable[[], object]):
        super().__init__()
        self.left = list(happen)

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout == reader.REST_S
        if self.left:
            self.left.pop(0)()
        return super().wait(timeout)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[reader.DirectorySource]:
    folder = tmp_path / "specs"
    folder.mkdir()
    (folder / "pool.yaml").write_text(POOL)
    (folder / "job.yaml").write_text(job("gpt"))
    source = reader.DirectorySource(folder)
    assert source.poll() is not None
    yield source
    source.close()


def test_a_directory_is_read_when_it_has_rested(source: reader.DirectorySource) -> None:
    file, text = source.path / "job.yaml", job("gpt").replace("gpus: 1", "gpus: 1 # new")
    half = len(text) // 2
    file.write_text("")
    source._stopped = meanwhile = Meanwhile(
        lambda: file.write_text(text[:half]),
        file.unlink,
        lambda: file.write_text(text),
    )
    revision = source.poll()
    assert revision is not None and meanwhile.left == []
    assert revision.loaded.faults == [] and set(revision.loaded.desired.jobs) == {"gpt"}


def test_a_file_that_is_renamed_away_and_back_changes_nothing(
    source: reader.DirectorySource,
) -> None:
    file, backup = source.path / "job.yaml", source.path / "job.yaml~"
    file.rename(backup)
    source._stopped = Meanwhile(lambda: backup.rename(file))
    revision = source.poll()
    assert revision is not None and set(revision.loaded.desired.jobs) == {"gpt"}
    away = source.path.with_name("away")
    source.path.rename(away)
    source._stopped = Meanwhile(lambda: away.rename(source.path))
    assert source.poll() is None


def test_a_file_that_never_stops_changing_is_reported(
    source: reader.DirectorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "RESTLESS_S", 0.2)
    file, sizes = source.path / "job.yaml", iter(range(1, 1000))

    def grow() -> None:
        file.write_text("#" * next(sizes))

    grow()
    source._stopped = Meanwhile(*[grow] * 900)
    with pytest.raises(reader.SourceError, match="its files change all the time"):
        source.poll()


def test_a_folder_that_cannot_be_read_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    assert spec.load_dir(tmp_path).faults == []

    def fails(*_: object, onerror: Callable[[OSError], None], **__: object) -> Iterator[object]:
        onerror(PermissionError(13, "Permission denied", str(tmp_path / "inner")))
        yield from ()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "walk", fails)
        (fault,) = spec.load_dir(tmp_path).faults
    assert str(fault) == f"{tmp_path}/inner:1: -: cannot be read: Permission denied"


def test_an_emptied_file_is_refused_and_its_job_runs_on(rankfold: Rankfold, specs: Specs) -> None:
    specs.job(gpus=1, ranks=1)
    file = specs.folder / "gpt.yaml"
    text = file.read_text()

    def ready_message() -> str:
        (ready,) = rankfold.status()["source"]["conditions"]
        return str(ready["message"])

    with rankfold.watching(str(specs.folder)):
        rankfold.until(lambda: rankfold.job("gpt").get("phase") == "Running")
        for half in ("", text[: text.index("worldSize")], text.rstrip()):
            file.write_text(half)
            rankfold.until(lambda: "gpt.yaml" in ready_message())
            if not half:
                assert "holds no document" in ready_message()
                assert "holds no document" in rankfold.run("plan", "-f", str(specs.folder)).stderr
            specs.write("gpt.yaml", text)
            rankfold.until(lambda: not ready_message())
        happened = rankfold("events", "gpt")
        assert rankfold.job("gpt")["phase"] == "Running" and "BarrierRequested" not in happened
        file.unlink()
        rankfold.until(lambda: rankfold.job("gpt")["phase"] == "Suspended")
