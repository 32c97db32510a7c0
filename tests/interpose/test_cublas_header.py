"""Our description of cuBLAS agrees with NVIDIA's headers, which come in a wheel of 444 MB."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from rankfold.interpose import generate, headers
from support.native import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
WHEEL = "nvidia-cublas==13.10.0.20"
RUNTIME = generate.header_folders()
LIBRARIES = ["cublas", "cublasLt"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toolkit's headers, or the wheel's, which are fetched once."""
    if not RUNTIME:
        pytest.skip("no CUDA headers on this machine")
    if found := generate.header_folders("cublasLt"):
        return found[0]
    kept = REPOSITORY / "build/cublas-headers"
    if not kept.exists():
        download = tmp_path_factory.mktemp("wheel")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest",
                   str(download), WHEEL]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{WHEEL} cannot be had: {done.stderr.strip()[-300:]}")
        (wheel,) = download.iterdir()
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.endswith(".h")]
            archive.extractall(download, names)
        wheel.unlink()
        shutil.move(download / Path(names[0]).parent, kept)
    return kept


def described(library: str) -> tuple[generate.Library, dict[str, object]]:
    text = (generate.API / f"{library}.yaml").read_text()
    return generate.load_library(text, generate.CHANNEL.read_text()), yaml.safe_load(text)


def compiles(tmp_path: Path, folder: Path, header: str, text: str) -> None:
    source = tmp_path / "both.cpp"
    source.write_text(f"#include <{header}>\n{text}\n")
    command = ["g++", "-fsyntax-only", "-w", f"-I{folder}", f"-I{RUNTIME[0]}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("library", LIBRARIES)
def test_every_function_of_the_header_is_described(folder: Path, library: str) -> None:
    text = headers.preprocess(folder / headers.FILES[library], RUNTIME[0])
    found = headers.declared(library, text)
    ours, _data = described(library)
    assert len(found) > 50
    assert set(found) <= {name for f in ours.functions for name in f.names}
    generate.check_header(ours, found)


@pytest.mark.parametrize("library, least", [("cublas", 50), ("cublasLt", 25)])
def test_prototypes_agree(tmp_path: Path, folder: Path, library: str, least: int) -> None:
    ours, _data = described(library)
    functions = [f for f in ours.functions if f.parameters is not None]
    assert len(functions) > least
    lines = [f"#undef {f.name}\n{generate.prototype(f, f.name)};" for f in functions]
    text = 'extern "C" {\n' + "\n".join(lines) + "\n}"
    compiles(tmp_path, folder, headers.FILES[library], text)


@pytest.mark.parametrize("library", LIBRARIES)
def test_enumerations_and_structures_agree(tmp_path: Path, folder: Path, library: str) -> None:
    ours, _data = described(library)
    checks = [
        f'static_assert((int){key} == {value}, "{key}");'
        for members in ours.enums.values()
        for key, value in members.items()
    ]
    if library == "cublasLt":
        # Descriptors have grown; the client takes no more than these of them.
        sizes = {"cublasLtMatmulAlgo_t": "== 64", "cublasLtMatmulHeuristicResult_t": "== 96",
                 "cublasLtMatmulDescOpaque_t": ">= 128", "cublasLtMatrixLayoutOpaque_t": ">= 64",
                 "cublasLtMatmulPreferenceOpaque_t": ">= 64"}  # fmt: skip
        checks += [f'static_assert(sizeof({n}) {size}, "{n}");' for n, size in sizes.items()]
    assert len(checks) > 30
    compiles(tmp_path, folder, headers.FILES[library], "\n".join(checks))


def test_the_client_has_structures_of_the_same_size(tmp_path: Path) -> None:
    source = tmp_path / "ours.c"
    source.write_text("""#include "abi.h"
    _Static_assert(sizeof(cublasLtMatmulAlgo_t) == 64, "as in the header");
    _Static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 96, "as in the header");
    """)
    client = REPOSITORY / "interpose/client"
    subprocess.run(["gcc", "-fsyntax-only", f"-I{client}", str(source)], check=True)
