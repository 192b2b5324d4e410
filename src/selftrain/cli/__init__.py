"""The command line: one module per command, and the translation of errors into its flags."""

from selftrain.cli.app import main

__all__ = ["main"]
