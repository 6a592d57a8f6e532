# Everything runs from .venv, which the first target to need it makes.
PYTHON ?= python3
BIN := .venv/bin
# What pip installs as PyTorch. On Linux the default wheel brings CUDA along,
# gigabytes of it: there, better TORCH="torch --index-url URL" with the address
# of the CPU builds that PyTorch's installation page gives.
TORCH ?= torch==2.13.0
# Versions that were tested, of all that pip installs here. Empty, as in
# `make CONSTRAINTS= test`, it installs the newest; `make constraints` renews it.
CONSTRAINTS ?= constraints.txt
INSTALL = $(BIN)/python -m pip install --quiet \
    $(CONSTRAINTS:%=--constraint %) --editable
# The export that `make serve` serves, and the one that tests of the page do.
MODEL ?= saved_models/captions-en-de
TESTED_MODEL ?= saved_models/demo
# What the other backends run, too.
ON_EACH_BACKEND = tests/test_conformance.py tests/test_features.py \
    tests/test_windowed_attention.py tests/test_positions_inside.py \
    tests/test_calls.py tests/test_drop_in.py tests/test_block_options.py \
    tests/same_outputs.py
# In benchmarks and examples mypy only checks that calls fit their functions.
OTHER_ERRORS = arg-type assignment attr-defined call-overload index \
    method-assign misc operator union-attr var-annotated
# TensorFlow's start-up chatter goes to a file, which is shown on failure.
QUIETLY = 2>runs/stderr.txt || { cat runs/stderr.txt; exit 1; }

.PHONY: check demo serve test test-jax test-torch test-transformers test-page \
    test-formats test-programs test-serve test-hostile test-ray test-slow fuzz docs lint \
    format constraints clean

demo: .venv/text  ## train, export and use a model: three to seven minutes
	@mkdir -p runs
	$(BIN)/python examples/translation.py $(QUIETLY)
	$(BIN)/python examples/use_saved_model.py saved_models/demo/1 $(QUIETLY)

serve: .venv/text .venv/serve $(MODEL)  ## serve a model, with a page to try it
	$(BIN)/keras-transformer serve $(MODEL)

# All that has to pass.
check: lint test test-programs test-serve test-jax test-torch

test: .venv/dev  ## what to run while working: seven to eleven minutes
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# TensorFlow writes what it computes; the other backends compute the same. On JAX
# nearly all of the time goes into compiling 900 small programs.
test-jax: .venv/dev runs/outputs.npz  ## the conformance suite on JAX
	JAX_DISABLE_MOST_OPTIMIZATIONS=1 \
	    XLA_FLAGS=--xla_cpu_use_fusion_emitters=false \
	    KERAS_BACKEND=jax REFERENCE_OUTPUTS=runs/outputs.npz \
	    $(BIN)/python -m pytest -n 2 $(ON_EACH_BACKEND) \
	    tests/jax_checks.py

# No TensorFlow is installed beside it. One thread each, since all is small.
test-torch: .venv-torch/done runs/outputs.npz  ## the same on PyTorch
	OMP_NUM_THREADS=1 KERAS_BACKEND=torch REFERENCE_OUTPUTS=runs/outputs.npz \
	    .venv-torch/bin/python -m pytest -n 2 $(ON_EACH_BACKEND)

.PHONY: runs/outputs.npz
runs/outputs.npz: .venv/dev
	@mkdir -p runs
	$(BIN)/python tests/same_outputs.py $@ $(QUIETLY)

# transformers writes models and what it computes with them; importing them
# gives the same. TRAINED may name a Marian model to take instead of training
# one, which takes ten minutes. The layers of Llama and its relatives are compared
# first, in one process.
test-transformers: .venv/dev .venv-torch/transformers  ## imported models
	@mkdir -p runs
	KERAS_BACKEND=torch .venv-torch/bin/python -m pytest -s \
	    tests/llama_checks.py
	.venv-torch/bin/python tests/marian_reference.py all runs/marian \
	    $(TRAINED:%=--trained %) $(QUIETLY)
	MARIAN_REFERENCE=runs/marian $(BIN)/python -m pytest -s \
	    tests/marian_parity.py

