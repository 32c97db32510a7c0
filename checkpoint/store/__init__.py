"""The object store of checkpoints: content-addressed files below one URL that fsspec can write.

It knows nothing of processes, devices or the reconciler. docs/checkpoints.md describes it.
"""

from rankfold.checkpoint.store.errors import (
    Damaged,
    Full,
    Missing,
    OldIncarnation,
    Overtaken,
    Refused,
    StoreError,
    Unavailable,
)
from rankfold.checkpoint.store.manifest import Manifest, Part
from rankfold.checkpoint.store.names import Id
from rankfold.checkpoint.store.reading import Checkpoint
from rankfold.checkpoint.store.save import Buffer, Progress, Save
from rankfold.checkpoint.store.store import Newest, Skipped, Store, open, open_existing

__all__ = [
    "Buffer",
    "Checkpoint",
    "Damaged",
    "Full",
    "Id",
    "Manifest",
    "Missing",
    "Newest",
    "OldIncarnation",
    "Overtaken",
    "Part",
    "Progress",
    "Refused",
    "Save",
    "Skipped",
    "Store",
    "StoreError",
    "Unavailable",
    "open",
    "open_existing",
]
