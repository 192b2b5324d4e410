"""The exceptions that users see as a single line, and spelling suggestions.

Knows nothing of what went wrong. Whoever raises one says what is wrong, the value, and what to do. Arguments and
settings are in backticks (```out```, ```optim.lr=0.01```), which the command line turns into its own options.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable

_OF_THE_MACHINE = (
    errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.ETIMEDOUT
)  # fmt: skip
_NO_MEMORY = re.compile("allocate memory|out of memory|failed to allocate|alloc failed|bad.alloc", re.IGNORECASE)


class UserError(Exception):
    """An error that the user can fix. The command line prints it as one line and exits with code 2."""


class UserValueError(UserError, ValueError):
    """A ``UserError`` that is a ``ValueError`` as well, as the users of scikit-learn expect."""


class DivergedError(UserError):
    """The loss of a run is not finite. Other settings may help, so a search continues with them."""


def lacks_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out; torch and onnxruntime have no type of their own for that."""
    return isinstance(error, MemoryError) or (isinstance(error, Exception) and bool(_NO_MEMORY.search(str(error))))


def is_of_the_machine(error: BaseException) -> bool:
    """Return whether an error is about memory, the disk or open files at this moment.

    It then says nothing about the file or network at hand, and must never decide what is computed, or how.
    """
    return lacks_memory(error) or (isinstance(error, OSError) and error.errno in _OF_THE_MACHINE)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'fixmatch'?"`` if a known word is close to ``word``, else an empty string."""
    matches = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""
