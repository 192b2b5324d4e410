"""One self-contained HTML page from one run or several: what the numbers say, section by section.

Knows nothing of training: it reads run folders. What a run does not hold is left out, with a sentence that says why.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from selftrain.report.advice import Advice, advise, classes_word, dying_classes, listed
from selftrain.report.charts import (
    Chart,
    Series,
    change_chart,
    line_chart,
    matrix,
    number,
    percent,
    points,
    ratio,
    stacked_chart,
)  # fmt: skip
from selftrain.report.examples import Examples, find_examples
from selftrain.report.reading import RunData, reference_of, training_bias
from selftrain.version import __version__

MOST_PAIRS = 8


@dataclass
class Block:
    """A piece of a section; ``kind`` is the template's macro."""

    kind: str
    title: str = ""
    caption: str = ""
    chart: Chart | None = None
    id: str = ""
    run: int | None = None
    extra: Any = None
    key: str = ""
    """which legend explains the shapes: changes or parts"""


@dataclass
class Section:
    id: str
    kicker: str
    title: str
    text: str = ""
    blocks: list[Block] = field(default_factory=list)

    def say(self, sentence: str) -> None:
        self.blocks.append(Block("sentence", sentence))


def render(runs: Sequence[RunData]) -> str:
    """The page as text."""
    page = _Page(runs)
    found = (
        page.classes(), page.bias(), page.training(), page.pseudo_labels(), page.unlabeled(), page.worst_case(),
        page.confusions(), page.calibration(), page.examples(),
    )  # fmt: skip
    sections = [section for section in found if any(block.kind != "sentence" for block in section.blocks)]
    absent = Section("absent", "Not here", "What these runs can’t tell")
    for section in found:
        if section not in sections:
            absent.blocks += [Block("sentence", block.caption, section.kicker) for block in section.blocks]
        section.blocks.sort(key=lambda block: block.kind == "sentence")
    sections += [absent] if absent.blocks else []
    sections.append(page.settings())
    style, script = _text("page.css"), _text("page.js")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("selftrain.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        title=page.title,
        standfirst=page.standfirst,
        runs=runs,
        summary=page.summary(),
        next_steps=page.next_steps(),
        sections=sections,
        data={"charts": page.charts, "classes": page.class_lists},
        style=Markup(style),
        script=Markup(script),
        script_hash=_hash(script),
        style_hash=_hash(style),
        version=__version__,
    )


def _text(name: str) -> str:
    return resources.files("selftrain.report").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


