"""make gpu-check: what a machine with an NVIDIA GPU can show."""
