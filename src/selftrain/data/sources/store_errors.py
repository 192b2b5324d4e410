"""Tell an object that cannot be read from a store that fails.

Knows nothing of images or file systems: only of the exceptions of fsspec, and of the packages below it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

FINAL = (401, 403, 404, 410, 451)
"""HTTP statuses that another attempt does not change"""
REFUSES_ALL = (
    "AccountProblem", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "NotSignedUp", "RequestTimeTooSkewed",
    "SignatureDoesNotMatch", "TokenRefreshRequired",
)  # fmt: skip
"""codes of S3 for credentials that are refused for every object; s3fs raises a PermissionError for them as well"""
NOT_REGULAR = (errno.EISDIR, errno.ENOTDIR, errno.EINVAL, errno.ENAMETOOLONG)
"""of a file of this machine: a folder, a pipe, a device"""


def why_unreadable(error: BaseException) -> str:
    """Return why an object cannot be read, also later; empty if its store or this machine fails."""
    cause: BaseException | None = error
    while cause is not None:
        if _code(cause) in REFUSES_ALL:
            return ""
        status = _status(cause)
        if status is not None:
            return _words(status) if status in FINAL else ""
        cause = cause.__cause__
    if isinstance(error, FileNotFoundError):  # fsspec raises one from every error of a request for the size
        return _words(404) if isinstance(error.__cause__, (type(None), FileNotFoundError, ValueError)) else ""
    if isinstance(error, PermissionError):
        return "access is denied"
    return str(error.strerror).lower() if isinstance(error, OSError) and error.errno in NOT_REGULAR else ""


def _words(status: int) -> str:
    return "there is no such object" if status == 404 else f"the store answers {status}"


def _status(error: BaseException) -> int | None:
    """Return the HTTP status that an error of aiohttp, botocore, gcsfs, azure or requests holds."""
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        found: Iterator[Any] = iter([response.get("ResponseMetadata", {}).get("HTTPStatusCode")])
    else:
        found = (getattr(one, name, None) for name in ("status", "status_code", "code") for one in (error, response))
    return next((status for status in found if isinstance(status, int)), None)


def _code(error: BaseException) -> object:
    response: Any = getattr(error, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None
