"""The software GPU alone: memory, queues, compiler and kernels."""
