"""Models on the Hugging Face Hub: upload a run's model, and open one that somebody else has uploaded.

Knows nothing of datasets on the hub. A model is JSON and safetensors, so that loading it runs no code; no other file of
a repository is downloaded.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selftrain.console import Reporter
from selftrain.errors import UserError
from selftrain.files import read_json
from selftrain.runs.layout import ModelLayout, RunLayout
from selftrain.runs.model_readme import write_readme
from selftrain.text import first_line

PREFIX = "hf:"
FILES = ("model.json", "model.safetensors", "novelty.safetensors", "README.md")
"""files of a model; no others are uploaded or downloaded"""
MOST_BYTES = 1 << 32
"""size of the largest repository that is downloaded"""
NAME = re.compile(r"[\w.-]+/[\w.-]+")
MOST = {"bottleneck": 65536, "head_width": 65536, "features": 1 << 20, "channels": 64}
"""largest values in the card of a stranger's model; the settings allow no more"""


@dataclass(frozen=True)
class HubModel:
    """A model on the hub, as it is written: ``hf:user/name`` or ``hf:user/name@revision``."""

    repository: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> HubModel:
        """Return the model that a text names; a UserError if it names none."""
        repository, at, revision = text.removeprefix(PREFIX).partition("@")
        if not NAME.fullmatch(repository) or ".." in repository or (at and not re.fullmatch(r"[\w./-]+", revision)):
            raise UserError(
                f"{text!r}: write a model of the Hugging Face Hub as hf:USER/NAME or hf:USER/NAME@REVISION."
            )
        return cls(repository, revision or None)

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}" + (f"@{self.revision}" if self.revision else "")


def push(run: str | Path, repository: str, *, private: bool = False, reporter: Reporter | None = None) -> str:
    """Upload the model of a run and its card, and return the revision that this made."""
    name = HubModel.parse(repository)
    if name.revision:
        raise UserError(f"{repository!r}: a revision is made by the upload; leave out @{name.revision}.")
    folder = RunLayout(Path(run)).model
    files = ModelLayout(folder)
    if not files.card.exists():
        raise UserError(f"{folder}: no trained model here ({files.card.name} is missing). Is the run finished?")
    layout = RunLayout(Path(run))
    write_readme(layout, layout.read_results(), name.repository)
    reporter = reporter or Reporter(quiet=True)
    api = _api()
    try:
        api.create_repo(name.repository, private=private, exist_ok=True, repo_type="model")
        with reporter.progress("uploading", 1, "model") as bar:
            made = api.upload_folder(
                repo_id=name.repository, folder_path=folder, allow_patterns=list(FILES),
                commit_message="Upload a model of selftrain",
            )  # fmt: skip
            bar.reach(1)
    except Exception as error:
        raise _problem(name, error, "uploaded") from None
    revision = str(made.oid)
    reporter.say(f"uploaded {name}: 'selftrain predict {name}@{revision} IMAGES' uses exactly this model")
    return revision


def pull(text: str, *, reporter: Reporter | None = None) -> Path:
    """Download a model, unless this revision is in the cache already, and return its folder."""
    name = HubModel.parse(text)
    reporter = reporter or Reporter(quiet=True)
    hub = _hub()
    if name.revision and re.fullmatch(r"[0-9a-f]{40}", name.revision) and (kept := _kept(hub, name)) is not None:
        return kept
    try:
        about = _api().model_info(name.repository, revision=name.revision, files_metadata=True)
    except Exception as error:
        raise _problem(name, error, "opened") from None
    sizes = {one.rfilename: one.size or 0 for one in about.siblings or () if one.rfilename in FILES}
    if not {"model.json", "model.safetensors"} <= sizes.keys():
        raise UserError(f"{name}: not a model of selftrain (model.json or model.safetensors is missing).")
    if sum(sizes.values()) > MOST_BYTES:
        raise UserError(f"{name}: {sum(sizes.values()) / 2**30:.1f} GiB; models of more than 4 GiB are not downloaded.")
    try:
        with reporter.progress("downloading", 1, "model") as bar:
            folder = Path(hub.snapshot_download(
                name.repository, revision=about.sha, allow_patterns=list(FILES), endpoint=_endpoint(),
            ))  # fmt: skip
            bar.reach(1)
    except Exception as error:
        raise _problem(name, error, "downloaded") from None
    if name.revision != about.sha:
        reporter.say(f"{name} is at revision {about.sha}; write {PREFIX}{name.repository}@{about.sha} to keep to it")
    check_card(folder)
    return folder


def check_card(folder: Path) -> None:
    """Raise a UserError if a stranger's card asks for more than any model of selftrain needs."""
    path = ModelLayout(folder).card
    card = read_json(path)
    like = card.get("preprocessing") if isinstance(card, dict) else None
    if not isinstance(card, dict) or not isinstance(like, dict) or not isinstance(card.get("classes"), list):
        raise UserError(f"{path}: not the card of a model.")
    numbers: dict[str, Any] = {name: (card.get(name, 0), most) for name, most in MOST.items()}
    numbers["preprocessing.size"] = (like.get("size", 0), 4096)
    for name, (value, most) in numbers.items():
        if not isinstance(value, int) or not 0 <= value <= most:
            raise UserError(f"{path}: {name} is {value!r}; expected a number from 0 to {most}.")
    if not re.fullmatch(r"[\w.-]*", str(card.get("backbone", ""))):
        raise UserError(f"{path}: backbone {card['backbone']!r} is not the name of a backbone.")


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UserError("huggingface_hub is not installed. Run pip install huggingface_hub.") from None
    return huggingface_hub


def _api() -> Any:
    return _hub().HfApi(endpoint=_endpoint())


def _kept(hub: Any, name: HubModel) -> Path | None:
    """Return the folder of a revision that was downloaded before; None if it was not."""
    found = [hub.try_to_load_from_cache(name.repository, file, revision=name.revision) for file in FILES[:2]]
    if not all(isinstance(one, str) for one in found):
        return None
    folder = Path(found[0]).parent
    check_card(folder)
    return folder


def _problem(name: HubModel, error: Exception, verb: str) -> UserError:
    """Return the error of a failed request in the words of a user."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return UserError(f"{name}: cannot be {verb}; you are not logged in, or may not. Run 'hf auth login'.")
    if status == 404:
        return UserError(f"{name}: the hub has no such model or revision, or it is private. Run 'hf auth login' if so.")
    return UserError(
        f"{name}: cannot be {verb}; the Hugging Face Hub does not answer ({first_line(error)[:200]}). Without a "
        "network, give a model folder, or hf:USER/NAME@REVISION with the complete revision of a model that was "
        "downloaded before."
    )
