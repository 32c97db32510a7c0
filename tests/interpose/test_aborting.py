"""Promise: a watchdog gets through to its abort, whatever other threads of the rank are doing."""

from __future__ import annotations

import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import channel_server as cs
from support import words
from support.channel_server import ChannelServer, Record
from support.fleet import until
from support.preloaded import Build, Run, environment
from support.ring_client import opcodes

EVENT_RECORD, EVENT_DESTROY, STREAM_DESTROY, COMM_DESTROY, COMM_ABORT = opcodes(
    "EVENT_RECORD", "EVENT_DESTROY", "STREAM_DESTROY", "COMM_DESTROY", "COMM_ABORT"
)
INVALID_HANDLE, ASLEEP = 400, cs.CONTRACT.constants["RF_SLOT_ASLEEP"]

LOCK_HOOK = """
static pthread_barrier_t at_lock, aborted;
static _Thread_local bool pauses; /* at the next lock that this thread acquires */
int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static int (*own)(pthread_mutex_t *);
    if (!own)
        own = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
    if (pauses) {
        pauses = false;
        pthread_barrier_wait(&at_lock);
        pthread_barrier_wait(&aborted);
    }
    return own(mutex);
}
static void abort_while_it_pauses(ncclComm_t *comm, void *(*group)(void *))
{
    pthread_t thread;
    pthread_barrier_init(&at_lock, NULL, 2);
    pthread_barrier_init(&aborted, NULL, 2);
    pthread_create(&thread, NULL, group, NULL);
    pthread_barrier_wait(&at_lock);
    OK(ncclCommAbort(*comm));
    pthread_barrier_wait(&aborted);
    pthread_join(thread, NULL);
}
"""


