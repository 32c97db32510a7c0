"""Formats numbers of things for messages. Pure."""

from __future__ import annotations


def count(number: int, thing: str) -> str:
    """``1 rank``, ``2 ranks``"""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
