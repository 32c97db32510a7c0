"""`make gpu-check` where there is no GPU, and its handling of parts that fail, hang or crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from nvidia.fake_driver import build

from gpu import check as check_module
from gpu import parts


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with a report of its own."""
    monkeypatch.setattr(check_module, "REPORT", tmp_path / "report.json")
    monkeypatch.setattr(parts, "FIGURES", tmp_path / "probe.json")
    for name in ("RANKFOLD_CUBLASLT", "LD_LIBRARY_PATH"):  # which it sets
        monkeypatch.setenv(name, os.environ.get(name, ""))
    return check_module


def report(check: ModuleType) -> Any:
    return json.loads(check.REPORT.read_text())


def test_without_a_driver_it_says_so_in_one_line(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", "/nowhere/libcuda.so.1")
    assert check.check("") == 1
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "no NVIDIA driver" in said.err
    (part,) = report(check)["parts"]
    assert part["status"] == "failed" and "/nowhere/libcuda.so.1" in part["output"]
    assert report(check)["commit"] and report(check)["date"]


def test_a_driver_without_a_gpu_is_no_gpu(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(build()))
    monkeypatch.setenv("RANKFOLD_FAKE_FAIL", "cuInit:1:100")
    assert check.check("") == 1
    assert "the driver gives error 100 (CUDA_ERROR_NO_DEVICE)" in capfd.readouterr().err


class Driver:
    """A driver of this version, whose only GPU has these attributes."""

    def __init__(self, version: int = 13000, **attributes: int):
        self.version, self.attributes = version, attributes

    def cuInit(self, _flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, to: Any) -> int:
        to._obj.value = 1
        return 0

    def cuDriverGetVersion(self, to: Any) -> int:
        to._obj.value = self.version
        return 0

    def cuDeviceGet(self, to: Any, index: int) -> int:
        to._obj.value = index
        return 0

    def cuDeviceGetName(self, to: Any, _bytes: int, _device: int) -> int:
        to.value = b"some GPU"
        return 0

    def cuDeviceGetAttribute(self, to: Any, which: int, _device: Any) -> int:
        to._obj.value = self.attributes.get(f"a{which}", 0)
        return 0


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (Driver(12080), "the driver is for CUDA 12.8, and the programs' PTX needs one for 13.0"),
        (Driver(a20=3), "GPU 0 is for one process or none, and several proxies are to share it"),
    ],
)
def test_a_machine_on_which_nothing_could_run_gets_the_reason(
    monkeypatch: pytest.MonkeyPatch, driver: Driver, reason: str
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _name: driver)
    with pytest.raises(SystemExit, match=reason):
        parts.look()


def test_programs_that_need_pinned_memory_in_kernels_are_skipped_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _name: Driver())
    for name in parts.PINNED_PROGRAMS:
        with pytest.raises(parts.Skip, match="does not reach"):
            parts.program(name)
    parts.look()
    assert "GPU 0: some GPU; kernels do not reach pinned memory" in capsys.readouterr().out


def test_no_part_hides_the_others(check: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """One hangs with a child that ignores its end, one crashes, one cannot run, one passes."""
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(build()))
    commands = {
        "hangs": ["sh", "-c", "trap '' TERM; sleep 600 & echo begun; wait"],
        "crashes": ["sh", "-c", "echo last words; kill -SEGV $$"],
        "absent": ["/nowhere/program"],
        "cannot": ["sh", "-c", "echo no nvcc here; exit 77"],
        "passes": ["sh", "-c", "echo all is well"],
    }
    real = check.run_part
    monkeypatch.setattr(parts, "PARTS", dict.fromkeys(commands, (None, 0.5)))
    monkeypatch.setattr(
        check,
        "run_part",
        lambda name, command, limit: real(
            name, commands.get(name, command), limit if name in commands else 60.0
        ),
    )
    started = time.monotonic()
    assert check.check("") == 1
    assert time.monotonic() - started < 60
    became = {part["name"]: (part["status"], part["reason"]) for part in report(check)["parts"]}
    assert became == {
        "hangs": ("failed", "not over after 0 s"),
        "crashes": ("failed", "status -11: last words"),
        "absent": ("failed", became["absent"][1]),
        "cannot": ("skipped", "no nvcc here"),
        "passes": ("passed", ""),
    }
    assert "/nowhere/program" in became["absent"][1]
    assert "Fake GPU 0" in report(check)["gpu"]


