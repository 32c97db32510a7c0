"""Images of modules on disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from rankfold.proxy.images import Images
from rankfold.proxy.ptx.fatbin import IMAGE_FATBIN, IMAGE_PTX


def test_stored_modules_are_found_by_hash_only(tmp_path: Path) -> None:
    images = Images(tmp_path / "modules")
    one, other = "1" * 64, "2" * 64
    for digest, image, kind in (
        (one, b"a fatbin", IMAGE_FATBIN),
        (one, b"a text", IMAGE_PTX),
        (other, b"other", IMAGE_PTX),
    ):
        images.take(digest, image, kind, job=1)
        images.store_taken(digest, kind)
    assert [(image, kind) for _, image, kind in images.find(one)] == [
        (b"a fatbin", IMAGE_FATBIN),
        (b"a text", IMAGE_PTX),
    ]
    assert list(images.find("3" * 64)) == []


def test_a_removed_folder_is_made_again(tmp_path: Path) -> None:
    """A job could not leave its device until then."""
    images, digest = Images(tmp_path / "modules"), "1" * 64
    shutil.rmtree(tmp_path / "modules")
    images.take(digest, b"an image", IMAGE_PTX, job=1)
    assert list(images.find(digest)) == []
    assert (images.trouble, images.store(1)) == ("", "")  # as before its job leaves
    assert [image for _, image, _ in images.find(digest)] == [b"an image"]
