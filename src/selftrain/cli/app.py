"""The command line: the typer app, its commands, and exit codes.

Knows nothing of what a command does; it imports torch only when a command needs it, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from selftrain.cli.bench import bench
from selftrain.cli.cache import cache
from selftrain.cli.check import check
from selftrain.cli.demo import demo
from selftrain.cli.doctor import doctor
from selftrain.cli.embed import embed
from selftrain.cli.errors import translator_of
from selftrain.cli.evaluate import evaluate
from selftrain.cli.examples import epilog
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
from selftrain.errors import UserError, lacks_memory
from selftrain.network_access import go_offline, is_offline
from selftrain.text import printable
from selftrain.version import __version__

app = typer.Typer(
    name="selftrain",
    help="Train an accurate image classifier from a handful of labels and a pile of unlabeled images.\n\n"
    "First steps: 'selftrain demo' needs no data; 'selftrain train photos/ --labels labels.csv' trains on your images; "
    "'selftrain predict RUN new/' labels new ones.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"selftrain {__version__}")
        raise typer.Exit


@app.callback()
def options(
    offline: Annotated[
        bool, typer.Option("--offline", help="Never use the network; the same as SELFTRAIN_OFFLINE=1.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Take the options that hold for every command; ``main`` has read the first already."""


GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "Start": {"demo": demo, "doctor": doctor, "list": list_},
    "From photos to a model": {"label": label, "suggest": suggest, "check": check, "train": train, "report": report},
    "Use a model": {"predict": predict, "evaluate": evaluate, "serve": serve, "export": export, "push": push},
    "Features": {"embed": embed, "cache": cache},
    "Research": {"bench": bench, "sweep": sweep, "test-method": test_method},
}
for title, group in GROUPS.items():
    for name, command in group.items():
        app.command(name, rich_help_panel=title, epilog=epilog(name))(command)


MISMATCH = (
    "torch and torchvision do not fit together: one is probably built for CPUs and the other for GPUs. "
    "Install both again, in one command and from the same index."
)


def main() -> None:
    """Run the command line and exit.

    An error that the user can fix is one line and exit code 2; too little memory is one line and exit code 1.
    """
    _forgiving(sys.stdout, sys.stderr)
    if "--offline" in sys.argv:  # before or after the command
        sys.argv = [word for word in sys.argv if word != "--offline"]
        go_offline()
    end_with_launcher()
    keep_freed_memory()
    try:
        if is_offline():
            go_offline()
        app()
    except UserError as error:
        if devices := getattr(error, "devices", None):  # the run needs more processes than this one
            sys.exit(launch(devices, sys.argv[1:]))
        _print_error(translator_of(_command(sys.argv[1:]))(str(error)))
        sys.exit(2)
    except (OSError, UnicodeError) as error:  # a place that only this machine, disk or terminal knows
        _print_error(_of_the_system(error))
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if "operator torchvision::" in str(error):
            _print_error(MISMATCH)
            sys.exit(2)
        if not lacks_memory(error):
            raise
        _print_error(_no_memory(error, sys.argv[1:]))
        sys.exit(1)


def _no_memory(error: BaseException, words: list[str]) -> str:
    why = f" ({str(error)[:200]})" if str(error) else ""
    if words and words[0] in ("train", "bench", "sweep", "demo"):
        hint = "Smaller batches need less: --set train.batch=N --set train.unlabeled_batch=N."
    else:
        hint = "Close other programs, or pass fewer or smaller images at a time."
    return f"not enough memory{why}. {hint}"


def _of_the_system(error: OSError | UnicodeError) -> str:
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        return f"{place}{(error.strerror or str(error) or type(error).__name__).lower()}."
    return f"text that cannot be read or written here ({error}). Set the environment variable PYTHONUTF8=1."


def _forgiving(*streams: Any) -> None:
    """Let characters that a terminal's encoding lacks be printed as escapes instead of ending the command."""
    for stream in streams:
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _command(words: list[str]) -> Any:
    """Return the typer command that the words ask for, or None."""
    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands", {})
    return commands.get(words[0]) if words else None


def _print_error(text: str) -> None:
    """Print an error as one line, whatever line breaks, escapes and undecodable bytes its text has."""
    line = escape(printable(" ".join(text.split())))
    Console(stderr=True).print(f"[red]error:[/red] {line}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    main()
