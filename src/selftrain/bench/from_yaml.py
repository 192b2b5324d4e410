"""A bench of one's own: a YAML file with the same fields.

Knows nothing of the benches that come with the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selftrain.bench.spec import AMOUNTS, SHARES, Bench, Row, Variant
from selftrain.errors import UserError, nearest
from selftrain.files import read_yaml

FIELDS = {
    "about": str, "datasets": list, "rows": list, "settings": dict, "draws": str, "variants": dict, "by_dataset": dict,
    "measures": list,
}  # fmt: skip
ROW = {"method": str, "settings": dict, "label": str, "against": str}


def read_bench(path: Path) -> Bench:
    tree = read_yaml(path, "bench")
    _check(tree, FIELDS, f"bench {path}")
    for name in ("datasets", "rows"):
        if not tree.get(name):
            raise UserError(f"bench {path}: {name!r} is missing; a bench has at least 'datasets' and 'rows'.")
    if tree.get("draws", "one") not in ("one", "each"):
        raise UserError(f"bench {path}: draws={tree['draws']}: expected one or each.")
    for name in ("variants", "by_dataset"):
        for key, values in (tree.get(name) or {}).items():
            if values is not None and not isinstance(values, dict):
                raise UserError(f"bench {path}: {name}: {key}={values}: expected settings with values.")
    for values in (
        tree.get("settings"),
        *(tree.get("variants") or {}).values(),
        *(tree.get("by_dataset") or {}).values(),
    ):
        _check_names(values or {}, f"bench {path}")
    datasets = list(map(str, tree["datasets"]))
    for name in tree.get("by_dataset") or {}:
        if str(name) not in datasets:
            raise UserError(
                f"bench {path}: by_dataset: {name!r} is none of its datasets.{nearest(str(name), datasets)}"
            )
    for name in tree.get("measures") or ():
        if name not in (*SHARES, *AMOUNTS):
            known = (*SHARES, *AMOUNTS)
            raise UserError(
                f"bench {path}: measures: {name!r} is none.{nearest(str(name), known)} Known: {', '.join(known)}."
            )
    rows = tuple(_row(row, f"bench {path}: row {row}") for row in tree["rows"])
    for row in rows:
        if row.against and row.against not in (others := [other.name for other in rows]):
            raise UserError(f"bench {path}: against: there is no row {row.against!r}.{nearest(row.against, others)}")
    variants = tuple(Variant(str(name), values or {}) for name, values in (tree.get("variants") or {}).items())
    optional: dict[str, Any] = {"measures": tuple(tree["measures"])} if "measures" in tree else {}
    return Bench(
        about=tree.get("about", str(path)),
        datasets=tuple(datasets),
        rows=rows,
        settings=tree.get("settings") or {},
        draws=tree.get("draws", "one"),
        variants=variants or (Variant(),),
        by_dataset={str(name): values or {} for name, values in (tree.get("by_dataset") or {}).items()},
        **optional,
    )


def _row(row: Any, where: str) -> Row:
    if isinstance(row, str):
        return Row(row)
    _check(row, ROW, where)
    if "method" not in row:
        raise UserError(f"{where}: 'method' is missing.")
    _check_names(row.get("settings") or {}, where)
    return Row(**{name: value for name, value in row.items() if value is not None})


def _check_names(settings: Mapping[Any, Any], where: str) -> None:
    for name in settings:
        if not isinstance(name, str):
            raise UserError(f"{where}: settings: {name!r} is no name of a setting, such as optim.lr.")


def _check(tree: Any, fields: Mapping[str, type], where: str) -> None:
    if not isinstance(tree, dict):
        raise UserError(f"{where}: expected fields such as {', '.join(fields)}.")
    for name, value in tree.items():
        if name not in fields:
            raise UserError(
                f"{where}: there is no field {name!r}.{nearest(str(name), fields)} Known: {', '.join(fields)}."
            )
        if value is not None and not isinstance(value, fields[name]):
            kinds: dict[type, str] = {list: "a list", dict: "names with values", str: "a word"}
            raise UserError(f"{where}: {name}={value}: expected {kinds[fields[name]]}.")
