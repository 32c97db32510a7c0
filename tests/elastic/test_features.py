"""Each use of DistributedDataParallel keeps its meaning, in any number of processes and when the
number changes."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest

from elastic.conftest import Python

pytestmark = pytest.mark.torch
HERE = Path(__file__).parent
SCRIPT = HERE / "features.py"
WORLD = 3
EVERY = 2  # steps between saved states

# Begins a script that measures the memory in use, in copies of its parameters.
USED = """
import ctypes, torch, torch.distributed as dist, rankfold.elastic as elastic
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
class Info(ctypes.Structure):
    names = 'arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks'
    _fields_ = [(name, ctypes.c_size_t) for name in [*names.split(), 'keepcost']]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
def used():
    info = libc.mallinfo2()
    return (info.uordblks + info.hblkhd) / (2048 * 2049 * 4)
"""

RUN = ("-m", "rankfold.elastic", "run", "--world", WORLD)


def output(folder: Path) -> dict[str, str]:
    return {each.name: each.read_text() for each in sorted(folder.glob("rank-*.*"))}


@pytest.fixture(scope="session")
def stock(python: Python, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("stock")
    done = python(HERE / "stock.py", WORLD, folder, SCRIPT)
    assert (done.returncode, done.stderr) == (0, ""), output(folder)
    return output(folder)


@pytest.mark.parametrize(
    "processes",
    [
        "--processes=1",
        "--processes=2",
        "--schedule=0:2,1:1,3:3,7:2,8:3,15:1,19:2,21:1,27:3,32:2,38:1,40:2,45:1,46:3,52:1,55:2,60:1,65:2,68:3,70:1,72:2,77:1",
    ],
)
def test_features_have_the_output_of_stock_processes(
    python: Python, stock: dict[str, str], tmp_path: Path, processes: str
) -> None:
    done = python(*RUN, processes, "--state", tmp_path, SCRIPT)
    found = output(tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), found
    for name, text in stock.items():
        assert found[name].splitlines() == text.splitlines(), name


def test_a_run_keeps_the_script_that_it_began_with(python: Python, tmp_path: Path) -> None:
    """The file is edited for the next run."""
    script = tmp_path / "train.py"
    shutil.copy(HERE / "edited.py", script)
    done = python(*RUN, "--schedule=0:1,3:2", "--state", tmp_path, script)
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path)
    assert script.read_text() == "raise SystemExit(7)\n"
    assert [output(tmp_path)[f"rank-{rank}.out"] for rank in range(WORLD)] == ["trained\n"] * 3


def test_a_run_keeps_the_modules_of_its_script(python: Python, tmp_path: Path) -> None:
    """One is edited. Processes that begin later import what the others have, or would have."""
    folder = tmp_path / "scripts"
    (folder / "parts").mkdir(parents=True)
    imported = "from parts import one\n"
    text = (HERE / "edited.py").read_text()
    text = text.replace(
        '__file__).write_text("raise SystemExit(7)\\n")', "one.__file__).write_text('2')"
    )
    (folder / "train.py").write_text(imported + text.replace('"trained"', "one.TEXT"))
    module = folder / "parts/one.py"
    module.write_text("TEXT = 'kept'\n")
    command = (*RUN, "--schedule=0:1,3:2", "--state", tmp_path / "state", folder / "train.py")
    done = python(*command)
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path / "state")
    assert module.read_text() == "2"
    assert [output(tmp_path / "state")[f"rank-{rank}.out"] for rank in range(3)] == ["kept\n"] * 3
    assert list(folder.rglob("*.pyc")) == []
    module.write_text("TEXT = 'next'\n")
    (folder / "train.py").write_text(imported + "print(one.TEXT)\n")
    assert python(*command).returncode == 0
    assert output(tmp_path / "state")["rank-2.out"] == "next\n"


def test_output_of_libraries_and_programs_is_in_the_log_of_its_worker(
    python: Python, tmp_path: Path
) -> None:
    done = python(*RUN, "--schedule=0:1,2:2", "--state", tmp_path, HERE / "written.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), output(tmp_path)
    for rank in range(WORLD):
        words = ("prints", "writes", "echoes")
        lines = [f"{word} {rank} {step}" for step in range(4) for word in words]
        assert output(tmp_path)[f"rank-{rank}.out"].splitlines() == ["begins", *lines]
        errors = output(tmp_path)[f"rank-{rank}.err"].splitlines()
        assert errors == [f"ends {rank} {step}" for step in range(4)]


@pytest.mark.parametrize("processes", ["--processes=1", "--processes=2", "--schedule=0:2,1:1"])
def test_a_worker_has_what_a_process_has_once(
    python: Python, tmp_path: Path, processes: str
) -> None:
    """The current folder, also of data workers, and sys.stdout, which it may replace or close."""
    (tmp_path / "stock").mkdir()
    script = (HERE / "own_process.py", tmp_path / "folders")
    done = python(HERE / "stock.py", WORLD, tmp_path / "stock", *script)
    expected = output(tmp_path / "stock")
    assert (done.returncode, done.stderr) == (0, ""), expected
    done = python(*RUN, processes, "--state", tmp_path / "state", *script)
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path / "state")
    assert output(tmp_path / "state") == expected
    assert "step of 2 2" in expected["rank-2.out"] and "udcff" in expected["rank-2.err"]


def test_pinned_batches_are_those_of_stock_processes(python: Python, tmp_path: Path) -> None:
    (tmp_path / "stock").mkdir()
    done = python(HERE / "stock.py", WORLD, tmp_path / "stock", HERE / "pinned.py")
    expected = output(tmp_path / "stock")
    assert (done.returncode, done.stderr) == (0, ""), expected
    assert "1 [4, 5] False\n[0, 1] True\n" in expected["rank-2.out"]
    done = python(*RUN, "--processes=2", "--state", tmp_path / "state", HERE / "pinned.py")
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path / "state")
    assert output(tmp_path / "state") == expected


def test_workers_of_a_process_share_one_heap(python: Python, tmp_path: Path) -> None:
    """Memory that one has freed is used by the next. glibc lists its heaps as XML."""
    script = tmp_path / "heaps.py"
    script.write_text(
        "import ctypes, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "kept = torch.ones(1000)\n"
        "dist.barrier()\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.fopen.restype = ctypes.c_void_p\n"
        f"file = libc.fopen(b'{tmp_path}/heaps', b'w')\n"
        "libc.malloc_info(0, ctypes.c_void_p(file))\n"
        "libc.fclose(ctypes.c_void_p(file))\n"
        "dist.barrier()\n"
    )
    done = python(*RUN, "--processes=1", "--state", tmp_path / "state", script)
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path / "state")
    assert (tmp_path / "heaps").read_text().count("<heap ") == 1


def test_workers_have_one_copy_of_the_parameters_once_they_are_wrapped(
    python: Python, tmp_path: Path
) -> None:
    """DistributedDataParallel's constructor broadcasts copies. When it has returned in the last
    worker, in use are each worker's parameters and buckets, and one such copy; then one copy of the
    parameters, and buckets."""
    script = tmp_path / "memory.py"
    script.write_text(
        USED + "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "before = used()\n"
        "dist.barrier()\n"
        "model = DDP(torch.nn.Linear(2048, 2048))\n"
        "print(used() - before)\n"
        "elastic.wrap(model, torch.optim.SGD(model.parameters(), 0.1))\n"
        "print(used() - before)\n"
    )
    done = python(*RUN, "--processes=1", "--state", tmp_path / "state", script)
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path / "state")
    lines = [output(tmp_path / "state")[f"rank-{rank}.out"] for rank in range(WORLD)]
    made, wrapped = zip(*[map(float, line.split()) for line in lines], strict=True)
    assert max(made) < WORLD + WORLD + 1 + 0.5, lines
    assert max(wrapped) < 1 + WORLD + 0.5, lines


def test_waiting_workers_have_one_copy_of_their_gradients(python: Python, tmp_path: Path) -> None:
    """The memory in use, in copies of the parameters, when a worker's backward pass has returned:
    parameters, each worker's gradients or buckets, one sum, and this worker's gradients. Between
    two steps, parameters and gradients."""
    script = tmp_path / "memory.py"
    script.write_text(
        USED + "dist.init_process_group('gloo')\n"
        "dist.barrier()\n"
        "before = used()\n"
        "dist.barrier()\n"
        "model = DDP(torch.nn.Linear(2048, 2048))\n"
        "opt = torch.optim.SGD(model.parameters(), 0.1)\n"
        "elastic.wrap(model, opt)\n"
        "for x in elastic.steps(DataLoader([torch.ones(2048)] * 5)):\n"
        "    opt.zero_grad()\n"
        "    model(x).sum().backward()\n"
        "    passed = used() - before\n"
        "    opt.step()\n"
        "    print(passed, used() - before)\n"
    )
    done = python(*RUN[:3], "--world=6", "--state", tmp_path / "state", script)
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path / "state")
    for rank in range(6):
        lines = output(tmp_path / "state")[f"rank-{rank}.out"].splitlines()[1:]
        passed, stepped = zip(*[map(float, line.split()) for line in lines], strict=True)
        assert max(passed) < 1 + 6 + 1 + 1 + 0.5, lines
        assert max(stepped) < 1 + 6 + 0.5, lines


def test_a_worker_alone_in_its_process_keeps_memory_for_its_next_step(
    python: Python, tmp_path: Path
) -> None:
    """Each round uses 84 MB: 20,000 pages, which would be new ones each time. In the first rounds
    some are, depending on where small blocks are."""
    script = tmp_path / "faults.py"
    script.write_text(
        "import resource, torch\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "def work(): return sum(each.sum() for each in [torch.ones(7 << 20) for _ in range(3)])\n"
        "for _ in range(4): work()\n"
        "before = faults()\n"
        "for _ in range(8): work()\n"
        "print(faults() - before)\n"
    )
    done = python(*RUN, f"--processes={WORLD}", "--state", tmp_path / "state", script)
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path / "state")
    assert int(output(tmp_path / "state")["rank-0.out"]) < 2 * 20_000


def test_a_run_leaves_no_temporary_files(python: Python, tmp_path: Path) -> None:
    """Data processes have sockets there, and are killed when the number of processes changes."""
    with tempfile.TemporaryDirectory(prefix="rf-") as temporary:  # sockets need a short path
        command = (*RUN, "--schedule", "0:2,7:1,15:3", "--state", tmp_path / "state", SCRIPT)
        done = python(*command, TMPDIR=temporary)
        assert (done.returncode, done.stderr) == (0, "")
        assert list(Path(temporary).iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_362_changes_of_the_number_of_processes_change_no_bit(
    python: Python, tmp_path: Path
) -> None:
    """As many as EasyScale counts in a day. A descriptor that each change leaked would exceed the
    limit of open files."""
    folder, state = tmp_path / "stock", tmp_path / "state"
    folder.mkdir()
    long = {"EPOCHS": "16"}
    assert python(HERE / "stock.py", WORLD, folder, SCRIPT, **long).returncode == 0
    draw = random.Random(40)
    counts = [3]
    while len(counts) <= 362:
        counts.append(draw.choice([each for each in (1, 2, 3) if each != counts[-1]]))
    steps = [0, *sorted(draw.sample(range(1, 10 * 16 * 3), 362))]
    pairs = zip(steps, counts, strict=True)
    schedule = ",".join(f"{step}:{count}" for step, count in pairs)
    command = (*RUN, "--schedule", schedule, "--state", state, SCRIPT)
    done = python(*command, **long, LIMIT_S="1500", LIMIT_NOFILE="128")
    assert (done.returncode, done.stderr) == (0, "")
    assert output(state) == output(folder)


def test_a_killed_process_costs_at_most_the_interval(
    python: Python, stock: dict[str, str], tmp_path: Path
) -> None:
    options = ("--processes=2", f"--checkpoint-every={EVERY}", "--state", tmp_path)
    killed = {"KILL": "persistent 1 1 2", "KILLED": str(tmp_path / "killed")}
    made = tmp_path / "made"
    done = python(*RUN, *options, SCRIPT, **killed, MADE=str(made))
    assert done.returncode == 0, output(tmp_path)
    assert "(ranks 1, 2) was killed by signal 9" in done.stderr
    assert "continuing from step 46\n" in done.stderr  # seven features, then the fifth step
    steps = made.read_text().splitlines()
    for rank in range(WORLD):
        own = [step for step in steps if step.endswith(f" {rank}")]
        assert 1 <= len(own) - len({*own}) <= EVERY, "steps that were repeated"
    assert output(tmp_path) == stock


def test_a_killed_run_continues_in_other_processes(
    python: Python, stock: dict[str, str], tmp_path: Path
) -> None:
    """It is not overwritten by a run that does not ask for it."""
    options = ("--checkpoint-every=5", "--state", tmp_path)
    killed = {"KILL": "groups 0 2 0", "KILL_PARENT": "1", "KILLED": str(tmp_path / "killed")}
    assert python(*RUN, "--processes=3", *options, SCRIPT, **killed).returncode == -9
    done = python(*RUN, *options, SCRIPT)
    assert done.returncode == 2
    # The state before it may not have been removed yet.
    saved = max(tmp_path.glob("states/step-*"), key=lambda folder: int(folder.name[5:]))
    assert f"{saved} is the saved state of a run: pass --resume, or remove it" in done.stderr
    done = python("-m", "rankfold.elastic", "run", "--world=4", "--resume", *options, SCRIPT)
    assert "the saved state has a world of 3, not of 4" in done.stderr
    damaged = saved / "rank-1.pt"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-9] + b"\0" + content[-8:])
    done = python(*RUN, "--resume", *options, SCRIPT)
    assert done.returncode == 2
    assert f"{damaged} is missing or damaged" in done.stderr
    damaged.write_bytes(content)
    # Other instructions give other bits. (This variable comes too late for PyTorch here.)
    done = python(*RUN, "--resume", *options, SCRIPT, MKL_CBWR="COMPATIBLE")
    assert done.returncode == 1
    errors = output(tmp_path)["rank-0.err"]
    assert "state saved on another type of CPU" in errors and "MKL_CBWR=COMPATIBLE" in errors
    done = python(*RUN, "--resume", "--processes=2", *options, SCRIPT)
    assert (done.returncode, done.stderr) == (0, ""), output(tmp_path)
    assert output(tmp_path) == stock
    assert not (tmp_path / "states").exists(), "a finished run needs no state"
