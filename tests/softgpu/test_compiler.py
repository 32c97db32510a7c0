"""The object cache and the compiler process: damage, death and bad input."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import zstandard

from rankfold import control, paths
from rankfold.paths import REPOSITORY
from rankfold.proxy.hal.soft.compiler import cache, divergence, flow
from rankfold.proxy.hal.soft.compiler import objects as versions
from rankfold.proxy.hal.soft.compiler.objects import kernel_source, key_of
from rankfold.proxy.hal.soft.modules import Loader, compiler_socket, open_loader
from rankfold.proxy.ptx import fatbin
from rankfold.proxy.ptx.arithmetic import Use
from rankfold.proxy.ptx.errors import UNKNOWN, ModuleError
from rankfold.proxy.ptx.info import Access
from rankfold.proxy.ptx.module import find, parse_module
from rankfold.proxy.ptx.sets import sets_of
from softgpu import crowded
from softgpu.harness import Device, stop_compiler
from support.patience import scaled


def text(name: str = "add_one", body: str = "add.u32 %r0, %r0, 1;") -> str:
    return f""".version 8.0
.target sm_75
.address_size 64
.visible .entry {name}(.param .u64 p)
{{
    .reg .b32 %r<2>; .reg .b64 %rd<2>; .reg .pred %p0;
    ld.param.u64 %rd0, [p];
    ld.global.u32 %r0, [%rd0];
    {body}
    st.global.u32 [%rd0], %r0;
    ret;
}}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rf-") as name:
        yield Path(name)


@pytest.fixture
def made(folder: Path) -> Iterator[list[Loader]]:
    """Loaders by need; the compiler is stopped at the end."""
    loaders: list[Loader] = []
    yield loaders
    for each in loaders:
        stop_compiler(each)


def new(made: list[Loader], folder: Path) -> Loader:
    made.append(
        Loader(paths.native("lib/librankfold-proxy.so"), folder / "cache", folder / "s", (7, 5))
    )
    return made[-1]


def result(loader: Loader, source: str, name: str = "add_one") -> int:
    function = loader.function(loader.module(source.encode(), 1), name)
    with Device() as device:
        space = device.space()
        at = space.put(np.array([41], np.uint32))
        space.launch(function, 1, 1, at)
        space.check()
        return int(space.read(at, 1, np.uint32)[0])


def compiled(folder: Path) -> int:
    return int(control.call(folder / "s", "status")["compiled"])


def objects(folder: Path) -> list[Path]:
    return sorted((folder / "cache").rglob("*.rfobj"))


def test_access_sets_are_stored_with_the_object(made: list[Loader], folder: Path) -> None:
    body = "mov.u32 %r0, %smid; ld.global.u32 %r1, [second+4]; red.global.add.u32 [first], %r1;"
    variables = ".global .u32 first; .global .u32 second[3]; .visible"
    source = text(body=body).replace(".visible", variables)
    seen = []
    for _ in range(2):  # compiled; found
        loader = new(made, folder)
        module = loader.module(source.encode(), 1)
        function = loader.function(module, "add_one")
        assert function.sets == sets_of(module.ptx, module.ptx.functions["add_one"], True)
        seen.append((function.sets, function.variables))
    assert seen[0] == seen[1]
    sets, places = seen[0]
    assert sets.why_open == "it reads %smid: mov.u32 %r0, %smid"
    assert sets.words == ((0, Use.READ | Use.WRITTEN),)
    at = {g.name: g.offset for g in module.globals}
    assert places == (
        Access(at["first"], 4, Use.READ | Use.WRITTEN | Use.ATOMIC, 0),
        Access(at["second"], 12, Use.READ, 0),
    )


def test_compiled_once_for_all(made: list[Loader], folder: Path) -> None:
    assert result(new(made, folder), text()) == 42
    assert compiled(folder) == 1 and len(objects(folder)) == 1
    assert result(new(made, folder), text() + "// a comment\n") == 42
    assert compiled(folder) == 1
    assert result(new(made, folder), text(body="add.u32 %r0, %r0, 2;")) == 43
    assert compiled(folder) == 2


