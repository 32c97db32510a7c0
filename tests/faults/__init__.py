"""Faults seeded into the Python: each is noticed, by the fast test that is named with it."""
