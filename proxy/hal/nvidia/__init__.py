"""The NVIDIA GPU as a device type; nvidia_hal.h describes how."""
