# Everything the project needs is set up by `make run` and `make test`; nothing else has to be installed first
# but Python >= 3.11 with venv.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# CLOUD=1: with what `engine: litellm` needs too.
EXTRA  := $(if $(CLOUD),-cloud)
RUN    := $(VENV)/.run$(EXTRA)
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: bench-agents run serve test fuzz chaos lint format bench loadtest lock schema test-vllm test-engines test-machines test-pythons vllm-flags vllm-rust test-clients docs reference release clean

run: $(RUN)                 ## a simulated Spark fleet and the gateway on :4000
	$(BIN)/gateway demo

serve: $(RUN)               ## the gateway in front of the fleet of routes.yaml
	$(BIN)/gateway serve

test: $(VENV)/.dev lint      ## lint, types and every test
	$(BIN)/pytest -q -n 3 --dist loadfile

fuzz: $(VENV)/.dev           ## the property tests with new examples each time
	HYPOTHESIS_PROFILE=random $(BIN)/pytest -q -m hypothesis

chaos: $(VENV)/.dev          ## ten minutes of faults and 50 clients: each answer whole, or told to be broken
	CHAOS_SECONDS=600 CHAOS_CLIENTS=50 $(BIN)/pytest -q --timeout 900 tests/program/test_chaos.py

lint: $(VENV)/.dev           ## style, types, and the layers (docs/architecture.md)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev          ## CPU per request and per chunk beside routers in Rust, a direct row (and nginx where installed)
	$(BIN)/python -m bench

bench-agents: $(VENV)/.dev   ## where agents' requests go, and what that costs their engines, in simulated time
	$(BIN)/python -m bench.agents

loadtest: $(VENV)/.dev       ## k6 against a simulated fleet and the gateway: LOADTEST_DURATION=30s for each script
	$(BIN)/python -m loadtests

schema: $(VENV)/.dev         ## write routes.schema.json anew
	$(BIN)/gateway schema > routes.schema.json

docs: $(VENV)/.dev           ## the pages of docs/ as a site, in site/
	$(BIN)/mkdocs build --strict --quiet

reference: $(VENV)/.dev      ## write docs/reference.md anew, and the tables of other pages that are made from the code
	$(BIN)/python docs/tools/reference.py > $(VENV)/reference.md
	mv $(VENV)/reference.md docs/reference.md
	$(BIN)/python docs/tools/servers.py
	$(BIN)/python docs/tools/tables.py

release: $(VENV)/.dev        ## dist/: wheel and sdist (installed and tried), the image, an SBOM and hashes; uploads nothing
	VENV=$(VENV) deploy/release/release.sh

test-vllm: $(VENV)/.dev      ## against a real vLLM on the CPU, in an environment of its own
	tests/vllm/run.sh

test-engines: $(VENV)/.dev   ## against real servers other than vLLM, on the CPU, in environments of their own
	tests/servers/run.sh

test-machines: $(VENV)/.dev  ## the image on a real docker daemon; gateway and fleet on machines with systemd and ssh; root on Debian
	BIN=$(BIN) tests/machines/run.sh

test-pythons: $(VENV)/.dev   ## every test under each of Python 3.11 to 3.14 that can be had here
	BIN=$(BIN) tests/pythons.sh

vllm-flags:                  ## write gateway/launch/vllm_flags.json anew, from the vLLM of the environment VLLM_VENV
	VLLM_TARGET_DEVICE=cpu $(VLLM_VENV)/bin/python docs/tools/vllm_flags.py > gateway/launch/vllm_flags.json.new
	mv gateway/launch/vllm_flags.json.new gateway/launch/vllm_flags.json

vllm-rust:                   ## write gateway/apps/fleet/lint/vllm_rust.json anew, from the vllm-rs of the environment VLLM_VENV
	VLLM_TARGET_DEVICE=cpu $(VLLM_VENV)/bin/python docs/tools/vllm_rust.py > gateway/apps/fleet/lint/vllm_rust.json.new
	mv gateway/apps/fleet/lint/vllm_rust.json.new gateway/apps/fleet/lint/vllm_rust.json

test-clients: $(VENV)/.dev   ## Hermes, OpenClaw, Claude Code, Open WebUI, the SDKs and k6 with the configs of their quick starts; needs npm and Chromium
	tests/clients/run.sh

# Pins and hashes for linux x86_64 and aarch64, Python 3.11 to 3.14; names no download host.
COMPILE = $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet
lock: $(VENV)/.dev
	$(COMPILE) --upgrade --extra build --extra import --extra cloud -o requirements-cloud.lock
	cp requirements-cloud.lock requirements.lock
	$(COMPILE) --extra build --extra import -o requirements.lock
	cp requirements-cloud.lock requirements-dev.lock
	$(COMPILE) --extra build --extra import --extra cloud --extra alerts --extra charts --extra dev -o requirements-dev.lock

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(RUN): requirements$(EXTRA).lock pyproject.toml | $(BIN)/python
	$(PIP) --require-hashes -r requirements$(EXTRA).lock
	$(PIP) --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q gateway simulator   # pip does it for a package, not for a link to its sources
	touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(BIN)/python
	$(PIP) --require-hashes -r requirements-dev.lock
	$(PIP) --no-deps --no-build-isolation -e .
	$(BIN)/python -m compileall -q gateway simulator   # pip does it for a package, not for a link to its sources
	touch $@ $(VENV)/.run $(VENV)/.run-cloud

clean:
	rm -rf $(VENV) .venv-py3.* .mypy_cache .ruff_cache .import_linter_cache .pytest_cache build dist
