"""Promise: at determinism D0, NCCL sums between the GPUs of a job, with one member per GPU, if all
of them have the same NCCL; otherwise all use the tree. Over the fake driver's NCCL, which adds in
another order than the tree and notes what its members do wrong."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuda
import numpy as np
import pytest
from collectives import engine as e
from collectives.reference import over_links

from rankfold.control import Message
from support.command import Rankfold, Specs
from support.fixtures import rankfold
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

__all__ = ["rankfold"]

HERE = Path(__file__).parent
COLLECTIVES = HERE / "collectives.cu"
MEMORY = 64 * MiB
PIECE = 4 * MiB
BYTES = 14_210_670  # of all all-reduces of one round of collectives.cu


@pytest.fixture
def gpus(
    fake_path: Path, libraries_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Path]:
    """Three GPUs, each with a proxy. No driver, and no NCCL, may see a broken rule; and no
    communicator may be left half made."""
    faults = tmp_path / "faults"
    for name, value in {
        "RANKFOLD_CUDA_DRIVER": fake_path,
        "RANKFOLD_CUBLASLT": fake_path,
        "RANKFOLD_LIBRARIES": libraries_path,
        "RANKFOLD_FAKE_DEVICES": 3,
        "RANKFOLD_FAKE_FAULTS": faults,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("RANKFOLD_NVIDIA_SHARE", raising=False)
    yield tmp_path
    assert not faults.exists() or faults.read_text() == ""


class OfGpus(Fleet):
    """`settings`: the environment of some proxies, by the number of their device."""

    def __init__(
        self,
        state: State,
        settings: dict[int, dict[str, str]] | None = None,
        memory: int = MEMORY,
        kinds: tuple[str, ...] = ("nvidia",) * 3,
    ) -> None:
        super().__init__(state, memory=memory, kinds=kinds)
        self.settings = settings or {}

    def __enter__(self) -> OfGpus:
        super().__enter__()
        return self

    def start_proxy(self, device: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.settings.get(self.names.index(device), {}).items():
                patch.setenv(name, value)
            super().start_proxy(device)

    def log(self, index: int) -> str:
        name = self.names[index].replace("/", ".") + ".log"
        return (self.state.path / "proxies" / name).read_text()


def start(
    fleet: Fleet,
    name: str,
    placement: list[int],
    level: str = "D0",
    rounds: int = 1,
    us: int = 0,
    floats: tuple[str, ...] = (),
) -> RunningJob:
    command = [str(cuda.build(COLLECTIVES)), "/dev/null", str(rounds), str(us), *floats]
    return fleet.start(name, command, placement, memory=MEMORY, determinism=level)


def outputs(job: RunningJob) -> list[list[str]]:
    assert job.wait() == [0] * job.world_size, [job.errors(r) for r in range(job.world_size)]
    return [job.output(rank).splitlines() for rank in range(job.world_size)]


def reports(fleet: Fleet, job: RunningJob) -> list[Message]:
    return [
        each
        for device in job.devices
        for each in fleet.status(device)["jobs"]
        if each["job"] == job.name
    ]


def used(fleet: Fleet, job: RunningJob) -> set[tuple[int, int, int, str]]:
    keys = ("links", "links_refused", "links_bytes", "links_why_not")
    return {tuple(one[key] for key in keys) for one in reports(fleet, job)}


# ---- what the sums are ----

KINDS = {  # of collectives.cu that NumPy has: the bits that are kept, and set
    "float": ("float32", 0x807FFFFF, 0x3F800000),
    "int32": ("int32", 0xFFFFFFFF, 0),
    "uint8": ("uint8", 0xFF, 0),
    "int64": ("int64", 2**64 - 1, 0),
    "half": ("float16", 0x83FF, 0x3C00),
    "double": ("float64", 0x800FFFFFFFFFFFFF, 0x3FF0000000000000),
}
OPS = {"sum": e.SUM, "prod": e.PROD, "max": e.MAX, "min": e.MIN, "avg": e.AVG}


def numbers(kind: str, count: int, seed: int) -> e.Array:
    """As collectives.cu makes them."""
    dtype, kept, wanted = KINDS[kind]
    with np.errstate(over="ignore"):
        x = np.uint64(seed * 1000003) + np.arange(count, dtype=np.uint64)
        x = x * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x & np.uint64(kept)) | np.uint64(wanted)
    size = np.dtype(dtype).itemsize
    return np.frombuffer(x.view(np.uint8).reshape(-1, 8)[:, :size].tobytes(), dtype)


def fnv(data: bytes) -> str:
    h = 0xCBF29CE484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def expected(placement: list[int]) -> dict[str, str]:
    """The lines of all-reduces, without those of 700,001 floats."""
    found = {}
    for kind in KINDS:
        for count in (1003, 1) if kind == "float" else (1003,):
            given = [numbers(kind, count, rank) for rank in range(len(placement))]
            for name, op in OPS.items():
                piece = PIECE // given[0].itemsize
                total = over_links(given, placement, op, piece)
                found[f"{name}-{kind}-{count}"] = fnv(total.tobytes())
    return found


def all_reduces(lines: list[str]) -> dict[str, str]:
    words = [line.split() for line in lines if line.startswith("step")]
    return {what: value for _, _, what, value in words if what.split("-")[0] in OPS}


_known: list[list[str]] = []


@pytest.fixture
def tree(gpus: Path, state: State) -> list[list[str]]:
    """The lines of the ranks at D1, which knows no NCCL."""
    if not _known:
        with OfGpus(state) as fleet:
            job = start(fleet, "tree", PLACEMENT, "D1")
            _known.extend(outputs(job))
            assert used(fleet, job) == {(0, 0, 0, "")}
            for process in fleet.processes.values():
                assert "libnccl" not in Path(f"/proc/{process.pid}/maps").read_text()
    return _known


PLACEMENT = [0, 1, 2, 1]


@pytest.mark.usual("[0, 1]")
@pytest.mark.parametrize("placement", [[0, 1], PLACEMENT, [1, 0, 0, 1, 2], [0, 1, 2]], ids=str)
def test_the_sums_are_those_of_nccl(gpus: Path, state: State, placement: list[int]) -> None:
    """Each device is one member, with the sum of its ranks. A second run has the same bits."""
    with OfGpus(state) as fleet:
        job = start(fleet, "one", placement)
        lines = outputs(job)
        assert used(fleet, job) == {(1, 0, BYTES, "")}
        again = start(fleet, "again", placement)
        assert outputs(again) == lines
    wanted = expected(placement)
    for rank in range(len(placement)):
        found = all_reduces(lines[rank])
        assert {what: found[what] for what in wanted} == wanted
        assert found == all_reduces(lines[0]) and len(found) == 60
    for log in (fleet.log(number) for number in set(placement)):
        words = f"sums of a communicator of {len(placement)} ranks go by NCCL 2.27.3"
        assert f"job one: {words}" in log


def test_other_collectives_are_those_of_the_tree(tree: list[list[str]], state: State) -> None:
    with OfGpus(state) as fleet:
        job = start(fleet, "one", PLACEMENT)
        lines = outputs(job)
    floating = re.compile(r"(sum|prod|avg|reduce)-(float|half|double|bfloat16)-")
    for mine, its in zip(lines, tree, strict=True):
        differ = [a for a, b in zip(mine, its, strict=True) if a != b]
        # A rank that is not the root of a reduce prints what was there before it.
        assert differ and all(floating.search(line) for line in differ)
        assert len({line.split()[2] for line in differ}) > 10


# ---- where NCCL is not used ----

EMPTY = {"RANKFOLD_LIBRARIES": "/nowhere"}
WITHOUT = {
    "one without": ({1: EMPTY}, "the device's proxy does not find NVIDIA's libnccl.so.2"),
    "lowest without": ({0: EMPTY}, "the device's proxy does not find NVIDIA's libnccl.so.2"),
    "other version": (
        {2: {"RANKFOLD_FAKE_NCCL_VERSION": "22800"}},
        "its devices have different versions of NCCL",
    ),
    "old version": ({1: {"RANKFOLD_FAKE_NCCL_VERSION": "21304"}}, "NCCL 21304 is older than 2.14"),
    "unwanted": ({2: {"RANKFOLD_NCCL": "0"}}, "RANKFOLD_NCCL=0"),
    "no id": (
        {0: {"RANKFOLD_FAKE_FAIL": "ncclGetUniqueId:1:2"}},
        "ncclGetUniqueId on GPU 0: unhandled system error (2)",
    ),
    "init fails": (
        {1: {"RANKFOLD_FAKE_FAIL": "ncclCommInitRankConfig:1:2"}},
        "ncclCommInitRankConfig on GPU 1: unhandled system error (2)",
    ),
    "init hangs": (
        {2: {"RANKFOLD_FAKE_NCCL_HANG": "2"}},
        "ncclCommInitRankConfig on GPU",
    ),
}


@pytest.mark.usual("one without", "init hangs", "other version")
@pytest.mark.parametrize(("settings", "why"), WITHOUT.values(), ids=WITHOUT)
def test_all_devices_use_the_tree_if_one_cannot_use_nccl(
    tree: list[list[str]],
    state: State,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[int, dict[str, str]],
    why: str,
) -> None:
    """From the first operation on, with the tree's bits; each of them says why."""
    monkeypatch.setenv("RANKFOLD_NCCL_CONNECT", "1")
    with OfGpus(state, settings) as fleet:
        job = start(fleet, "one", PLACEMENT)
        assert outputs(job) == tree
        found = used(fleet, job)
    assert len(found) == 1
    links, refused, carried, said = found.pop()
    assert (links, refused, carried) == (0, 1, 0) and said.startswith(why)
    for number in range(3):
        assert f"sums of a communicator of 4 ranks go without NCCL: {why}" in fleet.log(number)


