"""The files beside an exported ONNX model: its classes, its card, and a script that labels images with it.

Knows nothing of models; it writes text.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from selftrain.errors import UserError
from selftrain.export.description import Description
from selftrain.files import write_json, write_text

SCRIPT, CLASSES, README = "predict.py", "classes.json", "README.md"
MARK = '"""Label images with the model beside this file'
"""how our script begins; a file that begins otherwise is not replaced"""


def check_beside(model: Path) -> None:
    """Raise a UserError if files of the user's own are where ours are to be written."""
    script = model.with_name(SCRIPT)
    try:
        ours = script.exists() and script.read_text(encoding="utf-8", errors="replace").startswith(MARK)
    except OSError as error:
        raise UserError(f"{script}: cannot be read ({error.strerror}).") from None
    taken = [name for name in (SCRIPT, CLASSES, README) if model.with_name(name).exists()]
    if taken and not ours:
        raise UserError(
            f"{model.with_name(taken[0])}: this file exists and was not written by 'selftrain export'. Export to a "
            f"folder of its own, such as {model.with_name('exported') / model.name}."
        )


def usage(model: Path, description: Description) -> str:
    """Return how to use an exported model, in Markdown."""
    name = model.name.replace("`", "")
    with_us = f"With selftrain, `{name}` takes the place of a run in `selftrain predict` and `selftrain evaluate`."
    if description.input == "features":
        return f"`{name}` takes feature vectors of length {description.dim}. {with_us}"
    return (
        "```sh\npip install onnxruntime numpy pillow\npython predict.py new/ -o predictions.csv\n```\n\n"
        f"`predict.py` needs neither torch nor selftrain. {with_us}"
    )


def write_beside(model: Path, description: Description, readme: str) -> None:
    """Write ``predict.py``, ``classes.json`` and the model card into the folder of a model."""
    text = files("selftrain.export").joinpath("standalone.py").read_text(encoding="utf-8")
    write_text(model.with_name(SCRIPT), text.replace('"MODEL"', repr(model.name).replace("'", '"')))
    write_text(model.with_name(README), readme)
    write_json(model.with_name(CLASSES), list(description.classes))
