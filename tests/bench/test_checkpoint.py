"""`make bench-checkpoint` writes what is promised; a job goes on elsewhere as it did at first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankfold.paths import REPOSITORY
from support import privileges


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quick_run(tmp_path: Path) -> None:
    privileges.need_criu()
    subprocess.run(
        [sys.executable, "-m", "benchmarks.checkpoint", "--quick", "--out", str(tmp_path)],
        cwd=REPOSITORY, check=True, env={**os.environ, "PYTHONPATH": "tests"},
    )  # fmt: skip
    figures = json.loads((tmp_path / "checkpoint.json").read_text())["figures"]
    assert set(figures) == {f"{each}_mlp_2" for each in ("device", "host", "still", "migration")}
    assert figures["device_mlp_2"]["holds"], "bytes do not depend on the machine"
