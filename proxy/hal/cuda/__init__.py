"""A real NVIDIA GPU behind the HAL table: cuda_hal.h says how."""
