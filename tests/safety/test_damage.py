"""Damage is noticed: single flipped bits, numbers that are not finite, files of other models."""

from __future__ import annotations

import importlib.metadata
import io
import json
import random
import shutil
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import selftrain
from selftrain.config.resolve import make_settings
from selftrain.console import Reporter
from selftrain.engine.checkpoint import load_checkpoint, save_checkpoint
from selftrain.errors import UserError
from selftrain.nn import weights as weight_files
from selftrain.nn.backbones import build_backbone
from selftrain.nn.offline import offline_file
from selftrain.runs.layout import RunLayout
from selftrain.runs.model import load_model
from selftrain.runs.network_inputs import make_extractor
from tests.folders import layout_2
from tests.runs.small_runs import train_small


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return layout_2(tmp_path_factory.mktemp("data") / "data")


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_small(data, tmp_path_factory.mktemp("runs") / "run", labels_per_class=2).folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def flip_bit(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    place = rng.randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)


def test_every_flipped_bit_of_a_checkpoint_is_refused(run: Path) -> None:
    folder = run / "checkpoints"
    files = sorted(folder.iterdir())
    assert [file.suffix for file in files] == [".json", ".safetensors"]
    rng = random.Random(0)
    for i in range(40):
        file = files[i % 2]
        whole = file.read_bytes()
        flip_bit(file, rng)
        with pytest.raises(UserError, match="to start the run again from its first step"):
            load_checkpoint(folder)
        file.write_bytes(whole)
    assert load_checkpoint(folder) is not None


def test_every_flipped_bit_of_a_model_is_refused(run: Path) -> None:
    folder, rng = run / "model", random.Random(1)
    for i in range(30):
        file = folder / ("model.safetensors" if i % 3 else "model.json")
        whole = file.read_bytes()
        flip_bit(file, rng)
        with pytest.raises(UserError):
            load_model(folder)
        file.write_bytes(whole)
    load_model(folder)


def test_a_model_that_was_edited_says_how_to_go_on(run: Path) -> None:
    card = run / "model" / "model.json"
    card.write_text(card.read_text().replace('"ant"', '"termite"'))
    with pytest.raises(UserError, match="remove the line 'checksum'"):
        load_model(card.parent)
    values = json.loads(card.read_text())
    del values["checksum"]
    card.write_text(json.dumps(values))
    assert load_model(card.parent)[1].classes[0] == "termite"


def test_models_of_older_versions_have_no_checksums(run: Path) -> None:
    card = run / "model" / "model.json"
    values = json.loads(card.read_text())
    del values["checksum"], values["checksums"]
    card.write_text(json.dumps(values))
    load_model(card.parent)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(run: Path, data: Path, number: float) -> None:
    card, file = run / "model" / "model.json", run / "model" / "model.safetensors"
    values = json.loads(card.read_text())
    del values["checksum"], values["checksums"]
    card.write_text(json.dumps(values))
    state = safetensors.torch.load_file(file)
    state["h.bias"][0] = number
    safetensors.torch.save_file(state, file)
    with pytest.raises(UserError, match=r"h\.bias holds numbers that are not finite"):
        selftrain.Run(run).predict(data / "test")


def test_a_checkpoint_keeps_every_kind_of_value(tmp_path: Path) -> None:
    base = torch.randn(4, 3, 5, 5)
    state: dict[Any, Any] = {
        "tensors": [base, base.to(memory_format=torch.channels_last), base[:2], torch.zeros(0, 3), torch.tensor(True)],
        "twice": (base, base), 0: {"betas": (0.9, 0.999), 3: None}, "inf": float("inf"), "tiny": 5e-324,
        "half": torch.ones(2, dtype=torch.bfloat16), "text": "ü\ud800", "big": 2**70, "flag": True,
        "empty": {}, "none": [],
    }  # fmt: skip
    save_checkpoint(tmp_path / "checkpoints", state)
    found: Any = load_checkpoint(tmp_path / "checkpoints")
    for one, other in zip(state["tensors"], found["tensors"], strict=True):
        assert torch.equal(one, other)
        assert one.dtype == other.dtype
    assert found["tensors"][1].is_contiguous(memory_format=torch.channels_last)
    assert all(torch.equal(tensor, base) for tensor in found["twice"])
    assert found["half"].dtype == torch.bfloat16
    for name in (0, "inf", "tiny", "text", "big", "flag", "empty", "none"):
        assert found[name] == state[name]
        assert type(found[name]) is type(state[name])


def test_older_states_are_removed_only_after_the_new_one_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in range(3):
        save_checkpoint(folder, {"step": step, "x": torch.full((3,), float(step))})
    assert len(list(folder.iterdir())) == 2
    found = load_checkpoint(folder)
    assert found is not None
    assert found["step"] == 2
    (folder / "state-00000000.safetensors").write_bytes(b"of a killed process")
    assert load_checkpoint(folder) is not None


