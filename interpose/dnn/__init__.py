"""Kernels for convolutions and batch normalisation, as source and as PTX."""
