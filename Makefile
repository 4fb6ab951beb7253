# Every target does its own set-up; what is done is skipped. `make help` lists them.
#
# PYTHON=...            the interpreter that .venv is made with (default python3.11; 3.12 and 3.13 will do); for
#                       `make install`, that of your own environment
# HVD_SPARSE_CACHE=...  where the Horovod wheel is kept (default ~/.cache/hvd_sparse)
# SEED=...              of `make mutants` and `make faults` (default 1)
# WITHIN=...            seconds after which `make test` or `make test-rest` begins no further test (default: all are run)

PYTHON ?= python3.11
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --quiet --disable-pip-version-check --no-input
DONE := $(VENV)/.done
DOCS := .venv-docs
NEWEST := .venv-newest
OTHER := .venv-$(notdir $(PYTHON))
NEXT := .venv-next-keras
# What differs between Pythons: loading of libraries, processes and their ends, buffers, a training under horovodrun.
CHOICE := tests/ops tests/datacache tests/link tests/keras/test_optimizer.py tests/keras/test_checkpoint.py
SEED ?= 1
# What is compiled is kept, whatever the environment says, as hundreds of processes import the same modules.
# A worker that crashes ends the run: pytest-xdist 3.8 can wait for ever after it has replaced one (its issue 1323).
TESTS := PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -n logical --maxprocesses 4 --dist loadgroup \
	--no-loadscope-reorder --max-worker-restart 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup build install demo test test-quick test-rest test-all test-newest test-python faults next-keras mutants lint \
	types docs clean

help:           ## what there is to make
	@sed -nE 's/^([a-z%-]+):[^#]*## (.*)/  make \1\t\2/p' Makefile | sed 's/bench-%/bench-topk/' | expand -t 20

demo: setup     ## 2 nodes of 2 ranks train on real images over slow links, DEMO_NETWORK=100mbit (4 minutes)
	@$(RUN) -m examples.demo

test: lint      ## lint, types and the quick tests, among them real horovodrun jobs (quarter of an hour on two cores)
	@$(MAKE) --no-print-directory --jobs 2 types test-quick

test-quick: setup
	@$(TESTS) -m "not thorough" $(if $(WITHIN),--within $(WITHIN))

test-rest: setup  ## the thorough tests: what `make test` leaves out
	@$(TESTS) -m thorough $(if $(WITHIN),--within $(WITHIN))

test-all: test  ## all tests, one tier after the other (three quarters of an hour on two cores)
	@$(MAKE) --no-print-directory test-rest

test-newest: setup $(NEWEST)/.done  ## datacache and link on the newest packages that pyproject.toml allows (3 minutes)
	@PYTHONDONTWRITEBYTECODE= $(NEWEST)/bin/python -m pytest -n logical --maxprocesses 4 --dist loadgroup \
		--max-worker-restart 0 -m "not thorough" tests/datacache tests/link

test-python: setup $(OTHER)/.done  ## a choice of tests on another Python: make test-python PYTHON=python3.13
	@PYTHONDONTWRITEBYTECODE= $(OTHER)/bin/python -m pytest -n logical --maxprocesses 4 --dist loadgroup \
		--max-worker-restart 0 -m "not thorough" $(CHOICE)
	@PYTHONDONTWRITEBYTECODE= $(OTHER)/bin/python -m pytest tests/examples/test_resumed.py

faults: setup   ## thirty schedules of faults over real elastic jobs, from SEED=1 on; goes on where it stopped (20 minutes)
	@mkdir -p results
	@$(RUN) -m tests.faults.schedules --seed $(SEED) --count 30 --store results/faults.jsonl

next-keras: setup $(NEXT)/.done  ## tests of what knows Keras's insides, on the newest Keras and TensorFlow; what changed there
	@$(RUN) -m tools.next_keras $(NEXT)/bin/python --tests

mutants: setup  ## plants faults, 40 of them drawn by SEED=1, and counts what the tests see; goes on where it stopped
	@$(RUN) -m tools.mutants --seed $(SEED)

bench-%: setup  ## selection against its rivals; `make benchmarks` lists all
	@$(RUN) -m benchmarks $*

benchmarks: setup  ## which benchmark answers which question, how long it takes, and where its results go
	@$(RUN) -m benchmarks

lint: setup     ## ruff: errors, imports, docstrings, layout
	@$(RUN) -m ruff check --quiet . && $(RUN) -m ruff format --quiet --check .

types: setup    ## mypy
	@$(RUN) -m mypy --no-error-summary

