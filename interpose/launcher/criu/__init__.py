"""Runs CRIU on one rank, and saves the process state that CRIU does not."""
