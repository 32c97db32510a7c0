"""Saved state of another script, and state with a damaged file, is refused by name, and kept."""

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


@pytest.mark.parametrize("name", ["shared.pt", "rank-0.pt", "threads", "gradients-0.pt"])
@pytest.mark.parametrize("damage", ["cut", "emptied", "flipped", "end_flipped", "removed"])
def test_damaged_state_is_refused(python: Python, state: Path, name: str, damage: str) -> None:
    """Without its end, a file may also be of an earlier version."""
    file = state / STEP / name
    content = bytearray(file.read_bytes())
    if damage == "removed":
        file.unlink()
    else:
        content[-1 if damage == "end_flipped" else len(content) // 3] ^= 4
        kept = {"cut": len(content) - 12, "emptied": 0}.get(damage, len(content))
        file.write_bytes(content[:kept])
    done = python(*RUN, "--world=2", "--resume", "--state", state, SCRIPT, "same")
    assert done.returncode in (1, 2)
    assert f"{file} is missing or damaged: " in done.stderr + (state / "rank-0.err").read_text()
    assert "Traceback" not in done.stderr


def test_equal_gradients_are_saved_once(state: Path) -> None:
    names = {"shared.pt", "threads", "rank-0.pt", "rank-1.pt", "gradients-0.pt"}
    assert set(files(state)) == names


def test_gradients_that_are_only_equal_stay_those_of_their_worker(
    python: Python, tmp_path: Path
) -> None:
    """0.0 is equal to -0.0, which has another bit."""
    script = tmp_path / "zeros.py"
    script.write_text(
        "import torch, torch.distributed as dist, rankfold.elastic as elastic\n"
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "from torch.utils.data import DataLoader\n"
        "dist.init_process_group('gloo')\n"
        "model = DDP(torch.nn.Linear(1, 1))\n"
        "elastic.wrap(model, torch.optim.SGD(model.parameters(), 0.1))\n"
        "for x in elastic.steps(DataLoader([0] * 4)):\n"
        "    found = [each.grad for each in model.parameters()]\n"
        "    print([each if each is None else each.item() for each in found])\n"
        "    for each in model.parameters():\n"
        "        each.grad = torch.full_like(each, (-0.0, 0.0, -0.0)[dist.get_rank()])\n"
    )
    state = tmp_path / "state"
    done = python(*RUN[:3], "--world=3", "--schedule=0:1,2:3", "--state", state, script)
    assert (done.returncode, done.stderr) == (0, "")
    for rank, zero in enumerate(("-0.0", "0.0", "-0.0")):
        lines = (state / f"rank-{rank}.out").read_text().splitlines()
        assert lines == ["[None, None]"] + 3 * [f"[{zero}, {zero}]"]


def test_state_that_all_processes_have_written_is_used_without_its_name(
    python: Python, state: Path
) -> None:
    """The run was killed before it gave the folder its name."""
    unfinished = state / "states/unfinished-2"
    (state / STEP).rename(unfinished)
    command = (*RUN, "--world=2", "--state", state)
    done = python(*command, SCRIPT, "same")
    assert "step-2 is the saved state of a run: pass --resume" in done.stderr
    (state / STEP).rename(unfinished)
    part = unfinished / "rank-1.pt"
    content = part.read_bytes()
    part.unlink()
    done = python(*command, "--resume", SCRIPT, "same")
    assert "has no saved state" in done.stderr
    part.write_bytes(content)
    done = python(*command, "--resume", SCRIPT, "same")
    assert (done.returncode, done.stderr) == (0, "")
    assert (state / "rank-1.out").read_text().splitlines() == [f"step {n}" for n in range(6)]


def test_state_of_another_world_size_is_refused(python: Python, state: Path) -> None:
    done = python(*RUN, "--world=3", "--resume", "--state", state, SCRIPT, "same")
    assert done.returncode == 2
    assert "--resume: the saved state has a world of 2, not of 3" in done.stderr