docs: $(DOCS)/.done  ## the pages, in site/; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build

setup: $(DONE)/package build  ## the virtual environment with all that the others need

install:        ## into an environment of your own: make install PYTHON=ENV/bin/python
	@test "$(origin PYTHON)" != file || { echo "Say into which environment: make install PYTHON=ENV/bin/python"; exit 1; }
	@tools/install.sh "$(PYTHON)"

build: $(DONE)/requirements  ## the native libraries, where their sources have changed
	@$(RUN) setup.py --quiet build_ext --inplace

clean:          ## removes all of it but the cached Horovod wheel
	@rm -rf $(VENV) $(DOCS) $(NEWEST) $(NEXT) .venv-python* site build dist *.egg-info results hvd_sparse/_*.so hvd_sparse/_ops.json datacache/_*.so datacache/_ops.json lars/_*.so lars/_ops.json
	@find . -name __pycache__ -prune -exec rm -rf {} +

$(DOCS)/.done: requirements-docs.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11, or pass PYTHON=..."; exit 1; }
	@$(PYTHON) -m venv $(DOCS) && $(DOCS)/bin/python -m pip --quiet --disable-pip-version-check --no-input install -r $<
	@touch $@

# TensorFlow alone is pinned, as the native libraries are compiled for it. What only the tests use is as in .venv.
$(NEWEST)/.done: requirements.txt requirements-dev.txt pyproject.toml | $(DONE)/horovod
	@$(PYTHON) -m venv --clear $(NEWEST)
	@$(RUN) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")' \
		>$(NEWEST)/requirements.txt
	@grep -E '^(tensorflow-cpu|psutil|cloudpickle|PyYAML|packaging)==' requirements.txt >>$(NEWEST)/requirements.txt
	@grep -E '^(pytest|pytest-xdist|hypothesis|scikit-image|scikit-learn|pillow|fsspec|s3fs|moto\[server\])==' requirements-dev.txt \
		>>$(NEWEST)/requirements.txt
	@echo "Installing the newest packages that pyproject.toml allows into $(NEWEST) ..."
	@$(NEWEST)/bin/python -m pip --quiet --disable-pip-version-check --no-input install -r $(NEWEST)/requirements.txt
	@tools/horovod/build_wheel.sh $(NEWEST)/bin/python
	@touch $@

$(OTHER)/.done: requirements.txt requirements-dev.txt $(wildcard tools/horovod/*.sh)
	@$(PYTHON) -m venv --clear $(OTHER)
	@echo "Installing TensorFlow and the other pinned packages into $(OTHER) (about a minute) ..."
	@$(OTHER)/bin/python -m pip --quiet --disable-pip-version-check --no-input install -r requirements-dev.txt
	@tools/horovod/build_wheel.sh $(OTHER)/bin/python
	@touch $@

# Made anew each time that it is asked for, as there may be newer ones.
$(NEXT)/.done: requirements-dev.txt $(wildcard tools/horovod/*.sh) FORCE
	@$(PYTHON) -m venv --clear $(NEXT)
	@echo "Installing the newest TensorFlow and Keras into $(NEXT), and Horovod for them ..."
	@$(NEXT)/bin/python -m pip --quiet --disable-pip-version-check --no-input install -r requirements-dev.txt
	@$(NEXT)/bin/python -m pip --quiet --disable-pip-version-check --no-input install --upgrade tensorflow-cpu keras
	@tools/horovod/build_wheel.sh $(NEXT)/bin/python
	@touch $@

FORCE:

$(DONE)/environment:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11, or pass PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
		|| { echo "$(PYTHON) is neither Python 3.11, 3.12 nor 3.13."; exit 1; }
	@command -v $${CXX:-c++} >/dev/null || { echo "A C++17 compiler is missing: install g++, or pass CXX=..."; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make virtual environments: install python3.11-venv."; exit 1; }
	@mkdir -p $(DONE) && touch $@

$(DONE)/requirements: requirements.txt requirements-dev.txt | $(DONE)/environment
	@echo "Installing TensorFlow and the other pinned packages into $(VENV) (about a minute) ..."
	@$(PIP) install -r requirements-dev.txt
	@touch $@

$(DONE)/horovod: $(wildcard tools/horovod/*.sh) $(DONE)/requirements
	@tools/horovod/build_wheel.sh $(RUN)
	@touch $@

$(DONE)/package: setup.py pyproject.toml $(DONE)/horovod
	@echo "Compiling the native operations and installing hvd_sparse in development mode (some three minutes) ..."
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
