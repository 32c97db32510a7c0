"""Converts a rank's snapshot, a folder on this machine, to parts of a checkpoint and back.

This package knows the layout of what CRIU and a proxy write, and nothing of jobs or launchers.
docs/checkpoints.md describes both sides.
"""

from rankfold.checkpoint.snapshot import modules
from rankfold.checkpoint.snapshot.errors import Unfit
from rankfold.checkpoint.snapshot.folder import ABOUT, Snapshot, images_being_copied
from rankfold.checkpoint.snapshot.writing import write, write_compared

__all__ = [
    "ABOUT",
    "Snapshot",
    "Unfit",
    "images_being_copied",
    "modules",
    "write",
    "write_compared",
]