@contextmanager
def started(program: Path, server: ChannelServer) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [program],
        env=environment(server.path),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def proceed(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


FULL_RING = """
static _Atomic bool over;
static void *p;
static void *flood(void *stream)
{
    static char bytes[4096]; /* they travel in the record */
    while (!over)
        OK(cudaMemcpyAsync(p, bytes, sizeof bytes, 1, stream));
    return NULL;
}
int main(void)
{
    pthread_t thread;
    cudaStream_t busy, idle;
    cudaEvent_t recorded, other;
    float ms;
    OK(cudaMalloc(&p, 4096));
    OK(cudaStreamCreateWithFlags(&busy, 1));
    OK(cudaStreamCreateWithFlags(&idle, 1));
    OK(cudaEventCreate(&recorded));
    OK(cudaEventCreate(&other));
    OK(cudaEventRecord(recorded, busy));
    pthread_create(&thread, NULL, flood, busy);
    getchar(); /* the ring is full, and the other thread waits for space */
    IS(cudaStreamQuery(busy), NOT_READY);
    IS(cuStreamQuery(busy), NOT_READY);
    OK(cudaStreamQuery(idle));
    OK(cudaStreamQuery(0));
    IS(cudaEventQuery(recorded), NOT_READY);
    OK(cudaEventQuery(other));
    IS(cudaEventElapsedTime(&ms, recorded, recorded), NOT_READY);
    IS(cudaEventElapsedTime(&ms, recorded, other), INVALID_HANDLE); /* never recorded */
    OK(cudaEventDestroy(recorded));
    OK(cudaEventDestroy(other));
    OK(cudaStreamDestroy(idle));
    IS(cudaEventQuery(recorded), INVALID_HANDLE);
    puts("continued");
    fflush(stdout);
    over = true;
    pthread_join(thread, NULL);
    OK(cudaEventCreate(&other));
    return 0;
}
"""


def test_queries_and_destructions_do_not_wait_for_space_in_the_ring(
    build: Build, tmp_path: Path
) -> None:
    """The server has consumed nothing, so it knows no stream and no event. The record
    of a destruction enters the ring after the work that names the destroyed object."""
    program = build(FULL_RING)
    with (
        ChannelServer(tmp_path / "s", automatic=False) as server,
        started(program, server) as process,
    ):
        server.ready.wait()
        server.grant()
        until(lambda: server.get64(cs.HEAD) - server.tail > cs.RING_BYTES - 8192)
        proceed(process)

        assert process.stdout
        output = process.stdout

        def continued() -> bool:
            server.answer_urgent(INVALID_HANDLE)
            return bool(select.select([output], [], [], 0)[0])

        until(continued)
        while process.poll() is None or server.peek():
            while server.peek():
                server.consume()
            time.sleep(0.001)
        assert process.returncode == 0
        order = [record.opcode for record in server.records]
        assert order.count(EVENT_DESTROY) == 2 and order.count(STREAM_DESTROY) == 1
        assert order.index(EVENT_RECORD) < order.index(EVENT_DESTROY)


GROUP = (
    LOCK_HOOK
    + """
static ncclComm_t gone, other;
static void *p;
static void *end_a_group(void *unused)
{
    OK(ncclGroupStart());
    OK(ncclAllReduce(p, p, 4, 7, 0, gone, 0));
    OK(ncclAllReduce(p, p, 4, 7, 0, other, 0));
    OK(ncclAllReduce(p, p, 4, 7, 0, gone, 0));
    pauses = true;
    OK(ncclGroupEnd());
    return unused;
}
int main(void)
{
    OK(cudaMalloc(&p, 1000));
    OK(ncclCommInitAll(&gone, 1, NULL));
    OK(ncclCommInitAll(&other, 1, NULL));
    abort_while_it_pauses(&gone, end_a_group);
    return 0;
}
"""
)


def number(record: Record) -> int:
    return record.fields("Q")[0]


def test_an_abort_just_before_a_group_is_posted_removes_its_operations(
    build: Build, run: Run, tmp_path: Path
) -> None:
    """The communicator is gone: the server would refuse them, and the whole group with them."""
    with ChannelServer(tmp_path / "s") as server:
        run(build(GROUP, args=("-rdynamic",)), launcher=server.path)
        server.drain()
        gone, other = map(number, server.of(cs.COMM_INIT))
        assert [number(record) for record in server.of(COMM_ABORT)] == [gone]
        (posted,) = server.of(cs.COLLECTIVE)
        _stream, comm, *_, group_left = posted.fields("QQQQQQIIII")
        assert (comm, group_left) == (other, 0)


JOINING = (
    LOCK_HOOK
    + """
static ncclComm_t comm;
static void *end_a_group(void *unused)
{
    IS(ncclGroupEnd(), 3); /* ncclInternalError, as when the server refuses it */
    return unused;
}
static void *join(void *unused)
{
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&comm, 1, id, 0));
    pauses = true;
    return end_a_group(unused);
}
int main(void)
{
    OK(cudaFree(0));
    abort_while_it_pauses(&comm, join);
    IS(comm, NULL);
    return 0;
}
"""
)


def test_a_communicator_that_is_aborted_before_its_request_is_posted_is_not_created(
    build: Build, run: Run, tmp_path: Path
) -> None:
    """Nothing would end it: its number was released before."""
    with ChannelServer(tmp_path / "s") as server:
        run(build(JOINING, args=("-rdynamic",)), launcher=server.path)
        server.drain()
        assert server.of(cs.COMM_INIT) == [] and len(server.of(COMM_ABORT)) == 1


DESTROYED = """
static ncclComm_t first, second;
static void *destroy(void *unused)
{
    OK(ncclCommDestroy(first)); /* waits until its request is answered */
    return unused;
}
int main(void)
{
    pthread_t thread;
    ncclUniqueId id;
    ncclConfig_t config = {.size = sizeof config, .magic = 0xcafebeef, .blocking = 0};
    OK(ncclGetUniqueId(&id));
    IS(ncclCommInitRankConfig(&first, 1, id, 0, &config), 7); /* ncclInProgress */
    pthread_create(&thread, NULL, destroy, NULL);
    getchar(); /* the request is answered */
    IS(ncclCommInitRankConfig(&second, 1, id, 0, &config), 7);
    pthread_join(thread, NULL);
    return 0;
}
"""


def test_a_destruction_waits_for_its_own_request_only(build: Build, tmp_path: Path) -> None:
    """The waiting thread gets its own answer, not the next one in the same reply slot, which
    another thread may use as soon as the first is answered. The answer wakes no thread here, as if
    the waiting thread were slow."""
    with (
        ChannelServer(tmp_path / "s", automatic=False) as server,
        started(build(DESTROYED), server) as process,
    ):
        server.ready.wait()
        request = server.next()
        assert request.opcode == cs.COMM_INIT
        state = cs.OFF_SLOTS + (request.slot - 1) * cs.SLOT_BYTES
        until(lambda: server.get32(state) == ASLEEP)
        server.put32(state, cs.ANSWERED)
        proceed(process)
        assert server.next().opcode == cs.COMM_INIT
        words.add32_and_wake(server.map, state, 0)
        until(server.peek, 2, "the destruction continues")
        assert server.next().opcode == COMM_DESTROY
        assert process.wait() == 0
