# The book and its package. `make` alone lists what it can do.
#
# Needed: make and Python 3.10 or newer. Everything else goes into .venv.
# Another Python: make book PYTHON=python3.12

PYTHON ?= python3
PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin
PRESS := $(BIN)/python -m press
READY := $(VENV)/.ready
# two processes of one thread each, a file at a time, in the order of tests/conftest.py; a
# test that hangs is ended and named, and the others go on
PYTEST := python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder \
	--timeout 900 --timeout-method thread
OLD := .venv-torchtext
# what computes; what is only said, set or marked is the same with any torch
OLD_TESTS := $(addprefix tests/,story engine corpora exchange commands pocket)
# What `make test` runs again hangs on what has changed: a sentence that was
# mended runs no unit test, and a unit test that was mended none of the book's.
BOOK_TESTS := tests/figures tests/pages tests/press tests/site
UNIT_TESTS := $(filter-out $(BOOK_TESTS),$(sort $(patsubst %/,%,$(dir \
	$(wildcard tests/*/test_*.py))))) $(wildcard tests/test_*.py)
files = $(shell find $(1) -type f -not -path '*/__pycache__/*' \
	-not -path 'data/cache/*' 2>/dev/null)
# files among the unit tests that read a page are the book's, too
PAGE_READERS := $(shell grep -rlE --include='test_*.py' \
	'read_(chapter|book)\(|"book/[0-9AE]|"book"( / "[0-9AE]|\))|tests\.pages' $(UNIT_TESTS))
UNITS_READ := $(filter-out $(PAGE_READERS),$(call files,annotated benchmarks data press \
	book/exercises book/notebooks/exercises book/results $(UNIT_TESTS))) \
	$(wildcard tests/*.py) pyproject.toml
# and what unit tests and tests of the book share
SHARED := $(filter-out $(wildcard tests/*/test_*.py),$(wildcard tests/*/*.py)) \
	$(wildcard tests/*.py tests/story/test_multi_head.py tests/book/test_paper_copy.py)
BOOK_READS := $(call files,annotated book data press .github $(BOOK_TESTS)) $(PAGE_READERS) \
	$(SHARED) $(wildcard *.md *.toml *.lock *.cff) Makefile build/tests.names
# files with tests that take minutes
LONG := $(shell grep -rl --include='test_*.py' 'mark.exhaustive' tests)

.DEFAULT_GOAL := help
.PHONY: help book epub pdf zip transformer serve quick test test-long worlds test-torchtext style format \
	notebooks export check minutes lab classroom slides clean names

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' Makefile

book: $(READY) ## run every chapter that is stale and set the pages as site/
	@$(PRESS) book

epub: $(READY) ## the story as dist/attention-annotated.epub, after `make book`
	@$(PRESS) epub

pdf: $(READY) ## the same as dist/attention-annotated.pdf, printed by Chromium
	@$(PRESS) pdf

zip: $(READY) ## site/ and the notebooks as dist/attention-annotated.zip, after `make book`
	@$(PRESS) zip

transformer: $(READY) ## model, loss, training and search as dist/transformer.py, which needs PyTorch alone
	@$(PRESS) transformer

serve: $(READY) ## show site/ in the browser (PORT=8000)
	@$(PRESS) serve --port $(PORT)

quick: $(READY) ## the model, its loss, search, training and checkpoints in a minute: run this first
	@$(BIN)/python start.py test

test: $(READY) ## style, types, drift, rules, unit tests, every page
	@$(MAKE) --no-print-directory -j 2 style check
	@$(MAKE) --no-print-directory build/tests.passed
	@$(PRESS) shake
	@echo "All is well."

worlds: $(READY) ## the book on another processor, number of threads, seed or precision: the next that is not done
	@$(PRESS) worlds

test-long: $(READY) $(LONG:%.py=build/long/%.passed) ## what takes minutes each; stopped, it goes on where it was
	@echo "All is well, at length."

build/long/%.passed: %.py $(UNITS_READ) $(BOOK_READS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -m exhaustive $<
	@mkdir -p $(@D) && touch $@

test-torchtext: $(OLD)/.ready ## model, training, search, data and commands with torch 2.3.1, where torchtext loads
	@$(OLD)/bin/python -c 'import torchtext'
	@OMP_NUM_THREADS=1 $(OLD)/bin/$(PYTEST) $(OLD_TESTS) -m "not slow and not exhaustive" -p no:cacheprovider
	@echo "All is well with torchtext."

export: $(READY) ## write annotated/ and data/pocket/ from the chapters
	@$(PRESS) export
	@$(PRESS) samples

notebooks: $(READY) ## write book/notebooks/*.ipynb from the chapters
	@$(PRESS) notebooks

check: $(READY) ## say what has drifted, which rules pages break, what cannot be set
	@$(PRESS) proof & proof=$$!; $(PRESS) check; checked=$$?; wait $$proof && exit $$checked

classroom: $(READY) ## write a course for nbgrader into classroom/, with its settings (SEED=…: of the hidden checks)
	@$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[classroom]'
	@$(PRESS) classroom $(if $(SEED),--seed '$(SEED)')

slides: $(READY) ## slides for a class, a file for each chapter in dist/slides/, after `make book`
	@$(PRESS) slides

minutes: $(READY) ## say how long each page takes to read
	@$(PRESS) minutes

style: $(READY) ## ruff and mypy
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy

format: $(READY) ## format the exported cells, the press and the tests
	@$(PRESS) format
	@$(BIN)/ruff format --quiet --exclude annotated

lab: $(READY) ## edit the chapters as notebooks in JupyterLab
	JUPYTER_CONFIG_PATH="$(CURDIR)/press/lab" $(BIN)/jupyter lab book

clean: ## remove what was built (.venv stays)
	rm -rf build site .pytest_cache .mypy_cache .ruff_cache .hypothesis

# a tier is due when something that it reads is newer than its last time; both
# are run at once, so that two processes share them evenly
build/tests.passed: build/units.due build/book.due
	@OMP_NUM_THREADS=1 $(BIN)/$(PYTEST) $(if $(filter %/units.due,$?),$(if \
		$(filter %/book.due,$?),tests,$(UNIT_TESTS) $(PAGE_READERS:%=--ignore=%)), \
		$(BOOK_TESTS) $(PAGE_READERS))
	@touch $@

build/units.due: $(READY) $(UNITS_READ)
	@mkdir -p build && touch $@

build/book.due: $(READY) $(BOOK_READS)
	@mkdir -p build && touch $@

# the map of the paper names tests: written anew only when there are others
build/tests.names: names
	@mkdir -p build && grep -ro --include='test_*.py' '^def test_[a-z0-9_]*' tests | sort > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# environment.yml, without conda: what it gives to pip, in a folder of its own
$(OLD)/.ready: environment.yml pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13) and "torch 2.3.1 needs Python 3.10 to 3.12; try: make test-torchtext PYTHON=python3.11")'
	$(PYTHON) -m venv $(OLD)
	@sed -n 's/^      - //p' environment.yml > $(OLD)/pip.txt
	$(OLD)/bin/python -m pip install --quiet -r $(OLD)/pip.txt 'pytest>=8.2' 'pytest-xdist>=3.6' 'pytest-timeout>=2.3' 'hypothesis>=6.100'
	@touch $@

$(READY): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "This needs Python 3.10 or newer; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable '.[book,press,dev]'
	@touch $@
