"""Made-up run folders in the format that training writes: any number of classes, with or without ground truth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

NASTY = [
    '<script>alert("x")</script>', "</script><img src=x onerror=alert(1)>", "it's \"quoted\" & 'so'",
    "שלום עולם",
    "🦊 fox", "{{ 7*7 }}", "a\u2028b", "very-long-class-name-without-any-place-to-break-it-anywhere-at-all",
    "<!-- -->", "plain",
]  # fmt: skip
CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def _accuracies(rng: np.random.Generator, K: int, method: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the accuracy of each class with labels only and at the end: FixMatch harms weak classes, DST does not."""
    first = np.sort(np.clip(rng.normal(0.5, 0.22, K), 0.02, 0.97))[rng.permutation(K)]
    if method == "supervised":
        return first, first
    if method.startswith("dst"):
        return first, np.clip(first + 0.32 * (1 - first) + rng.normal(0, 0.04, K), 0, 1)
    return first, np.where(first > 0.42, np.clip(first + 0.25, 0, 0.98), np.clip(first - 0.4, 0, 1))


def found_in_pool(
    classes: list[str] | None = None,
    *,
    choice: str = "blend",
    truth: bool = True,
    source: str = "auto",
    pool: list[float] | None = None,
    junk: float = 0.0,
    **evidence: Any,
) -> dict[str, Any]:
    """Return what a run on fixed features adds to its results: ``prior``, ``screening`` and ``guard``."""
    classes = classes or CIFAR
    K = len(classes)
    shares = np.array(pool or [1 / K] * K)
    names = ("accuracy", "mean_per_class", "worst20_percent")
    alone, ours = ({**dict.fromkeys(names, value), "per_class": [value] * K} for value in (0.3, 0.6))
    unknown = dict.fromkeys([*names, "per_class"])
    guard = {
        "choice": choice, "reason": "nothing speaks against it" if choice == "blend" else "it predicts 'cat' 9 times",
        "disagreement": 0.02, "limit": 0.12, "growth": 1.4, "grown": classes[0], "left_out_accuracy": 0.31,
        "labels": 4 * K,
        "labels_only": alone if truth else unknown, "self_trained": ours if truth else unknown, **evidence,
    }  # fmt: skip
    prior = {
        "source": source, "labels": [1 / K] * K, "pool": shares.tolist(), "agreement": 0.8,
        "distance": float(np.abs(shares - 1 / K).sum() / 2), "error": 0.05 if truth else None,
    }  # fmt: skip
    screening = {"share": junk, "drawn": 1 - junk, "auroc": 0.93 if junk and truth else None}
    return {"prior": prior, "screening": screening, "guard": guard}


