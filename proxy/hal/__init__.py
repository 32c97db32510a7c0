"""Kinds of device: one folder each."""
