"""The one exception that reaches a user as a single line, and spelling suggestions.

Knows nothing of what went wrong: whoever raises it names the file or option, the value, and what would be right.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right. The command line prints it as one line and exits with code 2."""


class DivergedError(UserError):
    """A run whose loss is no longer a number: its settings are to blame, and others may do."""


def nearest(word: str, known: Iterable[str]) -> str:
    """``" Did you mean 'fixmatch'?"`` where a known word is close to ``word``, else an empty string."""
    matches = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""
