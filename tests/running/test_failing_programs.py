"""Programs that fail: the rank or the API call says so, and no other rank's bits change."""

from __future__ import annotations

import re
import signal
import subprocess
import sys

import cuda
import pytest

from rankfold import paths
from rankfold.control import call
from rankfold.proxy.hal.soft.modules import compiler_socket
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State


def start(fleet: Fleet, program: str, placement: list[int], *arguments: object) -> RunningJob:
    command = [str(cuda.build(cuda.PROGRAMS / f"{program}.cu")), *map(str, arguments)]
    name = program.replace("_", "-")
    return fleet.start(f"{name}-{len(fleet.jobs)}", command, placement)


def finish(job: RunningJob) -> list[str]:
    assert job.wait() == [0] * job.world_size, job.errors(0)
    job.detach(discard=True)  # a device serves one job at a time
    return [job.output(rank) for rank in range(job.world_size)]


def test_a_rank_that_crashes_ends_its_job_alone(state: State) -> None:
    with Fleet(state, 2) as fleet:
        expected = finish(start(fleet, "ring", [0, 1], 10))
        crashing = start(fleet, "crash", [0, 0], 20, 1, 7)
        until(lambda: crashing.exit_status(1) is not None, 60, "rank 1 crashes")
        assert crashing.exit_status(1) == -signal.SIGSEGV
        assert crashing.output(0).count("\n") == 7
        crashing.detach(discard=True)
        call(crashing.launcher(0), "signal", signum=signal.SIGKILL)
        until(lambda: crashing.exit_status(0) is not None, 60, "rank 0 is ended")
        assert finish(start(fleet, "ring", [0, 1], 10)) == expected


def test_an_address_out_of_bounds_is_the_rank_s_own_error(state: State) -> None:
    """Its neighbour on the device continues, and computes what it would have computed."""
    with Fleet(state, 2) as fleet:
        expected = finish(start(fleet, "out_of_bounds", [0, 1], 20, -1))
        outputs = finish(start(fleet, "out_of_bounds", [0, 0], 20, 0))
        assert outputs[1] == expected[1]
        assert outputs[0] == expected[0] + "illegal address reported\n"


