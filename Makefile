# One command each. The first run makes .venv from pinned, hash-checked requirements;
# nothing else on the machine is touched. Needs python3 (3.11 or newer, with venv) and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NEW_ENOUGH := $(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "ringcast needs Python 3.11 or newer; $(PYTHON) is %d.%d. Set PYTHON=." % v[:2])'
# What builds the documentation has an environment of its own: tests need none of it.
SITE := .venv-docs
SITE_READY := $(SITE)/.ready
# Tests start hundreds of processes: the first one compiles for all.
unexport PYTHONDONTWRITEBYTECODE
# They sync thousands of files: in memory where there is room for them, so that no disk is waited for.
ROOM := $(shell df --output=avail /dev/shm 2> /dev/null | tail -n 1)
TEMPORARY := $(shell [ "$(ROOM)" -gt 4000000 ] 2> /dev/null && echo TMPDIR=/dev/shm)

# Counting branches makes a test take three times as long. What reaches none that others do not reach
# runs without: whole groups, messages by the thousand, examples that are drawn, tests of other packages,
# and scripts in which a defect is planted.
WHOLE := $(addprefix tests/scenarios/test_,long_paths.py small_buffers.py sync_scenarios.py unicast_tail.py view_scenarios.py wide_gaps.py) \
    tests/unit/protocols/test_repair_cost.py \
    $(addprefix tests/unit/protocols/test_views_,links.py parting.py random.py reading.py steps.py)
SOME := tests/test_scripts.py::test_a_planted_defect_changes_the_answers \
    tests/unit/protocols/test_views_state.py::test_at_random_all_that_go_on_together_end_with_one_state
