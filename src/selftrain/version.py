"""The version of this package, as it was installed. The git tag owns it: see pyproject.toml."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("selftrain")
except PackageNotFoundError:  # the source folder on the path, without an installation
    __version__ = "0.0"
