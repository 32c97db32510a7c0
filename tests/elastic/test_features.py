"""Each use of DistributedDataParallel keeps its meaning, in any number of processes and when the
number changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.conftest import Python

pytestmark = pytest.mark.torch
HERE = Path(__file__).parent
SCRIPT = HERE / "features.py"
WORLD = 3


RUN = ("-m", "rankfold.elastic", "run", "--world", WORLD)


def output(folder: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in sorted(folder.glob("rank-*.*"))}


@pytest.fixture(scope="session")
def stock(python: Python, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("stock")
    done = python(HERE / "stock.py", WORLD, folder, SCRIPT)
    assert (done.returncode, done.stderr) == (0, ""), output(folder)
    return output(folder)


@pytest.mark.parametrize(
    "processes",
    [
        "--processes=1",
        "--processes=2",
        "--schedule=0:2,1:1,3:3,7:2,8:3,15:1,19:2,21:1,27:3,32:2,38:1,40:2,45:1,46:3,49:2",
    ],
)
def test_features_have_the_output_of_stock_processes(
    python: Python, stock: dict[str, str], tmp_path: Path, processes: str
) -> None:
    done = python(*RUN, processes, "--state", tmp_path, SCRIPT)
    found = output(tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), found
    for name, text in stock.items():
        assert found[name].splitlines() == text.splitlines(), name


def test_a_killed_process_costs_at_most_the_interval(
    python: Python, stock: dict[str, str], tmp_path: Path
) -> None:
    options = ("--processes=2", "--checkpoint-every=2", "--state", tmp_path)
    killed = {"KILL": "persistent 1 1 2", "KILLED": str(tmp_path / "killed")}
    done = python(*RUN, *options, SCRIPT, **killed)
    assert done.returncode == 0, output(tmp_path)
    assert "(ranks 1, 2) was killed by signal 9" in done.stderr
    assert "continuing from step 46\n" in done.stderr  # seven features, then the fifth step
    assert output(tmp_path) == stock


def test_a_killed_run_continues_in_other_processes(
    python: Python, stock: dict[str, str], tmp_path: Path
) -> None:
    """It is not overwritten by a run that does not ask for it."""
    options = ("--checkpoint-every=5", "--state", tmp_path)
    killed = {"KILL": "groups 0 2 0", "KILL_PARENT": "1", "KILLED": str(tmp_path / "killed")}
    assert python(*RUN, "--processes=3", *options, SCRIPT, **killed).returncode == -9
    done = python(*RUN, *options, SCRIPT)
    assert done.returncode == 2
    assert "step-30 is the saved state of a run: pass --resume, or remove it" in done.stderr
    done = python("-m", "rankfold.elastic", "run", "--world=4", "--resume", *options, SCRIPT)
    assert "the saved state has a world of 3, not of 4" in done.stderr
    done = python(*RUN, "--resume", "--processes=1", *options, SCRIPT)
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path)
    assert output(tmp_path) == stock
    assert not (tmp_path / "states").exists(), "a finished run needs no state"
