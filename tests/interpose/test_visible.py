"""CUDA_VISIBLE_DEVICES: which of the job's devices a process sees, in which order."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.channel_server import ChannelServer
from support.patience import scaled
from support.preloaded import Build, environment

ALL = [0, 1, 2, 3]
UUID = "GPU-72616e6b-666f-6c64-2d64-6576696365{:02x}"

SOURCE = """
int main(void)
{
    int n = -1, driver, value, back;
    unsigned nvml;
    char bus[32], text[96];
    cudaDeviceProp p;
    nvmlDevice_t handle;
    IS(nvmlInit_v2(), 0);            /* before the variable is read, and it does not read it */
    IS(nvmlDeviceGetCount_v2(&nvml), 0);
    IS(nvml, 4);
    errno = 77;
    int error = cudaGetDeviceCount(&n);
    IS(errno, 77);
    IS(cuInit(0), error);
    IS(error, n ? 0 : NO_DEVICE);
    for (int i = 0; i < n; i++) {
        OK(cuDeviceGet(&driver, i));
        IS(driver, i);
        OK(cudaGetDeviceProperties(&p, i));
        OK(cudaDeviceGetAttribute(&value, 33, i));
        IS(value, p.pciBusID);
        OK(cudaDeviceGetPCIBusId(bus, sizeof bus, i));
        OK(cudaDeviceGetByPCIBusId(&back, bus));
        IS(back, i);
        IS(p.uuid[15], p.pciBusID - 1);
        printf("%d ", p.pciBusID - 1);
    }
    void *memory;
    size_t bytes;
    int expected = n ? 0 : NO_DEVICE;
    IS(cudaFree(0), expected);
    IS(cudaMalloc(&memory, 512), expected);
    IS(cudaMemGetInfo(&bytes, &bytes), expected);
    IS(cudaDeviceSynchronize(), expected);
    IS(cudaHostAlloc(&memory, 512, 0), expected);
    if (n) {
        nvmlMemory_t used;
        unsigned mine = 1;
        nvmlProcessInfo_t process;
        OK(cudaGetDeviceProperties(&p, 0));
        for (unsigned i = 0; i < nvml; i++) { /* the job's devices: it uses one */
            IS(nvmlDeviceGetHandleByIndex_v2(i, &handle), 0);
            IS(nvmlDeviceGetMemoryInfo(handle, &used), 0);
            IS(used.used > 0, (int)i == p.uuid[15]);
            mine = 1;
            IS(nvmlDeviceGetComputeRunningProcesses_v3(handle, &mine, &process), 0);
            IS(mine, (int)i == p.uuid[15]);
        }
    }
    IS(cudaSetDevice(n), n ? INVALID_DEVICE : NO_DEVICE);
    IS(cudaGetDeviceProperties(&p, n), n ? INVALID_DEVICE : NO_DEVICE);
    for (unsigned i = 0; i < nvml; i++) {
        bool seen = false;
        for (int j = 0; j < n; j++) {
            OK(cudaGetDeviceProperties(&p, j));
            seen |= p.pciBusID == (int)i + 1;
        }
        sprintf(bus, "0000:%02X:00.0", i + 1);
        IS(cudaDeviceGetByPCIBusId(&back, bus), seen ? 0 : INVALID_DEVICE);
    }
    setenv("CUDA_VISIBLE_DEVICES", "3", 1); /* it is too late */
    IS(cudaGetDeviceCount(&back), error);
    IS(back, n);
    IS(nvmlDeviceGetCount_v2(&nvml), 0);
    IS(nvml, 4);
    IS(nvmlDeviceGetHandleByIndex_v2(3, &handle), 0);
    IS(nvmlDeviceGetUUID(handle, text, sizeof text), 0);
    IS(strcmp(text + strlen(text) - 2, "03"), 0);
    return 0;
}"""


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (None, ALL),
        ("0,1,2,3", ALL),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 1 , 0 ", [1, 0]),
        ("", []),
        ("-1", []),
        ("4", []),
        ("1,4,0", [1]),
        ("1,-1,0", [1]),
        ("0,,1", [0]),
        ("+1", [1]),
        ("+", []),
        ("+,1", []),
        ("0,1,0", []),
        ("1gpu2,2ampere", [1, 2]),
        ("0-2", [0]),
        ("none", []),
        (UUID.format(2), [2]),
        (f"{UUID.format(3)},{UUID.format(0)}", [3, 0]),
        ("GPU-72616e6b", []),
        (f"{UUID.format(1)},1", []),
        ("GPU-ffff,0", []),
        ("99999999999999999999", []),
        ("1," * 300, []),
    ],
)
def test_visible_devices(build: Build, tmp_path: Path, said: str | None, seen: list[int]) -> None:
    program = build(SOURCE, ("cudart", "cuda", "nvidia-ml"))
    with ChannelServer(tmp_path / "s", devices=4) as server:
        env = environment(server.path)
        env.pop("CUDA_VISIBLE_DEVICES", None)
        if said is not None:
            env["CUDA_VISIBLE_DEVICES"] = said
        done = subprocess.run(
            [program], env=env, capture_output=True, text=True, timeout=scaled(60)
        )
    assert done.returncode == 0, done.stderr
    assert [int(each) for each in done.stdout.split()] == seen


RESETS = """
int main(int argc, char **argv)
{
    void *memory;
    size_t before, after, all;
    int used = atoi(argv[1]), other = atoi(argv[2]);
    OK(cudaSetDevice(used));
    OK(cudaMalloc(&memory, 4 << 20));
    OK(cudaMemGetInfo(&before, &all));
    if (other >= 0) { /* nothing was ever made there */
        OK(cudaSetDevice(other));
        OK(cudaDeviceReset());
        OK(cudaSetDevice(used));
        OK(cudaMemGetInfo(&after, &all));
        IS(after, before);
    }
    OK(cudaDeviceReset());
    OK(cudaSetDevice(used));
    OK(cudaMemGetInfo(&after, &all));
    IS(after > before, 1);
    IS(cudaFree(memory), 1);
    return 0;
}"""


@pytest.mark.parametrize(
    ("said", "used", "other"),
    [(None, 0, -1), ("1", 0, -1), ("1,0", 0, 1), ("1,2,0", 1, 2), ("3,0", 1, 0)],
)
def test_a_reset_affects_the_used_device(
    build: Build, tmp_path: Path, said: str | None, used: int, other: int
) -> None:
    program = build(RESETS)
    with ChannelServer(tmp_path / "s", devices=4) as server:
        env = environment(server.path)
        env.pop("CUDA_VISIBLE_DEVICES", None)
        if said is not None:
            env["CUDA_VISIBLE_DEVICES"] = said
        command = [str(program), str(used), str(other)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=scaled(60))
    assert done.returncode == 0, done.stderr


def test_the_driver_reads_it_when_it_is_initialised(build: Build, tmp_path: Path) -> None:
    program = build("""
    int main(void)
    {
        int n;
        OK(cuInit(0));
        setenv("CUDA_VISIBLE_DEVICES", "2", 1);
        OK(cuDeviceGetCount(&n));
        IS(n, 2);
        return 0;
    }""")
    with ChannelServer(tmp_path / "s", devices=4) as server:
        env = {**environment(server.path), "CUDA_VISIBLE_DEVICES": "1,0"}
        done = subprocess.run(
            [program], env=env, capture_output=True, text=True, timeout=scaled(60)
        )
    assert done.returncode == 0, done.stderr
