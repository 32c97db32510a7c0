"""The elastic runtime."""
