PYTHON ?= python3
VENV ?= .venv
SEED ?= 1
# What this machine has: `make SET=cpu demo` takes the other one. In /dev: a GPU, NVIDIA's driver, or WSL's.
SET ?= $(if $(wildcard /dev/nvidia[0-9]* /dev/nvidiactl /dev/dxg),gpu,cpu)
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(SET)
PIP := $(BIN)/pip install -q --disable-pip-version-check -c requirements/$(SET).txt
# Beside the product: what its tests need. An image has none of it (deploy/docker): `make DEV= install`.
DEV ?= --group dev
EXTRA := $(if $(filter gpu,$(SET)),gpu,train)
export OMP_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false
export NO_MKDOCS_2_WARNING := 1
# A run is a dozen processes: each would compile our modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: deploy-check install install-benchmarks resolve demo demo-smollm2 quick test test-real test-rest test-rest-a-m test-rest-n-z lint docs docs-serve soak chaos \
	strangers users cases docs-run agent-kills attacks \
	console chaos-soak mutate mutate-soak bench clean

# What is installed stands in pyproject.toml alone, its exact versions in requirements/cpu.txt and requirements/gpu.txt.
# pip is brought up to date first, since older ones do not know dependency groups. torch comes next and alone: whatever
# wants it afterwards finds the build that fits this machine. With GPUs, `engines` has little left to install.
$(INSTALLED): pyproject.toml requirements/constraints.txt requirements/$(SET).txt
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] <= (3, 13) else "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) pip
	$(PIP) torch
	$(PIP) $(DEV) -e '.[$(EXTRA)]'
	$(PIP) --no-deps --group engines
	rm -f $(VENV)/.installed*
	touch $(INSTALLED)

install: $(INSTALLED)

install-benchmarks: $(INSTALLED)
	$(PIP) --no-deps --group benchmarks

# Both sets of versions against the package index, for each Python; nothing is installed.
resolve: $(INSTALLED)
	$(BIN)/python -m pytest -m soak tests/test_sets.py

demo: $(INSTALLED)
	$(BIN)/slime-events demo

# the console's page from its sources, by npm: fails if the committed `dist` is another
console: $(INSTALLED)
	$(BIN)/python -m tools.console_build

demo-smollm2: $(INSTALLED)
	$(BIN)/slime-events demo --model smollm2-135m

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

docs: $(INSTALLED)
	$(BIN)/mkdocs build --strict --quiet
	@echo "the pages are in site/index.html"

docs-serve: $(INSTALLED)
	$(BIN)/mkdocs serve

# Real runs mostly wait for what they start, and everything else leaves cores idle too: side by side they take the time
# of the longer one. Several real runs at once hold each other up: their processes poll while they wait. What each of
# them says is shown when it is done.
test: $(INSTALLED)
	@echo "lint, docs, real runs and everything else side by side, some 20 minutes on two slow cores; each reports at its end"
	$(MAKE) -j 4 --output-sync=target lint docs test-real $(REST)

# What the change touches: lint, then the tests that are nearest to it by imports, for a minute and a half.
quick: $(INSTALLED)
	$(BIN)/python -m tools.quick

# Only the files that have such tests: to collect all others takes a quarter of a minute.
test-real: $(INSTALLED)
	$(BIN)/python -m pytest -m "real and not soak" $(sort $(shell grep -rl --include='test_*.py' 'mark\.real' tests))

# Two processes of pytest, each with half of the folders. Workers of pytest-xdist would each collect all tests, and send
# a report of each to a third process: that is a millisecond of CPU for each of 13,000 tests.
REST := test-rest-a-m test-rest-n-z
test-rest: $(INSTALLED)
	$(MAKE) -j 2 --output-sync=target $(REST)

test-rest-a-m: $(INSTALLED)
	$(BIN)/python -m pytest -m "not soak and not real" tests/[a-m]*/

test-rest-n-z: $(INSTALLED)
	$(BIN)/python -m pytest -m "not soak and not real" tests/[n-z]*/ tests/test_*.py

soak: $(INSTALLED)
	-$(PIP) --group fuzz
	$(BIN)/python -m pytest -m soak --timeout 3600
	$(BIN)/python -m pytest -m "hypothesis and not soak" --hypothesis-profile explore --hypothesis-seed $(SEED)

chaos: $(INSTALLED)
	$(BIN)/python -m tests.harness.chaos --kills 30 --seed $(SEED)
	$(BIN)/python -m tests.harness.chaos --kills 30 --seed $(SEED) --max-staleness 2

strangers: $(INSTALLED)
	$(BIN)/python -m tests.harness.strangers --seed $(SEED)

# each plug point of slime's with a user's file, in a real short run of its own
users: $(INSTALLED)
	$(BIN)/python -m tests.harness.users

# inputs that once ended a run, each in a real short run
cases: $(INSTALLED)
	$(BIN)/python -m tests.harness.cases

# what somebody with a run's credentials would try, on loopback, against real runs that go on afterwards
attacks: $(INSTALLED)
	$(BIN)/python -m tests.harness.attacks

# every command, program and config of the pages and examples that starts a run, in a folder of its own
docs-run: $(INSTALLED)
	$(BIN)/python -m tests.harness.docs_run

# agents of eight packages, from PyPI and npm, in real runs whose gateway, engine and conductor are killed under them
agent-kills: $(INSTALLED)
	$(BIN)/python -m tests.harness.agent_kills --install build/agents --seed $(SEED)

chaos-soak: $(INSTALLED)
	$(BIN)/python -m tests.harness.chaos --kills 200 --seed $(SEED)
	$(BIN)/python -m tests.harness.chaos --kills 200 --seed $(SEED) --max-staleness 2

# faults in product code, which the tests have to notice; the soak tries every one that can be generated
mutate: $(INSTALLED)
	$(BIN)/python -m tests.harness.mutation --seed $(SEED)

mutate-soak: $(INSTALLED)
	$(BIN)/python -m tests.harness.mutation --all

# what lies in deploy/: its files by what can read them, then its services as processes with a run driven through them
deploy-check: $(INSTALLED)
	$(PIP) --group deploy
	$(BIN)/python -m deploy.check

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build site *.egg-info
