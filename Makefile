# Two commands on a fresh machine with Python >= 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
FLOOR_TESTS := $(addprefix tests/,data/test_chunks.py data/test_observations.py data/test_passes.py \
	data/test_readers.py model/test_links.py model/test_local.py model/test_predictive.py kernels/test_jit.py \
	kernels/test_kernels.py kernels/test_twins.py inference/test_bound.py inference/test_paper.py \
	inference/test_structure.py inference/test_sweep.py inference/test_updates.py search/test_search.py \
	results/test_result.py io/test_checkpoint.py io/test_storage.py io/test_writers.py view/test_plots.py \
	api/test_estimator.py)
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow test-floors lint docs dist pictures oracle calibration bench reproduction scale real video \
	comparison peers fuzz clean

demo: .venv/installed
	$(BIN)/brtf demo

# All quick tests, and those of the mathematics once more with the NumPy kernels.
test: lint
	$(BIN)/pytest -n 2 -m "not slow"
	BRTF_KERNELS=numpy $(BIN)/pytest -n 2 -m "not slow" $(addprefix tests/inference/test_,bound.py \
		updates.py slices.py)

# The slow tests, and generated examples that differ from run to run.
test-slow: .venv/installed
	$(BIN)/pytest -n 2 -m slow
	BRTF_EXAMPLES=random $(BIN)/pytest -n 2 -m "not slow" $(addprefix tests/inference/test_,bound.py sweep.py \
		noise_fit.py slices.py structure.py)

# The quick tests of the mathematics, readers and writers with the oldest versions that pyproject.toml allows.
test-floors: .venv-floors/installed
	.venv-floors/bin/python -m pytest -n 2 -m "not slow" $(FLOOR_TESTS)

# The site, with the gallery and the reference, in docs/_build/html (about two minutes the first time).
docs: .venv/documented
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

# The source distribution and the wheel, in dist; the wheel is installed and passes tests of the unpacked source.
DIST_TESTS := tests/test_package.py tests/api/test_estimator.py tests/io/test_storage.py tests/kernels/test_twins.py
dist:
	rm -rf build/dist && mkdir -p build/dist
	$(PYTHON) -m venv build/dist/builder
	build/dist/builder/bin/python -m pip install --quiet build twine
	build/dist/builder/bin/python -m build --outdir build/dist/files .
	build/dist/builder/bin/twine check --strict build/dist/files/*
	$(PYTHON) -m venv build/dist/user
	wheel=$$(echo build/dist/files/*.whl) && build/dist/user/bin/python -m pip install --quiet "$$wheel[all]" pytest hypothesis
	tar -xzf build/dist/files/*.tar.gz -C build/dist
	cd build/dist/brtf-*/ && rm -r src && ../user/bin/python -m pytest -m "not slow" $(DIST_TESTS)
	mkdir -p dist && cp build/dist/files/* dist

# The pictures of the README and of the documents.
pictures: .venv/installed
	$(BIN)/python docs/draw.py
	$(BIN)/python docs/thumbnails.py

# How close a fit that is told nothing comes to least squares that knows the outliers and the rank (about ten minutes).
oracle: .venv/installed
	$(BIN)/python benchmarks/accuracy.py --seeds 10 --write docs/accuracy.md

# What fits that are told nothing say of truths drawn at random: errors, coverage, ranks (some ten minutes; stop it
# whenever you like, it goes on where it was). Other seeds: make calibration SEEDS=1000:1200
SEEDS ?= 0:400
calibration: .venv/installed
	$(BIN)/python benchmarks/calibration.py --seeds $(SEEDS) --truth-start --rows reproduction/calibration.jsonl --write docs/calibration.md

# Speed and memory against references measured in the same run (a few minutes; leave the machine alone meanwhile).
bench: .venv/installed
	$(BIN)/brtf bench --write docs/performance.md

# The paper's experiments: all repeats of the synthetic ones (hours; stop it whenever you like, it goes on where it was).
reproduction: .venv/installed
	$(BIN)/brtf reproduce table2 video faces --markdown docs/reproduction-images.md
	$(BIN)/brtf reproduce fig2 fig3 table1 --full --markdown docs/reproduction.md

# Sweeps over data in chunks, by one process and by clusters (a few minutes, and some gigabytes of disk in scaling-data).
scale: .venv/installed
	$(BIN)/python benchmarks/scaling.py dense --in-memory --streamed
	$(BIN)/python benchmarks/scaling.py coordinates --in-memory

# Held-out accuracy on real data, which are not part of the project (skipped where they are absent).
real: .venv/installed
	$(BIN)/python benchmarks/real_data.py

# Foreground of surveillance clips against ground truth, likewise.
video: .venv/installed
	$(BIN)/python benchmarks/video.py

# All methods on real data, likewise (hours; stop it whenever you like, it goes on where it was).
comparison: .venv/installed
	$(BIN)/python benchmarks/comparison.py

# Libraries for the same tasks, on generated data (some minutes; installs them into .venv-peers).
peers: .venv-peers/installed
	.venv-peers/bin/python benchmarks/peers.py --seeds 5 --write docs/peers.md

# Random inputs, options and damaged files: each is answered soundly or refused in a sentence (some minutes). By night:
# make fuzz CASES=100000 SEED=1
CASES ?= 10000
SEED ?= 0
fuzz: .venv/installed
	$(BIN)/python benchmarks/fuzz.py --cases $(CASES) --seed $(SEED)

lint: .venv/installed
	$(BIN)/ruff check src tests benchmarks docs examples packaging
	$(BIN)/ruff format --check src tests benchmarks docs examples packaging
	$(BIN)/mypy

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "brtf needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

# The oldest matplotlib calls what pyparsing 3.3 warns of, and warnings are errors.
.venv-floors/installed: pyproject.toml tests/floors.py
	$(PYTHON) -m venv .venv-floors
	$(PYTHON) tests/floors.py > .venv-floors/floors.txt
	.venv-floors/bin/python -m pip install --quiet --requirement .venv-floors/floors.txt 'pytest<9' 'pyparsing<3.3' --editable '.[dev]'
	touch $@

.venv-peers/installed: pyproject.toml
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --editable '.[all]' pyod pypots opencv-python-headless
	touch $@

.venv/documented: .venv/installed
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv .venv-floors .venv-peers build dist docs/_build docs/gallery .pytest_cache .mypy_cache .ruff_cache .hypothesis
