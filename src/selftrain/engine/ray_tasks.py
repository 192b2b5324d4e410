"""Hand out work to a Ray cluster: a few tasks per core at a time, and what a lost worker left undone once more.

Knows nothing of the work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from selftrain.errors import UserError
from selftrain.text import first_line

AHEAD = 2
"""tasks per core that are handed out before earlier ones have ended"""
ATTEMPTS = 4
"""times that the work of a lost worker is tried"""
T = TypeVar("T")


def cores_of(ray: Any) -> int:
    """Return the number of cores of the cluster."""
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def spread(
    ray: Any,
    function: Callable[..., Any],
    work: Iterable[T],
    arguments: Callable[[T], tuple[Any, ...]],
    left: Callable[[T], T | None] = lambda item: item,
) -> Iterator[tuple[T, Any]]:
    """Yield each item of ``work`` with the result of ``function(*arguments(item))``, one core each, as they end.

    ``left`` returns what a lost worker has not done of an item, None if nothing. An error of ``function`` is raised at
    once.
    """
    task = ray.remote(num_cpus=1, max_retries=0)(function)
    waiting, again = iter(work), deque[tuple[T, int]]()
    running: dict[Any, tuple[T, int]] = {}
    most, ended = AHEAD * cores_of(ray), False
    while True:
        while len(running) < most and not (ended and not again):
            item, attempt = again.popleft() if again else (next(waiting, None), 1)
            if item is None:
                ended = True
                continue
            running[task.remote(*arguments(item))] = item, attempt
        if not running:
            return
        (ready, *_), _ = ray.wait(list(running), num_returns=1)
        item, attempt = running.pop(ready)
        lost, result = _result(ray, ready)
        if lost is None:
            yield item, result
            continue
        rest = left(item)
        if rest is None:
            yield item, None
        elif attempt == ATTEMPTS:
            raise UserError(f"ray: workers were lost {ATTEMPTS} times on the same work ({lost}).")
        else:
            again.append((rest, attempt + 1))


def _result(ray: Any, ready: Any) -> tuple[str | None, Any]:
    """Return why the worker was lost, None if it was not, and the result."""
    try:
        return None, ray.get(ready)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (
            cause if isinstance(cause, UserError) else UserError(f"ray: a task failed ({first_line(cause)}).")
        ) from None
    except ray.exceptions.RayError as error:
        return first_line(error), None
