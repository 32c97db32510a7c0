"""Promise: no job continues from a damaged checkpoint: it is named, and an older one
taken, or whoever asks for it is refused."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command import Rankfold

from .conftest import Trained


def own_files(store: Path, kind: str) -> list[Path]:
    """Files in the store that only the second checkpoint has, the largest first."""
    found = (store / "jobs/gpt/data").glob(f"1-2-*/{kind}/*")
    return sorted(found, key=lambda file: file.stat().st_size, reverse=True)


def flip_a_bit(store: Path) -> str:
    """In what is compressed behind the index of a pack."""
    pack = own_files(store, "packs")[0]
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    return replaced(pack, data)


def cut_a_pack(store: Path) -> str:
    pack = own_files(store, "packs")[0]
    return replaced(pack, pack.read_bytes()[:-64])


def cut_the_manifest(store: Path) -> str:
    manifest = store / "jobs/gpt/manifests/1-2.json"
    data = manifest.read_bytes()
    return replaced(manifest, data[: len(data) // 2])


def replaced(file: Path, data: bytes | bytearray) -> str:
    """Replaces the file and returns its name. Hard links of the old file keep its content."""
    file.unlink()
    file.write_bytes(data)
    return file.name


DAMAGE = [flip_a_bit, cut_a_pack, cut_the_manifest]


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_request_for_it_is_refused_and_a_job_goes_back_to_the_one_before(
    damage: Callable[[Path], str],
    rankfold: Rankfold,
    job: Trained,
    undisturbed: dict[str, bytes],
) -> None:
    job.apply(gpus=1)
    for id in ("1-1", "1-2"):
        job.reaches(len(job.lines()) + 5)
        assert rankfold("checkpoint", job.name, "--wait").strip() == id
    rankfold("suspend", job.name, "--override")
    job.is_in("Suspended")
    name, ranks = damage(rankfold.state.path / "checkpoints"), job.status["ranks"]

    done = rankfold.run("resume", job.name, "--from", "1-2", "--override")
    assert done.returncode == 1
    assert "checkpoint 1-2 of gpt is damaged: file://" in done.stderr and name in done.stderr
    assert job.status["phase"] == "Suspended" and job.status["ranks"] == ranks

    rankfold("resume", job.name, "--override")
    job.is_in("Running")
    os.kill(job.status["ranks"][1]["pid"], signal.SIGKILL)
    assert job.results() == undisturbed
    assert job.status["restarts"] == 1
    (lost,) = [c["message"] for c in job.status["conditions"] if c["type"] == "Restarted"]
    assert lost.startswith("checkpoint 1-2 cannot be restored (") and name in lost
    assert "): back to checkpoint 1-1 of " in lost
    assert lost in rankfold("events", job.name)
