"""Read a bench from a YAML file whose fields are those of ``Bench``.

Knows nothing of the benches that come with the package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from selftrain.bench.spec import Bench, Row, Variant
from selftrain.errors import UserError, nearest
from selftrain.files import read_yaml
from selftrain.runs.layout import AMOUNTS, SHARES

BENCH_FIELDS = {
    "about": str, "datasets": list, "rows": list, "settings": dict, "draws": str, "variants": dict, "by_dataset": dict,
    "measures": list,
}  # fmt: skip
ROW_FIELDS = {"method": str, "settings": dict, "label": str, "against": str}
KINDS: dict[type, str] = {list: "a list", dict: "names with values", str: "a word"}


def read_bench(path: Path) -> Bench:
    """Return the bench in a YAML file; a mistake in it is a UserError that names the field."""
    where = f"bench {path}"
    tree = read_yaml(path, "bench")
    _check_fields(tree, BENCH_FIELDS, where)
    for name in ("datasets", "rows"):
        if not tree.get(name):
            raise UserError(f"{where}: {name!r} is missing; a bench has at least 'datasets' and 'rows'.")
    if tree.get("draws", "one") not in ("one", "each"):
        raise UserError(f"{where}: draws={tree['draws']}: expected one or each.")
    _check_names(tree.get("settings") or {}, where)
    datasets = tuple(map(str, tree["datasets"]))
    by_dataset = _groups(tree, "by_dataset", where)
    for name in by_dataset:
        if name not in datasets:
            raise UserError(f"{where}: by_dataset: {name!r} is not one of its datasets.{nearest(name, datasets)}")
    _check_measures(tree.get("measures") or (), where)
    rows = tuple(_row(row, f"{where}: row {row}") for row in tree["rows"])
    names = [row.name for row in rows]
    for row in rows:
        if row.against and row.against not in names:
            raise UserError(f"{where}: against: there is no row {row.against!r}.{nearest(row.against, names)}")
    variants = tuple(Variant(name, values) for name, values in _groups(tree, "variants", where).items())
    optional: dict[str, Any] = {"measures": tuple(tree["measures"])} if tree.get("measures") is not None else {}
    return Bench(
        about=tree.get("about") or str(path),
        datasets=datasets,
        rows=rows,
        settings=tree.get("settings") or {},
        draws=tree.get("draws", "one"),
        variants=variants or (Variant(),),
        by_dataset=by_dataset,
        **optional,
    )


def _groups(tree: Mapping[str, Any], field: str, where: str) -> dict[str, dict[str, Any]]:
    """Return named groups of settings, such as the variants."""
    groups: dict[str, dict[str, Any]] = {}
    for key, values in (tree.get(field) or {}).items():
        if values is not None and not isinstance(values, dict):
            raise UserError(f"{where}: {field}: {key}={values}: expected settings with values.")
        _check_names(values or {}, where)
        groups[str(key)] = values or {}
    return groups


def _row(row: Any, where: str) -> Row:
    if isinstance(row, str):
        return Row(row)
    _check_fields(row, ROW_FIELDS, where)
    if row.get("method") is None:
        raise UserError(f"{where}: 'method' is missing.")
    _check_names(row.get("settings") or {}, where)
    return Row(**{name: value for name, value in row.items() if value is not None})


def _check_names(settings: Mapping[Any, Any], where: str) -> None:
    for name in settings:
        if not isinstance(name, str):
            raise UserError(f"{where}: settings: {name!r} is not the name of a setting, such as optim.lr.")


def _check_measures(measures: Iterable[Any], where: str) -> None:
    known = (*SHARES, *AMOUNTS)
    for name in measures:
        if name not in known:
            hint = nearest(str(name), known)
            raise UserError(f"{where}: measures: {name!r} is not a measure.{hint} Known: {', '.join(known)}.")


def _check_fields(tree: Any, fields: Mapping[str, type], where: str) -> None:
    if not isinstance(tree, dict):
        raise UserError(f"{where}: expected fields such as {', '.join(fields)}.")
    for name, value in tree.items():
        if name not in fields:
            raise UserError(
                f"{where}: there is no field {name!r}.{nearest(str(name), fields)} Known: {', '.join(fields)}."
            )
        if value is not None and not isinstance(value, fields[name]):
            raise UserError(f"{where}: {name}={value}: expected {KINDS[fields[name]]}.")
