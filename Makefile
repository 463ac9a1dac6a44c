# Two commands for a fresh machine. Both make .venv themselves.
PYTHON ?= python3
VENV   := .venv
STAMP  := $(VENV)/.installed

.PHONY: demo test

demo: $(STAMP)  ## install, fetch the model, run the quickstart against a real model
	$(VENV)/bin/bench model pull smollm2-135m
	$(VENV)/bin/bench run scenarios/quickstart.yaml

test: $(STAMP)  ## install, fetch the model, run every test
	$(VENV)/bin/bench model pull smollm2-135m --quiet
	$(VENV)/bin/python -m pytest -q -m 'not e2e' -n auto --dist loadfile
	$(VENV)/bin/python -m pytest -q -m e2e

$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard loadgen/_*.p?? loadgen/reference/_*.pyx)
	$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[engine,dev]'
	touch $(STAMP)
