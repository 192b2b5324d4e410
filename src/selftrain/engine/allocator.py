"""Advice to the memory allocator of the C library, for processes that train on a CPU; freed memory given back.

Knows nothing of training. The advice holds for the whole process and cannot be taken back, so only programs of ours
give it (the command line, the workers of a bench), never a call of the library.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from contextlib import suppress


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory instead of returning it to the system; return whether it accepted the advice.

    Blocks of 32 MiB or more, such as activations of a few hundred images, are otherwise mapped again and filled with
    zeros, page by page, each time a step asks for them. If MALLOC_* variables are set, nothing is changed.
    """
    set_by_user = any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ)
    if platform.libc_ver()[0] != "glibc" or set_by_user:
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    trim_threshold, mmap_threshold = -1, -3  # the parameters' numbers in malloc.h
    return bool(mallopt(mmap_threshold, 1 << 30) and mallopt(trim_threshold, -1))  # -1: never


def return_freed_memory() -> None:
    """Delete what only refers to itself, and give memory that is free back to the system, where glibc is used.

    For a process that waits for hours between rounds of training, beside others that need memory.
    """
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        with suppress(OSError, AttributeError):
            ctypes.CDLL("libc.so.6").malloc_trim(0)
