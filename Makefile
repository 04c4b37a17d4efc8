# Every target sets up what it needs: a virtual environment in .venv from requirements/dev.txt (versions and hashes locked).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes; without bytecode each would compile the whole package anew.
unexport PYTHONDONTWRITEBYTECODE
LOCK := --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url

.PHONY: demo test test-slow chaos soak alerts prometheus pictures ui-shots check bench fuzz mutants image gen lock clean

$(VENV)/.ready: requirements/dev.txt pyproject.toml scripts/bootstrap.py
	$(PYTHON) scripts/bootstrap.py $(VENV)
	@touch $@

demo: $(VENV)/.ready          ## The main job on the embedded cluster: publish, schedule, prepare, inject
	$(BIN)/dra-driver sim demo

test: $(VENV)/.ready          ## Unit, contract and scenario tests, under 4 minutes
	$(BIN)/pytest -m "not slow"

test-slow: $(VENV)/.ready     ## Long tests, and many more examples of each property
	$(BIN)/pytest -m slow -n 0 --timeout 1200
	$(BIN)/pytest -m hypothesis --hypothesis-profile thorough --timeout 1200
	$(BIN)/python scripts/retry_failed.py --listed

chaos: $(VENV)/.ready         ## Faults happen to a node process; under 15 minutes; writes docs/internals/faults.md
	$(BIN)/python -m tests.chaos

soak: $(VENV)/.ready          ## 10,000 mixed claims on a node and 1,000 on a cluster, under kills and faults; under 30 minutes
	$(BIN)/python -m tests.soak

alerts:                       ## The chart's rules in promtool; needs Debian's package prometheus, or promtool on PATH
	promtool check rules deploy/chart/files/alerts.yaml deploy/chart/files/records.yaml examples/usage/cost-rules.yaml
	promtool test rules tests/prometheus/alerts_test.yaml tests/prometheus/records_test.yaml tests/prometheus/cost_test.yaml

prometheus: $(VENV)/.ready    ## A Prometheus scrapes for ten minutes; every dashboard's queries, and an alert; needs Debian's prometheus, prometheus-alertmanager
	$(BIN)/python -m tests.prometheus

pictures: $(VENV)/.ready      ## What explain prints to a terminal, as a picture in docs/pictures
	$(BIN)/python -m tests.ui.terminal

ui-shots: $(VENV)/.ready      ## The page in a real browser, and its pictures; needs Debian's chromium, chromium-driver and npm
	$(BIN)/pip install --quiet --require-hashes -r requirements/shots.txt
	npm install --silent --no-save --prefix $(VENV)/axe axe-core@4.14.1
	AXE=$(VENV)/axe/node_modules/axe-core/axe.min.js $(BIN)/python -m tests.ui
	$(BIN)/python -m tests.ui.questions

check: $(VENV)/.ready         ## Format, lint, types, layers, words, docs, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python scripts/check_words.py
	$(BIN)/python scripts/check_docs.py
	$(BIN)/python scripts/gen.py --check

bench: $(VENV)/.ready         ## Node process, forms, selectors and allocation against their budgets; packing of partitions
	$(BIN)/python -m tests.bench.cel_bench
	$(BIN)/python -m tests.bench.allocation_bench
	$(BIN)/python -m tests.bench.explain_bench
	$(BIN)/python -m tests.bench.packing
	$(BIN)/python -m tests.bench.forms_bench
	$(BIN)/python -m tests.bench

fuzz: $(VENV)/.ready          ## Mutated selectors and allocation questions: never a traceback, never an endless run
	$(BIN)/python tests/fuzz/cel_fuzz.py --count 200000 --seed 11
	$(BIN)/python tests/fuzz/allocate_fuzz.py --count 20000 --seed 11

mutants: $(VENV)/.ready       ## Mutations of safety-critical lines, each of which a test has to notice; under 10 minutes
	$(BIN)/python scripts/mutants.py

image:                        ## Build the image and its SBOM into build/image; needs podman, buildah or docker
	$(PYTHON) scripts/image.py
# `make image CONTENT=ui` builds the web UI's image.

gen: $(VENV)/.ready           ## Regenerate protobuf code and schemas
	$(BIN)/python scripts/gen.py

lock:                         ## Renew requirements/*.txt from pyproject.toml; needs uv on PATH
	uv pip compile pyproject.toml --all-extras --group dev $(LOCK) -o requirements/dev.txt
	uv pip compile --group node -c requirements/dev.txt $(LOCK) -o requirements/node.txt
	uv pip compile --group ui -c requirements/dev.txt $(LOCK) -o requirements/ui.txt
	uv pip compile --group build -c requirements/dev.txt $(LOCK) -o requirements/build.txt
	uv pip compile --group shots -c requirements/dev.txt $(LOCK) -o requirements/shots.txt
	uv pip compile --group sbom $(LOCK) -o requirements/sbom.txt

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
