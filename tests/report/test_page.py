"""The report page: what it says about made-up runs, what it leaves out, and that names are only ever text."""

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

from selftrain.api import Run
from selftrain.data.images import ArrayImages
from selftrain.data.source import Source
from selftrain.errors import UserError
from selftrain.report import write_report
from selftrain.report.advice import advise
from selftrain.report.chance import Change, class_changes
from selftrain.report.examples import find_examples, find_mistakes
from selftrain.report.run_data import read_runs
from selftrain.report.sections import SECTIONS
from selftrain.report.sections.classes import classes
from selftrain.report.verdict import helped, how_good
from selftrain.runs import bias
from selftrain.runs.layout import RunLayout
from selftrain.runs.thumbnails import thumbnails_of
from tests.report.made import CIFAR, NASTY, found_in_pool, make_run

VOID = {"meta", "link", "img", "input", "br", "path", "wbr"}


class Page(HTMLParser):
    """The elements and the text of a page; fails unless every element that is opened is closed."""

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


def test_the_page_says_which_method_harmed_classes_and_what_to_do(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name.strip("()"), name) for name in ("fixmatch", "dst(fixmatch)", "supervised")]
    page, text = page_of(*runs, out=tmp_path / "page.html")
    words = page.words()
    assert "FixMatch clearly improved 5 classes and clearly worsened 5." in words
    assert "DST(FixMatch) clearly improved" in words
    assert "classes and clearly worsened none; the other" in words
    assert "Self-training harmed 5 classes" in words
    assert 'selftrain train … --method "dst(fixmatch)"' in words
    assert "10 classes, 40 labeled and 1,000 unlabeled images. DST(FixMatch) is the most accurate" in words
    order = [text.index(f'<section id="{section}"') for section in (
        "summary", "next", "label", "map", "classes", "confusion", "mistakes", "calibration", "unlabeled", "pseudo",
        "bias", "training", "worst", "settings",
    )]  # fmt: skip
    assert order == sorted(order)  # how good, what to do, what to label, classes, and only then the science


def test_the_page_loads_nothing_from_the_network(tmp_path: Path) -> None:
    page, text = page_of(make_run(tmp_path / "run", "dst(fixmatch)", reference=True), out=tmp_path / "page.html")
    for tag, attrs in page.elements:
        for name in ("src", "href", "action", "data", "poster"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_heading_levels_ids_and_labels_are_in_order(tmp_path: Path) -> None:
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
        data=str(tmp_path / "<b>data & co</b>"), more=found_in_pool(NASTY, truth=truth, pool=[0.55, *[0.05] * 9]),
    )  # fmt: skip
    page, text = page_of(run, out=tmp_path / "page.html")
    assert [tag for tag, _ in page.elements].count("script") == 2  # the data and the page's own
    assert "img" not in [tag for tag, _ in page.elements]
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    shown = "\n".join(page.text)
    for name in NASTY:
        assert name in shown, name
    data = embedded(text)
    assert data["classes"] == [NASTY]  # of the map and the confusion matrix
    assert set(NASTY) <= {label for chart in data["charts"].values() for label in chart.get("labels", ())}
    raw = text.partition('id="data">')[2].partition("</script>")[0]
    assert not set("<>&") & set(raw)
    assert "\u2028" not in raw


def test_an_older_run_says_what_it_cannot_show(tmp_path: Path) -> None:
    page, text = page_of(make_run(tmp_path / "run", old=True), out=tmp_path / "page.html")
    words = page.words()
    missing = words.partition("What cannot be shown")[2].partition("How the run was made")[0]
    for name, reason in (
        ("Bias", "cannot be separated from errors caused by self-training without a reference"),
        ("Unlabeled images", "Predictions on the unlabeled images were not stored"),
        ("Confusion", "No confusion matrix was stored"),
        ("Confidence", "Confidences were not stored"),
        ("Mistakes", "Predictions per image were not stored"),
    ):
        assert re.search(rf"{name}\. [^.]*{reason}", missing), name
    assert '<section id="confusion"' not in text
    assert "40.1" in words


