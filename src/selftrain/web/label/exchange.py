"""Answers as Label Studio's JSON and as plain CSV, out and in.

Knows nothing of pages or files: text in, text out.
"""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from selftrain.data.sources.answer_file import Answer
from selftrain.errors import UserError

FROM_NAME, TO_NAME = "label", "image"
LOCAL_FILES = "/data/local-files/?d="
"""how Label Studio addresses files of its own machine"""


def to_label_studio(answers: Mapping[str, Answer]) -> str:
    """Return answers as tasks that Label Studio imports; images of no class and skipped ones are cancelled tasks."""
    tasks = []
    for name, answer in answers.items():
        result = []
        if answer.label:
            value = {"choices": [answer.label]}
            result = [{"from_name": FROM_NAME, "to_name": TO_NAME, "type": "choices", "value": value}]
        annotation: dict[str, Any] = {"result": result, "was_cancelled": not answer.label}
        tasks.append(
            {"data": {"image": LOCAL_FILES + name, "path": name, "answer": answer.other}, "annotations": [annotation]}
        )
    return json.dumps(tasks, indent=1, ensure_ascii=False) + "\n"


def to_csv(answers: Mapping[str, Answer]) -> str:
    """Return answers as CSV with the columns path, label and answer."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["path", "label", "answer"])
    writer.writerows([name, answer.label, answer.other] for name, answer in answers.items())
    return text.getvalue()


def from_text(text: str, names: Iterable[str]) -> tuple[dict[str, str], int]:
    """Return labels by image from Label Studio's JSON (full or minimal) or from CSV, and how many could not be used."""
    pairs = list(_from_json(text) if text.lstrip()[:1] in ("[", "{") else _from_csv(text))
    known = set(names)
    by_end: dict[str, str | None] = {}
    for name in known:
        end = posixpath.basename(name)
        by_end[end] = None if end in by_end else name  # a file name that occurs twice says nothing
    labels: dict[str, str] = {}
    unused = 0
    for path, label in pairs:
        found = _match(path, known, by_end)
        if found is None or not label:
            unused += 1
        else:
            labels[found] = label
    return labels, unused


def _from_json(text: str) -> Iterable[tuple[str, str]]:
    try:
        tasks = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"import: not a JSON file ({error}).") from None
    for task in tasks if isinstance(tasks, list) else [tasks]:
        if not isinstance(task, dict):
            raise UserError("import: expected a list of Label Studio tasks.")
        inner = task.get("data")
        data: dict[str, Any] = inner if isinstance(inner, dict) else task
        path = next((str(data[key]) for key in ("path", "image", "img") if isinstance(data.get(key), str)), "")
        yield path, _choice(task)


def _choice(task: Mapping[str, Any]) -> str:
    """Return the class of a task: of its first annotation that was not cancelled, or of the minimal format."""
    for annotation in _list(task.get("annotations")):
        if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
            continue
        for result in _list(annotation.get("result")):
            value = result.get("value") if isinstance(result, dict) else None
            choices = value.get("choices") if isinstance(value, dict) else None
            if isinstance(choices, list) and len(choices) == 1:
                return str(choices[0])
    minimal = task.get("choice", task.get("label"))
    return minimal if isinstance(minimal, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _from_csv(text: str) -> Iterable[tuple[str, str]]:
    rows = csv.DictReader(io.StringIO(text.lstrip("\ufeff")))
    fields = rows.fieldnames or []
    path = next((name for name in ("path", "image") if name in fields), None)
    label = next((name for name in ("label", "choice") if name in fields), None)
    if path is None or label is None:
        raise UserError(f"import: expected a CSV file with the columns path and label; found {', '.join(fields)}.")
    return [(row[path] or "", row[label] or "") for row in rows]


def _match(path: str, known: set[str], by_end: Mapping[str, str | None]) -> str | None:
    """Return the image that a path or an address of Label Studio refers to."""
    parts = urlsplit(path)
    inner = parse_qs(parts.query).get("d", [""])[0] or unquote(parts.path)
    for text in (path, inner):
        pieces = text.replace("\\", "/").strip("/").split("/")
        for start in range(len(pieces)):
            name = "/".join(pieces[start:])
            if name in known:
                return name
    end = posixpath.basename(inner)
    found = by_end.get(end)
    if found is None and "-" in end:  # uploads are called <8 digits>-<name>
        found = by_end.get(end.split("-", 1)[1])
    return found
