"""One tree of files gives one answer: as a directory, as a commit, to `validate` and to `plan`."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from rankfold import paths
from rankfold.reconciler.cli import cli
from rankfold.reconciler.source import reader, spec, trees
from rankfold.reconciler.source.invalid import InvalidInput
from support.command import JOB, POOL, Git, Rankfold, Specs

GPT = JOB.format(name="gpt", command='["true"]', ranks=1, gpus=1, extra="workdir: data")
BERT = GPT.replace("gpt", "bert")
NOT_UTF8 = os.fsdecode(b"caf\xe9.yaml")


@dataclass(frozen=True)
class Link:
    target: str  # DEEP stands for the way up to the repository


class Submodule:
    """One that is not checked out, as `git clone` leaves it."""


Content = str | bytes | Link | Submodule


def write(folder: Path, name: str, content: Content = GPT) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Link):
        file.symlink_to(content.target)
    elif not isinstance(content, Submodule):
        file.write_bytes(content.encode() if isinstance(content, str) else content)


CORPUS: dict[str, dict[str, Content]] = {
    "plain": {"sub/deep/gpt.yml": GPT},
    "other files": {"readme.txt": "x: ["},
    "hidden": {".hidden/bert.yaml": "x: [", ".x.yaml": "x: ["},
    "folder": {"x.yaml/gpt.yaml": GPT},
    "submodule": {"x.yaml": Submodule()},
    "link": {"a/gpt.txt": GPT, "gpt.yaml": Link("./a/../a/gpt.txt")},
    "linked folders, as of a ConfigMap": {
        "..v1/gpt.yaml": GPT,
        "..data": Link("..v1"),
        "gpt.yaml": Link("..data/gpt.yaml"),
        "more": Link("sub"),
        "sub/bert.yaml": BERT,
    },
    "link to a folder": {"a/gpt.yaml": GPT, "x.yaml": Link("a")},
    "link above the folder": {"x.yaml": Link("DEEP/outside.yaml")},
    "link out and back": {"x.yaml": Link("../specs/other"), "other": GPT},
    "dangling": {"x.yaml": Link("gone.yaml")},
    "dangling below a file": {"x.yaml": Link("pool.yaml/gone.yaml")},
    "loop": {"x.yaml": Link("x.yaml")},
    "last line without an end": {"a.yaml": GPT.rstrip()},
    "empty": {"a.yaml": ""},
    "line ends": {"a.yaml": GPT.replace("\n", "\r\n")},
}
REFUSED: dict[str, dict[str, Content]] = {
    "link twice": {"a.yaml": GPT, "b.yaml": Link("a.yaml")},
    "not UTF-8": {"a.yaml": b"a: b\nc: \xff\n"},
    "name not UTF-8": {NOT_UTF8: GPT},
    "name that steers": {"\x1b[31m\n\\.yaml": "kind: Jib\n"},
    "broken, with other line ends": {"a.yaml": GPT.replace("\n", "\r\n") + "x: y\r\n"},
    "broken": {"a.yaml": GPT + "---\nkind: [\n"},
    "too large": {"a.yaml": b"#" * (trees.BYTES_MAX + 1)},
}


@pytest.fixture
def git(tmp_path: Path) -> Git:
    git = Git(tmp_path / "repo")
    git("init", "--quiet", "--initial-branch", "main")
    write(git.folder, "outside.yaml")
    return git


def answer(loaded: spec.Loaded, root: str) -> object:
    """All that counts of it, with names relative to the folder."""
    faults = [str(fault).replace(f"{root}/", "").replace(root, "TREE") for fault in loaded.faults]
    if loaded.faults:
        return faults
    origins = {key: (o.file.replace(f"{root}/", ""), o.line) for key, o in loaded.origins.items()}
    files = {n.replace(f"{root}/", ""): (f.lines, f.ended) for n, f in loaded.files.items()}
    return loaded.desired, origins, files


@pytest.mark.parametrize("where", ["specs", ".deploy/specs"])
@pytest.mark.parametrize("name", [*CORPUS, *REFUSED])
def test_a_directory_and_a_commit_give_the_same_answer(
    git: Git, tmp_path: Path, name: str, where: str
) -> None:
    folder = git.folder / where
    write(folder, "pool.yaml", POOL)
    for file, content in {**CORPUS, **REFUSED}[name].items():
        if isinstance(content, Link):
            content = Link(content.target.replace("DEEP", os.path.relpath(git.folder, folder)))
        write(folder, file, content)
    git("add", "--all")
    if isinstance(CORPUS.get(name, {}).get("x.yaml"), Submodule):
        git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},{where}/x.yaml")
    git("commit", "--quiet", "--message", "a tree")
    revision = reader.GitSource(str(git.folder), "main", where, tmp_path / "state").poll()
    assert revision is not None
    source = reader.DirectorySource(folder)
    try:
        followed = source.poll()
    finally:
        source.close()
    assert followed is not None
    checked = spec.load_dir(folder)
    assert answer(followed.loaded, str(folder)) == answer(checked, str(folder))
    assert answer(revision.loaded, where) == answer(checked, str(folder))
    assert bool(checked.faults) == (name in REFUSED), checked.faults
    for command in (["validate"], ["plan", "-f"]):
        arguments = ["--state", str(tmp_path / "none"), *command, str(folder)]
        error = CliRunner().invoke(cli, arguments).exception
        told = error.faults if isinstance(error, InvalidInput) else []
        assert told == checked.faults


@pytest.mark.parametrize("target", ["../../elsewhere.yaml", "/etc/hostname", "../../gone.yaml"])
def test_a_link_out_of_the_repository_is_refused_in_a_commit(
    git: Git, tmp_path: Path, target: str
) -> None:
    """In a directory such a link is followed: there it is part of what people save."""
    write(tmp_path, "elsewhere.yaml")
    write(git.folder, "specs/pool.yaml", POOL)
    write(git.folder, "specs/x.yaml", Link(target))
    git.commit("a link")
    revision = reader.GitSource(str(git.folder), "main", "specs", tmp_path / "state").poll()
    assert revision is not None
    assert [str(fault) for fault in revision.loaded.faults] == [
        f"specs/x.yaml:1: -: is a symbolic link out of the repository, to {target}: a commit does "
        "not contain that; link to a file in it by a relative path, or copy the file"
    ]
    if "elsewhere" in target:
        assert set(spec.load_dir(git.folder / "specs").desired.jobs) == {"gpt"}


def test_a_path_in_a_repository_may_be_a_file_or_lead_through_links(
    git: Git, tmp_path: Path
) -> None:
    write(git.folder, "releases/1/.gpt.yaml")
    write(git.folder, "releases/1/bert.yaml", BERT)
    write(git.folder, "current", Link("releases/1"))
    git.commit("a release")

    def jobs(path: str) -> dict[str, str]:
        revision = reader.GitSource(str(git.folder), "main", path, tmp_path / "state").poll()
        assert revision is not None
        loaded = spec.load_dir(git.folder / path)
        assert (loaded.faults == []) == (revision.loaded.faults == [])
        if not loaded.faults:
            assert loaded.desired.jobs == revision.loaded.desired.jobs
        return {name: job.workdir for name, job in revision.loaded.desired.jobs.items()}

    data = str(git.folder / "current/data")
    assert jobs("current") == {"bert": data}, "the same in the next release"
    assert jobs("current/.gpt.yaml") == {"gpt": data}, "what is named is read, hidden or not"
    assert jobs("outside.yaml") == {"gpt": str(git.folder / "data")}
    assert jobs("nowhere") == {} == jobs("outside.yaml/x")


@pytest.mark.parametrize("path", ["specs", ".deploy/specs"])
def test_the_repositorys_own_specs_run_from_git(
    rankfold: Rankfold, tmp_path: Path, path: str
) -> None:
    """Beside them only what they name: their working directory and their program."""
    git = Git(tmp_path / "repo")
    git("init", "--quiet", "--initial-branch", "main")
    folder = git.folder / path
    shutil.copytree(paths.REPOSITORY / "specs", folder)
    workdir = (folder / "../examples/gpt").resolve()
    write(workdir, "kept")
    program = (workdir / "../../build/examples/train_gpt").resolve()
    write(program.parent, program.name, "#!/bin/sh\npwd\n")
    program.chmod(0o755)
    git.commit("specs")
    rankfold("validate", str(folder))
    planned = json.loads(rankfold("plan", "-f", str(folder), "-o", "json"))
    assert sorted(change["object"] for change in planned["changes"]) == ["Job/gpt", "Pool/local"]
    with rankfold.watching("--git", str(git.folder), "--branch", "main", "--path", path):
        rankfold.until(lambda: rankfold.job("gpt").get("phase") == "Succeeded")
    assert str(workdir) in rankfold("logs", "gpt", "--rank", "0")


@pytest.mark.usual("release-1")
@pytest.mark.parametrize("named", ["current", "release-1"])
def test_a_link_to_a_release_is_followed_to_the_next_one(
    rankfold: Rankfold, specs: Specs, named: str
) -> None:
    """The fleet stays the same, whichever name of the folder it was first given: only a relative
    workdir differs then."""
    specs.job(gpus=2, extra="" if named == "current" else "workdir: /")
    first = specs.folder.rename(specs.folder.with_name("release-1"))
    second = specs.folder.with_name("release-2")
    shutil.copytree(first, second)
    text = (first / "gpt.yaml").read_text()
    (second / "gpt.yaml").write_text(text.replace("gpus: 2", "gpus: 1"))
    current = specs.folder.with_name("current")
    current.symlink_to("release-1")
    rankfold("apply", "-f", str(current.with_name(named)), "--wait")
    started = rankfold.job("gpt")["ranks"][0]["pid"]
    with rankfold.watching(str(current)):
        assert rankfold.job("gpt")["devices"] == 2
        new = current.with_name("new")
        new.symlink_to("release-2")
        new.rename(current)
        rankfold.until(lambda: rankfold.job("gpt")["devices"] == 1)
        (second / "gpt.yaml").write_text(text.replace("gpus: 2", "gpus: 4"))
        rankfold.until(lambda: rankfold.job("gpt")["devices"] == 4)
    with rankfold.watching(str(current)):
        status = rankfold.status()
        assert status["source"]["name"] == f"directory {current}"
        assert status["jobs"][0]["source"]["file"] == f"{current}/gpt.yaml"
        assert status["jobs"][0]["ranks"][0]["pid"] == started
