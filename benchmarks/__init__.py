"""Measurements that back what the documentation says; `make bench-NAME` runs one."""
