"""Networks in OpenVINO and onnxruntime: the answers of torch, from a file that is checked, or none at all."""

from __future__ import annotations

import errno
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from selftrain.config.resolve import make_settings
from selftrain.console import Reporter
from selftrain.data.images import ArrayImages
from selftrain.errors import UserError
from selftrain.nn import onnx_engine, runtimes
from selftrain.nn.fold import fold_batch_norm
from selftrain.nn.onnx_engine import is_exported, make_onnx
from selftrain.nn.runtimes import OPENVINO, RUNTIMES, Runtime, why_not_bf16
from selftrain.runs import extractor as extractor_module
from selftrain.runs.network_inputs import make_extractor

pytest.importorskip("onnxruntime")
EXAMPLE = torch.randint(256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU6(), nn.AdaptiveAvgPool2d(1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x.float() / 255).flatten(1)
        return out


class Random(Small):
    """Answers differently each time, so no file can agree with it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(())


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Small().eval()


@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("runtime", RUNTIMES, ids=lambda runtime: runtime.key)
def test_answers_are_those_of_torch(net: nn.Module, tmp_path: Path, runtime: Runtime, precision: str) -> None:
    pytest.importorskip(runtime.library)
    if precision == "bf16" and (runtime is not OPENVINO or why_not_bf16("auto", "cpu")):
        pytest.skip("only OpenVINO on some processors has numbers of 16 bits")
    assert is_exported(tmp_path, "net") is None
    made = make_onnx(net, EXAMPLE, tmp_path, "net", runtime, precision)
    assert made is not None
    assert is_exported(tmp_path, "net") is True
    close = 1e-5 if precision == "32" else 2e-2
    torch.testing.assert_close(made(EXAMPLE), net(EXAMPLE), atol=close, rtol=close)
    with ThreadPoolExecutor(4) as pool:
        assert all(torch.equal(found, made(EXAMPLE)) for found in pool.map(made, [EXAMPLE] * 16))
    for i in range(4):  # an answer does not depend on the place in a batch, nor on the others
        order = [i, (i + 1) % 4, (i + 2) % 4, (i + 2) % 4]
        assert torch.equal(made(EXAMPLE[order])[0], made(EXAMPLE)[i])


def test_batch_norms_are_folded_as_in_exported_models(tmp_path: Path) -> None:
    """Runtimes fold them as well, but round otherwise: a run and its exported file would differ in the fourth digit."""
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3))))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.running_mean, module.running_var, module.weight.data, module.bias.data):
                assert values is not None
                values.uniform_(0.3, 3)
    net = net.eval()
    pixels = EXAMPLE.float()
    made = make_onnx(net, pixels, tmp_path, "net")
    folded = make_onnx(fold_batch_norm(net, pixels, pack=False), pixels, tmp_path, "folded")
    assert made is not None
    assert folded is not None
    assert torch.equal(made(pixels), folded(pixels))


def test_the_file_is_used_again_unless_it_is_damaged(
    net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_onnx(net, EXAMPLE, tmp_path, "net")
    exports: list[Any] = []
    write = onnx_engine._write
    monkeypatch.setattr(onnx_engine, "_write", lambda *args: (exports.append(args), write(*args)))  # type: ignore[func-returns-value]
    assert make_onnx(net, EXAMPLE, tmp_path, "net") is not None
    assert exports == []
    for harm in (b"", b"x" * 500):
        (tmp_path / "net.onnx").write_bytes(harm)
        made = make_onnx(net, EXAMPLE, tmp_path, "net")
        assert made is not None
        torch.testing.assert_close(made(EXAMPLE), net(EXAMPLE), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        next(net.parameters()).mul_(2)  # other weights under the same name
    made = make_onnx(net, EXAMPLE, tmp_path, "net")
    assert made is not None
    torch.testing.assert_close(made(EXAMPLE), net(EXAMPLE), atol=1e-5, rtol=1e-5)
    assert len(exports) == 3


def test_what_cannot_be_run_is_remembered(tmp_path: Path) -> None:
    assert make_onnx(Random().eval(), EXAMPLE, tmp_path, "net") is None
    assert is_exported(tmp_path, "net") is False
    assert "answers differ" in (tmp_path / "net.txt").read_text()


def test_a_folder_that_cannot_be_written(net: nn.Module, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    made = make_onnx(net, EXAMPLE, tmp_path / "file", "net")
    assert made is not None
    torch.testing.assert_close(made(EXAMPLE), net(EXAMPLE), atol=1e-5, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("best", RUNTIMES, ids=lambda runtime: runtime.key)
def test_features_of_both_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: Runtime) -> None:
    pytest.importorskip(best.library)
    monkeypatch.setattr(extractor_module, "is_installed", lambda runtime: runtime in RUNTIMES[RUNTIMES.index(best) :])
    images = ArrayImages(np.random.default_rng(0).integers(0, 256, (5, 40, 40, 3), dtype=np.uint8))
    found, keys = [], []
    for engine in ("torch", best.key, "auto"):
        chosen = {"data.engine": engine, "data.size": 32, "data.cache": str(tmp_path), "data.cache_dtype": "float32"}
        extractor = make_extractor(make_settings("frozen", chosen), None, torch.device("cpu"), Reporter(quiet=True))
        found.append(np.asarray(extractor.features(images, ("clean", "strong_1"))))
        keys.append(extractor.about)
    assert np.abs(found[0] - found[1]).max() < 1e-4 * np.abs(found[0]).max()
    assert np.array_equal(found[1], found[2])  # stored once
    assert keys[0]["engine"].startswith("torch")
    assert keys[1] == keys[2] != keys[0]
    alone = np.asarray(extractor.features(images.subset([3]), ("clean", "strong_1"), store=False))
    assert np.array_equal(alone[0], found[1][3])
    monkeypatch.setattr(extractor_module, "is_installed", lambda _: False)
    settings = make_settings("frozen", {"data.engine": best.key, "data.size": 32, "data.cache": str(tmp_path)})
    extractor = make_extractor(settings, None, torch.device("cpu"), Reporter(quiet=True))
    with pytest.raises(
        UserError, match=rf"data.engine={best.key}: {best.library} is not installed.*selftrain\[{best.key}\]"
    ):
        extractor.features(images, ("clean",))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 12582912 bytes."),
        ValueError("Error parsing message with type 'onnx.ModelProto': Arena alloc failed"),
        RuntimeError("Exception during initialization: std::bad_alloc"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
    ids=["torch", "onnx", "onnxruntime", "disk"],
)
def test_a_machine_without_memory_says_nothing_about_the_network(
    net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It used to be written down as a network that onnxruntime cannot run: features then came from torch, for good."""

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(onnx_engine, "_write", fail)
        if isinstance(error, OSError):
            patch.setattr(onnx_engine, "replacing", lambda file: nullcontext(file))
        with pytest.raises((MemoryError, OSError)):
            make_onnx(net, EXAMPLE, tmp_path, "net")
        assert is_exported(tmp_path, "net") is None
    assert make_onnx(net, EXAMPLE, tmp_path, "net") is not None


def test_a_failure_that_does_not_repeat_is_forgotten(
    net: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = onnx_engine._write
    calls: list[Any] = []

    def once(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("an error of an unknown kind")
        write(*args)

    monkeypatch.setattr(onnx_engine, "_write", once)
    assert make_onnx(net, EXAMPLE, tmp_path, "net") is not None
    assert is_exported(tmp_path, "net") is True


def test_features_with_numbers_of_16_bits(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    if why_not_bf16("auto", "cpu"):
        pytest.skip("this processor has no such numbers")
    images = ArrayImages(np.random.default_rng(0).integers(0, 256, (5, 40, 40, 3), dtype=np.uint8))
    found, keys = [], []
    for precision in ("32", "bf16"):
        chosen = {"data.precision": precision, "data.size": 32, "data.cache": str(tmp_path)}
        extractor = make_extractor(make_settings("frozen", chosen), None, torch.device("cpu"), Reporter(quiet=True))
        extractor.__dict__["runtime"] = OPENVINO
        found.append(np.asarray(extractor.features(images, ("clean",)), np.float32)[:, 0])
        keys.append(extractor.about["precision"])
        assert extractor.card.precision == precision  # predictions are then made in the same way
    cosine = (found[0] * found[1]).sum(1) / np.linalg.norm(found[0], axis=1) / np.linalg.norm(found[1], axis=1)
    assert 0.95 < cosine.min() < 1
    assert keys == ["float32", "bfloat16"]


def test_numbers_of_16_bits_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_not_bf16("auto", "cuda") == ""
    assert "a backbone in a file" in why_not_bf16("auto", "cpu", trainable=False)
    assert why_not_bf16("torch", "cpu") == "on a CPU it needs data.engine=openvino, not torch."
    monkeypatch.setattr(runtimes, "is_installed", lambda _: False)
    assert 'pip install "selftrain[openvino]"' in why_not_bf16("auto", "cpu")
    settings = make_settings("frozen", {"data.precision": "bf16", "data.size": 32})
    with pytest.raises(UserError, match=r"data\.precision=bf16: on a CPU it needs OpenVINO"):
        make_extractor(settings, None, torch.device("cpu"), Reporter(quiet=True))
    monkeypatch.setattr(runtimes, "is_installed", lambda _: True)
    monkeypatch.setattr(runtimes, "openvino_core", OldProcessor)
    assert "the processor has no such numbers" in why_not_bf16("auto", "cpu")


class OldProcessor:
    def get_property(self, device: str, name: str) -> list[str]:
        return ["FP32", "INT8"]


def test_openvino_tells_nobody_that_it_was_imported() -> None:
    """Its telemetry looks for the address of a service when the package is imported."""
    pytest.importorskip("openvino_telemetry")
    loads = "from selftrain.nn.runtimes import openvino_core; openvino_core()"
    shown = f"import sys; {loads}; print(any('openvino_telemetry' in name for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, timeout=200, check=True)
    assert done.stdout.strip() == b"False"


def test_a_worker_without_the_library_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings("frozen", {"data.size": 32, "data.cache": str(tmp_path)})
    extractor = make_extractor(settings, None, torch.device("cpu"), Reporter(quiet=True))
    assert extractor.about
    worker = extractor.for_workers()
    worker.check_versions()
    worker.__dict__["runtime"] = OPENVINO  # as the machine that started the command has found
    with pytest.raises(UserError, match="openvino is not installed, but the machine that started the command has"):
        worker.check_versions()
    extractor.device = torch.device("meta")
    with pytest.raises(UserError, match=r"this machine would use its GPU.* CUDA_VISIBLE_DEVICES=-1"):
        extractor.for_workers()
