"""One script, under torchrun and in logical workers: the same output, parameters and state of the
optimizer."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from elastic.conftest import Python
from rankfold.paths import REPOSITORY

pytestmark = pytest.mark.torch
EXAMPLES = REPOSITORY / "examples/elastic"
HERE = Path(__file__).parent
WORLD = 4
LINES = 2 * 5  # epochs, and the steps of each


@pytest.fixture(scope="session")
def stock(python: Python, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the output of the script without rankfold, under torchrun."""
    folder = tmp_path_factory.mktemp("stock")
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}")
    logs = (f"--log-dir={folder}/logs", "--redirects=3")
    done = python(*torchrun, *logs, EXAMPLES / "train_ddp.py", folder)
    assert done.returncode == 0, done.stderr
    for rank in range(WORLD):
        (log,) = folder.glob(f"logs/*/attempt_0/{rank}/stdout.log")
        log.rename(folder / f"rank-{rank}.out")
    return folder


@pytest.mark.parametrize(
    "processes",
    ["--processes=1", "--processes=2", "--processes=3", "--processes=4"]
    # Before and after PyTorch arranges its buckets, between epochs, and with several processes.
    + ["--schedule=0:4,1:1,2:2,5:3,7:4"],
)
def test_logical_workers_have_the_bits_of_stock_processes(
    python: Python, stock: Path, tmp_path: Path, processes: str
) -> None:
    command = ("-m", "rankfold.elastic", "run", "--world", WORLD, processes)
    done = python(*command, "--state", tmp_path, EXAMPLES / "train.py", tmp_path)
    logs = {each.name: each.read_text() for each in sorted(tmp_path.glob("rank-*.*"))}
    assert (done.returncode, done.stderr) == (0, ""), logs
    expected = {
        f"rank-{rank}.out": (stock / f"rank-{rank}.out").read_text() for rank in range(WORLD)
    }
    assert all(text.count("\n") == LINES for text in expected.values())
    assert logs == {**expected, **{f"rank-{rank}.err": "" for rank in range(WORLD)}}
    names = [f"state-{rank}.pt" for rank in range(WORLD)]
    pairs = [path for name in names for path in (stock / name, tmp_path / name)]
    done = python(HERE / "equal.py", *pairs)
    assert done.returncode == 0, done.stderr


def test_a_script_changes_in_five_lines() -> None:
    old, new = ((EXAMPLES / name).read_text() for name in ("train_ddp.py", "train.py"))
    old, new = (text.split('"""\n', 1)[1] for text in (old, new))  # without the docstring
    changed = difflib.ndiff(old.splitlines(), new.splitlines())
    assert 0 < len([line for line in changed if line[:2] == "+ " and line[2:]]) <= 5


def test_a_worker_that_leaves_the_others_waiting_is_named(python: Python, tmp_path: Path) -> None:
    command = ("-m", "rankfold.elastic", "run", "--world", 3, "--state", tmp_path)
    done = python(*command, HERE / "leaves.py")
    assert done.returncode == 1
    errors = "".join(each.read_text() for each in sorted(tmp_path.glob("rank-*.err")))
    waits = "rank 0 waits for all-reduce 1, rank 2 waits for all-reduce 1, rank 1 has ended"
    assert waits in errors
    assert (tmp_path / "rank-1.out").read_text() == "rank 1\n"


def test_a_process_that_exits_before_all_its_ranks_have_ended_fails(
    python: Python, tmp_path: Path
) -> None:
    """Rank 1 alone in a process may: under torchrun each rank has one."""
    script = tmp_path / "exits.py"
    script.write_text("import os\nif os.environ['RANK'] == '1': os._exit(0)\nprint('end')\n")
    command = ("-m", "rankfold.elastic", "run", "--world=3", "--state", tmp_path / "state")
    done = python(*command, "--processes=2", script)
    assert done.returncode == 1
    reason = "process 1 (ranks 1, 2) exited with 0 (os._exit?) before all its ranks had ended"
    assert reason in done.stderr
    done = python(*command, "--processes=3", script)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_that_is_no_python_program_is_refused(python: Python, tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_bytes(b"print(1)\0")
    done = python("-m", "rankfold.elastic", "run", "--world=2", "--state", tmp_path / "s", script)
    assert done.returncode == 1
    assert done.stderr == f"{script} cannot be run: source code string cannot contain null bytes\n"


@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
def test_sums_are_those_of_gloo(python: Python, world: int) -> None:
    done = python(HERE / "added.py", world)
    sums = 41 * sum(range(1, world + 1))  # one in each of 1, 2 … processes
    assert (done.returncode, done.stdout) == (0, f"{sums}\n"), done.stderr


def test_an_untested_version_of_pytorch_is_refused_by_name(python: Python) -> None:
    check = "from rankfold.elastic import private as p; p.check_version('2.13.1'); p.check_version"
    done = python("-c", f"{check}('2.14.1+cpu')")
    assert "PyTorch 2.14.1+cpu is not supported" in done.stderr
