"""Read files, and write them completely or not at all; errors name the file and the reason.

Knows nothing of what is in them.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from selftrain.errors import UserError
from selftrain.text import first_line


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces ``path`` at the end, or is deleted if anything fails.

    Pipes, devices and ``/dev/stdout`` are never replaced: the text is appended to them.
    """
    if not path.name:
        raise UserError(f"{str(path)!r}: expected the name of a file to write to.")
    if _is_stream(path):
        with tempfile.TemporaryDirectory() as folder:
            yield (temporary := Path(folder, path.name))
            try:
                with temporary.open("rb") as written, path.open("ab") as stream:
                    shutil.copyfileobj(written, stream)
            except OSError as error:
                raise cannot_write(path, error) from None
        return
    path = path.resolve()  # replace the target of a link, not the link
    if path.is_dir():
        raise UserError(f"{path}: cannot be written (it is a folder).")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(_usual_mode())  # some libraries create files that only the user can read
        os.replace(temporary, path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raise a UserError if a file cannot be written, before the work whose result goes there."""
    try:
        parent = next(folder for folder in path.absolute().parents if folder.exists())
        reason = "it is a folder" if path.is_dir() else f"{parent} is not a folder" if not parent.is_dir() else ""
        place = path if _is_stream(path) else parent
        if not reason and not os.access(place, os.W_OK):
            reason = f"{place} is read-only"
    except OSError as error:
        raise cannot_write(path, error) from None
    if reason:
        raise UserError(f"{path}: cannot be written ({reason}).")


def _is_stream(path: Path) -> bool:
    """Return whether a path is a pipe, a device, or a file this process has open, such as ``/dev/stdout``."""
    if not path.exists() or path.is_dir():
        return False
    if not path.is_file():
        return True
    while str(path.parent.resolve()) not in ("/dev/fd", f"/proc/{os.getpid()}/fd"):
        if not path.is_symlink():
            return False
        path = path.parent / path.readlink()
    return True


def cannot_write(path: Path, error: Exception) -> UserError:
    """Return the error for a file that cannot be written."""
    reason = getattr(error, "strerror", None) or first_line(error)
    return UserError(f"{path}: cannot be written ({reason}).")


def _usual_mode() -> int:
    """Return the mode of new files: rw-rw-rw- without the bits of the user's mask."""
    os.umask(mask := os.umask(0))
    return 0o666 & ~mask


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_text(path: Path, text: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise cannot_write(path, error) from None


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    except ValueError as error:
        raise UserError(f"{path}: not a JSON file ({error}).") from None


def read_yaml(path: Path, what: str) -> Any:
    """Return the content of a YAML file; errors begin with ``what``, the argument that names the file."""
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{what} {path}: cannot be read ({error.strerror}).") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{what} {path}: not a YAML file ({' '.join(str(error).split())}).") from None
