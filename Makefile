# Everything works from a fresh clone: each target makes .venv first if it has to.

# Bytecode is kept, whatever the shell says: hundreds of processes import the package, which takes
# four times as long without.
unexport PYTHONDONTWRITEBYTECODE

# Distributions compile Python with profile-guided optimisation. Version managers often do not: then
# steps on clusters, which are Python's own work, take up to twice as long.
PYTHON ?= $(firstword $(foreach p,/usr/bin/python3 python3 python3.12 python3.11 python3.13,\
	$(shell $(p) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(p))))
BIN := .venv/bin
TF_TESTS ?=
TF_LIST ?=
LIB_TESTS ?=
BENCH ?=
FUZZ ?=
ONNX ?=
ROWS ?=
CHAOS ?=
PYTHONS ?=
TARGETS ?= x86-64-v3 x86-64-v2 znver2 znver4 skylake-avx512 sapphirerapids
# what depends on the processor: TARGET_TESTS=tests takes all
TARGET_TESTS ?= tests/codegen tests/device/cpu tests/lower tests/ops tests/random_graphs tests/image tests/nn --ignore=tests/codegen/cuda
CUDA_TESTS ?= tests/device/cuda tests/functions tests/control tests/ops tests/autodiff tests/random_graphs tests/train tests/variables tests/test_examples.py

.PHONY: install stubs lint format test test-browser test-cuda test-ray test-targets soak chaos demo bench bench-cluster bench-cuda stragglers growth walk roofline roofline-cuda bench-peers exchange fuzz-tf docs first-hour check-wheel conformance conformance-libraries conformance-onnx clean

install: .venv/.stamp

.venv/.stamp: EXTRA := dev
.venv/.demo-stamp: EXTRA := demo
.venv/.stamp .venv/.demo-stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=<path>"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -e ".[$(EXTRA)]"
	touch $@

stubs: .venv/.stamp
	$(BIN)/python -m tools.stubs

lint: .venv/.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports

format: .venv/.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Workers begin with a half each, so that the tests of a file share what their process has made,
# and take from each other in the end.
test: .venv/.stamp
	$(BIN)/python -m pytest -n auto --dist worksteal

test-browser: .venv/.browser-stamp # pages in a real browser
	$(BIN)/python -m pytest tests/browser/explain_page.py

.venv/.browser-stamp: .venv/.stamp
	@command -v chromium chromedriver >/dev/null || { echo "Chromium is needed: apt-get install chromium chromium-driver"; exit 1; }
	$(BIN)/python -m pip install --quiet -e ".[browser]"
	touch $@

test-cuda: .venv/.stamp # on a GPU, or THALWEG_CUDA=emulated without one
	THALWEG_TEST_DEVICE=/gpu:0 $(BIN)/python -m pytest -n auto $(CUDA_TESTS)
	$(BIN)/python benchmarks/cuda/losses.py $(if $(filter emulated,$(THALWEG_CUDA)),--tiny)

test-ray: .venv/.ray-stamp # Ray is large: other targets do without it
	$(BIN)/python -m pytest tests/cluster/launch

.venv/.ray-stamp: .venv/.stamp
	$(BIN)/python -m pip install --quiet -e ".[ray]"
	touch $@

test-targets: .venv/.stamp
	for target in $(TARGETS); do \
		echo "on $$target:"; \
		THALWEG_TARGET=$$target $(BIN)/python -m pytest -n auto $(TARGET_TESTS) || exit 1; \
	done
	@echo "on 16 threads, however many processors there are:"
	THALWEG_THREADS=16 $(BIN)/python -m pytest -n auto $(TARGET_TESTS)

soak: .venv/.stamp
	THALWEG_SOAK=1 $(BIN)/python -m pytest --timeout 7200 tests/random_graphs tests/lower tests/soak \
		tests/control tests/platform

chaos: .venv/.stamp # tasks on a network of namespaces: needs root and iproute2
	$(BIN)/python -m tests.soak.chaos $(CHAOS)

demo: .venv/.demo-stamp # without the development tools
	$(BIN)/python examples/digits.py

