"""Programs with machine code only: what the proxy reads in it, and how its variables become the
ranks' own."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cuda
import numpy as np
import pytest
from softgpu.harness import CHUNK, Device, Space

from rankfold import paths
from rankfold.proxy.hal.nvidia.cubin import Cubin
from rankfold.proxy.hal.nvidia.modules import Loader
from rankfold.proxy.ptx import fatbin
from rankfold.proxy.ptx.errors import (
    INVALID_IMAGE,
    NO_BINARY_FOR_GPU,
    NOT_FOUND,
    NOT_SUPPORTED,
    ModuleError,
)
from rankfold.proxy.ptx.info import FunctionInfo, ModuleInfo, module_info
from support.fleet import Fleet, MiB, until
from support.leaks import State

from .fake_driver import HERE, Fake
from .test_fleet import PROGRAM, STEPS, driver, move_along, outputs, start

__all__ = ["driver"]

PROGRAMS = HERE / "programs.cu"
# With variables, structures, templates.
OTHERS = ("symbols", "parameters", "reductions", "subgroups")
SOURCES = [PROGRAMS, *(cuda.PROGRAMS / f"{name}.cu" for name in OTHERS)]
ARCHITECTURES = (75, 90, 120)


def code(source: Path | str, *args: str, arch: str = "90") -> bytes:
    """The machine code of a source for one architecture."""
    flags = [f"-arch=sm_{arch}", "-cubin", *args]
    return cuda.build(source, args=flags, suffix=".cubin").read_bytes()


def fatbinary(*generated: str) -> bytes:
    """A fatbin of programs.cu: `compute_90,code=sm_90`, …"""
    flags = ["-fatbin", *(f"-gencode=arch={each}" for each in generated)]
    return cuda.build(PROGRAMS, args=flags, suffix=".fatbin").read_bytes()


# ---- what is read ----


@pytest.mark.usual("programs-90", "symbols-90", "parameters-90")
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("program", SOURCES, ids=[path.stem for path in SOURCES])
def test_kernels_and_variables_are_those_of_the_ptx(program: Path, arch: int) -> None:
    """The compiler's own two descriptions of one source. Machine code lacks what no kernel uses."""
    wanted = module_info(cuda.ptx(program, args=["-arch=compute_75"]))
    cubin = Cubin(code(program, arch=str(arch)))
    assert cubin.arch == arch
    assert sorted(cubin.kernels) == sorted(wanted.functions)
    for name in cubin.kernels:
        kernel = wanted.ptx.functions[name]
        assert cubin.kernel(name).params == tuple((p.offset, p.bytes) for p in kernel.params)
        assert cubin.kernel(name).param_bytes == kernel.param_bytes
    placed = {g.name: g for g in wanted.globals}
    for variable in cubin.variables:
        place = placed[variable.name]
        initial = wanted.globals_image[place.offset :][: place.bytes]
        assert variable.bytes == place.bytes
        assert cubin.globals_image[variable.offset :][: variable.bytes] == initial
        assert variable.constant == (wanted.ptx.variables[variable.name].space == "const")


@pytest.mark.parametrize("arch", ["90", "100", "120"])
def test_pointers_behind_large_parameters_are_read(arch: str) -> None:
    """PyTorch's multi_tensor_apply has them. For newer architectures a pointer has a mark."""
    source = """
        struct Large { char bytes[24000]; };
        __global__ void f(Large a, char b, float *c, double d) { c[b] = a.bytes[b] + d; }
    """
    wanted = ((0, 24000), (24000, 1), (24008, 8), (24016, 8))
    kernel = Cubin(code(source, arch=arch)).kernel("_Z1f5LargecPfd")
    assert (kernel.params, kernel.param_bytes) == (wanted, 24024)


def test_objects_without_content_are_no_variables() -> None:
    """A module that includes the libraries' headers has dozens, and each would be copied at every
    launch. A program's own variables are listed, however small."""
    source = """
        #include <cassert>
        #include <thrust/execution_policy.h>
        __device__ bool flag;
        namespace mine { __device__ char one; }
        __constant__ int constant;
        // As in cuRAND's header.
        __device__ unsigned precalc_xorwow_matrix[8] = {1, 2, 3};
        __global__ void f(int *a) { assert(a); flag = !flag; *a = flag + mine::one + constant; }
        __global__ void g(double *a) { *a = sin(*a) + precalc_xorwow_matrix[int(*a)]; }
    """
    image = code(source, "-std=c++17")
    expected = (b"thrust", b"4cuda3std", b"precalc_xorwow_matrix", b"__cudart_i2opi_d", b"$str")
    assert all(name in image for name in expected)
    assert {v.name for v in Cubin(image).variables} == {"flag", "_ZN4mine3oneE", "constant"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("__managed__ int m; __global__ void f() { m++; }", "variable m is managed"),
        (
            "__device__ int a; __device__ int *p = &a; __global__ void f() { (*p)++; p++; }",
            "variable p contains an address",
        ),
        (  # a file of some KiB would take the proxy's memory
            "__device__ char big[3u << 30]; __global__ void f(char *a) { *a = big[*a]; }",
            "variables of 3072 MiB .*build it with PTX",
        ),
    ],
)
def test_variables_whose_addresses_cannot_stay_are_refused(source: str, message: str) -> None:
    with pytest.raises(ModuleError, match=message) as refused:
        _ = Cubin(code(source)).variables
    assert refused.value.code == NOT_SUPPORTED


