"""The values of ``--set``: ``name=value``.

Knows nothing of which settings exist.
"""

from __future__ import annotations

from selftrain.errors import UserError


def parse_assignment(text: str) -> tuple[str, str]:
    """Split ``optim.lr=0.01`` into a name and a value."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise UserError(f"--set {text}: write it as name=value, for example --set optim.lr=0.01.")
    return name.strip(), value.strip()
