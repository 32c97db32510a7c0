"""The levels keep the bits in as many processes, in any number of them, or on any type of CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elastic.conftest import FOLDER, Python
from elastic.test_features import HERE, SCRIPT, WORLD, output
from rankfold.elastic import determinism
from rankfold.paths import REPOSITORY
from support.patience import scaled

FEATURES = ("view", "crossed")  # whose sums and buckets have several orders
RUN = ("-m", "rankfold.elastic", "run", "--world", WORLD)
# Each type limits libraries to its instructions. The run at D2 replaces these limits, except that
# of MKL, on which its path for all processors does not depend; only Intel's processors have it.
TYPES = {
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
    },
}


@pytest.fixture(scope="module")
def stock(python: Python, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("stock")
    done = python(HERE / "stock.py", WORLD, folder, SCRIPT, *FEATURES)
    assert (done.returncode, done.stderr) == (0, ""), output(folder)
    return output(folder)


def run(python: Python, folder: Path, *options: str) -> dict[str, str]:
    done = python(*RUN, *options, "--state", folder, SCRIPT, *FEATURES)
    assert (done.returncode, done.stderr) == (0, ""), output(folder)
    return output(folder)


@pytest.mark.torch
def test_d0_has_the_bits_of_stock_processes_until_their_number_changes(
    python: Python, stock: dict[str, str], tmp_path: Path
) -> None:
    assert run(python, tmp_path / "d0", "--determinism=D0", f"--processes={WORLD}") == stock
    changed = "--schedule=0:3,2:1"
    assert run(python, tmp_path / "d1", "--determinism=D1", changed) == stock
    found = run(python, tmp_path / "changed", "--determinism=D0", changed)
    for name, text in stock.items():
        if name.endswith(".out"):
            lines = found[name].splitlines()
            expected = text.splitlines()
            assert lines[:2] == expected[:2]
            assert lines[2] != expected[2], "sums had the same order"
    again = run(python, tmp_path / "again", "--determinism=D0", changed)
    assert again == found


@pytest.mark.torch
@pytest.mark.slow
def test_types_of_cpu_differ_at_d1_and_agree_at_d2(python: Python, tmp_path: Path) -> None:
    """A type is an instruction set to which PyTorch is limited. Processes of their own, because
    PyTorch looks for it when it is imported. At D2 the bits are those of stock processes with the
    same variables."""

    def runs(*words: object, **variables: str) -> None:
        variables = {"PYTHONPATH": f"{FOLDER}:{REPOSITORY}", "OMP_NUM_THREADS": "1", **variables}
        done = subprocess.run(
            [sys.executable, *map(str, words)],
            env={**os.environ, **variables},
            timeout=scaled(120.0),
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")

    found = {}
    for level in ("D1", "D2"):
        for kind in TYPES:
            folder = tmp_path / level / kind
            options = ("--determinism", level, "--state", folder)
            runs(*RUN, *options, SCRIPT, "view", **TYPES[kind])
            found[level, kind] = output(folder)
    assert found["D1", "default"] != found["D1", "avx2"]
    assert found["D2", "default"] == found["D2", "avx2"] == found["D2", "avx512"]
    assert found["D2", "avx2"] != found["D1", "avx2"], "MKL's code path is another one"
    stock = tmp_path / "stock"
    stock.mkdir()
    runs(HERE / "stock.py", WORLD, stock, SCRIPT, "view", **determinism.CODE_PATH)
    assert found["D2", "avx2"] == output(stock)


@pytest.mark.torch
def test_no_limit_of_a_type_changes_the_bits_of_the_code_path_of_d2(python: Python) -> None:
    """`python` only shows that PyTorch is there: it looks for limits when it is imported."""
    code = (
        "import hashlib, torch; torch.manual_seed(1)\n"
        "a, b = torch.randn(57, 129), torch.randn(129, 33)\n"
        "found = a @ b, torch.nn.functional.gelu(a), torch.nn.GRU(33, 5)(a @ b)[0]\n"
        "found += (torch.nn.Conv2d(3, 8, 3)(torch.randn(2, 3, 17, 17)),)\n"
        "print(*(hashlib.sha256(each.detach().numpy()).hexdigest() for each in found))\n"
    )
    own = {**os.environ, "PYTHONPATH": str(FOLDER), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**own, **TYPES[kind], **determinism.CODE_PATH},
            stdout=subprocess.PIPE,
            text=True,
        )
        for kind in ("default", "avx512")
    ]
    first, second = (each.communicate(timeout=scaled(120.0))[0] for each in running)
    assert first == second != ""


@pytest.mark.torch
def test_d2_is_refused_when_pytorch_has_been_imported(python: Python, tmp_path: Path) -> None:
    done = python(*RUN, "--determinism=D2", "--state", tmp_path, SCRIPT)
    assert done.returncode == 2
    assert done.stderr == (
        "--determinism D2 cannot be: torch was imported before the level was known\n"
    )


def test_d2_is_refused_on_a_cpu_without_its_instructions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "numpy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in determinism.CODE_PATH:
        monkeypatch.setenv(name, "before")
    cpu = tmp_path / "cpuinfo"
    cpu.write_text("model name\t: old\nflags\t\t: fpu avx sse2\n")
    with pytest.raises(determinism.NotPinned, match="this CPU has no avx2 and no fma"):
        determinism.pin(cpu)
    assert {os.environ[name] for name in determinism.CODE_PATH} == {"before"}
    cpu.write_text("flags\t\t: fpu avx avx2 fma sse2\n")
    determinism.pin(cpu)
    assert os.environ.items() >= determinism.CODE_PATH.items()
    with pytest.raises(determinism.NotPinned, match="PyTorch uses AVX512, not AVX2"):
        determinism.check("AVX512")