SMALL := tests/properties tests/unit/explore tests/unit/trace $(WHOLE) $(SOME)
PARTS := tests/scenarios tests/test_scripts.py $(filter-out $(SMALL),$(wildcard tests/unit/*))

.PHONY: help setup demo test check proof pythons fuzz mutants golden bench peers pictures docs lock clean
help:           ## this list
	@grep -E '^[a-z]+: .*##|^[a-z]+:  *##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

setup: $(READY) ## make .venv (every other target does it by itself)
$(READY): requirements/dev.txt pyproject.toml
	@$(NEW_ENOUGH)
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)  ## the main job, on this machine
	@$(BIN)/ringcast demo

test: $(READY)  ## everything that must hold on every commit (minutes)
	@$(MAKE) --no-print-directory --output-sync --jobs 3 test-spark test-real test-commands test-sim test-small test-parts

# Three at a time on two cores, because what waits for sockets and processes waits half of its time: Spark;
# groups on real sockets; commands, attacks and all that is nowhere else; simulations; small cases,
# exhaustively; the state machines with their branches counted. The longest come first, so that both cores
# have work to the end.
.PHONY: test-sim test-spark test-real test-commands test-small test-parts
test-spark: $(READY)
	@$(TEMPORARY) $(BIN)/pytest -q -m "not proof" tests/spark
test-real: $(READY)
	@$(TEMPORARY) $(BIN)/pytest -q -m "not proof" tests/aio
test-commands: $(READY)
	@$(TEMPORARY) $(BIN)/pytest -q -m "not proof" $(addprefix --ignore=tests/,aio sim spark) $(addprefix --ignore=,$(SMALL) $(PARTS))
test-sim: $(READY)
	@$(TEMPORARY) $(BIN)/pytest -q -m "not proof" tests/sim
test-small: $(READY)
	@$(TEMPORARY) $(BIN)/pytest -q -m "not proof" $(SMALL)
test-parts: $(READY)
	@$(TEMPORARY) $(BIN)/coverage run -m pytest -q -m "not proof" $(addprefix --ignore=,$(WHOLE)) $(addprefix --deselect=,$(SOME)) $(PARTS)
	@$(BIN)/coverage report

check: $(READY) ## format, lint, types, tidiness
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(TEMPORARY) $(BIN)/pytest -q tests/test_tidy.py

proof: $(READY) ## the long runs: many seeds, full explorations, kills (an hour)
	@$(MAKE) --no-print-directory --output-sync --jobs 2 proof-sim proof-spark proof-small proof-floor proof-uvloop pythons

# Two at a time, as above.
.PHONY: proof-sim proof-spark proof-small proof-floor proof-uvloop
proof-sim: $(READY)
	@$(TEMPORARY) $(BIN)/pytest -q -m proof tests/sim
proof-spark: $(READY)
	@$(TEMPORARY) $(BIN)/pytest -q -m proof tests/spark
proof-small: $(READY)
	@$(TEMPORARY) $(BIN)/pytest -q -m proof $(addprefix --ignore=tests/,sim spark)
	@$(TEMPORARY) $(BIN)/pytest -q --hypothesis-profile=fresh tests/properties

# Where only this test sees it: our commands use it where it is installed.
proof-uvloop: $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --upgrade --target build/uvloop -r requirements/uvloop.txt
	@$(TEMPORARY) PYTHONPATH=build/uvloop $(BIN)/pytest -q -m proof tests/aio/test_uvloop.py

# The oldest PySpark that the extra admits; the pins have the newest. It leaves sockets to be collected,
# which is no warning of ours.
proof-floor: $(READY)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --upgrade --target build/floor -r requirements/floor.txt
	@$(TEMPORARY) PYTHONPATH=build/floor $(BIN)/pytest -q -W ignore::pytest.PytestUnraisableExceptionWarning \
	    tests/spark/test_oldest_spark.py tests/spark/test_audit.py

VERSIONS := 3.12 3.13 3.14
VERSIONED := $(filter-out tests/unit/explore,$(wildcard tests/unit/*)) $(addprefix tests/,properties test_scripts.py) \
    $(addprefix tests/aio/test_,udp.py tcp.py multicast_transport.py group.py group_requests.py blocking.py interrupts.py)
pythons:        ## the core and real groups on other Pythons, as far as python3.12 to python3.14 are here
	@for v in $(VERSIONS); do \
	    if python$$v -c '' 2> /dev/null; \
	    then $(MAKE) --no-print-directory VENV=.venv-$$v PYTHON=python$$v test-versioned || exit; \
	    else echo "python$$v is not here"; fi; done
.PHONY: test-versioned
test-versioned: $(READY)
	@$(BIN)/python --version
	@$(TEMPORARY) $(BIN)/pytest -q -m "not proof" $(addprefix --ignore=,$(filter-out %reading.py,$(WHOLE))) $(VERSIONED)

fuzz: $(READY)  ## mutate what strangers, networks and disks hand us, for MINUTES=10
	@$(BIN)/python tools/fuzz.py --minutes $(or $(MINUTES),10)

mutants: $(READY) ## do tests notice a changed line? COUNT=300 SEED=1 FIRST=20 ONLY=protocols/total REPLAY=number
	@$(TEMPORARY) $(BIN)/python -m tools.mutants $(if $(SEED),--seed $(SEED)) $(if $(COUNT),--count $(COUNT)) \
	    $(if $(FIRST),--first $(FIRST)) $(if $(ONLY),--only $(ONLY)) $(if $(REPLAY),--replay $(REPLAY))

golden: $(READY) ## is behaviour as recorded? RENEW="why" accepts it as it is, LIST=1 lists renewals, FIRST=3 runs few seeds
	@$(BIN)/python tools/golden.py $(if $(LIST),--list) $(if $(FIRST),--first $(FIRST)) $(if $(RENEW),--renew "$(RENEW)")

bench: $(READY) ## measure; prints aims, fails only if messages are lost
	@$(BIN)/ringcast bench codec
	@$(BIN)/ringcast bench refuse
	@$(BIN)/ringcast bench window
	@$(BIN)/ringcast bench ring
	@$(BIN)/ringcast bench multicast --matrix
	@$(BIN)/ringcast bench multicast --insecure --size 100 --size 1000 --size 10000
	@$(BIN)/ringcast bench unicast
	@$(BIN)/ringcast bench rtt
	@$(BIN)/ringcast bench memory --minutes 2
	@$(BIN)/ringcast bench join
	@$(BIN)/ringcast bench crash
	@$(BIN)/ringcast bench idle
	@$(BIN)/ringcast bench state
	@$(BIN)/ringcast bench source
	@$(BIN)/ringcast bench sink
	@$(BIN)/ringcast bench fleet
	@$(BIN)/ringcast bench audit --rows 5000000 --rows 50000000

peers: $(READY) ## what `ringcast bench peers` compares with, into build/peers
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --upgrade --target build/peers -r requirements/peers.txt

pictures: $(READY) docs ## reports, terminals and the site as screens show them (needs chromium)
	@$(BIN)/python tools/pictures.py build/pictures --site build/site

docs: $(SITE_READY) ## the documentation site, in build/site; a warning is an error
	@PYTHONPATH=src:. $(SITE)/bin/python tools/site_pages.py build/pages
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet --strict
	@echo "build/site/index.html"
$(SITE_READY): requirements/docs.txt
	@$(NEW_ENOUGH)
	@echo "setting up $(SITE) (once)"
	@$(PYTHON) -m venv --clear $(SITE)
	@$(SITE)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

COMPILE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url
lock:           ## renew the pinned requirements (needs uv on PATH)
	@$(COMPILE) --extra dev --extra spark pyproject.toml --output-file requirements/dev.txt
	@$(COMPILE) --extra docs pyproject.toml --output-file requirements/docs.txt
	@$(COMPILE) --group uvloop --output-file requirements/uvloop.txt
	@$(COMPILE) --group floor --output-file requirements/floor.txt
	@$(COMPILE) --group peers --output-file requirements/peers.txt

clean:          ## remove what the other targets made
	@rm -rf $(VENV) $(SITE) $(addprefix .venv-,$(VERSIONS)) .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
