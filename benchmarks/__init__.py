"""Measurements for the documentation's claims; `make bench-NAME` runs one."""
