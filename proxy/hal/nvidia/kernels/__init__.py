"""The NVIDIA HAL's own kernels, as PTX next to its source."""
