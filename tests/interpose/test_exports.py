"""The libraries export what the description says, by the names and versions programs link."""

from __future__ import annotations

import functools
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from rankfold import paths
from rankfold.interpose import descriptions, libraries
from rankfold.interpose.launcher.config import built_libraries
from rankfold.interpose.launcher.interposer import unversioned
from rankfold.interpose.libraries import Soname

HERE = Path(__file__).parent
LIB = paths.native("lib/librankfold.so").parent
VERSIONS = [version for row in libraries.table().values() for version in row.sonames]
EACH = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.soname)


@functools.cache
def by_version() -> dict[Soname, descriptions.Library]:
    """Returns the library of each version, which takes seconds: no test is collected with it."""
    return {
        version: library
        for name in libraries.table()
        for version, library in descriptions.load_versions(name).items()
    }


def newest_descriptions() -> dict[str, descriptions.Library]:
    """Returns the newest version of each library, by its name."""
    return {row.name: by_version()[row.sonames[0]] for row in libraries.table().values()}


def exported(path: Path) -> dict[str, str]:
    """Defined dynamic functions: name → version node ('' for none)."""
    text = subprocess.run(
        ["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"^\S+ [TW] (\w+)(?:@@?(\S+))?$", text, re.M)
    return dict(found)


@EACH
def test_a_shim_exports_exactly_the_described_functions(version: Soname) -> None:
    symbols = exported(LIB / version.soname)
    symbols.pop("_init", None), symbols.pop("_fini", None)
    assert set(symbols) == {n for f in by_version()[version].functions for n in f.names}
    assert set(symbols.values()) == {version.symbols}


def test_a_shim_is_built_for_each_row_of_the_table() -> None:
    """The launcher preloads all of them; the newest of a library is found without a version."""
    sonames = [version.soname for version in VERSIONS]
    preloaded = [Path(path).name for path in built_libraries()]
    assert sorted(preloaded) == sorted(["librankfold.so", *sonames])
    for row in libraries.table().values():
        versions = [name for name in preloaded if unversioned(name) == row.sonames[0].link]
        assert versions == [version.soname for version in row.sonames]
        assert (LIB / row.sonames[0].link).resolve().name == versions[0]


LIBC = {
    "__gmon_start__",
    "dlsym",
    "dlvsym",
    "dlopen",
    "syscall",
    "prctl",
    "semop",
    "semtimedop",
    "mlockall",
    "munlockall",
    "mseal",
    "timer_settime",
    "timer_delete",
}


def test_the_preloaded_library_exports_all_of_them_and_some_of_libc_and_nothing_else() -> None:
    """With the version of the newest library: programs built with an older one find that one's."""
    described = {
        name: row.sonames[0].symbols
        for row in libraries.table().values()
        for function in newest_descriptions()[row.name].functions
        for name in function.names
    }
    assert exported(LIB / "librankfold.so") == described | dict.fromkeys(LIBC, "")


@EACH
def test_a_shim_has_its_soname_and_needs_only_the_client(version: Soname) -> None:
    text = subprocess.run(
        ["readelf", "-d", str(LIB / version.soname)], capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"\(SONAME\).*\[(.*)\]", text) == [version.soname]
    assert "librankfold.so" in re.findall(r"\(NEEDED\).*\[(.*)\]", text)


@pytest.mark.cuda_headers
def test_nothing_of_the_real_runtime_is_missing() -> None:
    """Graphics too: programs that never draw import or look up what draws, anyway."""
    folder = descriptions.header_folders()[0].parent
    real = next(f for d in ("lib64", "lib") for f in (folder / d).glob("libcudart.so.13*"))
    ours = exported(LIB / "libcudart.so.13")
    functions = {name for name in exported(real) if name.startswith(("cuda", "__cuda"))}
    assert len(functions) > 400 and not functions - set(ours)


def test_hand_written_functions_are_where_the_description_says() -> None:
    for library in newest_descriptions().values():
        for function in library.functions:
            if function.kind == "hand":
                [file] = (libraries.API.parent / "client").rglob(function.body)
                text = file.read_text()
                assert re.search(rf"\b{function.name}\(", text), function.name


IMPORTS = yaml.safe_load((HERE / "imported_by_pytorch.yaml").read_text())
BUILDS = ("2.6.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")


@pytest.mark.parametrize("build", BUILDS)
def test_symbols_that_pytorch_imports_exist_with_their_versions(build: str) -> None:
    wanted = {
        (name, group["version"])
        for group in IMPORTS
        if build in group["builds"].split()
        for name in group["functions"].split()
    }
    symbols = {pair for version in VERSIONS for pair in exported(LIB / version.soname).items()}
    assert len(wanted) > 680 and not wanted - symbols


def test_nvml_has_the_functions_that_pytorch_and_nccl_look_up() -> None:
    """They use dlsym, so no symbol table shows it; NCCL calls what it found without a check."""
    nvml = newest_descriptions()["nvml"]
    answered = {n for f in nvml.functions if f.kind != "refuse" for n in f.names}
    device = """GetHandleByPciBusId_v2 GetHandleByIndex_v2 GetCount_v2 GetIndex GetUUID
        GetComputeRunningProcesses GetNvLinkState GetNvLinkCapability GetNvLinkRemotePciInfo_v2
        GetNvLinkRemoteDeviceType GetMinorNumber GetP2PStatus GetCudaComputeCapability
        GetFieldValues GetGpuFabricInfoV GetPlatformInfo GetMemoryInfo GetUtilizationRates
        GetTemperature GetPowerUsage GetClockInfo"""
    wanted = {f"nvmlDevice{name}" for name in device.split()}
    wanted |= {
        "nvmlInit_v2",
        "nvmlShutdown",
        "nvmlErrorString",
        "nvmlSystemGetDriverVersion",
        "nvmlSystemGetCudaDriverVersion_v2",
    }
    assert not wanted - answered


def test_every_nccl_function_has_the_name_that_profilers_wrap() -> None:
    symbols = set(exported(LIB / "libnccl.so.2"))
    plain = {name for name in symbols if name.startswith("nccl")}
    assert len(plain) > 40 and symbols - plain == {f"p{name}" for name in plain}
