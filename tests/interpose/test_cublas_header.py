"""Our descriptions of cuBLAS and NCCL agree with NVIDIA's headers, which come in wheels of 444 and
305 MB: every function, and every type, enumerator and macro that a program may use."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from pycparser import c_ast, c_parser

from rankfold import paths
from rankfold.interpose import descriptions, generate, headers, libraries
from support import privileges
from support.native import REPOSITORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.installs,
    pytest.mark.cuda_headers,
    pytest.mark.timeout(1200),
]
RUNTIME = descriptions.header_folders()
LIBRARIES = ["cublas", "cublasLt"]
OURS = paths.native("include")
# Macros that no program uses, or that differ between releases.
OTHER = re.compile(r"CUBLAS_VER|CUBLAS_API_H_|CUBLAS_V2_H_|NCCL_H_|NCCL_VERSION")


def headers_of(tmp_path_factory: pytest.TempPathFactory, library: str, wheel: str) -> Path:
    """The toolkit's headers, or the wheel's, which are fetched once."""
    if found := descriptions.header_folders(library):
        return found[0]
    kept = REPOSITORY / f"build/{library.lower().removesuffix('lt')}-headers"
    if not kept.exists():
        download = tmp_path_factory.mktemp("wheel")
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(download),
            wheel,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            privileges.missing(f"{wheel} cannot be had: {done.stderr.strip()[-300:]}")
        (file,) = download.iterdir()
        with zipfile.ZipFile(file) as archive:
            names = [n for n in archive.namelist() if n.endswith(".h")]
            archive.extractall(download, names)
        file.unlink()
        (header,) = download.rglob(headers.FILES[library])
        shutil.move(header.parent, kept)
    return kept


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return headers_of(tmp_path_factory, "cublasLt", "nvidia-cublas==13.10.0.20")


@pytest.fixture(scope="session")
def nccl_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with NCCL's header, of the version that our description is written from."""
    return headers_of(tmp_path_factory, "nccl", "nvidia-nccl-cu13==2.28.3")


def described(library: str) -> tuple[descriptions.Library, dict[str, object]]:
    text = (libraries.API / f"{library}.yaml").read_text()
    return descriptions.load_library(text), yaml.safe_load(text)


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
    descriptions.check_header(ours, found)


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
        sizes = {
            "cublasLtMatmulAlgo_t": "== 64",
            "cublasLtMatmulHeuristicResult_t": "== 96",
            "cublasLtMatmulDescOpaque_t": ">= 128",
            "cublasLtMatrixLayoutOpaque_t": ">= 64",
            "cublasLtMatmulPreferenceOpaque_t": ">= 64",
        }
        checks += [f'static_assert(sizeof({n}) {size}, "{n}");' for n, size in sizes.items()]
    assert len(checks) > 30
    compiles(tmp_path, folder, headers.FILES[library], "\n".join(checks))


def test_the_client_has_structures_of_the_same_size(tmp_path: Path) -> None:
    source = tmp_path / "ours.c"
    source.write_text("""#include "abi.h"
    _Static_assert(sizeof(cublasLtMatmulAlgo_t) == 64, "as in the header");
    _Static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 96, "as in the header");
    """)
    client = REPOSITORY / "interpose/client/base"
    subprocess.run(["gcc", "-fsyntax-only", f"-I{client}", str(source)], check=True)


def named(library: str, folder: Path) -> tuple[set[str], set[str], set[str]]:
    """Types, enumerators and macros that the real header has and a program may use."""
    header = folder / headers.FILES[library]
    tree = c_parser.CParser().parse(headers.preprocess(header, RUNTIME[0]))
    types, enumerators = set(), set()
    for node in tree.ext:
        if isinstance(node, c_ast.Typedef) and headers.library_of(node.name) == library:
            types.add(node.name)
            kind = getattr(node.type, "type", None)
            if isinstance(kind, c_ast.Enum) and kind.values:
                enumerators |= {each.name for each in kind.values.enumerators}
    command = ["gcc", "-E", "-dM", f"-I{folder}", f"-I{RUNTIME[0]}", str(header)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    prefix = {"cublas": "CUBLAS_", "cublasLt": "CUBLASLT_", "nccl": "NCCL_"}[library]
    found = re.findall(r"^#define (\w+)(?: (.*))?$", text, re.M)
    macros = {name for name, value in found if name.startswith(prefix) and not OTHER.match(name)}
    return types, enumerators, macros


def values(tmp_path: Path, folder: Path, header: str, lines: list[str]) -> str:
    source, program = tmp_path / f"{len(list(tmp_path.iterdir()))}.cpp", tmp_path / "program"
    body = "\n".join(lines)
    source.write_text(f"""#include <cstdio>
#include <{header}>
template <class T> static void show(const char *name, T value)
{{
    printf("%s %lld\\n", name, (long long)value);
}}
static void show(const char *name, const char *value) {{ printf("%s %s\\n", name, value); }}
template <class T> static void shape(const char *name) {{ printf("%s %zu\\n", name, sizeof(T)); }}
int main() {{
{body}
}}
""")
    command = ["g++", "-w", f"-I{folder}", f"-I{RUNTIME[0]}", str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "library, least", [("cublas", (13, 90, 0)), ("cublasLt", (35, 900, 20)), ("nccl", (8, 35, 20))]
)
def test_ours_have_all_types_enumerators_and_macros(
    tmp_path: Path, request: pytest.FixtureRequest, library: str, least: tuple[int, int, int]
) -> None:
    """The same program says the same of both; the program is made of the real header's names."""
    folder = request.getfixturevalue("nccl_folder" if library == "nccl" else "folder")
    found = types, enumerators, macros = named(library, folder)
    assert all(len(n) >= at_least for n, at_least in zip(found, least, strict=True))
    plain = {name for name in macros if not name.endswith("_INITIALIZER")}
    lines = [f'shape<{name}>("{name}");' for name in sorted(types)]
    lines += [f'show("{name}", {name});' for name in sorted(enumerators | plain)]
    lines += [
        f"{{ {name.replace('INITIALIZER', 'T')} x = {name}; (void)x; }}".replace(
            "NCCL_CONFIG_T", "ncclConfig_t"
        ).replace("NCCL_SIM_INFO_T", "ncclSimInfo_t")
        for name in sorted(macros - plain)
    ]
    ours = values(tmp_path, OURS, headers.FILES[library], lines)
    assert ours == values(tmp_path, folder, headers.FILES[library], lines)
