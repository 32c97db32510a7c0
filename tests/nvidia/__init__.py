"""The NVIDIA HAL: against NVIDIA's header, and over a fake of its driver (fake.h)."""
