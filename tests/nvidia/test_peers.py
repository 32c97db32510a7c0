"""Promise: collectives between GPUs go from device to device where one can read the other's memory,
and through host memory elsewhere, with the same bits."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cuda
import numpy as np
import pytest
from softgpu.harness import CHUNK, Device, ffi

from rankfold.control import ControlError, Message
from support.command import Rankfold, Specs
from support.fixtures import rankfold
from support.fleet import Fleet, MiB, RunningJob, until
from support.leaks import State

from .fake_driver import Fake
from .test_sums import host, put, reduction, scaling

__all__ = ["rankfold"]

HERE = Path(__file__).parent
COLLECTIVES, COUNTING = HERE / "collectives.cu", HERE / "counting.cu"
OUTBOX = 64 * MiB
MEMORY = 64 * MiB
NOT_ASKED = "it has not answered yet"
Start = Callable[..., RunningJob]


# ---- a device ----


@pytest.fixture
def device(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A device that may have readers: other devices of the same GPU."""
    monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")
    with Device(hal="nvidia", memory=MEMORY) as made:
        yield made


def called(device: Device, entry: str, outbox: Any) -> str:
    """Why an entry of the HAL has refused; "": it has not."""
    text = ffi.new("char[256]")
    error = getattr(device.hal, entry)(device.handle, outbox, text, 256)
    words = ffi.string(text).decode()
    assert bool(error) == bool(words)
    return str(words)


@contextlib.contextmanager
def opened(device: Device) -> Iterator[tuple[int, int]]:
    """Where an outbox is for the one who writes there, and for the one who reads."""
    own = ffi.new("struct hal_outbox *")
    assert called(device, "outbox_create", own) == ""
    other = ffi.new("struct hal_outbox *", {"bytes": own.bytes, "fd": own.fd, "gpu": own.gpu})
    assert called(device, "outbox_open", other) == ""
    assert own.bytes == OUTBOX and other.addr not in (0, own.addr)
    os.close(own.fd)
    yield own.addr, other.addr
    device.hal.outbox_close(device.handle, own)
    device.hal.outbox_close(device.handle, other)


def copy(device: Device, dst: tuple[Any, int], src: tuple[Any, int], size: int) -> Any:
    work = ffi.new("struct hal_work *", {"kind": device.lib.HAL_COPY})
    for ref, place in ((work.copy.dst, dst), (work.copy.src, src)):
        ref.space, ref.addr = place
    work.copy.width = work.copy.dst_pitch = work.copy.src_pitch = size
    work.copy.height = 1
    return work


TYPES: dict[int, Any] = {
    0: np.int8,
    1: np.uint8,
    2: np.int32,
    3: np.uint32,
    4: np.int64,
    5: np.uint64,
}
TYPES |= {6: np.float16, 7: np.float32, 8: np.float64, 9: np.uint16}  # 9: bits of bfloat16


def bits(dtype: int, count: int, seed: int) -> Any:
    """Finite numbers whose sums are rounded."""
    kind = np.dtype(TYPES[dtype])
    raw = np.random.default_rng(seed).integers(0, 256, count * kind.itemsize, np.uint8)
    if dtype == 9:
        return raw.view(np.uint16) & 0x807F | 0x3F80
    if kind.kind == "f":
        return np.random.default_rng(seed).standard_normal(count).astype(kind)
    return raw.view(kind)


@pytest.mark.parametrize("dtype", TYPES)
def test_sums_of_what_another_device_has_left_have_the_hosts_bits(
    device: Device, dtype: int
) -> None:
    """An odd number of elements, over the ends of chunks: written to the outbox, read from it."""
    count = (2 * CHUNK + 24) // np.dtype(TYPES[dtype]).itemsize + 1
    a, b = bits(dtype, count, 1), bits(dtype, count, 2)
    wanted = np.zeros_like(a)
    device.run(reduction(device, host(wanted), host(a), host(b), count, dtype))
    device.run(scaling(device, host(wanted), host(wanted), count, dtype, 3))
    space, got = device.space(), np.zeros_like(a)
    space.alloc(512)
    own, theirs = put(space, a), put(space, b)
    with opened(device) as (written, read):
        at = (4096, CHUNK * 9 + 512)
        for place, data in zip(at, (own, host(b)), strict=True):
            device.run(copy(device, (ffi.NULL, written + place), data, a.nbytes))
        left, right = ((ffi.NULL, read + place) for place in at)
        target = ffi.NULL, written + CHUNK * 20
        device.run(reduction(device, target, left, right, count, dtype))
        device.run(scaling(device, target, target, count, dtype, 3))
        device.run(copy(device, host(got), (ffi.NULL, read + CHUNK * 20), a.nbytes))
        assert got.tobytes() == wanted.tobytes()
        device.run(reduction(device, own, left, theirs, count, dtype))
        device.run(scaling(device, own, own, count, dtype, 3))
        space.check()
        assert space.read(own[1], count, a.dtype).tobytes() == wanted.tobytes()


