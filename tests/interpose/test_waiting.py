"""Promise: who waits for the device delays no other; no child inherits a lock that is held."""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from pathlib import Path

import pytest

from support import channel_server as cs
from support.channel_server import MIB, ChannelServer
from support.preloaded import Build, Run, environment

FORKS = """
#define FUNCTIONS 64
#define FORKS 200
static struct { unsigned magic, version; const void *data; void *unused; } wrapper;
static struct { unsigned magic; unsigned short version, header_bytes; unsigned long bytes; } fatbin;
static char hosts[FUNCTIONS];
static void **registered;
static _Atomic bool over;

static void unregister(void) /* as nvcc's own code does */
{
    __cudaUnregisterFatBinary(registered);
}
static void *look_up(void *unused)
{
    const char *name;
    for (int i = 0; !over; i++)
        OK(cudaFuncGetName(&name, hosts + i % FUNCTIONS));
    return unused;
}
static void *make(void *unused)
{
    cudaEvent_t event;
    size_t available, total;
    int flags;
    while (!over) {
        OK(cudaEventCreate(&event));
        OK(cudaMemGetInfo(&available, &total));
        OK(cudaEventDestroy(event));
        OK(cuCtxPushCurrent_v2(unused));
        OK(cuCtxPopCurrent_v2(NULL));
        OK(cuCtxGetFlags((unsigned *)&flags));
    }
    return unused;
}
int main(void)
{
    pthread_t threads[3];
    CUcontext context;
    wrapper.magic = 0x466243b1;
    wrapper.data = &fatbin;
    fatbin.magic = 0xba55ed50;
    registered = __cudaRegisterFatBinary(&wrapper);
    for (int i = 0; i < FUNCTIONS; i++)
        __cudaRegisterFunction(registered, hosts + i, "f", "f", -1, NULL, NULL, NULL, NULL, NULL);
    atexit(unregister);
    OK(cudaFree(0));
    OK(cuCtxGetCurrent(&context));
    void *p;
    OK(cudaMalloc(&p, 1)); /* the device is used */
    pthread_create(&threads[0], NULL, look_up, NULL);
    pthread_create(&threads[1], NULL, look_up, NULL);
    pthread_create(&threads[2], NULL, make, context);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        if (!child) {
            const char *name;
            alarm(60); /* it must not hang */
            OK(cudaFuncGetName(&name, hosts + i % FUNCTIONS));
            OK(cuCtxPushCurrent_v2(context));
            exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        IS(status, 0);
    }
    over = true;
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
"""


def test_a_child_made_while_threads_are_at_work_can_look_up_and_end(
    build: Build, run: Run, tmp_path: Path
) -> None:
    with ChannelServer(tmp_path / "s") as server:
        run(build(FORKS), launcher=server.path)
        server.drain()


SHORT_OF_MEMORY = """
static void *first;
static void *ask_for_more(void *unused)
{
    void *more;
    OK(cudaMalloc(&more, 32 << 20));
    return unused;
}
int main(void)
{
    pthread_t thread;
    void *second;
    size_t available, total;
    cudaPointerAttributes attributes;
    OK(cudaMalloc(&first, 32 << 20));
    OK(cudaMalloc(&second, 32 << 20));
    OK(cudaFree(first));
    pthread_create(&thread, NULL, ask_for_more, NULL);
    getchar(); /* it waits */
    OK(cudaMemGetInfo(&available, &total));
    OK(cudaPointerGetAttributes(&attributes, second));
    OK(cudaFree(second));
    puts("continued");
    fflush(stdout);
    pthread_join(thread, NULL);
    return 0;
}
"""


