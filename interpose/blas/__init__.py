"""Kernels for routines of BLAS, as source and as PTX."""
