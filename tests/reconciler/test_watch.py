"""Sources: what they see, what they call it, and what they leave alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankfold.reconciler import watch
from support.command import JOB, POOL, Git

JOB_TEXT = JOB.format(name="gpt", command='["true"]', ranks=4, gpus=4, extra="")


@pytest.fixture
def git(tmp_path: Path) -> Git:
    repository = Git(tmp_path / "repo")
    repository("init", "--quiet", "--initial-branch", "main")
    (repository.folder / "pool.yaml").write_text(POOL)
    (repository.folder / "specs").mkdir()
    (repository.folder / "specs/job.yaml").write_text(JOB_TEXT)
    repository.commit("first")
    return repository


def head(git: Git) -> str:
    return git("rev-parse", "HEAD").strip()


def test_git_reads_the_commit_and_never_the_working_tree(git: Git, tmp_path: Path) -> None:
    source = watch.GitSource(str(git.folder), "main", "", tmp_path)
    (git.folder / "specs/job.yaml").write_text("nonsense: [")
    revision = source.poll()
    assert revision is not None and revision.id == head(git)
    assert revision.loaded.faults == [] and set(revision.loaded.desired.jobs) == {"gpt"}
    assert revision.loaded.desired.jobs["gpt"].workdir == str(git.folder)
    assert source.poll() is None, "nothing new"


def test_git_sees_the_next_commit_also_when_refs_are_packed(git: Git, tmp_path: Path) -> None:
    source = watch.GitSource(str(git.folder), "main", "", tmp_path)
    assert source.poll() is not None
    for number in range(3):
        (git.folder / "note.txt").write_text(str(number))
        commit = git.commit("next")
        if number == 1:
            git("pack-refs", "--all")
        revision = source.poll()
        assert revision is not None and revision.id == commit


def test_git_path_and_branch_choose(git: Git, tmp_path: Path) -> None:
    git("checkout", "--quiet", "-b", "other")
    (git.folder / "specs/job.yaml").write_text(JOB_TEXT.replace("gpt", "bert"))
    git.commit("other")
    git("checkout", "--quiet", "main")
    revision = watch.GitSource(str(git.folder), "other", "specs", tmp_path).poll()
    assert revision is not None
    assert set(revision.loaded.desired.jobs) == {"bert"} and revision.loaded.desired.pools == {}
    nothing = watch.GitSource(str(git.folder), "main", "nowhere", tmp_path).poll()
    assert nothing is not None and "holds no *.yaml" in str(nothing.loaded.faults[0])


def test_a_bare_repository_needs_absolute_workdirs(git: Git, tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    git("clone", "--quiet", "--bare", ".", str(bare))
    revision = watch.GitSource(str(bare), "main", "", tmp_path).poll()
    assert revision is not None
    assert [f.field for f in revision.loaded.faults] == ["spec.workdir"]
    assert revision.loaded.faults[0].file == "specs/job.yaml"


def test_a_repository_elsewhere_is_mirrored_and_fetched(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{git.folder}"
    source = watch.GitSource(url, "main", "", tmp_path / "state")
    first = source.poll()
    assert first is not None and first.id == head(git)
    described = {"git": url, "branch": "main"}
    assert watch.identity_of(described) == f"git {url}, branch main"
    (git.folder / "note").touch()
    git.commit("second")
    assert source.poll() is None, "it is not fetched at every look"
    monkeypatch.setattr(watch, "FETCH_S", 0.0)
    second = source.poll()
    assert second is not None and second.id == head(git) != first.id


def test_what_is_no_repository_or_branch_is_an_error_of_the_source(
    git: Git, tmp_path: Path
) -> None:
    with pytest.raises(watch.SourceError, match="not a git repository"):
        watch.GitSource(str(tmp_path), "main", "", tmp_path).poll()
    with pytest.raises(watch.SourceError, match="has no branch nope"):
        watch.GitSource(str(git.folder), "nope", "", tmp_path).poll()


def test_the_callers_git_variables_do_not_lead_elsewhere(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert watch.GitSource(str(git.folder), "main", "", tmp_path).poll() is not None


def test_a_directory_gives_a_revision_for_each_content(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)
    source = watch.DirectorySource(tmp_path)
    try:
        first = source.poll()
        assert first is not None and first.id.startswith("sha256:")
        assert source.poll() is None
        (tmp_path / "job.yaml").write_text(JOB_TEXT)
        second = source.poll()
        assert second is not None and second.id != first.id
        (tmp_path / "job.yaml").unlink()
        third = source.poll()
        assert third is not None and third.id == first.id
        (tmp_path / "broken.yaml").write_text("x: [")
        broken = source.poll()
        assert broken is not None and broken.loaded.faults and broken.id != first.id
        (tmp_path / "broken.yaml").unlink()
        fourth = source.poll()
        assert fourth is not None and fourth.id == first.id
        os.utime(tmp_path / "pool.yaml", ns=(10**18, 10**18))
        touched = source.poll()
        assert touched is not None and touched.saved_at == 1e9, "the time of the save counts"
    finally:
        source.close()