# Each file is read by its own runtime alone.
test-formats: .venv-formats/done  ## ONNX, OpenVINO, LiteRT; three minutes
	.venv-formats/bin/python -m pytest --noconftest tests/formats_checks.py

# Needs Chromium, and says how to install it. SCREENSHOTS may name a folder for
# images of the page; TESTED_MODEL, another export.
test-page: .venv/page $(TESTED_MODEL)  ## the server's page, in a browser
	PAGE_MODEL=$(TESTED_MODEL) $(BIN)/python -m pytest --noconftest \
	    tests/page_checks.py

test-serve: .venv/dev  ## the server as a process, under load
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/serve_checks.py \
	    tests/hostile_checks.py
	SERVE_OPTIONS="--engine ctranslate2" $(BIN)/python -m pytest -n 2 \
	    --dist worksteal tests/serve_checks.py

test-hostile: .venv/dev $(TESTED_MODEL)  ## bad clients; 20 minutes, nothing beside it
	MODEL=$(TESTED_MODEL) REQUESTS=2000 SOAK_SECONDS=600 \
	    $(BIN)/python -m pytest -s tests/hostile_checks.py

# The same checks, computed by replicas of Ray Serve, and those of Ray alone.
test-ray: .venv/ray  ## the server on Ray, under load; five minutes
	SERVE_OPTIONS="--engine ray --ray-replicas 2" \
	    $(BIN)/python -m pytest tests/serve_checks.py tests/ray_checks.py

test-programs: .venv/dev  ## guides, examples, signals, exports as programs
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'programs and not slow'

test-slow: .venv/dev  ## also what takes minutes
	$(BIN)/python -m pytest -m slow

fuzz: .venv/fuzz  ## the readers of foreign bytes; five minutes
	$(BIN)/python tests/fuzz.py --seconds $(or $(SECONDS_EACH),20)

docs: .venv/docs  ## the documentation, in build/docs; runs the guides
	@mkdir -p runs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet \
	    docs build/docs $(QUIETLY)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	MYPYPATH=benchmarks $(BIN)/python -m mypy benchmarks examples \
	    --no-warn-unused-ignores \
	    $(addprefix --disable-error-code=,$(OTHER_ERRORS))

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Without the other PyTorch, whose builds have names of their own.
constraints: setup.py  ## renew constraints.txt, then run `make check`
	rm -rf build/constraints
	$(PYTHON) -m venv build/constraints
	build/constraints/bin/python -m pip install --quiet \
	    '.[dev,docs,formats,page,ray]' 'atheris>=3'
	build/constraints/bin/python -m pip freeze --exclude keras-transformer-paper \
	    > constraints.txt
	rm -rf build/constraints

clean:  ## remove what was installed and built; runs/ and saved_models/ stay
	rm -rf .venv .venv-torch .venv-formats build dist *.egg-info

.venv/dev .venv/text .venv/docs .venv/page .venv/serve: setup.py $(CONSTRAINTS)
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and \
	    "keras_transformer needs Python 3.11 to 3.13; try make PYTHON=python3.12")'
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(INSTALL) '.[$(notdir $@)]'
	touch $@

.venv/fuzz: .venv/dev
	$(BIN)/python -m pip install --quiet 'atheris>=3'
	touch $@

# With both extras pip chooses versions that suit both.
.venv/ray: .venv/dev
	$(INSTALL) '.[dev,ray]'
	touch $@

saved_models/demo:
	$(MAKE) demo

.venv-torch/done: setup.py $(CONSTRAINTS)
	test -x .venv-torch/bin/pip || $(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet $(TORCH)
	.venv-torch/bin/python -m pip install --quiet \
	    $(CONSTRAINTS:%=--constraint %) --editable . 'pytest>=8' pytest-xdist
	touch $@

.venv-formats/done: setup.py $(CONSTRAINTS)
	test -x .venv-formats/bin/pip || $(PYTHON) -m venv .venv-formats
	.venv-formats/bin/python -m pip install --quiet \
	    $(CONSTRAINTS:%=--constraint %) --editable '.[formats]' 'pytest>=8'
	touch $@

.venv-torch/transformers: .venv-torch/done
	.venv-torch/bin/python -m pip install --quiet transformers sentencepiece
	touch $@
