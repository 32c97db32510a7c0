"""Unmodified programs on devices of type nvidia: the whole way, with the fake driver below it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cuda
import pytest

from rankfold.control import ControlError
from support.command import Rankfold, Specs
from support.fixtures import rankfold
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State
from support.privileges import need_criu

__all__ = ["rankfold"]

PROGRAM = Path(__file__).parent / "counting.cu"
STEPS = 16


@pytest.fixture(autouse=True)
def driver(fake_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each proxy process has its own fake GPU; all are the only one of it."""
    monkeypatch.setenv("RANKFOLD_CUDA_DRIVER", str(fake_path))
    monkeypatch.setenv("RANKFOLD_CUBLASLT", str(fake_path))
    monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")


def start(
    fleet: Fleet, name: str, placement: list[int], program: Path = PROGRAM, steps: int = STEPS
) -> RunningJob:
    return fleet.start(name, [str(cuda.build(program)), str(steps)], placement, memory=32 * MiB)


def move_along(fleet: Fleet, job: RunningJob, placements: Sequence[list[int]]) -> None:
    """Moves the job to each placement, two lines of output after the last move, until it ends."""
    for placement in placements:
        seen = job.output(0).count("\n") if (job.folder / "logs/rank-0.out").exists() else 0
        until(lambda: job.output(0).count("\n") >= seen + 2 or done(job))  # noqa: B023
        if done(job):
            return
        job.move([fleet.names[p] for p in placement])


def outputs(job: RunningJob) -> list[str]:
    assert job.wait() == [0] * job.world_size, [job.errors(r) for r in range(job.world_size)]
    return [job.output(rank) for rank in range(job.world_size)]


def test_folded_and_moved_between_kinds_of_device_the_bits_are_the_same(state: State) -> None:
    """Three ranks of 6 MiB on devices of 8 MiB: folded, each switch swaps. Between a software GPU
    and one behind the driver a rank moves with its module's variables and its pinned memory."""
    kinds = ("nvidia", "nvidia", "soft")
    with Fleet(state, memory=8 * MiB, kinds=kinds) as fleet:
        wanted = outputs(start(fleet, "apart", [0, 1, 2]))
        job = start(fleet, "moved", [0, 0, 0])
        move_along(fleet, job, ([2, 2, 2], [0, 1, 1], [2, 0, 0], [0, 0, 0]))
        assert outputs(job) == wanted
        assert job.epoch >= 3
        assert fleet.status(fleet.names[0])["swapped_out"] > 0


def test_memory_that_is_mapped_piece_by_piece_moves(state: State) -> None:
    """Two ranks of up to 6 MiB on devices of 8 MiB; only device types that swap while they run."""
    program = PROGRAM.parent / "pieces.cu"
    with Fleet(state, memory=8 * MiB, kinds=("nvidia", "soft")) as fleet:
        wanted = outputs(start(fleet, "soft", [1, 1], program, 12))
        job = start(fleet, "moved", [0, 0], program, 12)
        move_along(fleet, job, ([1, 0], [0, 0]))
        assert outputs(job) == wanted


@pytest.mark.parametrize("name", ["tensor_maps", "clusters"])
def test_calls_that_the_driver_answers(state: State, name: str) -> None:
    """Before a move and after it: encoded descriptions of tensors stay valid."""
    program, told = cuda.build(PROGRAM.parent / f"{name}.cu"), state.folder / "go-on"
    with Fleet(state, memory=32 * MiB, kinds=("nvidia", "nvidia")) as fleet:
        job = fleet.start("asks", [str(program), str(told)], [0, 0], memory=32 * MiB)
        until(lambda: done(job) or all(job.output(rank) == "half\n" for rank in (0, 1)))
        if not done(job):
            job.move([fleet.names[1]] * 2)
        told.touch()
        outputs(job)
        assert [job.errors(rank) for rank in (0, 1)] == ["", ""]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensor_maps", "tensor maps (cuTensorMapEncodeTiled) are not supported by rankfold on"),
        ("clusters", "thread block clusters are not supported by rankfold on this device"),
    ],
)
def test_calls_that_other_devices_refuse(state: State, name: str, words: str) -> None:
    program = cuda.build(PROGRAM.parent / f"{name}.cu")
    with Fleet(state, memory=32 * MiB, kinds=("soft",)) as fleet:
        job = fleet.start("asks", [str(program), "", "refused"], [0], memory=32 * MiB)
        outputs(job)
        assert job.errors(0).count("\n") == job.errors(0).count(words) == 1


