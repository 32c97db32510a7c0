"""Collectives among devices: the engine against NumPy, under every placement."""
