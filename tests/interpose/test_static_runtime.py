"""Programs and libraries that contain a CUDA runtime, as nvcc links it by default, are served."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import cuda
import pytest

from rankfold.interpose import descriptions
from support import channel_server as cs
from support.channel_server import ChannelServer
from support.preloaded import LIB, Run

NO_DEVICE, NOT_SUPPORTED = 100, 801

# Uses the device, then forks, and executes itself once more. Prints lines that any process with the
# right functions prints, and each mapping that can be written and executed.
PROGRAM = """
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
__global__ void set(int *value) { *value = 1; }
static int devices_of()
{
    int count;
    return cudaGetDeviceCount(&count) ? -1 : count;
}
static int before_main = devices_of();
static cudaError_t use()
{
    int *value;
    cudaError_t error = cudaMalloc(&value, 4);
    set<<<2, 3>>>(value);
    return error ? error : cudaGetLastError();
}
extern "C" __attribute__((visibility("default"))) int use_it();
int use_it() { return use(); }
int main(int argc, char **argv)
{
    char line[512];
    setvbuf(stdout, nullptr, _IONBF, 0);
    printf("devices: %d\\n", before_main);
    if (argc > 1 && !strcmp(argv[1], "again"))
        return 0;
    printf("used: %d\\n", use());
    if (argc > 1) {
        void *library = dlopen(argv[1], RTLD_LAZY | (argc > 2 ? RTLD_DEEPBIND : 0));
        int (*theirs)() = library ? (int (*)())dlsym(library, "use_it") : nullptr;
        printf("library: %d\\n", theirs ? theirs() : -1);
        dlclose(library);
        library = dlopen(argv[1], RTLD_NOW);
        theirs = library ? (int (*)())dlsym(library, "use_it") : nullptr;
        printf("again: %d\\n", theirs ? theirs() : -1);
    }
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, " rwx"))
            printf("%s", line);
    if (fork() == 0) {
        printf("child: %d\\n", use());
        _exit(0);
    }
    wait(nullptr);
    if (argc == 1)
        return execl("/proc/self/exe", argv[0], "again", nullptr);
}
"""


@pytest.fixture(scope="module")
def program_object() -> Path:
    return cuda.build(PROGRAM, args=("-c", "-Xcompiler", "-fPIC"), suffix=".o")


def launches(run: Run, tmp_path: Path, program: Path, *words: str) -> tuple[list[str], int]:
    """The lines that the program prints, and the number of launches that reach the server."""
    with ChannelServer(tmp_path / "s") as server:
        server.serve_kernels()
        done = run(program, *words, launcher=server.path)
        server.drain()
        assert done.stderr.count("\n") == done.stderr.count("a child made by fork"), done.stderr
        return done.stdout.splitlines(), len(server.of(cs.LAUNCH))


# How the linker places code and data, and what the loader does to them.
LAYOUTS: dict[str, Sequence[str]] = {
    "default": (),
    "position-dependent": ("-Xlinker", "-no-pie"),
    "bound-at-start": ("-Xlinker", "-z,now", "-Xlinker", "-z,relro"),
    "one-segment": ("-Xlinker", "-z,noseparate-code"),
    "control-flow": (
        "-Xlinker",
        "-z,cet-report=none",
        "-Xlinker",
        "-z,ibt",
        "-Xlinker",
        "-z,shstk",
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_with_a_static_runtime_reaches_us(
    run: Run, tmp_path: Path, program_object: Path, layout: str
) -> None:
    program = cuda.link([program_object], tmp_path / "program", *LAYOUTS[layout])
    lines, count = launches(run, tmp_path, program)
    assert lines == ["devices: 2", "used: 0", "child: 3", "devices: 2"]
    assert count == 1


def test_a_program_that_is_an_argument_of_the_dynamic_linker_reaches_us(
    run: Run, tmp_path: Path, program_object: Path
) -> None:
    """As those of unpacked packages are started; /proc/self/exe is the dynamic linker then."""
    program = cuda.link([program_object], tmp_path / "program")
    about = subprocess.run(
        ["readelf", "--program-headers", program], capture_output=True, text=True, check=True
    )
    (linker,) = re.findall(r"program interpreter: (.*)\]", about.stdout)
    with ChannelServer(tmp_path / "s") as server:
        done = run(linker, str(program), "again", launcher=server.path)
    assert (done.stdout, done.stderr) == ("devices: 2\n", "")


def test_a_program_that_is_built_for_gprof_reaches_us(
    run: Run, tmp_path: Path, program_object: Path
) -> None:
    """It has a function of its own in place of the one by which we notice that it is loaded."""
    cuda.link([program_object], tmp_path / "program", "-Xcompiler", "-pg")
    with ChannelServer(tmp_path / "s") as server:
        done = run(
            "sh", "-c", 'cd "$1" && ./program again', "-", str(tmp_path), launcher=server.path
        )
    assert (done.stdout, done.stderr) == ("devices: 2\n", "")
    assert (tmp_path / "gmon.out").exists()


DEEP = [] if os.environ.get("LD_PRELOAD") else ["deep"]  # the address sanitizer refuses it


@pytest.mark.parametrize("program_has", ["shared", "static"])
@pytest.mark.parametrize("scope", ["", *DEEP])
def test_a_library_with_a_static_runtime_that_is_opened_later_reaches_us(
    run: Run, tmp_path: Path, program_object: Path, program_has: str, scope: str
) -> None:
    """A runtime is found even if it is loaded without our dlopen (RTLD_DEEPBIND), and after it was
    closed."""
    program = cuda.build(PROGRAM)
    if program_has == "static":
        program = cuda.link([program_object], tmp_path / "program")
    library = cuda.link([program_object], tmp_path / "library.so", "-shared")
    words = [str(library), *([scope] if scope else [])]
    lines, count = launches(run, tmp_path, program, *words)
    assert lines == ["devices: 2", "used: 0", "library: 0", "again: 0", "child: 3"]
    assert count == 3


def test_a_library_that_the_program_needs_reaches_us(
    run: Run, tmp_path: Path, program_object: Path
) -> None:
    cuda.link([program_object], tmp_path / "libneeded.so", "-shared")
    program = compiled(
        tmp_path,
        """#include <stdio.h>
        int use_it(void);
        int main(void) { return printf("used: %d\\n", use_it()) < 0; }
        """,
        f"-L{tmp_path}",
        "-lneeded",
        f"-Wl,-rpath,{tmp_path}",
    )
    assert launches(run, tmp_path, program) == (["used: 0"], 1)


@functools.cache
def functions_of_runtimes() -> dict[str, list[str]]:
    """Returns the names of their functions, by the major version of CUDA."""
    return {
        version.cuda: sorted(name for function in library.functions for name in function.names)
        for version, library in descriptions.load_versions("cudart").items()
    }


def synthetic(
    *before: str, after: Sequence[str] = (), version: str = "13", without: str = ""
) -> str:
    """C functions of all names of the runtime: they return -1, as a foreign runtime would. `before`
    and `after` are other functions, next to them."""
    names = [name for name in functions_of_runtimes()[version] if name != without]
    texts = [f"FUNCTION int {name}(void) {{ return -1; }}" for name in names]
    half = len(texts) // 2
    return "\n".join(
        [
            "#include <dlfcn.h>\n#include <pthread.h>\n#include <stdio.h>\n#include <unistd.h>",
            '#define FUNCTION __attribute__((noipa, visibility("hidden")))',
            'void *driver(void) { return dlsym(RTLD_DEFAULT, "cuInit"); }',
            "FUNCTION int __cudaRegisterLinkedBinary_mine(void) { return 7; }",
            *texts[:half],
            *before,
            *texts[half:],
            *after,
        ]
    )


def compiled(tmp_path: Path, text: str, *args: str, name: str = "program") -> Path:
    source, target = tmp_path / f"{name}.c", tmp_path / name
    source.write_text(text)
    subprocess.run(["gcc", "-O2", str(source), "-o", str(target), *args, "-ldl"], check=True)
    return target


MAIN = """
int main(void)
{
    int count = 0, (*get)(int *) = (int (*)(int *))cudaGetDeviceCount;
    printf("%d", get(&count));
    for (int i = 0; i < 2; i++)
        printf(" %d", cudaYoungerThanRankfold());
    printf(" %d %d %d\\n", (int)cudaGetLastError(), __cudaRegisterLinkedBinary_mine(),
           cudaOfTheProgram());
    return 0;
}
"""
YOUNGER = "FUNCTION int cudaYoungerThanRankfold(void) { return -1; }"
OWN = "FUNCTION int cudaOfTheProgram(void) { return 8; }"


def test_a_function_that_we_do_not_have_names_itself_and_the_program_s_own_are_left_alone(
    run: Run, tmp_path: Path
) -> None:
    program = compiled(tmp_path, synthetic(YOUNGER, after=[OWN]) + MAIN)
    done = run(program)
    assert done.stdout == f"{NO_DEVICE} {NOT_SUPPORTED} {NOT_SUPPORTED} {NOT_SUPPORTED} 7 8\n"
    about = [line for line in done.stderr.splitlines() if "cudaYoungerThanRankfold" in line]
    assert about == [
        "rankfold: cudaYoungerThanRankfold: not supported by rankfold; the call failed"
    ]


@pytest.mark.parametrize(("version", "number"), [("11", 11080), ("12", 12040), ("13", 13000)])
def test_a_runtime_of_each_cuda_has_the_functions_of_its_version(
    run: Run, tmp_path: Path, version: str, number: int
) -> None:
    main = """
    int main(void)
    {
        int number = 0, (*get)(int *) = (int (*)(int *))cudaRuntimeGetVersion;
        int error = get(&number);
        return printf("%d %d\\n", error, number) < 0;
    }
    """
    program = compiled(tmp_path, synthetic(after=[OWN], version=version) + main)
    assert run(program).stdout == f"0 {number}\n"


def test_code_that_is_no_runtime_is_unchanged(run: Run, tmp_path: Path) -> None:
    """A program may have functions of these names for its own purposes."""
    program = compiled(
        tmp_path,
        """#include <dlfcn.h>
        #include <stdio.h>
        __attribute__((noipa, visibility("hidden"))) int cudaGetDeviceCount(int *n) { return -1; }
        void *next(void) { return dlsym(RTLD_NEXT, "cudaGetDeviceCount"); }
        int main(void) { int n; return printf("%d\\n", cudaGetDeviceCount(&n)) < 0; }
        """.replace("#include <dlfcn.h>", "#define _GNU_SOURCE\n#include <dlfcn.h>"),
    )
    done = run(program)
    assert (done.stdout, done.stderr) == ("-1\n", "")


DRIVER = (f"-L{LIB}", "-lcuda", f"-Wl,-rpath-link,{LIB}")
LARGE = '__asm__(".skip 32 << 20, 0x90");'
PART = '__asm__(".type part, @function\\n.globl part\\n.hidden part\\n.set part, cudaMalloc + 4");'


@pytest.mark.parametrize(
    ("other", "without", "flags", "reason"),
    [
        ("", "", ["-falign-functions=1"], "two of its functions are too close to each other"),
        (PART, "", [], "one of its functions is too short"),
        ("", "cudaCtxResetPersistingL2Cache", [], "it is older than CUDA 11"),
    ],
    ids=["close", "short", "old"],
)
def test_a_runtime_that_cannot_be_redirected_is_refused_whole(
    run: Run, tmp_path: Path, other: str, without: str, flags: Sequence[str], reason: str
) -> None:
    text = synthetic(YOUNGER, other, after=[OWN], without=without)
    main = MAIN.replace("{", "{ cuGetExportTable(0, 0);", 1)  # as a real runtime would
    done = run(compiled(tmp_path, text + "int cuGetExportTable();" + main, *flags, *DRIVER))
    assert done.stdout == "-1 -1 -1 -1 7 8\n"
    assert done.stderr == (
        "rankfold: the program contains the CUDA runtime, which cannot be redirected to rankfold: "
        f"{reason}; build it with `nvcc -cudart shared`\n"
    )


OLDER = """
#include <cuda_runtime_api.h>
#include <cstdio>
extern "C" int use_it();
int main()
{
    cudaDeviceProp properties;
    cudaPointerAttributes attributes[2] = {};
    cudaStreamCaptureStatus status;
    cudaStream_t stream;
    unsigned long long id;
    void *memory;
    int version = 0;
    printf("version: %d, ", cudaRuntimeGetVersion(&version));
    printf("%d\\n", version / 1000);
    printf("properties: %d, ", cudaGetDeviceProperties(&properties, 0));
    printf("%s, %d\\n", properties.name, properties.warpSize);
    printf("managed: %d, ", cudaMallocManaged(&memory, 4096));
    printf("%d, ", cudaMemAdvise(memory, 4096, cudaMemAdviseSetReadMostly, 0));
    attributes[1].device = 77;
    printf("%d, ", cudaPointerGetAttributes(attributes, memory));
    printf("%d, %d\\n", attributes[0].type, attributes[1].device);
    printf("capture: %d, ", cudaStreamCreate(&stream));
    printf("%d, ", cudaStreamGetCaptureInfo(stream, &status, &id));
    printf("%d\\n", status);
    printf("kernel: %d\\n", use_it());
}
"""


@pytest.mark.slow
@pytest.mark.installs
def test_the_runtime_of_cuda_12_is_served(run: Run, tmp_path: Path, program_object: Path) -> None:
    """A program compiled with its headers and linked to its archive (3 MB)."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
    subprocess.run([*command, tmp_path / "wheel", "nvidia-cuda-runtime-cu12==12.9.79"], check=True)
    toolkit = tmp_path / "wheel/nvidia/cuda_runtime"
    # The wheel lacks files that are the same in CUDA 13.
    include = [f"-I{toolkit}/include", f"-I{descriptions.header_folders()[0]}"]
    source, program = tmp_path / "older.cc", tmp_path / "older"
    source.write_text(OLDER)
    library = cuda.build(PROGRAM, args=("-c", "-Xcompiler", "-fPIC", "-Dmain=unused"), suffix=".o")
    archive = toolkit / "lib/libcudart_static.a"
    subprocess.run(
        ["g++", *include, source, library, "-o", program, archive, "-ldl", "-lrt", "-lpthread"],
        check=True,
    )
    lines, count = launches(run, tmp_path, program)
    assert lines == [
        "version: 0, 12",
        "properties: 0, test device, 32",
        "managed: 0, 0, 0, 3, 77",
        "capture: 0, 0, 0",
        "kernel: 0",
    ]
    assert count == 1


