"""The labeling page's requests: answers reach the file at once, nobody else is let in, and nothing is lost."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from selftrain.data.images import FileImages
from selftrain.data.sources.answer_file import Answer, AnswerFile
from selftrain.errors import UserError
from selftrain.web.label.app import label_app
from selftrain.web.label.background import take
from selftrain.web.label.exchange import from_text, to_csv, to_label_studio
from selftrain.web.label.final import FinalTraining
from selftrain.web.label.session import Session
from selftrain.web.security import Guarded, new_token

TOKEN, PORT = "secret-token", 8123
LARGEST = 20_000
AS_JSON = {"content-type": "application/json"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SELFTRAIN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def photos(tmp_path: Path) -> FileImages:
    folder = tmp_path / "photos"
    (folder / "sub").mkdir(parents=True)
    names = [f"{'sub/' if i % 2 else ''}{i:02d}.png" for i in range(12)]
    for i, name in enumerate(names):
        Image.new("RGB", (40, 30), (20 * i, 0, 0)).save(folder / name)
    return FileImages(folder, sorted(names))


@pytest.fixture
def session(photos: FileImages, tmp_path: Path) -> Session:
    return Session(photos, tmp_path / "labels.csv", ["cat", "dog"])


@pytest.fixture
def refused() -> list[str]:
    return []


@pytest.fixture
def client(session: Session, refused: list[str], tmp_path: Path) -> Iterator[TestClient]:
    final = FinalTraining(Path(session.photos.root), session.file.path)
    app = Guarded(label_app(session, None, final, tmp_path / "runs"), TOKEN, largest=LARGEST, log=refused.append)
    with TestClient(app, base_url=f"http://127.0.0.1:{PORT}/{TOKEN}/") as found:
        yield found


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def give(client: TestClient, kind: str = "label", **labels: str) -> Any:
    answers = [{"id": int(key[1:]), "label": label or None} for key, label in labels.items()]
    return client.post("api/answers", json={"kind": kind, "answers": answers})


def test_each_answer_is_on_disk_at_once(client: TestClient, session: Session) -> None:
    found = give(client, p0="cat").json()
    assert found["saved"] == 1
    assert found["state"]["labeled"] == 1
    assert rows_of(session.file.path) == [{"path": "00.png", "label": "cat"}]
    give(client, p1="dog", p2="bird")
    give(client, "none", p3="")
    give(client, "skip", p4="")
    assert [(row["label"], row["answer"] or "") for row in rows_of(session.file.path)] == [
        ("cat", ""), ("dog", ""), ("bird", ""), ("", "none"), ("", "skip"),
    ]  # fmt: skip
    state = client.get("api/state").json()
    assert (state["labeled"], state["none"], state["skipped"]) == (3, 1, 1)
    assert [(one["name"], one["labels"]) for one in state["classes"]] == [("cat", 1), ("dog", 1), ("bird", 1)]


def test_train_takes_the_file_as_it_is(client: TestClient, session: Session) -> None:
    from selftrain.data.source import Source

    give(client, p0="cat", p1="dog")
    give(client, "none", p3="")
    corpus = Source.parse(session.photos.root, labels=session.file.path).corpus()
    assert corpus.classes == ("cat", "dog")
    assert len(corpus.images) == len(session.photos) - 1


def test_undo_takes_back_one_answer_after_the_other(client: TestClient, session: Session) -> None:
    give(client, p0="cat", p1="cat")
    give(client, p0="dog")
    assert client.post("api/undo", json={}).json()["items"][0]["label"] == "cat"
    assert [item["id"] for item in client.post("api/undo", json={}).json()["items"]] == [0, 1]
    assert rows_of(session.file.path) == []
    assert client.post("api/undo", json={}).json()["items"] == []


def test_a_new_session_continues_and_can_undo(client: TestClient, session: Session, photos: FileImages) -> None:
    give(client, p0="cat")
    give(client, p1="dog")
    again = Session(photos, session.file.path)
    assert again.labels() == {0: "cat", 1: "dog"}
    assert again.undo() == [1]
    assert again.labels() == {0: "cat"}


def test_changes_of_others_are_kept(client: TestClient, session: Session) -> None:
    give(client, p0="cat", p1="dog")
    path = session.file.path
    path.write_text("path,label,note\n00.png,dog,by hand\nelsewhere/x.png,cat,kept\n02.png,cat,\n")
    version = client.get("api/state").json()["version"]
    assert session.labels() == {0: "dog", 2: "cat"} or session.labels() == {0: "dog", 1: "cat"}
    give(client, p5="bird")
    rows = rows_of(path)
    assert {row["path"]: row["label"] for row in rows}["elsewhere/x.png"] == "cat"
    assert {row["note"] for row in rows if row["path"] == "00.png"} == {"by hand"}
    assert 5 in [item["id"] for item in client.get("api/state", params={"since": version}).json()["changed"]]


def test_what_a_killed_session_was_writing_is_swept(session: Session) -> None:
    folder = session.file.path.parent
    left, others = folder / ".labels.csv.abcd1234.part", folder / ".other.csv.abcd1234.part"
    for part in (left, others):
        part.write_text("path,label\n")
    session.answer({0: "cat"})
    assert not left.exists()
    assert others.exists()


def test_two_sessions_on_one_file_lose_nothing(session: Session, photos: FileImages) -> None:
    other = Session(photos, session.file.path)
    session.answer({0: "cat"})
    other.answer({1: "dog"})
    session.answer({2: "cat"})
    other.refresh()
    assert other.labels() == session.labels() == {0: "cat", 1: "dog", 2: "cat"}


def test_a_broken_file_is_not_overwritten(client: TestClient, session: Session) -> None:
    give(client, p0="cat")
    session.file.path.write_text("nonsense\n")
    assert "column" in client.get("api/state").json()["file_error"]
    assert give(client, p1="dog").status_code == 400
    assert session.file.path.read_text() == "nonsense\n"
    session.file.path.write_text("path,label\n00.png,cat\n")
    assert client.get("api/state").json()["file_error"] is None
    assert give(client, p1="dog").status_code == 200


def test_names_that_differ_only_in_case_are_one_class(client: TestClient, session: Session) -> None:
    assert client.post("api/classes", json={"name": " CAT "}).json()["name"] == "cat"
    give(client, p0="Cat")
    assert rows_of(session.file.path)[0]["label"] == "cat"
    for name in ("", "-1", "x" * 101, "a\x00b"):
        assert client.post("api/classes", json={"name": name}).status_code == 400


def test_strangers_are_refused_and_nothing_is_written(client: TestClient, session: Session, refused: list[str]) -> None:
    base = f"http://127.0.0.1:{PORT}"
    body = {"answers": [{"id": 0, "label": "cat"}]}
    assert client.post(f"{base}/wrong/api/answers", json=body).status_code == 403
    assert client.get(f"{base}/").status_code == 403
    assert client.post("api/answers", json=body, headers={"origin": "http://evil.example"}).status_code == 403
    assert client.get("api/state", headers={"host": "evil.example"}).status_code == 403
    assert client.get("api/state", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.post("api/answers", content=b"x" * (LARGEST + 1)).status_code == 413
    assert client.post("api/answers", content=(b"x" * 9000 for _ in range(9)), headers=AS_JSON).status_code == 413
    assert client.post("api/answers", data={"answers": "x"}).status_code == 400  # a form of another page
    assert len(refused) == 7
    assert not any(TOKEN in line for line in refused)
    assert not session.file.path.exists()


@pytest.mark.parametrize(
    "path",
    ["static/../session.py", "static/..%2f..%2f..%2f..%2fetc%2fpasswd", "thumb/../../labels.csv", "thumb/999",
     "image/-1", "thumb/%2e%2e%2fx", "static/label.py", "api/export/passwd"],
)  # fmt: skip
def test_no_other_file_can_be_read(client: TestClient, path: str) -> None:
    assert client.get(path).status_code in (403, 404)


def test_bad_requests_are_errors_not_crashes(client: TestClient, session: Session) -> None:
    bodies: list[dict[str, Any]] = [
        {}, {"answers": []}, {"answers": ["x"]}, {"answers": [{"id": "0", "label": "cat"}]},
        {"answers": [{"id": True, "label": "cat"}]}, {"answers": [{"id": 99, "label": "cat"}]},
        {"answers": [{"id": 0}]}, {"answers": [{"id": 0, "label": 5}]},
        {"kind": "perhaps", "answers": [{"id": 0, "label": "cat"}]},
    ]  # fmt: skip
    for body in bodies:
        assert client.post("api/answers", json=body).status_code == 400, body
    assert client.get("api/next", params={"n": "many"}).status_code == 400
    assert client.post("api/answers", content=b"{", headers=AS_JSON).status_code == 400
    assert not session.file.path.exists()


def test_pages_run_no_foreign_code(client: TestClient) -> None:
    for path in ("", "static/label.js", "static/page.css", "api/state", "thumb/0"):
        found = client.get(path)
        assert found.status_code == 200, path
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["referrer-policy"] == "no-referrer"
    text = client.get("").text
    assert "http" not in text.replace("http-equiv", "")
    assert "style=" not in text
    assert "onclick" not in text


def test_images_are_small_jpegs(client: TestClient) -> None:
    found = client.get("thumb/0")
    assert found.headers["content-type"] == "image/jpeg"
    assert found.content[:2] == b"\xff\xd8"
    assert client.get("image/0").status_code == 200


def test_suggestions_come_first_and_answered_photos_never(client: TestClient, session: Session) -> None:
    assert client.get("api/next").json()["items"] == []  # nothing before the process has looked at the photos
    entries = [
        {"row": 7, "kind": "typical", "why": "typical", "same": [8, 9]},
        {"row": 3, "kind": "new", "why": "", "same": []},
    ]
    take(session, {"event": "suggestions", "suggestions": entries})
    take(session, {"event": "ready", "unreadable": [0]})
    items = client.get("api/next", params={"n": 3}).json()["items"]
    assert [item["id"] for item in items] == [7, 3, 1]
    assert items[0]["same"] == [8, 9]
    give(client, p7="cat", p8="cat")
    items = client.get("api/next", params={"n": 50, "without": "3"}).json()["items"]
    assert {item["id"] for item in items} == set(range(12)) - {0, 3, 7, 8}


def test_guesses_are_shown_surest_first_and_confirmed_together(client: TestClient, session: Session) -> None:
    n = len(session.photos)
    message = {
        "event": "round", "labels": 4, "seconds": 1.0, "classes": ["cat", "dog"], "guesses": [i % 2 for i in range(n)],
        "confidence": np.linspace(0.5, 0.9, n).tolist(), "estimate": {"accuracy": 0.8, "low": 0.7, "high": 0.9},
        "weakest": ["dog"],
    }  # fmt: skip
    take(session, message)
    found = client.get("api/class", params={"name": "dog", "n": 4}).json()
    assert [item["id"] for item in found["items"]] == [11, 9, 7, 5]
    assert found["total"] == 6
    give(client, p11="dog", p9="dog")
    assert client.get("api/class", params={"name": "dog"}).json()["total"] == 4
    state = client.get("api/state").json()
    assert {one["name"]: one["guesses"] for one in state["classes"]} == {"cat": 6, "dog": 4}
    assert state["rounds"][-1]["estimate"]["accuracy"] == 0.8
    shown = client.get("api/class", params={"name": "dog", "kind": "labeled"}).json()["items"]
    assert {item["id"] for item in shown} == {11, 9}


def test_label_studio_and_csv_there_and_back(client: TestClient, session: Session, photos: FileImages) -> None:
    give(client, p0="cat", p1="dog")
    give(client, "none", p2="")
    for name in ("label-studio.json", "labels.csv"):
        text = client.get(f"api/export/{name}").text
        labels, unused = from_text(text, photos.names)
        assert labels == {photos.names[0]: "cat", photos.names[1]: "dog"}
        assert unused == 1
    session.answer({0: None, 1: None, 2: None}, "clear")
    task = {
        "data": {"image": "/data/upload/1/1a2b3c4d-sub/01.png"},
        "annotations": [{"result": [{"value": {"choices": ["bird"]}}]}],
    }
    minimal = {"image": "http://localhost:8080/data/local-files/?d=photos/00.png", "choice": "cat"}
    found = client.post(
        "api/import", json={"text": json.dumps([task, minimal, {"image": "gone.png", "choice": "cat"}])}
    ).json()
    assert (found["saved"], found["unused"]) == (2, 1)
    assert session.labels() == {0: "cat", photos.names.index("sub/01.png"): "bird"}
    assert client.post("api/import", json={"text": "a,b\n1,2\n"}).status_code == 400
    assert client.post("api/import", json={"text": "[1]"}).status_code == 400


def test_exports_are_written_with_every_answer() -> None:
    answers = {"a,b.png": Answer("cat"), "c.png": Answer(other="none")}
    assert rows_of_text(to_csv(answers))[0] == {"path": "a,b.png", "label": "cat", "answer": ""}
    tasks = json.loads(to_label_studio(answers))
    assert tasks[0]["annotations"][0]["result"][0]["value"] == {"choices": ["cat"]}
    assert tasks[1]["annotations"][0]["was_cancelled"]


def rows_of_text(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_a_file_with_two_rows_of_one_image_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("path,label\na.png,cat\n./a.png,dog\n")
    file = AnswerFile(path, lambda text: "a.png")
    with pytest.raises(UserError, match=r"line 3: 'a\.png' already has a row, line 2"):
        file.refresh()


def test_tokens_are_long_and_new() -> None:
    assert len(new_token()) >= 20
    assert new_token() != new_token()


@pytest.mark.parametrize(
    "text", ['[{"annotations": 3}]', '[{"annotations": [{"result": true}]}]', "[" * 2_000, '{"data": 1}']
)
def test_an_import_of_anything_is_an_answer(client: TestClient, text: str) -> None:
    """Found by hostile inputs: annotations that are no list ended in an error of the server."""
    assert client.post("api/import", json={"text": text}).status_code in (200, 400)
