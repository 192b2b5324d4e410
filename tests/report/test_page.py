"""The report page: what it says of made-up runs, what it leaves out, and that names are only ever text."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from selftrain.errors import UserError
from selftrain.report import write_report
from selftrain.report.advice import advise
from selftrain.report.charts import Series, _apart, _brief, change_chart, line_chart, matrix, stacked_chart
from selftrain.report.reading import read_run, read_runs, reference_of, spoken, training_bias
from tests.report.made import CIFAR, NASTY, make_run

VOID = {"meta", "link", "img", "input", "br", "path"}


class Page(HTMLParser):
    """The elements of a page, its text, and whether every element that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def page_of(*runs: Path, out: Path) -> tuple[Page, str]:
    text = write_report(runs, out).read_text(encoding="utf-8")
    return Page(text), text


def embedded(text: str) -> Any:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, flags=re.DOTALL)
    return json.loads(found)


def test_the_matthew_effect_and_its_cure_are_told_in_words(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name.strip("()"), name) for name in ("fixmatch", "dst(fixmatch)", "supervised")]
    page, text = page_of(*runs, out=tmp_path / "page.html")
    words = page.words()
    assert "FixMatch lifted 5 classes and lowered 5." in words
    assert "DST(FixMatch) lifted 10 classes and lowered none." in words
    assert "Self-training took from 5 classes" in words
    assert 'selftrain train … --method "dst(fixmatch)"' in words
    assert "DST(FixMatch) is right most often" in words
    for section in ("summary", "next", "classes", "bias", "training", "pseudo", "unlabeled", "worst", "confusion",
                    "calibration", "examples", "settings"):  # fmt: skip
        assert f'<section id="{section}"' in text, section