def test_memory_of_outboxes_is_counted_and_given_back(device: Device, fake: Fake) -> None:
    """One is there when the device is opened, for the first job; each job that has ended leaves
    what it was before, whichever side closes first."""
    at_first = device_bytes(fake)
    for _ in range(3):
        with opened(device), opened(device):
            assert device_bytes(fake) == at_first + 2 * OUTBOX
        assert device_bytes(fake) == at_first


def device_bytes(fake: Fake) -> int:
    free, total = fake.memory()
    return total - free


@pytest.mark.parametrize(
    ("call", "entry"),
    [
        ("cuMemExportToShareableHandle", "outbox_create"),
        ("cuMemMap", "outbox_create"),
        ("cuMemSetAccess", "outbox_create"),
        ("cuMemImportFromShareableHandle", "outbox_open"),
        ("cuMemMap", "outbox_open"),
        ("cuMemSetAccess", "outbox_open"),
    ],
)
def test_a_call_that_fails_leaves_nothing_and_may_be_repeated(
    device: Device, fake: Fake, call: str, entry: str
) -> None:
    files = len(os.listdir("/proc/self/fd"))
    own = ffi.new("struct hal_outbox *")
    if entry == "outbox_open":
        assert called(device, "outbox_create", own) == ""
    asked = ffi.new("struct hal_outbox *", {"bytes": OUTBOX, "fd": own.fd, "gpu": own.gpu})
    before, held = device_bytes(fake), len(os.listdir("/proc/self/fd"))
    for _ in range(200):  # more than there is place for
        fake.fail(call, 1, 801)
        assert "CUDA_ERROR_NOT_SUPPORTED (801)" in called(device, entry, asked)
    assert (device_bytes(fake), len(os.listdir("/proc/self/fd"))) == (before, held)
    assert called(device, entry, asked) == ""
    device.hal.outbox_close(device.handle, asked)
    if entry == "outbox_open":
        device.hal.outbox_close(device.handle, own)
        os.close(own.fd)
    else:
        os.close(asked.fd)
    assert len(os.listdir("/proc/self/fd")) == files


