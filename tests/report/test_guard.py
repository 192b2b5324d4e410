"""The report about the labels alone and about the pile: verdicts, estimates, images of no class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selftrain.report.advice import Advice, advise
from selftrain.report.reference import baseline_of
from selftrain.report.run_data import RunData, read_run
from selftrain.report.section import Comparison, Figure
from selftrain.report.sections.bias import bias
from selftrain.report.sections.classes import classes
from selftrain.report.sections.guard import guard
from selftrain.report.sections.unlabeled import unlabeled
from selftrain.report.summary import summary
from tests.report.made import CIFAR, found_in_pool, make_run
from tests.report.test_page import page_of

TAIL = [0.31, 0.22, 0.14, 0.1, 0.07, 0.05, 0.04, 0.03, 0.02, 0.02]


def made(folder: Path, method: str = "dst(fixmatch)", *, truth: bool = True, more: Any = None) -> RunData:
    run = read_run(make_run(folder / "run", method, truth=truth, more=more))
    run.name = "run"
    return run


def verdict(run: RunData) -> Comparison:
    (block,) = guard([run]).blocks
    assert isinstance(block, Comparison)
    return block


def caption(run: RunData) -> str:
    (figure,) = unlabeled([run]).blocks
    assert isinstance(figure, Figure)
    return figure.caption


def advice_of(run: RunData, words: str) -> list[Advice]:
    return [advice for advice in advise(run, [run]) if words in advice.title]


def test_the_kept_model_stands_beside_the_labels_alone(tmp_path: Path) -> None:
    run = made(tmp_path, more=found_in_pool() | {"accuracy": 0.6, "mean_per_class": 0.61, "worst20_percent": 0.45})
    block = verdict(run)
    assert block.text.startswith("The self-trained model was kept, blended with its neighbours.")
    assert "the two differ on 2.0% of the unlabeled images" in block.text
    assert "no class is predicted more than 1.4 times as often" in block.text
    assert "On the test images, the kept model is 30.0 points more accurate than the labels alone." in block.text
    assert "With 500 images, that is more than chance explains (about 4.9 points)." in block.text
    assert block.table.columns == ["model", "accuracy", "mean over classes", "weakest fifth"]
    assert block.table.rows == [
        ["labels alone", "30.0%", "30.0%", "30.0%"],
        ["self-trained", "60.0%", "60.0%", "60.0%"],
        ["kept model", "60.0%", "61.0%", "45.0%"],
    ]


@pytest.mark.parametrize(
    ("choice", "accuracy", "words"),
    [
        ("blend", 0.32, "2.0 points more accurate than the labels alone. That can be chance: with 500 images"),
        ("blend", 0.3, "exactly as accurate as the labels alone. That can be chance"),
        ("blend", 0.1, "20.0 points less accurate than the labels alone. With 500 images, that is more than chance "
         "explains (about 4.0 points). The guard could not know this without test data."),
        ("labels_only", 0.3, "the self-trained model is 30.0 points more accurate than the labels alone. With 500 "
         "images, that is more than chance explains (about 4.9 points). The guard could not know this"),
    ],
)  # fmt: skip
def test_a_gain_is_compared_with_chance(tmp_path: Path, choice: str, accuracy: float, words: str) -> None:
    assert words in verdict(made(tmp_path, more=found_in_pool(choice=choice) | {"accuracy": accuracy})).text


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ({}, "With only 40 labels, leaving them out in turn allows the labels-only model an error of up to 12.0%"),
        ({"limit": 0.04, "labels": 900}, "The guard sees collapses and clear losses"),
        ({"limit": 1.0, "labels": 0, "left_out_accuracy": None}, "No class has a second label to hold out"),
    ],
)
def test_without_a_test_set_the_evidence_is_shown(tmp_path: Path, evidence: dict[str, Any], words: str) -> None:
    block = verdict(made(tmp_path, truth=False, more=found_in_pool(truth=False, **evidence)))
    assert "There is no test set, so this is evidence and no proof." in block.text
    assert words in block.text
    assert block.table.columns == ["evidence", "value", "alarm above"]
    values = [row[1:] for row in block.table.rows]
    limit = {40: "12.0%", 900: "5.0%", 0: "–"}[evidence.get("labels", 40)]  # 5% never raise an alarm
    assert values[:2] == [["2.0%", limit], ["1.4 times", "5.0 times"]]
    assert values[2:] == ([["31.0%", "–"]] if evidence.get("labels", 40) else [])


def test_no_class_may_have_grown(tmp_path: Path) -> None:
    block = verdict(made(tmp_path, truth=False, more=found_in_pool(truth=False, growth=0.0, grown=None)))
    assert "times as often" not in block.text
    assert len(block.table.rows) == 2


def test_a_fallback_is_a_problem_and_says_what_helps(tmp_path: Path) -> None:
    run = made(tmp_path, more=found_in_pool(choice="labels_only") | {"accuracy": 0.3, "per_class": [0.3] * 10})
    assert "The model that was trained on the labels alone was kept." in verdict(run).text
    assert "is doubtful: it predicts 'cat' 9 times." in verdict(run).text
    (advice,) = advice_of(run, "Self-training was not trusted")
    assert advice.weight == 3
    assert "it predicts 'cat' 9 times. Label some more images, first those under “What to label next”" in advice.text
    assert not advice_of(run, "harmed")
    page, _ = page_of(run.folder, out=tmp_path / "page.html")
    assert "so there is no change to show" in page.words()
    assert "There is no labels-only accuracy" not in page.words()
    assert bias([run]).blocks == []


def test_runs_without_a_guard_have_no_such_section(tmp_path: Path) -> None:
    for name, more in (("older", {}), ("off", {"prior": None, "screening": None, "guard": None})):
        run = made(tmp_path / name, more=more)
        assert guard([run]).blocks == []
        assert not any(row.measure == "Labels alone" for row in summary([run]))
        page, text = page_of(run.folder, out=tmp_path / "page.html")
        assert 'id="guard"' not in text
        assert "How the final model was chosen" not in page.words()


def test_the_section_names_runs_among_others(tmp_path: Path) -> None:
    a = make_run(tmp_path / "a", "dst(fixmatch)", more=found_in_pool())
    b = make_run(tmp_path / "b", "supervised")
    page, _ = page_of(a, b, out=tmp_path / "page.html")
    found = page.words().partition("How the final model was chosen")[2]
    assert "DST(FixMatch): the labels alone The self-trained model was kept" in found
    assert found.count("was kept") == 1


def test_the_summary_has_the_labels_alone(tmp_path: Path) -> None:
    runs = [made(tmp_path / "a", more=found_in_pool()), made(tmp_path / "b")]
    runs.append(read_run(make_run(tmp_path / "c", "dst(fixmatch)", reference=True)))
    (row,) = [row for row in summary(runs) if row.measure == "Labels alone"]
    assert row.cells[:2] == ["30.0%", "–"]
    assert runs[2].reference is not None
    assert row.cells[2] == f"{100 * float(runs[2].reference['labels_only']['accuracy'] or 0):.1f}%"


def test_the_labels_alone_are_the_reference_of_the_classes(tmp_path: Path) -> None:
    run = made(tmp_path, more=found_in_pool())
    baseline = baseline_of(run, [])
    assert baseline is not None
    assert baseline.per_class == [0.3] * 10
    assert "improved" in classes([run]).title
    assert bias([run]).blocks


def test_predictions_are_compared_with_the_estimated_mix(tmp_path: Path) -> None:
    run = made(tmp_path, more=found_in_pool(pool=TAIL))
    words = caption(run)
    assert "from its share of the pile (dark tick)" in words
    assert "Your pile seems to hold 31% “airplane”, 22% “automobile”, 14% “bird”." in words
    assert "differs from that of your labels, for about 37 of 100 images. This is normal" in words
    assert "the mix of the labels is not taken for the truth" in words
    assert "the estimate is off for 5.0% of the images" in words
    assert "look like none of the classes" not in words
    (figure,) = unlabeled([run]).blocks
    assert isinstance(figure, Figure)
    assert figure.table is not None
    assert figure.table.columns == ["class", "of the labels", "of the pile, estimated", "of the predictions"]
    row = next(row for row in figure.table.rows if row[0] == "airplane")
    assert row[1:3] == ["10.0%", "31.0%"]
    assert figure.legend == "pool-shares"


def test_a_similar_mix_and_a_doubtful_estimate(tmp_path: Path) -> None:
    more = found_in_pool(truth=False)
    more["prior"]["agreement"] = 0.4
    words = caption(made(tmp_path, truth=False, more=more))
    assert "differs from that of your labels" not in words
    assert "agree on 40.0% of the images only; it leans towards the mix of the labels" in words
    assert "true classes" not in words


def test_a_given_mix_is_not_called_an_estimate(tmp_path: Path) -> None:
    run = made(tmp_path / "given", more=found_in_pool(source="uniform"))
    assert "According to data.prior=uniform, your pile holds 10% “airplane”" in caption(run)
    run = made(tmp_path / "labels", more=found_in_pool(source="labels"))
    assert "from its share of the labels" in caption(run)


def test_the_mix_of_the_labels_is_not_called_the_truth_in_older_runs(tmp_path: Path) -> None:
    section = unlabeled([made(tmp_path)])
    assert "a difference alone is no mistake" in section.text
    assert "estimated" not in section.text


def test_images_of_no_class_are_counted(tmp_path: Path) -> None:
    run = made(tmp_path / "some", more=found_in_pool(junk=0.12))
    assert "About 12% of the unlabeled images look like none of the classes; they were drawn less" in caption(run)
    assert "with an AUROC of 0.93" in caption(run)
    assert not advice_of(run, "none of the classes")
    run = made(tmp_path / "much", truth=False, more=found_in_pool(junk=0.34, truth=False))
    assert "AUROC" not in caption(run)
    (advice,) = advice_of(run, "none of the classes")
    assert advice.weight == 2
    assert "about 34% of the unlabeled images" in advice.text


def test_another_mix_is_a_note_that_names_classes_to_label(tmp_path: Path) -> None:
    (advice,) = advice_of(made(tmp_path / "tail", more=found_in_pool(pool=TAIL)), "another mix")
    assert advice.weight == 1
    assert "A few more labels of “airplane” and “automobile” will probably help" in advice.text
    for name, more in (("even", found_in_pool()), ("given", found_in_pool(pool=TAIL, source="shares.csv"))):
        assert not advice_of(made(tmp_path / name, more=more), "another mix")
    assert CIFAR[-1] not in advice.text
