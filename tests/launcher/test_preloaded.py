"""A program with libraries of its own, or a sanitizer's runtime, next to ours."""

from __future__ import annotations

import os
import signal
import subprocess

import cuda
import pytest

from rankfold.interpose.launcher.config import built_libraries
from support import privileges
from support.preloaded import LIB

from .conftest import Launched, Rig

RUNTIME = (f"-L{LIB}", "-lcudart", f"-Wl,-rpath-link,{LIB}")

# Counts what the program calls; the next function of the name is ours.
WRAPPER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static int counted;
int cudaGetDeviceCount(int *count)
{
	int (*next)(int *) = dlsym(RTLD_NEXT, "cudaGetDeviceCount");
	counted++;
	return next ? next(count) : 999;
}
__attribute__((destructor)) static void report(void)
{
	if (counted)
		printf("counted %d\\n", counted);
}
"""
COUNTS = """
#include <stdio.h>
int cudaGetDeviceCount(int *count);
int main(void)
{
	int devices = 0, error = cudaGetDeviceCount(&devices);
	printf("%d %d\\n", error, devices);
	return 0;
}
"""
ALLOCATES = """
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>
int cudaMalloc(void **pointer, size_t bytes);
int main(int argc, char **argv)
{
	void *pointer;
	if (argc > 1 && setuid(65534))
		return 2;
	printf("%d\\n", cudaMalloc(&pointer, 4));
	return 0;
}
"""
# As allocators are that wrap libc's: they look it up in the first call, long before main().
ALLOCATOR = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <unistd.h>
static int calls;
void *malloc(size_t bytes)
{
	static void *(*next)(size_t);
	if (!next)
		next = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
	calls++;
	return next(bytes);
}
__attribute__((destructor)) static void report(void)
{
	if (write(1, calls ? "allocated\\n" : "unused\\n", calls ? 10 : 7) < 0)
		_exit(9);
}
"""
# The last of six arguments is on the stack.
CALLS = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	long file = syscall(SYS_openat, AT_FDCWD, argv[0], O_RDONLY), named;
	char first[16] = "", expected = 0, name[16] = "";
	pread((int)file, &expected, 1, 8192 + 7);
	char *at = (char *)syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE, file, 8192);
	named = syscall(SYS_prctl, PR_SET_NAME, "renamed", 0, 0, 0);
	prctl(PR_GET_NAME, name);
	printf("%d %ld %s %d\\n", at[7] == expected, named, name, first[0]);
	return (int)syscall(SYS_close, file);
}
"""
THREADS = """
#include <cstdio>
#include <thread>
int main()
{
	int x = 0;
	std::thread thread([&] { x++; });
	thread.join();
	printf("%d\\n", x);
}
"""


def compiled(rig: Rig, text: str, name: str, *flags: str) -> str:
    source, target = rig.folder / f"{name}.cc", rig.folder / name
    source.write_text(text)
    compiler = ["g++"] if "std::" in text else ["gcc", "-xc"]
    command = [*compiler, "-O1", str(source), "-o", str(target), *flags, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in done.stderr and "-fsanitize" in " ".join(flags):
        privileges.missing(f"gcc has no runtime for {flags[0]}")
    assert done.returncode == 0, done.stderr
    return str(target)


def library(rig: Rig, text: str, name: str) -> str:
    return compiled(rig, text, name, "-shared", "-fPIC")


def launch(rig: Rig, *command: str, **fields: object) -> Launched:
    return rig.launch(*command, preload=list(built_libraries()), **fields)


def printed(launched: Launched) -> list[str]:
    end = launched.end()
    assert end["exit_status"] == 0, (end, launched.text("err"))
    assert launched.text("err") == ""
    return launched.text("out").splitlines()


@pytest.mark.parametrize("kind", ["thread", "address", "undefined", "leak"])
def test_a_program_built_with_a_sanitizer_runs_as_a_rank(rig: Rig, kind: str) -> None:
    """Its runtime looks functions up before it is ready, and wants to be the first library."""
    program = compiled(rig, THREADS, "threads", f"-fsanitize={kind}")
    assert printed(launch(rig, program)) == ["1"]


@pytest.mark.parametrize("kind", ["address", "undefined"])
def test_a_static_runtime_in_a_program_built_with_a_sanitizer_is_ours(rig: Rig, kind: str) -> None:
    compiled(rig, COUNTS, "counts.o", "-c", f"-fsanitize={kind}")
    objects, target = [rig.folder / "counts.o"], rig.folder / "counts"
    program = cuda.link(objects, target, "-Xcompiler", f"-fsanitize={kind}")
    assert printed(launch(rig, str(program))) == ["0 4"]


def test_the_thread_sanitizer_s_addresses_are_a_named_reason(rig: Rig) -> None:
    """It keeps the addresses of a rank's memory free."""
    launched = launch(rig, compiled(rig, ALLOCATES, "allocates", "-fsanitize=thread", *RUNTIME))
    assert launched.end()["exit_status"] == 0, launched.text("err")
    assert launched.text("out") == "100\n"
    assert "its addresses are taken, as by -fsanitize=thread" in launched.text("err")


@pytest.mark.parametrize("where", ["env", "inherited"])
def test_a_preloaded_wrapper_sees_the_calls_and_reaches_ours(
    rig: Rig, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, wrapper = (
        compiled(rig, COUNTS, "counts", *RUNTIME),
        library(rig, WRAPPER, "wrapper.so"),
    )
    if where == "inherited":
        monkeypatch.setenv("LD_PRELOAD", wrapper)
    env = {"LD_PRELOAD": wrapper} if where == "env" else {}
    launched = launch(rig, program, env=env)
    monkeypatch.undo()
    assert printed(launched) == ["0 4", "counted 1"]


def test_a_preloaded_allocator_finds_libc_s(rig: Rig) -> None:
    allocator = library(rig, ALLOCATOR, "allocator.so")
    launched = launch(rig, compiled(rig, THREADS, "threads"), env={"LD_PRELOAD": allocator})
    assert printed(launched) == ["allocated", "1"]


def test_system_calls_get_all_their_arguments(rig: Rig) -> None:
    """`syscall` is ours: it sees calls whose effect a checkpoint would lose."""
    assert printed(launch(rig, compiled(rig, CALLS, "calls"))) == ["1 0 renamed 0"]


def test_nvidia_s_own_libraries_stay_behind_ours(rig: Rig) -> None:
    """A user who preloads another NCCL, as clusters do, still reaches ours."""
    theirs = COUNTS.partition("int main")[0] + "int cudaGetDeviceCount(int *n) { return 999; }\n"
    preloaded = library(rig, theirs, "libcudart.so.13.0.1")
    program = compiled(rig, COUNTS, "counts", *RUNTIME)
    launched = launch(rig, program, env={"LD_PRELOAD": preloaded})
    assert printed(launched) == ["0 4"]


def test_a_rank_that_becomes_another_user_has_its_device_or_a_reason(rig: Rig) -> None:
    if os.getuid() != 0:
        privileges.missing("needs root, to become another user")
    launched = launch(rig, compiled(rig, ALLOCATES, "allocates", *RUNTIME), "drops root")
    if rig.namespaces == "none":
        assert launched.end()["exit_status"] == 0
        assert launched.text("out") == "100\n"
        assert "make the first CUDA call before that" in launched.text("err")
        return
    with launched.client() as client:
        client.request("claim", epoch=1, device="d", timeout=20)  # granted when it has its channel
        client.request("signal", signum=signal.SIGKILL)
    assert (launched.end()["signal"], launched.text("err")) == (signal.SIGKILL, "")
