"""The model card: a ``README.md`` for people, with the header that the Hugging Face Hub reads.

Knows nothing of models or training: it turns results and the model's card into text. Names of classes and datasets come
from folders of users, so they are escaped.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selftrain.files import read_json, write_text
from selftrain.runs.layout import ModelLayout, RunLayout

WEAKEST = 5
"""classes that are named as weak, at most"""
MOST_CLASSES = 200
"""classes that are listed; of more, their number is given"""
Z90 = 1.6449


def model_readme(results: Mapping[str, Any], card: Mapping[str, Any], name: str = "", usage: str = "") -> str:
    """Return the model card of a finished run; ``results`` may be empty, if the run folder is not there.

    ``usage`` says how to use the model, if it is not a model folder.
    """
    header = _header(results, card, name)
    parts = [
        f"# {_plain(name or _title(results, card))}",
        _summary(results, card),
        "## Results",
        *_results(results, card),
        "## Classes",
        _classes(results, card),
        "## Intended use",
        _use(card),
        "## How to use it",
        usage or USAGE,
        "## How it was made",
        _table(_made(results, card)),
    ]
    return f"---\n{header}---\n\n" + "\n\n".join(part.strip() for part in parts if part) + "\n"


def write_readme(layout: RunLayout, results: Mapping[str, Any], name: str = "") -> Path:
    """Write the model card into the model folder and return its path.

    If there are no results, because only the model folder is there, a card that exists stays as it is.
    """
    files = ModelLayout(layout.model)
    if results or not files.readme.exists():
        write_text(files.readme, model_readme(results, read_json(files.card), name))
    return files.readme


USAGE = """```sh
pip install selftrain
selftrain predict MODEL_FOLDER new/ -o predictions.csv   # or hf:USER/NAME in place of the folder
```

The weights are safetensors files; loading them runs no code from this repository."""


def interval(right: float, n: int, z: float = Z90) -> tuple[float, float]:
    """Return Wilson's interval of a share of which ``right`` of n were seen, 90% by default."""
    if n == 0:
        return 0.0, 1.0
    p = right / n
    middle = p + z**2 / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return max(0.0, (middle - spread) / (1 + z**2 / n)), min(1.0, (middle + spread) / (1 + z**2 / n))


def _header(results: Mapping[str, Any], card: Mapping[str, Any], name: str) -> str:
    import yaml

    method = str(results.get("method") or card.get("method") or "")
    words = [word for word in re.findall(r"[a-z_]+", method.split("=")[0].lower()) if len(word) > 2]
    values: dict[str, Any] = {
        "library_name": "selftrain",
        "pipeline_tag": "feature-extraction" if card.get("features") else "image-classification",
        "tags": list(dict.fromkeys(["selftrain", "semi-supervised-learning", "self-training", *words[:2]])),
    }
    if not card.get("features"):
        values["tags"].insert(1, "image-classification")
    if results.get("accuracy") is not None:
        values["metrics"] = ["accuracy"]
        dataset = str(results.get("dataset") or "unnamed")
        measured = [
            {"type": kind, "name": title, "value": round(float(results[field]), 4)}
            for field, kind, title in (
                ("accuracy", "accuracy", "Accuracy"),
                ("mean_per_class", "accuracy", "Mean accuracy per class"),
                ("ece", "ece", "Expected calibration error"),
            )
            if results.get(field) is not None
        ]
        values["model-index"] = [
            {
                "name": name or _title(results, card),
                "results": [
                    {
                        "task": {"type": "image-classification", "name": "Image classification"},
                        "dataset": {"name": dataset, "type": re.sub(r"[^\w.-]+", "-", dataset).strip("-") or "unnamed"},
                        "metrics": measured,
                    }
                ],
            }
        ]
    dumped: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return dumped


def _title(results: Mapping[str, Any], card: Mapping[str, Any]) -> str:
    about = results.get("dataset")
    return f"{about} classifier" if about else f"{len(card.get('classes', ()))}-class classifier"


def _summary(results: Mapping[str, Any], card: Mapping[str, Any]) -> str:
    K = len(card.get("classes", ()))
    kind = "feature vectors" if card.get("features") else "images"
    text = f"Sorts {kind} into {K} classes. Trained with selftrain"
    if results:
        labels, pool = results.get("labeled"), results.get("unlabeled")
        text += f" from {labels:,} labels and {pool:,} unlabeled images" if labels is not None and pool else ""
        text += f" ({labels / K:.1f} labels per class on average)" if labels and K else ""
    return text + "."


def _results(results: Mapping[str, Any], card: Mapping[str, Any]) -> list[str]:
    if not results:
        return ["The results of the training run are not known: the run folder was not there when this card was made."]
    n = sum(count for _, _, count in results.get("confusion") or ())
    accuracy = results.get("accuracy")
    if accuracy is None or not n:
        return [*_estimated(results), _calibration(results, card)]
    low, high = interval(accuracy * n, n)
    on = "test images" if results.get("evaluated_on") == "test" else "held-out labeled images"
    rows = [("Accuracy", f"{_percent(accuracy)} (90% interval {_percent(low)} to {_percent(high)}, {n:,} {on})")]
    if results.get("mean_per_class") is not None:
        rows.append(("Mean accuracy per class", _percent(results["mean_per_class"])))
    guard = results.get("guard") or {}
    alone = (guard.get("labels_only") or {}).get("accuracy")
    if alone is not None:
        rows.append(("The labels alone, without self-training", _percent(alone)))
    return [_table(rows), _calibration(results, card), _weak(results, card)]


