"""A Ray cluster to work on: an existing one, or one on this machine for as long as the work takes.

Knows nothing of the work.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from selftrain.errors import UserError
from selftrain.text import first_line

ANSWER = 5.0
"""seconds in which a cluster has to answer"""
_session: ContextVar[ExitStack | None] = ContextVar("session", default=None)


@contextmanager
def ray_cluster(address: str | None = None, processes: int | None = None) -> Iterator[Any]:
    """Give the module ``ray``, connected: to ``address``, $RAY_ADDRESS, or ``processes`` cores of this machine."""
    try:
        import ray
    except ImportError:
        raise UserError('`engine="ray"`: Ray is not installed. Run: pip install "selftrain[ray]"') from None
    if ray.is_initialized():  # by the caller, who also ends it
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS")
    check_alive(address)
    session = _session.get()
    if session is not None:  # kept until its end
        yield session.enter_context(_connected(ray, address, processes))
        return
    with _connected(ray, address, processes):
        yield ray


@contextmanager
def one_cluster() -> Iterator[None]:
    """Inside, a cluster that is started at the first use serves all later ones."""
    with ExitStack() as stack:
        token = _session.set(stack)
        try:
            yield
        finally:
            _session.reset(token)


@contextmanager
def _connected(ray: Any, address: str | None, processes: int | None) -> Iterator[Any]:
    given: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    given |= {"address": address} if address else {"include_dashboard": False, "num_cpus": processes}
    try:
        ray.init(**given)
    except Exception as error:  # no such address, other versions there, a machine too busy to start a cluster
        raise UserError(f'`engine="ray"`, {address or "a cluster on this machine"}: {first_line(error)}') from None
    try:
        yield ray
    finally:
        ray.shutdown()


def check_alive(address: str | None) -> None:
    """Raise a UserError if nothing answers at an address within seconds; Ray itself would try for minutes."""
    place = re.fullmatch(r"(?:ray://)?(?P<host>[^:/]+|\[[^]]+\])(?::(?P<port>\d+))?", address or "auto")
    if place is None:
        raise UserError(f"`ray_address={address}`: expected HOST:PORT, ray://HOST:PORT or auto.")
    if place["host"] in ("auto", "local"):
        return
    port = int(place["port"] or (10001 if str(address).startswith("ray://") else 6379))
    try:
        socket.create_connection((place["host"].strip("[]"), port), timeout=ANSWER).close()
    except (OSError, OverflowError) as error:
        raise UserError(
            f"`ray_address={address}`: nothing answers at {place['host']}:{port} ({error}). Start a cluster there with "
            f"'ray start --head', or leave it out to use this machine."
        ) from None
