"""``selftrain cache``: list or delete cached features.

Knows nothing of what features are; it asks the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

Clear = Annotated[bool, typer.Option("--clear", help="Delete caches instead of listing them.")]
Name = Annotated[str | None, typer.Argument(help="Only caches whose name starts with this.")]
Folder = Annotated[Path | None, typer.Option(help="Folder of the caches.", show_default="$SELFTRAIN_CACHE")]


def cache(clear: Clear = False, name: Name = None, folder: Folder = None) -> None:
    """List the cached features of the frozen regime, or delete them.

    Runs, methods and seeds share caches. A cache can be deleted at any time; it is recomputed when needed.
    """
    from selftrain.data.features.store import cache_root

    root = cache_root(str(folder) if folder else None) / "features"
    if clear:
        _clear(root, name)
    else:
        _list(root, name)


def _clear(root: Path, name: str | None) -> None:
    from selftrain.data.features.store import clear_caches

    console = Console()
    deleted, left = clear_caches(root, name)
    freed = sum(info.bytes for info in deleted) / 1e6
    console.print(f"deleted {len(deleted)} caches, {freed:.1f} MB, from {root}", soft_wrap=True)
    for info in left:
        console.print(f"not deleted, in use or read-only: {info.folder}", soft_wrap=True)


def _list(root: Path, name: str | None) -> None:
    from selftrain.data.features.store import list_caches

    table = Table("name", "backbone", "pixels", "images", "views", "MB", "done", "last used, days ago")
    for info in list_caches(root):
        if name is None or info.folder.name.startswith(name):
            about = info.about
            table.add_row(
                info.folder.name,
                str(about.get("backbone", "damaged")),
                str(about.get("preprocessing", {}).get("size", "-")),
                *map(str, about.get("shape", "--")[:2]),
                f"{info.bytes / 1e6:.1f}",
                f"{100 * info.done:.0f}%",
                f"{info.days:.1f}",
            )
    table.caption = str(root)
    Console().print(table)