def test_kernels_that_allocate_are_found() -> None:
    assert Cubin(code("__global__ void f(int **p) { *p = new int; }")).allocates
    assert not Cubin(code(PROGRAMS)).allocates


def test_missing_kernels_and_unlinked_code_are_refused_by_name() -> None:
    with pytest.raises(ModuleError, match="no kernel nothing") as refused:
        Cubin(code(PROGRAMS)).kernel("nothing")
    assert refused.value.code == NOT_FOUND
    with pytest.raises(ModuleError, match="sm_90 that has not been linked") as refused:
        Cubin(code("__device__ int f() { return 1; }", "-rdc=true"))
    assert refused.value.code == NO_BINARY_FOR_GPU


def test_damaged_machine_code_is_refused() -> None:
    """Never another error: a proxy serves other jobs."""
    image, chance, refused = code(PROGRAMS), random.Random(1), 0
    for _ in range(300):
        data = bytearray(image[: chance.choice((len(image), chance.randrange(len(image))))])
        for _ in range(chance.randrange(4)):
            at = chance.randrange(min(len(data), chance.choice((64, len(data)))) or 1)
            data[at : at + 1] = bytes([chance.randrange(256)])
        try:
            cubin = Cubin(bytes(data))
            _ = cubin.variables, cubin.allocates, [cubin.kernel(name) for name in cubin.kernels]
        except ModuleError as error:
            assert error.code in (INVALID_IMAGE, NO_BINARY_FOR_GPU, NOT_SUPPORTED)
            refused += 1
    assert refused > 100


# ---- which code is chosen ----


def test_the_code_of_the_gpu_is_chosen() -> None:
    image = fatbinary(
        "compute_80,code=sm_80",
        "compute_86,code=sm_86",
        "compute_90,code=sm_90",
        "compute_90a,code=sm_90a",
        "compute_100f,code=sm_100f",
    )
    chosen = {gpu: fatbin.cubin_of(image, gpu) for gpu in (75, 80, 87, 89, 90, 100, 103, 120)}
    assert {gpu: Cubin(each).arch for gpu, each in chosen.items() if each} == {
        80: 80,
        87: 86,
        89: 86,
        90: 90,
        100: 100,
        103: 100,
    }
    of_one = fatbinary("compute_90a,code=sm_90a")
    assert chosen[90] == fatbin.cubin_of(of_one, 90) != code(PROGRAMS)
    assert fatbin.cubin_of(of_one, 91) is None


def test_ptx_is_preferred(fake: Fake) -> None:
    both = fatbinary("compute_90,code=sm_90", "compute_75,code=compute_75")
    with Device(memory=16 * CHUNK, hal="nvidia"):
        assert loader().module(both, 0).ptx.functions


@pytest.mark.parametrize("arch", ["80", "100"])
def test_machine_code_for_other_gpus_is_refused(fake: Fake, arch: str) -> None:
    with (
        Device(memory=16 * CHUNK, hal="nvidia"),
        pytest.raises(ModuleError, match=rf"sm_{arch}.*this GPU has compute capability 9.0"),
    ):
        loader().module(code(PROGRAMS, arch=arch), 2)


# ---- kernels and variables ----


def loader() -> Loader:
    return Loader(paths.native("lib/librankfold-proxy.so"), (8, 0))


@pytest.fixture
def device(fake: Fake) -> Iterator[Device]:
    with Device(memory=16 * CHUNK, hal="nvidia") as made:
        yield made


Kernels = Callable[[str], FunctionInfo]


@pytest.fixture
def loaded(device: Device) -> tuple[Kernels, ModuleInfo]:
    """The kernels of programs.cu by name, and their module."""
    made = loader()
    module = made.module(code(PROGRAMS), 2)
    return functools.partial(made.function, module), module


def globals_of(space: Space, module: ModuleInfo, at: int = 0) -> int:
    """The rank's variables of the module, as the client places them."""
    image = np.frombuffer(module.globals_image, np.uint8)
    at = at or space.alloc(len(image))
    space.write(at, image)
    return at


def offset(module: ModuleInfo, name: str) -> int:
    return next(g.offset for g in module.globals if g.name == name)


