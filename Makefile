# Needs Python 3.11 or newer and make; everything else goes into .venv.
# `make` alone lists the targets: the text after ## is the help.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
HTA    := .venv-hta
# The targets that `make fresh` runs, each in its own environment; the quick ones first.
FRESH  := demo lint types docs test-pythons test-hta try-docs test-browser bench fuzz test-tpu test

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo notebooks test test-nightly fuzz test-browser test-pythons test-tpu lint types bench docs try-docs test-hta format all fresh clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.core ## compare five schedules on eight GPUs, check them, and write report.html
	$(BIN)/ringloom compare --ranks 8 --seq 256k --heads 32 --head-dim 128 --mask causal \
	  --hardware a100-nvlink --schedules ring,striped,zigzag,balanced,burst --check

	$(BIN)/ringloom report --ranks 8 --seq 256k --heads 32 --head-dim 128 --mask causal \
	  --hardware a100-nvlink --schedules ring,striped,zigzag,balanced,burst -o report.html

notebooks: $(VENV)/.test ## run the notebooks in docs/notebooks and store their outputs
	$(BIN)/python docs/run_notebooks.py

# Two processes; the tests of a file share fixtures, so each file runs in one. The longest come first.
test: $(VENV)/.test ## run the test suite (examples in the docs: make try-docs)
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --ignore tests/plain/test_docs_blocks.py

test-nightly: $(VENV)/.test $(VENV)/.ray $(VENV)/.peers ## 3,000 random plans, 2,000 torch and JAX programs each, all combinations (hours; not in CI)
	RINGLOOM_PROFILE=nightly $(BIN)/pytest -n 2 --dist worksteal tests/on_torch/test_programs.py tests/on_jax/test_programs.py \
	  tests/plain/test_every_schedule.py tests/plain/test_readme.py tests/plain/test_emitted_files.py tests/plain/test_formulas.py \
	  tests/plain/test_sweeps.py tests/plain/test_loops.py tests/plain/test_bounds.py tests/plain/test_laws.py tests/plain/test_program_mutants.py tests/plain/test_drawn_programs.py tests/on_jax/test_tables.py \
	  tests/plain/test_search_space.py tests/plain/test_found_plans.py tests/plain/test_search_promises.py tests/on_jax/test_found_plans.py tests/on_torch/test_audit_probing.py tests/on_torch/test_audit_faults.py tests/on_torch/test_peer_package.py tests/on_jax/test_peer.py
	$(BIN)/python tests/source_mutants.py build/mutants.json

# A minute; hours at night: make fuzz FUZZ_SECONDS=28800 FUZZ_SEED=$$(date +%s)
FUZZ_SECONDS ?= 60
FUZZ_SEED    ?= 2026
fuzz: $(VENV)/.test ## feed thousands of hostile files and words to every parser
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

test-browser: $(VENV)/.browser ## test the pages in a real browser (Debian: chromium, chromium-driver)
	@for program in chromium chromedriver; do command -v $$program >/dev/null || { \
	  echo "test-browser: no $$program; on Debian: apt-get install chromium chromium-driver (as root)" >&2; exit 1; }; done
	$(BIN)/pytest -n 2 --dist loadfile -o python_files='*_page.py' tests/browser

lint: $(VENV)/.dev ## find lint and unformatted files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## check the types
	$(BIN)/mypy

bench: $(VENV)/.bench ## run the quick benchmarks
	@set -e; for file in benchmarks/bench_*.py; do \
	  [ -e "$$file" ] || { echo "bench: no file matches benchmarks/bench_*.py" >&2; exit 1; }; \
	  echo "$(BIN)/python $$file --quick"; $(BIN)/python "$$file" --quick; \
	done

docs: $(VENV)/.docs ## build the documentation into build/docs and check its examples and links
	$(BIN)/python -m doctest -o ELLIPSIS docs/*.md
	$(BIN)/sphinx-build --write-all --fail-on-warning --keep-going -q -b html docs build/docs
	$(BIN)/python docs/links.py build/docs

# Commands run in a shell, as a reader's do. `make test` runs the lessons.
try-docs: $(VENV)/.test ## run every command and code block of the README and the docs
	RINGLOOM_PYTHON=$(CURDIR)/$(BIN)/python $(BIN)/pytest -n 2 --dist worksteal tests/plain/test_docs_blocks.py

# The Pythons of Debian and pyenv. Only the core is installed for them.
test-pythons: $(VENV)/.made ## plan, run and emit with every other Python on this machine, from 3.11 on
	@set -e; tried=0; own=$$($(BIN)/python -c 'import sys; print(sys.version_info[1])'); \
	for minor in 11 12 13 14 15; do \
	  python=$$(ls -d /usr/bin/python3.$$minor "$$HOME"/.pyenv/versions/3.$$minor.*/bin/python 2>/dev/null | head -1); \
	  if [ $$minor -eq $$own ] || [ -z "$$python" ]; then continue; fi; \
	  echo "3.$$minor: $$python"; place=$(VENV)-3.$$minor; tried=$$((tried + 1)); \
	  [ -e $$place/.made ] || { "$$python" -m venv $$place; \
	    PIP_DISABLE_PIP_VERSION_CHECK=1 $$place/bin/python -m pip install --quiet -c constraints.txt --editable .; touch $$place/.made; }; \
	  $$place/bin/ringloom run zigzag --ranks 4 --seq 64 --heads 4 --head-dim 8 --pass both --check > /dev/null; \
	  for target in torch jax; do $$place/bin/ringloom emit $$target zigzag --ranks 4 --seq 64 -o $$place/program.py > /dev/null; done; \
	done; [ $$tried -gt 0 ] || echo "test-pythons: no Python but 3.$$own, from 3.11 on, is on this machine; nothing tried"