def test_memory_that_is_no_outbox_is_refused(device: Device) -> None:
    own = ffi.new("struct hal_outbox *")
    assert called(device, "outbox_create", own) == ""
    stranger = os.memfd_create("stranger")
    os.ftruncate(stranger, OUTBOX)
    asked = {"bytes": OUTBOX, "fd": own.fd, "gpu": own.gpu}
    for wrong, words in (
        ({"fd": stranger}, "cannot map the memory of GPU 0"),
        ({"gpu": b"another GPU     "}, "its GPU is not visible to the proxy of GPU 0"),
        ({"bytes": OUTBOX // 2}, "has another size"),
    ):
        assert words in called(device, "outbox_open", ffi.new("struct hal_outbox *", asked | wrong))
    os.close(stranger)
    os.close(own.fd)
    device.hal.outbox_close(device.handle, own)


def test_a_proxy_that_sees_one_gpu_needs_no_memory_for_others(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANKFOLD_NVIDIA_SHARE", raising=False)
    with Device(hal="nvidia", memory=MEMORY) as device:
        alone = device_bytes(fake)
        words = called(device, "outbox_create", ffi.new("struct hal_outbox *"))
        assert "this proxy sees no other GPU" in words
    monkeypatch.setenv("RANKFOLD_NVIDIA_SHARE", "1")
    with Device(hal="nvidia", memory=MEMORY):
        assert device_bytes(fake) == alone + OUTBOX


# ---- proxies ----


@pytest.fixture
def gpus(fake_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Three GPUs, each with a proxy. No driver may see a broken rule, or works of two
    processes on the same bytes that have no order; work there takes a moment."""
    faults = tmp_path / "faults"
    for name, value in {
        "RANKFOLD_CUDA_DRIVER": fake_path,
        "RANKFOLD_CUBLASLT": fake_path,
        "RANKFOLD_FAKE_DEVICES": 3,
        "RANKFOLD_FAKE_FAULTS": faults,
        "RANKFOLD_FAKE_SLOW_US": 300,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("RANKFOLD_NVIDIA_SHARE", raising=False)
    yield tmp_path
    assert not faults.exists() or faults.read_text() == ""


def report(fleet: Fleet, device: str, job: RunningJob) -> Message:
    found = [each for each in fleet.status(device)["jobs"] if each["job"] == job.name]
    assert found and found[-1]["state"] != "failed", found
    last: Message = found[-1]
    return last


def decided(fleet: Fleet, job: RunningJob) -> dict[str, Message] | None:
    """The reports of all of the job's devices, once each pair has its way."""
    reports = {device: report(fleet, device, job) for device in job.devices}
    for device, one in reports.items():
        for other, its in reports.items():
            if other == device:
                continue
            if one["indirect"].get(other) == NOT_ASKED:
                return None
            if (other not in one["indirect"]) != (device in its["readers"]):
                return None
    return reports


def start(
    fleet: Fleet, name: str, placement: list[int], us: int = 0, floats: tuple[str, ...] = ()
) -> RunningJob:
    """Ranks that begin when the file `name` exists in the fleet's folder. `floats`: that make
    all-reduces of so many only."""
    rounds = str(ROUNDS) if floats else "1"
    told = str(fleet.state.folder / name)
    command = [str(cuda.build(COLLECTIVES)), told, rounds, str(us), *floats]
    return fleet.start(name, command, placement, memory=MEMORY)


def begin(fleet: Fleet, job: RunningJob) -> dict[str, Message]:
    reports: dict[str, Message] = until(lambda: decided(fleet, job), what="each pair has its way")
    (fleet.state.folder / job.name).touch()
    return reports


def outputs(job: RunningJob) -> list[str]:
    assert job.wait() == [0] * job.world_size, [job.errors(r) for r in range(job.world_size)]
    return [job.output(rank) for rank in range(job.world_size)]


def sent(fleet: Fleet, job: RunningJob) -> tuple[int, int]:
    """Bytes that the job's devices have left for others: in their own memory, in the host's."""
    reports = [report(fleet, device, job) for device in job.devices]
    return sum(r["direct"] for r in reports), sum(r["through_host"] for r in reports)


PLACEMENT = [0, 1, 2, 1]
ROUNDS = 5
ALL = ",".join(f"{a}:{b}" for a in range(3) for b in range(3))


_known: list[str] = []


@pytest.fixture
def wanted(gpus: Path, state: State, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of the ranks where no GPU reaches another one's memory."""
    if _known:
        return _known
    monkeypatch.setenv("RANKFOLD_FAKE_NO_PEERS", ALL)
    with Fleet(state, memory=MEMORY, kinds=("nvidia",) * 3) as fleet:
        job = start(fleet, "through-host", PLACEMENT)
        reports = begin(fleet, job)
        lines = outputs(job)
        direct, through_host = sent(fleet, job)
    words = "GPU 0 cannot access the memory of GPU 2"
    assert reports["local/nvidia-0"]["indirect"]["local/nvidia-2"] == words
    assert direct == 0 and through_host > 10 * MiB
    assert lines[0].count("\n") > 150
    monkeypatch.delenv("RANKFOLD_FAKE_NO_PEERS")
    _known.extend(lines)
    return lines


def test_all_collectives_have_the_same_bits_and_none_goes_through_the_host(
    wanted: list[str], state: State
) -> None:
    with Fleet(state, memory=MEMORY, kinds=("nvidia",) * 3) as fleet:
        job = start(fleet, "direct", PLACEMENT)
        reports = begin(fleet, job)
        assert outputs(job) == wanted
        assert all(not each["indirect"] for each in reports.values())
        direct, through_host = sent(fleet, job)
        assert direct > 10 * MiB and through_host == 0


@pytest.mark.parametrize("gpus_of_job", [2, 3])
def test_bytes_of_an_all_reduce_through_host_memory(
    gpus: Path, state: State, monkeypatch: pytest.MonkeyPatch, gpus_of_job: int
) -> None:
    """For each element, all of n GPUs but one leave a partial sum, and that one leaves the result:
    n times the data. All of it is written to host memory, and read there, where no GPU reaches
    another one's; none is where all do."""
    floats, ranks = 1_000_000, list(range(gpus_of_job))
    found: list[tuple[int, int]] = []
    for peers in (ALL, "none"):
        monkeypatch.setenv("RANKFOLD_FAKE_NO_PEERS", peers)
        with Fleet(state, memory=MEMORY, kinds=("nvidia",) * 3) as fleet:
            job = start(fleet, f"peers-{len(found)}", ranks, floats=(str(floats),))
            begin(fleet, job)
            outputs(job)
            found.append(sent(fleet, job))
    every = gpus_of_job * floats * 4 * ROUNDS
    assert found == [(0, every), (every, 0)]


@pytest.mark.usual("one way", "refused import")
@pytest.mark.parametrize(
    ("name", "value", "indirect"),
    [
        # 0 does not reach 1, but the other way round it does.
        ("RANKFOLD_FAKE_NO_PEERS", "0:1", {(0, 1)}),
        # The first call fails in each process: for one of two others, or for its own memory.
        ("RANKFOLD_FAKE_FAIL", "cuMemImportFromShareableHandle:1:999", None),
        ("RANKFOLD_FAKE_FAIL", "cuMemExportToShareableHandle:1:801", None),
    ],
    ids=["one way", "refused import", "refused export"],
)
def test_a_pair_of_gpus_without_access_uses_host_memory(
    wanted: list[str],
    state: State,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    indirect: set[tuple[int, int]] | None,
) -> None:
    """The others do not; and the reason is in the status and in the log."""
    monkeypatch.setenv(name, value)
    with Fleet(state, memory=MEMORY, kinds=("nvidia",) * 3) as fleet:
        job = start(fleet, "mixed", PLACEMENT)
        reports = begin(fleet, job)
        assert outputs(job) == wanted
        direct, through_host = sent(fleet, job)
        logs = [log.read_text() for log in sorted((state.path / "proxies").glob("*.log"))]
    assert direct > MiB and through_host > MiB
    found = {
        (fleet.names.index(device), fleet.names.index(other)): why
        for device, one in reports.items()
        for other, why in one["indirect"].items()
    }
    assert len(found) == 3 if indirect is None else set(found) == indirect
    for (device, other), why in found.items():
        words = f"{fleet.names[other]} is read through host memory: {why}"
        assert words in logs[device] and "GPU" in why


def test_a_software_gpu_and_a_gpu_use_host_memory(gpus: Path, state: State) -> None:
    with Fleet(state, memory=MEMORY, kinds=("nvidia", "soft")) as fleet:
        job = start(fleet, "kinds", [0, 1])
        until(lambda: report(fleet, "local/nvidia-0", job)["indirect"]["local/soft-1"] != NOT_ASKED)
        (state.folder / "kinds").touch()
        outputs(job)
        assert sent(fleet, job)[0] == 0
        words = "devices of type soft have no memory that others read directly"
        assert report(fleet, "local/nvidia-0", job)["indirect"] == {"local/soft-1": words}
        assert report(fleet, "local/soft-1", job)["indirect"] == {}


def held(fleet: Fleet) -> list[tuple[int, int]]:
    """How many outboxes each proxy has mapped, and has descriptors of. One, which is not mapped, is
    for the next job."""
    found = []
    for process in fleet.processes.values():
        if process.poll() is not None:
            continue
        folder = Path(f"/proc/{process.pid}")
        maps = {
            line.split()[0]
            for line in (folder / "maps").read_text().splitlines()
            if "-shared" in line
        }
        links = []
        for each in (folder / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                links.append(os.readlink(each))
        found.append((len(maps), sum("-shared" in link for link in links)))
    return found


def test_jobs_that_meet_on_the_same_gpus_do_not_meet_in_memory(
    wanted: list[str], state: State
) -> None:
    """Two at a time, with the same numbers; when they have ended nothing of them is left."""
    with Fleet(state, memory=3 * MEMORY, kinds=("nvidia",) * 3) as fleet:
        jobs = [start(fleet, f"job{n}", PLACEMENT) for n in range(2)]
        for job in jobs:
            until(lambda: decided(fleet, job))  # noqa: B023
        assert {mapped for mapped, _ in held(fleet)} == {6}
        for job in jobs:
            begin(fleet, job)
        for job in jobs:
            assert outputs(job) == wanted
        for job in jobs:
            job.detach(discard=True)
        assert held(fleet) == [(0, 1)] * 3


@pytest.mark.slow
def test_a_job_that_moves_takes_nothing_with_it(wanted: list[str], state: State) -> None:
    """It is saved at a cut, continues, is folded, and spread again, with memory for fewer ranks
    than there are: its outboxes are new ones, and hold nothing of before."""
    with Fleet(state, memory=12 * MiB, kinds=("nvidia",) * 3) as fleet:
        job = start(fleet, "moved", PLACEMENT, us=2000)
        begin(fleet, job)
        lines, swapped = job.output(0).count("\n"), 0
        for placement in ([0, 0, 1, 1], [2, 2, 2, 2], [0, 1, 2, 2], PLACEMENT):
            until(lambda: job.output(0).count("\n") >= lines + 10 or is_over(job))  # noqa: B023
            if is_over(job):
                break
            job.stop()
            job.save()
            job.continue_running()
            job.move([fleet.names[p] for p in placement])
            lines = job.output(0).count("\n")
            swapped += fleet.status(fleet.names[2])["swap"]
        assert job.epoch >= 3, "it has not moved"
        assert outputs(job) == wanted
        assert swapped > 0
        job.detach(discard=True)
        assert held(fleet) == [(0, 1)] * 3


def is_over(job: RunningJob) -> bool:
    return any(job.exit_status(rank) is not None for rank in range(job.world_size))


@pytest.mark.slow
def test_a_proxy_that_is_killed_fails_its_jobs_and_no_other(
    wanted: list[str], state: State
) -> None:
    """In the middle of collectives: the ranks elsewhere print nothing that is wrong, and the other
    proxies let go of its memory with the job."""
    with Fleet(state, memory=3 * MEMORY, kinds=("nvidia",) * 3) as fleet:
        job, other = start(fleet, "killed", [0, 1, 2, 0]), start(fleet, "other", [0, 2, 0, 2])
        begin(fleet, job)
        begin(fleet, other)
        until(lambda: job.output(0).count("\n") >= 20)
        os.kill(fleet.processes["local/nvidia-1"].pid, signal.SIGKILL)
        fleet.processes["local/nvidia-1"].wait()
        reply = job.request("local/nvidia-0", "wait", states=["failed"], within_s=60)
        assert reply["state"] == "failed" and "local/nvidia-1 was lost" in reply["reason"]
        assert outputs(other) == wanted
        for rank in range(4):
            printed = job.output(rank)
            assert wanted[rank].startswith(printed[: printed.rindex("\n") + 1])
        for device in ("local/nvidia-0", "local/nvidia-2"):
            job.request(device, "detach", discard=True)
        other.detach(discard=True)
        assert held(fleet) == [(0, 1)] * 2
        with contextlib.suppress(ControlError):
            fleet.start_proxy("local/nvidia-1")
            until(lambda: fleet.answers("local/nvidia-1"))
        again = start(fleet, "again", PLACEMENT)
        begin(fleet, again)
        assert outputs(again) == wanted


POOL = """\
apiVersion: rankfold/v1alpha1
kind: Pool
metadata: {name: local}
spec:
  devices:
    - {type: nvidia, count: 2, memory: 64MiB}
"""


@pytest.mark.slow
def test_people_see_how_collectives_go(
    gpus: Path, monkeypatch: pytest.MonkeyPatch, rankfold: Rankfold
) -> None:
    """One of two ways goes through host memory: `describe` says which one, and why."""
    rankfold.environment["RANKFOLD_FAKE_NO_PEERS"] = "0:1"
    specs = Specs(rankfold.state.folder / "specs")
    specs.write("pool.yaml", POOL)
    told = specs.folder / "go-on"
    command = [str(cuda.build(COLLECTIVES)), str(told), "100000", "1000", "100000"]
    specs.program(command, "job", gpus=2, ranks=2)
    rankfold("apply", "-f", str(specs.folder), "--wait")
    way, why = ("local/nvidia-1", "local/nvidia-0"), "GPU 0 cannot access the memory of GPU 1"
    pair = [{"from": way[0], "to": way[1], "reason": why}]

    def shown() -> Any:
        return rankfold.job("job").get("collectives") or {"directBytes": 0, "hostBytes": 0}

    rankfold.until(lambda: shown().get("throughHost") == pair)
    told.touch()
    rankfold.until(lambda: shown()["directBytes"] > MiB and shown()["hostBytes"] > MiB)
    lines = rankfold("describe", "job").splitlines()
    assert f"              from {way[0]} to {way[1]} through host memory: {why}" in lines
    said = next(line for line in lines if line.startswith("collectives:"))
    assert said.endswith(" MiB through host memory since it was placed") and "GPU to GPU" in said
    rankfold("cancel", "job", "--override")
    rankfold.until(lambda: rankfold.job("job")["phase"] == "Failed")
