"""Places that a run folder names, where the folder may come from somebody else.

Knows nothing of what is stored there.
"""

from __future__ import annotations

from selftrain.data.cache_folder import can_be_kept
from selftrain.data.features.housekeeping import list_caches
from selftrain.errors import UserError
from selftrain.files import expanded


def known_cache(named: object) -> str | None:
    """Return the cache folder that a run names if it is a cache already; otherwise None, which is the user's own.

    A stranger's run could otherwise create files anywhere.
    """
    if not isinstance(named, str) or not named:
        return None
    try:
        place = expanded(named)
        return str(place) if list_caches(place) and can_be_kept(place) else None
    except (UserError, OSError, RuntimeError, ValueError):
        return None
