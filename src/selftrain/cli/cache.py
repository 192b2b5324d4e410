"""``selftrain cache``: list, verify, shrink or delete stored features.

Knows nothing of what features are; it asks the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from selftrain.data.features.housekeeping import CacheInfo

Clear = Annotated[bool, typer.Option("--clear", help="Delete stored features.")]
Verify = Annotated[
    bool, typer.Option("--verify", help="Compare every checksum. Damaged features are recomputed when needed.")
]
Shrink = Annotated[
    bool,
    typer.Option(
        "--shrink",
        help="Free space: delete features of folders that no longer exist, damaged ones, duplicates, and caches of "
        "older versions.",
    ),
]
Name = Annotated[str | None, typer.Argument(help="Only those whose name or backbone starts with this.")]
Folder = Annotated[Path | None, typer.Option(help="Folder of the caches.", show_default="$SELFTRAIN_CACHE")]


def cache(
    name: Name = None, clear: Clear = False, verify: Verify = False, shrink: Shrink = False, folder: Folder = None
) -> None:
    """List the stored features of the frozen regime by backbone and folder; or verify, shrink or delete them.

    Runs, methods and seeds share them. They can be deleted at any time, and are recomputed when needed.
    """
    from selftrain.data.cache_folder import cache_root
    from selftrain.errors import UserError

    if clear + verify + shrink > 1:
        raise UserError("--clear, --verify, --shrink: give one of them.")
    root = cache_root(str(folder) if folder else None)
    if clear:
        _clear(root, name)
    elif verify:
        _verify(root, name)
    elif shrink:
        _shrink(root, name)
    else:
        _list(root, name)


def _named(root: Path, name: str | None, *, homes: bool = False) -> list[CacheInfo]:
    from selftrain.data.features.housekeeping import list_caches

    return [info for info in list_caches(root, homes=homes) if info.is_named(name)]


def _clear(root: Path, name: str | None) -> None:
    from selftrain.data.features.housekeeping import clear_caches

    console = Console()
    deleted, left = clear_caches(root, name)
    freed = sum(info.bytes for info in deleted) / 1e6
    console.print(f"deleted {len(deleted)} caches, {freed:.1f} MB, from {root}", soft_wrap=True)
    for info in left:
        console.print(f"not deleted, in use or read-only: {info.folder}", soft_wrap=True)


def _verify(root: Path, name: str | None) -> None:
    from selftrain.data.features.housekeeping import verify_cache

    console, broken = Console(), 0
    for info in _named(root, name):
        whole, damaged = verify_cache(info)
        broken += damaged
        state = "old format, not read" if info.old else f"{whole:,} pieces are whole, {damaged:,} are damaged"
        console.print(f"{info.folder.name} {_backbone(info)}: {state}", soft_wrap=True, markup=False)
    if broken:
        raise typer.Exit(1)


def _shrink(root: Path, name: str | None) -> None:
    from selftrain.data.features.housekeeping import shrink_cache

    freed = sum(shrink_cache(root, info) for info in _named(root, name))
    Console().print(f"freed {freed / 1e6:.1f} MB in {root}", soft_wrap=True)


def _backbone(info: CacheInfo) -> str:
    return f"{info.about.get('backbone', 'damaged')}{' (old)' * info.old}"


def _list(root: Path, name: str | None) -> None:
    table = Table("name", "backbone", "pixels", "folder", "images", "views", "MB", "last used, days ago")
    found = _named(root, name, homes=True)
    for info in found:
        size = info.about.get("size", info.about.get("preprocessing", {}).get("size", "-"))
        table.add_row(
            info.folder.name, _backbone(info), str(size), "all", f"{info.images:,}", ", ".join(info.views),
            f"{info.bytes / 1e6:.1f}", f"{info.days:.1f}",
        )  # fmt: skip
        for home, images in info.homes.items():
            table.add_row("", "", "", home, f"{images:,}", "", "", "")
    console = Console()
    table.caption = str(root)
    console.print(table)
    old = sum(info.bytes for info in found if info.old)
    if old:
        console.print(
            f"{old / 1e6:.1f} MB are features of older versions, no longer read: 'selftrain cache --shrink' "
            f"deletes them.",
            soft_wrap=True,
        )
