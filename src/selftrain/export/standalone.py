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
PIXELS_PER_PASS = 3 << 16
"""of the crops that are computed together: with more, activations leave the cache"""
LARGEST = 50_000_000
"""pixels of the largest image that is unpacked"""
UNKNOWN = "unknown"


class Model:
    """The model, its classes, and the size at which large JPEGs are decoded."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.classes: list[str] = json.loads(metadata["classes"])
        about = json.loads(metadata["selftrain"])
        if about["input"] != "images":
            sys.exit(f"{path}: this model takes features of length {about['dim']}, not images.")
        self.least_side: int = about["least_side"]
        self.crops: dict[str, Any] = about["crops"]
        self.at_once = max(1, PIXELS_PER_PASS // (self.crops["size"] ** 2 * len(self.crops["shares"])))
        self.has_novelty: bool = about["novelty"]

    def __call__(self, crops: list[Any]) -> list[Any]:
        """Return probabilities (N, K) and perhaps novelty (N,) of the crops of images.

        The model resizes images by itself if it is given ``images``, uint8 (N, H, W, 3). Pillow does the same faster.
        """
        given = {"images": np.zeros((1, 1, 1, 3), np.uint8), "crops": np.stack(crops)}
        outputs: list[Any] = self.session.run(None, given)
        return outputs

    def crops_of(self, image: Any) -> Any:
        """Return the central crops of an image, uint8 (crops, channels, size, size)."""
        image = image.convert("L") if self.crops["channels"] == 1 else image
        size, method = self.crops["size"], Image.Resampling[self.crops["interpolation"].upper()]
        found = []
        for share in self.crops["shares"]:
            side = min(image.size) * share
            left, upper = (image.width - side) / 2, (image.height - side) / 2
            box = (left, upper, left + side, upper + side)
            crop = np.asarray(image.resize((size, size), method, box=box, reducing_gap=2.0))
            found.append(crop[None] if crop.ndim == 2 else crop.transpose(2, 0, 1))
        return np.stack(found)


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
    """Return an image as upright RGB; a large JPEG is decoded at 1/2, 1/4 or 1/8 of its size."""
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
    return image.transpose(Image.Transpose(UPRIGHT[turn])) if turn in UPRIGHT else image


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


def answered(model: Model, root: Path, names: list[str]) -> list[tuple[str, Any]]:
    """Return the outputs for each image, or why it cannot be read."""
    found: dict[str, Any] = {}
    crops: dict[str, Any] = {}
    for name in names:
        try:
            crops[name] = model.crops_of(read_image(root / name, model.least_side))  # keeps no whole image
        except Exception as error:
            found[name] = str(error)
    if crops:
        outputs = model(list(crops.values()))
        found |= {name: [output[i] for output in outputs] for i, name in enumerate(crops)}
    return [(name, found[name]) for name in names]


def answers(model: Model, root: Path, names: list[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield the name and the outputs of each readable image, in order; name the others."""
    threads = os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:  # each with a batch of its own
        ahead: deque[Any] = deque()
        batches = [names[i : i + model.at_once] for i in range(0, len(names), model.at_once)]
        for batch in [*batches, *[[]] * threads]:
            ahead.append(pool.submit(answered, model, root, batch))
            for name, found in ahead.popleft().result() if len(ahead) > threads else ():
                if isinstance(found, str):
                    print(f"left out {str(root / name)!r}: {found}", file=sys.stderr)  # names may hold line breaks
                else:
                    yield name, found


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
        for name, (p, *more) in answers(model, root, names):
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