# Last in CI: once libtpu is installed, JAX looks for a TPU when it starts.
test-tpu: $(VENV)/.test $(VENV)/.tpu ## compile an emitted program for two kinds of TPU (no TPU needed)
	$(BIN)/pytest tests/on_jax/test_kernels.py -k libtpu

test-hta: $(HTA)/.made ## check traces with HolisticTraceAnalysis, in its own environment
	PYTHONPATH=. $(HTA)/bin/python tests/hta_overlap.py

format: $(VENV)/.dev ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

all: lint types test docs bench ## lint, types, test, docs and bench

# Clones contain only what is committed. Every target runs, and the failed ones are listed.
fresh: ## run each target in a fresh clone and environment (an hour or more; not in CI)
	@place=$$(mktemp -d) && trap 'rm -rf "$$place"' EXIT && trap 'exit 1' HUP INT PIPE TERM && failed= && unset MAKEFLAGS MAKELEVEL && \
	for target in $(FRESH); do \
	  echo "== $$target, from nothing =="; rm -rf "$$place/clone"; \
	  { git clone -q . "$$place/clone" && $(MAKE) --no-print-directory -C "$$place/clone" $$target; } || failed="$$failed $$target"; \
	done; [ -z "$$failed" ] || { echo "fresh: failed:$$failed" >&2; exit 1; }

clean: ## remove caches and build products (delete .venv yourself for a fresh environment)
	rm -rf build dist docs/generated ./*.egg-info .hypothesis .pytest_cache .mypy_cache .ruff_cache
	find . -name .git -prune -o -path './.venv*' -prune -o -type d -name __pycache__ -exec rm -rf {} +

# The environment. One stamp file per set of extras says that it was installed, and from what.
# The two variables hold the build step to constraints.txt too, for older and for newer pips.

$(VENV)/.core: SET  := [report]
$(VENV)/.core: WHAT := ringloom, and bokeh, which draws its report
$(VENV)/.test: SET  := [test,torch,jax,flax,hf,plots,app,sweep,dask]
$(VENV)/.test: WHAT := ringloom, its test tools, torch, transformers and jax, and what draws its pages
$(VENV)/.ray: SET  := [ray]
$(VENV)/.ray: WHAT := Ray, on which a sweep runs at night
$(VENV)/.peers: SET  := [peers]
$(VENV)/.peers: WHAT := ring-attention-pytorch, and what a public JAX ring imports, beside which programs run at night
$(VENV)/.tpu: SET  := [tpu]
$(VENV)/.tpu: WHAT := libtpu, the compiler of TPUs
$(VENV)/.browser: SET  := [test,report,app,browser]
$(VENV)/.browser: WHAT := ringloom, its pages, and selenium, which drives a browser
$(VENV)/.bench: SET  := [bench,torch,app]
$(VENV)/.bench: WHAT := ringloom, its local page, and SimPy and torch, which benchmarks run beside it
$(VENV)/.docs: SET  := [docs]
$(VENV)/.docs: WHAT := ringloom, and Sphinx with its theme
$(VENV)/.dev:  SET  := [dev]
$(VENV)/.dev:  WHAT := ringloom, ruff and mypy

$(VENV)/.core $(VENV)/.test $(VENV)/.ray $(VENV)/.peers $(VENV)/.tpu $(VENV)/.browser $(VENV)/.bench $(VENV)/.docs $(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing $(WHAT) into $(VENV), pinned by constraints.txt (a minute or so, once) ..."
	@PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
	  $(BIN)/python -m pip install --quiet -c constraints.txt --editable '.$(SET)'
	@touch $@

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "$(PYTHON) not found: ringloom needs Python 3.11 or newer; say which with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("ringloom needs Python 3.11 or newer, and $(PYTHON) is Python %d.%d; say which with make PYTHON=..." % sys.version_info[:2])'
	@echo "Creating $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# HolisticTraceAnalysis installs a hundred packages, so it has an environment of its own.

$(HTA)/.made: tests/hta-requirements.txt
	@echo "Installing HolisticTraceAnalysis into $(HTA) (a minute or two, once) ..."
	@$(PYTHON) -m venv $(HTA)
	@PIP_DISABLE_PIP_VERSION_CHECK=1 $(HTA)/bin/python -m pip install --quiet -r $<
	@touch $@
