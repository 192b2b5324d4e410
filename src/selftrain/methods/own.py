"""Methods from outside the package: a class in a Python file that the user names, or an installed entry point.

Knows nothing of training. The code of a file runs only after ``allow_method_file`` was called with it in this process,
which happens where the user names the file: in an argument or an option, never in a configuration or a run folder. A
method string keeps a hash of the file, ``/path/file.py:MyMethod@1a2b3c4d5e6f``, so that a run is never resumed or
repeated with other code.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from selftrain.errors import UserError
from selftrain.files import expanded
from selftrain.methods.base import Method
from selftrain.text import first_line

GROUP = "selftrain.methods"
"""the group of entry points by which an installed package offers methods"""
REFERENCE = re.compile(r"(?P<path>.+\.py):(?P<cls>[A-Za-z_]\w*)(?:@(?P<hash>[0-9a-f]{12}))?")
"""a class in a file, perhaps with the hash of the file"""

_allowed: dict[str, str] = {}
"""absolute paths of the files that the user has named, with their hashes"""
_loaded: dict[str, type[Method]] = {}
"""classes by their full reference"""


def is_reference(name: str) -> bool:
    """Tell whether a method's name is a class in a file."""
    return REFERENCE.fullmatch(name) is not None


def allow_method_file(path: str | Path, digest: str | None = None) -> str:
    """Let this process run the code of a file; return the file's hash.

    With ``digest``, raise a UserError if the file has changed since.
    """
    file = _absolute(path)
    now = _hash(file)
    if digest is not None and digest != now:
        raise UserError(f"`method`: {file} has changed since the bench was started ({digest}, now {now}).")
    _allowed[str(file)] = now
    return now


def allowed() -> tuple[tuple[str, str], ...]:
    """Return the files that the user has named, with their hashes, for other processes of the same command."""
    return tuple(_allowed.items())


def allow_named(references: Iterable[str]) -> None:
    """Allow the files of references that the user has typed."""
    for reference in references:
        match = REFERENCE.fullmatch(reference)
        assert match is not None
        allow_method_file(match["path"])


def full_reference(name: str) -> str:
    """Return a reference with an absolute path and the hash of the file as it is now."""
    match = REFERENCE.fullmatch(name)
    assert match is not None
    file = _absolute(match["path"])
    return f"{file}:{match['cls']}@{_hash(file)}"


def title_of(name: str) -> str:
    """Return how people write a reference: the name of the class."""
    match = REFERENCE.fullmatch(name)
    return name if match is None else match["cls"]


class KnownMethods(Mapping[str, type[Method]]):
    """The methods of the package, those of installed entry points, and classes in files that the user has named."""

    def __init__(self, own: Mapping[str, type[Method]], load: bool = True) -> None:
        """``load=False``: never run code; know only classes that are loaded already."""
        self.own, self.load = own, load

    def __getitem__(self, name: str) -> type[Method]:
        if name in self.own:
            return self.own[name]
        if is_reference(name):
            return _class_in_file(name, self.load)
        return _entry_point(name, self.load)

    def __contains__(self, name: object) -> bool:
        if isinstance(name, str) and self.load and is_reference(name):
            return True  # an error about the file says more than that there is no such method
        return super().__contains__(name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.own, *(entry.name for entry in _entry_points()))))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _entry_points() -> Iterable[importlib.metadata.EntryPoint]:
    return importlib.metadata.entry_points(group=GROUP)


def _entry_point(name: str, load: bool) -> type[Method]:
    if name in _loaded:
        return _loaded[name]
    entry = next((entry for entry in _entry_points() if entry.name == name), None)
    if entry is None or not load:
        raise KeyError(name)
    try:
        cls = entry.load()
    except Exception as error:  # from a stranger's package
        raise UserError(f"`method`: {name} of {entry.value} cannot be loaded ({_reason(error)}).") from error
    _loaded[name] = _checked(cls, f"{entry.value} (entry point {name!r})", name)
    return _loaded[name]


def _class_in_file(name: str, load: bool) -> type[Method]:
    match = REFERENCE.fullmatch(name)
    assert match is not None
    if not load:
        return _loaded[name]
    file, cls = _absolute(match["path"]), match["cls"]
    if str(file) not in _allowed:
        raise UserError(
            f"`method`: {file}:{cls} is code in a file, which runs only if you name the file yourself. "
            f"Add `method_file={file}` if you trust it."
        )
    now = _hash(file)
    if match["hash"] not in (None, now) or _allowed[str(file)] != now:
        before = match["hash"] or _allowed[str(file)]
        raise UserError(
            f"`method`: {file} has changed (its hash was {before} and is {now}). Restore the file, or start a new run "
            f"with `method={file}:{cls}`."
        )
    reference = f"{file}:{cls}@{now}"
    if reference not in _loaded:
        _loaded[reference] = _load(file, cls, reference)
    return _loaded[reference]


def _load(file: Path, cls: str, reference: str) -> type[Method]:
    module_name = f"selftrain_method_{hashlib.sha256(reference.encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except UserError:
        raise
    except Exception as error:
        sys.modules.pop(module_name, None)
        raise UserError(f"`method`: {file} cannot be run ({_reason(error)}).") from error
    found = getattr(module, cls, None)
    if found is None:
        classes = [
            name for name, value in vars(module).items() if isinstance(value, type) and value.__module__ == module_name
        ]
        raise UserError(f"`method`: {file} has no class {cls!r}. Its classes: {', '.join(classes) or 'none'}.")
    return _checked(found, f"{file}:{cls}", reference)


def _checked(cls: Any, what: str, spelled_as: str) -> type[Method]:
    if not isinstance(cls, type) or not issubclass(cls, Method):
        raise UserError(f"`method`: {what} is not a method: derive it from selftrain.methods.SelfTraining or Method.")
    for name, default in (
        ("name", cls.__name__.lower()),
        ("title", cls.__name__),
        ("reference", "a method of your own"),
    ):
        if not hasattr(cls, name):
            setattr(cls, name, default)
    cls.spelled_as = spelled_as
    return cls


def class_of(reference: str) -> type[Method]:
    """Return the class that a reference names, in a file that the user has named."""
    return _class_in_file(reference, load=True)


def methods_in(path: str | Path) -> list[str]:
    """Return references to the methods that a named file defines, without running it twice."""
    file = _absolute(path)
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"`method`: {file} cannot be read ({_reason(error)}).") from None
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    found = []
    for name in names:
        try:
            cls = _class_in_file(f"{file}:{name}", load=True)
        except UserError as error:
            if "is not a method" in str(error):
                continue  # a helper
            raise
        if not inspect.isabstract(cls):
            found.append(f"{file}:{name}")
    if not found:
        raise UserError(f"`method`: {file} defines no method: a class that derives from SelfTraining or Method.")
    return found


def _absolute(path: str | Path) -> Path:
    return expanded(path).resolve()


def _hash(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise UserError(f"`method`: {file} cannot be read ({error.strerror}).") from None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
