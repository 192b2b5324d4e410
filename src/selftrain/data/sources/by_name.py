"""Find single images by name in folders and tar files that the user names, wherever the names come from.

Knows nothing of runs. A name never leads out of a folder: it may come from a stranger's file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from selftrain.data.images import FileImages, Images
from selftrain.data.sources.junk import PREFIX as JUNK
from selftrain.data.sources.shards import is_shards, shard_images
from selftrain.errors import UserError

FindByName = Callable[[str], tuple[Images, int] | None]
UNLABELED = "unlabeled:"


def find_by_name(places: Sequence[str | Path]) -> FindByName:
    """Return a function from the name of an image to a sequence of images and its position in it, or to None.

    ``places`` are folders and patterns of tar files. The first one that has the image wins.
    """
    finders = []
    for place in places:
        if os.path.isdir(place):
            finders.append(_in_folder(Path(place)))
        elif is_shards(str(place)):
            finders.append(find_among([shard_images(str(place))]))
        else:
            raise UserError(f"`images` {place}: there is no such folder; give the folder that the images are in.")

    def find(name: str) -> tuple[Images, int] | None:
        return next((found for finder in finders if (found := finder(name)) is not None), None)

    return find


def find_among(sequences: Sequence[Images]) -> FindByName:
    """Return the same function for sequences of images."""
    known = {name: (images, i) for images in reversed(sequences) for i, name in enumerate(images.names)}
    return lambda name: known.get(name) or known.get(name.removeprefix(UNLABELED))


def _in_folder(folder: Path) -> FindByName:
    def find(name: str) -> tuple[Images, int] | None:
        for inner in _relative_names(name, folder):
            if os.path.isfile(folder / inner):
                return FileImages(folder, [inner]), 0
        return None

    return find


def _relative_names(name: str, folder: Path) -> list[str]:
    """Return the paths below the folder that a name may stand for; none if it would lead out of it."""
    names = [name.removeprefix(UNLABELED).removeprefix(JUNK)]
    if name.startswith(JUNK):  # junk:FOLDER/..., where the user may name the folder itself or the one that contains it
        place, parts = f"/{folder.absolute().as_posix()}", names[0].split("/")
        names += ["/".join(parts[cut:]) for cut in range(1, len(parts)) if place.endswith("/" + "/".join(parts[:cut]))]
    return [inner for inner in names if inner and _stays_inside(inner)]


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name and "\\" not in name
