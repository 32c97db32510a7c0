"""What NVML says of the virtual devices is what the CUDA API says of them."""
