"""cuGetProcAddress gives what the toolkit's own table of types says, name by name and version."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rankfold.interpose import descriptions, libraries
from support.preloaded import Build, environment

FOLDERS = descriptions.header_folders()
pytestmark = pytest.mark.cuda_headers
TYPES = re.compile(r"typedef \w+ \(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)")
GRAPHICS = ("cudaGLTypedefs", "cudaEGLTypedefs", "cudaVDPAUTypedefs")
ASK = """
int main(void)
{
    CUresult (*find)(const char *, void **, int, cuuint64_t, int *) =
        (void *)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
    char name[128];
    int version, per_thread, status;
    while (scanf("%127s %d %d", name, &version, &per_thread) == 3) {
        void *f;
        Dl_info info;
        f = NULL;
        find(name, &f, version, per_thread ? 2 : 0, &status);
        bool found = f && dladdr(f, &info) && info.dli_sname;
        printf("%s\\n", found ? info.dli_sname : "none");
    }
    return 0;
}"""


def types() -> list[tuple[str, int, str]]:
    """Every (name, version, suffix) that the toolkit has a function type for, but on Windows."""
    headers = ("cudaTypedefs", "cudaProfilerTypedefs", *GRAPHICS)
    texts = [p.read_text() for p in (FOLDERS[0] / f"{h}.h" for h in headers) if p.exists()]
    found = {(m[1], int(m[2]), m[3] or "") for m in TYPES.finditer("".join(texts))}
    return sorted(f for f in found if not f[0].startswith("cuWGL"))


def not_refused() -> set[str]:
    text = (libraries.API / "cuda.yaml").read_text()
    library = descriptions.load_library(text)
    return {name for f in library.functions if f.kind != "refuse" for name in f.names}


def test_each_version_of_a_name_has_its_own_type(build: Build, tmp_path: Path) -> None:
    asked = types()
    assert len(asked) > 400
    program = build(ASK)
    lines = "".join(f"{name} {version} {int(bool(end))}\n" for name, version, end in asked)
    done = subprocess.run(
        [program], input=lines, env=environment(None), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    symbols = done.stdout.split()
    assert len(symbols) == len(asked)
    assert not [a for a, symbol in zip(asked, symbols, strict=True) if symbol == "none"]
    covered = not_refused()
    checks, compared = [], 0
    for (name, version, end), symbol in zip(asked, symbols, strict=True):
        if symbol not in covered:
            continue
        compared += 1
        checks.append(f"PFN_{name}_v{version}{end} p{compared} = (PFN_{name}_v{version}{end})0;")
        checks.append(
            f"static_assert(same<decltype(&{symbol}), decltype(p{compared})>::value, "
            f'"{name} {version} gives {symbol}");'
        )
    assert compared > 150
    source = tmp_path / "types.cpp"
    source.write_text(
        "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <cudaTypedefs.h>\n"
        "#include <cudaProfilerTypedefs.h>\n"
        "template <class A, class B> struct same { static const bool value = false; };\n"
        "template <class A> struct same<A, A> { static const bool value = true; };\n"
        + "\n".join(checks)
    )
    command = ["g++", "-fsyntax-only", "-w", f"-I{FOLDERS[0]}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (
        re.findall(r"static assertion failed: (.*)", done.stderr) or (done.stderr[:3000])
    )
