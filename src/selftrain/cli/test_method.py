"""``selftrain test-method``: check a method of your own against the contract of all methods.

Knows nothing of what is checked.
"""

from __future__ import annotations

from typing import Annotated

import typer

from selftrain.errors import UserError

MethodText = Annotated[
    str,
    typer.Argument(
        metavar="METHOD",
        help="A Python file, whose methods are all checked; path/file.py:MyMethod; or any method, such as "
        "'dst(path/file.py:MyMethod)'. The code of the file runs.",
    ),
]


def test_method(method: MethodText) -> None:
    """Check a method on handwritten digits: it learns, resumes bit by bit, and trains the parts that it should.

    Takes about a minute and needs no data. The exit code is 1 if a check fails.
    """
    from selftrain.methods import AddOn, Wrapper, allow_method_file, make_method, name_files
    from selftrain.methods.own import class_of, methods_in
    from selftrain.runs.method_checks import check_method

    if method.endswith(".py"):
        allow_method_file(method)
        texts = [
            f"{text}(fixmatch)" if issubclass(class_of(text), (AddOn, Wrapper)) else text for text in methods_in(method)
        ]
    else:
        texts = [method]
    failed = 0
    for text in texts:
        text = name_files(text)
        if make_method(text).fitted:
            raise UserError(f"`method` {text}: methods that are fitted at once are not checked here.")
        typer.echo(text)
        for what, reason in check_method(text):
            failed += bool(reason)
            typer.echo(f"  {'FAILED' if reason else 'ok':<7} {what}" + (f": {reason}" if reason else ""))
    if failed:
        typer.echo(f"{failed} checks failed.")
        raise typer.Exit(1)