def test_the_page_leads_with_the_estimated_accuracy(tmp_path: Path) -> None:
    found: dict[str, Any] = {
        "accuracy": 0.81,
        "low": 0.72,
        "high": 0.88,
        "level": 0.9,
        "labels": 40,
        "left_out_accuracy": 0.7,
    }
    found |= {"per_class": [], "per_class_low": [], "per_class_high": [], "risk_coverage": [[1.0, 0.8, 0.2]]}
    run = make_run(tmp_path / "run", truth=False, more={"estimated": found})
    words = page_of(run, out=tmp_path / "page.html")[0].words()
    assert (
        "about 81.0% 72.0% to 88.0% of images like your unlabeled ones are classified correctly, with 90% certainty "
        "between 72.0% and 88.0%. There is no test set, so this is estimated from your 40 labels." in words
    )
    assert "81.0% (72.0% to 88.0%)" in words
    assert "The accuracy is estimated, not measured" in words
    assert "The accuracy is not known yet" not in words


def test_the_page_shows_calibration_before_and_after(tmp_path: Path) -> None:
    more = {
        "calibrated": {"temperature": [2.0] * 10, "labels": 40, "ece_before": 0.234, "calibration_before": None},
        "risk_coverage": [[0.5, 0.95, 0.9], [1.0, 0.8, 0.2]],
    }
    words = page_of(make_run(tmp_path / "run", more=more), out=tmp_path / "page.html")[0].words()
    assert "Before calibration, it was 23.4%." in words
    assert "23.4%" in words
    assert "Accuracy of the surest images" in words


def test_without_ground_truth_the_page_shows_what_can_be_known(tmp_path: Path) -> None:
    page, text = page_of(make_run(tmp_path / "run", "dst(fixmatch)", truth=False), out=tmp_path / "page.html")
    words = page.words()
    assert "There is no test set" in words
    assert "The accuracy is not known yet" in words
    for title in (
        "Churn",
        "Agreement of the heads",
        "of the labels",
        "What to label next",
        "disputed",
        "A map of your pile",
    ):
        assert title in words, title
    for section in ("classes", "bias", "confusion", "calibration"):
        assert f'<section id="{section}"' not in text
    assert "NaN" not in text
    assert "None" not in words


