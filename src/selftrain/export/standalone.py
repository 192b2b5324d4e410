"""Label images with the model beside this file: python predict.py IMAGES -o predictions.csv

Needs onnxruntime, NumPy and Pillow, and nothing else. IMAGES is a folder, which is searched with its subfolders, or one
or more image files. The columns of the CSV file are path, label, confidence, novelty (if the model has it) and
prob_<class> for each class. An image with a novelty above 0.5 looks like none of the classes,
and its label is unknown.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, features

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read when onnxruntime is loaded
import onnxruntime

AVIF = ["AVIF"] if "avif" in features.modules and features.check("avif") else []
FORMATS = ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", *AVIF]
SUFFIXES = (
    "png",
    "jpg",
    "jpeg",
    "jfif",
    "jpe",
    "webp",
    "gif",
    "bmp",
    "tif",
    "tiff",
    "ppm",
    "pgm",
    *map(str.lower, AVIF),
)
UPRIGHT = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}  # EXIF orientation -> Image.Transpose
MOST_IMAGES, MOST_PIXELS, AHEAD = 16, 1 << 24, 32
LARGEST = 50_000_000
"""pixels of the largest image that is unpacked"""
UNKNOWN = "unknown"


class Model:
    """The model, its classes, and the size at which large JPEGs are decoded."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.classes: list[str] = json.loads(metadata["classes"])
        about = json.loads(metadata["selftrain"])
        self.least_side: int = about["least_side"]
        self.has_novelty: bool = about["novelty"]
        if about["input"] != "images":
            sys.exit(f"{path}: this model takes features of length {about['dim']}, not images.")

    def __call__(self, images: Any) -> list[Any]:
        """Return probabilities (N, K) and perhaps novelty (N,) of RGB images of one size, uint8 (N, H, W, 3)."""
        outputs: list[Any] = self.session.run(None, {self.session.get_inputs()[0].name: images})
        return outputs


def find_images(arguments: list[str]) -> tuple[Path, list[str]]:
    """Return a folder and the paths of the images in it."""
    if len(arguments) > 1 or not Path(arguments[0]).is_dir():
        return Path(), arguments
    root, found = Path(arguments[0]), []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__MACOSX"]
        names = (name for name in files if name.lower().endswith(tuple(f".{end}" for end in SUFFIXES)))
        found += [Path(folder, name).relative_to(root).as_posix() for name in names if not name.startswith(".")]
    return root, sorted(found)


def read_image(path: Path, least_side: int) -> Any:
    """Return an image as upright RGB, uint8 (H, W, 3); a large JPEG is decoded at 1/2, 1/4 or 1/8 of its size."""
    if not path.is_file():
        raise ValueError("it is not a regular file")  # a pipe would be waited for
    with Image.open(path, formats=FORMATS) as opened:
        opened.draft("", (least_side, least_side))
        if opened.width * opened.height > LARGEST:
            raise ValueError(f"it has {opened.width * opened.height:,} pixels, more than {LARGEST:,}")
        opened.load()
        try:
            turn = opened.getexif().get(0x0112, 1)
        except Exception:  # broken metadata does not make an image unreadable
            turn = 1
        image = eight_bits(opened).convert("RGB")
    return np.asarray(image.transpose(Image.Transpose(UPRIGHT[turn])) if turn in UPRIGHT else image)


def eight_bits(image: Any) -> Any:
    """Return wide grey values (16 bits, 32 bits, float) as 8 bits, and transparency blended onto white."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        grey = scaled(values, image.mode, known_range=image.format in ("PNG", "PPM"))
        transparent = image.info.get("transparency")
        return Image.fromarray(np.where(values == transparent, np.uint8(255), grey) if transparent else grey)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), layer)
    return image


def scaled(values: Any, mode: str, known_range: bool) -> Any:
    """Return grey values of any width as 8 bits, by the range of the format if it defines one, else by the values'."""
    if mode.startswith("I;16") or (mode == "I" and known_range):
        return (values >> 8).astype(np.uint8)
    if mode == "F":
        values = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if mode == "F" and low >= 0 and high <= 1:
        return np.rint(values * 255).astype(np.uint8)
    if low >= 0 and high <= 255:
        return np.rint(values).astype(np.uint8)
    if mode == "I" and low >= 0 and high <= 65535:
        return (values >> 8).astype(np.uint8)
    return np.rint((values.astype(np.float64) - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)


def decoded(root: Path, names: list[str], least_side: int) -> Iterator[tuple[str, Any]]:
    """Yield the name and the pixels of each readable image, decoded ahead in threads; name the others."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        ahead: deque[Any] = deque()
        for place, name in enumerate([*names, *[""] * AHEAD]):
            if name:
                ahead.append((name, pool.submit(read_image, root / name, least_side)))
            if ahead and place >= AHEAD:
                done, future = ahead.popleft()
                try:
                    yield done, future.result()
                except Exception as error:
                    print(f"left out {str(root / done)!r}: {error}", file=sys.stderr)  # names may hold line breaks


def answers(model: Model, images: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the name and the outputs of each image; neighbouring images of one size share a pass."""
    batch: list[tuple[str, Any]] = []

    def run() -> Iterator[tuple[str, list[Any]]]:
        outputs = model(np.stack([pixels for _, pixels in batch]))
        yield from ((name, [output[i] for output in outputs]) for i, (name, _) in enumerate(batch))
        batch.clear()

    for name, image in images:
        full = len(batch) == MOST_IMAGES or (len(batch) + 1) * image.size > 3 * MOST_PIXELS
        if batch and (full or batch[0][1].shape != image.shape):
            yield from run()
        batch.append((name, image))
    if batch:
        yield from run()


def cell(text: str) -> str:
    """Return text that no spreadsheet takes for a formula: formulas get an apostrophe in front."""
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text[:1] in tuple("=+-@\t\r\n") else text
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("images", nargs="+", help="a folder, searched with its subfolders, or image files")
    parser.add_argument("-o", "--output", default="predictions.csv", help="CSV file to write")
    parser.add_argument("--model", type=Path, default=Path(__file__).with_name("MODEL"), help="the .onnx file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # Pillow's remarks on odd files
    root, names = find_images(options.images)
    if not names:
        sys.exit(f"error: {options.images[0]}: there are no images in it ({' '.join(SUFFIXES)}).")
    model, labeled = Model(options.model), 0
    with open(options.output, "w", newline="", encoding="utf-8", errors="surrogateescape") as file:
        writer = csv.writer(file)
        novelty = ["novelty"] if model.has_novelty else []
        writer.writerow(["path", "label", "confidence", *novelty, *(f"prob_{name}" for name in model.classes)])
        for name, (p, *more) in answers(model, decoded(root, names, model.least_side)):
            numbers = [f"{value:.4f}" for value in more]
            label = model.classes[int(p.argmax())]
            if more and more[0] > 0.5 and UNKNOWN not in model.classes:
                label = UNKNOWN
            writer.writerow([cell(name), cell(label), f"{p.max():.6f}", *numbers, *(f"{value:.6f}" for value in p)])
            labeled += 1
    print(f"{labeled} images labeled in {options.output}", file=sys.stderr)
    sys.exit(0 if labeled else 1)


if __name__ == "__main__":
    main()