def test_a_broken_kernel_fails_alone(made: list[Loader], folder: Path) -> None:
    """It fails when it is needed, with its name; the module's other kernels run."""
    bodies = {f"k{i}": f"add.u32 %r0, %r0, {i};" for i in range(50)}
    bodies["broken"] = "st.global.u32 [%rd0], %q;"
    parts = [text(name, body) for name, body in bodies.items()]
    head, mark, _ = parts[0].partition(".address_size 64")
    source = head + mark + "".join(part.partition(mark)[2] for part in parts)
    loader = new(made, folder)
    assert result(loader, source, "k7") == 48
    with pytest.raises(ModuleError, match="%q"):
        loader.function(loader.module(source.encode(), 1), "broken")
    assert result(loader, source, "k9") == 50
    assert compiled(folder) == 3


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (
            "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%r0,%r0,%r0,%r0}, {%r0,%r0}, {%r0,%r0}, {%r0,%r0,%r0,%r0}, %r0, 0x0;",
            "mma.sp",
        ),
        ("multimem.red.relaxed.sys.global.add.u32 [%rd0], %r0;", "multimem"),
        ("no.such.instruction %r0;", "no.such"),
    ],
)
def test_a_refused_instruction_fails_only_its_kernel(
    made: list[Loader], folder: Path, refused: str, message: str
) -> None:
    head, mark, good = text().partition(".visible")
    source = head + mark + good + mark + text("refused", refused).partition(mark)[2]
    loader = new(made, folder)
    module = loader.module(source.encode(), 1)
    with pytest.raises(ModuleError, match=message) as caught:
        loader.function(module, "refused")
    assert "refused" in caught.value.message
    assert result(loader, source) == 42


