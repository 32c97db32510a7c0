"""`make gpu-check` starts on a bare machine without network; its probe gives every figure."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cuda
import pytest
from nvidia.fake_driver import build

from gpu import bundle, parts
from rankfold.paths import REPOSITORY
from support.privileges import need_namespaces

FIGURES = {
    "fixed_address_reserved",
    "memory_free",
    "create_per_chunk",
    "launch",
    "stream_write_gap",
    "launch_until_seen_p50",
    "launch_until_seen_p99",
    "host_function_p50",
    "host_function_p99",
    "ptx_compile_per_kernel",
    "pinned_memory_reached",
    "registered_memory_reached",
    "registered_copy",
    "pinned_copy",
    *(f"{call}_chunk_p{p}" for call in ("register", "unregister") for p in (50, 99)),
    "protect_one_p50",
    "protect_one_p99",
    "read_only_is_read",
    "read_only_write_faults",
    *(
        f"{call}_per_{n}"
        for call in ("map", "set_access", "close", "open", "unmap")
        for n in ("chunk_64", "chunk_512", "16_mib", "64_mib", "256_mib")
    ),
}
# Loopback is there and nothing else.
ALONE = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 0x41))
os.execvp(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def probed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the figures go, over the fake driver."""
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(build()))
    monkeypatch.setattr(parts, "FIGURES", tmp_path / "probe.json")
    return tmp_path / "probe.json"


def test_the_probe_gives_every_figure(probed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts.probe()
    figures = {each["name"]: each for each in json.loads(probed.read_text())}
    assert set(figures) >= FIGURES
    assert all(each["unit"] and each["how"] for each in figures.values())
    measured = {name: figures[name]["value"] for name in FIGURES - {"stream_write_gap"}}
    assert min(measured.values()) > 0, measured
    assert len(capsys.readouterr().out.splitlines()) == len(figures)


def test_a_call_that_fails_ends_the_probe_with_its_name(
    probed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKFOLD_FAKE_FAIL", "cuMemSetAccess:2:2")
    with pytest.raises(SystemExit, match=r"cuMemSetAccess: CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
        parts.probe()


def test_the_probe_s_kernels_are_ptx(probed: Path, tmp_path: Path) -> None:
    """The fake driver does not read them."""
    parts.probe()
    source = tmp_path / "probe.ptx"
    source.write_text(parts.run(REPOSITORY / "build/gpu/probe", "ptx"))
    subprocess.run(
        [cuda.NVCC, "-cubin", "-arch=sm_75", "-o", tmp_path / "cubin", source], check=True
    )


def test_a_file_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is no bundle: `make gpu-bundle TO="):
        bundle.install(tmp_path, tmp_path / "venv")
    assert not (tmp_path / "venv").exists()
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(SystemExit, match="holds more than wheels"):
        bundle.collect(tmp_path, "3.12")
    assert (tmp_path / "thesis.tex").exists()


def bare_python(folder: Path) -> Path:
    """An interpreter that has what such a machine has, and no pip."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    for name in [*bundle.ON_MACHINE, "iniconfig", "packaging", "pluggy", "pygments"]:
        found = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in found.files or []} - {"..", "__pycache__"}:
            (site / top).symlink_to(Path(str(found.locate_file(top))))
    return folder / "bin/python"


def copy_of_the_tree(folder: Path) -> None:
    """Copies the files that a commit of the whole tree would contain, without git."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in filter(None, done.stdout.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(REPOSITORY / name):
            shutil.copy2(REPOSITORY / name, folder / name, follow_symlinks=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_bare_machine_without_network(tmp_path: Path) -> None:
    need_namespaces()
    tree = tmp_path / "tree"
    copy_of_the_tree(tree)
    bundle.collect(tmp_path / "bundle", ".".join(map(str, sys.version_info[:2])))
    only = "^(probe|build|header|compile|program nvidia/counting)$$"
    make = [
        "make",
        "gpu-check",
        f"BASE_PYTHON={bare_python(tmp_path / 'bare')}",
        f"BUNDLE={tmp_path / 'bundle'}",
        f"GPU_ARGS=--patience 4 --only '{only}'",
    ]
    fake = {"RANKFOLD_CUDA_DRIVER": str(build()), "RANKFOLD_CUBLASLT": str(build())}
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", ALONE, *make],
        cwd=tree,
        env={**os.environ, **fake},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report: Any = json.loads((tree / "build/gpu/report.json").read_text())
    assert {part["name"]: part["status"] for part in report["parts"]} == dict.fromkeys(
        ("probe", "build", "header", "compile", "program nvidia/counting"), "passed"
    )
    assert {figure["name"] for figure in report["figures"]} >= FIGURES
