"""Promise: NVML and the CUDA API report the same virtual devices."""