@pytest.mark.slow
def test_products_move_between_kinds_of_device(state: State) -> None:
    """Whole numbers: the software GPU's products and cuBLASLt's have the same bits."""
    program = PROGRAM.parent / "products.cu"
    with Fleet(state, memory=8 * MiB, kinds=("nvidia", "soft")) as fleet:
        wanted = outputs(start(fleet, "soft", [1, 1], program, 12))
        job = start(fleet, "moved", [0, 0], program, 12)
        until(lambda: job.output(0).count("\n") >= 3 or done(job))
        if not done(job):
            job.move([fleet.names[p] for p in (0, 1)])
        assert outputs(job) == wanted


@pytest.mark.usual("compared")
@pytest.mark.parametrize("every", ["1", "0"], ids=["compared", "not compared"])
def test_results_of_another_device_type_are_not_reused(
    state: State, every: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same kernel has left other bits on each: a rank that comes keeps its own, next to one
    that would have the same if it had come about on the same device."""
    monkeypatch.setenv("RANKFOLD_VALIDATE", every)
    program = PROGRAM.parent / "rounding.cu"
    with Fleet(state, memory=64 * MiB, kinds=("nvidia", "soft")) as fleet:
        own = [tables(output) for output in outputs(start(fleet, "apart", [0, 1], program, 2))]
        assert [len(each) for each in own] == [1, 1] and own[0] != own[1]
        job = start(fleet, "met", [0, 1], program, 60)
        until(lambda: job.output(0).count("\n") >= 4)
        job.move([fleet.names[1]] * 2)
        assert [tables(output) for output in outputs(job)] == own
        status = fleet.status(fleet.names[1])
        assert not any(each["alarms"] for each in status["jobs"])
        assert status["squashed"] > 0, "they had nothing in common"


def tables(output: str) -> set[str]:
    return {line.split("table")[1] for line in output.splitlines() if "table" in line}


def test_a_proxy_loads_its_own_kind_of_device(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the software GPU has a compiler in it."""
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")  # starts interpreters, not forks: support/warm.py
    with Fleet(state, memory=32 * MiB, kinds=("nvidia", "soft")) as fleet:
        outputs(start(fleet, "both", [0, 1], steps=2))
        loaded = {
            name: Path(f"/proc/{fleet.status(name)['pid']}/maps").read_text()
            for name in fleet.names
        }
    assert {name: "llvmlite" in maps for name, maps in loaded.items()} == {
        "local/nvidia-0": False,
        "local/soft-1": True,
    }


def done(job: RunningJob) -> bool:
    return any(job.exit_status(rank) is not None for rank in range(job.world_size))


def test_run_on_a_device_of_type_nvidia(rankfold: Rankfold) -> None:
    program = str(cuda.build(PROGRAM))
    printed = rankfold(
        "run",
        "--world-size",
        "2",
        "--gpus",
        "1",
        "--device",
        "nvidia",
        "--memory",
        "32MiB",
        "--",
        program,
        "5",
    )
    assert printed.count("step 4 data") == 2


def test_a_gpu_that_is_not_there_is_said(rankfold: Rankfold) -> None:
    """The device stays down; its proxy's words are in the status."""
    folder = rankfold.state.folder / "specs"
    folder.mkdir()
    (folder / "pool.yaml").write_text(POOL)
    rankfold.environment["RANKFOLD_NVIDIA_SHARE"] = "0"
    words = "there is no GPU 1: the driver shows 1"
    with rankfold.watching(str(folder)):  # without a source the reconciler may exit before
        rankfold.until(lambda: words in rankfold("status", "-o", "json"))
        assert "there is no GPU 0" not in rankfold("status", "-o", "json")
    (folder / "pool.yaml").write_text(POOL.replace("count: 2", "count: 1"))
    rankfold("apply", "-f", str(folder), "--wait")


@pytest.fixture
def specs(state: State) -> Specs:
    made = Specs(state.folder / "specs")
    made.write("pool.yaml", POOL.replace("count: 2", "count: 1"))
    return made


FAULTY = PROGRAM.parent / "faulty.cu"
OVER = ("Succeeded", "Failed")


@pytest.mark.slow
def test_a_gpu_whose_context_has_ended_is_there_for_the_next_job(
    rankfold: Rankfold, specs: Specs
) -> None:
    """A kernel's fault ends it for good. The job whose kernel it was fails with its own error; the
    next one gets the GPU from a proxy that has been started anew, and loses nothing."""
    program, file = str(cuda.build(FAULTY)), str(specs.folder / "faulted")
    specs.program([program, file], "faulty", extra="restart: {maxRestarts: 0}")
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job("faulty")["phase"] == "Failed")
    assert "cudaErrorIllegalAddress" in rankfold.job("faulty")["message"]
    assert rankfold("logs", "faulty").startswith("cudaErrorIllegalAddress\n")
    specs.program([str(cuda.build(PROGRAM)), "8"], "next")
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job("next")["phase"] in OVER)
    assert rankfold.job("next")["phase"] == "Succeeded"
    assert not rankfold.job("next")["restarts"]
    assert rankfold("logs", "next").count("step 7 data") == 1


