# demo: set up and run the main job.  test: set up and pass all tests.  check: format, lint, types, import arrows.
# test-fast: no processes, no browser, no training beyond a few steps.  bench: speed, as ratios.
# docs: the site, in site/; links are checked. It needs no network, nor does the site: open site/index.html.
# audit: known vulnerabilities of the newest and the oldest packages that are allowed (needs the network).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-fast check format bench audit docs clean

demo: $(VENV)/installed
	$(BIN)/selftrain demo

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-fast: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not long"

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/installed
	$(BIN)/python -m benchmarks

docs: $(VENV)/installed
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=src $(BIN)/mkdocs build --strict

audit:
	test -x .venv-audit/bin/pip-audit || ($(PYTHON) -m venv .venv-audit && .venv-audit/bin/pip install --quiet pip-audit)
	.venv-audit/bin/pip-audit --strict --disable-pip --no-deps -r constraints.txt
	.venv-audit/bin/pip-audit --strict --disable-pip --no-deps -r constraints-oldest.txt

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,docs,offline]"
	touch $@

clean:
	rm -rf $(VENV) .venv-audit build dist site .mypy_cache .pytest_cache .ruff_cache