def test_the_page_asks_nothing_of_the_network(tmp_path: Path) -> None:
    page, text = page_of(make_run(tmp_path / "run", "dst(fixmatch)", reference=True), out=tmp_path / "page.html")
    for tag, attrs in page.elements:
        for name in ("src", "href", "action", "data", "poster"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_headings_do_not_skip_and_everything_has_a_name(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", "dst(fixmatch)", reference=True)]
    page, _ = page_of(*runs, out=tmp_path / "page.html")
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    tags = [tag for tag, _ in page.elements]
    assert {"header", "nav", "main", "footer"} <= set(tags)
    for tag, attrs in page.elements:
        if attrs.get("role") in ("img", "region") or tag == "nav":
            assert attrs.get("aria-label"), tag
        if tag == "img":
            assert attrs.get("alt")


@pytest.mark.parametrize("truth", [True, False])
def test_nasty_names_are_shown_as_text(tmp_path: Path, truth: bool) -> None:
    run = make_run(
        tmp_path / "run", "dst(fixmatch)", classes=NASTY, names=NASTY, truth=truth, reference=truth,
        data=str(tmp_path / "<b>data & co</b>"),
    )  # fmt: skip
    page, text = page_of(run, out=tmp_path / "page.html")
    assert [tag for tag, _ in page.elements].count("script") == 2  # the data and the page's own
    assert "img" not in [tag for tag, _ in page.elements]
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    shown = "\n".join(page.text)
    for name in NASTY:
        assert name in shown, name
    assert embedded(text)["classes"] == [NASTY]
    raw = text.partition('id="data">')[2].partition("</script>")[0]
    assert not set("<>&") & set(raw)
    assert "\u2028" not in raw


def test_an_older_run_says_what_it_cannot_tell(tmp_path: Path) -> None:
    page, text = page_of(make_run(tmp_path / "run", old=True), out=tmp_path / "page.html")
    words = page.words()
    for part in ("Confusion.", "Calibration.", "Unlabeled pictures.", "Examples.", "Bias."):
        assert part in words.partition("What these runs can’t tell")[2], part
    assert '<section id="confusion"' not in text
    assert "40.1" in words


def test_without_truth_there_is_a_page_of_what_can_be_known(tmp_path: Path) -> None:
    page, text = page_of(make_run(tmp_path / "run", "dst(fixmatch)", truth=False), out=tmp_path / "page.html")
    words = page.words()
    assert "There is no test set" in words
    assert "Nobody knows yet how good it is" in words
    for title in (
        "Churn",
        "Agreement of the heads",
        "of the labels",
        "likely mistakes",
        "the pseudo head disagrees",
    ):
        assert title in words, title
    for section in ("classes", "bias", "confusion", "calibration"):
        assert f'<section id="{section}"' not in text
    assert "NaN" not in text
    assert "None" not in words


def test_a_run_that_goes_on_can_be_reported(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1100, "lo')  # a kill in the middle of a line
    page, _ = page_of(folder, out=tmp_path / "page.html")
    assert "This run is not finished" in page.words()
    assert "cut short" in page.words()
    assert f"selftrain train --resume --out {folder}" in page.words()


def test_runs_on_other_classes_stand_side_by_side(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", data="/nowhere/one")
    b = make_run(tmp_path / "b", classes=[f"c{i}" for i in range(30)], data="/nowhere/two")
    page, text = page_of(a, b, out=tmp_path / "page.html")
    assert "not all on the same labeled pictures" in page.words()
    assert text.count("data-sortable") == 2 + text.partition("<script>")[2].count("data-sortable")
    assert "FixMatch, one" in page.words()


def test_pictures_are_embedded_from_where_the_data_is(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in CIFAR:
            folder = tmp_path / "data" / part / name
            folder.mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (200, 120), (i * 80, 30, 90)).save(folder / f"{i}.jpg")
    from selftrain.data.source import load_corpus

    corpus = load_corpus(tmp_path / "data", check="none")
    assert corpus.test is not None
    run = make_run(tmp_path / "run", data=str(tmp_path / "data"), names=corpus.test.names)
    page, text = page_of(run, out=tmp_path / "page.html")
    pictures = [attrs for tag, attrs in page.elements if tag == "img"]
    assert len(pictures) == 12
    assert all(str(attrs["src"]).startswith("data:image/jpeg;base64,") for attrs in pictures)
    assert all(attrs["alt"] in corpus.test.names for attrs in pictures)
    assert len(text) < 300_000


def test_confident_mistakes_are_mistakes_and_the_surest_first(tmp_path: Path) -> None:
    from selftrain.report.examples import find_examples

    run = read_runs([make_run(tmp_path / "run")])[0]
    found = find_examples(run)
    assert len(found.confident) == 12
    assert all(e.truth != e.predicted for e in found.confident)
    sure = [float(e.why.partition("\u202f")[0]) for e in found.confident]
    assert sure == sorted(sure, reverse=True)
    assert "can't be found any more" in found.missing


def test_reference_and_bias_agree_with_hand_computed_values(tmp_path: Path) -> None:
    own = read_run(make_run(tmp_path / "a", "dst(fixmatch)", reference=True))
    beside = read_runs([make_run(tmp_path / "b", "dst(fixmatch)"), make_run(tmp_path / "c", "supervised")])
    assert own.reference is not None
    found = reference_of(own, [])
    assert found is not None
    assert found[0] == own.reference["labels_only"]["per_class"]
    assert training_bias(own, []) == own.reference["training_bias"]
    assert reference_of(beside[0], []) is None
    bias = training_bias(beside[0], beside)
    assert bias is not None
    assert beside[0].per_class is not None
    assert beside[1].per_class is not None
    assert np.allclose(np.array(bias, float), np.array(beside[1].per_class) - np.array(beside[0].per_class))
    other = read_run(make_run(tmp_path / "d", "supervised", classes=CIFAR[::-1]))
    assert reference_of(beside[0], [other]) is None  # other classes, other pictures


def test_advice_follows_the_numbers(tmp_path: Path) -> None:
    titles = {
        name: [a.title for a in advise(read_run(make_run(tmp_path / str(i), method, **how)), [])]
        for i, (name, method, how) in enumerate((
            ("dying", "fixmatch", {}), ("sound", "dst(fixmatch)", {}),
            ("unmeasured", "dst(fixmatch)", {"truth": False}),
            ("lost", "fixmatch", {"reference": True}), ("stopped", "fixmatch", {"finished": False}),
        ))
    }  # fmt: skip
    assert any("dying" in title for title in titles["dying"])
    assert not any("dying" in title or "took" in title for title in titles["sound"])
    assert "Nobody knows yet how good it is" in titles["unmeasured"]
    assert any("took from" in title for title in titles["lost"])
    assert "Let it finish" in titles["stopped"]
    told = advise(read_run(tmp_path / "3"), [])  # several things are wrong, and one thing helps
    assert sum("keeps the head that makes pseudo labels" in advice.text for advice in told) == 1
    assert sum("The same helps." in advice.text for advice in told) >= 1


def test_infinity_lies_above_everything_else() -> None:
    chart = line_chart("x", [Series(0, "a", [(0, 2.0), (1, float("inf")), (2, 50.0)])], log=True, form=str)
    (series,) = chart.data["series"]
    assert series["y"][1] < min(series["y"][0], series["y"][2]) - 5
    assert "∞" in chart.markup
    assert "nan" not in chart.markup
    assert "inf" not in chart.markup.replace("infinite", "")


def test_bars_go_from_before_to_after() -> None:
    chart = change_chart("x", 0, ["a", "b", "c"], [0.5, 0.5, None], [0.75, 0.25, 0.1], words=("then", "now"))
    (gain,) = re.findall(r'class="gain" d="([^"]+)"', chart.markup)
    (loss,) = re.findall(r'class="loss" d="([^"]+)"', chart.markup)
    assert "25h" in gain.replace("M4.67 ", "")  # from the 25% line (75% up) ...
    assert "V50" in gain  # ... to the middle
    assert "V75" in loss
    assert chart.data["series"][2]["text"] == ["+25.0", "\u221225.0", None]


def test_stacked_error_adds_up() -> None:
    chart = stacked_chart("x", 0, ["a", "b"], [0.1, 0.1], [0.2, 0.4], [0.3, -0.2])
    assert chart.data["series"][1]["y"] == [40.0, 70.0]  # 60% and 30% of error
    assert chart.markup.count("part-added") == 1
    assert chart.markup.count("part-taken") == 1


def test_a_matrix_has_every_cell_once() -> None:
    chart = matrix("x", 0, ["a", "b"], [(0, 0, 3), (0, 1, 1), (1, 1, 4)])
    assert chart.markup.count("h1v1h-1z") == 3
    assert 'class="right q7" d="M1 1' in chart.markup
    assert chart.data["cells"] == [0, 0, 3, 0, 1, 1, 1, 1, 4]


def test_words_at_the_ends_of_lines_do_not_overlap() -> None:
    for places in ([50.0, 50.0, 50.0], [99.0, 98.0, 97.0], [1.0, 90.0], [5.0]):
        moved = _apart(places, 9.0)
        ordered = sorted(moved)
        assert all(b - a >= 8.99 for a, b in pairwise(ordered))
        assert np.argsort(moved).tolist() == np.argsort(places, kind="stable").tolist()
        assert max(moved) <= 99


def test_methods_are_called_as_people_call_them() -> None:
    assert spoken("dst(fixmatch)") == "DST(FixMatch)"
    assert spoken("dst(fixmatch(tau=0.9), worst=false)") == "DST(FixMatch(tau=0.9), worst=false)"
    assert spoken("supervised") == "Labels only"


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.00719, "0.0072"), (0.0000719, "7e-05"), (12.5, "12.5"), (-0.1234, "-0.12"), (1234567.0, "1e+06")],
)
def test_numbers_at_the_ends_of_curves_are_short(value: float, words: str) -> None:
    assert _brief(value, lambda x: f"{x:.10g}") == words


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / f"r{i}", method, seed=seed) for i, (method, seed) in enumerate(
        (("fixmatch", 0), ("fixmatch", 1), ("dst(fixmatch)", 0)))]  # fmt: skip
    names = [run.name for run in read_runs([*folders, folders[0]])]
    assert len(set(names)) == 4
    assert names[1] == "FixMatch, seed 1, r1"


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("metrics.jsonl", b'{"step": 1}\nnonsense\n{"step": 2}\n', "line 2 is not a row of metrics"),
        ("metrics.jsonl", b"[1]\n", "line 1 is not a row of metrics"),
        ("metrics.jsonl", b"\xff\xfe\n", "cannot be read"),
        ("results.json", b"{", "not a JSON file"),
        ("results.json", b"[]", "expected a JSON object"),
        ("config.yaml", b"[1, 2]", "not the settings of a run"),
        ("config.yaml", b"a: [", "cannot be read"),
        ("outputs.npz", b"PK\x03\x04 broken", "cannot be read"),
        ("outputs.npz", b"", "cannot be read"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, file: str, content: bytes, told: str) -> None:
    folder = make_run(tmp_path / "run")
    (folder / file).write_bytes(content)
    with pytest.raises(UserError, match=told) as error:
        write_report([folder])
    assert file in str(error.value)


def test_what_is_not_a_run_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        write_report([tmp_path])
    with pytest.raises(UserError, match="no such folder"):
        write_report([tmp_path / "nothing"])
    folder = make_run(tmp_path / "run", finished=False)
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="nothing to report yet"):
        write_report([folder])


def test_where_the_page_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from selftrain import Run

    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b", "dst(fixmatch)")
    monkeypatch.chdir(tmp_path)
    assert write_report([a]) == a / "report.html"
    assert write_report([a, b]) == Path("report.html")
    assert Run(a).report(tmp_path / "deep" / "x.html") == tmp_path / "deep" / "x.html"
    assert (tmp_path / "deep" / "x.html").exists()


def test_the_reference_is_made_once_and_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from selftrain.runs import bias

    made: list[Path] = []

    def decompose(folder: Path, reporter: Any) -> None:
        made.append(folder)
        (folder / "reference.json").write_text(json.dumps({"labels_only": {"per_class": [0.5] * 10}}))

    monkeypatch.setattr(bias, "decompose", decompose)
    folder = make_run(tmp_path / "run")
    write_report([folder])
    assert made == []
    write_report([folder], reference=True)
    write_report([folder], reference=True)
    assert made == [folder]