def test_each_rank_has_its_own_variables(
    device: Device, loaded: tuple[Kernels, ModuleInfo]
) -> None:
    kernels, module = loaded
    count = kernels("count")
    spaces = [device.space(), device.space()]
    own = [globals_of(space, module) for space in spaces]
    out = [space.put(np.zeros(1, np.uint32)) for space in spaces]
    for turn in (0, 0, 1, 0, 1):
        spaces[turn].launch(count, 1, 1, out[turn], globals_addr=own[turn])
    assert [int(s.read(at, 1, np.uint32)[0]) for s, at in zip(spaces, out, strict=True)] == [44, 43]
    place = offset(module, "counter")
    assert [int(s.read(o + place, 1, np.uint32)[0]) for s, o in zip(spaces, own, strict=True)] == [
        44,
        43,
    ]
    spaces[1].write(own[1] + place, np.array([99], np.uint32))  # the program's own copy to it
    spaces[1].launch(count, 1, 1, out[1], globals_addr=own[1])
    assert spaces[1].read(out[1], 1, np.uint32)[0] == 100
    for space in spaces:
        space.check()


def test_a_variable_may_cross_chunks(device: Device, loaded: tuple[Kernels, ModuleInfo]) -> None:
    kernels, module = loaded
    count = kernels("count")
    space = device.space()
    begin = space.alloc(2 * CHUNK)
    own = globals_of(space, module, begin + CHUNK - offset(module, "counter") - 2)
    out = space.put(np.zeros(1, np.uint32))
    for _ in range(2):
        space.launch(count, 1, 1, out, globals_addr=own)
    assert space.read(out, 1, np.uint32)[0] == 43
    space.check()


def test_constants_are_copied_once_a_program_knows_an_address(
    fake: Fake, device: Device, loaded: tuple[Kernels, ModuleInfo]
) -> None:
    """A constant stays as loaded until some rank may have written to it. Then each rank has its
    own, also a rank that did not ask for an address."""
    kernels, module = loaded
    look_up = kernels("look_up")
    spaces = [device.space(), device.space()]
    own = [globals_of(space, module) for space in spaces]
    out = [space.put(np.zeros(1, np.uint32)) for space in spaces]

    def found(rank: int, known: bool) -> int:
        work, _buffer = spaces[rank].kernel_work(look_up, 1, 1, out[rank], globals_addr=own[rank])
        work.kernel.globals_known = known
        device.run(work)
        spaces[rank].check()
        return int(spaces[rank].read(out[rank], 1, np.uint32)[0])

    assert [found(0, False), found(1, False)] == [34, 34]
    spaces[0].write(own[0] + offset(module, "table"), np.array([7, 8], np.uint32))
    assert [found(0, True), found(1, False), found(0, True)] == [15, 34, 15]


def test_launches_that_use_a_modules_variables_wait_for_each_other(
    device: Device, loaded: tuple[Kernels, ModuleInfo]
) -> None:
    """In whatever streams they are: a copy back would otherwise undo what another launch left."""
    kernels, module = loaded
    space = device.space()
    own, out = globals_of(space, module), space.put(np.zeros(1, np.uint32))
    flag = space.put(np.zeros(1, np.uint32))
    streams = [device.new_stream(), device.new_stream()]
    running, kept = space.kernel_work(kernels("until_set"), 1, 1, flag, globals_addr=own)
    waiting, kept2 = space.kernel_work(kernels("count"), 1, 1, out, globals_addr=own)
    device.submit(running, streams[0])
    device.submit(waiting, streams[1])
    time.sleep(0.05)
    assert device.hal.completed(streams[1]) == 0
    space.write(flag, np.array([1], np.uint32))  # copies do not wait
    device.wait(1, streams[0])
    device.wait(1, streams[1])
    assert space.read(own + offset(module, "counter"), 1, np.uint32)[0] == 42
    assert kept is not None and kept2 is not None
    space.check()


def test_variables_are_copied_to_the_driver_only_if_they_are_not_there(
    fake: Fake, device: Device, loaded: tuple[Kernels, ModuleInfo]
) -> None:
    """One copy back for each launch; and one to the driver's if that has the variables of another
    rank, or if the program may have written to them."""
    kernels, module = loaded
    spaces = [device.space(), device.space()]
    own = [globals_of(space, module) for space in spaces]
    out = [space.put(np.zeros(1, np.uint32)) for space in spaces]

    def copies(rank: int, number: int, known: bool = False) -> tuple[int, int]:
        space = spaces[rank]
        work, _buffer = space.kernel_work(kernels("count"), 1, 1, out[rank], globals_addr=own[rank])
        work.kernel.globals_number, work.kernel.globals_known = number, known
        before = fake.calls("cuMemcpyAsync")
        device.run(work)
        made = fake.calls("cuMemcpyAsync") - before
        space.check()
        return int(space.read(out[rank], 1, np.uint32)[0]), made

    assert [copies(0, 1), copies(0, 1), copies(1, 2), copies(0, 1)] == [
        (42, 2),
        (43, 1),
        (42, 2),
        (44, 2),
    ]
    globals_of(spaces[0], module, own[0])
    assert copies(0, 3) == (42, 2), "the program has loaded its module again"
    spaces[0].write(own[0] + offset(module, "counter"), np.array([9], np.uint32))
    assert copies(0, 3, known=True) == (10, 3), "constants, too"


