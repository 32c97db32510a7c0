"""`make bench-checkpoint` writes what is promised; a job continues elsewhere as it did at first."""

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
        cwd=REPOSITORY,
        check=True,
        env={**os.environ, "PYTHONPATH": "tests"},
    )
    figures = json.loads((tmp_path / "checkpoint.json").read_text())["figures"]
    assert set(figures) == {
        "device_bytes_over_replica_mlp_2",
        "rank_specific_bytes_mlp_2",
        "host_following_over_first_mlp",
        "resize_pause_s_mlp",
        "checkpoint_pause_over_bound_mlp",
        "migration_over_copy_mlp",
        "restart_over_user_level_mlp",
    }
    for name in ("device_bytes_over_replica_mlp_2", "rank_specific_bytes_mlp_2"):
        assert figures[name]["holds"], "bytes do not depend on the machine"