class _Page:
    def __init__(self, runs: Sequence[RunData]):
        self.runs = list(runs)
        self.one = self.runs[0] if len(self.runs) == 1 else None
        self.charts: dict[str, Any] = {}
        self.class_lists: list[list[str]] = []

    # --- the parts that sections share

    def _figure(self, section: Section, id: str, title: str, caption: str, chart: Chart, **more: Any) -> None:
        id = f"{section.id}-{id}"
        self.charts[id] = chart.data
        section.blocks.append(Block("figure", title, caption, chart, id, **more))

    def _curves(
        self,
        section: Section,
        name: str,
        title: str,
        caption: str,
        absent: str = "",
        skip_zero: bool = False,
        **how: Any,
    ) -> bool:
        """A figure over a row's steps of all runs that have it."""
        series = [Series(i, run.name, run.curve(name)) for i, run in enumerate(self.runs)]
        series = [s for s in series if s.points and not (skip_zero and all(v == 0 for _, v in s.points))]
        if not series:
            if absent:
                section.say(absent)
            return False
        told = "; ".join(f"{s.name} ends at {how.get('form', percent)(s.points[-1][1])}" for s in series)
        self._figure(section, name, title, caption, line_chart(f"{title} over training steps. {told}.", series, **how))
        return True

    def _groups(self) -> Iterator[tuple[list[str], list[tuple[int, RunData]]]]:
        """Runs with the same classes can be compared class by class."""
        groups: dict[tuple[str, ...], list[tuple[int, RunData]]] = {}
        for i, run in enumerate(self.runs):
            groups.setdefault(tuple(run.classes), []).append((i, run))
        for classes, members in groups.items():
            yield list(classes), members

    # --- head

    @property
    def title(self) -> str:
        if self.one:
            return f"{self.one.name} on {self.one.dataset}"
        datasets = list(dict.fromkeys(run.dataset for run in self.runs))
        if len(self.runs) == 2 and len(datasets) == 1:
            return f"{self.runs[0].name} and {self.runs[1].name} on {datasets[0]}"
        return f"{len(self.runs)} runs on {', '.join(datasets[:3])}" + (" …" if len(datasets) > 3 else "")

    @property
    def standfirst(self) -> str:
        run = self.runs[0]
        labels = run.split.get("counts", {})
        told = f"{_plural(len(run.classes), 'class').replace('classs', 'classes')}"
        if labels.get("labeled"):
            told += f", {labels['labeled']:,} labeled and {labels.get('unlabeled', 0):,} unlabeled pictures"
        scored = [run for run in self.runs if run.value("accuracy") is not None]
        if not scored:
            return f"{told}. There is no test set: what follows is what can be known without one."
        if self.one:
            where = {"test": "test pictures", "validation": "held-out pictures"}[run.value("evaluated_on") or "test"]
            right = f"{percent(run.value('accuracy'))} of the {where} are told right"
            worst = f"in the weakest fifth of the classes {percent(run.value('worst20_percent'))}"
            return f"{told}. {right}; {worst}."
        if len({run.same_split for run in self.runs}) > 1:
            return f"{_plural(len(self.runs), 'run')}, not all on the same labeled pictures: compare with care."
        best = max(scored, key=lambda run: run.value("accuracy"))
        fair = max(scored, key=lambda run: run.value("worst20_percent") or 0)
        both = f"{best.name} is right most often, on {percent(best.value('accuracy'))} of the pictures"
        if fair is best:
            return f"{told}. {both}, and does best by the weakest classes, too."
        return f"{told}. {both}; {fair.name} does best by the weakest fifth of the classes."

    def summary(self) -> list[tuple[str, str, list[str]]]:
        """(measure, what it means, a cell a run)"""

        def cells(form: Any, name: str) -> list[str]:
            values = [run.value(name) for run in self.runs]
            return ["–" if value is None else form(float(value)) for value in values]

        rows = [
            ("Accuracy", "pictures that are told right", cells(percent, "accuracy")),
            ("Mean over classes", "each class counts the same", cells(percent, "mean_per_class")),
            ("Weakest fifth of classes", "mean accuracy of those that do worst", cells(percent, "worst20_percent")),
            ("Imbalance ratio", "favourite against least favourite class", cells(ratio, "imbalance_ratio")),
            ("Pseudo labels used", "share above the threshold, at the end", cells(percent, "pseudo_label_quantity")),
            ("Pseudo labels right", "share of the used ones", cells(percent, "pseudo_label_quality")),
            ("Calibration error", "how far confidence is from accuracy", cells(percent, "ece")),
        ]  # fmt: skip
        crossed = [run.results.get("cross_validated") for run in self.runs]
        if any(crossed):
            rows.append((
                "Cross-validated", "accuracy on the few labels, each part left out in turn",
                [_crossed(value) for value in crossed],
            ))  # fmt: skip
        dying = [len(dying_classes(run)) for run in self.runs]
        rows.append(("Classes that are dying", "hardly or never predicted any more", [str(n) for n in dying]))
        seconds = [run.value("seconds") for run in self.runs]
        rows.append(("Training time", "", ["–" if s is None else _duration(float(s)) for s in seconds]))
        return [row for row in rows if any(cell != "–" for cell in row[2])]

    def next_steps(self) -> list[tuple[int | None, str, list[Advice]]]:
        """(run, its name, advice); what is true of every run is said once, at the end."""
        advice = [advise(run, self.runs) for run in self.runs]
        shared = [] if self.one else [a for a in advice[0] if all(a in other for other in advice)]
        own: list[tuple[int | None, str, list[Advice]]] = [
            (i, run.name, [a for a in found if a not in shared])
            for i, (run, found) in enumerate(zip(self.runs, advice, strict=True))
        ]
        return own + ([(None, "Every run", shared)] if shared else [])

    # --- sections

    def classes(self) -> Section:
        section = Section("classes", "Classes", "Who gains, and who is left behind")
        told = []
        for names, members in self._groups():
            scored = [(i, run) for i, run in members if run.per_class is not None]
            if not scored:
                continue
            references = {i: reference_of(run, self.runs) for i, run in scored}
            any_reference = next((found for found in references.values() if found), None)
            for i, run in scored:
                found = references[i]
                if found is None or (run.method.startswith("supervised") and found[0] == run.per_class):
                    continue
                told.append(self._change(section, i, run, found))
            self._class_table(section, names, scored, any_reference)
        if not any(run.per_class for run in self.runs):
            return section
        if told:
            section.title = told[0] if len(told) == 1 else "Who gains from self-training, and who is left behind"
            section.text = "" if len(told) == 1 else " ".join(told)
        else:
            section.title = "Accuracy, class by class"
            section.say(
                "There is nothing to compare with: what the same labels give without pseudo labels is not known. "
                "Run “selftrain report --reference”, or put a run of the method “supervised” beside this one."
            )
        return section

    def _change(self, section: Section, i: int, run: RunData, found: tuple[list[float | None], str]) -> str:
        before, where = found
        after = run.per_class or []
        order = sorted(range(len(before)), key=lambda k: (before[k] is None, before[k] or 0, k))
        pairs = [(before[k], after[k]) for k in order]
        gained = sum(1 for a, b in pairs if a is not None and b is not None and b > a)
        lost = sum(1 for a, b in pairs if a is not None and b is not None and b < a)
        low = [b - a for a, b in pairs[: max(1, len(pairs) // 2)] if a is not None and b is not None]
        high = [b - a for a, b in pairs[max(1, len(pairs) // 2) :] if a is not None and b is not None]
        sentence = f"{run.name} lifted {classes_word(gained)} and lowered {lost or 'none'}."
        caption = f"Each bar is a class, from its accuracy with {where} (dark tick) to its accuracy now."
        if low and high:
            caption += (
                f" The weaker half changed by {points(float(np.mean(low)))} points on average, "
                f"the stronger half by {points(float(np.mean(high)))}."
            )
        chart = change_chart(
            f"{sentence} {caption}",
            i,
            [run.classes[k] for k in order],
            [a for a, _ in pairs],
            [b for _, b in pairs],
            words=("labels only", "now"),
            x_words=("weak with labels only", "strong"),
        )
        self._figure(section, f"change{i}", run.name, caption, chart, run=i, key="changes")
        return sentence

    def _class_table(self, section: Section, names: list[str], members: list[tuple[int, RunData]], found: Any) -> None:
        before = found[0] if found else None
        others = [(i, run) for i, run in members if before is None or run.per_class != before]
        columns = [(i, run.name, run.per_class or []) for i, run in others or members]
        first = before if before is not None else columns[0][2]
        order = sorted(range(len(names)), key=lambda k: (first[k] is None, first[k] or 0, k))
        section.blocks.append(
            Block("class_table", extra={"names": names, "before": before, "columns": columns, "order": order})
        )

    def bias(self) -> Section:
        section = Section("bias", "Bias", "Where the mistakes come from")
        for i, run in enumerate(self.runs):
            training = training_bias(run, self.runs)
            reference = reference_of(run, self.runs)
            if training is None or reference is None or run.method.startswith("supervised"):
                continue
            data = (run.reference or {}).get("data_bias")
            whole = (run.reference or {}).get("all_labels")
            base = None
            errors = [None if v is None else 1 - v for v in reference[0]]
            if data is not None and whole and len(data) == len(run.classes):
                base = [None if v is None else 1 - v for v in whole["per_class"]]
            else:
                data = errors
            order = sorted(range(len(errors)), key=lambda k: (errors[k] is None, -(errors[k] or 0), k))
            added = [t for t in training if t is not None and t > 0]
            taken = [-t for t in training if t is not None and t < 0]
            K = max(1, len(added) + len(taken) + sum(t == 0 for t in training))
            caption = (
                f"Training with pseudo labels took {100 * sum(taken) / K:.1f} points of error away and added "
                f"{100 * sum(added) / K:.1f}, on average over the classes."
            )
            if base is None:
                caption += " How much of the rest comes from having few labels is not known: not all labels are."
            chart = stacked_chart(
                f"{run.name}: error of each class, split into data bias and training bias. {caption}",
                i,
                [run.classes[k] for k in order],
                None if base is None else [base[k] for k in order],
                [data[k] for k in order],
                [training[k] for k in order],
                x_words=("hard with labels only", "easy"),
            )
            self._figure(
                section, f"parts{i}", run.name, caption, chart, run=i, key="parts" if base is not None else "parts-few"
            )
            rows = [[run.classes[k], *("–" if v is None else points(v) for v in (data[k], training[k]))] for k in order]
            head = "data bias" if base is not None else "error, labels only"
            section.blocks[-1].extra = {"columns": ["class", head, "training bias"], "rows": rows}
        if section.blocks:
            section.text = (
                "Data bias is what learning from few labels costs, compared with knowing all of them. Training bias is "
                "what learning from pseudo labels adds to it, or takes away. Bars show error: lower is better."
            )
        elif any(run.per_class for run in self.runs) and not all(r.method == "supervised" for r in self.runs):
            section.say(
                "The mistakes can't be split into those of few labels and those of self-training without a reference: "
                "run “selftrain report --reference”, which trains one on the same labels."
            )
        return section

    def training(self) -> Section:
        section = Section("training", "Training", "How it went")
        share: dict[str, Any] = {"low": 0.0, "high": 1.0}
        if not any(run.rows for run in self.runs):
            section.say("There is no metrics.jsonl in the run folder, so the way to the result can't be shown.")
            return section
        if self._curves(section, "accuracy", "Accuracy", "Share of pictures that are told right.", **share):
            drops = [
                run.name for run in self.runs
                if (c := [v for _, v in run.curve("accuracy")]) and len(c) > 2 and max(c) - c[-1] > 0.02
            ]  # fmt: skip
            section.title = f"{' and '.join(drops)} ended below the best point on the way" if drops else "How it went"
        self._curves(
            section, "worst20_percent", "Weakest fifth of the classes", "Mean accuracy of the classes that do worst.",
            **share,
        )  # fmt: skip
        self._curves(
            section, "imbalance_ratio", "Imbalance ratio of the predictions",
            "Predictions of the favourite class for one of the least favourite: 1 is balanced, ∞ means that a class "
            "is never predicted. Logarithmic.", form=ratio, log=True,
        )  # fmt: skip
        if not any(run.curve("accuracy") for run in self.runs):
            section.say("Accuracy over training is not known: there was nothing to evaluate on.")
        self._curves(
            section, "loss", "Loss", "The sum of all terms, mean since the evaluation before.", form=number, low=0
        )
        terms = dict.fromkeys(name for run in self.runs for name in run.last if name.startswith("loss_"))
        for name in terms:
            word = name.removeprefix("loss_").replace("_", " ")
            if self._curves(section, name, f"Loss: {word}", f"The term “{word}” alone.", form=number, skip_zero=True):
                section.blocks[-1].key = "more"
        return section

    def pseudo_labels(self) -> Section:
        section = Section("pseudo", "Pseudo labels", "What it learned from")
        share: dict[str, Any] = {"low": 0.0, "high": 1.0}
        if not any(run.curve("pseudo_label_quantity") for run in self.runs):
            if not all(run.method.startswith("supervised") for run in self.runs):
                section.say("These methods do not pick pseudo labels one by one, so there are none to count.")
            return section
        self._curves(
            section, "pseudo_label_quantity", "Quantity", "Share of unlabeled pictures whose pseudo label is used.",
            **share,
        )  # fmt: skip
        self._curves(
            section, "pseudo_label_quality", "Quality", "Share of the used pseudo labels that are right.",
            "How many pseudo labels are right can't be known: nobody knows the classes of the unlabeled pictures.",
            **share,
        )  # fmt: skip
        worst = [Series(i, run.name, _worst_quality(run)) for i, run in enumerate(self.runs)]
        if worst := [s for s in worst if s.points]:
            caption = "The same for the fifth of the classes in which fewest are right."
            chart = line_chart("Quality of pseudo labels in the weakest fifth of the classes.", worst, **share)
            self._figure(section, "worst-quality", "Quality in the weakest classes", caption, chart)
        balance = [Series(i, run.name, _kept_imbalance(run)) for i, run in enumerate(self.runs)]
        if balance := [s for s in balance if s.points]:
            caption = "Used pseudo labels of the favourite class for one of the least favourite. Logarithmic."
            chart = line_chart("Imbalance ratio of the pseudo labels in use.", balance, form=ratio, log=True)
            self._figure(section, "imbalance", "Imbalance of the pseudo labels", caption, chart)
        self._curves(
            section, "pseudo_churn", "Churn", "Share of pseudo labels that changed since the evaluation before.",
            low=0.0,
        )  # fmt: skip
        told = []
        for run in self.runs:
            quantity, quality = run.value("pseudo_label_quantity"), run.value("pseudo_label_quality")
            if quantity is not None:
                right = f", and {percent(quality)} of those labels are right" if quality is not None else ""
                told.append(f"{run.name} uses {percent(quantity)} of the unlabeled pictures at the end{right}.")
        section.text = " ".join(told)
        if len(told) == 1 and self.one:
            section.title, section.text = told[0], ""
        return section

    def unlabeled(self) -> Section:
        section = Section("unlabeled", "Unlabeled pictures", "What the predictions say by themselves")
        for i, run in enumerate(self.runs):
            prior, share = run.labeled_prior, run.pool_share
            if share is None or prior is None:
                continue
            order = np.argsort(share / np.maximum(prior, 1e-9), kind="stable").tolist()
            gone = dying_classes(run)
            caption = "Each bar is a class: from its share of the labels (dark tick) to its share of the predictions."
            if gone:
                caption += f" Dying: {listed(gone)}."
            differ = [f"the {word} on {percent(d)}" for word, part in (("pseudo head", "pool_pseudo"),
                      ("worst-case head", "pool_worst")) if (d := _disagreement(run, part)) is not None]  # fmt: skip
            if differ:
                caption += f" The main head is contradicted by {' and by '.join(differ)} of the pictures."
            chart = change_chart(
                f"{run.name}: predictions on unlabeled pictures against the labeled ones. {caption}",
                i,
                [run.classes[k] for k in order],
                prior[order].tolist(),
                share[order].tolist(),
                words=("of the labels", "of the predictions"),
                high=None,
                x_words=("too seldom", "too often"),
            )
            self._figure(section, f"share{i}", run.name, caption, chart, run=i, key="changes")
            ordered = [(run.classes[k], percent(float(prior[k])), percent(float(share[k]))) for k in order]
            section.blocks[-1].extra = {"columns": ["class", "of the labels", "of the predictions"], "rows": ordered}
        if section.blocks:
            section.text = (
                "This needs no ground truth. If your labeled pictures are as mixed as the unlabeled ones, the two "
                "shares should be alike; a class that falls towards zero is dying."
            )
        elif any(not run.outputs for run in self.runs):
            section.say("These runs did not keep their predictions on the unlabeled pictures (older versions did not).")
        return section

    def worst_case(self) -> Section:
        section = Section("worst", "Worst case", "What the worst-case head can still do")
        share: dict[str, Any] = {"low": 0.0, "high": 1.0}
        self._curves(
            section, "worst_error", "Worst-case error", "How often the worst-case head contradicts the pseudo labels.",
            **share,
        )  # fmt: skip
        self._curves(
            section, "worst_loss", "Worst-case loss", "What the features are trained to make small.", form=number
        )
        self._curves(
            section, "head_agreement", "Agreement of the heads",
            "Share of the pseudo labels, which the main head makes, that the pseudo head shares.", **share,
        )  # fmt: skip
        if section.blocks:
            section.text = (
                "A head looks for the most harmful labels that still fit the labeled pictures; the features move away "
                "from them. A worst-case error that rises first and falls later is as it should be."
            )
        elif any(run.method.startswith("dst") for run in self.runs):
            section.say("This run did not keep the worst-case error (older versions did not).")
        return section

    def confusions(self) -> Section:
        section = Section("confusion", "Confusion", "What is taken for what")
        for names, members in self._groups():
            place = len(self.class_lists)
            self.class_lists.append(names)
            for i, run in members:
                if run.confusion is None:
                    continue
                pairs = sorted(((n, t, p) for t, p, n in run.confusion if t != p), reverse=True)
                wrong = sum(n for n, _, _ in pairs)
                support = np.zeros(len(names))
                for t, _, n in run.confusion:
                    support[t] += n
                rows = [
                    (names[t], names[p], n, percent(n / support[t])) for n, t, p in pairs[:MOST_PAIRS]
                ]  # fmt: skip
                top = sum(n for n, _, _ in pairs[:MOST_PAIRS])
                caption = (
                    "Rows are true classes, columns predicted ones, in the same order. The diagonal is right; "
                    "the stronger a square, the larger its share of the row."
                )
                chart = matrix(
                    f"{run.name}: confusion matrix of {len(names)} classes. {caption}", i, names, run.confusion
                )
                chart.data["names"] = place
                extra = {"rows": rows, "share": percent(top / wrong) if wrong else "", "wrong": wrong}
                self._figure(section, f"matrix{i}", run.name, caption, chart, run=i, extra=extra)
                section.blocks[-1].kind = "matrix"
                if self.one and rows:
                    section.title = f"“{rows[0][0]}” is taken for “{rows[0][1]}” most often"
        if not section.blocks and any(run.per_class for run in self.runs):
            section.say("These runs did not keep a confusion matrix (older versions did not).")
        return section

    def calibration(self) -> Section:
        section = Section("calibration", "Calibration", "Is it right as often as it is sure?")
        series = []
        for i, run in enumerate(self.runs):
            bins = [(c, a) for n, c, a in run.value("calibration") or () if n]
            if bins:
                series.append(Series(i, run.name, sorted(bins)))
        if not series:
            if any(run.per_class for run in self.runs):
                section.say("These runs did not keep confidences (older versions did not).")
            return section
        told = [f"{run.name}: {percent(e)}" for run in self.runs if (e := run.value("ece")) is not None]
        caption = (
            "Accuracy of pictures with about the same confidence. On the diagonal, confidence can be taken at its "
            "word; below it, the model is too sure of itself."
        )
        chart = line_chart(
            f"Accuracy over confidence. Expected calibration error: {'; '.join(told)}.",
            series, low=0.0, high=1.0, x_name="confidence", x_form=percent, x_range=(0.0, 1.0), diagonal=True,
        )  # fmt: skip
        self._figure(section, "reliability", "Accuracy over confidence", caption, chart)
        self._curves(
            section, "ece", "Calibration error over training", "Mean distance of confidence and accuracy.", low=0.0
        )
        if told:
            section.text = f"Expected calibration error, the mean distance from the diagonal: {'; '.join(told)}."
        return section

    def examples(self) -> Section:
        section = Section("examples", "Examples", "Pictures to look at")
        for i, run in enumerate(self.runs):
            found: Examples = find_examples(run)
            if found.missing:
                section.say(f"{run.name}: {found.missing}")
            if found.confident:
                title = f"{run.name}: sure, and wrong"
                caption = (
                    "Test pictures that are told wrong with the highest confidence. Wrong labels show up here, too."
                )
                section.blocks.append(Block("gallery", title, caption, run=i, extra=found.confident))
            if found.likely:
                title = f"{run.name}: likely mistakes among the unlabeled pictures"
                caption = "Good ones to label next: the heads disagree, or the model is least sure."
                if found.likely_right is not None:
                    caption += f" (The truth is known here: {percent(found.likely_right)} of these are mistakes.)"
                section.blocks.append(Block("gallery", title, caption, run=i, extra=found.likely))
        if not section.blocks and any(not run.outputs for run in self.runs):
            section.say("These runs did not keep their predictions picture by picture (older versions did not).")
        return section

    def settings(self) -> Section:
        section = Section("settings", "Settings", "How it was made")
        names = list(dict.fromkeys(name for run in self.runs for name in run.config))

        def word(value: Any) -> str:
            return "–" if value is None else str(value).lower() if isinstance(value, bool) else str(value)

        rows = [(name, [word(run.config.get(name)) for run in self.runs]) for name in names]
        different = [row for row in rows if len(set(row[1])) > 1]
        versions = [(key, [word(run.results.get(key)) for run in self.runs]) for key in (
            "steps", "labeled", "unlabeled", "split_hash", "selftrain", "torch")]  # fmt: skip
        if not self.one and different:
            section.blocks.append(Block("settings", "What differs", extra=different))
        section.blocks.append(Block("settings", "All settings", extra=rows, key="closed"))
        section.blocks.append(Block("settings", "Data and versions", extra=versions, key="closed"))
        folders = [(run.name, str(run.folder)) for run in self.runs]
        section.blocks.append(Block("folders", extra=folders))
        return section


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _crossed(value: Any) -> str:
    """What cross-validation found: a number, or an object that has one."""
    if isinstance(value, dict):
        value = value.get("accuracy")
    return percent(float(value)) if isinstance(value, (int, float)) else "–"


def _worst_quality(run: RunData) -> list[tuple[float, float]]:
    """Over training, the mean share of right pseudo labels in the fifth of the classes with the smallest."""
    found = []
    for at, row in enumerate(run.rows):
        kept, right = run.by_class("pseudo_kept_true", at), run.by_class("pseudo_right", at)
        seen = run.by_class("pseudo_seen_true", at)
        if kept is None or right is None or seen is None or not (seen > 0).any():
            continue
        quality = np.sort(np.where(kept > 0, right / np.maximum(kept, 1), 0.0)[seen > 0])
        found.append((float(row["step"]), float(quality[: math.ceil(len(quality) / 5)].mean())))
    return found


def _kept_imbalance(run: RunData) -> list[tuple[float, float]]:
    found = []
    for at, row in enumerate(run.rows):
        kept = run.by_class("pseudo_kept", at)
        if kept is not None and kept.sum() > 0:
            found.append((float(row["step"]), float(kept.max() / kept.min()) if kept.min() > 0 else math.inf))
    return found


def _disagreement(run: RunData, part: str) -> float | None:
    """How often another head says something else than the classifier."""
    other, predicted = run.outputs.get(part), run.outputs.get("pool_predicted")
    return None if other is None or predicted is None else float((other != predicted).mean())
