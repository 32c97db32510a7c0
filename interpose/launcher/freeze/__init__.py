"""Freezes a rank's processes in a state that CRIU can save."""
