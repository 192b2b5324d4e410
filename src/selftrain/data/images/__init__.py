"""Sequences of images: found in folders, decoded, and checked, from files and from arrays.

Knows nothing of labels, classes, splits, tensors or training.
"""

from selftrain.data.images.arrays import ArrayImages
from selftrain.data.images.check import check_images
from selftrain.data.images.decode import UnreadableImage, read_image
from selftrain.data.images.find import IMAGE_SUFFIXES, SearchNotes, find_images, is_hidden, suffix_list
from selftrain.data.images.loaded import LoadedImages
from selftrain.data.images.sequence import EncodedImages, FileImages, Images, JoinedImages, file_stamp, fingerprint

__all__ = [
    "IMAGE_SUFFIXES",
    "ArrayImages",
    "EncodedImages",
    "FileImages",
    "Images",
    "JoinedImages",
    "LoadedImages",
    "SearchNotes",
    "UnreadableImage",
    "check_images",
    "file_stamp",
    "find_images",
    "fingerprint",
    "is_hidden",
    "read_image",
    "suffix_list",
]