def test_a_slow_compilation_is_logged_once(
    made: list[Loader],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("rankfold.proxy.hal.soft.modules.SLOW_S", 0.001)
    loader = new(made, folder)
    for name in ("first", "second"):  # each takes many times as long
        assert result(loader, text(name), name) == 42
    (line,) = [each for each in caplog.messages if "compiling" in each]
    assert line.startswith("kernel first has been compiling for 0.001 s; this device waits for 1 ")


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_object_is_compiled_again(made: list[Loader], folder: Path, damage: str) -> None:
    assert result(new(made, folder), text()) == 42
    (path,) = objects(folder)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1
    path.write_bytes(data if damage == "flip" else data[: len(data) // 2 if damage == "cut" else 0])
    assert result(new(made, folder), text()) == 42
    assert compiled(folder) == 2
    assert cache.load(folder / "cache", path.stem) is not None


def test_many_ask_for_the_same(made: list[Loader], folder: Path) -> None:
    loaders = [new(made, folder) for _ in range(4)]
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda each=each: results.append(result(each, text())))
        for each in loaders
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [42] * 4
    assert compiled(folder) == 1


def slow_source(count: int = 500) -> str:
    """Takes LLVM seconds."""
    lines = []
    for i in range(count):
        lines.append(f"mad.lo.u32 %r1, %r0, {i + 3}, %r1; xor.b32 %r0, %r0, %r1; @%p0 bra L{i};")
        lines.append(f"mul.hi.u32 %r0, %r1, %r0; L{i}: setp.lt.u32 %p0, %r0, %r1;")
    return text("slow", "\n".join(lines))


def test_a_stopped_compiler_is_logged(
    made: list[Loader],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for limit_s in ("SLOW_S", "SILENT_S"):
        monkeypatch.setattr(f"rankfold.proxy.hal.soft.modules.{limit_s}", 0.2)
    loader = new(made, folder)
    assert result(loader, text()) == 42
    pid = int(control.call(folder / "s", "status")["pid"])
    os.kill(pid, signal.SIGSTOP)
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(result(loader, text(body="add.u32 %r0, %r0, 7;")))
    )
    thread.start()
    said = f"the compiler (process {pid}) is unresponsive"
    limit = time.monotonic() + scaled(20)
    while said not in caplog.text and time.monotonic() < limit:
        thread.join(0.01)
    os.kill(pid, signal.SIGCONT)
    thread.join()
    assert said in caplog.text and f"`kill -CONT {pid}`" in caplog.text
    assert found == [48]


def test_killed_in_mid_compile(made: list[Loader], folder: Path) -> None:
    loader = new(made, folder)
    assert result(loader, text()) == 42
    first = control.call(folder / "s", "status")["pid"]
    failed: list[BaseException] = []

    def compile_slow() -> None:
        try:
            loader.function(loader.module(slow_source().encode(), 1), "slow")
        except ModuleError as error:
            failed.append(error)

    thread = threading.Thread(target=compile_slow)
    thread.start()
    while not control.call(folder / "s", "status")["running"]:
        assert thread.is_alive(), "the compilation was over before it could be killed"
    os.kill(first, signal.SIGKILL)
    # While the first is being compiled again, a second loader is served by the new process.
    assert result(new(made, folder), text(body="add.u32 %r0, %r0, 5;")) == 46
    assert control.call(folder / "s", "status")["pid"] != first
    thread.join()
    assert not failed


def test_a_compilation_that_dies_is_its_kernels_error(made: list[Loader], folder: Path) -> None:
    loader = new(made, folder)
    assert result(loader, text()) == 42
    failed: list[ModuleError] = []

    def compile_slow() -> None:
        try:
            loader.function(loader.module(slow_source(501).encode(), 1), "slow")
        except ModuleError as error:
            failed.append(error)

    thread = threading.Thread(target=compile_slow)
    thread.start()
    running: list[int] = []
    while not running:
        running = control.call(folder / "s", "status")["running"]
        assert thread.is_alive(), "the compilation was over before it could be killed"
    os.kill(running[0], signal.SIGSEGV)
    thread.join()
    assert failed[0].code == UNKNOWN
    assert failed[0].message == "kernel slow: its compilation was killed by signal 11"
    assert result(loader, text(body="add.u32 %r0, %r0, 7;")) == 48


def test_a_compilation_without_end_is_its_kernels_error(made: list[Loader], folder: Path) -> None:
    """The processor time that it has used counts."""
    server = [sys.executable, "-m", "rankfold.proxy.hal.soft.compiler.server"]
    places: list[str | Path] = ["--socket", folder / "s", "--cache", folder / "cache"]
    with subprocess.Popen([*server, *places, "--time-limit", "3", "--idle", "60"]) as compiler:
        while not (folder / "s").exists():
            assert compiler.poll() is None
        try:
            loader = new(made, folder)
            with pytest.raises(ModuleError, match="its compilation timed out after 3 s") as caught:
                loader.function(loader.module(slow_source(5000).encode(), 1), "slow")
            assert caught.value.code == UNKNOWN
            assert result(loader, text()) == 42
        finally:
            compiler.terminate()


def test_closing_ends_a_wait_for_a_stopped_compiler(made: list[Loader], folder: Path) -> None:
    """Otherwise the proxy that exits would wait, and hold its device, for half an hour."""
    loader = new(made, folder)
    assert result(loader, text()) == 42
    compiler = control.call(folder / "s", "status")["pid"]
    failed: list[ModuleError] = []

    def compile_more() -> None:
        with pytest.raises(ModuleError) as error:
            loader.function(loader.module(text("more").encode(), 1), "more")
        failed.append(error.value)

    waiting = threading.Thread(target=compile_more)
    os.kill(compiler, signal.SIGSTOP)
    try:
        waiting.start()
        while not loader.busy and waiting.is_alive():
            time.sleep(0.001)
        loader.close()
        waiting.join()
    finally:
        os.kill(compiler, signal.SIGCONT)
    assert "kernel more: the compiler process" in failed[0].message


def test_a_compiler_of_another_version_disturbs_no_process(
    made: list[Loader], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves proxies that were started before rankfold was changed, in the same fleet."""
    monkeypatch.setenv("RANKFOLD_RUNTIME", str(folder / "run"))
    with monkeypatch.context() as before:
        before.setattr(versions, "version", lambda: "0" * 64)
        socket = compiler_socket(folder)
    code = (
        "from rankfold.proxy.hal.soft.compiler import objects, server\n"
        "objects.version = lambda: '0' * 64\n"
        "server.main()"
    )
    options: list[str | Path] = ["--socket", socket, "--cache", folder / "cache"]
    options += ["--idle", str(scaled(60))]  # it must still run at the end
    with subprocess.Popen([sys.executable, "-c", code, *options]) as other:
        while not socket.exists():
            assert other.poll() is None
        made.append(open_loader(folder, (7, 5)))
        assert result(made[-1], text()) == 42
        assert control.call(socket, "status")["compiled"] == 0
        other.terminate()


def test_errors_have_the_drivers_numbers(made: list[Loader], folder: Path) -> None:
    loader = new(made, folder)
    module = loader.module(text().encode(), 1)
    for action, code in (
        (lambda: loader.function(module, "nothing"), 500),
        (lambda: loader.module(b"hello", 1), 218),
        (lambda: loader.module(b"\x7fELF" + bytes(100), 0), 209),
        (lambda: loader.module(b"\x50\xed\x55\xba" + bytes(12), 0), 200),
        (lambda: loader.module(fatbinary(), 0), 209),
        (
            lambda: loader.function(
                loader.module(text(body="st.global.u32 [%rd0], %q;").encode(), 1), "add_one"
            ),
            801,
        ),
        (
            lambda: loader.function(
                loader.module(text(body="bra NOWHERE;").encode(), 1), "add_one"
            ),
            218,
        ),
    ):
        with pytest.raises(ModuleError) as caught:
            action()
        assert caught.value.code == code, caught.value.message


def test_only_what_a_kernel_depends_on_is_in_its_key() -> None:
    two = text() + text("other").split(".address_size 64")[1]
    one = parse_module(text())
    both = parse_module(two)
    assert kernel_source(one, "add_one") == kernel_source(both, "add_one")
    assert key_of("x", "a") != key_of("x", "b")


# ---- fatbins ----------------------------------------------------------------------------------


def entry(kind: int, arch: int, payload: bytes, flags: int = 0, size: int = 0) -> bytes:
    header = 80 if kind == 1 else 64
    padded = payload + bytes(-len(payload) % 8)
    packed = struct.pack(
        "<HHIQIIHHIIIQQQ",
        kind,
        0x101,
        header,
        len(padded),
        len(payload) if flags else 0,
        0,
        0,
        9,
        arch,
        0,
        0,
        flags,
        0,
        size,
    )
    return packed.ljust(header, b"\0") + padded


def fatbinary(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack("<IHHQ", fatbin.MAGIC, 1, 16, len(body)) + body


def lz4_literals(data: bytes) -> bytes:
    """An LZ4 block of literals only."""
    assert len(data) >= 15
    rest, out = len(data) - 15, bytearray([0xF0])
    while rest >= 255:
        out.append(255)
        rest -= 255
    out.append(rest)
    return bytes(out) + data


def test_fatbins() -> None:
    old, best = text("old").encode(), text("best").encode()
    machine_code = entry(2, 75, b"\x7fELF" * 20)
    image = fatbinary(
        machine_code, entry(1, 52, old), entry(1, 75, best), entry(1, 90, text("new").encode())
    )
    assert fatbin.ptx_texts(image, (7, 5)) == [best.decode()]
    assert fatbin.ptx_texts(image, (7, 0)) == [old.decode()]
    packed = zstandard.compress(best)
    image = fatbinary(entry(1, 75, packed, 0x8000, len(best)))
    assert fatbin.ptx_texts(image, (7, 5)) == [best.decode()]
    image = fatbinary(entry(1, 75, lz4_literals(best), 0x2000, len(best)))
    assert fatbin.ptx_texts(image, (7, 5)) == [best.decode()]
    twice = fatbinary(machine_code) + fatbinary(entry(1, 75, best))
    assert fatbin.ptx_texts(twice, (8, 0)) == [best.decode()]
    with pytest.raises(ModuleError) as caught:
        fatbin.ptx_texts(fatbinary(machine_code), (7, 5))
    assert caught.value.code == 209 and "compute_75" in caught.value.message
    newer = entry(1, 90, text("new").encode())
    with pytest.raises(ModuleError) as caught:
        fatbin.ptx_texts(fatbinary(machine_code, newer), (8, 0))
    assert caught.value.message == (
        "it contains machine code for sm_75 and PTX for compute_90, but no PTX for compute "
        "capability 8.0: build it with PTX (nvcc -arch=compute_75), or use devices of compute "
        "capability 9.0 (a pool's computeCapability, or rankfold run --compute-capability 9.0)"
    )


def test_ptx_of_one_architecture_or_family_is_for_no_other() -> None:
    def ptx(target: str) -> bytes:
        return text().replace("sm_75", f"sm_{target}").encode()

    plain, only, family = ptx("90"), ptx("90a"), ptx("100f")
    image = fatbinary(entry(1, 90, only), entry(1, 90, plain), entry(1, 100, family))
    for capability, best in (((9, 0), plain), ((10, 3), family), ((12, 0), plain)):
        assert fatbin.ptx_texts(image, capability) == [best.decode()]
    image = fatbinary(entry(1, 90, only))
    assert fatbin.ptx_texts(image, (9, 0)) == [only.decode()]
    with pytest.raises(ModuleError) as caught:
        fatbin.ptx_texts(image, (12, 0))
    assert caught.value.message == (
        "it contains PTX for compute_90a, but no PTX for compute capability 12.0: build it with "
        "PTX (nvcc -arch=compute_75)"
    )


def test_lz4_repetitions() -> None:
    # "abcd", then 20 bytes from 4 back, then "xyz12": a block ends with five literals
    block = bytes([0x4F]) + b"abcd" + bytes([4, 0, 1]) + bytes([0x50]) + b"xyz12"
    expected = b"abcd" * 6 + b"xyz12"
    assert fatbin.lz4_block(block, len(expected)) == expected
    assert fatbin.lz4_block(block, 0) == expected
    for data, size in ((block[:-1], 29), (block, 30), (block, 28), (block, 1 << 29)):
        with pytest.raises(ModuleError) as caught:
            fatbin.lz4_block(data, size)
        assert caught.value.code == 200


@pytest.mark.parametrize("length", [8, 20, 60, 100])
def test_damaged_fatbins_are_errors(length: int) -> None:
    image = fatbinary(entry(1, 75, zstandard.compress(text().encode()), 0x8000))
    with pytest.raises(ModuleError):
        fatbin.ptx_texts(image[:length], (7, 5))


HEADER = ".version 8.0\n.target sm_75\n.address_size 64\n"


@pytest.mark.parametrize(
    ("declared", "defined"),
    [
        (".extern .func f();", ".visible .func f() { ret; }"),
        (".extern .global .u32 v;", ".visible .global .u32 v = 7;"),
    ],
)
def test_a_linked_module_declares_in_any_order_and_defines_once(
    declared: str, defined: str
) -> None:
    for parts in (declared, defined), (defined, declared):
        module = parse_module(HEADER + "\n".join(parts))
        assert all(f.body_text for f in module.functions.values())
        assert all(v.initial == bytes([7, 0, 0, 0]) for v in module.variables.values())
    with pytest.raises(ModuleError, match=r"[fv] is defined twice"):
        parse_module(HEADER + defined + defined)
    weak = defined.replace(".visible", ".weak")
    first, both = (parse_module(HEADER + weak * count) for count in (1, 2))
    assert (first.functions, first.variables) == (both.functions, both.variables)
    assert [f.text for f in first.functions.values()] == [f.text for f in both.functions.values()]


def test_kernels_load_where_free_memory_is_far_apart(folder: Path) -> None:
    """Code reaches its constants by 32-bit distances: both must come from one place."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "softgpu.crowded",
            str(REPOSITORY / "build/tests/kernels"),
            str(folder / "s"),
        ],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'tests'}:{REPOSITORY}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{crowded.KERNELS}\n"


def calls_for_loops(count: int) -> int:
    """Returns how many Python functions run to make the graph of a kernel of `count` loops."""
    loop = """
        setp.lt.f32 %p, %f0, 0f00000000;
        @%p bra OVER{n};
        mov.u32 %r{n}, 0;
        LOOP{n}:
        ld.global.f32 %f0, [%rd1];
        add.u32 %r{n}, %r{n}, 1;
        setp.lt.u32 %p, %r{n}, 9;
        @%p bra LOOP{n};
        OVER{n}:
        add.f32 %f0, %f0, %f0;"""
    module = parse_module(
        ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry loops(.param .u64 at) {\n"
        f".reg .pred %p; .reg .f32 %f<2>; .reg .b32 %r<{count}>; .reg .b64 %rd<2>;\n"
        "ld.param.u64 %rd1, [at]; ld.global.f32 %f0, [%rd1];"
        + "".join(loop.format(n=n) for n in range(count))
        + "\nst.global.f32 [%rd1], %f0;\nret;\n}\n"
    )
    calls = 0

    def count_call(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        flow.build(module, find(module, "loops"), divergence.worth_regrouping)
    finally:
        sys.setprofile(before)
    return calls


def test_the_time_for_a_graph_grows_with_its_loops_not_with_their_square() -> None:
    """Kernels with hundreds of loops exist: PyTorch's incomplete gamma function has 384."""
    assert calls_for_loops(40) < 3 * calls_for_loops(20)
