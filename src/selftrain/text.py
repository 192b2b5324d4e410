"""Durations, plurals and lists as text for people.

Knows nothing of what the text is about.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

JOINERS = "\u200c\u200d"  # parts of words in some scripts, and of emoji


def duration(seconds: float) -> str:
    """Return ``40 seconds``, ``3 minutes``, ``2.5 hours`` or ``4 days``."""
    for unit, length, least in (("day", 86400.0, 2), ("hour", 3600.0, 1.5), ("minute", 60.0, 2)):
        if seconds >= least * length:
            amount = seconds / length
            return f"{amount:.0f} {unit}s" if amount >= 10 or unit == "minute" else f"{amount:.2g} {unit}s"
    return f"{max(seconds, 1):.0f} second" + ("" if seconds < 1.5 else "s")


def plural(count: int, noun: str, nouns: str = "") -> str:
    """Return ``1 class`` or ``3 classes``: the count with the noun in the right number."""
    return f"{count:,} {noun if count == 1 else nouns or f'{noun}s'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, and how many more there are: ``a, b, c and 4 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def printable(text: str) -> str:
    r"""Return text in one line that a terminal shows and does not obey: ``\x1b[2J``, ``\n`` and ``\u202e`` as written.

    Names of files and classes may come from anybody. Bytes that are not UTF-8 become question marks.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, text.encode("utf-8", "replace").decode()))


def _shown(character: str) -> str:
    if unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp") or character in JOINERS:
        return character
    return character.encode("unicode_escape").decode("ascii")


def spreadsheet_safe(text: str) -> str:
    """Return a cell of a CSV file that no spreadsheet takes for a formula: formulas get an apostrophe in front."""
    if not text or text[0] not in "=+-@\t\r\n" or _is_number(text):
        return text
    return f"'{text}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
