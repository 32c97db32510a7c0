"""Runs on GPUs, as far as they can be tested without one: tensors that are not in host memory,
CUDA's generator, the GPU that a process sees, and types that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from elastic.conftest import Python
from elastic.test_features import HERE, RUN, WORLD, output, stock
from rankfold.elastic import determinism

__all__ = ["stock"]
pytestmark = pytest.mark.torch
ALL = "--schedule=0:2,1:1,3:3,7:2,8:3,15:1,19:2,21:1,27:3,32:2,38:1,45:3,52:1,55:2,60:1,72:2,77:1"


@pytest.mark.parametrize("processes", ["--processes=1", ALL])
def test_tensors_that_are_copied_and_parked_have_the_bits_of_stock_processes(
    python: Python, stock: dict[str, str], tmp_path: Path, processes: str
) -> None:
    done = python(*RUN, processes, "--state", tmp_path, HERE / "on_gpu.py")
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path)
    assert output(tmp_path) == stock


@pytest.mark.parametrize("mode", ["", "accumulate"])
def test_waiting_workers_have_no_gradients_on_the_gpu(
    python: Python, tmp_path: Path, mode: str
) -> None:
    """They have them again afterwards. State is saved after each second step."""
    run = (*RUN, "--checkpoint-every=2", "--state", tmp_path, HERE / "parked.py")
    done = python(*run, *mode.split())
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path)
    for rank in range(WORLD):
        lines = output(tmp_path)[f"rank-{rank}.out"].splitlines()
        assert lines == ["others 0", "same True"] * 6


@pytest.mark.parametrize("workers", ["0", "2"])
def test_each_worker_has_its_own_numbers_of_cudas_generator(
    python: Python, tmp_path: Path, workers: str
) -> None:
    alone, mine = tmp_path / "alone", tmp_path / "mine"
    alone.mkdir()
    script = HERE / "gpu_generator.py"
    done = python(HERE / "stock.py", WORLD, alone, script, WORKERS=workers)
    assert (done.returncode, done.stderr) == (0, ""), output(alone)
    run = (*RUN, "--schedule=0:1,3:2,6:3,8:1", "--state", mine, script)
    done = python(*run, WORKERS=workers)
    assert (done.returncode, done.stderr) == (0, ""), output(mine)
    assert output(mine) == output(alone)


SEES = """
import os, torch
print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["RANK"], os.environ["LOCAL_RANK"])
"""


def test_a_process_sees_its_gpu_alone(python: Python, tmp_path: Path) -> None:
    """This PyTorch has no CUDA, so a run on GPUs is refused when it would start there."""
    (script := tmp_path / "sees.py").write_text(SEES)
    hides = python(*RUN, "--state", tmp_path / "a", script, CUDA_VISIBLE_DEVICES="0,1")
    assert (hides.returncode, hides.stderr) == (0, "")
    assert [output(tmp_path / "a")[f"rank-{rank}.out"] for rank in range(WORLD)] == [
        f" {rank} {rank}\n" for rank in range(WORLD)
    ]
    stands = "from rankfold.elastic import gpu\ngpu.start = lambda gpu: None\n"
    stands += "gpu.check_covered = lambda file: None\nfrom rankfold.elastic.__main__ import main\n"
    run = (*RUN[2:], "--processes=3", "--gpus=GPU-a,GPU-b", "--state", tmp_path / "b", script)
    sees = python("-c", f"{stands}import sys; sys.exit(main(sys.argv[1:]))", *run)
    assert (sees.returncode, sees.stderr) == (0, "")
    assert [output(tmp_path / "b")[f"rank-{rank}.out"] for rank in range(WORLD)] == [
        "GPU-a 0 0\n",
        "GPU-b 1 0\n",
        "GPU-a 2 0\n",
    ]
    refused = python(*RUN, "--gpus=GPU-a", "--state", tmp_path / "c", script)
    assert refused.returncode == 1
    assert "rank 0 uses what the elastic runtime refuses: GPU GPU-a: PyTorch" in refused.stderr


def test_a_type_of_gpu_is_refused_until_a_comparison_covers_it(
    python: Python, tmp_path: Path
) -> None:
    """The types of two processes are compared, too."""
    (script := tmp_path / "ends.py").write_text("print('ran')\n")
    stands = "from rankfold.elastic import gpu\nimport os\ngpu.start = lambda gpu: None\n"
    stands += "gpu.kind = lambda: 'GPU of type ' + os.environ['CUDA_VISIBLE_DEVICES'][0]\n"
    stands += "from rankfold.elastic.__main__ import main\nimport sys; sys.exit(main(sys.argv[1:]))"
    covered = tmp_path / "covered.json"

    def run(gpus: str, *options: str) -> str:
        where = ("--gpus", gpus, "--covered", covered, "--state", tmp_path / "state")
        done = python("-c", stands, *RUN[2:], "--processes=3", *where, *options, script)
        assert (done.returncode == 0) == (done.stderr == "")
        return done.stderr

    assert "GPU of type A: no comparison with stock PyTorch covers it" in run("A0")
    covered.write_text(json.dumps(["GPU of type A", "GPU of type B"]))
    assert run("A0,A1") == ""
    assert "several types of GPU: process 0 has GPU of type A, process 1 GPU of" in run("A0,B0")
    covered.unlink()
    assert run("A0,B0", "--determinism=D0") == ""
    limited = {**determinism.CODE_PATH}
    pinned = python(
        "-c", stands, *RUN[2:], "--gpus=A", "--state", tmp_path / "s", script, **limited
    )
    assert "--determinism D2 on a GPU" in pinned.stderr


COMPARES = """
import sys
from pathlib import Path
from rankfold.elastic import compare
print(compare.compare(None, Path()))
"""


@pytest.mark.slow
def test_the_comparison_passes_on_this_cpu(python: Python, tmp_path: Path) -> None:
    done = python("-c", COMPARES, TMPDIR=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == WORLD * (2 * 8 + 1)


COVERS = """
import sys
from pathlib import Path
from rankfold.elastic import compare
from rankfold.elastic.__main__ import main

