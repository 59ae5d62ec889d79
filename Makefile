# Each target makes its own virtual environment (.venv) with exact pins; TORCH=2.15.0 is another release, in .venv-2.15.0.
PYTHON ?= python3
TORCH ?= 2.13.0
ifeq ($(TORCH),2.13.0)
VENV := .venv
REQUIREMENTS := requirements.txt
else
VENV := .venv-$(TORCH)
REQUIREMENTS := requirements-$(TORCH).txt
endif
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Two workers and one thread each, or the workers' threads fight for the cores; who is done first helps the other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $${TEST_WORKERS:-2} --dist worksteal

.PHONY: demo gpu bench docs test test-full test-times row-worth smoke test-overlay test-flag fuzz lint verify clean

demo: $(READY)
	$(BIN)/python benchmarks/demo.py

# On a machine with a GPU: flat, each block compiled by itself, marks, the flag. It says so where there is none.
gpu: $(READY)
	$(BIN)/python -m benchmarks.gpu

# Every time that README.md shows or links to: hours, on a machine that is not shared. SMOKE=1 runs one small row of each, to
# see that it works; OUT is the folder for Markdown, JSON and plots. MISSING=1 measures the rows that are not there yet.
OUT ?= docs/figures
INTO = $(if $(MISSING),--missing) --out $(OUT)
bench: $(READY)
	$(BIN)/python -m benchmarks.compare $(if $(SMOKE),gpt2 --layers 3 --repeat 1 --backend aot_eager) $(INTO)
	$(BIN)/python -m benchmarks.zoo_table $(if $(SMOKE),encoder --layers 3 --repeat 1) $(INTO)
	$(BIN)/python -m benchmarks.first_call $(if $(SMOKE),--models gpt2 --layers 2 3 --repeat 1 --backend aot_eager) $(INTO)
	$(BIN)/python -m benchmarks.stack $(if $(SMOKE),plain --layers 3 --repeat 1) $(INTO)
	$(BIN)/python -m benchmarks.ways $(if $(SMOKE),--layers 3 --repeat 1) --out $(OUT)

# The pages under docs/ and those at the root as one site, in build/site. A link that leads nowhere is an error.
docs: .venv-docs/.ready
	.venv-docs/bin/mkdocs build --strict --quiet

.venv-docs/.ready: requirements-docs.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	touch $@

test: $(READY)
	$(BIN)/python -m torch_regions verify
	-$(BIN)/python tools/redis_server.py  # without it, the test of the remote cache is skipped and says so
	$(PYTEST) --sampled test

# All cases: `make test` runs each value of each parameter of a test, not their product, fewer of tests that take long, and
# of architectures and modes those that differ most.
test-full: $(READY)
	REGIONS_ALL_MODELS=1 REGIONS_FULL=1 $(PYTEST) test

# CPU seconds of each file of TESTS, in one process. CASES=1 runs one case of each test function and reckons with it. COSTS=1
# writes what `make test` chooses the cases of slow tests by.
test-times: $(READY)
	CASES=$(or $(CASES),0) COSTS=$(or $(COSTS),0) PYTHONPATH=test OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p no:xdist -p testing.cpu_times $(or $(TESTS),test)

# What each row of cost and speed saves of a compile and of a trace: more than an hour on a machine that is not shared.
row-worth: $(READY)
	$(BIN)/python -m benchmarks.row_worth --out docs/figures

# A few minutes for a release that `make test` is not run for: the manifest, the decisions about each kind of guard,
# source and value, programs of each kind, and code for CUDA.
SMOKE := test/overlay/test_releases.py $(addprefix test/dynamo/regions/trace/,test_decisions.py test_expressions.py \
	test_deferred.py) test/dynamo/variables/test_invoke_subgraph_effects.py \
	$(addprefix test/functorch/,test_region_boundary_cost.py test_region_seeds.py) \
	test/inductor/test_cuda_code.py

smoke: $(READY)
	$(BIN)/python -m torch_regions verify
	$(PYTEST) $(SMOKE)

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

$(READY): $(REQUIREMENTS) requirements-tools.txt requirements-data.txt constraints.txt setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(REQUIREMENTS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-data.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	# Other packages depend on torch too, and none of them is to decide which one is there.
	$(BIN)/python -c "import torch; assert torch.__version__.split('+')[0] == '$(TORCH)', torch.__version__"
	touch $(READY)

clean:
	rm -rf .venv .venv-* .redis build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