def test_a_checkpoint_of_an_older_version_still_resumes(data: Path, finished: Path, tmp_path: Path) -> None:
    def stop(row: dict[str, object]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_small(data, tmp_path / "run", labels_per_class=2, watch=stop, settings={"train.checkpoint_every": 2})
    folder = tmp_path / "run" / "checkpoints"
    state = load_checkpoint(folder)
    assert state is not None
    shutil.rmtree(folder)
    folder.mkdir()
    torch.save(state, folder / "last.pt")
    selftrain.train(out=tmp_path / "run", resume=True, quiet=True)
    assert not (folder / "last.pt").exists()
    name = "model/model.safetensors"
    assert (tmp_path / "run" / name).read_bytes() == (finished / name).read_bytes()


def test_pickles_are_refused_where_torch_may_run_their_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"net": torch.zeros(2)}, tmp_path / "last.pt")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "own.pth")
    monkeypatch.setattr(weight_files, "PICKLES_ARE_SAFE", False)
    monkeypatch.setattr("selftrain.engine.checkpoint.PICKLES_ARE_SAFE", False)
    with pytest.raises(UserError, match=r"cannot read safely.* Install torch 2\.10 or newer"):
        load_checkpoint(tmp_path)
    with pytest.raises(UserError, match=r"own\.pth: refused.*save the weights as \.safetensors"):
        weight_files.read_checkpoint(tmp_path / "own.pth")
    file = offline_file("lite0")
    assert file is None or "_conv_stem.weight" in weight_files.read_checkpoint(file)


def test_a_number_in_model_json_takes_no_memory(run: Path) -> None:
    card = run / "model" / "model.json"
    values = json.loads(card.read_text())
    for name, value in (("bottleneck", 2_000_000), ("bottleneck", 60_000), ("head_width", -1), ("channels", "3")):
        changed = {key: item for key, item in values.items() if key != "checksum"} | {name: value}
        card.write_text(json.dumps(changed))
        with pytest.raises(UserError, match=rf"{name}: expected|does not belong to its model\.json"):
            load_model(card.parent)


@pytest.mark.parametrize("lying", [False, True])
def test_a_small_file_of_outputs_takes_no_memory(run: Path, lying: bool) -> None:
    """A file of 2.9 MB took 3.4 GB: its arrays are compressed zeros, or its header claims a shape that is not there."""
    layout, header = RunLayout(run), io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (800_000_000 if lying else 80_000_000,)}
    )
    with zipfile.ZipFile(layout.outputs, "w", zipfile.ZIP_DEFLATED) as file, file.open("eval_truth.npy", "w") as member:
        member.write(header.getvalue())
        for _ in range(1 if lying else 80):
            member.write(bytes(4_000_000))
    assert layout.outputs.stat().st_size < 1_000_000
    tracemalloc.start()
    with pytest.raises(UserError, match=r"outputs\.npz(: too large|, array 'eval_truth')"):
        layout.read_outputs()
    assert tracemalloc.get_traced_memory()[1] < 64_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("engine", ["torch", "onnx"])
def test_versions_and_folding_are_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """Features of another version of the engine, or of another form of the network, are rounded differently."""
    if engine == "onnx":
        pytest.importorskip("onnxruntime")
        monkeypatch.setattr("selftrain.runs.extractor.is_installed", lambda runtime: runtime.key == "onnx")
    state = build_backbone("wrn-tiny", weights="none", size=16).state_dict()
    safetensors.torch.save_file(state, tmp_path / "w.safetensors")
    given = {"network.backbone": "wrn-tiny", "network.weights": str(tmp_path / "w.safetensors"), "data.size": 16}
    settings = make_settings("frozen", {**given, "data.engine": engine, "data.cache": str(tmp_path / "cache")})
    about = make_extractor(settings, None, torch.device("cpu"), Reporter(quiet=True)).about
    version = torch.__version__ if engine == "torch" else importlib.metadata.version("onnxruntime")
    assert version in about["engine"]
    assert about["folding" if engine == "torch" else "precision"]
    assert len(about["weights"]) >= 16


def test_the_hash_of_a_backbone_is_that_of_its_weights(tmp_path: Path) -> None:
    from tests.safety.made import frozen_model

    honest, poisoned = (frozen_model(tmp_path / name) for name in ("honest", "poisoned"))
    known = load_model(honest)[1].weights
    state = safetensors.torch.load_file(poisoned / "model.safetensors")
    name = next(name for name in state if name.startswith("encoder.backbone.") and state[name].ndim == 4)
    state[name] = -state[name]
    safetensors.torch.save_file(state, poisoned / "model.safetensors")
    values = json.loads((poisoned / "model.json").read_text())
    del values["checksum"], values["checksums"]
    (poisoned / "model.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match="its backbone has other weights than the one that it was trained on"):
        load_model(poisoned)
    (poisoned / "model.json").write_text(json.dumps({**values, "weights": ""}))
    assert load_model(poisoned)[1].weights != known
    assert np.isfinite(next(load_model(honest)[0].parameters()).detach().numpy()).all()
