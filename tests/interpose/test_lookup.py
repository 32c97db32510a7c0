"""The side doors: dlsym, dlopen, cuGetProcAddress reach us; what is not covered says so."""

from __future__ import annotations

import subprocess
from pathlib import Path

import cuda
import pytest

from support import channel_server as cs
from support.channel_server import ChannelServer
from support.preloaded import Build, Run, environment


def test_functions_are_found_by_every_way_that_programs_look(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build(
        """
    static void works(void *f)
    {
        int version = 0;
        IS(f != NULL, 1);
        OK(((CUresult (*)(int *))f)(&version));
        IS(version, 13000);
    }
    int main(void)
    {
        const char *names[] = {"libcuda.so.1", "libcuda.so", "/nowhere/libcuda.so.1"};
        for (int i = 0; i < 3; i++) {
            void *library = dlopen(names[i], RTLD_NOW);
            IS(library != NULL, 1);
            works(dlsym(library, "cuDriverGetVersion"));
            IS(dlsym(library, "cuNoSuchThing") == NULL, 1);
        }
        void *runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
        works(dlsym(runtime, "cudaRuntimeGetVersion"));
        works(dlvsym(runtime, "cudaRuntimeGetVersion", "libcudart.so.13"));
        IS(dlvsym(runtime, "cudaRuntimeGetVersion", "libcudart.so.13") ==
           dlsym(runtime, "cudaRuntimeGetVersion"), 1);
        IS(dlvsym(runtime, "cudaRuntimeGetVersion", "libcudart.so.1") == NULL, 1);
        IS(dlvsym(RTLD_DEFAULT, "getpid", "GLIBC_2.2.5") == (void *)getpid, 1);
        works(dlsym(RTLD_DEFAULT, "cudaDriverGetVersion"));
        IS(dlopen("libnccl.so.2", RTLD_NOW) != NULL, 1);
        IS(dlopen("libnosuch.so", RTLD_NOW) == NULL, 1);
        IS(strstr(dlerror(), "libnosuch.so") != NULL, 1);

        CUresult (*find)(const char *, void **, int, cuuint64_t, int *);
        void *f;
        int status;
        find = (void *)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuGetProcAddress_v2");
        OK(find("cuDriverGetVersion", &f, 13000, 0, &status));
        works(f);
        OK(find("cuMemAlloc", &f, 13000, 0, NULL));
        IS(f == dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), 1);
        OK(find("cuCtxCreate", &f, 13000, 0, NULL));
        IS(f == dlsym(RTLD_DEFAULT, "cuCtxCreate_v4"), 1);
        OK(find("cuCtxCreate", &f, 12000, 0, NULL));
        IS(f == dlsym(RTLD_DEFAULT, "cuCtxCreate_v3"), 1);
        OK(find("cuCtxCreate", &f, 11000, 0, NULL));
        IS(f == dlsym(RTLD_DEFAULT, "cuCtxCreate_v2"), 1);
        OK(find("cuGraphInstantiate", &f, 13000, 0, NULL));
        IS(f == dlsym(RTLD_DEFAULT, "cuGraphInstantiateWithFlags"), 1);
        OK(find("cuStreamSynchronize", &f, 13000, 2, NULL));
        IS(f == dlsym(RTLD_DEFAULT, "cuStreamSynchronize_ptsz"), 1);
        OK(find("cuNoSuchThing", &f, 13000, 0, &status));
        IS(status, 1);
        IS(f == NULL, 1);
        IS(find("cuNoSuchThing", &f, 13000, 0, NULL), NOT_FOUND);

        cudaError_t (*entry_point)(const char *, void **, unsigned, unsigned long long, int *);
        entry_point = (void *)dlsym(runtime, "cudaGetDriverEntryPointByVersion");
        OK(entry_point("cuDriverGetVersion", &f, 12040, 0, &status));
        works(f);
        return 0;
    }""",
        link=(),
    )
    assert run(program).stderr == ""


def test_a_function_younger_than_the_caller_s_version_is_reported(build: Build, run: Run) -> None:
    program = build("""
    enum { VERSION_NOT_SUFFICIENT = 2 };
    int main(void)
    {
        void *f;
        int status;
        OK(cuGetProcAddress_v2("cuLibraryLoadData", &f, 11080, 0, &status));
        IS(status, VERSION_NOT_SUFFICIENT);
        IS(f == NULL, 1);
        IS(cuGetProcAddress("cuLibraryLoadData", &f, 11080, 0), NOT_FOUND);
        OK(cuGetProcAddress_v2("cuLibraryLoadData", &f, 12000, 0, &status));
        IS(status, 0);
        OK(cudaGetDriverEntryPointByVersion("cuKernelGetName", &f, 12020, 0, &status));
        IS(status, VERSION_NOT_SUFFICIENT);
        return 0;
    }""")
    assert run(program).stderr == ""


def test_lookups_for_the_caller_use_the_caller_s_library(
    build: Build, run: Run, tmp_path: Path
) -> None:
    """RTLD_NEXT means "after me", and a library finds its neighbours through its own $ORIGIN."""
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "neighbour.c").write_text("int neighbour(void) { return 42; }\n")
    (tmp_path / "wrap.c").write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <unistd.h>\n"
        'pid_t getpid(void) { pid_t (*next)(void) = dlsym(RTLD_NEXT, "getpid");\n'
        "  return next == getpid ? -1 : -next(); }\n"
        'int open_neighbour(void) { return dlopen("libneighbour.so", RTLD_NOW) != 0; }\n'
    )
    for name, target, extra in (
        ("neighbour", folder / "libneighbour.so", []),
        ("wrap", folder / "libwrap.so", ["-Wl,-rpath,$ORIGIN"]),
    ):
        subprocess.run(
            [
                "gcc",
                "-O1",
                "-shared",
                "-fPIC",
                str(tmp_path / f"{name}.c"),
                "-o",
                str(target),
                *extra,
                "-ldl",
            ],
            check=True,
        )
    program = build(
        """
    int open_neighbour(void);
    int main(void)
    {
        IS(getpid() < 0, 1);
        IS(open_neighbour(), 1);
        return 0;
    }""",
        link=(),
        args=(f"-L{folder}", "-lwrap", f"-Wl,-rpath,{folder}"),
    )
    run(program)


