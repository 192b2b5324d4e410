"""``selftrain export``: a trained model as one file that runs without torch or selftrain.

Knows nothing of models: it turns options into the arguments of one call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selftrain.cli.options import RunFolder, make_reporter

Output = Annotated[
    Path,
    typer.Option(
        "-o",
        "--output",
        help="File to write: .onnx, .pt2 (torch.export) or .xml (OpenVINO). Beside an .onnx file, predict.py, "
        "classes.json and README.md are written.",
    ),
]
Format = Annotated[
    str | None, typer.Option(metavar="onnx|torch|openvino", help="Format of the file. Default: as its suffix says.")
]
Int8 = Annotated[
    str | None,
    typer.Option(
        metavar="IMAGES",
        help="Compute the backbone in 8-bit integers (ONNX): a smaller file. IMAGES, a folder of images like those to "
        "predict, set the ranges and measure how often the labels stay the same.",
    ),
]


def export(
    context: typer.Context,
    run: RunFolder,
    output: Output = Path("model.onnx"),
    format: Format = None,
    int8: Int8 = None,
) -> None:
    """Write the model as one file for another machine: images in, calibrated probabilities out.

    Resizing and cropping are inside the file. With ONNX, 'python predict.py IMAGES' beside it needs onnxruntime, NumPy
    and Pillow only; 'selftrain predict model.onnx IMAGES' and 'selftrain evaluate model.onnx DATA' work as with a run.
    """
    from selftrain.export.export import export as write

    write(run, output, format=format, int8=int8, reporter=make_reporter(context))
