"""The libraries export what the description says, by the names and versions programs link."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rankfold import paths, records
from rankfold.interpose import descriptions

LIB = paths.native("lib/librankfold.so").parent
CHANNEL = records.channel()
LIBRARIES = {
    name: descriptions.load_library((descriptions.API / f"{name}.yaml").read_text(), CHANNEL)
    for name in descriptions.LIBRARIES
}


def exported(path: Path) -> dict[str, str]:
    """Defined dynamic functions: name → version node ('' for none)."""
    text = subprocess.run(
        ["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(r"^\S+ [TW] (\w+)(?:@@?(\S+))?$", text, re.M)
    return dict(found)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_shim_exports_exactly_the_described_functions(name: str) -> None:
    library = LIBRARIES[name]
    described = {n for f in library.functions for n in f.names}
    described |= set(descriptions.read_header(name))
    symbols = exported(LIB / library.soname)
    symbols.pop("_init", None), symbols.pop("_fini", None)
    assert set(symbols) == described
    assert set(symbols.values()) == {library.version_node}


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
    described = {n for lib in LIBRARIES.values() for f in lib.functions for n in f.names}
    symbols = exported(LIB / "librankfold.so")
    headers = {name for library in LIBRARIES for name in descriptions.read_header(library)}
    assert set(symbols) - headers == (described - headers) | LIBC
    assert set(symbols.values()) == {""}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_shim_has_its_soname_and_needs_only_the_client(name: str) -> None:
    library = LIBRARIES[name]
    text = subprocess.run(
        ["readelf", "-d", str(LIB / library.soname)], capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"\(SONAME\).*\[(.*)\]", text) == [library.soname]
    assert "librankfold.so" in re.findall(r"\(NEEDED\).*\[(.*)\]", text)
    link = LIB / library.soname.rpartition(".")[0]
    assert link.resolve() == (LIB / library.soname).resolve()


@pytest.mark.cuda_headers
def test_nothing_of_the_real_runtime_is_missing() -> None:
    """Graphics too: programs that never draw import or look up what draws, anyway."""
    folder = descriptions.header_folders()[0].parent
    real = next(f for d in ("lib64", "lib") for f in (folder / d).glob("libcudart.so.13*"))
    ours = exported(LIB / "libcudart.so.13")
    functions = {name for name in exported(real) if name.startswith(("cuda", "__cuda"))}
    assert len(functions) > 400 and not functions - set(ours)


def test_what_is_hand_written_is_where_the_description_says() -> None:
    for library in LIBRARIES.values():
        for function in library.functions:
            if function.kind == "hand":
                [file] = (descriptions.API.parent / "client").rglob(function.body)
                text = file.read_text()
                assert re.search(rf"\b{function.name}\(", text), function.name


def test_what_pytorch_imports_is_there() -> None:
    wanted = (Path(__file__).parent / "imported_by_pytorch.txt").read_text().splitlines()[1:]
    shims = ("libcudart.so.13", "libnccl.so.2", "libcublas.so.13", "libcublasLt.so.13")
    symbols = {name for shim in shims for name in exported(LIB / shim)}
    assert len(wanted) > 220 and not set(wanted) - symbols


def test_what_pytorch_and_nccl_look_up_in_nvml_is_answered() -> None:
    """They use dlsym, so no symbol table shows it; NCCL calls what it found without a check."""
    answered = {n for f in LIBRARIES["nvml"].functions if f.kind != "refuse" for n in f.names}
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