@pytest.mark.usual("ends")
@pytest.mark.parametrize("stays", [[], ["stays"]], ids=["ends", "takes no notice"])
def test_a_job_continues_after_a_fault_on_a_gpu(
    rankfold: Rankfold, specs: Specs, stays: list[str]
) -> None:
    """The proxy does not wait for a program that ignores the error."""
    program, file = str(cuda.build(FAULTY)), str(specs.folder / "faulted")
    specs.program([program, file, *stays], "faulty", extra="restart: {maxRestarts: 1}")
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job("faulty").get("phase") in OVER)
    job = rankfold.job("faulty")
    assert (job["phase"], job["restarts"]) == ("Succeeded", 1), job["message"]
    assert rankfold("logs", "faulty") == "cudaSuccess\n"


@pytest.mark.slow
def test_ranks_come_back_from_their_checkpoint_after_the_fault_of_another_one(
    rankfold: Rankfold, specs: Specs
) -> None:
    """All ranks of a GPU lose its context. Another proxy serves them, and what they print and
    compute is that of a job that no fault has met."""
    need_criu()
    program, last = str(cuda.build(PROGRAM.parent / "fault_later.cu")), specs.folder / "last"
    fault, steps = specs.folder / "fault", "60"
    device = ("--device", "nvidia", "--memory", "64MiB", "--gpus", "1", "--name", "unmet")
    command = (program, steps, str(fault))
    rankfold("run", "--world-size", "2", *device, "--", *command, "/")
    wanted = [rankfold("logs", "unmet", "--rank", str(rank)) for rank in range(2)]
    restarts = "restart: {maxRestarts: 20}"
    specs.program([*command, str(last)], "met", gpus=1, ranks=2, extra=restarts)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    rankfold.until(lambda: "step 8 data" in rankfold("logs", "met"))
    rankfold("checkpoint", "met", "--wait")
    saved = rankfold("logs", "met").count("data")
    proxy = rankfold.proxy_pid("local/nvidia-0")
    fault.touch()
    rankfold.until(lambda: rankfold.job("met")["restarts"])
    fault.unlink()
    rankfold.until(lambda: f"step {int(steps) - 2} data" in rankfold("logs", "met"))
    assert rankfold.proxy_pid("local/nvidia-0") != proxy
    last.touch()
    rankfold.until(lambda: rankfold.job("met")["phase"] in OVER)
    assert rankfold.job("met")["phase"] == "Succeeded", rankfold.job("met")["message"]
    assert saved > 8 and wanted == [
        rankfold("logs", "met", "--rank", str(rank)) for rank in range(2)
    ]


