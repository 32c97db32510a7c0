"""Programs that cannot run, fail or wait: they get the reason, and no process next to them
notices."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cuda import PROGRAMS, build
from guests import table
from guests.tinygrad.twin import losses

from rankfold import paths
from rankfold.paths import REPOSITORY
from support.command import Rankfold, Specs

from .neighbour import Neighbour


def own_lines(text: str) -> list[str]:
    """The lines that the library in the rank of a `run` printed."""
    return [line for line in text.splitlines() if line.startswith("rankfold: ")]


def test_programs_that_cannot_be_served_get_one_line_and_the_api_s_error(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    specs.pool(2)
    neighbour.apply(gpus=1)
    neighbour.continues()
    refused = {
        "stripped": (
            ("-cudart", "static", "-Xlinker", "-s"),
            "link it without -s and do not strip it, or build it with `nvcc -cudart shared`",
            "cudaErrorNotSupported",
        ),
        "no-ptx": (
            ("-gencode", "arch=compute_75,code=sm_75"),
            "nvcc -arch=compute_75",
            "cudaErrorNoKernelImageForDevice",
        ),
    }
    for name, (flags, advice, error) in refused.items():
        program = build(PROGRAMS / "one_launch.cu", args=flags)
        done = rankfold.run("run", "--world-size", "1", "--name", name, "--", str(program))
        assert done.returncode == 3, (done.stdout, done.stderr)
        assert done.stdout == f"{error}\n"
        said = [line for line in own_lines(done.stderr) if "RankFailed" not in line]
        assert len(said) == 1 and advice in said[0], done.stderr
        assert advice in rankfold.job(name)["message"]
        neighbour.continues()
    neighbour.finish()


@pytest.mark.slow
def test_a_rank_that_crashes_and_a_command_that_does_not_exist(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    specs.pool(2)
    neighbour.apply(gpus=1)
    neighbour.continues()
    script = 'echo "rank $RANK begins" >&2; exec "$@"'
    crash = ["sh", "-c", script, "-", str(build(PROGRAMS / "crash.cu")), "20", "1", "7"]
    options = ["--world-size", "2", "--gpus", "1", "--name", "bad"]
    done = rankfold.run("run", *options, "--", *crash)
    assert done.returncode == 128 + signal.SIGSEGV, done.stderr
    assert "[1] rank 1 begins\n" in done.stderr
    assert rankfold.job("bad")["message"] == "rank 1 was killed by SIGSEGV\nrank 1 begins"
    assert done.stdout.count("[0] step") == 7
    assert rankfold.job("bad")["phase"] == "Failed"
    missing = rankfold.run("run", "--world-size", "1", "--", "no-such-program")
    assert missing.returncode == 127 and "cannot start no-such-program" in missing.stderr
    # The device that they had serves the next one.
    assert rankfold("run", "--world-size", "1", "--", str(build(PROGRAMS / "one_launch.cu"))) == (
        "cudaSuccess\n"
    )
    busy = [device["name"] for device in rankfold.status()["devices"] if device["ranks"]]
    assert busy == list(neighbour.devices())
    neighbour.finish()


def test_more_than_the_host_could_ever_hold_is_refused_at_once(
    rankfold: Rankfold, specs: Specs
) -> None:
    """Instead of a job that waits forever."""
    rankfold.environment["RANKFOLD_HOST_MEMORY"] = str(3 << 30)
    command = ["run", "--world-size", "5", "--gpus", "1", "--", "true"]
    done = rankfold.run(*command)
    assert done.returncode == 1, done.stderr
    assert (
        "5 ranks of 1 GiB on 1 device may need 4 GiB of host memory, and the limit is 3 GiB: use "
        "more devices, or devices with less memory" in done.stderr
    )
    assert rankfold.status()["jobs"] == []
    assert rankfold("run", "--memory", "768MiB", *command[1:]) == ""
    specs.pool(2, "1GiB")
    rankfold("apply", "-f", str(specs.folder), "--wait")
    assert "5 ranks of 1 GiB on 1 device may need 4 GiB" in rankfold.run(*command).stderr


def test_run_chooses_the_compute_capability_of_its_devices(
    rankfold: Rankfold, specs: Specs
) -> None:
    def run(capability: str, *program: str) -> subprocess.CompletedProcess[str]:
        options = ("--world-size", "1", "--compute-capability", capability)
        return rankfold.run("run", *options, "--", *program)

    assert "--compute-capability 9 is not one such as 9.0" in run("9", "true").stderr
    program = str(build(PROGRAMS / "architecture.cu"))
    done = run("9.0", program)
    assert (done.returncode, done.stdout) == (0, "cudaSuccess 750 900\n")
    assert rankfold("run", "--world-size", "1", "--", program) == "cudaSuccess 750 1200\n"
    specs.pool(1, "64MiB")
    rankfold("apply", "-f", str(specs.folder), "--wait")
    assert "is for a temporary fleet" in run("9.0", "true").stderr


@pytest.mark.slow
def test_each_of_many_ranks_has_a_device_of_its_own_number(rankfold: Rankfold) -> None:
    """More than a machine ever has: there is one for each rank, and LOCAL_RANK names it."""
    command = ("--memory", "8MiB", "--", str(build(PROGRAMS / "launch_bound.cu")), "2")
    told = rankfold("run", "--world-size", "70", "--gpus", "2", *command).splitlines()
    ends = [line.split()[1:] for line in told if " step 1 sum " in line]
    assert len(ends) == 70 and len({line[-1] for line in ends}) == 1


def test_the_libraries_may_be_in_a_folder_with_a_space(rankfold: Rankfold, tmp_path: Path) -> None:
    """As those of a user's checkout: LD_PRELOAD takes it for the end of an entry."""
    folder = tmp_path / "na tive"
    folder.symlink_to(paths.native("lib").parent)
    rankfold.environment["RANKFOLD_NATIVE"] = str(folder)
    done = rankfold.run("run", "--world-size", "1", "--", str(build(PROGRAMS / "one_launch.cu")))
    assert (done.returncode, done.stdout) == (0, "cudaSuccess\n"), done.stderr
    assert "preload" not in done.stderr  # what the loader ignores it says


