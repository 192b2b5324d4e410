"""Whether this process may use the network: never with ``--offline`` or ``SELFTRAIN_OFFLINE=1``.

Knows nothing of what would be downloaded. The ban also holds in processes that this one starts.
"""

from __future__ import annotations

import os
import socket
from typing import Any, NoReturn

from selftrain.errors import UserError

VARIABLE = "SELFTRAIN_OFFLINE"
YES, NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
OTHERS = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "offline"}
"""variables with which other packages are kept offline"""
HERE = (None, "", "localhost", "127.0.0.1", "::1")
"""addresses of this machine"""


class NetworkForbiddenError(UserError):
    """Something would have to be downloaded, and the user does not want that."""


def is_offline() -> bool:
    """Return whether the network is forbidden."""
    given = os.environ.get(VARIABLE, "").strip().lower()
    if given not in (*YES, *NO):
        raise UserError(f"{VARIABLE}={given!r}: expected 1 (no network) or 0.")
    return given in YES


def go_offline() -> None:
    """Forbid the network in this process and in those that it starts."""
    os.environ[VARIABLE] = "1"
    os.environ.update(OTHERS)
    socket.socket.connect = _connect  # type: ignore[method-assign,assignment]
    socket.getaddrinfo = _getaddrinfo


def check_online(what: str) -> None:
    """Raise a UserError if ``what`` would have to be downloaded and the network is forbidden."""
    if is_offline():
        raise NetworkForbiddenError(
            f"{what}: would have to be downloaded, but the network is forbidden (--offline, {VARIABLE}=1)."
        )


_real_connect, _real_getaddrinfo = socket.socket.connect, socket.getaddrinfo


def _connect(self: socket.socket, address: Any) -> None:
    """Connect within this machine only: processes of one run talk to each other."""
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in HERE:
        _refuse()
    _real_connect(self, address)


def _getaddrinfo(host: Any, *more: Any, **options: Any) -> Any:
    if host not in HERE:
        _refuse()
    return _real_getaddrinfo(host, *more, **options)


def _refuse() -> NoReturn:
    raise OSError(f"the network is forbidden (--offline, {VARIABLE}=1)")
