"""Tar files of images (WebDataset shards) as a sequence of images with random access, without unpacking.

Knows nothing of splits or training. Reading an image is one read at the offset that the index of its shard records, so
images can be used in any order, as with single files.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import re
import tarfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selftrain.console import Reporter
from selftrain.data.cache_folder import cache_root
from selftrain.data.corpus import Corpus
from selftrain.data.images import IMAGE_SUFFIXES, EncodedImages, check_images, file_stamp, suffix_list
from selftrain.data.images.content import Digests, digests, file_mark, marks_inside
from selftrain.data.images.pixel_budget import most_pixels
from selftrain.data.sources.class_names import composed
from selftrain.errors import UserError
from selftrain.files import replacing
from selftrain.regular_files import descriptor, open_regular

__all__ = ["ShardImages", "find_shards", "index_shards", "is_shards", "load_shards", "read_shards", "shard_images"]

BLOCK = 512  # bytes per block of a tar file
LARGEST_LABEL = 1024  # bytes of a .cls file
MOST_SHARDS = 1_000_000


def is_shards(text: str) -> bool:
    """Return whether text is a pattern of tar files: ``x.tar``, ``x-*.tar``, ``x-{000..099}.tar``."""
    return text.endswith((".tar", ".tar.gz", ".tgz")) and not os.path.isdir(text)


def find_shards(pattern: str) -> list[str]:
    """Return the files that match a pattern, in order. Files named by ``{000..099}`` or ``{a,b}`` must all exist."""
    found: list[str] = []
    missing: list[str] = []
    for text in _expand(pattern):
        if glob.has_magic(text):
            found += sorted(glob.glob(text))
        elif os.path.isfile(text):
            found.append(text)
        else:
            missing.append(text)
    if missing:
        more = f" and {len(missing) - 1} others do" if len(missing) > 1 else " does"
        raise UserError(f"{pattern}: the shard {missing[0]}{more} not exist.")
    if not found:
        raise UserError(f"{pattern}: no file matches this pattern.")
    packed = next((path for path in found if not path.endswith(".tar")), None)
    if packed is not None:
        raise UserError(f"{packed}: is compressed, which rules out random access. Use plain .tar files (gunzip).")
    return [os.path.abspath(path) for path in dict.fromkeys(found)]


def _expand(pattern: str) -> list[str]:
    """Expand braces as a shell does."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if numbers:
        first, last = numbers[1], numbers[2]
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        if int(last) - int(first) >= MOST_SHARDS:
            raise UserError(f"{pattern}: {match[0]} stands for more than {MOST_SHARDS:,} files.")
        choices = [f"{i:0{width}d}" for i in range(int(first), int(last) + 1)]
        if not choices:
            raise UserError(f"{pattern}: {match[0]} counts down; write the smaller number first.")
    else:
        choices = match[1].split(",")
    head, tail = pattern[: match.start()], pattern[match.end() :]
    found: list[str] = []
    for choice in choices:
        found += _expand(head + choice + tail)
        if len(found) > MOST_SHARDS:
            raise UserError(f"{pattern}: stands for more than {MOST_SHARDS:,} files.")
    return found


# --- the index of one shard --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Index:
    """The images of one shard, in its order."""

    names: list[str]
    """names of the members of the tar file"""
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    labels: list[str]
    """the content of the ``.cls`` file beside an image; "" is unlabeled"""
    reasons: list[str]
    """why an image cannot be read; "" if it can be read"""

    def save(self, path: Path) -> None:
        names, labels, reasons = _joined(self.names), _joined(self.labels), _joined(self.reasons)
        with replacing(path) as temporary, temporary.open("wb") as file:
            np.savez(file, offsets=self.offsets, sizes=self.sizes, names=names, labels=labels, reasons=reasons)

    @classmethod
    def load(cls, path: Path) -> Index | None:
        """Return the saved index; None if it is missing or broken."""
        try:
            with open_regular(path) as file, np.load(file, allow_pickle=False) as saved:
                count = len(saved["offsets"])
                texts = {name: _split(saved[name], count) for name in ("names", "labels", "reasons")}
                index = cls(offsets=saved["offsets"], sizes=saved["sizes"], **texts)
        except Exception:  # OSError, ValueError, KeyError, BadZipFile, EOFError: the shard is indexed again
            return None
        return index if {len(text) for text in texts.values()} == {count} == {len(index.sizes)} else None


def _joined(texts: Sequence[str]) -> NDArray[np.uint8]:
    return np.frombuffer("\0".join(texts).encode("utf-8", "surrogateescape"), np.uint8)


def _split(array: NDArray[np.uint8], count: int) -> list[str]:
    return array.tobytes().decode("utf-8", "surrogateescape").split("\0") if count else []