def test_an_unfinished_run_can_be_reported(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1100, "lo')  # killed in the middle of a line
    page, _ = page_of(folder, out=tmp_path / "page.html")
    assert "This run is not finished" in page.words()
    assert "The last line of metrics.jsonl is incomplete" in page.words()
    assert f"selftrain train --resume --out {folder}" in page.words()


def test_runs_with_different_classes_are_shown_side_by_side(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", data="/nowhere/one")
    b = make_run(tmp_path / "b", classes=[f"c{i}" for i in range(30)], data="/nowhere/two")
    page, text = page_of(a, b, out=tmp_path / "page.html")
    assert "Not all of them use the same labeled images" in page.words()
    assert text.count("data-sortable") == 2 + text.partition("<script>")[2].count("data-sortable")
    assert "FixMatch, one" in page.words()


def test_images_are_read_from_the_data_folder_and_embedded(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in CIFAR:
            folder = tmp_path / "data" / part / name
            folder.mkdir(parents=True)
            for i in range(3):
                Image.new("RGB", (200, 120), (i * 80, 30, 90)).save(folder / f"{i}.jpg")
    corpus = Source.parse(tmp_path / "data").corpus(check="none")
    assert corpus.test is not None
    run = make_run(tmp_path / "run", data=str(tmp_path / "data"), names=list(corpus.test.names))
    write_report([run], tmp_path / "page.html", images=tmp_path / "data")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    images = [attrs for tag, attrs in page.elements if tag == "img"]
    assert len(images) == 12
    assert all(str(attrs["src"]).startswith("data:image/jpeg;base64,") for attrs in images)
    assert all(attrs["alt"] in corpus.test.names for attrs in images)
    assert len(text) < 300_000


def test_confident_mistakes_are_mistakes_and_the_most_confident_come_first(tmp_path: Path) -> None:
    run = read_runs([make_run(tmp_path / "run")])[0]
    found, missing = find_mistakes(run)
    assert len(found) == 12
    assert all(e.truth != e.predicted for e in found)
    confidences = [float(e.why.partition("%")[0]) for e in found]
    assert confidences == sorted(confidences, reverse=True)
    assert "the run folder has no thumbnails" in missing
    assert "the run folder has no thumbnails" in find_examples(run).missing


@pytest.mark.parametrize("highest", [None, 0.5, 0.9])
def test_images_of_no_class_are_shown_if_there_are_any(tmp_path: Path, highest: float | None) -> None:
    folder = make_run(tmp_path / "run", truth=False)
    layout = RunLayout(folder)
    arrays = layout.read_outputs()
    n = len(arrays["pool_names"])
    if highest is not None:
        arrays["pool_novelty"] = np.full(n, 0.1, np.float16)
        arrays["pool_novelty"][20:40] = np.linspace(0, highest, 20)
        layout.write_outputs(arrays)
    found = find_examples(read_runs([folder])[0])
    _, text = page_of(folder, out=tmp_path / "page.html")
    if highest != 0.9:
        assert found.novel == []
        assert "Unlabeled images that look like none of the classes" not in text
        return
    assert [e.name for e in found.novel] == [f"train/{i}.png" for i in range(39, 30, -1)]
    assert found.novel[0].why == "novelty 90%"
    assert found.novel_count == len(found.novel) == 9
    assert "Unlabeled images that look like none of the classes" in text
    assert "9 images that look like none of your classes (novelty above 50%)" in text


def test_the_page_goes_into_the_run_folder_or_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b", "dst(fixmatch)")
    monkeypatch.chdir(tmp_path)
    assert write_report([a]) == a / "report.html"
    assert write_report([a, b]) == Path("report.html")
    assert Run(a).report(tmp_path / "deep" / "x.html") == tmp_path / "deep" / "x.html"
    assert (tmp_path / "deep" / "x.html").exists()


def test_a_reference_is_trained_once_and_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_page_of_a_single_run_counts_its_classes(tmp_path: Path) -> None:
    for K, words in ((1, "1 class, 4 labeled"), (12, "12 classes, 48 labeled")):
        run = make_run(tmp_path / str(K), classes=[f"c{k}" for k in range(K)])
        assert words in page_of(run, out=tmp_path / "page.html")[0].words()


def test_a_report_needs_a_run() -> None:
    with pytest.raises(UserError, match="needs at least one run folder"):
        write_report([])


def test_runs_on_the_labels_alone_are_not_called_debiased_or_harmed(tmp_path: Path) -> None:
    page, text = page_of(make_run(tmp_path / "run", "supervised"), out=tmp_path / "page.html")
    assert '<section id="pseudo"' not in text
    assert '<section id="worst"' not in text
    assert "worst-case error" not in page.words()
    assert "harmed" not in page.words()


def test_each_section_has_an_id_and_a_name_of_its_own(tmp_path: Path) -> None:
    runs = read_runs([make_run(tmp_path / "run", "dst(fixmatch)", reference=True, more=found_in_pool())])
    sections = [section(runs) for section in SECTIONS]
    for names in ([section.id for section in sections], [section.kicker for section in sections]):
        assert len(set(names)) == len(SECTIONS)
    assert not any(section.empty for section in sections)


@pytest.mark.parametrize(
    ("accuracy", "title", "words"),
    [
        (
            0.6,
            "Self-training helped: +30.0 points",
            "150 more of the 500 test images. That is more than chance explains",
        ),
        (
            0.32,
            "Self-training made no clear difference",
            "with 500 test images, differences of up to 4.8 points can be",
        ),
        (0.2, "Self-training harmed: −10.0 points", "50 fewer of the 500 test images"),
    ],
)
def test_the_page_leads_with_the_accuracy_and_whether_self_training_helped(
    tmp_path: Path, accuracy: float, title: str, words: str
) -> None:
    run = read_runs([make_run(tmp_path / "run", more=found_in_pool() | {"accuracy": accuracy})])[0]
    good, found = how_good(run), helped(run, [run])
    assert good.number == f"{100 * accuracy:.1f}%"
    assert float(good.low.removesuffix("%")) < 100 * accuracy < float(good.high.removesuffix("%"))
    assert found.title == title
    assert words in found.text


def test_whether_self_training_helped_may_not_be_known(tmp_path: Path) -> None:
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "Self-training was not trusted": ("dst(fixmatch)", {"more": found_in_pool(choice="labels_only")}),
        "Self-training is plausible": ("dst(fixmatch)", {"truth": False, "more": found_in_pool(truth=False)}),
        "It is not known whether self-training helped": ("fixmatch", {}),
        "No self-training": ("supervised", {}),
    }
    for i, (title, (method, how)) in enumerate(cases.items()):
        run = read_runs([make_run(tmp_path / str(i), method, **how)])[0]
        assert helped(run, [run]).title == title


def test_advice_and_headings_agree_on_the_classes_that_were_harmed(tmp_path: Path) -> None:
    run = read_runs([make_run(tmp_path / "run", reference=True)])[0]
    worse = [name for name, c in zip(run.classes, class_changes(run, [run]) or (), strict=True) if c.worse]
    assert f"clearly worsened {len(worse)}" in classes([run]).title
    (advice,) = [a for a in advise(run, [run]) if "harmed" in a.title]
    assert advice.title == f"Self-training harmed {len(worse)} classes"
    assert "of 50 images" in advice.text


def test_changes_of_few_images_can_be_chance() -> None:
    assert not Change(0.9, 0.95, 20).clear
    assert not Change(1.0, 0.9, 20).clear
    assert Change(0.2, 0.55, 20).better
    assert Change(0.9, 0.6, 20).worse
    assert Change(0.8, 0.85, 20).images == 1
    assert Change(0.8, 0.9, None).clear
    assert not Change(None, 0.9, 20).clear


def test_the_table_of_classes_has_counts_and_intervals(tmp_path: Path) -> None:
    page, _ = page_of(make_run(tmp_path / "run", reference=True), out=tmp_path / "page.html")
    words = page.words()
    assert "All classes: accuracy in %, with 90% intervals" in words
    assert re.search(r"▼ −\d+\.\d \d+ of 50 images", words)
    assert re.search(r"\d+\.\d \d+–\d+ ", words)


def test_at_least_24_images_to_label_are_shown_with_names_and_thumbnails(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "dst(fixmatch)", truth=False)
    layout = RunLayout(folder)
    names = [str(name) for name in layout.read_outputs()["pool_names"]]
    images = ArrayImages(np.full((len(names), 3, 40, 40), 128, np.uint8), names)
    layout.write_thumbnails(thumbnails_of([(images, i) for i in range(len(names))]))
    page, _ = page_of(folder, out=tmp_path / "page.html")
    shown = [attrs["alt"] for tag, attrs in page.elements if tag == "img"]
    assert len(shown) == len(set(shown)) == 36
    assert not set(shown) & {entry["path"] for entry in layout.read_split()["labeled"]}
    words = page.words().replace("/ ", "/")
    assert all(str(name) in words for name in shown)
    np.savez(layout.thumbnails, names=np.array(["a"]), ends=np.array([3]), jpeg=np.array([1, 2, 3], np.uint8))
    assert "none of them is in the run folder" in page_of(folder, out=tmp_path / "page.html")[0].words()
    np.savez(layout.thumbnails, names=np.array([1]))
    with pytest.raises(UserError, match=r"thumbnails\.npz: must hold the arrays"):
        page_of(folder, out=tmp_path / "page.html")


def test_runs_on_features_speak_of_rows(tmp_path: Path) -> None:
    config = "method: dst(fixmatch)\nregime: frozen\nnetwork:\n  backbone: features\ndata:\n  path: f.npz\n"
    for truth in (True, False):
        more = found_in_pool(truth=truth, junk=0.3)
        run = make_run(tmp_path / str(truth), "dst(fixmatch)", truth=truth, config=config, reference=truth, more=more)
        page, _ = page_of(run, out=tmp_path / "page.html")
        words = page.words().replace("There are no images to show", "")
        assert "unlabeled rows" in words
        assert "images" not in words, re.findall(r".{50}images.{20}", words)


def test_the_loss_is_shown_term_by_term(tmp_path: Path) -> None:
    page, _ = page_of(make_run(tmp_path / "run", "dst(fixmatch)"), out=tmp_path / "page.html")
    words = page.words()
    for term in ("labeled", "pseudo", "worst"):
        assert f"Loss term “{term}”" in words
    assert "That head raises it on purpose" in words
    assert "Sum of all loss terms" not in words


def test_the_map_counts_what_it_shows(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "dst(fixmatch)")
    page, text = page_of(folder, out=tmp_path / "page.html")
    found = re.search(r"60 of 200 images: 8 labeled, (\d+) predicted, (\d+) unsure, (\d+) unknown", page.words())
    assert found
    assert 8 + sum(map(int, found.groups())) == 60
    data = embedded(text)["charts"]["map-0"]
    assert len(data["x"]) == len(data["name"]) == 60
    assert data["state"].count(data["states"].index("labeled")) == 8
