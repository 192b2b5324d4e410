"""What the site adds to the pages of docs/: a page of all commands, and the Markdown files beside docs/.

MkDocs calls the functions that are named ``on_...``. Links between the pages stay as they are on GitHub: those that
lead out of docs/ are turned here, and a link that is called by a file name gets the title of its page.
"""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

import typer
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

from selftrain.cli.app import GROUPS, app
from selftrain.cli.examples import EXAMPLES

ROOT = Path(__file__).parents[1]
BESIDE = {  # files beside docs/, and their pages
    "README.md": "index.md",
    "CONTRIBUTING.md": "development/contributing.md",
    "SECURITY.md": "development/security.md",
    "CODE_OF_CONDUCT.md": "development/conduct.md",
    "CHANGELOG.md": "development/changelog.md",
}
FORMULA = re.compile(r'<(div|span) class="arithmatex">\\(\(|\[)(.*?)\\[)\]]</\1>', re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here."""
    for source, page in BESIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    files.append(File.generated(config, "reference/commands.md", content=commands_page()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return a page with links that lead to pages of the site."""
    here = page.file.src_uri
    if here == "index.md":
        page.meta["hide"] = ["navigation"]
    if here.startswith(("research/", "development/")):
        page.meta["search"] = {"boost": 0.3}  # found last
    source = {page: name for name, page in BESIDE.items()}.get(here)
    folder = posixpath.dirname(f"docs/{here}") if source is None else ""

    def turned(match: re.Match[str]) -> str:
        text, target, anchor = match[1], posixpath.normpath(posixpath.join(folder, match[2])), match[3] or ""
        target = f"docs/{BESIDE[target]}" if target in BESIDE else target
        if not target.startswith("docs/"):  # a file of the repository that is no page, such as LICENSE
            return text
        name = target.removeprefix("docs/")
        if re.fullmatch(r"(docs/)?[\w/.-]+\.md", text) and (file := files.get_file_from_path(name)):
            text = title_of(file)
        return f"[{text}]({posixpath.relpath(name, posixpath.dirname(here) or '.')}{anchor})"

    return LINK.sub(turned, markdown)


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Return a page with formulas in MathML, which browsers draw without a script; a notebook gets a download link."""
    if page.file.src_uri.endswith(".ipynb"):
        name = posixpath.basename(page.file.src_uri)
        content = f'<p class="download"><a href="{name}" download>Download this notebook</a></p>\n{content}'
    return FORMULA.sub(drawn, content)


def drawn(formula: re.Match[str]) -> str:
    if formula[1] == "span":
        return convert(html.unescape(formula[3]))
    return f'<div class="formula">{convert(html.unescape(formula[3]), "block")}</div>'


def title_of(file: File) -> str:
    return next(line[2:] for line in file.content_string.splitlines() if line.startswith("# "))


def commands_page() -> str:
    """Return the page of all commands, from the same definitions as ``--help``."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    text = "# Commands\n\nEvery command explains itself: `selftrain COMMAND --help`. This page has the same texts.\n"
    for title, names in GROUPS.items():
        text += f"\n## {title}\n" + "".join(command_section(name, commands[name]) for name in names)
    return text


def command_section(name: str, command: Any) -> str:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [option for option in command.params if option.param_type_name == "option" and not option.hidden]
    words = {argument.name: argument.metavar or argument.name.upper() for argument in arguments}
    usage = [words[argument.name] if argument.required else f"[{words[argument.name]}]" for argument in arguments]
    line = " ".join(["selftrain", name, *usage, "[OPTIONS]"])
    text = f"\n### {name}\n\n{marked_up(command.help)}\n\n```text\n{line}\n```\n"
    text += "\n| argument or option | meaning |\n|---|---|\n"
    for parameter in (*arguments, *options):
        spelled = words.get(parameter.name) or "`, `".join(parameter.opts)
        text += f"| `{spelled}` | {marked_up(parameter.help)}{default_of(parameter)} |\n"
    return text + "\n```sh\n" + "\n".join(EXAMPLES[name]) + "\n```\n"


def default_of(parameter: Any) -> str:
    default = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    return (
        ""
        if default in (None, False, (), []) or callable(default) or not parameter.show_default
        else f" Default: `{default}`."
    )


def marked_up(text: str | None) -> str:
    """Return a help text as one paragraph of Markdown; what is in quotes is code."""
    parts = re.split(r"(?<!\w)'([^']+)'(?!\w)", " ".join((text or "").replace("\b", "").split()))
    parts[::2] = [re.sub(r"([*_\[\]])", r"\\\1", html.escape(part, quote=False)) for part in parts[::2]]
    parts[1::2] = [f"`{part}`" for part in parts[1::2]]
    return "".join(parts).replace("|", "\\|")
