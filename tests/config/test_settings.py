"""Settings: what is accepted, what is refused in which words, and which settings count for the hash and on resume."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest

import selftrain
from selftrain.config.options import (
    NEUTRAL,
    Above,
    AtLeast,
    Below,
    Between,
    check_fields,
    convert,
    describe,
    field_help,
    field_kinds,
    field_types,
    is_neutral,
)
from selftrain.config.regimes import REGIMES
from selftrain.config.resolve import dump_settings, make_settings, read_config, with_values
from selftrain.config.settings import SECTIONS, Settings, changes_results, known_settings, settings_hash
from selftrain.errors import UserError
from tests.folders import layout_2

NEUTRAL_SETTINGS = {
    "data.path", "data.labels", "data.test", "data.unlabeled", "data.root", "data.check", "data.strict",
    "data.workers", "data.max_pixels", "data.cache", "data.engine", "data.extract_on", "data.keep_odd_labels",
    "network.save_backbone", "train.checkpoint_every",
    "train.threads",
    "train.accelerator", "train.devices", "train.strategy", "train.folds", "train.logger",
}  # fmt: skip


def kind_of(name: str) -> Any:
    section, _, key = name.rpartition(".")
    return field_kinds(SECTIONS[section] if section else Settings)[key]


def another_value(name: str, value: Any) -> Any:
    """A value of the setting that is allowed and is not ``value``."""
    plain = field_types(SECTIONS[name.split(".")[0]] if "." in name else Settings)[name.rpartition(".")[2]]
    choices = [
        choice for option in (plain, *get_args(plain)) for choice in get_args(option) if get_origin(option) is Literal
    ]
    candidates = [*choices, True, False, 1, 2, 9, 0.5, 0.25, "other"]
    for candidate in candidates:
        try:
            found = convert(candidate, kind_of(name))
        except ValueError:
            continue
        if found is not None and found != value:
            return found
    raise AssertionError(name)


def test_the_settings_that_change_no_result() -> None:
    assert {name for name in known_settings() if not changes_results(name)} == NEUTRAL_SETTINGS
    assert changes_results("method.base.tau")


@pytest.mark.parametrize("name", known_settings())
def test_the_hash_depends_on_what_changes_results_and_on_nothing_else(name: str) -> None:
    settings = make_settings("frozen", {"data.path": "photos", "data.unlabeled": "more"})
    section, _, key = name.rpartition(".")
    value = getattr(getattr(settings, section) if section else settings, key)
    other = with_values(settings, {name: another_value(name, value)})
    assert other != settings
    assert (settings_hash(other) != settings_hash(settings)) == (name not in NEUTRAL_SETTINGS)


def test_the_folder_of_a_weights_file_does_not_change_the_hash() -> None:
    here, there, other = (
        settings_hash(make_settings("frozen", {"network.weights": path}))
        for path in ("a/net.pt", "/b/net.pt", "a/n.pt")
    )
    assert here == there != other


def test_a_resumed_run_accepts_files_that_have_moved(tmp_path: Path) -> None:
    data = layout_2(tmp_path / "data")
    shutil.move(data / "test", tmp_path / "test")
    common: dict[str, Any] = {
        "labels_per_class": 2,
        "regime": "scratch",
        "steps": 2,
        "quiet": True,
        "backbone": "wrn-tiny",
    }
    small = {"train.batch": 4, "train.unlabeled_batch": 4, "train.eval_every": 1}
    run = selftrain.train(data, test=tmp_path / "test", out=tmp_path / "run", settings=small, **common)
    shutil.move(tmp_path / "test", tmp_path / "moved")
    shutil.move(data, tmp_path / "elsewhere")
    again = selftrain.train(
        tmp_path / "elsewhere", test=tmp_path / "moved", out=tmp_path / "run", settings=small, resume=True, **common
    )
    assert again.results["accuracy"] == run.results["accuracy"]
    with pytest.raises(UserError, match=r"optim.momentum"):
        selftrain.train(
            tmp_path / "elsewhere", test=tmp_path / "moved", out=tmp_path / "run", resume=True,
            settings={**small, "optim.momentum": 0.5}, **common,
        )  # fmt: skip


@pytest.mark.parametrize("regime", REGIMES)
def test_a_config_file_gives_the_settings_back(regime: str, tmp_path: Path) -> None:
    settings = make_settings(regime, {"data.path": "photos", "optim.lr": "1e-3", "seed": 3})
    path = tmp_path / "config.yaml"
    path.write_text(dump_settings(settings))
    assert make_settings(regime, read_config(path)) == settings


@pytest.mark.parametrize("regime", REGIMES)
def test_every_setting_has_a_value_in_every_regime(regime: str) -> None:
    settings = make_settings(regime, {})
    for name in known_settings():
        section, _, key = name.rpartition(".")
        convert(getattr(getattr(settings, section) if section else settings, key), kind_of(name))


def test_every_setting_has_a_help_text() -> None:
    for cls in SECTIONS.values():
        assert all(field_help(cls).values())
    texts = field_help(Settings)
    assert all(texts[name] for name in texts if name not in SECTIONS)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optim.momentum": 2}, "`optim.momentum=2`: expected a number from 0 to 0.9999."),
        ({"optim.lr": -1}, "`optim.lr=-1`: expected a number of at least 0."),
        ({"optim.lr": "fast"}, "`optim.lr=fast`: expected a number of at least 0."),
        ({"optim.lr": None}, "`optim.lr=none`: expected a number of at least 0."),
        ({"optim.clip": float("nan")}, "`optim.clip=nan`: expected a number of at least 0."),
        ({"train.batch": 1}, "`train.batch=1`: expected a whole number from 2 to 10000000."),
        ({"data.size": 7}, "`data.size=7`: expected a whole number from 8 to 4096 or none."),
        ({"data.crop": "pat"}, "`data.crop=pat`: expected one of pad, resized. Did you mean 'pad'?"),
        ({"seed": -1}, "`seed=-1`: expected a whole number from 0 to 4294967295."),
        ({"optm.lr": 1}, "`settings`: there is no setting 'optm.lr'. Did you mean 'optim.lr'?"),
        ({"data": 1}, "`settings`: there is no setting 'data'."),
        (
            {"optim.lrr": 1},
            "`settings`: there is no setting 'optim.lrr'. Did you mean 'optim.lr'? The settings of optim: lr,",
        ),
    ],
)
def test_refused_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        make_settings("scratch", given)
    assert str(error.value).startswith(message)


def test_an_unknown_regime() -> None:
    with pytest.raises(UserError, match=r"`regime=\"scrtch\"`: expected one of .* Did you mean 'scratch'\?"):
        make_settings("scrtch", {})


@dataclass(frozen=True)
class Options:
    share: Annotated[float, AtLeast(0), Below(1)] = 0.5
    positive: Annotated[float | None, Above(0)] = None
    count: Annotated[int, Between(1, 3), NEUTRAL] = 1
    plain: bool = True


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"share": 1}, r"an\(share=1\): expected a number of at least 0 and less than 1\."),
        ({"share": -0.1}, r"an\(share=-0.1\)"),
        ({"positive": 0}, r"an\(positive=0\): expected a number greater than 0 or none\."),
        ({"count": 4}, r"an\(count=4\): expected a whole number from 1 to 3\."),
        ({"count": 1.5}, r"an\(count=1.5\)"),
        ({"count": True}, r"an\(count=true\)"),
        ({"plain": None}, r"an\(plain=none\): expected true or false\."),
    ],
)
def test_ranges_stand_at_the_field(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_fields(Options(**given), "an({})".format)


def test_bounds_are_included_unless_they_say_otherwise() -> None:
    for given in (
        {"share": 0},
        {"share": 0.999},
        {"positive": 1e-9},
        {"count": 1},
        {"count": "3"},
        {"positive": "none"},
    ):
        check_fields(Options(**given), "{}".format)
    assert describe(field_kinds(Options)["count"]) == "a whole number from 1 to 3"
    assert [name for name, kind in field_kinds(Options).items() if is_neutral(kind)] == ["count"]
