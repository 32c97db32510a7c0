"""The fake driver, built once, and its controls."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import subprocess
from pathlib import Path

from rankfold.paths import REPOSITORY

HERE = Path(__file__).parent
SOURCES = sorted(HERE.glob("*.c"))
INCLUDES = ["interpose/channel", "proxy/hal", "proxy/hal/nvidia", "tests/nvidia"]


def build() -> Path:
    """The fake driver's library, made anew when its source has changed."""
    digest = hashlib.sha256()
    names = (
        "nvidia/driver.h",
        "nvidia/blas.h",
        "reduce.c",
        "reduce.h",
        "elements.h",
        "number.h",
        "checksum.c",
        "checksum.h",
    )
    headers = [REPOSITORY / "proxy/hal" / name for name in names]
    for path in [*SOURCES, *HERE.glob("*.h"), *headers]:
        digest.update(path.read_bytes())
    target = REPOSITORY / f"build/tests/fake-cuda-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        subprocess.run(
            [
                os.environ.get("CC", "gcc"),
                "-std=c11",
                "-D_GNU_SOURCE",
                "-O1",
                "-g",
                "-fPIC",
                "-shared",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fvisibility=hidden",
                *(f"-I{REPOSITORY / name}" for name in INCLUDES),
                "-o",
                fresh,
                *SOURCES,
                "-lpthread",
                "-lm",
            ],
            check=True,
        )
        with contextlib.suppress(FileExistsError):  # another process may use its own by now
            target.hardlink_to(fresh)
        fresh.unlink()
    return target


def libraries(folder: Path, fake: Path) -> Path:
    """A folder with the names of those of NVIDIA's libraries that the fake stands for."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (
        "libcufft.so.12",
        "libcusolver.so.12",
        "libcublas.so.13",
        "libcudnn.so.9",
    ):
        (folder / name).symlink_to(fake)
    # NVIDIA's has this function, which a driver has not: rankfold's own libraries have it, too.
    source = folder / "nccl.c"
    source.write_text("int pncclAllReduce(void) { return 5; }\n")
    library = folder / "libnccl.so.2"
    command = [os.environ.get("CC", "gcc"), "-shared", "-fPIC", "-Wl,--no-as-needed"]
    subprocess.run([*command, "-o", library, source, fake], check=True)
    return folder


class Fake:
    """The fake driver of this process."""

    def __init__(self, path: Path):
        self.path = path
        self._library = ctypes.CDLL(str(path))

    def fail(self, call: str, nth: int = 1, error: int = 2) -> None:
        """The `nth` call of this name from now on fails; 0: none does."""
        self._library.fake_fail(call.encode(), nth, error)

    def calls(self, call: str) -> int:
        return int(self._library.fake_calls(call.encode()))

    def memory(self) -> tuple[int, int]:
        """Bytes of the device: free, all. The thread needs the device's context."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        assert self._library.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        return free.value, total.value

    def computed(self) -> int:
        """cublasComputeType_t of the last matrix product."""
        return int(self._library.fake_computed())

    def most(self) -> int:
        """How many algorithms cuDNN was last asked for."""
        return int(self._library.fake_most())

    def versions(self, cublaslt: int = 130100, cublas: int = 130100) -> None:
        """Set the versions of the libraries: 130100 for 13.1.0."""
        self._library.fake_version(cublaslt, cublas)

    def called(self) -> tuple[str, int]:
        """The call of the last matrix product, and the bytes of its workspace."""
        name = ctypes.create_string_buffer(64)
        self._library.fake_called.restype = ctypes.c_uint64
        workspace = int(self._library.fake_called(name, len(name)))
        return name.value.decode(), workspace

    def settings(self) -> tuple[int, ...]:
        """Settings of cuBLAS's handle: modes of mathematics, pointers, atomics; target of SMs."""
        values = (ctypes.c_int * 4)()
        self._library.fake_settings(values)
        return tuple(values)

    def hold(self, hold: bool) -> None:
        """Host functions, and the work behind them, wait as long as this is true."""
        self._library.fake_hold(int(hold))

    def reset(self) -> None:
        self._library.fake_reset()

    def faults(self) -> str:
        """Which rules of the driver were broken since the last time."""
        text = ctypes.create_string_buffer(4096)
        self._library.fake_faults(text, len(text))
        return text.value.decode()
