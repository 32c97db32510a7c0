"""Kernels for clients that are made of bytes."""

from __future__ import annotations

from support.kernels import kernels

__all__ = ["kernels"]