POOL = """\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {name: local}
spec:
  devices:
    - {type: nvidia, count: 2, memory: 64MiB}
"""
JOB = """\
apiVersion: rankfold/v1alpha1
kind: Job
metadata: {name: job}
spec:
  command: COMMAND
  worldSize: 2
  gpus: 2
  determinism: D0
"""


@pytest.mark.slow
@pytest.mark.parametrize("wanted", ["1", "0"])
def test_people_see_whether_nccl_sums(
    gpus: Path, monkeypatch: pytest.MonkeyPatch, rankfold: Rankfold, wanted: str
) -> None:
    rankfold.environment["RANKFOLD_NCCL"] = wanted
    specs = Specs(rankfold.state.folder / "specs")
    command = [str(cuda.build(COLLECTIVES)), "/dev/null", "100000", "1000", "100000"]
    specs.write("pool.yaml", POOL)
    specs.write("job.yaml", JOB.replace("COMMAND", json.dumps(command)))
    rankfold("apply", "-f", str(specs.folder), "--wait")

    def shown() -> Any:
        return rankfold.job("job").get("collectives") or {"ncclBytes": 0, "withoutNccl": []}

    if wanted == "1":
        rankfold.until(lambda: shown()["ncclBytes"] > MiB)
    else:
        rankfold.until(lambda: shown()["withoutNccl"] == ["RANKFOLD_NCCL=0"])
    lines = rankfold("describe", "job").splitlines()
    said = {"1": " MiB summed by NCCL", "0": "sums without NCCL: RANKFOLD_NCCL=0"}[wanted]
    assert any(line.endswith(said) for line in lines)
    rankfold("cancel", "job", "--override")
    rankfold.until(lambda: rankfold.job("job")["phase"] == "Failed")