@pytest.mark.slow
def test_a_device_that_is_lost_takes_no_job_and_ends(state: State, tmp_path: Path) -> None:
    """A caller that asks meanwhile gets the reason, and may ask again."""
    with Fleet(state, memory=64 * MiB, kinds=("nvidia",)) as fleet:
        (device,) = fleet.names
        program = [str(cuda.build(FAULTY)), str(tmp_path / "faulted"), "stays"]
        fleet.start("faulty", program, [0], memory=32 * MiB)
        until(lambda: fleet.status(device)["lost"], what="the device is lost")
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in fleet.status(device)["lost"]
        with pytest.raises(ControlError, match="was lost and is being restarted") as refused:
            fleet.start("next", program, [0], memory=32 * MiB)
        assert refused.value.code == "busy"
        assert fleet.processes[device].wait(30) == 1


@pytest.mark.slow
def test_a_kernel_that_never_ends_costs_its_job_and_no_gpu(
    rankfold: Rankfold, specs: Specs
) -> None:
    """No driver ends one kernel. When its job is cancelled it has 10 s, and then goes with the
    context and the proxy; the next job gets another."""
    specs.program([str(cuda.build(PROGRAM.parent / "endless.cu"))], "endless")
    rankfold("apply", "-f", str(specs.folder), "--wait")
    rankfold.until(lambda: "waits" in rankfold("logs", "endless"))
    rankfold("cancel", "endless", "--override")
    rankfold.until(lambda: rankfold.job("endless")["phase"] == "Failed")
    assert "cancelled" in rankfold.job("endless")["message"]
    specs.program([str(cuda.build(PROGRAM)), "8"], "next")
    rankfold("apply", "-f", str(specs.folder))
    rankfold.until(lambda: rankfold.job("next").get("phase") in OVER)
    job = rankfold.job("next")
    assert (job["phase"], job["restarts"]) == ("Succeeded", 0), job["message"]


POOL = """\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {name: local}
spec:
  devices:
    - {type: nvidia, count: 2, memory: 32MiB}
"""


def test_run_makes_no_more_devices_than_there_are_gpus(rankfold: Rankfold) -> None:
    """It would wait for the others without an end."""
    run = ("run", "--world-size", "3", "--device", "nvidia", "--memory", "32MiB", "--name", "three")
    two = {"RANKFOLD_NVIDIA_SHARE": "0", "RANKFOLD_FAKE_DEVICES": "2"}
    done = rankfold.run(*run, "--gpus", "3", "--", "true", **two)
    assert done.returncode == 64
    assert "--gpus 3: the driver shows 2 GPUs (CUDA_VISIBLE_DEVICES?)" in done.stderr
    done = rankfold.run(*run, "--", "true", RANKFOLD_FAKE_DEVICES="0")
    assert done.returncode == 64 and "the driver shows no GPU (error " in done.stderr
    done = rankfold.run(*run, "--", "true", **two)
    assert done.returncode == 0, done.stderr
    assert rankfold.job("three")["gpus"] == 2


SEEN = """
#include <cstdio>
#include <cuda_runtime.h>
int main()
{
    cudaDeviceProp p;
    int clock = 0;
    cudaGetDeviceProperties(&p, 0);
    cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0);
    printf("%d.%d %d %zu %d %d\\n", p.major, p.minor, p.multiProcessorCount,
           p.sharedMemPerBlockOptin, p.l2CacheSize, clock);
}
"""


def test_ranks_see_the_numbers_of_the_gpu(rankfold: Rankfold) -> None:
    """PyTorch and Triton compile for the capability, and choose sizes of grids by the others."""
    device = ("--world-size", "1", "--device", "nvidia", "--memory", "32MiB")
    program = str(cuda.build(SEEN))
    assert f"9.0 132 {227 << 10} {50 << 20} 1980000" in rankfold("run", *device, "--", program)
    older = ("--compute-capability", "8.0", "--", program)
    assert f"8.0 132 {227 << 10}" in rankfold("run", *device, *older)
