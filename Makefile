PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test lint mutants venv clean

demo: venv
	$(BIN)/python -m betoken.demo

# Two at a time, a file each: what CI has cores for.
test: lint
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

mutants: venv
	$(BIN)/python tools/mutants.py

venv: $(READY)

# torch first and alone: its version decides what every other wheel may be.
$(READY): requirements-ci.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet "$$(grep '^torch==' requirements-ci.txt)"
	$(BIN)/pip install --quiet -r requirements-ci.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf .venv