def test_a_stripped_runtime_is_refused_by_name_with_a_remedy(
    run: Run, tmp_path: Path, program_object: Path
) -> None:
    program = cuda.link([program_object], tmp_path / "program", "-Xlinker", "-s")
    with ChannelServer(tmp_path / "s") as server:
        done = run(program, launcher=server.path)
    assert f"used: {NOT_SUPPORTED}" in done.stdout
    (line,) = {line for line in done.stderr.splitlines() if "runtime" in line}
    assert "stripped" in line and "`nvcc -cudart shared`" in line


def test_threads_that_run_next_to_the_functions_notice_nothing(run: Run, tmp_path: Path) -> None:
    """A library's thread may call the program, for example its malloc, while it is initialised. The
    program has 32 MiB of code, so that it is redirected while the thread runs on another CPU."""
    library = compiled(
        tmp_path,
        """#include <pthread.h>
        int spin(void);
        volatile int done, turns;
        static pthread_t thread;
        static void *run(void *x) { while (!done) turns += spin(); return x; }
        __attribute__((constructor)) static void begin(void)
        {
            pthread_create(&thread, 0, run, 0);
            while (!turns) ;
        }
        void join(void) { done = 1; pthread_join(thread, 0); }
        """,
        "-shared",
        "-fPIC",
        name="libspins.so",
    )
    spin = '__attribute__((noipa, visibility("default"))) int spin(void) { return 1; }'
    main = """
    void join(void);
    int main(void)
    {
        int n = 0, (*get)(int *) = (int (*)(int *))cudaGetDeviceCount;
        join();
        return printf("%d\\n", get(&n)) < 0;
    }
    """
    args = (str(library), "-rdynamic", "-Wl,--no-as-needed", f"-Wl,-rpath,{tmp_path}", "-lpthread")
    program = compiled(tmp_path, synthetic(spin, LARGE, after=[OWN]) + main, *args)
    for _ in range(3):
        assert run(program).stdout == f"{NO_DEVICE}\n"
