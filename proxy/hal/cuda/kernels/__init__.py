"""The GPU's own kernels of the NVIDIA HAL, as PTX that lies beside its source."""
