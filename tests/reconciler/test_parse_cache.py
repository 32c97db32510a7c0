"""After one of many files was edited, only that one is parsed, and the result is that of a first
reading."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfold.reconciler.source import spec, yamldoc
from rankfold.reconciler.source.parse_cache import ParseCache

pytestmark = pytest.mark.unit

JOB = """apiVersion: rankfold/v1alpha1
kind: Job
metadata: {{name: {name}}}
spec:
  command: ["true"]
  worldSize: {ranks}
"""
BROKEN = ("kind: Job\n", "a: [\n", "", "a: 1\na: 2\n", JOB.format(name="a", ranks="many"))


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each text that is parsed."""
    texts: list[str] = []
    parse = yamldoc.parse

    def noting(text: str, *arguments: object, **named: object) -> object:
        texts.append(text)
        return parse(text, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(yamldoc, "parse", noting)
    return texts


def test_a_text_is_parsed_when_it_is_new(tmp_path: Path, parsed: list[str]) -> None:
    known = ParseCache()
    for number in range(50):
        (tmp_path / f"{number}.yaml").write_text(JOB.format(name=f"j{number}", ranks=1))
    assert len(spec.load_dir(tmp_path, parsed=known).check().desired.jobs) == len(parsed) == 50
    parsed.clear()
    spec.load_dir(tmp_path, parsed=known).check()
    assert parsed == []
    edited = JOB.format(name="j7", ranks=2)
    (tmp_path / "7.yaml").write_text(edited)
    (tmp_path / "8.yaml").rename(tmp_path / "moved.yaml")
    assert spec.load_dir(tmp_path, parsed=known).check().desired.jobs["j7"].world_size == 2
    assert parsed == [edited]
    (tmp_path / "7.yaml").unlink()
    spec.load_dir(tmp_path, parsed=known).check()
    (tmp_path / "7.yaml").write_text(edited)
    spec.load_dir(tmp_path, parsed=known).check()
    assert parsed == [edited] * 2, "a text that is in no file any longer is not kept"


TEXT = st.one_of(
    st.sampled_from(BROKEN),
    st.builds(lambda n, r: JOB.format(name=n, ranks=r), st.sampled_from("abc"), st.integers(0, 2)),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.dictionaries(st.sampled_from(["x", "y", "z"]), TEXT), max_size=5))
def test_earlier_readings_change_nothing(sets: list[dict[str, str]]) -> None:
    """Faults and their lines, too, of texts that move from file to file."""
    known = ParseCache()
    for texts in sets:
        workdirs = dict.fromkeys(texts, "/")
        assert spec.load_texts(texts, workdirs, parsed=known) == spec.load_texts(texts, workdirs)