bench: .venv/.stamp .bench-venv/.stamp
	$(BIN)/python benchmarks/run.py $(BENCH)

bench-cluster: .venv/.stamp .bench-venv/.stamp
	$(BIN)/python benchmarks/cluster/run.py $(BENCH)

bench-cuda: .venv/.stamp
	$(BIN)/python benchmarks/cuda/networks.py --peers torch jax --warm $(BENCH)
	$(BIN)/python benchmarks/cuda/contractions.py make build/contractions
	$(BIN)/python benchmarks/cuda/contractions.py run build/contractions
	$(BIN)/python benchmarks/cuda/streams.py make build/streams
	$(BIN)/python benchmarks/cuda/streams.py run build/streams
	$(BIN)/python benchmarks/cuda/host_time.py

stragglers: .venv/.stamp
	$(BIN)/python benchmarks/cluster/stragglers.py $(BENCH)

growth: .venv/.stamp
	$(BIN)/python tools/growth.py $(ROWS)

walk: .venv/.stamp
	$(BIN)/python tools/walk.py $(WALK)

roofline: .venv/.stamp
	$(BIN)/python benchmarks/roofline.py

roofline-cuda: .venv/.stamp
	$(BIN)/python benchmarks/cuda/kernel_limits.py

bench-peers: .bench-venv/.stamp

exchange: .venv/.stamp .bench-venv/.stamp
	$(BIN)/python tools/exchange.py .bench-venv/bin/python

conformance-onnx: .venv/.stamp .venv/.onnx-stamp
	$(BIN)/python tools/conformance_onnx.py --markdown docs/conformance_onnx.md $(ONNX)

.venv/.onnx-stamp: .venv/.stamp # onnxruntime is large: other targets do without it
	$(BIN)/python -m pip install --quiet onnxruntime
	touch $@

fuzz-tf: .venv/.stamp .bench-venv/.stamp
	$(BIN)/python -m tools.fuzz_tf --peer .bench-venv/bin/python $(FUZZ)

.bench-venv/.stamp: benchmarks/requirements-peers.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=<path>"; exit 1; }
	test -x .bench-venv/bin/python || $(PYTHON) -m venv .bench-venv
	.bench-venv/bin/python -m pip install --quiet -r benchmarks/requirements-peers.txt
	touch $@

docs: .venv/.stamp .docs-venv/.stamp
	$(BIN)/python tools/ops_table.py docs/ops.md
	PYTHONPATH=. $(BIN)/python tools/optimizer_table.py docs/optimizer_rules.md
	$(BIN)/python tools/reference.py build/reference
	NO_MKDOCS_2_WARNING=1 .docs-venv/bin/mkdocs build --quiet
	@echo "the site: build/site/index.html"

.docs-venv/.stamp: tools/requirements-docs.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=<path>"; exit 1; }
	test -x .docs-venv/bin/python || $(PYTHON) -m venv .docs-venv
	.docs-venv/bin/python -m pip install --quiet -r tools/requirements-docs.txt
	touch $@

first-hour:
	$(PYTHON) tools/first_hour.py

check-wheel: .venv/.stamp
	$(BIN)/python -m tools.check_wheel $(PYTHONS)

conformance: .venv/.stamp
	@test -n "$(TF_TESTS)" || { echo "usage: make conformance TF_TESTS=<a TensorFlow checkout>"; exit 1; }
	$(BIN)/python tools/conformance.py $(TF_TESTS) $(if $(TF_LIST),--list $(TF_LIST)) \
		--markdown docs/conformance.md

conformance-libraries: .venv/.stamp
	@test -n "$(LIB_TESTS)" || { echo "usage: make conformance-libraries LIB_TESTS=<the sources of libraries>"; exit 1; }
	$(BIN)/python -m pip install --quiet -e ".[keras,slim,estimator]" -r tools/library_tests/requirements.txt
	mkdir -p build
	$(BIN)/python -m tools.library_tests $(LIB_TESTS) --results build/libraries.json --markdown build/libraries.md

clean:
	rm -rf .venv .bench-venv .docs-venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
