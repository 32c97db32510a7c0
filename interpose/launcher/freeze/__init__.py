"""Stops a rank's processes where they are, in a state that CRIU can save."""
