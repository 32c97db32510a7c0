"""Why a logical worker ends before its script does."""

from __future__ import annotations


class NotSupported(Exception):
    """The script uses something that the runtime cannot run with the bits of stock PyTorch."""


class NoOneCanContinue(Exception):
    """All workers of the process wait, for one that has ended or for different things."""


class Stopped(BaseException):
    """Another worker of this process has failed. A BaseException, so that a script that handles
    its own errors does not continue."""
