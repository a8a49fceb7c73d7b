# `make serve` and `make test` are all a fresh machine needs; `make help` lists the rest.
#
# ARGS goes to the command itself: make serve ARGS="--model Qwen/Qwen3-4B", make test ARGS="-k auth".
# HOST, PORT and OPENCLAW_RL_* reach it through the environment: make serve PORT=8080.
#
# TORCH_INDEX: on Linux x86-64, PyPI's torch brings gigabytes of CUDA packages. Without a GPU, save them:
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
# (it is added to PyPI; pip then prefers that index's build of the same version).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?=
TORCH_INDEX ?=
ARGS ?=

# A file's tests share what they start, so a process takes whole files. ARGS="-n 0": all in one process.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

BIN := .venv/bin
STAMP := .venv/.installed
# torch goes first and alone, so that no other package's open range can choose another build of it.
TORCH := $(shell sed -n 's/^torch==/&/p' requirements.lock)
TORCH_OPTIONS := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
PIP := $(BIN)/python -m pip --disable-pip-version-check

# On a terminal pip draws its progress bars; in a log, one line per download is progress enough.
define pip-install
	@if [ -t 1 ]; then $(PIP) install $(1); \
	else $(PIP) install --progress-bar off $(1) | { grep --line-buffered -E '^ *(Downloading|Installing)' || true; }; fi
endef

# The first Python that is new enough and can make a virtual environment.
define find-python
	for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
		if "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then echo "$$python"; exit 0; fi; \
	done; \
	echo "error: no Python 3.11 or newer with venv found." >&2; \
	echo "       Debian and Ubuntu: sudo apt-get install -y python3 python3-venv" >&2; \
	echo "       or name one: make PYTHON=/path/to/python3.12 ..." >&2; \
	exit 1
endef

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(firstword $(MAKEFILE_LIST)) | column -t -s '|' 2>/dev/null \
		|| sed -n 's/^\([a-z-]*\):.*## /  make \1: /p' $(firstword $(MAKEFILE_LIST))

.PHONY: serve
serve: $(STAMP) ## serve and learn on http://127.0.0.1:30000/v1
	@exec $(BIN)/openclaw-rl serve $(ARGS)

.PHONY: test
test: $(STAMP) system-packages ## run all tests
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

# The loop looks for the shell that runs the suite, so that it ends with it, however that one ends.
.PHONY: test-busy
test-busy: $(STAMP) system-packages ## run all tests with one core busy, as on a machine that others use
	@( while kill -0 $$$$ 2>/dev/null; do for n in {1..50000}; do :; done; done ) & busy=$$!; \
		trap "kill $$busy" EXIT; \
		$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

.PHONY: test-chaos
test-chaos: $(STAMP) system-packages ## run the tests that kill processes at random
	@$(BIN)/python -m pytest -m chaos $(ARGS)

.PHONY: test-hosts
test-hosts: $(STAMP) system-packages ## several gateways and learn hosts in network namespaces: kill and cut off some (root)
	@$(BIN)/python -m pytest -m hosts -s tests/hosts $(ARGS)

.PHONY: test-soak
test-soak: $(STAMP) system-packages ## kill serve and learn 250 times under load, and ask with 200 clients at once
	@$(BIN)/python -m pytest -m soak -s tests/soak $(ARGS)

.PHONY: test-year
test-year: $(STAMP) ## live through a year in minutes, a million turns: what grows, week by week
	@$(BIN)/python -m pytest -m year -n 0 -s tests/soak/test_year.py $(ARGS)

.PHONY: test-clients
test-clients: $(STAMP) ## run the examples of clients that are too heavy for .venv
	@scripts/client-venvs
	@$(BIN)/python -m pytest -m clients $(ARGS)

.PHONY: test-openclaw
test-openclaw: $(STAMP) system-packages ## run the real OpenClaw client against a real server
	@scripts/openclaw-client
	@$(BIN)/python -m pytest -m openclaw -s $(ARGS)

.PHONY: test-open-webui
test-open-webui: $(STAMP) system-packages ## talk to a real server through Open WebUI's page (3 GB)
	@scripts/open-webui
	@$(BIN)/python -m pytest -m open_webui $(ARGS)

.PHONY: test-envs
test-envs: $(STAMP) system-packages ## solve every task of the environments, and try to cheat in them
	@$(BIN)/python -m pytest -m envs -n 2 tests/envs $(ARGS)

.PHONY: test-env-adapters
test-env-adapters: $(STAMP) ## try MCP servers, verifiers and OpenEnv in venvs of their own (700 MB)
	@scripts/env-venvs mcp own_mcp verifiers openenv
	@$(BIN)/python -m pytest -m env_adapters tests/env_adapters $(ARGS)

.PHONY: test-ray
test-ray: $(STAMP) system-packages ## run environments on a real Ray, in a venv of its own (300 MB)
	@scripts/env-venvs ray
	@$(BIN)/python -m pytest -m ray tests/env_adapters $(ARGS)

.PHONY: test-gate
test-gate: $(STAMP) system-packages ## make spoiled and good versions and have the gate tell them apart
	@$(BIN)/python -m pytest -m "gate or slow" -s tests/train/test_planted.py tests/train/test_gate.py $(ARGS)

