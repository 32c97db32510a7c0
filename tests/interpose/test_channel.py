"""The way into the memfd: lazily opened, sealed, in order, and patient while no proxy serves."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rankfold.interpose.launcher import handshake
from support import channel_server as cs
from support import words
from support.channel_server import MIB, ChannelServer
from support.patience import scaled
from support.preloaded import Build, Run, environment

ADD = """
static void *alloc(size_t n)
{
    void *p;
    OK(cudaMalloc(&p, n));
    return p;
}
"""


def test_nothing_happens_before_the_first_call(build: Build, run: Run, tmp_path: Path) -> None:
    with ChannelServer(tmp_path / "s") as server:
        program = build("int main(void) { return 0; }")
        assert run(program, launcher=server.path).stderr == ""
        assert run("/bin/sh", "-c", "echo hello", launcher=server.path).stdout == "hello\n"
        assert server.greetings == []


def test_asking_how_many_devices_there_are_claims_none(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build("""
    int main(void)
    {
        int n, value;
        cudaDeviceProp p;
        OK(cudaGetDeviceCount(&n));
        IS(n, 2);
        OK(cudaSetDevice(1));
        OK(cudaGetDeviceProperties(&p, 1));
        IS(strcmp(p.name, "test device"), 0);
        IS(p.totalGlobalMem, 64 << 20);
        OK(cudaDeviceGetAttribute(&value, 16, 0));
        IS(value, 4);
        IS(cudaSetDevice(2), INVALID_DEVICE);
        IS(cudaGetLastError(), INVALID_DEVICE);
        IS(cudaGetLastError(), 0);
        return 0;
    }""")
    with ChannelServer(tmp_path / "s") as server:
        run(program, launcher=server.path)
        server.drain()
        assert server.greetings == [0]


def test_the_memfd_is_sealed_and_its_header_says_whose_it_is(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build(
        ADD
        + """
    int main(void)
    {
        errno = 77;
        alloc(1000);
        IS(errno, 77);
        char path[64], line[256];
        ssize_t n;
        for (int fd = 3; fd < 64; fd++) {
            sprintf(path, "/proc/self/fd/%d", fd);
            if ((n = readlink(path, line, sizeof line - 1)) > 0) {
                line[n] = 0;
                IS(strstr(line, "rankfold") != NULL || strstr(line, "socket") != NULL, 0);
            }
        }
        return 0;
    }"""
    )
    with ChannelServer(tmp_path / "s") as server:
        run(program, launcher=server.path)
        server.drain()
        assert server.greetings[0] == 0 and len(server.greetings) == 2
        wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        assert server.seals == wanted and server.size == cs.MEMFD_BYTES
        header = struct.unpack_from("<QIIQIII", server.map)
        version = (handshake.MAJOR, handshake.MINOR)
        assert header == (cs.MAGIC, *version, cs.MEMFD_BYTES, server.greetings[1], 0, 1)
        grant, alloc = server.records
        assert (grant.opcode, alloc.opcode) == (cs.GRANT_OP, cs.ALLOC)
        assert alloc.fields("QQ")[1] == 1000 and alloc.seq == 2


def test_without_a_launcher_there_is_no_device_and_one_line_says_so(build: Build, run: Run) -> None:
    program = build("""
    int main(void)
    {
        int n = 7;
        void *p;
        IS(cudaGetDeviceCount(&n), NO_DEVICE);
        IS(n, 0);
        IS(cudaMalloc(&p, 1), NO_DEVICE);
        IS(cuInit(0), NO_DEVICE);
        return 0;
    }""")
    lines = run(program).stderr.splitlines()
    assert len(lines) == 1 and "not started by rankfold" in lines[0]


def test_a_launcher_that_refuses_is_quoted(build: Build, run: Run, tmp_path: Path) -> None:
    program = build("int main(void) { void *p; IS(cudaMalloc(&p, 1), NO_DEVICE); return 0; }")
    with ChannelServer(tmp_path / "s", refuse="rank 0 has its channel already") as server:
        done = run(program, launcher=server.path)
        server.drain()
        assert done.stderr == "rankfold: no device: rank 0 has its channel already\n"


def test_a_full_ring_waits_and_loses_nothing(build: Build, tmp_path: Path) -> None:
    """Twice what the ring holds, from two threads: every record comes once, in order, numbered."""
    program = build("""
    static void *fill(void *p)
    {
        for (int i = 0; i < 60000; i++)
            OK(cudaMemsetAsync(p, i, 512, 0));
        return NULL;
    }
    int main(void)
    {
        void *a, *b;
        pthread_t other;
        OK(cudaMalloc(&a, 512));
        OK(cudaMalloc(&b, 512));
        pthread_create(&other, NULL, fill, b);
        fill(a);
        pthread_join(other, NULL);
        return 0;
    }""")
    with ChannelServer(tmp_path / "s", automatic=False) as server:
        process = subprocess.Popen([program], env=environment(server.path))
        server.ready.wait()
        server.grant()
        seqs: list[int] = []
        last: dict[int, int] = {}
        for _ in range(2 + 120000):
            record = server.next()
            seqs.append(record.seq)
            if record.opcode == cs.FILL:
                _stream, dst, _pitch, _width, _height = record.fields("QQQQQ")
                (value,) = struct.unpack_from("<I", record.body, 40)
                assert value == (last.get(dst, -1) + 1) % 256
                last[dst] = value
        assert seqs == list(range(2, 2 + len(seqs)))
        assert process.wait() == 0 and not server.peek()
        assert len(last) == 2


def test_a_host_functions_return_wakes_a_server_behind_a_full_ring(
    build: Build, tmp_path: Path
) -> None:
    """The server waits for it before it takes anything more, so no record can report it."""
    program = build("""
    static void nothing(void *p) { (void)p; }
    int main(void)
    {
        void *p;
        OK(cudaMalloc(&p, 512));
        OK(cudaLaunchHostFunc(0, nothing, NULL));
        for (int i = 0; i < 120000; i++)
            OK(cudaMemsetAsync(p, i, 512, 0));
        return 0;
    }""")
    with ChannelServer(tmp_path / "s", automatic=False) as server:
        process = subprocess.Popen([program], env=environment(server.path))
        try:
            server.ready.wait()
            server.grant()
            while (record := server.next()).opcode != cs.HOST_FUNC:
                pass
            waits(lambda: server.get32(cs.SPACE_WAITERS) == 1, "the ring is full")
            server.put32(cs.SLEEPING, 1)
            bell = server.get32(cs.DOORBELL)
            struct.pack_into("<Q", server.map, 0x6000, record.fields("QQ")[1])
            words.set32_and_wake(server.map, 320, 1)
            waits(lambda: server.get32(cs.DOORBELL) > bell, "the server is woken")
            assert server.get32(324) == 1
        finally:
            process.kill()
            process.wait()


def waits(happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + scaled(20)
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def test_replies_may_come_in_any_order(build: Build, tmp_path: Path) -> None:
    program = build("""
    static void *ask(void *stream)
    {
        IS(cudaStreamSynchronize(stream), (long)stream == 1 ? 700 : 719);
        return NULL;
    }
    int main(void)
    {
        pthread_t threads[2];
        pthread_create(&threads[0], NULL, ask, (void *)1);
        pthread_create(&threads[1], NULL, ask, (void *)2);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        return 0;
    }""")
    with ChannelServer(tmp_path / "s", automatic=False) as server:
        process = subprocess.Popen([program], env=environment(server.path))
        server.ready.wait()
        first, second = server.next(), server.next()
        assert first.slot != second.slot
        for record in (second, first):
            server.answer(record, 700 if record.fields("Q") == (1,) else 719)
        assert process.wait() == 0


def test_more_threads_than_reply_slots_all_get_their_answer(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build("""
    static void *ask(void *unused)
    {
        for (int i = 0; i < 20; i++)
            OK(cudaDeviceSynchronize());
        return unused;
    }
    int main(void)
    {
        pthread_t threads[100];
        for (int i = 0; i < 100; i++)
            pthread_create(&threads[i], NULL, ask, NULL);
        for (int i = 0; i < 100; i++)
            pthread_join(threads[i], NULL);
        return 0;
    }""")
    with ChannelServer(tmp_path / "s") as server:
        run(program, launcher=server.path)
        server.drain()
        assert len(server.of(cs.DEVICE_SYNC)) == 2000


def test_a_waiting_client_survives_signals_and_stops(build: Build, tmp_path: Path) -> None:
    """Parked means that no proxy consumes: whatever wakes the client, it continues waiting."""
    program = build("""
    #include <signal.h>
    static _Atomic int caught;
    static void count(int number) { (void)number; caught++; write(1, "!", 1); }
    int main(void)
    {
        signal(SIGUSR1, count);
        OK(cudaDeviceSynchronize());
        IS(caught, 3);
        return 0;
    }""")
    with ChannelServer(tmp_path / "s", automatic=False) as server:
        process = subprocess.Popen([program], env=environment(server.path), stdout=subprocess.PIPE)
        server.ready.wait()
        record = server.next()
        assert process.stdout is not None
        for _ in range(3):
            process.send_signal(signal.SIGUSR1)
            assert process.stdout.read(1) == b"!"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        server.answer(record)
        process.send_signal(signal.SIGCONT)
        with process.stdout:
            assert process.wait() == 0


def test_pageable_data_go_through_bulk_slots_which_come_back(
    build: Build, run: Run, tmp_path: Path
) -> None:
    """40 MiB are more than all slots hold; every byte arrives, and all slots come back."""
    program = build(
        ADD
        + """
    #define BYTES (40u << 20)
    int main(void)
    {
        unsigned *in = malloc(BYTES), *out = calloc(1, BYTES);
        for (unsigned i = 0; i < BYTES / 4; i++)
            in[i] = i;
        void *p = alloc(BYTES);
        OK(cudaMemcpy(p, in, BYTES, HOST_TO_DEVICE));
        OK(cudaMemcpy(out, p, BYTES, 2));
        for (unsigned i = 0; i < BYTES / 4; i++)
            IS(out[i], i);
        OK(cudaMemcpy2D(p, 100, in, 400, 40, 3, 1));
        IS(cudaMemcpy(p, in, BYTES + 1, 1), INVALID_VALUE);
        IS(cudaMemcpy(p, in, 4, 2), INVALID_VALUE);
        IS(cudaMemcpy(out, in, 4, 3), INVALID_VALUE);
        return 0;
    }"""
    )
    memory = bytearray(40 * MIB)
    lock = threading.Lock()

    with ChannelServer(tmp_path / "s") as server:
        base = 0

        def copy(record: cs.Record) -> tuple[int, bytes]:
            nonlocal base
            _stream, dst, src, dst_pitch, src_pitch, width, height = record.fields("QQQQQQQ")
            dst_place, src_place = record.body[56:58]
            base = base or server.of(cs.ALLOC)[0].fields("Q")[0]
            with lock:
                for row in range(height):
                    if src_place == 1:
                        data = server.bulk(src + row * src_pitch, width)
                        at = dst - base + row * dst_pitch
                        memory[at : at + width] = data
                    elif src_place == 2:
                        data = record.body[64 + src + row * src_pitch :][:width]
                        at = dst - base + row * dst_pitch
                        memory[at : at + width] = data
                    if dst_place == 1:
                        at = cs.OFF_BULK + dst + row * dst_pitch
                        from_ = src - base + row * src_pitch
                        server.map[at : at + width] = bytes(memory[from_ : from_ + width])
            return 0, b""

        server.replies[cs.COPY] = copy
        run(program, launcher=server.path)
        server.drain()
        assert server.get64(cs.BULK_BUSY) == 0
        rows = [struct.unpack_from("<10I", memory, 100 * row) for row in range(3)]
        assert rows == [tuple(range(100 * row, 100 * row + 10)) for row in range(3)]


def test_a_group_of_collectives_is_one_run_of_records(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build(
        ADD
        + """
    static ncclComm_t comm;
    static void *noise(void *p)
    {
        for (int i = 0; i < 2000; i++)
            OK(cudaMemsetAsync(p, 0, 16, 0));
        return NULL;
    }
    int main(void)
    {
        ncclUniqueId id;
        float *a = alloc(4096), *b = alloc(4096);
        pthread_t other;
        OK(ncclGetUniqueId(&id));
        OK(ncclCommInitRank(&comm, 1, id, 0));
        pthread_create(&other, NULL, noise, b);
        for (int i = 0; i < 100; i++) {
            OK(ncclGroupStart());
            OK(ncclGroupStart());
            OK(ncclAllReduce(a, a, 1024, 7, 0, comm, 0));
            OK(ncclGroupEnd());
            OK(ncclBroadcast(a, a, 1024, 7, 0, comm, 0));
            OK(ncclAllReduce(a, a, 0, 7, 0, comm, 0));
            OK(ncclAllGather(a, a, 4, 7, comm, 0));
            OK(ncclGroupEnd());
        }
        pthread_join(other, NULL);
        OK(ncclGroupStart());
        IS(ncclAllReduce(a, a, 1025, 7, 0, comm, 0), NCCL_INVALID_ARGUMENT);
        OK(ncclAllReduce(a, a, 1, 7, 0, comm, 0));
        IS(ncclGroupEnd(), NCCL_INVALID_ARGUMENT);
        IS(ncclGroupEnd(), NCCL_INVALID_USAGE);
        OK(ncclAllReduce(a, a, 1, 7, 0, comm, 0));
        return 0;
    }"""
    )
    with ChannelServer(tmp_path / "s") as server:
        run(program, launcher=server.path)
        server.drain()
        left = [
            struct.unpack_from("<I", r.body, 60)[0] if r.opcode == cs.COLLECTIVE else None
            for r in server.records
        ]
        collectives = [value for value in left if value is not None]
        assert collectives == [2, 1, 0] * 100 + [0]
        starts = [i for i, value in enumerate(left) if value == 2]
        assert all(left[i : i + 3] == [2, 1, 0] for i in starts)


def test_a_send_to_oneself_needs_its_receive_in_the_same_group(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build(
        ADD
        + """
    int main(void)
    {
        ncclUniqueId id;
        ncclComm_t comm;
        float *a = alloc(4096), *b = alloc(4096);
        OK(ncclGetUniqueId(&id));
        OK(ncclCommInitRank(&comm, 1, id, 0));
        IS(ncclSend(a, 1024, 7, 0, comm, 0), NCCL_INVALID_USAGE);
        IS(ncclRecv(b, 1024, 7, 0, comm, 0), NCCL_INVALID_USAGE);
        OK(ncclGroupStart());
        OK(ncclSend(a, 1024, 7, 0, comm, 0));
        OK(ncclSend(a, 16, 7, 0, comm, 0));
        OK(ncclRecv(b, 1024, 7, 0, comm, 0));
        IS(ncclGroupEnd(), NCCL_INVALID_USAGE);
        IS(ncclSend(a, 1024, 7, 1, comm, 0), NCCL_INVALID_ARGUMENT);
        IS(ncclSend(a, 1025, 7, 0, comm, 0), NCCL_INVALID_ARGUMENT);
        IS(ncclSend(a, 1024, 99, 0, comm, 0), NCCL_INVALID_ARGUMENT);
        OK(ncclGroupStart());
        OK(ncclRecv(b, 1024, 7, 0, comm, 0));
        OK(ncclSend(a, 1024, 7, 0, comm, 0));
        OK(ncclGroupEnd());
        return 0;
    }"""
    )
    with ChannelServer(tmp_path / "s") as server:
        run(program, launcher=server.path)
        server.drain()
        assert sum(r.opcode == cs.COLLECTIVE for r in server.records) == 2


def test_freed_memory_is_not_reused_before_the_server_has_retired_it(
    build: Build, tmp_path: Path
) -> None:
    program = build("""
    int main(void)
    {
        void *p, *q;
        OK(cudaMalloc(&p, 64 << 20));
        IS(cudaMalloc(&q, 1), OUT_OF_MEMORY);
        OK(cudaFree(p));
        IS(cudaFree(p), INVALID_VALUE);
        size_t available, total;
        OK(cudaMemGetInfo(&available, &total));
        IS(available, 64 << 20);
        OK(cudaMalloc(&q, 64 << 20));
        return 0;
    }""")
    with ChannelServer(tmp_path / "s", automatic=False) as server:
        process = subprocess.Popen([program], env=environment(server.path))
        server.ready.wait()
        server.grant()
        assert server.records[0].fields("Q") == (64 * MIB,)
        assert server.next().opcode == cs.ALLOC
        free = server.next()
        assert free.opcode == cs.FREE
        sync = server.next()
        assert sync.opcode == cs.DEVICE_SYNC, "the second malloc waits"
        server.put64(cs.RETIRED, free.seq)
        server.answer(sync)
        assert server.next().opcode == cs.ALLOC
        assert process.wait() == 0


def test_an_asynchronous_error_is_sticky(build: Build, run: Run, tmp_path: Path) -> None:
    program = build(
        ADD
        + """
    int main(void)
    {
        void *p = alloc(16);
        IS(cudaDeviceSynchronize(), 700);
        for (int i = 0; i < 3; i++) {
            IS(cudaGetLastError(), 700);
            IS(cudaMemsetAsync(p, 0, 16, 0), 700);
            IS(cudaFree(p), 700);
        }
        IS(strcmp(cudaGetErrorName(700), "cudaErrorIllegalAddress"), 0);
        return 0;
    }"""
    )
    with ChannelServer(tmp_path / "s") as server:

        def fail(_record: cs.Record) -> tuple[int, bytes]:
            server.put32(cs.ASYNC_ERROR, 700)
            return 700, b""

        server.replies[cs.DEVICE_SYNC] = fail
        run(program, launcher=server.path)
        server.drain()
        assert len(server.of(cs.FREE)) == 1 and not server.of(cs.FILL)


def test_a_child_made_by_fork_is_not_initialised_and_its_parent_continues(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build(
        ADD
        + """
    int main(void)
    {
        void *p = alloc(16);
        pid_t child = fork();
        if (!child) {
            IS(cudaMalloc(&p, 16), NOT_INITIALIZED);
            IS(cudaDeviceSynchronize(), NOT_INITIALIZED);
            return 0;
        }
        int status;
        waitpid(child, &status, 0);
        IS(status, 0);
        OK(cudaDeviceSynchronize());
        OK(cudaFree(p));
        return 0;
    }"""
    )
    with ChannelServer(tmp_path / "s") as server:
        done = run(program, launcher=server.path)
        server.drain()
        assert "spawn" in done.stderr and len(done.stderr.splitlines()) == 1
        assert len(server.of(cs.FREE)) == 1


def test_a_child_forked_before_the_first_call_opens_a_channel_of_its_own(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build(
        ADD
        + """
    int main(void)
    {
        int n, status;
        OK(cudaGetDeviceCount(&n));
        pid_t child = fork();
        if (!child) {
            alloc(16);
            return 0;
        }
        waitpid(child, &status, 0);
        IS(status, 0);
        return 0;
    }"""
    )
    with ChannelServer(tmp_path / "s") as server:
        run(program, launcher=server.path)
        server.drain()
        assert len(server.of(cs.ALLOC)) == 1


def test_a_second_device_in_one_rank_is_an_error_that_says_so(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build(
        ADD
        + """
    static void *other_thread(void *p)
    {
        int device;
        OK(cudaGetDevice(&device));
        IS(device, 0);
        OK(cudaMemsetAsync(p, 0, 16, 0));
        OK(cudaFree(p));
        return p;
    }
    int main(void)
    {
        void *p, *stream;
        pthread_t thread;
        OK(cudaSetDevice(0));
        OK(cudaDeviceSynchronize());
        OK(cudaSetDevice(1));
        p = alloc(16);
        OK(cudaSetDevice(0));
        IS(cudaMalloc(&stream, 16), NOT_SUPPORTED);
        IS(cudaStreamCreate(&stream), NOT_SUPPORTED);
        pthread_create(&thread, NULL, other_thread, p);
        pthread_join(thread, NULL);
        OK(cudaSetDevice(1));
        alloc(16);
        return 0;
    }"""
    )
    with ChannelServer(tmp_path / "s") as server:
        done = run(program, launcher=server.path)
        server.drain()
        assert done.stderr.count("a rank has one device") == 1


def test_host_functions_run_in_order_on_a_thread_that_only_they_start(
    build: Build, run: Run, tmp_path: Path
) -> None:
    program = build("""
    #include <dirent.h>
    static int threads(void)
    {
        int n = 0;
        DIR *d = opendir("/proc/self/task");
        while (readdir(d))
            n++;
        closedir(d);
        return n - 2;
    }
    static _Atomic int order;
    static void first(void *p) { IS(order++, 0); *(int *)p = 1; }
    static void second(void *stream, int status, void *p)
    {
        IS(stream, NULL);
        IS(status, 0);
        IS(order++, 1);
        *(int *)p = 2;
    }
    int main(void)
    {
        int a = 0;
        volatile int b = 0;
        OK(cudaDeviceSynchronize());
        IS(threads(), 1);
        OK(cudaLaunchHostFunc(0, first, &a));
        OK(cudaStreamAddCallback(0, second, (void *)&b, 0));
        IS(threads(), 2);
        while (order < 2 || !b)
            usleep(100);
        IS(a, 1);
        OK(cudaStreamSynchronize(0));
        return 0;
    }""")
    with ChannelServer(tmp_path / "s") as server:
        head = 0

        def due(record: cs.Record) -> tuple[int, bytes]:
            nonlocal head
            server.put64(0x6000 + head % 256 * 8, record.fields("QQ")[1])
            head += 1
            words.set32_and_wake(server.map, 320, head)
            return 0, b""

        server.replies[cs.HOST_FUNC] = due
        run(program, launcher=server.path)
        server.drain()
        tokens = [r.fields("QQ")[1] for r in server.of(cs.HOST_FUNC)]
        assert [r.fields("QQ")[1] for r in server.of(cs.HOST_DONE)] == tokens
