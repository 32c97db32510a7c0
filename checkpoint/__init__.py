"""Checkpoints of jobs, which outlive the ranks' processes and the machine."""
