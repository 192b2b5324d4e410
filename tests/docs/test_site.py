"""The site: it builds without a warning, loads nothing from the network, and has every command and public name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import selftrain
from selftrain.cli.app import GROUPS
from tests.browser import DESKTOP, PHONE, Watched
from tests.docs.test_docs import PAGES, ROOT

LOADED = re.compile(r'<(?:script|img|iframe|link rel="stylesheet")[^>]*(?:src|href)="(?:https?:)?//')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
def test_the_site_is_complete_and_loads_nothing_from_the_network(site: Path) -> None:
    pages = {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    for name, text in pages.items():
        assert not LOADED.search(text), (name, LOADED.search(text))
        assert "arithmatex" not in text, name
    assert (site / "search" / "search_index.js").exists()  # search without a server
    assert "<math" in pages["concepts/methods/thresholds.html"]
    assert "results/figures/algorithm.png" in pages["index.html"]
    for group in GROUPS.values():
        for command in group:
            assert f'id="{command}"' in pages["reference/commands.html"], command
    reference = "".join(text for name, text in pages.items() if name.startswith("reference/api"))
    for public in set(selftrain.__all__) - {"__version__"}:
        assert re.search(rf'id="selftrain\.[\w.]*\b{public}"', reference), public
    for tutorial in ("photos", "embeddings", "own-method"):
        assert "jupyter-wrapper" in pages[f"tutorials/{tutorial}.html"]
        assert f'href="{tutorial}.ipynb" download' in pages[f"tutorials/{tutorial}.html"]
        assert (site / "tutorials" / f"{tutorial}.ipynb").exists()


@pytest.mark.long
def test_pages_fit_a_phone_and_search_needs_no_server(site: Path, browser: Any) -> None:
    for size in (DESKTOP, PHONE):
        for name in ("index", "tutorials/photos", "reference/api-estimators", "results/comparison"):
            with Watched(browser, site / f"{name}.html", size) as page:  # fails if anything comes from the network
                assert page.evaluate("document.documentElement.scrollWidth") <= size[0], name
    with Watched(browser, site / "index.html") as page:
        page.keyboard.press("/")
        page.keyboard.type("novelty")
        page.wait_for_selector(".md-search-result__link")


def test_no_page_is_long() -> None:
    for page in PAGES:
        assert len(page.read_text(encoding="utf-8").splitlines()) <= 300, page
    for page in (ROOT / "docs" / "tutorials").glob("*.ipynb"):
        cells = json.loads(page.read_text(encoding="utf-8"))["cells"]
        shown = [output.get("text", ()) for cell in cells for output in cell.get("outputs", ())]
        text = "\n".join("".join(part) for part in [*(cell["source"] for cell in cells), *shown])
        assert len(text.splitlines()) <= 300, page


def test_pages_that_the_code_mentions_exist() -> None:
    files = [path for folder in ("src", "tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    for file in (*files, ROOT / "Makefile", ROOT / "CONTRIBUTING.md", ROOT / "mkdocs.yml"):
        for name in re.findall(r"\bdocs/[\w/-]+\.(?:md|py)\b", file.read_text(encoding="utf-8")):
            assert (ROOT / name).exists(), f"{file.relative_to(ROOT)}: {name}"


def test_the_readme_takes_three_minutes() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$|\]\([^)]*\)|^!\[.*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"[\w'.%-]{2,}", prose)) < 750


def test_the_conda_recipe_is_that_of_the_package() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "meta.yaml").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.findall(r'"([^"]+)"', project.partition("\ndependencies = [")[2].partition("\n]")[0])
    other_names = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    expected = {re.sub(r"^[\w-]+", lambda name: other_names.get(name[0], name[0]), one) for one in listed}
    needed = {one.replace(" ", "") for one in recipe["requirements"]["run"]}
    python = re.search(r'requires-python = "(.*)"', project)
    assert python is not None
    assert needed == expected | {f"python{python[1]}"}
    assert "GIT_DESCRIBE_TAG" in recipe["package"]["version"]  # the tag owns it, as in pyproject.toml
    builders = re.search(r"^requires = (\[.*\])$", project, flags=re.MULTILINE)
    assert builders is not None
    assert set(json.loads(builders[1])) <= set(recipe["requirements"]["host"])
    assert recipe["build"]["entry_points"] == ["selftrain = selftrain.cli:main"]
    assert (ROOT / "conda" / recipe["source"]["path"] / recipe["about"]["license_file"]).exists()


def test_the_dockerfile_is_sound() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line.strip() and not line.startswith("#")]
    known = {"FROM", "ARG", "RUN", "COPY", "USER", "WORKDIR", "ENV", "ENTRYPOINT", "CMD"}
    assert {word for word, _ in steps} <= known
    assert steps[0][0] == "FROM"
    words = [word for word, _ in steps]
    assert words.index("USER") < words.index("ENTRYPOINT")  # not as root
    assert dict(steps)["USER"] != "root"
    extras = re.search(r'"/src\[(.*?)\]"', " ".join(lines))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert extras is not None
    assert all(f"\n{extra} = [" in project for extra in extras[1].split(","))