def test_a_function_that_is_not_covered_names_itself_once_and_fails(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build(
        """
    int cudaDestroyExternalMemory(void *);
    int cudaMallocArray(void **, const void *, size_t, size_t, unsigned);
    int ncclGroupSimulateEnd(ncclSimInfo_t *);
    int main(void)
    {
        void *p;
        for (int i = 0; i < 3; i++) {
            IS(cudaDestroyExternalMemory(NULL), NOT_SUPPORTED);
            IS(cudaGetLastError(), NOT_SUPPORTED);
            IS(cudaMallocArray(&p, NULL, 1, 1, 0), NOT_SUPPORTED);
            IS(ncclGroupSimulateEnd(NULL), NCCL_INVALID_USAGE);
        }
        return 0;
    }"""
    )
    lines = run(program).stderr.splitlines()
    assert [line.split(":")[1].strip() for line in lines] == [
        "cudaDestroyExternalMemory",
        "cudaMallocArray",
        "ncclGroupSimulateEnd",
    ]
    assert "arrays and textures" in lines[1]


def test_without_the_preload_the_shims_alone_serve(build: Build, tmp_path: Path) -> None:
    program = build("int main(void) { int n; OK(cudaGetDeviceCount(&n)); IS(n, 2); return 0; }")
    with ChannelServer(tmp_path / "s") as server:
        env = environment(server.path)
        del env["LD_PRELOAD"]
        done = subprocess.run([program], env=env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


KERNEL = """
#include <cstdio>
#include <cuda_runtime.h>
__global__ void k(int *p) { *p = 1; }
int main(void) {
"""


def cuda_program(body: str, *args: str) -> Path:
    return cuda.build(KERNEL + body + "}", args=args)


def put_text(server: ChannelServer, bulk: int, text: bytes) -> None:
    at = cs.OFF_BULK + bulk * cs.BULK_BYTES
    server.map[at : at + len(text) + 1] = text + b"\0"


@pytest.mark.parametrize("refused, error", [("module", 218), ("kernel", 200), ("kernel", 500)])
def test_a_refused_module_or_kernel_names_its_reason_once(
    run: Run, tmp_path: Path, refused: str, error: int
) -> None:
    """Except a kernel that a module lacks: programs look for those."""
    program = cuda_program("""
        for (int i = 0; i < 2; i++) {
            k<<<1, 1>>>(nullptr);
            printf("%d\\n", cudaGetLastError());
        }
    """)
    with ChannelServer(tmp_path / "s") as server:

        def module(record: cs.Record) -> tuple[int, bytes]:
            if refused != "module":
                return 0, bytes(16)
            put_text(server, record.fields("QQII")[3] - 1, b"line 3: not PTX")
            return error, bytes(16)

        def function(record: cs.Record) -> tuple[int, bytes]:
            put_text(server, record.fields("QQI")[2], b"kernel k: too large")
            return error, bytes(32)

        server.replies[cs.MODULE_LOAD] = module
        server.replies[cs.FUNCTION_GET] = function
        done = run(program, launcher=server.path)
    assert done.stdout.split() == [str(error)] * 2
    reason = f"a module of {program} cannot be loaded: line 3: not PTX"
    expected = {"module": [f"rankfold: {reason}"], "kernel": ["rankfold: kernel k: too large"]}
    assert done.stderr.splitlines() == ([] if error == 500 else expected[refused])


@pytest.mark.parametrize("error", [0, 209])
def test_a_module_is_sent_when_its_first_kernel_is_launched(
    run: Run, tmp_path: Path, error: int
) -> None:
    program = cuda_program("""
        int *p;
        cudaMalloc(&p, 4);
        puts("before");
        k<<<2, 3>>>(p);
        printf("%d\\n", cudaGetLastError());
        k<<<1, 1025>>>(p);
        printf("%d\\n", cudaGetLastError());
    """)
    with ChannelServer(tmp_path / "s") as server:
        server.serve_kernels(error)
        done = run(program, launcher=server.path)
        server.drain()
        assert done.stdout.split() == ["before", str(error), str(error or 1)]
        opcodes = [r.opcode for r in server.records]
        assert opcodes.index(cs.ALLOC) < opcodes.index(cs.MODULE_DATA)
        if error:
            assert done.stderr.count("-arch=compute_75") == 1
            return
        (launch,) = server.of(cs.LAUNCH)
        (alloc,) = server.of(cs.ALLOC)
        assert launch.fields("QQ6I4I")[2:8] == (2, 1, 1, 3, 1, 1)
        assert launch.body[56:64] == alloc.body[:8], "the parameter is the pointer"