DONE = [f"rank {rank} is done\n" for rank in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("placement", [[0, 0, 0], [0, 1, 0], [0, 1, 2]], ids=str)
def test_ranks_that_abort_a_communicator_continue(state: State, placement: list[int]) -> None:
    """From a thread while the main one waits, with work behind it, in groups, while joining; also
    those that shrink it, or do not block."""
    with Fleet(state, max(placement) + 1) as fleet:
        for how in (
            "thread",
            "sends",
            "told",
            "split",
            "group",
            "late",
            "joining",
            "patient",
            "shrink",
        ):
            assert finish(start(fleet, "abort", placement, how)) == DONE


@pytest.mark.slow
def test_a_watchdog_ends_what_the_main_thread_is_blocked_in(state: State) -> None:
    """In every call that may wait for the operation. Then a new communicator takes over."""
    with Fleet(state, 2) as fleet:
        printed = finish(start(fleet, "watchdog", [0, 1, 0]))
        assert len(set(printed)) == 1 and printed[0].count("weights") > 5


@pytest.mark.parametrize("placement", [[0, 0, 0], [0, 1, 0], [0, 1, 2]], ids=str)
def test_ranks_abort_what_a_killed_rank_leaves_unfinished(
    state: State, placement: list[int]
) -> None:
    """Without a reconciler, which would end the job. They then use a smaller communicator."""
    told = state.folder / "told"
    with Fleet(state, max(placement) + 1) as fleet:
        job = start(fleet, "abort", placement, "killed", told)
        until(lambda: job.exit_status(0) is not None, 60, "rank 0 is killed")
        told.touch()
        assert job.wait() == [-signal.SIGKILL, 0, 0], [job.errors(r) for r in range(3)]
        assert [job.output(rank) for rank in range(3)] == ["", *DONE[1:]]


def test_an_abort_does_not_depend_on_sharing(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKFOLD_SHARE", "0")
    with Fleet(state, 1) as fleet:
        assert finish(start(fleet, "abort", [0, 0, 0], "thread")) == DONE


@pytest.mark.parametrize("status", [0, 3])
def test_nothing_runs_behind_a_host_function_that_exits(state: State, status: int) -> None:
    """Its rank's part of the sum is queued there: the other rank does not get it."""
    with Fleet(state, 2) as fleet:
        job = start(fleet, "exit_in_callback", [0, 1], status)
        until(lambda: job.exit_status(0) is not None, 60, "rank 0 exits")
        assert job.exit_status(0) == status

        def gone() -> bool:
            (told,) = fleet.status(fleet.names[0])["jobs"]
            return bool(told["ranks"][0]["state"] == "exited")

        until(gone, 60, "its device lets go of it")
        until(lambda: job.output(1) == "it waits\n", 60, "rank 1 waits")
        assert job.exit_status(1) is None
        job.detach(discard=True)
        call(job.launcher(1), "signal", signum=signal.SIGKILL)
        until(lambda: job.exit_status(1) is not None, 60, "rank 1 is ended")


@pytest.mark.parametrize("placement", [[0, 1], [0, 0]], ids=["apart", "folded"])
def test_nccl_says_what_went_wrong_last(state: State, placement: list[int]) -> None:
    with Fleet(state, 2) as fleet:
        outputs = finish(start(fleet, "nccl_errors", placement))
        assert outputs == ["rank 0 is done\n", "rank 1 is done\n"]


def test_memory_of_folded_ranks_may_exceed_the_device(state: State) -> None:
    """Each of three ranks fills its own 24 MiB of a device that has 32 MiB."""
    with Fleet(state, 1, memory=32 * MiB) as fleet:
        job = start(fleet, "large_state", [0, 0, 0], 6, 24, 3)
        job.wait()
        status = fleet.status(fleet.names[0])
        assert status["swapped_out"] > 0 and status["switches"] > 2
        assert status["used"] <= status["memory"]
        finish(job)


def test_exhausted_memory_is_the_api_s_error_and_does_not_depend_on_the_placement(
    state: State,
) -> None:
    """The virtual device has 32 MiB; how much fits does not depend on who else is there."""
    with Fleet(state, 2, memory=96 * MiB) as fleet:
        command = [str(cuda.build(cuda.PROGRAMS / "out_of_memory.cu")), "4"]
        spread = finish(fleet.start("spread", command, [0, 1], memory=32 * MiB))
        assert finish(fleet.start("folded", command, [0, 0], memory=32 * MiB)) == spread


@pytest.mark.parametrize("size", [4, 256])
def test_a_fault_that_a_copy_meets_is_reported(state: State, size: int) -> None:
    with Fleet(state) as fleet:
        job = start(fleet, "out_of_bounds", [0], 1, 0, size)
        finish(job)
        told = "rankfold: _Z8write_atPfx: .*; this and all later calls fail"
        assert re.match(told, job.errors(0)), job.errors(0)


def test_a_collective_that_fails_with_a_rank_names_it_and_why(state: State) -> None:
    """The rank's input is being added up when one of its kernels faults."""
    with Fleet(state, memory=512 * MiB) as fleet:
        start(fleet, "fault_amid_sum", [0, 0])

        def failed() -> str:
            (told,) = fleet.status(fleet.names[0])["jobs"]
            return told["reason"] if told["state"] == "failed" else ""

        reason = until(failed, 60, "the job has failed")
        assert reason.startswith("rank 0 has failed: _Z3putPi: an address outside of device memory")
        assert re.search(r"; with it error 2 .* AllReduce of 16777216 float32", reason), reason


FAILING_COMPILER = """
import os, signal
from rankfold.proxy.hal.soft.compiler import server
from rankfold.proxy.ptx.errors import INVALID_PTX, ModuleError
compile_kernel = server.codegen.compile_kernel
def compile_all_but_one(source, name, keep=None):
    if name == "_Z7unluckyPi":
        {fault}
    return compile_kernel(source, name, keep)
server.codegen.compile_kernel = compile_all_but_one
server.main()
"""
LASTS = "; this and all later calls fail (cudaErrorUnknown)"


@pytest.mark.parametrize(
    ("fault", "printed", "reason"),
    [
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            "cudaErrorUnknown -1\n",
            f"its compilation was killed by signal 9{LASTS}",
        ),
        (
            "raise KeyError(7)",
            "cudaErrorUnknown -1\n",
            f"its compilation failed: KeyError(7){LASTS}",
        ),
        ("raise ModuleError(INVALID_PTX, 'not PTX')", "cudaSuccess 0\n", "not PTX"),
    ],
    ids=["killed", "exception", "refused"],
)
def test_a_program_that_ignores_errors_gets_no_results_without_a_kernel(
    state: State, fault: str, printed: str, reason: str
) -> None:
    """The compiler fails, which is no fault of the program, or it refuses the kernel."""
    socket = compiler_socket(state.path)
    socket.parent.mkdir(parents=True, exist_ok=True)
    code = FAILING_COMPILER.format(fault=fault)
    options = ["--socket", socket, "--cache", paths.kernel_cache(state.path), "--idle", "1000"]
    with subprocess.Popen([sys.executable, "-c", code, *map(str, options)]):
        try:
            until(socket.exists, 60, "the compiler serves")
            with Fleet(state) as fleet:
                job = start(fleet, "ignored_errors", [0])
                until(lambda: job.exit_status(0) is not None, 60, "the program ends")
                assert (job.exit_status(0), job.output(0)) == (0, printed), job.errors(0)
                assert job.errors(0) == f"rankfold: kernel _Z7unluckyPi: {reason}\n"
        finally:
            call(str(socket), "shutdown")


def test_a_kernel_with_a_refused_instruction_fails_its_rank(state: State) -> None:
    with Fleet(state) as fleet:
        job = start(fleet, "refused_kernel", [0])
        until(lambda: job.exit_status(0) is not None, 60, "the program ends")
        assert (job.exit_status(0), job.output(0)) == (0, "cudaErrorUnknown -1\n"), job.errors(0)
        reason = f"the instruction 'brkpt' is not supported by the software GPU{LASTS}"
        assert job.errors(0) == f"rankfold: kernel _Z20stops_for_a_debuggerPi: {reason}\n"
