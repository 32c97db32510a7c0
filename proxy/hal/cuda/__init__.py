"""The NVIDIA GPU as a device type; cuda_hal.h describes how."""
