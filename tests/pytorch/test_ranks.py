"""PyTorch in a rank: what it sees, and what its own timeouts do while a job is suspended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rankfold.reconciler.layout import Layout
from support.command import Rankfold, Specs
from support.leaks import State

WATCHED = Path(__file__).with_name("watched.py")
TIMEOUT_S = 3  # of a collective, and of the watchdog's heartbeat

SEES = """
import torch
x = torch.tensor([1.0, 2.0]).cuda()
print(torch.cuda.device_count(), torch.cuda.get_device_capability(), x.tolist())
"""


@pytest.mark.torch
def test_a_rank_sees_its_device(torch: Path, rankfold: Rankfold) -> None:
    options = ["--world-size", "1", "--compute-capability", "9.0"]
    printed = rankfold("run", *options, "--", str(torch), "-c", SEES)
    assert printed == "1 (9, 0) [1.0, 2.0]\n"


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ours", [True, False])
def test_a_watchdog_ends_no_rank_that_was_suspended(
    ours: bool, torch: Path, state: State, rankfold: Rankfold, specs: Specs
) -> None:
    """The job rests in memory, with a collective that waits for longer than its timeout. The user's
    own settings hold: with PyTorch's defaults the process is ended."""
    go, begun = state.folder / "go", state.folder / "begun"
    env = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(TIMEOUT_S)}
    if not ours:
        env |= {"TORCH_NCCL_ENABLE_MONITORING": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    said = ", ".join(f"{name}: '{value}'" for name, value in env.items())
    command = [str(torch), str(WATCHED), str(TIMEOUT_S), str(begun), str(go)]

    def apply(suspend: bool) -> None:
        extra = f"suspend: {str(suspend).lower()}\n  restart: {{maxRestarts: 0}}\n  env: {{{said}}}"
        specs.program(command, "job", 1, extra, ranks=2)
        rankfold("apply", "-f", str(specs.folder), "--wait")

    specs.pool(1, "1GiB", "9.0")
    apply(suspend=False)
    rankfold.until(begun.exists)
    apply(suspend=True)
    go.touch()  # the ranks begin a collective, which waits
    time.sleep(2 * TIMEOUT_S)
    apply(suspend=False)
    rankfold.until(lambda: rankfold.job("job")["phase"] in ("Succeeded", "Failed"))
    assert rankfold.job("job")["phase"] == ("Succeeded" if ours else "Failed")
    logs = Layout(state.path).logs("job")
    if ours:
        assert (logs / "rank-0.out").read_text() == "2.0\n"
    else:
        assert "collective operation timeout" in (logs / "rank-0.err").read_text()
