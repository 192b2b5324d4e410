"""Translate messages of the library into the words of the command line.

The library names Python arguments in backticks, ```out``` or ```labels_per_class=4```; a user of the command line reads
``--out`` and ``--labels-per-class 4``. Knows nothing of what went wrong, nor of which options there are: it asks the
command.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# A name, perhaps dotted, perhaps with a value, between backticks that belong to no longer word such as a file name.
QUOTED = re.compile(r"(?<![\w`/\\.-])`(?P<name>[A-Za-z_]\w*(?:\.\w+)*)(?:=(?P<value>[^`]*))?`(?![\w`/\\-]|\.\w)")
SECTIONS = ("data", "network", "optim", "train", "method")
"""first words of the dotted names that ``--set`` takes"""
OTHER_NAMES = {"settings": "set", "out": "output", "data.keep_odd_labels": "yes"}
"""arguments and settings of the library that some commands call something else"""
FUNCTIONS = {"selftrain.train": "selftrain train"}
"""functions of the library, and the commands that do the same"""
SETTINGS = {
    "backbone": "network.backbone",
    "labels": "data.labels",
    "labels_per_class": "data.labels_per_class",
    "regime": "regime",
    "root": "data.root",
    "seed": "seed",
    "size": "data.size",
    "steps": "train.steps",
    "strict": "data.strict",
    "test": "data.test",
    "unlabeled": "data.unlabeled",
}
"""arguments of ``train`` as settings, for commands such as bench that have no option for them"""


@dataclass(frozen=True)
class Option:
    """One option of a command, as its user types it."""

    flag: str
    takes_value: bool = True
    no_flag: str = ""
    """the flag that turns it off, such as --no-prune"""

    def spelled(self, value: str | None) -> str:
        if value is None:
            return self.flag
        if self.takes_value:
            return f"{self.flag} {shlex.quote(_as_typed(value))}"
        if value == "False":
            return self.no_flag or f"no {self.flag}"
        return self.flag


@dataclass(frozen=True)
class Translator:
    """Turns the backticked arguments of a message into options; other text stays as it is.

    >>> Translator({"out": Option("--out"), "resume": Option("--resume", takes_value=False)})(
    ...     "`out` runs/a: the folder exists already. Pass `resume=True` to resume that run."
    ... )
    '--out runs/a: the folder exists already. Pass --resume to resume that run.'
    """

    options: Mapping[str, Option] = field(default_factory=dict)
    """by the names of the Python arguments"""

    def __call__(self, text: str) -> str:
        return QUOTED.sub(lambda match: self._spelled(match["name"], match["value"]), text)

    def _spelled(self, name: str, value: str | None) -> str:
        if name in FUNCTIONS:
            return FUNCTIONS[name]
        option = self.options.get(name) or self.options.get(OTHER_NAMES.get(name, ""))
        if option is not None:
            return option.spelled(value)
        name = SETTINGS.get(name, name) if "set" in self.options else name
        if value is None:
            return name
        assignment = f"{name}={_as_typed(value)}"
        is_setting = name.partition(".")[0] in SECTIONS or name in SETTINGS.values()
        return f"--set {shlex.quote(assignment)}" if is_setting else assignment


def translator_of(command: Any) -> Callable[[str], str]:
    """Return the translator for a command of the typer app; without a command, backticks are all that is removed."""
    options = {}
    for parameter in getattr(command, "params", ()):
        name = parameter.name.rstrip("_")
        if parameter.param_type_name == "argument":
            options[name] = Option(name.upper())
        else:
            flag = next((opt for opt in parameter.opts if opt.startswith("--")), parameter.opts[0])
            no_flag = next(iter(parameter.secondary_opts), "")
            options[name] = Option(flag, takes_value=not parameter.is_flag, no_flag=no_flag)
    return Translator(options)


def _as_typed(value: str) -> str:
    """Return a Python value as a shell user types it: ``"frozen"`` without its quotes, ``True`` as ``true``."""
    try:
        literal = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    if literal is None or isinstance(literal, bool):
        return str(literal).lower()
    return literal if isinstance(literal, str) else value