def test_a_program_that_opens_a_library_past_what_is_preloaded_gets_ours(
    rankfold: Rankfold, tmp_path: Path
) -> None:
    """Taichi opens libcuda.so so, and computes on the CPU if there is none."""
    source, opener = tmp_path / "opener.c", tmp_path / "opener.so"
    source.write_text(
        "#include <dlfcn.h>\nvoid *opened(const char *name) { return dlopen(name, RTLD_NOW); }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", opener, source, "-ldl"], check=True)
    script = f"""
import ctypes, os
opener = ctypes.CDLL({str(opener)!r}, os.RTLD_NOW | os.RTLD_DEEPBIND)
opener.opened.restype = ctypes.c_void_p
for name in ("cuda", "cudart", "nccl", "nvidia-ml", "cublas", "cublasLt"):
    print(name, bool(opener.opened(f"lib{{name}}.so".encode())))
ours = ctypes.CDLL("libcuda.so.1")
handle = ctypes.c_void_p(opener.opened(b"libcuda.so"))
theirs = ctypes.CDLL("libcuda.so.1", handle=handle.value)
at = lambda library: ctypes.cast(library.cuInit, ctypes.c_void_p).value
print(at(ours) == at(theirs), theirs.cuInit(0))
"""
    done = rankfold("run", "--world-size", "1", "--", sys.executable, "-c", script)
    assert done.splitlines() == [
        *(f"{name} True" for name in ("cuda", "cudart", "nccl", "nvidia-ml", "cublas", "cublasLt")),
        "True 0",
    ]


def test_exhausted_memory_is_the_api_s_error(rankfold: Rankfold) -> None:
    """The program asserts it, and that what it frees can be had again."""
    program = str(build(PROGRAMS / "out_of_memory.cu"))
    spread, folded = (
        rankfold("run", "--world-size", "2", "--gpus", gpus, "--memory", "32MiB", "--", program)
        for gpus in ("2", "1")
    )
    assert sorted(folded.splitlines()) == sorted(spread.splitlines()) and "pieces" in spread


def test_a_rank_that_waits_in_tcp_for_its_neighbour_on_the_device_continues(
    rankfold: Rankfold,
) -> None:
    done = rankfold(
        "run",
        "--world-size",
        "3",
        "--gpus",
        "1",
        "--memory",
        "64MiB",
        "--",
        str(build(PROGRAMS / "tcp_wait.cu")),
        "40",
    )
    assert done.count("step 39 ") == 3


@pytest.mark.slow
def test_tinygrad_trains_through_run(rankfold: Rankfold) -> None:
    for name, value in table.tinygrad(rankfold.state.folder).items():
        rankfold.environment[name] = value
    steps = 5
    out = rankfold(
        "run",
        "--world-size",
        "1",
        "--gpus",
        "1",
        "--",
        sys.executable,
        str(REPOSITORY / "tests/guests/tinygrad/train.py"),
        str(steps),
    )
    printed = np.array([float(line.split()[3]) for line in out.splitlines()])
    np.testing.assert_allclose(printed, np.array(losses(steps)), rtol=2e-3)


@pytest.mark.slow
def test_host_memory_for_folded_ranks_is_counted_before_placing(
    rankfold: Rankfold, specs: Specs, neighbour: Neighbour
) -> None:
    """Two ranks of 64 MiB on one device need 64 MiB in addition; three devices need none."""
    rankfold.environment["RANKFOLD_HOST_MEMORY"] = str(100 << 20)
    program = str(build(PROGRAMS / "large_state.cu"))
    specs.pool(2)
    neighbour.apply(gpus=1)
    specs.program([program, "4", "24", "3"], "too-much", gpus=1, ranks=2)
    rankfold("apply", "-f", str(specs.folder))

    def refused() -> dict[str, str] | None:
        conditions = rankfold.job("too-much").get("conditions", ())
        return next((c for c in conditions if c["reason"] == "HostMemory"), None)

    waits = rankfold.until(refused)
    assert rankfold.job("too-much")["phase"] == "Pending" and waits["type"] == "Stalled"
    assert "may need 0.0625 GiB of host memory" in waits["message"]
    # The memory of the first job is free when that job has ended.
    neighbour.finish()
    rankfold.until(lambda: rankfold.job("too-much")["phase"] == "Succeeded")
    assert json.dumps(rankfold.job("too-much")["conditions"]).count("Stalled") == 0


@pytest.mark.parametrize(
    "words",
    [("suspend", "large"), ("suspend", "large", "--store"), ("scale", "large", "--gpus", "1")],
)
def test_an_override_beyond_host_memory_is_refused(
    rankfold: Rankfold, specs: Specs, words: tuple[str, ...]
) -> None:
    rankfold.environment["RANKFOLD_HOST_MEMORY"] = str(10 << 20)
    specs.pool(2)
    specs.program(["/bin/sleep", "1000"], "large", gpus=2, ranks=2)
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job("large")["phase"] == "Running")
    done = rankfold.run(*words, "--override")
    assert done.returncode == 1 and "of host memory" in done.stderr
    assert rankfold.job("large")["phase"] == "Running"
    assert not any(c["reason"] == "HostMemory" for c in rankfold.job("large")["conditions"])
