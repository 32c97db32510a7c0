"""A worker that fails, exits, forks, seeds anew or prints bytes does what it would do in a stock
process; where that ends the run, the run's message names the worker and the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic.conftest import Python
from elastic.test_features import HERE, RUN, WORLD, output

pytestmark = pytest.mark.torch
ENDS = HERE / "ends.py"
NOTICED_S = "20"  # a run that waits for a forked process never ends
PROCESS = "process 1 (ranks 1, 2)"


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("raises", 1, "exited with 1: rank 1 raised ValueError: a label is missing; "),
        ("exits", 3, "exited with 3: rank 1 exited with 3; "),
        ("exits_with_text", 1, "exited with 1: rank 1 exited with 1 (no data left); "),
        ("exits_with_success", 1, "exited with 1: rank 2 was stopped: no logical worker can "),
        ("leaves", 4, "exited with 4 (os._exit?) while rank 1 ran; "),
        ("crashes", 128 + 11, "was killed by signal 11 while rank 1 ran; "),
    ],
)
def test_a_run_that_fails_names_the_worker_and_the_reason(
    python: Python, tmp_path: Path, name: str, status: int, reason: str
) -> None:
    done = python(*RUN, "--processes=2", "--state", tmp_path, ENDS, name)
    assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
    assert done.stderr.startswith(f"{PROCESS} {reason}"), done.stderr
    assert done.stderr.endswith(f"; see {tmp_path}\n")
    found = output(tmp_path)
    assert found["rank-1.out"] == "step 0\n"
    if name not in ("leaves", "crashes", "exits_with_success"):
        assert (
            f"rank 2 was stopped: rank 1 {reason.split('rank 1 ')[1][:-2]}" in found["rank-2.err"]
        )
    if name == "exits_with_success":
        assert "rank 1 has ended" in done.stderr


def test_a_run_names_a_rank_that_has_ended_alone(python: Python, tmp_path: Path) -> None:
    """It ends with success, in a process of its own. The others lose their connections to it."""
    command = (*RUN, f"--processes={WORLD}", "--state", tmp_path)
    done = python(*command, ENDS, "exits_with_success", LIMIT_S=NOTICED_S)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert " raised RuntimeError: " in done.stderr
    assert done.stderr.endswith(f" (rank 1 had ended); see {tmp_path}\n")
    assert output(tmp_path)["rank-1.out"] == "step 0\n"


@pytest.mark.parametrize("processes", [1, WORLD])
def test_a_forked_process_is_no_worker(python: Python, tmp_path: Path, processes: int) -> None:
    """It ends with its own status. The run continues."""
    done = python(
        *RUN,
        f"--processes={processes}",
        "--state",
        tmp_path / "state",
        ENDS,
        "forks",
        LIMIT_S=NOTICED_S,
    )
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path / "state")
    found = output(tmp_path / "state")
    lines = [f"step {number}" for number in range(4)]
    assert found["rank-0.out"].splitlines() == found["rank-2.out"].splitlines() == lines
    lines[1:1] = ["forked by 1 1", "status 5"]
    assert found["rank-1.out"].splitlines() == lines
    assert not any(found[f"rank-{rank}.err"] for rank in range(WORLD))


@pytest.mark.parametrize("processes", [1, WORLD])
def test_a_forked_process_that_trains_is_refused(
    python: Python, tmp_path: Path, processes: int
) -> None:
    command = (*RUN, f"--processes={processes}", "--state", tmp_path)
    done = python(*command, ENDS, "forked_process_trains", LIMIT_S=NOTICED_S)
    found = output(tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), found
    assert found["rank-1.out"].splitlines() == [
        "step 0",
        "status 1",
        *map("step {}".format, (1, 2, 3)),
    ]
    reason = "training in a process that the script has forked: end it with os._exit"
    assert f"rank 1 uses what the elastic runtime refuses: {reason}\n" in found["rank-1.err"]


@pytest.mark.parametrize("processes", ["--processes=1", "--schedule=0:2,1:1,3:3,6:2"])
def test_new_seeds_and_printed_bytes_are_those_of_stock_processes(
    python: Python, tmp_path: Path, processes: str
) -> None:
    def logs(folder: Path) -> dict[str, bytes]:
        return {each.name: each.read_bytes() for each in folder.glob("rank-*.*")}

    (stock := tmp_path / "stock").mkdir()
    done = python(HERE / "stock.py", WORLD, stock, HERE / "reseeded.py")
    assert (done.returncode, done.stderr) == (0, ""), logs(stock)
    expected = logs(stock)
    assert len(expected["rank-1.out"]) == 2 * 4 * (256 + 3 * 8)
    command = (*RUN, processes, "--state", tmp_path / "state", HERE / "reseeded.py")
    done = python(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert logs(tmp_path / "state") == expected
