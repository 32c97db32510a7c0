"""Saved state of another script, and state with a truncated file, is refused by name, and kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from elastic.conftest import Python
from elastic.test_features import HERE

pytestmark = pytest.mark.torch
SCRIPT = HERE / "saved.py"
RUN = ("-m", "rankfold.elastic", "run", "--checkpoint-every=2")
STEP = "states/step-2"


@pytest.fixture(scope="module")
def first(python: Python, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was killed."""
    folder = tmp_path_factory.mktemp("saved") / "first"
    states = {"STATES": str(folder / "states")}
    done = python(*RUN, "--world=2", "--state", folder, SCRIPT, "saves", **states)
    assert done.returncode == -9, done.stderr
    return folder


@pytest.fixture
def state(first: Path, tmp_path: Path) -> Path:
    return Path(
        shutil.copytree(first, tmp_path / "state", ignore=shutil.ignore_patterns("control"))
    )


def files(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in (folder / STEP).iterdir()}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("shape", "of another model: weight has (4, 4) of torch.float32 there, (5, 4) of"),
        ("parameters", "of another model: its parameters differ: 0.bias, 0.weight, bias, weight"),
        ("buffers", "of another model: its buffers differ: mean"),
        ("optimizer", "of another script: its optimizer is Adam there, NAdam here"),
        ("groups", "of another script: its optimizer has 1 groups of parameters there, 2 here"),
        ("scheduler", "of another script: its scheduler is ExponentialLR there, NoneType here"),
        ("local", "of another script: it called elastic.local 0 times, this one 1 times"),
    ],
)
def test_state_of_another_script_is_refused(
    python: Python, state: Path, name: str, reason: str
) -> None:
    before = files(state)
    done = python(*RUN, "--world=2", "--resume", "--state", state, SCRIPT, name)
    assert done.returncode == 1
    assert f"uses what the elastic runtime refuses: the saved state is {reason}" in done.stderr
    assert files(state) == before
    done = python(*RUN, "--world=2", "--resume", "--state", state, SCRIPT, "same")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "unsealed"])
@pytest.mark.parametrize("name", ["shared.pt", "rank-1.pt", "threads", "digests.json"])
def test_truncated_state_is_refused(python: Python, state: Path, name: str, sealed: bool) -> None:
    """Without digests, as for a change of --schedule, PyTorch notices when it reads the file."""
    file = state / STEP / name
    if not sealed:
        (state / STEP / "digests.json").unlink()
        if name == "digests.json":
            file.write_text("{")
    file.write_bytes(file.read_bytes()[:-1] if name == "digests.json" else b"")
    done = python(*RUN, "--world=2", "--resume", "--state", state, SCRIPT, "same")
    assert done.returncode in (1, 2)
    assert f"{file} is missing or damaged" in done.stderr
    assert "Traceback" not in done.stderr


def test_state_of_another_world_size_is_refused(python: Python, state: Path) -> None:
    done = python(*RUN, "--world=3", "--resume", "--state", state, SCRIPT, "same")
    assert done.returncode == 2
    assert "--resume: the saved state has a world of 2, not of 3" in done.stderr