def _members(path: str) -> list[tuple[str, int, int]]:
    """Return name, offset and size of every file in a tar file; an error if it is incomplete."""
    found: list[tuple[str, int, int]] = []
    try:
        with open_regular(path) as opened, tarfile.open(fileobj=opened, mode="r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # else it keeps them all in memory
                if member.isfile() and not member.issparse():
                    found.append((member.name, member.offset_data, member.size))
            end = tar.offset
        with open_regular(path) as file:
            file.seek(end)
            # tarfile accepts a file without an end marker, but such a file is truncated.
            if file.read(BLOCK) != bytes(BLOCK):
                raise tarfile.ReadError("the end marker is missing")
        return found
    except tarfile.TarError as error:
        raise UserError(f"{path}: not a complete tar file ({error}); it is truncated or of another format.") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({(error.strerror or str(error)).lower()}).") from None


def _index(path: str) -> Index:
    """Index a shard. The files of a sample share their name up to the first dot of its last part."""
    names, offsets, sizes, labels = [], [], [], []
    seen: set[str] = set()
    by_sample = itertools.groupby(_members(path), key=lambda member: _sample(member[0]))
    with open_regular(path) as file:
        for sample, members in by_sample:
            label, image = "", None
            for name, offset, size in members:
                suffix = name.lower()[len(sample) :]
                if suffix == ".cls":
                    file.seek(offset)
                    label = _label(file.read(min(size, LARGEST_LABEL)), f"{path}, {name}")
                elif suffix.endswith(IMAGE_SUFFIXES):
                    if image is not None:
                        raise UserError(f"{path}: the sample {sample!r} has two images, {image[0]} and {name}.")
                    image = (name, offset, size)
            if image is None:
                continue
            if image[0] in seen:
                raise UserError(f"{path}: contains {image[0]!r} twice; each image needs a unique name.")
            seen.add(image[0])
            names.append(image[0])
            offsets.append(image[1])
            sizes.append(image[2])
            labels.append(label)
    if not names:
        raise UserError(f"{path}: contains no image ({suffix_list()}).")
    return Index(names, np.array(offsets, np.int64), np.array(sizes, np.int64), labels, [""] * len(names))


def _sample(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _label(content: bytes, where: str) -> str:
    try:
        label = content.decode("utf-8").strip()
    except UnicodeDecodeError:
        label = ""
    if not label or "\0" in label or "\n" in label:
        raise UserError(f"{where}: not a label; a .cls file must contain a number or a word.")
    return "" if label == "-1" else label


def index_shards(
    paths: Sequence[str], *, check: str = "full", strict: bool = False, reporter: Reporter | None = None
) -> list[Index]:
    """Return the index of each shard, from the cache if possible; after a kill, finished shards stay indexed.

    ``check`` is as in ``Source.corpus``: images are checked once, and the result is stored with the index.
    """
    reporter = reporter or Reporter(quiet=True)
    folder = cache_root() / "shards"
    indices: list[Index] = []
    with reporter.progress("indexing shards", len(paths), "shards") as bar:
        for done, path in enumerate(paths):
            status = os.stat(path)
            about = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{check}\0{most_pixels()}\0 2"
            kept = folder / f"{hashlib.sha256(about.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.npz"
            index = Index.load(kept)
            if index is None:
                index = _index(path)
                if check != "none":
                    for error in check_images(ShardImages([path], [index]), strict=False, full=check == "full"):
                        assert error.index is not None
                        index.reasons[error.index] = error.reason
                index.save(kept)
            indices.append(index)
            bad = next((i for i, reason in enumerate(index.reasons) if reason), None)
            if strict and bad is not None:
                raise UserError(
                    f"{path}, {index.names[bad]}: {index.reasons[bad]}. Leave out `strict` to skip unreadable images."
                )
            bar.reach(done + 1)
    return indices


# --- images ------------------------------------------------------------------------------------------------------


class ShardImages(EncodedImages):
    """Images inside tar files. Names are ``shard.tar/member``, relative to the common folder of the shards."""

    def __init__(self, paths: Sequence[str], indices: Sequence[Index]) -> None:
        self.paths = list(paths)
        self.shards = np.repeat(np.arange(len(paths)), [len(index.names) for index in indices])
        self.offsets = np.concatenate([index.offsets for index in indices])
        self.sizes = np.concatenate([index.sizes for index in indices])
        self.top = os.path.commonpath([os.path.dirname(path) for path in self.paths])
        short = [Path(path).relative_to(self.top).as_posix() for path in self.paths]
        self.names = [f"{short[k]}/{name}" for k, index in enumerate(indices) for name in index.names]

    def source(self, i: int) -> bytes:
        path = self.paths[self.shards[i]]
        try:
            return _open_files.at(path).read(int(self.sizes[i]), int(self.offsets[i]))
        except OSError as error:
            raise UserError(f"{path}: can no longer be read ({(error.strerror or str(error)).lower()}).") from None

    def where(self, i: int) -> str:
        return f"{self.paths[self.shards[i]]}, {self.names[i].partition('.tar/')[2]}"

    def subset(self, indices: ArrayLike) -> ShardImages:
        positions = self._positions(indices)
        chosen = ShardImages.__new__(ShardImages)
        chosen.paths, chosen.top = self.paths, self.top
        chosen.shards, chosen.offsets, chosen.sizes = (
            values[positions] for values in (self.shards, self.offsets, self.sizes)
        )
        chosen.names = [self.names[i] for i in positions.tolist()]
        return chosen

    @property
    def home(self) -> str:
        return self.top

    def marks(self) -> Digests:
        used, inverse = np.unique(self.shards, return_inverse=True)
        wholes = digests([file_mark(self.paths[shard]) for shard in used.tolist()])
        return marks_inside(wholes[inverse], self.offsets, self.sizes)

    def stamps(self, times: bool = True) -> Iterator[bytes]:
        for shard in np.unique(self.shards).tolist():
            yield str(shard).encode() + file_stamp(self.paths[shard], times)
        yield "\0".join(self.names).encode("utf-8", "surrogateescape")
        yield self.offsets.tobytes()

    def __getstate__(self) -> dict[str, object]:
        # One long string instead of millions of short ones: a loader worker starts faster.
        # And only the shards in use: of ten thousand, a task on a cluster reads one or two.
        used, shards = np.unique(self.shards, return_inverse=True)
        paths = [self.paths[shard] for shard in used.tolist()]
        return {**self.__dict__, "paths": paths, "shards": shards, "names": _joined(self.names)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, names=_split(state["names"], len(state["offsets"])))


class _OpenFile:
    """A file that stays open as long as this object exists."""

    def __init__(self, path: str) -> None:
        self.number = -1
        self.number = descriptor(path)

    def read(self, size: int, offset: int) -> bytes:
        if hasattr(os, "pread"):  # forked loader workers share the file and its position
            return os.pread(self.number, size, offset)
        os.lseek(self.number, offset, os.SEEK_SET)
        return os.read(self.number, size)

    def __del__(self) -> None:
        if self.number >= 0:
            os.close(self.number)


class _OpenFiles(threading.local):
    """The files that a thread has used most recently."""

    KEPT = 32

    def __init__(self) -> None:
        self.files: dict[str, _OpenFile] = {}

    def at(self, path: str) -> _OpenFile:
        file = self.files.pop(path, None) or _OpenFile(path)
        self.files[path] = file  # the order of the dict is the order of use
        if len(self.files) > self.KEPT:
            del self.files[next(iter(self.files))]
        return file


_open_files = _OpenFiles()


# --- the corpus --------------------------------------------------------------------------------------------------


def read_shards(
    pattern: str, *, check: str = "full", strict: bool = False, reporter: Reporter | None = None
) -> tuple[ShardImages, list[str], tuple[str, ...]]:
    """Return the readable images, the text of their labels ("" is unlabeled), and the names of the unreadable ones."""
    paths = find_shards(pattern)
    indices = index_shards(paths, check=check, strict=strict, reporter=reporter)
    images = ShardImages(paths, indices)
    labels = [label for index in indices for label in index.labels]
    good = np.array([not reason for index in indices for reason in index.reasons], bool)
    if good.all():
        return images, labels, ()
    skipped = tuple(images.names[i] for i in np.flatnonzero(~good).tolist())
    return images.subset(good), [labels[i] for i in np.flatnonzero(good).tolist()], skipped


def shard_images(pattern: str) -> ShardImages:
    """Return all images of the shards, unchecked."""
    paths = find_shards(pattern)
    return ShardImages(paths, index_shards(paths, check="none"))


def load_shards(pattern: str, *, check: str = "full", strict: bool = False, reporter: Reporter | None = None) -> Corpus:
    """Return the corpus of shards: an image is labeled if a ``.cls`` file beside it contains a number or a word."""
    images, texts, skipped = read_shards(pattern, check=check, strict=strict, reporter=reporter)
    texts = [composed(text) for text in texts]
    known = sorted({text for text in texts if text})
    if not known:
        raise UserError(
            f"{pattern}: no image has a label (a .cls file beside it). To add unlabeled shards to labeled images, pass "
            f"them as `unlabeled`."
        )
    numbers = [text for text in known if text.isdecimal()]
    if numbers and len(numbers) < len(known):
        word = next(text for text in known if not text.isdecimal())
        raise UserError(f"{pattern}: labels mix numbers ({numbers[0]}) and words ({word!r}); use only one kind.")
    if len(known) < 2:
        raise UserError(f"{pattern}: only one class ({known[0]}); at least two classes are needed.")
    classes = tuple(sorted(known, key=int) if numbers else known)
    position = {text: k for k, text in enumerate(classes)} | {"": -1}
    labels = np.array([position[text] for text in texts], np.int64)
    name = Path(images.paths[0]).parent.name or "shards"
    return Corpus(name, classes, images, labels, labels, skipped=skipped, is_benchmark=bool((labels >= 0).all()))
