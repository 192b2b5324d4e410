"""What each method says about itself, and what a method string tells without building the method."""

from __future__ import annotations

import pickle

import pytest

from selftrain.config.options import field_types
from selftrain.config.regimes import REGIMES
from selftrain.methods import METHODS, Method, Wrapper, make_method, method_info
from selftrain.methods.spelling import usual_values


def spelled(name: str) -> str:
    """A method string; a wrapper needs a base."""
    return f"{name}(fixmatch)" if issubclass(METHODS[name], Wrapper) else name


@pytest.mark.parametrize("cls", METHODS.values(), ids=METHODS)
def test_a_method_says_its_own_name_title_and_reference(cls: type[Method]) -> None:
    assert {"name", "title", "reference"} <= set(vars(cls))
    assert len({other.title for other in METHODS.values()}) == len(METHODS)


@pytest.mark.parametrize("cls", METHODS.values(), ids=METHODS)
def test_a_grid_has_options_that_exist_and_values_that_are_allowed(cls: type[Method]) -> None:
    assert set(cls.grid) <= set(field_types(cls))
    for option, values in cls.grid.items():
        assert len(set(values)) == len(values) > 1
        for value in values:
            for regime in cls.regimes:
                make_method(spelled(cls.name), regime, {option: value})


def test_all_that_can_be_tuned_has_a_grid() -> None:
    """Labels alone have nothing to tune, DST is tuned through its base, and RAT has no features to be tuned on.

    The temperature of prototypes does not change their predictions.
    """
    assert [name for name, cls in METHODS.items() if not cls.grid] == ["supervised", "rat", "prototypes", "dst"]


@pytest.mark.parametrize("name", METHODS)
def test_methods_can_be_pickled_and_are_frozen(name: str) -> None:
    method = make_method(spelled(name), METHODS[name].regimes[0])
    assert pickle.loads(pickle.dumps(method)) == method
    with pytest.raises(AttributeError):
        method.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("fixmatch", "FixMatch"),
        ("supervised", "Labels only"),
        ("FixMatch(tau=0.9)", "FixMatch(tau=0.9)"),
        ("mean-teacher", "Mean Teacher"),
        ("dst(fixmatch)", "DST(FixMatch)"),
        ("dst(noisy_student(T=0.5), width=64)", "DST(Noisy Student(T=0.5), width=64)"),
        ("dst(fixmatch, worst=false)", "DST(FixMatch) without worst case"),
        ("dst(flexmatch, worst=False)", "DST(FlexMatch) without worst case"),
        ("dst(fixmatch, worst=true)", "DST(FixMatch, worst=true)"),
        ("dst(fixmatch(tau=0.9), worst=false)", "DST(FixMatch(tau=0.9), worst=false)"),
        ("dst(fixmatch, worst=false, width=9)", "DST(FixMatch, worst=false, width=9)"),
        ("mine", "mine"),
        ("mine(tau=0.5)", "mine(tau=0.5)"),
        ("dst(mine)", "DST(mine)"),
        ("?", "?"),
        ("", ""),
        ("dst(", "dst("),
        ("dst", "DST"),
        ("fixmatch(tau=many, no_such=1)", "FixMatch(tau=many, no_such=1)"),
    ],
)
def test_titles(text: str, title: str) -> None:
    assert method_info(text).title == title


def test_what_a_string_tells() -> None:
    info = method_info("dst(flexmatch(tau=0.9), worst=false, width=64)")
    assert info.is_wrapper
    assert not info.labels_only
    assert not info.can_be_base
    assert info.options == {"worst": False, "width": 64}
    assert info.base is not None
    assert info.base.can_be_base
    assert not info.base.is_wrapper
    assert info.base.options == {"tau": 0.9}
    assert info.base.grid == METHODS["flexmatch"].grid
    assert info.base.base is None


def test_kinds_of_methods() -> None:
    infos = {name: method_info(name) for name in METHODS}
    assert [name for name, info in infos.items() if info.labels_only] == ["supervised", "logistic", "prototypes", "knn"]
    fitted = ["logistic", "prototypes", "knn", "label_spreading", "diffusion", "self_logistic"]
    assert [name for name, info in infos.items() if info.fitted] == fitted
    assert all((info.regimes == ("frozen",)) == info.fitted for info in infos.values())
    assert [name for name, info in infos.items() if info.is_wrapper] == ["abc", "daso", "crest", "openmatch", "dst"]
    bases = {
        "fixmatch", "flexmatch", "mean_teacher", "noisy_student", "dividemix", "uda", "dash", "debiasmatch",
        "pseudo_label",
    }  # fmt: skip
    assert {name for name in METHODS if infos[name].can_be_base} >= bases
    assert {name for name, cls in METHODS.items() if cls.why_no_base != Method.why_no_base}.isdisjoint(bases)


@pytest.mark.parametrize("text", ["mine", "dst(mine(a=1))", "?", "", "x" * 5000, "dst(" * 30, "fixmatch(tau=", "base"])
def test_an_unknown_method_is_described_without_an_error(text: str) -> None:
    info = method_info(text)
    assert not info.labels_only
    assert not info.can_be_base


def test_defaults_of_regimes_are_options_that_exist() -> None:
    for cls in METHODS.values():
        for regime, values in cls.defaults.items():
            assert regime in REGIMES
            assert set(values) <= set(usual_values(cls, regime))
