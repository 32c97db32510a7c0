"""Sources: what they see, what they call it, and what they leave alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankfold.reconciler.source import reader, trees
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
    source = reader.GitSource(str(git.folder), "main", "", tmp_path)
    (git.folder / "specs/job.yaml").write_text("nonsense: [")
    revision = source.poll()
    assert revision is not None and revision.id == head(git)
    assert revision.loaded.faults == [] and set(revision.loaded.desired.jobs) == {"gpt"}
    assert revision.loaded.desired.jobs["gpt"].workdir == str(git.folder)
    assert source.poll() is None, "nothing new"


def test_git_sees_the_next_commit_also_when_refs_are_packed(git: Git, tmp_path: Path) -> None:
    source = reader.GitSource(str(git.folder), "main", "", tmp_path)
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
    revision = reader.GitSource(str(git.folder), "other", "specs", tmp_path).poll()
    assert revision is not None
    assert set(revision.loaded.desired.jobs) == {"bert"} and revision.loaded.desired.pools == {}
    nothing = reader.GitSource(str(git.folder), "main", "nowhere", tmp_path).poll()
    assert nothing is not None and "holds no *.yaml" in str(nothing.loaded.faults[0])


def test_a_bare_repository_needs_absolute_workdirs(git: Git, tmp_path: Path) -> None:
    bare = tmp_path / "bare.git"
    git("clone", "--quiet", "--bare", ".", str(bare))
    revision = reader.GitSource(str(bare), "main", "", tmp_path).poll()
    assert revision is not None
    assert [f.field for f in revision.loaded.faults] == ["spec.workdir"]
    assert revision.loaded.faults[0].file == "specs/job.yaml"


def test_a_repository_elsewhere_is_mirrored_and_fetched(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{git.folder}"
    source = reader.GitSource(url, "main", "", tmp_path / "state")
    first = source.poll()
    assert first is not None and first.id == head(git)
    described = {"git": url, "branch": "main"}
    assert reader.identity_of(described) == f"git {url}, branch main"
    (git.folder / "note").touch()
    git.commit("second")
    assert source.poll() is None, "it is not fetched at every look"
    monkeypatch.setattr(reader, "FETCH_S", 0.0)
    second = source.poll()
    assert second is not None and second.id == head(git) != first.id


def test_a_missing_repository_or_branch_is_an_error_of_the_source(git: Git, tmp_path: Path) -> None:
    with pytest.raises(reader.SourceError, match="not a git repository"):
        reader.GitSource(str(tmp_path), "main", "", tmp_path).poll()
    with pytest.raises(reader.SourceError, match="has no branch nope"):
        reader.GitSource(str(git.folder), "nope", "", tmp_path).poll()


def test_the_callers_git_variables_do_not_lead_elsewhere(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert reader.GitSource(str(git.folder), "main", "", tmp_path).poll() is not None


def test_a_directory_gives_a_revision_for_each_content(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)
    source = reader.DirectorySource(tmp_path)
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


# ---- refs and remotes --------------------------------------------------------------------------


def test_only_files_that_differ_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link's target may be replaced by another file unnoticed, so it is read each time."""
    specs, target = tmp_path / "specs", tmp_path / "job.yaml"
    specs.mkdir()
    (specs / "pool.yaml").write_text(POOL)
    target.write_text(JOB_TEXT)
    (specs / "linked.yaml").symlink_to(target)
    (specs / "own.yaml").write_text(JOB_TEXT.replace("gpt", "own"))
    read: list[str] = []
    original = trees.read

    def counting(file: Path, place: Path) -> trees.Found:
        read.append(file.name)
        return original(file, place)

    monkeypatch.setattr(trees, "read", counting)
    source = reader.DirectorySource(specs)
    assert source.poll() is not None
    assert sorted(read) == ["linked.yaml", "own.yaml", "pool.yaml"]
    read.clear()
    (specs / "own.yaml").write_text(JOB_TEXT.replace("gpt", "other"))
    revision = source.poll()
    assert revision is not None and set(revision.loaded.desired.jobs) == {"gpt", "other"}
    assert sorted(read) == ["linked.yaml", "own.yaml"]
    read.clear()
    specs.rename(tmp_path / "moved")
    specs.symlink_to(tmp_path / "moved")
    (specs / "pool.yaml").touch()
    assert source.poll() is not None
    assert len(read) == 3, "their folder has another path"
    source.close()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_tag_or_a_commit_can_be_followed(git: Git, tmp_path: Path, elsewhere: bool) -> None:
    first = head(git)
    git("tag", "--annotate", "--message", "a release", "v1")
    git("tag", "lasting")
    (git.folder / "note").touch()
    second = git.commit("second")
    git("branch", "lasting", second)
    repository = f"file://{git.folder}" if elsewhere else str(git.folder)
    meant = {"v1": first, "refs/tags/v1": first, first: first, "lasting": second, "main": second}
    for ref, commit in meant.items() if elsewhere else [*meant.items(), (first[:9], first)]:
        source = reader.GitSource(repository, ref, "", tmp_path / "state")
        revision = source.poll()
        assert revision is not None and revision.id == commit, ref
        assert set(revision.loaded.documents) >= {("Pool", "local")}
    with pytest.raises(reader.SourceError, match="has no branch v2: there are lasting, main"):
        reader.GitSource(repository, "v2", "", tmp_path / "state").poll()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_tag_that_moves_is_followed(
    git: Git, tmp_path: Path, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "FETCH_S", 0.0)
    git("tag", "now")
    repository = f"file://{git.folder}" if elsewhere else str(git.folder)
    source = reader.GitSource(repository, "now", "", tmp_path / "state")
    assert source.poll() is not None and source.poll() is None
    (git.folder / "note").touch()
    commit = git.commit("second")
    git("tag", "--force", "now")
    revision = source.poll()
    assert revision is not None and revision.id == commit
    git("tag", "--delete", "now")
    with pytest.raises(reader.SourceError, match="has no branch now"):
        source.poll()


