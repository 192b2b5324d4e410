"""Read files, and write them completely or not at all; errors name the file and the reason.

Knows nothing of what is in them. Files of a run folder may come from somebody else: they are opened only if they are
regular files, and never written through a link.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from selftrain.errors import UserError
from selftrain.regular_files import append_bytes, open_regular
from selftrain.text import first_line

PART = ".part"
"""the suffix of files that are being written, whose names begin with a dot"""
LARGEST_TEXT = 1 << 28
"""bytes of the largest text or JSON file that is read"""
LARGEST_YAML = 1 << 20
DEEPEST = 64
"""levels of nesting in a YAML file"""
_SYSTEM_ERROR = re.compile(r"\b(?:os error|Os \{ code:) (\d+)")
"""how libraries that are written in Rust name the error of a system call"""


class DiskFullError(UserError):
    """A file cannot be written because there is no space left."""


@contextmanager
def replacing(path: Path, *, within: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces ``path`` at the end, or is deleted if anything fails.

    ``within`` is a folder that may come from somebody else, such as a run folder: below it, links are refused.
    Elsewhere, the target of a link is replaced. Pipes, devices and ``/dev/stdout`` are never replaced: the text is
    appended to them.
    """
    if not path.name:
        raise UserError(f"{str(path)!r}: expected the name of a file to write to.")
    if within is not None:
        refuse_links(path, within)
    elif _is_stream(path):
        yield from _appending(path)
        return
    else:
        path = path.resolve()  # replace the target of a link, not the link
    if path.is_dir():
        raise UserError(f"{path}: cannot be written (it is a folder).")
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = _mode(path)
        temporary = _new_part(path)
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(mode)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def _appending(path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield (temporary := Path(folder, path.name))
        try:
            with temporary.open("rb") as written, path.open("ab") as stream:
                shutil.copyfileobj(written, stream)
        except OSError as error:
            raise cannot_write(path, error) from None


def _new_part(path: Path) -> Path:
    """Create an empty file beside ``path``, with a name that nobody can foresee."""
    name = path.name.encode(errors="surrogateescape")[:200].decode(errors="ignore")  # names have at most 255 bytes
    number, made = tempfile.mkstemp(prefix=f".{name}.", suffix=PART, dir=path.parent)
    os.close(number)
    return Path(made)


def _mode(path: Path) -> int:
    """Return the mode of a file that exists; for a new one, rw-rw-rw- without the bits of the user's mask."""
    with suppress(FileNotFoundError):
        return stat.S_IMODE(path.stat().st_mode)
    os.umask(mask := os.umask(0))
    return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power failure, where the file system can do that."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def refuse_links(path: Path, within: Path) -> None:
    """Raise a UserError if ``path``, or a folder on the way from ``within`` to it, is a link."""
    steps = path.relative_to(within).parts
    for i in range(1, len(steps) + 1):
        place = within.joinpath(*steps[:i])
        if place.is_symlink():
            raise UserError(
                f"{place}: is a link, and files of a run folder are never written through links. Remove the link."
            )
        if place.exists() and not (place.is_dir() if i < len(steps) else place.is_file() or place.is_dir()):
            raise UserError(f"{place}: cannot be written (it is not a regular file).")


def is_part(name: str) -> bool:
    """Return whether a file of this name is one that a killed process was writing."""
    return name.startswith(".") and name.endswith(PART)


def sweep_parts(folder: Path, of: str = "") -> None:
    """Delete what killed processes were writing in a folder, or of one file there. Nobody else may be writing it."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            ours = is_part(entry.name) and entry.name.startswith(f".{of}.") if of else is_part(entry.name)
            if ours and entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)


def expanded(path: str | Path) -> Path:
    """Return a path whose ``~`` or ``~user`` at the start is replaced by that user's home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user
        raise UserError(f"{path}: there is no such home folder.") from None


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
    number = getattr(error, "errno", None)
    if number is None and (found := _SYSTEM_ERROR.search(str(error))):
        number = int(found[1])
    if number == errno.EFBIG:
        reason = "the file would be larger than this process or file system allows; see 'ulimit -f'"
    else:
        reason = getattr(error, "strerror", None) or first_line(error)
    kind = DiskFullError if number == errno.ENOSPC else UserError
    return kind(f"{path}: cannot be written ({reason}).")


def write_text(path: Path, text: str, *, within: Path | None = None) -> None:
    with replacing(path, within=within) as temporary:
        temporary.write_text(text, encoding="utf-8")


def append_text(path: Path, text: str) -> None:
    """Append to a file of a run folder; links are refused."""
    try:
        append_bytes(path, text.encode())
    except OSError as error:
        raise cannot_write(path, error) from None


def write_json(path: Path, value: Any, *, within: Path | None = None) -> None:
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_text(path, text, within=within)


def read_bytes(path: Path, largest: int = LARGEST_TEXT) -> bytes:
    """Return the content of a regular file of at most ``largest`` bytes."""
    try:
        with open_regular(path) as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}).") from None
    if len(content) > largest:
        raise UserError(f"{path}: too large to be read ({largest / 1e6:,.0f} MB at most).")
    return content


def read_json(path: Path, largest: int = LARGEST_TEXT) -> Any:
    """Return the content of a JSON file."""
    return parse_json(read_bytes(path, largest), f"{path}: not a JSON file")


def parse_json(text: str | bytes, what: str) -> Any:
    """Return the value of JSON text; errors begin with ``what``."""

    def no_number(name: str) -> None:
        raise ValueError(f"{name} is not a number in JSON")

    try:
        return json.loads(text, parse_constant=no_number)
    except ValueError as error:
        raise UserError(f"{what} ({first_line(error)}).") from None
    except RecursionError:
        raise UserError(f"{what} (nested too deeply).") from None


def _check_plain(value: Any) -> None:
    """Raise a ValueError if a value is anything but text, numbers, true, false, null, lists and records of them."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_plain(key)
            _check_plain(item)
    elif isinstance(value, list):
        for item in value:
            _check_plain(item)
    elif value is not None and not isinstance(value, (str, bool, int, float)):
        raise ValueError(f"it has a {type(value).__name__}, not text or a number")
    elif isinstance(value, int) and abs(value) >= 1 << 64:
        raise ValueError("it has a number that is too large")


def read_yaml(path: Path, what: str) -> Any:
    """Return the content of a YAML file; errors begin with ``what``, the argument that names the file.

    Aliases are refused: a few lines of them can stand for more than fits any memory.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("aliases (*name) are not supported")
            self.depth += 1
            if self.depth > DEEPEST:
                raise yaml.YAMLError("nested too deeply")
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth -= 1

    try:
        content = read_bytes(path, LARGEST_YAML)
    except UserError as error:
        raise UserError(f"{what} {error}") from None
    try:
        found = yaml.load(content.decode("utf-8"), Loader)
        _check_plain(found)
        return found
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, LookupError, AttributeError) as error:
        raise UserError(f"{what} {path}: not a YAML file ({' '.join(str(error).split())}).") from None
