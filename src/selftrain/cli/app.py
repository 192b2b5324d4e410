"""The command line: the typer app, its commands, and exit codes.

Knows nothing of what a command does; it imports torch only when a command needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from selftrain.cli.bench import bench
from selftrain.cli.cache import cache
from selftrain.cli.check import check
from selftrain.cli.demo import demo
from selftrain.cli.embed import embed
from selftrain.cli.errors import translator_of
from selftrain.cli.evaluate import evaluate
from selftrain.cli.export import export
from selftrain.cli.label import label
from selftrain.cli.launch import end_with_launcher, launch
from selftrain.cli.list import list_
from selftrain.cli.predict import predict
from selftrain.cli.push import push
from selftrain.cli.report import report
from selftrain.cli.serve import serve
from selftrain.cli.suggest import suggest
from selftrain.cli.sweep import sweep
from selftrain.cli.test_method import test_method
from selftrain.cli.train import train
from selftrain.engine.allocator import keep_freed_memory
from selftrain.errors import UserError

app = typer.Typer(
    name="selftrain",
    help="Train an accurate image classifier from a handful of labels and a pile of unlabeled images.\n\n"
    "First steps: 'selftrain demo' needs no data; 'selftrain train photos/ --labels labels.csv' trains on your images; "
    "'selftrain predict RUN new/' labels new ones.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    demo,
    label,
    check,
    train,
    predict,
    evaluate,
    report,
    suggest,
    serve,
    export,
    push,
    embed,
    bench,
    sweep,
    cache,
):
    app.command()(command)
app.command("list")(list_)
app.command("test-method")(test_method)


def main() -> None:
    """Run the command line and exit.

    An error that the user can fix is one line and exit code 2; too little memory is one line and exit code 1.
    """
    end_with_launcher()
    keep_freed_memory()
    try:
        app()
    except UserError as error:
        if devices := getattr(error, "devices", None):  # the run needs more processes than this one
            sys.exit(launch(devices, sys.argv[1:]))
        _print_error(translator_of(_command(sys.argv[1:]))(str(error)))
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not _lacks_memory(error):
            raise
        why = f" ({str(error)[:200]})" if str(error) else ""
        hint = "Smaller batches need less: --set train.batch=N --set train.unlabeled_batch=N."
        _print_error(f"not enough memory{why}. {hint}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _command(words: list[str]) -> Any:
    """Return the typer command that the words ask for, or None."""
    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands", {})
    return commands.get(words[0]) if words else None


def _lacks_memory(error: MemoryError | RuntimeError) -> bool:
    """Return whether an error says that memory ran out; torch raises a RuntimeError then."""
    return isinstance(error, MemoryError) or bool(re.search("allocate memory|out of memory", str(error)))


def _print_error(text: str) -> None:
    """Print an error as one line, whatever line breaks and undecodable bytes its text has."""
    line = escape(" ".join(text.encode("utf-8", "replace").decode().split()))
    Console(stderr=True).print(f"[red]error:[/red] {line}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
