"""Properties of what is read, searched by hypothesis: anything is accepted or refused in one line, and what is written
comes back.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selftrain.checksums import is_damaged, sealed
from selftrain.config.resolve import dump_settings, make_settings, read_config
from selftrain.config.settings import known_settings
from selftrain.data.sources.label_file import read_rows
from selftrain.errors import UserError
from selftrain.files import parse_json, read_json, write_json
from selftrain.methods import make_method, spell_method
from selftrain.runs.layout import RunLayout
from selftrain.text import spreadsheet_safe

QUICK = settings(
    max_examples=30, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
"""the same examples each time, so that a test that passed passes again"""
NAMES = sorted(known_settings())
PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20)
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def refused_in_one_line(error: UserError) -> None:
    assert str(error).strip()
    assert "\n" not in str(error).strip()


@settings(QUICK, max_examples=10)
@given(st.dictionaries(st.sampled_from(NAMES), PLAIN, max_size=3), st.sampled_from(["scratch", "finetune", "frozen"]))
def test_settings(tmp_path: Path, values: dict[str, Any], regime: str) -> None:
    try:
        made = make_settings(regime, values)
    except UserError as error:
        refused_in_one_line(error)
        return
    path = tmp_path / "config.yaml"
    path.write_text(dump_settings(made), encoding="utf-8")
    assert make_settings(regime, {k: v for k, v in read_config(path).items() if k != "regime"}) == made


METHOD = st.recursive(
    st.sampled_from(["fixmatch", "flexmatch", "mean_teacher", "supervised", "nothing"]),
    lambda inner: st.builds("{}({})".format, st.sampled_from(["dst", "abc", "fixmatch"]), inner)
    | st.builds("{}({}={})".format, st.sampled_from(["dst", "fixmatch"]), st.sampled_from(["tau", "base", "x"]), inner),
    max_leaves=4,
)  # fmt: skip


@QUICK
@given(METHOD | st.text("dstfixma(),=.0123456789' ", max_size=30))
def test_method_strings(text: str) -> None:
    try:
        method = make_method(text, "scratch")
    except UserError as error:
        refused_in_one_line(error)
        return
    assert make_method(spell_method(method), "scratch") == method


@QUICK
@given(st.lists(st.lists(st.text(max_size=12), min_size=1, max_size=4), max_size=6), st.sampled_from([",", ";", "\t"]))
def test_label_files(tmp_path: Path, rows: list[list[str]], separator: str) -> None:
    path = tmp_path / "labels.csv"
    text = f"path{separator}label\n" + "\n".join(separator.join(row) for row in rows)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        list(read_rows(path))
    except UserError as error:
        refused_in_one_line(error)


@QUICK
@given(st.binary(max_size=200) | JSON.map(lambda value: yaml.safe_dump(value).encode()))
def test_yaml(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    try:
        read_config(path)
    except UserError as error:
        refused_in_one_line(error)


@QUICK
@given(JSON)
def test_json_comes_back(tmp_path: Path, value: Any) -> None:
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value


@QUICK
@given(st.dictionaries(st.text(max_size=8).filter(lambda name: name != "checksum"), JSON, max_size=4), st.integers(0))
def test_a_changed_record_is_damaged(record: dict[str, Any], place: int) -> None:
    whole = sealed(record)
    assert not is_damaged(json.loads(json.dumps(whole)))
    if record:
        name = sorted(record)[place % len(record)]
        assert is_damaged({**whole, name: [whole[name], 1]})


@QUICK
@given(JSON, st.sampled_from(["results", "metrics", "split", "reference"]))
def test_records_of_a_run(tmp_path: Path, value: Any, name: str) -> None:
    run = RunLayout(tmp_path)
    text = json.dumps(value)
    read = {"results": run.read_results, "metrics": run.read_metrics, "split": run.read_split,
            "reference": run.read_reference}[name]  # fmt: skip
    getattr(run, name).write_text(text + "\n", encoding="utf-8")
    try:
        read()
    except UserError as error:
        refused_in_one_line(error)
    getattr(run, name).unlink()


@QUICK
@given(st.text(max_size=300) | JSON.map(json.dumps))
def test_json_text(text: str) -> None:
    try:
        parse_json(text, "x.json: not a JSON file")
    except UserError as error:
        refused_in_one_line(error)


@QUICK
@given(st.text(max_size=20))
def test_no_cell_is_a_formula(text: str) -> None:
    safe = spreadsheet_safe(text)
    assert safe.removeprefix("'").endswith(text.removeprefix("'"))
    if safe[:1] in tuple("=+-@\t\r\n"):
        float(safe)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_deep_json_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a JSON"):
        parse_json(text, "not a JSON file")