def test_a_section_of_variables_is_one_copy(fake: Fake, device: Device) -> None:
    source = (
        '__device__ int a = 1, b = 2, c = 3; extern "C" __global__ void empty() { a += b += c; }'
    )
    made = loader()
    module = made.module(code(source), 2)
    space = device.space()
    own = globals_of(space, module)
    before = fake.calls("cuMemcpyAsync")
    space.launch(made.function(module, "empty"), 1, 1, globals_addr=own)
    assert fake.calls("cuMemcpyAsync") - before == 2
    space.check()


def test_a_variable_that_the_driver_lacks_is_named(fake: Fake, device: Device) -> None:
    fake.fail("cuModuleGetGlobal_v2", 2, 500)
    with pytest.raises(ModuleError, match=r"the driver does not have variable (counter|table)"):
        loader().module(code(PROGRAMS), 2)


def test_a_launch_whose_variables_cannot_be_copied_fails_its_rank(
    fake: Fake, device: Device, loaded: tuple[Kernels, ModuleInfo]
) -> None:
    kernels, module = loaded
    count = kernels("count")
    space = device.space()
    own, out = globals_of(space, module), space.put(np.zeros(1, np.uint32))
    fake.fail("cuMemcpyAsync", 1, 1)
    space.launch(count, 1, 1, out, globals_addr=own)
    assert space.error()[0] == 1 and "a variable of machine code" in space.error()[1]


def test_unknown_kernels_do_nothing_where_a_test_wants_that(
    fake: Fake, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = 'extern "C" __global__ void own(int *at, float by) { *at += int(by); }'
    with pytest.raises(ModuleError, match="the driver has no kernel own"):
        made = loader()
        made.function(made.module(code(source), 2), "own")
    monkeypatch.setenv("RANKFOLD_FAKE_KERNELS", "1")
    made = loader()
    own = made.function(made.module(code(source), 2), "own")
    space = device.space()
    at = space.put(np.full(1, 3, np.uint32))
    space.launch(own, 1, 1, at, 1.0)
    assert space.read(at, 1, np.uint32)[0] == 3
    space.check()


# ---- the whole way ----


def test_machine_code_folded_moved_and_apart_gives_the_bits_of_ptx(state: State) -> None:
    """Ranks of 6 MiB on devices of 8 MiB: each switch swaps, the module's variables too."""
    program = cuda.build(PROGRAM, args=["-gencode=arch=compute_90,code=sm_90"])
    arguments = [str(program), str(STEPS)]
    with Fleet(state, memory=8 * MiB, kinds=("nvidia",) * 3) as fleet:
        wanted = outputs(start(fleet, "ptx", [0, 1, 2]))
        assert outputs(fleet.start("apart", arguments, [0, 1, 2], memory=32 * MiB)) == wanted
        job = fleet.start("moved", arguments, [0, 0, 0], memory=32 * MiB)
        move_along(fleet, job, ([0, 1, 1], [2, 0, 0], [0, 0, 0]))
        assert outputs(job) == wanted
        assert job.epoch >= 2


def test_machine_code_on_a_software_gpu_is_refused_with_what_would_run(state: State) -> None:
    program = cuda.build(PROGRAM, args=["-gencode=arch=compute_90,code=sm_90"])
    with Fleet(state, memory=8 * MiB, kinds=("soft",)) as fleet:
        job = fleet.start("refused", [str(program), "2"], [0], memory=32 * MiB)
        assert job.wait() != [0]
        assert "machine code for sm_90, but no PTX" in job.errors(0)


def test_a_rank_that_moves_to_a_device_without_its_code_fails_by_name(state: State) -> None:
    """The reconciler moves jobs between devices of one type only; a pool may still be mixed."""
    program = cuda.build(PROGRAM, args=["-gencode=arch=compute_90,code=sm_90"])
    with Fleet(state, memory=8 * MiB, kinds=("nvidia", "soft")) as fleet:
        job = fleet.start("moved", [str(program), "100000"], [0], memory=32 * MiB)
        until(lambda: job.output(0).count("\n") >= 2)
        job.move([fleet.names[1]])
        assert job.wait() != [0]
        assert "machine code for sm_90, but no PTX" in job.errors(0)
