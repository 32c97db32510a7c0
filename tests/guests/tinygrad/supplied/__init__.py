"""Modules that tinygrad 0.12.0's test files import and its source package omits, written anew."""