def compared(name, covered):
    if name == "other":
        raise compare.Differs("--processes=1: 1, in stock processes 2")
    return 51

compare._kind = lambda name: f"GPU of type {name}"
compare.compare = compared
sys.exit(main(sys.argv[1:]))
"""


def test_a_gpu_that_pytorch_does_not_see_is_named(python: Python, tmp_path: Path) -> None:
    done = python("-m", "rankfold.elastic", "compare", "--gpu", "3", "--covered", tmp_path / "file")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("GPU 3: PyTorch ") and line.endswith(" does not see it")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", ["", "0,", ",1"])
def test_a_gpu_without_a_name_is_refused(python: Python, names: str) -> None:
    done = python("-m", "rankfold.elastic", "run", "--world", "2", "--gpus", names, "train.py")
    assert done.returncode == 2
    assert f"argument --gpus: {names!r} has an empty name" in done.stderr


def test_a_type_of_gpu_is_noted_when_its_comparison_passes(python: Python, tmp_path: Path) -> None:
    file = tmp_path / "folder/covered.json"
    for name, status in (("1", 0), ("other", 1), ("0", 0), ("1", 0)):
        done = python("-c", COVERS, "compare", "--gpu", name, "--covered", file)
        assert done.returncode == status
    assert json.loads(file.read_text()) == ["GPU of type 0", "GPU of type 1"]
    assert "GPU of type 1: 51 lines of 3 ranks are those of stock processes" in done.stdout


SETTINGS = """
import torch
from rankfold.elastic import gpu

gpu.started = lambda: True
first = gpu.defaults()
torch.use_deterministic_algorithms(True)
gpu.check_deterministic()
torch.backends.cuda.matmul.allow_tf32 = True
print(sorted(name for name, value in gpu.defaults().items() if value != first[name]))
for change in ("backends.cudnn.benchmark = True", "use_deterministic_algorithms(False)"):
    exec(f"torch.{change}")
    try:
        gpu.check_deterministic()
    except gpu.NotSupported as reason:
        print(reason)
"""


def test_settings_that_let_bits_vary_on_gpus_are_refused(python: Python) -> None:
    """A change of those that decide bits is noticed."""
    done = python("-c", SETTINGS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "['torch.backends.cuda.matmul']",
        "torch.backends.cudnn.benchmark: times would decide bits",
        "torch.use_deterministic_algorithms(False): bits would vary on GPUs",
    ]