def test_only_what_is_followed_is_fetched(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither pull requests, nor other branches and tags, nor history."""
    monkeypatch.setattr(reader, "FETCH_S", 0.0)
    first = head(git)
    git("checkout", "--quiet", "-b", "request")
    (git.folder / "large").write_text("a pull request")
    request = git.commit("request")
    git("update-ref", "refs/pull/1/head", request)
    git("tag", "request", request)
    git("checkout", "--quiet", "main")
    (git.folder / "note").touch()
    git.commit("second")
    source = reader.GitSource(f"file://{git.folder}", "main", "", tmp_path / "state")
    for number in range(2):
        revision = source.poll()
        assert revision is not None and revision.id == head(git)
        mirror = Git(source.repo)
        refs = mirror("for-each-ref", "--format=%(refname)").split()
        assert refs == ["refs/heads/main"]
        had = mirror("cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
        assert first not in had and request not in had
        (git.folder / "note").write_text(str(number))
        git.commit("third")


def test_a_ref_whose_name_was_a_folder_of_refs_is_followed(git: Git, tmp_path: Path) -> None:
    url = f"file://{git.folder}"
    git("branch", "a")
    assert reader.GitSource(url, "a", "", tmp_path / "state").poll() is not None
    git("branch", "--move", "a", "b")
    git("branch", "a/b")
    assert reader.GitSource(url, "a/b", "", tmp_path / "state").poll() is not None


def test_the_callers_way_to_reach_a_remote_is_kept(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ssh` is what GIT_SSH_COMMAND says: here a program that serves the repository itself."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\necho "$@" >> "$0.log"\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH_COMMAND", f"{ssh} -i key")
    url = f"ssh://host{git.folder}"
    revision = reader.GitSource(url, "main", "", tmp_path / "state").poll()
    assert revision is not None and revision.id == head(git)
    assert "-i key" in (tmp_path / "ssh.log").read_text()
