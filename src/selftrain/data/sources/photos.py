"""A folder of photos that are to be labeled: all images in it, at any depth, except those of a test set.

Knows nothing of labels.
"""

from __future__ import annotations

from pathlib import Path

from selftrain.data.images import find_images
from selftrain.data.sources.folders import no_image
from selftrain.errors import UserError
from selftrain.text import plural


def photo_names(folder: Path) -> tuple[list[str], str]:
    """Return the images of a folder, and a sentence about images that were left out; empty if there are none."""
    names = find_images(folder)
    if not names:
        raise UserError(no_image(folder))
    tested = [name for name in names if name.startswith("test/") and name.count("/") > 1]
    if not tested or len(tested) == len(names):
        return names, ""
    left = [name for name in names if not name.startswith("test/")]
    remark = (
        f"left out {plural(len(names) - len(left), 'image')} in {folder / 'test'}: test images are not labeled here"
    )
    return left, remark