def make_run(
    folder: Path,
    method: str = "fixmatch",
    *,
    classes: list[str] | None = None,
    evaluations: int = 10,
    truth: bool = True,
    old: bool = False,
    data: str = "/nowhere/cifar10-mini",
    names: list[str] | None = None,
    reference: bool = False,
    finished: bool = True,
    seed: int = 0,
    config: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """Write a run folder.

    ``old`` writes only what runs had before there were reports; ``names`` are those of the evaluated images.
    ``more`` is added to the results.
    """
    classes = classes or CIFAR
    K = len(classes)
    rng = np.random.default_rng(7)
    first, final = _accuracies(rng, K, method)
    rng = np.random.default_rng([seed, len(method)])
    dst = method.startswith("dst")
    support = 50 if K <= 50 else 20
    folder.mkdir(parents=True)
    usual = {
        "method": method, "regime": "frozen", "seed": seed, "data": {"path": data, "labels_per_class": 4, "size": 128},
        "network": {"backbone": "lite0"}, "optim": {"lr": 0.01}, "train": {"steps": 100 * evaluations},
    }  # fmt: skip
    text = config or yaml.safe_dump(usual, allow_unicode=True)
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    labeled = [{"path": f"train/{k}/{i}.png", "label": name} for k, name in enumerate(classes) for i in range(4)]
    split = {
        "hash": f"hash-{K}", "dataset": Path(data).name, "classes": classes, "labeled": labeled,
        "counts": {"classes": K, "images": 100 * K, "labeled": 4 * K, "unlabeled": 100 * K},
    }  # fmt: skip
    (folder / "split.json").write_text(json.dumps(split, ensure_ascii=False), encoding="utf-8")

    rows: list[dict[str, Any]] = []
    for e in range(evaluations):
        t = (e + 1) / evaluations
        per_class = np.clip(first + (final - first) * t + rng.normal(0, 0.01, K), 0, 1)
        row: dict[str, Any] = {
            "step": 100 * (e + 1), "seconds": 3.0 * (e + 1), "lr": 0.01, "loss": 2.5 - t + rng.normal(0, 0.02),
            "loss_labeled": 1.2 - t, "loss_pseudo": 0.8 - 0.3 * t,
        }  # fmt: skip
        if method != "supervised":
            row |= {"pseudo_label_quantity": 0.3 + 0.5 * t, "pseudo_label_quality": 0.6 + 0.2 * t if truth else None}
        if dst:
            row["loss_worst"] = 0.4 + 0.3 * np.sin(3 * t)
        if truth:
            predicted = np.maximum(per_class * support * 1.5, 0).round().astype(int)
            low = predicted.min()
            row |= {
                "accuracy": float(per_class.mean()), "mean_per_class": float(per_class.mean()),
                "per_class": per_class.round(4).tolist(), "worst10": float(np.sort(per_class)[:10].mean()),
                "worst20": float(np.sort(per_class)[:20].mean()),
                "worst20_percent": float(np.sort(per_class)[: max(1, K // 5)].mean()),
                "imbalance_ratio": float(predicted.max() / low) if low else "inf", "predicted": predicted.tolist(),
            }  # fmt: skip
        else:
            keys = ("accuracy", "mean_per_class", "per_class", "worst10", "worst20", "worst20_percent",
                    "imbalance_ratio")  # fmt: skip
            row |= dict.fromkeys(keys)
        if not old and method != "supervised":
            kept = (per_class * 900).round().astype(int)
            row |= {
                "pseudo_kept": kept.tolist(), "pseudo_churn": float(0.3 * (1 - t) + 0.02),
                "pseudo_kept_true": (kept * 0.9).astype(int).tolist() if truth else None,
                "pseudo_right": (kept * 0.9 * per_class).astype(int).tolist() if truth else None,
                "pseudo_seen_true": [1000] * K if truth else None,
                "worst_error": float(0.5 + 0.3 * np.sin(3 * t)) if dst else None,
                "worst_loss": float(0.2 + 0.3 * np.sin(3 * t)) if dst else None,
                "head_agreement": float(0.6 + 0.3 * t) if dst else None,
                "ece": 0.2 - 0.1 * t if truth else None,
                "calibration": [[10 + b, (b + 0.5) / 15, (b + 0.5) / 18] for b in range(15)] if truth else None,
                "alarms": [classes[k] for k in np.flatnonzero(per_class < 0.02)],
            }  # fmt: skip
        rows.append(row)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")
    if not finished:
        return folder

    last = rows[-1]
    results: dict[str, Any] = {
        "method": method, "dataset": Path(data).name, "seed": seed, "steps": last["step"], "seconds": last["seconds"],
        "steps_per_second": 33.3, "evaluated_on": "test" if truth else None, "regime": "frozen", "backbone": "lite0",
        "labeled": 4 * K, "unlabeled": 100 * K, "split_hash": f"hash-{K}", "classes": classes, "selftrain": "0.1.0",
        "torch": "2.15", **{key: last.get(key) for key in (
            "accuracy", "mean_per_class", "per_class", "worst10", "worst20", "worst20_percent", "imbalance_ratio",
            "pseudo_label_quantity", "pseudo_label_quality",
        )},
    }  # fmt: skip
    if not old:
        confusion, eval_truth, eval_predicted = [], [], []
        for k in range(K):
            right = round(support * float(final[k]))
            wrong = rng.multinomial(support - right, np.ones(3) / 3)
            cells = [(k, right), *(((k + j) % K, int(n)) for j, n in zip((1, 2, K - 1), wrong, strict=True))]
            for p, n in cells:
                if n:
                    confusion.append([k, p, n])
                    eval_truth += [k] * n
                    eval_predicted += [p] * n
        pool = np.repeat(np.arange(K), 20)
        guessed = np.where(rng.random(len(pool)) < final[pool], pool, (pool + 1) % K)
        results |= {
            "confusion": confusion if truth else None, "ece": last.get("ece"), "calibration": last.get("calibration"),
            "alarms": last.get("alarms", []), "labeled_prior": [1 / K] * K,
            "pool_predicted": np.bincount(guessed, minlength=K).tolist(), "cross_validated": None,
        }  # fmt: skip
        arrays: dict[str, Any] = {
            "pool_names": np.array([f"train/{i}.png" for i in range(len(pool))]),
            "pool_truth": pool if truth else np.full(len(pool), -1), "pool_predicted": guessed,
            "pool_confidence": rng.uniform(0.2, 1, len(pool)).astype(np.float32), "pool_runner_up": (guessed + 1) % K,
        }  # fmt: skip
        if dst:
            arrays["pool_worst"] = np.where(rng.random(len(pool)) < 0.8, guessed, (guessed + 1) % K)
            arrays["pool_pseudo"] = np.where(rng.random(len(pool)) < 0.9, guessed, (guessed + 1) % K)
        place = rng.permutation(len(pool))[:60]
        arrays |= {
            "map_names": arrays["pool_names"][place], "map_predicted": guessed[place],
            "map_label": np.where(np.arange(len(place)) < 8, guessed[place], -1),
            "map_confidence": arrays["pool_confidence"][place], "map_novelty": rng.uniform(0, 0.6, len(place)),
            "map_x": rng.random(len(place)), "map_y": rng.random(len(place)),
        }  # fmt: skip
        if truth:
            N = len(eval_truth)
            shown = names or [f"test/{i}.png" for i in range(N)]
            arrays |= {
                "eval_names": np.array([shown[i % len(shown)] for i in range(N)]), "eval_truth": np.array(eval_truth),
                "eval_predicted": np.array(eval_predicted), "eval_runner_up": (np.array(eval_predicted) + 1) % K,
                "eval_confidence": rng.uniform(0.3, 1, N).astype(np.float32),
            }  # fmt: skip
        np.savez_compressed(folder / "outputs.npz", **arrays)
    results |= more or {}
    (folder / "results.json").write_text(json.dumps(results, ensure_ascii=False), encoding="utf-8")
    if reference:
        bias = [float(a - b) for a, b in zip(first, final, strict=True)]
        document = {
            "labels_only": {"accuracy": float(first.mean()), "per_class": first.tolist()},
            "all_labels": {"accuracy": 0.95, "per_class": [0.95] * K},
            "data_bias": (0.95 - first).tolist(), "training_bias": bias,
        }  # fmt: skip
        (folder / "reference.json").write_text(json.dumps(document), encoding="utf-8")
    return folder
