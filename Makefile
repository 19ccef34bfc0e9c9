PYTHON ?= python3
VENV ?= .venv
SEED ?= 1
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
export OMP_NUM_THREADS := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: install demo demo-smollm2 test test-real test-rest lint check soak chaos chaos-soak mutate mutate-soak bench clean

# torch comes first and alone: whatever wants it afterwards finds the build that fits this machine
$(INSTALLED): requirements/base.txt requirements/dev.txt requirements/engines.txt requirements/constraints.txt pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] == (3, 11) else "Python 3.11 is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install -q --disable-pip-version-check -c requirements/constraints.txt -r requirements/base.txt -r requirements/dev.txt
	$(BIN)/pip install -q --disable-pip-version-check --no-deps -r requirements/engines.txt
	$(BIN)/pip install -q --disable-pip-version-check --no-deps -e .
	touch $(INSTALLED)

install: $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/slime-events demo

demo-smollm2: $(INSTALLED)
	$(BIN)/slime-events demo --model smollm2-135m

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# Real runs mostly wait for what they start, and everything else leaves cores idle too: side by side they take the time
# of the longer one. What each of them says is shown when it is done.
test: lint
	@echo "real runs and everything else side by side, some thirteen minutes on two slow cores; each reports at its end"
	$(MAKE) -j 2 --output-sync=target test-real test-rest

test-real: $(INSTALLED)
	$(BIN)/python -m pytest -m "real and not soak"

test-rest: $(INSTALLED)
	$(BIN)/python -m pytest -m "not soak and not real" -n 2 --dist loadfile

soak: $(INSTALLED)
	$(BIN)/python -m pytest -m soak --timeout 3600
	$(BIN)/python -m pytest -m "hypothesis and not soak" --hypothesis-profile explore --hypothesis-seed $(SEED)

chaos: $(INSTALLED)
	$(BIN)/python -m tests.chaos --kills 30 --seed $(SEED)
	$(BIN)/python -m tests.chaos --kills 30 --seed $(SEED) --max-staleness 2

chaos-soak: $(INSTALLED)
	$(BIN)/python -m tests.chaos --kills 200 --seed $(SEED)

# faults in product code, which the tests have to notice; the soak tries every one that can be generated
mutate: $(INSTALLED)
	$(BIN)/python -m tests.mutation --seed $(SEED)

mutate-soak: $(INSTALLED)
	$(BIN)/python -m tests.mutation --all

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build *.egg-info
