"""Options of a method as nested parameters of an estimator: ``method__base__tau``.

Knows nothing of estimators or of what an option does. A method string stays a string: options that it does not give
keep the defaults of the frozen regime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from selftrain.errors import UserError

if TYPE_CHECKING:
    from selftrain.methods import Method

REGIME = "frozen"


def options_of(method: Any) -> dict[str, Any]:
    """Return every option of a method by its path, ``{"base__tau": 0.7}``; none if it is not a method."""
    from selftrain.methods import Method, make_method

    if isinstance(method, str):
        try:
            method = make_method(method, REGIME)
        except UserError:  # it is refused when it is used
            return {}
    return _options(method) if isinstance(method, Method) else {}


def _options(method: Method) -> dict[str, Any]:
    from selftrain.config.options import field_types
    from selftrain.methods import Method

    found: dict[str, Any] = {}
    for name in field_types(type(method)):
        value = getattr(method, name)
        found[name] = value
        if isinstance(value, Method):
            found |= {f"{name}__{key}": inner for key, inner in _options(value).items()}
    return found


def with_method_options(method: Any, options: Mapping[str, Any]) -> Any:
    """Return the method with other values of the options at these paths; a string stays a string."""
    from selftrain.methods import make_method, with_options

    now = options_of(method)
    changed = {path: value for path, value in options.items() if path not in now or now[path] != value}
    if not changed:
        return method
    if isinstance(method, str):
        # an outer option first: another base takes its own options
        ordered = sorted(changed.items(), key=lambda item: item[0].count("__"))
        text = with_options(method, {path.replace("__", "."): value for path, value in ordered})
        make_method(text, REGIME)  # a typo is an error now
        return text
    for path, value in changed.items():
        method = _replaced(method, path.split("__"), value)
    return method


def _replaced(method: Any, path: list[str], value: Any) -> Any:
    from selftrain.config.options import field_types, unknown_option
    from selftrain.methods import Method, make_method

    if not isinstance(method, Method):
        raise UserError(f"`method__{'__'.join(path)}`: {method!r} is not a method and has no options.")
    name, *rest = path
    if name not in field_types(type(method)):
        raise unknown_option(name, field_types(type(method)), method.name)
    if rest:
        value = _replaced(getattr(method, name), rest, value)
    elif name == "base" and isinstance(value, str):
        value = make_method(value, REGIME)
    return replace(method, **{name: value})