def test_two_devices_of_one_gpu_use_the_tree(
    tree: list[list[str]], state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")
    monkeypatch.setenv("RANKFOLD_FAKE_DEVICES", "2")
    with OfGpus(state) as fleet:
        job = start(fleet, "one", PLACEMENT)
        assert outputs(job) == tree
        assert used(fleet, job) == {(0, 1, 0, "two of its devices are one GPU")}


def test_a_software_gpu_and_a_gpu_use_the_tree(gpus: Path, state: State) -> None:
    with OfGpus(state, kinds=("nvidia", "soft")) as fleet:
        lines = [outputs(start(fleet, level.lower(), [0, 1], level)) for level in ("D1", "D0")]
        assert lines[0] == lines[1]
        assert used(fleet, fleet.jobs[1]) == {
            (0, 1, 0, "devices of type soft have no library that joins them")
        }


# ---- ends ----


def is_over(job: RunningJob) -> bool:
    return any(job.exit_status(rank) is not None for rank in range(job.world_size))


def test_a_job_that_is_saved_and_moved_joins_its_devices_again(gpus: Path, state: State) -> None:
    """On the same devices it continues with the same bits, and on fewer with others."""
    with OfGpus(state, memory=12 * MiB) as fleet:
        wanted = outputs(start(fleet, "whole", PLACEMENT, us=1000))
        job = start(fleet, "moved", PLACEMENT, us=1000)
        lines = 1
        for _ in range(2):
            until(lambda: job.output(0).count("\n") >= lines + 15 or is_over(job))  # noqa: B023
            assert not is_over(job), "it has not moved"
            job.stop()
            job.save()
            job.continue_running()
            job.move([fleet.names[p] for p in PLACEMENT])
            lines = job.output(0).count("\n")
        assert outputs(job) == wanted
        assert {each[:2] for each in used(fleet, job)} == {(1, 0)}
        assert fleet.log(0).count("job moved: sums of a communicator of 4 ranks go by NCCL") == 3


def test_jobs_that_meet_on_the_same_gpus(gpus: Path, state: State) -> None:
    """Neither waits for the other's sums."""
    with OfGpus(state, memory=3 * MEMORY) as fleet:
        jobs = [start(fleet, f"job{n}", PLACEMENT) for n in range(2)]
        assert outputs(jobs[0]) == outputs(jobs[1])


def communicators(fleet: Fleet, number: str = "") -> int:
    """How many files of the fake's NCCL the proxies have mapped; `number`: of the lowest device's
    communicators."""
    return sum(
        len(re.findall(rf"faults-nccl-\d+-{number}", Path(maps).read_text()))
        for process in fleet.processes.values()
        if process.poll() is None
        for maps in [f"/proc/{process.pid}/maps"]
    )


@pytest.mark.usual("a sum that hangs")
@pytest.mark.parametrize("how", ["amid sums", "a sum that hangs"])
def test_a_proxy_that_is_killed_fails_its_jobs_and_no_other(
    gpus: Path, state: State, how: str
) -> None:
    """The others abort their communicators: nothing waits for the one that is gone."""
    stuck = {1: {"RANKFOLD_FAKE_NCCL_STUCK": "1"}} if how == "a sum that hangs" else {}
    with OfGpus(state, stuck, memory=3 * MEMORY) as fleet:
        job = start(fleet, "killed", [0, 1, 2, 0], rounds=100000, floats=("700001",))
        until(lambda: communicators(fleet, "0 ") == 3 and job.output(0).count("\n") >= 4)
        other = start(fleet, "other", [0, 2, 0, 2], us=2000)
        if stuck:
            time.sleep(0.5)
        os.kill(fleet.processes["local/nvidia-1"].pid, signal.SIGKILL)
        fleet.processes["local/nvidia-1"].wait()
        reply = job.request("local/nvidia-0", "wait", states=["failed"], within_s=60)
        assert reply["state"] == "failed" and "local/nvidia-1 was lost" in reply["reason"]
        # Where the loss was seen, before the job leaves; elsewhere when it does.
        until(lambda: communicators(fleet, "0 ") <= 1, what="a communicator is aborted")
        for device in ("local/nvidia-0", "local/nvidia-2"):
            job.request(device, "detach", discard=True)
        lines = outputs(other)
        other.detach(discard=True)
        until(lambda: communicators(fleet) == 0, what="no communicator is left")
        fleet.settings.clear()
        fleet.start_proxy("local/nvidia-1")
        until(lambda: fleet.answers("local/nvidia-1"))
        again = start(fleet, "again", [0, 2, 0, 2])
        assert outputs(again) == lines


DONE = [[f"rank {rank} is done"] for rank in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("placement", [[0, 1, 0], [0, 1, 2]], ids=str)
def test_ranks_that_abort_a_communicator_continue(
    gpus: Path, state: State, placement: list[int]
) -> None:
    """The library's sums of the others, and of other communicators, come to their end."""
    with OfGpus(state) as fleet:
        for how in ("thread", "told", "split", "group", "late", "joining", "shrink"):
            command = [str(cuda.build(cuda.PROGRAMS / "abort.cu")), how]
            job = fleet.start(f"abort-{how}", command, placement, determinism="D0")
            assert outputs(job) == DONE
            assert {links > 0 for links, *_ in used(fleet, job)} == {True}
            job.detach(discard=True)
        until(lambda: communicators(fleet) == 0, what="no communicator is left")


def test_a_sum_that_hangs_is_aborted_with_its_job(gpus: Path, state: State) -> None:
    """Its ranks are released, and the devices serve others."""
    with OfGpus(state, {1: {"RANKFOLD_FAKE_NCCL_STUCK": "1"}}) as fleet:
        job = start(fleet, "stuck", [0, 1], rounds=100000, floats=("700001",))
        until(lambda: job.output(0).count("\n") >= 4)
        time.sleep(0.5)
        assert not is_over(job)
        job.detach(discard=True)
        until(lambda: communicators(fleet) == 0, what="no communicator is left")
        outputs(start(fleet, "tree", [0, 1], "D1"))


def test_a_library_that_fails_fails_the_job_and_says_so(gpus: Path, state: State) -> None:
    setting = {0: {"RANKFOLD_FAKE_FAIL": "ncclAllReduce:5:3"}}
    with OfGpus(state, setting) as fleet:
        job = start(fleet, "failed", [0, 1])
        reply = job.request("local/nvidia-0", "wait", states=["failed"], within_s=60)
        words = "the library that sums between devices has failed: ncclAllReduce on GPU 0"
        assert words in reply["reason"]
        with contextlib.suppress(AssertionError):
            job.wait(1)
        for device in job.devices:
            job.request(device, "detach", discard=True)
        until(lambda: communicators(fleet) == 0, what="no communicator is left")
