"""CRIU at work on one rank, and what CRIU alone does not save of a process."""
