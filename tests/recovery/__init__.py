"""A job outlives its processes."""
