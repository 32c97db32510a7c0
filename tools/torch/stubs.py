"""Stubs for libraries that unpacked packages need and that are not fetched.

With them a program loads outside a rank, too: the CUDA runtime reports that there is no device, and
each function of another library prints its name when it is first called and returns an error.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

NO_DEVICE = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE
# Library, the names that it defines, and the error that means "not supported".
FAMILIES = (
    ("libcudart", r"(__)?cuda[A-Z]", NO_DEVICE),
    ("libcublasLt", r"cublasLt", 15),
    ("libcublas", r"cublas", 15),
    ("libcudnn", r"cudnn", 3000),
    ("libcufft", r"cufft", 16),
    ("libcurand", r"curand", 999),
    ("libcusolver", r"cusolver", 9),
    ("libcusparse", r"cusparse", 10),
    ("libcuda", r"cu[A-Z]", NO_DEVICE),
    ("libnccl", r"nccl", 5),
    ("libnvToolsExt", r"nvtx", 0),
    ("libnvrtc", r"nvrtc", 11),
    ("libibverbs", r"ibv_", 0),  # no devices
    ("libhiredis", r"redis|freeReplyObject", 0),
    ("libmpi", r"MPI_|ompi_", 16),
)
SILENT = ("libcudart", "libcuda", "libnvToolsExt", "libibverbs")
TEXT = re.compile(r"Get(Last)?(Error|Status)?(String|Name)$|GetLastError$|status_str$")
# Remedies that errors of a library name. A rank reaches only NVRTC: others are rankfold's there.
REMEDIES = {"libnvrtc": "; compute this on the CPU"}
# Queries of a version, which PyTorch compares with that of its headers.
ANSWERS = {
    "cudnnGetVersion": "return 90000;",
    "cudnnGetProperty": "*value = type ? 0 : 9; return 0;",
}


class StubError(Exception):
    """The stubs cannot be built."""


def build(root: Path, folder: Path) -> list[str]:
    """Builds into `folder` a stub for each library that those below `root` need and that is not
    there. Returns their names. Raises StubError."""
    libraries = [p for p in root.rglob("*.so*") if p.is_file() and not p.is_symlink()]
    libraries = [p for p in libraries if _is_elf(p)]
    present = {path.name for path in root.rglob("*.so*")}
    missing, wanted = set[str](), defaultdict[str, dict[str, str]](dict)
    for library in libraries:
        needed = re.findall(r"NEEDED.*\[(.*)\]", _tool("readelf", "-dW", library))
        absent = set(needed) - present
        if not absent:
            continue
        missing |= absent
        undefined = _tool("nm", "-D", "--undefined-only", "--with-symbol-versions", library)
        for name, version in re.findall(r"^ *[Uw] ([A-Za-z_]\w*)(?:@(\S+))?$", undefined, re.M):
            if soname := _owner(name, absent):
                wanted[soname][name] = version
    folder.mkdir()
    for soname in sorted(missing):
        _compile(soname, wanted[soname], folder)
    return sorted(missing)


def _is_elf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _tool(*command: str | Path) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise StubError(f"{command[0]} is missing: install gcc and binutils") from error
    if done.returncode:
        raise StubError(f"{command[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _owner(name: str, sonames: set[str]) -> str | None:
    """Returns the library among `sonames` that defines `name`."""
    for library, names, _ in FAMILIES:
        if re.match(names, name):
            return next((each for each in sonames if each.split(".so")[0] == library), None)
    return None


def _compile(soname: str, names: dict[str, str], folder: Path) -> None:
    source, script = folder / f"{soname}.c", folder / f"{soname}.map"
    source.write_text(_source(soname, sorted(names)))
    versions = defaultdict[str, list[str]](list)
    for name, version in names.items():
        versions[version].append(name)
    plain = versions.pop("", [])
    nodes = [f"{version} {{ {'; '.join(each)}; }};" for version, each in sorted(versions.items())]
    if not nodes:
        visible = f"global: {'; '.join(plain)}; " if plain else ""
        nodes = [f"{{ {visible}local: *; }};"]
    script.write_text("\n".join(nodes) + "\n")
    _tool(
        *("gcc", "-shared", "-fPIC", "-O1", "-w", "-fvisibility=default"),
        *(f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}"),
        *("-o", folder / soname, source),
    )
    source.unlink()
    script.unlink()


def _source(soname: str, names: list[str]) -> str:
    library = soname.split(".so")[0]
    error = next(code for name, _, code in FAMILIES if name == library)
    lines = [
        "#include <stdio.h>",
        "static long refuse(int *done, const char *name, long error) {",
        f'\tif (!(*done)++) fprintf(stderr, "{soname}: %s is not served\\n", name);',
        "\treturn error;",
        "}",
    ]
    for name in names:
        if name.startswith("__cuda"):  # the registration of kernels, at load time
            body = "static void *handle; return (long)&handle;"
        elif TEXT.search(name) and name not in ("cudaGetLastError", "cudaPeekAtLastError"):
            body = f'return (long)"{soname} is not served{REMEDIES.get(library, "")}";'
        elif name in ANSWERS:
            body = ANSWERS[name]
        elif library in SILENT:
            body = f"return {error};"
        else:
            body = f'static int done; return refuse(&done, "{name}", {error});'
        lines.append(f"long {name}(int type, int *value) {{ {body} }}")
    return "\n".join(lines) + "\n"