def test_parts_after_the_first_run_concurrently(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each of these waits for what the other makes; all are in the report."""
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(build()))
    waits = "touch {0}; until [ -e {1} ]; do sleep 0.01; done".format
    commands = {
        "alone": ["sh", "-c", f"[ ! -e {tmp_path}/a ]"],
        "a": ["sh", "-c", waits(tmp_path / "a", tmp_path / "b")],
        "b": ["sh", "-c", waits(tmp_path / "b", tmp_path / "a")],
    }
    real = check.run_part
    monkeypatch.setattr(parts, "PARTS", dict.fromkeys(["a", "b", "alone"], (None, 60.0)))
    monkeypatch.setattr(parts, "SIDE_BY_SIDE", {"a", "b"})
    monkeypatch.setattr(check, "BESIDE", 2)
    monkeypatch.setattr(
        check,
        "run_part",
        lambda name, command, limit: real(name, commands.get(name, command), limit),
    )
    assert check.check("") == 0
    names = [part["name"] for part in report(check)["parts"]]
    assert names[0] == "alone" and sorted(names) == ["a", "alone", "b"]


def test_a_part_that_hangs_ends_in_time_to_say_what_its_processes_said(tmp_path: Path) -> None:
    program = (
        "import pathlib, time\n"
        "from gpu import check, parts\n"
        "check.LAST_WORDS_S = 59.0\n"
        f"parts.tempfile.mkdtemp = lambda **_: {str(tmp_path)!r}\n"
        f"log = pathlib.Path({str(tmp_path)!r}, 's/proxies/x.log')\n"
        "def hangs():\n"
        "    with parts.fleet():\n"
        "        log.parent.mkdir(parents=True)\n"
        "        log.write_text('no room here')\n"
        "        time.sleep(60)\n"
        "parts.PARTS['hangs'] = (hangs, 60.0)\n"
        "check.one_part('hangs', 60.0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": "tests"},
        cwd=parts.ROOT,
    )
    assert done.returncode == 1 and "not over after 1 s" in done.stderr
    assert "---- proxies/x.log\nno room here" in done.stdout


def test_parts_without_time_left_do_not_run_and_are_no_success(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(build()))
    monkeypatch.setattr(check, "TOTAL_S", 0.0)
    assert check.check("gpt") == 1
    (part,) = report(check)["parts"]
    assert (part["status"], part["reason"]) == ("not run", "no time left")
    assert capsys.readouterr().out.endswith(": 1 not run\n")
    assert check.check("no such part") == 1


@pytest.mark.parametrize("status, ends", [("skipped", 0), ("failed", 1), ("not run", 1)])
def test_the_verdict(check: ModuleType, status: str, ends: int) -> None:
    assert check.verdict(["passed", status]) == ends


def test_every_program_it_names_is_there() -> None:
    names = [name for name, _, _ in parts.PROGRAMS + parts.BEHAVIOUR]
    assert [name for name in names if not (parts.ROOT / f"tests/{name}.cu").exists()] == []
    assert len(set(names)) == len(names)
    assert {*parts.BLAS_PROGRAMS, *parts.PINNED_PROGRAMS, *parts.FIRST} <= set(names)
    assert {f"program {name}" for name in names} < set(parts.PARTS)
    assert list(parts.PARTS)[:6] == [
        "probe",
        "build",
        "header",
        "compile",
        *(f"program {name}" for name in parts.FIRST),
    ]


def test_products_are_skipped_where_their_library_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANKFOLD_CUBLASLT", "/nowhere/libcublasLt.so.13")
    for name in parts.BLAS_PROGRAMS:
        with pytest.raises(parts.Skip, match=r"need cuBLASLt 13: /nowhere/libcublasLt\.so"):
            parts.program(name)


def test_libraries_of_wheels_are_found(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "site-packages/nvidia/cu13/lib"
    folder.mkdir(parents=True)
    (folder / "libcublasLt.so.13").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    monkeypatch.delenv("RANKFOLD_CUBLASLT")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/a")
    check.use_wheels()
    assert os.environ["RANKFOLD_CUBLASLT"] == str(folder / "libcublasLt.so.13")
    assert os.environ["LD_LIBRARY_PATH"].startswith("/opt/a:")
    assert str(folder) in os.environ["LD_LIBRARY_PATH"].split(":")


def test_differences_are_failures() -> None:
    with pytest.raises(SystemExit, match="differ in"):
        parts.same(["a", "b"], ["a", "c"], "two runs")
    with pytest.raises(SystemExit, match="0 and 0 lines"):
        parts.same([], [], "nothing at all")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["counting", "products"])
def test_a_program_goes_all_the_way_over_the_fake_driver(name: str) -> None:
    fake = {"RANKFOLD_CUDA_DRIVER": str(build()), "RANKFOLD_CUBLASLT": str(build())}
    done = subprocess.run(
        [sys.executable, "-m", "gpu.check", "--part", f"program nvidia/{name}"],
        env={**os.environ, **fake, "PYTHONPATH": "tests"},
        cwd=parts.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal lines" in done.stdout
