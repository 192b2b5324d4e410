"""Advice: which recommendations follow from which results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selftrain.report.advice import advise, quoted
from selftrain.report.run_data import read_run
from tests.report.made import make_run


def test_advice_follows_the_results(tmp_path: Path) -> None:
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "vanishing": ("fixmatch", {}),
        "sound": ("dst(fixmatch)", {}),
        "unmeasured": ("dst(fixmatch)", {"truth": False}),
        "harmed": ("fixmatch", {"reference": True}),
        "stopped": ("fixmatch", {"finished": False}),
    }
    runs = {name: read_run(make_run(tmp_path / name, method, **how)) for name, (method, how) in cases.items()}
    titles = {name: [advice.title for advice in advise(run, [])] for name, run in runs.items()}
    assert any("vanishing" in title for title in titles["vanishing"])
    assert not any("vanishing" in title or "harmed" in title for title in titles["sound"])
    assert "The accuracy is not known yet" in titles["unmeasured"]
    assert any("harmed" in title for title in titles["harmed"])
    assert "Finish the run" in titles["stopped"]
    found = advise(runs["harmed"], [])  # several problems with one remedy
    assert sum("keeps the part that makes the pseudo labels" in advice.text for advice in found) == 1
    assert sum("The remedy is the same as above." in advice.text for advice in found) >= 1


def test_names_are_quoted_and_joined() -> None:
    assert quoted(["a"]) == "“a”"
    assert quoted(["a", "b"]) == "“a” and “b”"
    assert quoted(["a", "b", "c"]) == "“a”, “b” and “c”"
    assert quoted(list("abcde")) == "“a”, “b”, “c”, “d” and “e”"
    assert quoted(list("abcdef")) == "“a”, “b”, “c”, “d” and 2 more"


def test_the_suggested_method_is_dst_on_the_method_of_the_run(tmp_path: Path) -> None:
    for i, (method, suggested) in enumerate((
        ("fixmatch", 'selftrain train … --method "dst(fixmatch)"'),
        ("flexmatch(tau=0.9)", 'selftrain train … --method "dst(flexmatch(tau=0.9))"'),
        ("vat", ""),  # DST cannot wrap it
    )):  # fmt: skip
        (advice,) = [a for a in advise(read_run(make_run(tmp_path / str(i), method)), []) if "vanishing" in a.title]
        assert advice.command == suggested
