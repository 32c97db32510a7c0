"""Models of usual kinds (NeuMF, VGG, ShuffleNetV2, an LSTM, a detector, a GPT) have the bits of
stock DistributedDataParallel in any number of processes, and when the number changes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from guests import installed

from elastic.conftest import Python
from elastic.test_features import HERE, RUN, WORLD, output

pytestmark = pytest.mark.torch
SCRIPT = HERE / "models.py"
STEPS = 2 * 3  # of each model
PYTHON = "3.11"  # of transformers.txt


@pytest.fixture(scope="module")
def stock(python: Python, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("stock")
    done = python(HERE / "stock.py", WORLD, folder, SCRIPT)
    assert (done.returncode, done.stderr) == (0, ""), output(folder)
    found = output(folder)
    assert all(text.count("\n") == 6 * STEPS for name, text in found.items() if "out" in name)
    return found


# In the first steps of a model, when PyTorch arranges its buckets, and later.
CHANGES = "--schedule=0:3,1:1,2:2,5:1,8:3,13:1,15:2,19:1,20:3,22:1,25:2,29:3,31:1,34:2"


@pytest.mark.parametrize(
    "processes",
    ["--processes=1", "--processes=2", pytest.param(CHANGES, marks=pytest.mark.slow, id="changes")],
)
def test_models_have_the_bits_of_stock_processes(
    python: Python, stock: dict[str, str], tmp_path: Path, processes: str
) -> None:
    done = python(*RUN, processes, "--state", tmp_path, SCRIPT)
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path)
    found = output(tmp_path)
    for name, text in stock.items():
        assert found[name].splitlines() == text.splitlines(), name


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="transformers.txt has wheels for Python 3.11"
)
def test_models_of_transformers_have_the_bits_of_stock_processes(
    python: Python, tmp_path: Path
) -> None:
    """BERT, Electra, Swin with random depth, and ResNet."""
    folder = installed.packages(HERE / "transformers.txt", PYTHON)
    (tmp_path / "stock").mkdir()
    script = (SCRIPT, folder)
    done = python(HERE / "stock.py", WORLD, tmp_path / "stock", *script, HF_HUB_OFFLINE="1")
    expected = output(tmp_path / "stock")
    assert (done.returncode, done.stderr) == (0, ""), expected
    assert all(text.count("\n") == 4 * STEPS for name, text in expected.items() if "out" in name)
    changes = CHANGES[: CHANGES.index(",25:")]
    for processes in ("--processes=1", "--processes=2", changes):
        state = tmp_path / processes.strip("-")[:11]
        done = python(*RUN, processes, "--state", state, *script, HF_HUB_OFFLINE="1")
        assert (done.returncode, done.stderr) == (0, ""), output(state)
        found = output(state)
        for name, text in expected.items():
            assert found[name].splitlines() == text.splitlines(), (processes, name)
