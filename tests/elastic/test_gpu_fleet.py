"""Devices of type nvidia for jobs of the elastic runtime, in a fleet over the fake driver. The CPU
stands for the GPU in the processes themselves (stand_in), since PyTorch's CPU build has no CUDA."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nvidia.fake_driver import build

from elastic.conftest import FOLDER, Python
from elastic.test_features import HERE
from rankfold.reconciler.model.desired import Device, Job
from rankfold.reconciler.model.fitting import may_use
from rankfold.reconciler.model.recorded import Record
from support.command import Rankfold, Specs, job_environment
from support.leaks import State

WORLD = 3
POOL = """\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {name: local}
spec:
  devices:
    - {type: nvidia, count: 1, memory: 64MiB}
    - {type: nvidia, count: 2, memory: 1GiB, runtime: elastic}
"""
JOB = f"""\
apiVersion: rankfold/v1alpha1
kind: Job
metadata: {{name: train}}
spec:
  command: {json.dumps([sys.executable, str(HERE / "tells_gpu.py")])}
  env: {{PYTHONPATH: "FOLDERS"}}
  runtime: elastic
  deviceTypes: [nvidia]
  worldSize: {WORLD}
  gpus: GPUS
"""
GPU = "GPU-fafafafa-fafa-fafa-fafa-fafafafafafa"
LINES = [f"{epoch} {number} {GPU} {1 << 30} 0" for epoch in range(40) for number in range(8)]


@pytest.fixture
def rankfold(state: State) -> Iterator[Rankfold]:
    driver = {"RANKFOLD_CUDA_DRIVER": str(build()), "RANKFOLD_NVIDIA_SHARE": "1"}
    command = Rankfold(state, job_environment(**driver), deadline_s=120.0)
    yield command
    command.end()


class Fleet:
    def __init__(self, rankfold: Rankfold, specs: Specs, path: str):
        self.rankfold, self.specs = rankfold, specs
        self.text = JOB.replace("FOLDERS", path)
        specs.write("pool.yaml", POOL)

    def apply(self, gpus: int) -> None:
        self.specs.write("train.yaml", self.text.replace("GPUS", str(gpus)))
        self.rankfold("apply", "-f", str(self.specs.folder), "--wait")

    def now(self) -> Any:
        return self.rankfold.job("train")

    def devices(self) -> set[str]:
        return set(self.now()["placement"].values())

    def ends(self) -> str:
        self.rankfold.until(lambda: self.now()["phase"] in ("Succeeded", "Failed"))
        phase: str = self.now()["phase"]
        return phase


@pytest.mark.torch
def test_a_job_runs_on_the_gpus_of_its_runtime(
    python: Python, rankfold: Rankfold, tmp_path: Path
) -> None:
    """It is moved, suspended and saved as on other devices. Each process sees its device's GPU."""
    fleet = Fleet(rankfold, Specs(tmp_path / "specs"), f"{HERE / 'stand_in'}:{FOLDER}")
    fleet.apply(2)
    assert fleet.devices() == {"local/nvidia-1", "local/nvidia-2"}
    rankfold("checkpoint", "train", "--wait")
    fleet.apply(1)
    assert len(fleet.devices()) == 1 and fleet.devices() < {"local/nvidia-1", "local/nvidia-2"}
    rankfold("suspend", "train", "--override")
    rankfold.until(lambda: fleet.now()["phase"] == "Suspended")
    rankfold("resume", "train", "--override")
    assert fleet.ends() == "Succeeded"
    assert fleet.now()["restarts"] == 0
    for rank in range(WORLD):
        assert rankfold("logs", "train", "--rank", str(rank)).splitlines() == LINES


@pytest.mark.slow
@pytest.mark.torch
def test_a_pytorch_without_cuda_is_refused_on_a_gpu(
    python: Python, rankfold: Rankfold, tmp_path: Path
) -> None:
    fleet = Fleet(rankfold, Specs(tmp_path / "specs"), str(FOLDER))
    fleet.specs.write("train.yaml", fleet.text.replace("GPUS", "1"))
    rankfold("apply", "-f", str(fleet.specs.folder))
    assert fleet.ends() == "Failed"
    errors = rankfold.state.path / "jobs/train/logs/rank-0.err"
    assert f"GPU {GPU}: PyTorch 2.13" in errors.read_text()


def test_a_job_that_has_begun_stays_on_gpus_of_one_compute_capability() -> None:
    """Those of others have other bits. Where it was not known, any is right."""
    job = Job("train", ("python", "train.py"), "/", 3, 1, runtime="elastic")
    seen = {"memory_bytes": 1 << 30, "cc_major": 8, "cc_minor": 0}
    began = Record("train", device_type="nvidia", device=seen)
    unknown = Record("train", device_type="nvidia", device={**seen, "cc_major": 0})

    def may(record: Record, cc: str, **fields: Any) -> bool:
        device = Device("local/nvidia-0", "nvidia", 1 << 30, cc, runtime="elastic")
        return may_use(msgspec.structs.replace(device, **fields), job, record)

    assert may(began, "8.0") and may(began, "own") and may(unknown, "9.0")
    assert not may(began, "9.0") and not may(began, "7.5")
    assert not may(began, "8.0", memory=1 << 29) and not may(began, "8.0", runtime="")


def test_a_device_serves_jobs_of_one_runtime(rankfold: Rankfold, tmp_path: Path) -> None:
    """Files that say otherwise are refused."""
    specs = Specs(tmp_path / "specs")
    specs.write("pool.yaml", POOL)
    job = JOB.replace("FOLDERS", "x")
    proxied = job.replace("runtime: elastic", "runtime: proxy")
    for text, reason in (
        (job.replace("GPUS", "3"), "spec.gpus: requests 3 devices; the pools have 2 of nvidia"),
        (proxied.replace("GPUS", "2"), "spec.gpus: requests 2 devices; the pools have 1 of nvidia"),
        (
            job.replace("GPUS", "1") + "  determinism: D2\n",
            "spec.determinism: D2 is for CPUs: no comparison covers two types of GPU",
        ),
    ):
        specs.write("train.yaml", text)
        refused = rankfold.run("validate", str(specs.folder))
        assert refused.returncode == 65 and reason in refused.stderr, refused.stderr
    specs.write("train.yaml", job.replace("GPUS", "2"))
    rankfold("validate", str(specs.folder))
    for kind, reason in (("soft", "runtime elastic has cpu and nvidia, not soft"),):
        specs.write("pool.yaml", POOL.replace("nvidia, count: 2", f"{kind}, count: 2"))
        refused = rankfold.run("validate", str(specs.folder))
        assert refused.returncode == 65 and reason in refused.stderr, refused.stderr
