# Every target works from a clean clone: it makes .venv when that is missing or stale.
# Needs Python 3.11 or newer and make. Java 17 or newer is used from the PATH, else a wheel brings one.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.complete
JOBS ?= 2
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint format coverage proto lock audit interop bench profile simulate chaos clean

help:  ## show this list
	@echo "Quire: a ledger storage service in Python that speaks Apache BookKeeper"
	@echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv with the pinned packages
	@echo "ready: $(VENV) ($$($(RUN) --version))"

$(STAMP): requirements.lock setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Quire needs Python 3.11 or newer, %s is %s: set PYTHON=python3.11 or newer" % (sys.executable, sys.version.split()[0]))'
	@echo "setup: creating $(VENV) and installing the pinned packages (a minute or two; pyspark is large)"
	@rm -f $(STAMP)
	@$(RUN) -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@$(RUN) -m pip install --quiet --require-hashes --requirement requirements.lock
	@PYTHONWARNINGS=ignore $(RUN) -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: $(STAMP)  ## the main job, end to end, on this machine
	@$(RUN) -m quire demo $(ARGS)

test: $(STAMP)  ## run the tests
	@echo "test: running the tests (embedded ZooKeeper included)"
	@$(RUN) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

lint: $(STAMP)  ## ruff and mypy
	@echo "lint: ruff check, ruff format --check, mypy --strict"
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

format: $(STAMP)  ## rewrite the sources as `make lint` wants them
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

coverage: $(STAMP)  ## run the tests and report the lines and branches they reach
	@echo "coverage: running the tests under coverage (slower than make test)"
	@$(RUN) -m coverage run -m pytest -q $(ARGS)
	@$(RUN) -m coverage report

proto: $(STAMP)  ## generate wire/bookkeeper_pb2.py from wire/bookkeeper.proto
	@echo "proto: generating wire/bookkeeper_pb2.py and .pyi"
	@$(RUN) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. wire/bookkeeper.proto

lock: $(STAMP)  ## write the installed versions into constraints.txt, with hashes into requirements.lock
	@echo "lock: writing constraints.txt and requirements.lock"
	@$(RUN) .ci/lock.py

audit: $(STAMP)  ## look for known vulnerabilities in what is installed, and list the licences
	@echo "audit: licences of what constraints.txt names, then pip-audit in an environment of its own"
	@$(RUN) .ci/licences.py
	@$(PYTHON) -m venv $(VENV)/audit && $(VENV)/audit/bin/pip install --quiet pip-audit
	@$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip --require-hashes --requirement requirements.lock

interop: $(STAMP)  ## exchange with Apache BookKeeper; SET=core for a selection (docs/interop.md)
	@echo "interop: our client and Apache's on our bookies and Apache's (half an hour; SET=core: a quarter)"
	@QUIRE_INTEROP_SET=$(SET) QUIRE_INTEROP_TABLE=$(TABLE) $(RUN) -m pytest -q tests/interop $(ARGS)

PARTS ?= client
bench: $(STAMP)  ## compare with Apache BookKeeper; QUICK=1 within five minutes, PARTS="codec engine" (bench/README.md)
	@for part in $(PARTS); do echo "bench.$$part:"; $(RUN) -m bench.$$part $(if $(QUICK),--quick) $(ARGS) || exit 1; done

profile: $(STAMP)  ## where a bookie's and a client's time goes, by thread (docs/performance.md)
	@echo "profile: appending and reading, a bookie and a client, by thread (half a minute; ARGS=--help: other ways)"
	@$(RUN) -m bench.profile $(ARGS)

SEEDS ?= 1000
FROM ?= 0
RING ?= inner
simulate: $(STAMP)  ## run the protocol under faults from seeds: SEEDS=n, SEED=n for one as a story (docs/faults.md)
	@echo "simulate: the $(RING) ring$(if $(SEED),, from seed $(FROM))"
	@$(RUN) -m tests.simulation --ring $(RING) --jobs $(JOBS) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --first $(FROM)) $(ARGS)

MINUTES ?= 2
chaos: $(STAMP)  ## real processes under real faults: MINUTES=n, SEED=n to repeat (docs/reliability.md)
	@echo "chaos: a cluster of its own under faults for $(MINUTES) minutes (network namespaces if root, else proxies)"
	@$(RUN) -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(ARGS)

clean:  ## remove .venv and everything that can be made again
	@echo "clean: removing .venv, caches and build output"
	@rm -rf $(VENV) .cache build dist *.egg-info .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
