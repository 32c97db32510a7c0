"""Operators whose results CUB computes, or whose kernels depend on the values, equal the CPU's:
a few of those that `make test-torch T=ops` compares."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.leaks import State
from support.patience import scaled

OPERATORS = ("nonzero", "cumsum", "gather", "index_put", "index_select", "linalg.lu_solve")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(600)
def test_finding_and_indexing_elements_equals_the_cpu(torch: Path, state: State) -> None:
    results = state.folder / "results.jsonl"
    command = [sys.executable, str(Path(__file__).with_name("operators.py")), *OPERATORS]
    command += ["--samples", "1", "--dtypes", "float32", "--directions", "forward"]
    done = subprocess.run(
        [*command, "--results", str(results)],
        capture_output=True,
        text=True,
        timeout=scaled(500),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in results.read_text().splitlines() if line]
    found = {row["case"][0]: row["result"] for row in rows if "case" in row}
    assert found == dict.fromkeys(OPERATORS, "passed")
