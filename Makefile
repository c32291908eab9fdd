# The two commands for a newcomer are `make demo` and `make test`; each sets up what it needs in .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Commands inside a job find python and torchrun of the virtual environment first.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo test test-all test-slow lint render fuzz mutants durations bench gpu e2e-docker e2e-k8s e2e-slurm e2e-train clean

# Train in two processes on this machine's CPU.  With DATA_ROOT=folder the same job trains on FashionMNIST from there.
DEMO_SET := $(if $(DATA_ROOT),--set train.dataset=fashion_mnist --set train.data_root=$(abspath $(DATA_ROOT)))
demo: $(READY)
	mkdir -p runs
	$(BIN)/python render.py torchrun jobs/quickstart.yaml $(DEMO_SET) -o runs/demo.sh
	bash runs/demo.sh

# Five minutes on two quiet cores.  Most of this time goes into starting processes.
test: lint
	$(BIN)/python -m pytest -m "not slow"

# All tests that need no cluster and no container engine.
test-all: test test-slow e2e-train

test-slow: $(READY)
	$(BIN)/python -m pytest -m "slow and not long"

# Tests of strategies, sharded checkpoints, signals, doctor and benchmarks, and torch's own tests of DDP: half an hour.
e2e-train: $(READY)
	$(BIN)/python -m pytest -m long --timeout=600

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

render: $(READY) # write the examples in slurm/, k8s/ and docker/ anew
	$(BIN)/python render.py check --write

# The tests that use hypothesis, with 10,000 examples each: about half an hour.
fuzz: $(READY)
	$(BIN)/python -m pytest tests/jobspec -m hypothesis --hypothesis-profile=fuzz --timeout=7200 -n 2

# Make small changes to the code, one at a time: the tests must notice.  tests/mutants.md lists the unnoticed ones.
mutants: $(READY)
	$(BIN)/python -m pip install --quiet --editable '.[mutants]'
	nice -n 10 $(BIN)/mutmut run
	$(BIN)/mutmut results

# List the 40 slowest tests of `make test`.  Figures can be compared only if they come from an idle machine.
durations: $(READY)
	mkdir -p runs
	$(BIN)/python -m pytest -m "not slow" --durations=40 > runs/durations || { cat runs/durations; exit 1; }
	grep -E "^[0-9.]+s (call|setup|teardown)|passed" runs/durations > tests/durations.txt

# Tests on a real Slurm of three nodes within this machine, as root.  QUICK=1 runs one test of each kind.
e2e-slurm: CONTAINERS := $(if $(QUICK),,podman crun catatonit debootstrap uidmap docker.io)
e2e-slurm: $(READY)
	@which slurmctld munged $(subst docker.io,dockerd,$(CONTAINERS:uidmap=newuidmap)) >/dev/null || [ "$$(id -u)" != 0 ] \
	  || { apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge $(CONTAINERS); } >/dev/null \
	  || echo "Slurm or container runtimes could not be installed: their tests skip" >&2
	$(BIN)/python -m pytest tests/e2e/slurm -rs $(if $(QUICK),-m "not slow")

# Tests of the image and the compose files, on the engine that `docker` reaches or else on one that they start.
# BASE_IMAGE names the base image.  Where docker compose is missing, it is built once, with QUICK=1 in 5 minutes or not.
e2e-docker: $(READY)
	-$(if $(QUICK),timeout --signal=INT 300) $(BIN)/python -m tests.e2e.docker.compose_v2
	$(BIN)/python -m pytest tests/e2e/docker --timeout=900 -rs -p no:cacheprovider $(if $(QUICK),-m "not slow")

# Tests on kubectl's cluster, or on a real API server with the operators, built once from Go modules (20 minutes, 2 GB).
e2e-k8s: $(READY)
	$(BIN)/python -m tests.e2e.k8s

# Compare full epochs, steps, input and rendering with peers: about an hour on two cores.
bench: $(READY)
	test -n "$(DATA_ROOT)" || { echo "make bench needs DATA_ROOT=folder with MNIST/raw and FashionMNIST/raw" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --editable '.[train,bench]'
	$(BIN)/python -m benchmarks.input --data-root "$(DATA_ROOT)"
	$(BIN)/python -m benchmarks.render
	$(BIN)/python -m benchmarks.epoch --data-root "$(DATA_ROOT)"
	$(BIN)/python -m benchmarks.ddp
	$(BIN)/python -m benchmarks.ddp --processes 4 --no-plain --memory-rounds 0
	$(BIN)/python -m benchmarks.picture

# What only a GPU can show (docs/gpu.md).  CHECKS="c e" takes two of them; without make: python -m benchmarks.gpu c e
# With DATA_ROOT=folder it also trains in published settings, on MNIST and FashionMNIST from there.
# Without $(READY): a machine with a GPU often has no internet, and a Python that has torch already.
gpu:
	$(or $(wildcard $(BIN)/python),$(PYTHON)) -m benchmarks.gpu $(if $(BUDGET_S),--budget-s=$(BUDGET_S)) $(CHECKS)

clean:
	rm -rf .venv runs

# Debian and Ubuntu ship python3 without the part that makes virtual environments.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "$(PYTHON) is too old: 3.10 or newer is needed; choose one with make PYTHON=python3.x" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "python3-venv is missing: installing it with apt-get"; \
	  run=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  $$run apt-get update -qq && $$run apt-get install -y -qq python3-venv \
	    || { echo "could not install python3-venv; run as root: apt-get install python3-venv" >&2; exit 1; }; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[train,test]'
	touch $@
