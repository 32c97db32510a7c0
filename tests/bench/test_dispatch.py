"""`make bench-dispatch` writes what is promised."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY

KERNELS = {f"kernel_vs_gcc_{name}" for name in ("vadd", "softmax", "layernorm", "adam")}
FIGURES = KERNELS | {
    "async_launch_ns_p50",
    "async_launch_ns_p99",
    "sync_roundtrip_us_p50",
    "sync_roundtrip_us_p99",
    "step_overhead_gpt",
    "step_overhead_launch_bound",
    "step_overhead_launch_30k",
    "step_overhead_launch_100k",
    "step_overhead_launch_flood",
    "matmul_gflops_per_core",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_figures_of_the_contract_are_written(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "benchmarks.dispatch", "--quick", "--out", str(tmp_path)],
        cwd=REPOSITORY,
        check=True,
        env={**os.environ, "PYTHONPATH": "tests"},
    )
    written = json.loads((tmp_path / "dispatch.json").read_text())
    assert set(written) == {"commit", "machine", "figures"}
    assert set(written["figures"]) == FIGURES
    for figure in written["figures"].values():
        assert set(figure) == {"value", "unit", "target", "better", "holds", "how"}
        met = figure["value"] <= figure["target"]
        if figure["better"] == "higher":
            met = figure["value"] >= figure["target"]
        assert figure["holds"] is met
    assert (tmp_path / "dispatch.png").read_bytes().startswith(b"\x89PNG")
