"""A CI-sized part of the seeded hostile inputs: one-line errors or results, nothing slow; the rest is a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.safety.coverage_fuzz import CORPUS, one_input
from tests.safety.fuzz import fuzz
from tests.safety.readers import READERS, SLOW


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name in READERS if name not in SLOW])
def test_hostile_files_are_refused_in_one_line(name: str) -> None:
    found = fuzz(40, seed=1, names=(name,))
    assert found.errors == []
    assert found.slowest[0] < 5


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", SLOW)
def test_hostile_records_are_refused_in_one_line(name: str) -> None:
    found = fuzz(8, seed=1, names=(name,))
    assert found.errors == []
    assert found.slowest[0] < 5


@pytest.mark.parametrize("name", sorted(folder.name for folder in CORPUS.iterdir()))
def test_the_corpus_is_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    """The inputs that coverage-guided fuzzing starts from, and those that it once found; whole and cut in half."""
    check = one_input(name, tmp_path)
    for file in sorted((CORPUS / name).iterdir()):
        check(file.read_bytes())
        check(file.read_bytes()[: file.stat().st_size // 2])
