"""nvidia-ml-py, unmodified, in folded ranks: its answers are those of the CUDA API."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from support.fleet import Fleet, MiB, until
from support.leaks import State

PROGRAM = Path(__file__).with_name("rank_program.py")
REFUSALS = [
    "utilization: Not Supported",
    "power: Not Supported",
    "link: Not Supported",
    "no index: Invalid Argument",
    "no uuid: Not Found",
    "no bus: Not Found",
    "not covered: Not Supported",
]


def test_nvml_and_cuda_give_the_same_answers(state: State) -> None:
    """Before and after an allocation, and a move between them; each rank about its own device."""
    with Fleet(state, 2, memory=64 * MiB) as fleet:
        gates = [state.folder / f"go-{rank}" for rank in range(2)]
        for gate in gates:
            os.mkfifo(gate)
        script = 'exec "$0" "$1" "$2$RANK"'
        command = ["sh", "-c", script, sys.executable, str(PROGRAM), str(state.folder / "go-")]
        job = fleet.start("asking", command, [0, 0], memory=32 * MiB)
        until(
            lambda: all(
                job.output(rank).count("\n") == 1 or job.exit_status(rank) is not None
                for rank in range(2)
            ),
            60,
            "both have asked once",
        )
        assert [job.exit_status(rank) for rank in range(2)] == [None, None], job.errors(0)
        job.move([fleet.names[1], fleet.names[1]])
        for gate in gates:
            gate.write_text("go")
        assert job.wait() == [0, 0], job.errors(0)
        for rank in range(2):
            first, second, after = map(json.loads, job.output(rank).splitlines())
            assert first["nvml"] == first["cuda"] and second["nvml"] == second["cuda"]
            assert first["nvml"]["index"] == rank and first["nvml"]["count"] == 2
            used = [
                answers["memory"][2] for answers in (first["before"], first["nvml"], second["nvml"])
            ]
            assert used[0] == 0 and first["before"]["processes"] == []
            assert used[1] >= 3 * MiB and used[2] - used[1] >= 4 * MiB
            assert first["refusals"] == REFUSALS and after == "Uninitialized"
            said = [line for line in job.errors(rank).splitlines() if "rankfold: " in line]
            assert len(said) == 1 and "nvmlDeviceSetPersistenceMode" in said[0], said
        job.detach(discard=True)
