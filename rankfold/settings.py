"""Variables that every rank has unless its user sets them: settings of frameworks."""

from __future__ import annotations

from collections.abc import Container

SETTINGS = {
    # PyTorch's own allocator would put buffers that ranks share and others into one segment.
    "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync",
    # PyTorch would prefer cuDNN's attention, which only NVIDIA's library serves, to its kernels.
    "TORCH_CUDNN_SDPA_DEPRIORITIZED": "1",
    # With libuv, PyTorch's TCPStore uses io_uring, which cannot be saved.
    "USE_LIBUV": "0",
    # Machine code cannot be run on a software GPU.
    "CUPY_COMPILE_WITH_PTX": "1",
    # A suspended rank's calls to its device return when it has a device again. PyTorch would end
    # the process: its monitor when a thread has been in such a call for 8 minutes, its watchdog
    # when a collective takes more than 10. The watchdog still reports that on stderr.
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
}


def not_in(names: Container[str]) -> dict[str, str]:
    """The settings of a rank whose environment has variables of these names."""
    return {name: value for name, value in SETTINGS.items() if name not in names}
