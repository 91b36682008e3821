# make demo   a NaN hunt from a fresh clone: private environment, build, example
# make test   lint, the whole CPU suite, and the version-sensitive part under every other Triton
# make lint   ruff, mypy, clang-format
# make gpu    the GPU tests and all examples on this machine's accelerator, with its own python3
# make bench  overhead, with the same python3
#
# demo, test and lint need python3 (3.11 or later) with venv, g++ and a package index; everything
# lands in .venv/ and .triton/. gpu and bench need an installed torch and pytest, and no network.

PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

# Tritons beside the one in requirements/triton.txt, and the tests whose outcome depends on it
TRITONS := 3.6.0 3.8.0 3.9.0
TRITON_TESTS := $(addprefix tests/, test_births.py test_cases.py test_checks.py \
	test_cpu_backend.py test_cpu_scalars.py test_cuda_stub.py test_golden_ttir.py test_hints.py \
	test_ir_locations.py test_ir_masks.py test_ir_module.py test_ir_needed.py test_ir_valid.py \
	test_live_cases.py test_plan.py test_probes.py test_sentinels.py test_session_kernels.py \
	test_session_launches.py test_session_loops.py test_survivors.py test_watch.py)

SOURCES := setup.py pyproject.toml $(wildcard flagprism_torch/csrc/*)
LIBRARY := flagprism_torch/_C.abi3.so

.PHONY: demo test test-main lint gpu bench build clean
.DELETE_ON_ERROR:

# compiled afresh: code that another checkout left in the shared cache has no lines of this one
demo: build
	rm -rf build/demo
	TORCHINDUCTOR_CACHE_DIR=$(CURDIR)/build/demo $(BIN)/python examples/nan_hunt.py

test: lint test-main $(TRITONS:%=test-triton-%)

# some tests start a process under each Triton in .triton/
test-main: build $(TRITONS:%=.triton/%/triton/__init__.py)
	$(BIN)/python -m pytest -n $(WORKERS) --durations=10 -m "not gpu" tests

test-triton-%: .triton/%/triton/__init__.py build
	PYTHONPATH=.triton/$* $(BIN)/python -c "import triton; assert triton.__version__ == '$*', triton"
	PYTHONPATH=.triton/$* $(BIN)/python -m pytest -q -n $(WORKERS) \
		-m "not slow and not gpu" $(TRITON_TESTS)

lint: .venv/packages.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(wildcard flagprism_torch/csrc/*)

build: $(LIBRARY)

# also registers the package, so that examples and entry points find it
$(LIBRARY): $(SOURCES) .venv/packages.stamp
	$(PIP) --no-build-isolation --no-deps --editable .
	touch -c $@

$(BIN)/pip:
	$(PYTHON) -m venv .venv

.venv/packages.stamp: $(wildcard requirements/*.txt) | $(BIN)/pip
	$(PIP) -r requirements/torch.txt
	$(PIP) -r requirements/triton.txt
	$(PIP) -r requirements/dev.txt
	touch $@

.triton/%/triton/__init__.py: | $(BIN)/pip
	$(PIP) --no-deps --target .triton/$* triton==$*

gpu bench: export PYTHONPATH := $(CURDIR)
gpu:
	$(PYTHON) setup.py build_ext --inplace
	FLAGPRISM_FAIL_ON_SKIP=1 $(PYTHON) -m pytest --durations=10 tests/gpu

bench:
	$(PYTHON) setup.py build_ext --inplace
	$(PYTHON) -m benchmarks

clean:
	rm -rf build dist *.egg-info flagprism_torch/_C*.so