def test_a_thread_that_waits_for_memory_delays_no_query_about_memory(
    build: Build, tmp_path: Path
) -> None:
    """Nothing that the first one waits for comes before the others have gone on."""
    program = build(SHORT_OF_MEMORY)
    with ChannelServer(tmp_path / "s", automatic=False) as server:
        process = subprocess.Popen(
            [program],
            env=environment(server.path),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin and process.stdout
        server.ready.wait()
        server.grant()
        assert [server.next().opcode for _ in range(2)] == [cs.ALLOC, cs.ALLOC]
        first = server.next()
        assert first.opcode == cs.FREE
        sync = server.next()
        assert sync.opcode == cs.DEVICE_SYNC, "the third malloc waits"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "continued\n"
        second = server.next()
        assert second.opcode == cs.FREE
        server.put64(cs.RETIRED, second.seq)
        server.answer(sync)
        assert server.next().fields("QQ")[1] == 32 * MIB
        assert process.wait() == 0
        process.communicate()


FULL_RING = """
static _Atomic bool freed;
static void *flood(void *p)
{
    while (!freed)
        OK(cudaMemsetAsync(p, 0, 16, 0));
    return p;
}
static void *free_it(void *p)
{
    OK(cudaFree(p));
    freed = true;
    return p;
}
int main(void)
{
    pthread_t threads[2];
    void *first, *second;
    size_t available, total;
    OK(cudaMalloc(&first, 1000));
    OK(cudaMalloc(&second, 1000));
    pthread_create(&threads[0], NULL, flood, first);
    getchar(); /* the ring is full */
    pthread_create(&threads[1], NULL, free_it, second);
    for (int i = 0; i < 1000; i++) {
        OK(cudaMemGetInfo(&available, &total));
        usleep(100);
    }
    puts("continued");
    fflush(stdout);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    return 0;
}
"""


def test_a_thread_that_waits_for_space_in_the_ring_delays_no_query_either(
    build: Build, tmp_path: Path
) -> None:
    program = build(FULL_RING)
    with ChannelServer(tmp_path / "s", automatic=False) as server:
        process = subprocess.Popen(
            [program],
            env=environment(server.path),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin and process.stdout
        server.ready.wait()
        server.grant()
        while server.get64(cs.HEAD) - server.tail < cs.RING_BYTES - 256:
            time.sleep(0.001)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "continued\n"
        while process.poll() is None or server.peek():
            while server.peek():
                server.consume()
            time.sleep(0.001)
        assert process.returncode == 0
        assert len(server.of(cs.FREE)) == 1
        process.communicate()


TWO_MODULES = """
static void *load(void *text)
{
    CUmodule module;
    OK(cudaSetDevice(0)); /* its context is current */
    OK(cuModuleLoadData(&module, text));
    return text;
}
int main(void)
{
    pthread_t thread;
    void *all;
    OK(cudaMalloc(&all, 64 << 20));
    OK(cudaFree(all));
    pthread_create(&thread, NULL, load, ".version 1");
    getchar(); /* its variables wait for memory */
    load(".version 2");
    puts("continued");
    fflush(stdout);
    pthread_join(thread, NULL);
    return 0;
}
"""


def test_a_module_that_waits_for_memory_holds_up_no_other_module(
    build: Build, tmp_path: Path
) -> None:
    program = build(TWO_MODULES)
    with ChannelServer(tmp_path / "s", automatic=False) as server:
        process = subprocess.Popen(
            [program],
            env=environment(server.path),
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin and process.stdout

        def load_next(globals_bytes: int) -> None:
            assert server.next().opcode == cs.MODULE_DATA
            record = server.next()
            assert record.opcode == cs.MODULE_LOAD
            server.answer(record, data=struct.pack("<QII", globals_bytes, 0, 0))

        server.ready.wait()
        server.grant()
        assert server.next().opcode == cs.ALLOC
        free = server.next()
        assert free.opcode == cs.FREE
        load_next(1000)
        sync = server.next()
        assert sync.opcode == cs.DEVICE_SYNC
        process.stdin.write("\n")
        process.stdin.flush()
        load_next(0)
        assert process.stdout.readline() == "continued\n"
        server.put64(cs.RETIRED, free.seq)
        server.answer(sync)
        assert server.next().opcode == cs.ALLOC
        assert server.next().opcode == cs.MODULE_GLOBALS
        server.answer(server.next(), 500)  # it wants nothing filled in
        assert process.wait() == 0
        process.communicate()


@pytest.mark.slow
def test_a_launcher_that_does_not_answer_is_reported(build: Build, tmp_path: Path) -> None:
    """Whether it has stopped before it accepts the connection, with a full queue, or after.
    Nothing ends the call before the launcher does."""
    program = build("int main(void) { return cudaFree(0) != 100; }")
    path = str(tmp_path / "launcher")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as in_queue:
        listener.bind(path)
        listener.listen(0)

        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(
                [program], env=environment(Path(path)), stderr=subprocess.PIPE, text=True
            )

        accepted = start()
        connection = listener.accept()[0]
        in_queue.connect(path)
        outside = start()
        for each in (accepted, outside):
            assert each.stderr is not None
            assert "launcher is unresponsive: no answer for 5 s" in each.stderr.readline()
            assert each.poll() is None
        connection.close()
        listener.close()
        for each in (accepted, outside):
            assert "no device: the launcher" in each.communicate()[1]
            assert each.returncode == 0