def _estimated(results: Mapping[str, Any]) -> list[str]:
    found = results.get("estimated") or results.get("cross_validated") or {}
    accuracy = found.get("accuracy")
    if accuracy is None:
        return ["There was no test set: the accuracy of this model is not known."]
    between = (found["low"], found["high"]) if "low" in found else None
    level = found.get("level", 0.9)
    if between is None:
        between = interval(accuracy * found.get("labels", 0), int(found.get("labels", 0)))
    return [
        f"There was no test set. Accuracy as estimated from the labels: {_percent(accuracy)} "
        f"({100 * level:.0f}% interval {_percent(between[0])} to {_percent(between[1])})."
    ]


def _calibration(results: Mapping[str, Any], card: Mapping[str, Any]) -> str:
    temperature = card.get("temperature")
    how = "Probabilities are calibrated" if temperature else "Probabilities are not calibrated"
    ece = results.get("ece")
    if ece is None:
        return f"{how}; the calibration error is not known."
    return f"{how}: the expected calibration error (15 bins) is {ece:.3f} on the images above."


def _weak(results: Mapping[str, Any], card: Mapping[str, Any]) -> str:
    classes, per_class = card.get("classes", ()), results.get("per_class") or ()
    support = [0] * len(classes)
    right = [0] * len(classes)
    for true, predicted, count in results.get("confusion") or ():
        support[true] += count
        right[true] += count * (true == predicted)
    known = [k for k, value in enumerate(per_class) if value is not None and support[k]]
    overall = results.get("accuracy") or 0
    worst = sorted((k for k in known if right[k] / support[k] < min(overall, 0.9)), key=lambda k: right[k] / support[k])
    if not worst:
        return "No class is much weaker than the others."
    rows = [(_plain(classes[k]), f"{right[k]} of {support[k]}") for k in worst[:WEAKEST]]
    return "Known weak classes:\n\n" + _table(rows, ("class", "classified correctly"))


def _classes(results: Mapping[str, Any], card: Mapping[str, Any]) -> str:
    classes = list(card.get("classes", ()))
    labels = results.get("labeled_prior")
    shown = classes[:MOST_CLASSES]
    if labels and len(labels) == len(classes):
        text = ", ".join(f"{_plain(name)} ({labels[k]})" for k, name in enumerate(shown))
        note = "In brackets: the number of labels."
    else:
        text, note = ", ".join(map(_plain, shown)), ""
    more = len(classes) - len(shown)
    return f"{text}{f' and {more:,} more' if more else ''}. {note}"


def _use(card: Mapping[str, Any]) -> str:
    kind, K = "Feature vectors" if card.get("features") else "Images", len(card.get("classes", ()))
    none = f"The model always names one of its {K} classes, also for {kind.lower()} of none of them."
    if "novelty.safetensors" in (card.get("checksums") or {}):
        none = (
            f"{kind} that look like none of the {K} classes get the label `unknown`, but the model misses some of them."
        )
    return (
        f"{kind} of the same kind as the training data. {none} Check its labels where mistakes are costly, and "
        "evaluate it on images of your own. It was trained from few labels: whatever is rare or missing among them is "
        "likely to be classified wrongly."
    )


def _made(results: Mapping[str, Any], card: Mapping[str, Any]) -> list[tuple[str, str]]:
    like = card.get("preprocessing") or {}
    rows: list[tuple[str, Any]] = [
        ("Method", results.get("method") or card.get("method")),
        ("Regime", results.get("regime") or card.get("regime")),
        ("Backbone", None if card.get("features") else card.get("backbone")),
        ("Image size", f"{like.get('size')} px" if like.get("size") else None),
        ("Steps", results.get("steps")),
        ("Seed", results.get("seed")),
        ("Dataset", results.get("dataset")),
        ("Labels", results.get("labeled")),
        ("Unlabeled images", results.get("unlabeled")),
        ("Hash of the data and its split", results.get("split_hash")),
        ("Hash of the settings", results.get("settings_hash")),
        ("Hash of the frozen backbone's weights", card.get("weights")),
        ("selftrain", results.get("selftrain") or card.get("selftrain")),
        ("torch", results.get("torch")),
    ]
    return [(name, _plain(value)) for name, value in rows if value not in (None, "")]


def _table(rows: Sequence[tuple[str, str]], head: tuple[str, str] = ("", "")) -> str:
    lines = [f"| {head[0]} | {head[1]} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _plain(text: object) -> str:
    """Return text that Markdown and HTML show as it is, on one line."""
    escaped = html.escape(" ".join(str(text).split()), quote=False)
    return re.sub(r"([\\`*_{}\[\]()#+!|~])", r"\\\1", escaped)
