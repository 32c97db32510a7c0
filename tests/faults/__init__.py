"""Faults seeded into the source, one at a time: the tests that are named with each notice it."""
