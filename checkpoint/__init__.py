"""Checkpoints of jobs: what outlives the processes of a rank, and the machine under them."""
