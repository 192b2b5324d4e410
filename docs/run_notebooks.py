"""Run the tutorials and keep their outputs: python docs/run_notebooks.py [NAME...], such as photos

Each runs in an empty folder, as a reader would start. The last cell says which revision made the outputs.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "tutorials"


def run(notebook: Any, folder: Path, values: Mapping[str, Any] | None = None) -> Any:
    """Run all cells in a folder; ``values`` replaces those of the cell that is tagged ``parameters``."""
    for cell in notebook.cells if values else ():
        if "parameters" in cell.metadata.get("tags", ()):
            cell.source = "\n".join(f"{name} = {value!r}" for name, value in (values or {}).items())
    os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")  # a hint to install widgets
    return NotebookClient(notebook, timeout=3600, resources={"metadata": {"path": str(folder)}}).execute()


def main() -> None:
    revision = subprocess.check_output(["git", "-C", FOLDER, "rev-parse", "--short=7", "HEAD"], text=True).strip()
    for path in sorted(FOLDER.glob("*.ipynb")):
        if sys.argv[1:] and path.stem not in sys.argv[1:]:
            continue
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            run(notebook, Path(folder))
        stamp = f"`python docs/run_notebooks.py {path.stem}`, revision {revision}, {datetime.date.today()}"
        differ = (
            "Numbers can differ by a point with other versions, with or without onnxruntime, and on other processors."
        )
        notebook.cells[-1].source = f"*The outputs on this page: {stamp}. {differ}*"
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # times of day
        nbformat.write(notebook, path)
        print(path)


if __name__ == "__main__":
    main()
