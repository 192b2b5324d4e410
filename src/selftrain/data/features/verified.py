"""Which stored pieces have been verified since anything could have changed them.

Knows nothing of checksums. Files whose time of change is the same as at their last verification, on a machine that has
not been started since, are still what they were: a crash that loses pages of a file ends with a new start.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from selftrain.data.blocks import append_block, read_blocks
from selftrain.errors import UserError

LOG = "verified.log"
MOST = 256
"""verifications that are remembered; the file is begun again after so many"""
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def fingerprint(places: Sequence[tuple[Path, int]]) -> bytes | None:
    """Return a hash of places in files, of the state of these files and of this start of the machine.

    None where the system does not tell when it was started: nothing can be remembered then.
    """
    try:
        digest = hashlib.sha256(_BOOT.read_bytes())
        for file in sorted({file for file, _ in places}):
            s = os.stat(file)
            digest.update(f"{file.name} {s.st_ino} {s.st_size} {s.st_mtime_ns} {s.st_ctime_ns}\n".encode())
    except OSError:
        return None
    for file, first in places:
        digest.update(f"{file.name} {first}\n".encode())
    return digest.digest()


def is_verified(folder: Path, found: bytes | None) -> bool:
    """Return whether the files with this fingerprint have been verified."""
    return found is not None and found in set(read_blocks(folder / LOG))


def remember(folder: Path, found: bytes | None) -> None:
    """Note that the files with this fingerprint are whole, where the folder can be written."""
    log = folder / LOG
    if found is not None:
        with suppress(OSError, UserError):  # verified again next time
            if sum(1 for _ in read_blocks(log)) >= MOST:
                log.unlink(missing_ok=True)
            append_block(log, found)