.PHONY: test-forget
test-forget: $(STAMP) system-packages ## unlearn on the default model with native kernels and two threads, bit for bit
	@$(BIN)/python -m pytest -m forget -s tests/forget $(ARGS)

.PHONY: test-kernels
test-kernels: $(STAMP) ## run the engine's tests with each kernel that this machine has
	@$(BIN)/python -m tests.kernels $(ARGS)

.PHONY: test-gpu
test-gpu: $(STAMP) ## run the GPU's kernels, in Triton's interpreter where there is none (600 MB)
	@$(BIN)/python -c "import triton" 2>/dev/null || $(BIN)/pip install --quiet --no-deps triton==3.9.0
	@$(BIN)/python -m pytest -m triton $(ARGS)

.PHONY: test-vllm
test-vllm: $(STAMP) ## run the engine's contract and swaps under load on a real vLLM, on a CPU (2.4 GB)
	@scripts/engine-venvs vllm
	@$(BIN)/python -m pytest -m vllm -s $(ARGS)

.PHONY: test-tinker
test-tinker: $(STAMP) ## run engine, trainer and loop against a real SkyRL server, alone and with vLLM, on a CPU (3.5 GB)
	@scripts/engine-venvs skyrl
	@scripts/engine-venvs vllm
	@$(BIN)/python -c "import tinker" 2>/dev/null || $(PIP) install --quiet -c requirements.lock tinker==0.25.0
	@$(BIN)/python -m pytest -m tinker -s $(ARGS)

.PHONY: test-fireworks
test-fireworks: $(STAMP) ## run engine and trainer with Fireworks' client against a SkyRL server, on a CPU (1.2 GB)
	@scripts/engine-venvs skyrl-json
	@scripts/engine-venvs fireworks
	@.venv-engines/fireworks/bin/python -m pytest -m fireworks -s $(ARGS)

.PHONY: test-arm
test-arm: $(STAMP) ## run the kernels for ARM in an emulator, and those that Clang builds
	@scripts/system-packages cc=build-essential clang=clang qemu-aarch64-static=qemu-user-static \
		aarch64-linux-gnu-gcc=gcc-aarch64-linux-gnu,libc6-dev-arm64-cross
	@$(BIN)/python -m pytest -m arm $(ARGS)

.PHONY: test-wheels
test-wheels: $(STAMP) system-packages ## build the wheels and use them without a compiler
	@$(BIN)/python -m pytest -m wheels $(ARGS)

.PHONY: docs
docs: $(STAMP) ## build the documentation in build/site; a broken link fails
	@[ -x .venv-docs/bin/mkdocs ] || { $(BIN)/python -m venv .venv-docs && .venv-docs/bin/pip install --quiet -r docs/requirements.txt; }
	@.venv-docs/bin/mkdocs build --strict --quiet

.PHONY: test-install
test-install: $(STAMP) ## wheel to first streamed token in a clean virtual environment
	@scripts/clean-install $(PYTHON)

.PHONY: test-debian
test-debian: $(STAMP) ## the same in clean Debian 12 and 13 trees, then without a network (root; ARGS=bookworm for one)
	@scripts/debian-install $(ARGS)

.PHONY: test-image
test-image: ## build deploy/Dockerfile from a clean Debian tree with buildah, and stream a reply (root)
	@scripts/debian-image

.PHONY: test-web
test-web: $(STAMP) system-packages ## run the long browser tests, on the real model
	@$(BIN)/python -m pytest -m web $(ARGS)

.PHONY: check
check: lint test ## everything CI checks: formatting, linting, types, tests

.PHONY: lint
lint: $(STAMP) ## check formatting, linting and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy --strict openclaw_rl

.PHONY: format
format: $(STAMP) ## format the code and fix what can be fixed
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: doctor
doctor: $(STAMP) ## say what this machine lacks and how to fix it
	@$(BIN)/openclaw-rl doctor $(ARGS)

.PHONY: setup
setup: $(STAMP) ## make .venv and install the pinned dependencies

.PHONY: system-packages
system-packages:
	@scripts/system-packages

.PHONY: wheels
wheels: $(STAMP) ## build wheels with the kernels inside, in dist/
	@$(BIN)/python scripts/build-wheels $(ARGS)

.PHONY: clean
clean: ## remove .venv and everything the tools left behind
	rm -rf .venv .venv-clients .venv-docs .venv-engines .venv-envs build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp newer than both files means there is nothing to install, so a second start asks pip nothing.
$(STAMP): requirements.lock pyproject.toml
	@if [ ! -x $(BIN)/python ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		python=$$($(find-python)); \
		echo "==> making .venv with $$("$$python" --version)"; \
		"$$python" -m venv --clear .venv; \
	fi
	@echo "==> installing $(TORCH)"
	$(call pip-install,$(TORCH_OPTIONS) $(TORCH))
	@echo "==> installing the other pinned packages"
	$(call pip-install,$(TORCH_OPTIONS) -r requirements.lock)
	@echo "==> installing openclaw-rl"
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $(STAMP)
