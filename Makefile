# `make help` lists the targets; each sets up what it needs in .venv.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Commands inside a job find python and torchrun of the virtual environment first.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help demo test test-all lint render bench e2e-slurm e2e-docker e2e-k8s e2e-train

help:
	@sed -nE 's/^([a-z0-9-]+):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 12

DEMO_SET := $(if $(DATA_ROOT),--set train.dataset=fashion_mnist --set train.data_root=$(abspath $(DATA_ROOT)), \
  --set train.dataset=digits --set train.epochs=15)
demo: $(READY) ## train in two processes on this CPU, on real digits; DATA_ROOT=FOLDER: on FashionMNIST from there
	rm -rf runs/demo && mkdir -p runs/demo
	$(BIN)/python render.py torchrun jobs/quickstart.yaml $(DEMO_SET) --set train.run_dir=runs/demo -o runs/demo/job.sh
	bash runs/demo/job.sh
	$(BIN)/python -m train.report runs/demo --out runs/demo
	@$(if $(DATA_ROOT),,echo "a plain PyTorch loop in one process ends at 93 % on these digits")

test: lint ## the checkers and the fast tests: two minutes on two quiet cores
	$(BIN)/python -m pytest -m "not slow"

test-all: test ## all tests that need neither a cluster nor a container engine
	$(BIN)/python -m pytest -m "slow and not long"
	$(MAKE) e2e-train

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

render: $(READY) ## write the examples in slurm/, k8s/ and docker/, the reference and README's pictures anew
	$(BIN)/python render.py check --write
	$(BIN)/python -m docs.make_reference
	$(BIN)/python -m docs.pictures

# QUICK=1 needs no Slurm of this machine: debootstrap fetches the newest, which takes minutes and 300 MB once.
e2e-slurm: PARTS := debootstrap $(if $(QUICK),,slurm-wlm munge podman crun catatonit uidmap docker.io)
e2e-slurm: $(READY) ## tests on three real Slurms of three nodes in this machine, as root; QUICK=1: one of each kind
	@which debootstrap $(if $(QUICK),,slurmctld munged podman crun catatonit newuidmap dockerd) >/dev/null || [ "$$(id -u)" != 0 ] \
	  || { apt-get update -qq && apt-get install -y -qq --no-install-recommends $(PARTS); } >/dev/null \
	  || echo "Slurm or container runtimes could not be installed: their tests skip" >&2
	$(BIN)/python -m pytest tests/e2e/slurm -rs $(if $(QUICK),-m "not slow")

e2e-docker: $(READY) ## tests of the image and of compose, on the engine of `docker` or their own; QUICK=1, BASE_IMAGE=NAME
	@docker info >/dev/null 2>&1 || [ "$$(id -u)" != 0 ] || which dockerd slirp4netns debootstrap docker-compose >/dev/null \
	  || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    docker.io docker-compose debootstrap iptables slirp4netns; } >/dev/null \
	  || echo "the packages for an engine could not be installed: the tests of Docker skip" >&2
	-$(if $(QUICK),timeout --signal=INT 900) $(BIN)/python -m tests.e2e.docker.compose_v2
	$(BIN)/python -m pytest tests/e2e/docker -rs -p no:cacheprovider $(if $(QUICK),-m "not slow")

e2e-k8s: $(READY) ## tests on kubectl's cluster, or on an API server with the operators, built once (20 minutes, 2 GB); KUBERNETES=1.37
	$(BIN)/python -m tests.e2e.k8s

e2e-train: $(READY) ## tests that train for minutes: half an hour
	$(BIN)/python -m pytest -m long

bench: $(READY) ## compare with peers: an hour on two cores; DATA_ROOT=FOLDER has MNIST/raw and FashionMNIST/raw
	test -n "$(DATA_ROOT)" || { echo "make bench needs DATA_ROOT=folder with MNIST/raw and FashionMNIST/raw" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --editable '.[train,report]'
	$(BIN)/python -m benchmarks.input --data-root "$(DATA_ROOT)"
	$(BIN)/python -m benchmarks.render
	$(BIN)/python -m benchmarks.epoch --data-root "$(DATA_ROOT)"
	$(BIN)/python -m benchmarks.ddp
	$(BIN)/python -m benchmarks.ddp --processes 4 --no-plain --memory-rounds 0
	$(BIN)/python -m benchmarks.picture

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
	@echo "installing PyTorch and the other packages into .venv: 5 GB, a few minutes"
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(if $(CI),$(BIN)/python -m pip install --quiet --require-hashes --requirement .ci/requirements.lock)
	$(BIN)/python -m pip install --quiet --editable '.[train,test]'
	touch $@
