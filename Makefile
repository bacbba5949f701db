# Every recipe sets up what it needs and can be run again at any time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# The oldest Spark that is supported, in its newest release, and with it pandas before version 3.
OLDEST := 4.2.1
VENV42 := .venv-4.2
READY42 := $(VENV42)/.ready-$(OLDEST)
READY_DOCS := $(VENV)/.ready-docs
# Built in an environment without Spark, which takes seconds.
RELEASE := .venv-release
READY_RELEASE := $(RELEASE)/.ready
AUDIT := .venv-audit
# An install compiles it; a library of an older source is refused.
COMPILED := sources/pyspark_timestream/kafka/client/native/native_reader.c \
	sources/pyspark_timestream/kafka/decode/json/scan_json.c
# Where the programs of integration/ find what they share.
SUPPORT := $(shell echo $(CURDIR)/integration/support/* | tr ' ' :)
# Spark starts its workers with `python3` from PATH unless told otherwise.
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(BIN)/python
# Images of containers set it; each process of Spark would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

# The second tries of tests/conftest.py, for the tests of integration/, which all may start Spark.
RERUNS := --reruns 2 --only-rerun 'Python worker failed to connect back' -raR

# Java's second compiler pays off after minutes; the tests' queries end in seconds, and take 0.6 of the
# time without it.
JVM_FLAGS := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
# An archive of Spark's loaded classes: with it a session starts in 0.55 of the processor time.
# A Java that cannot use the file starts without it; -Xlog keeps it from saying so.
CLASSES := $(VENV)/spark-classes.jsa
SHARED_CLASSES := -XX:SharedArchiveFile=$(CURDIR)/$(CLASSES) -Xlog:cds*=off

# Tests spend part of their time waiting for a process, a broker or a kill, so pytest gets one process
# more than there are cores. At most four: each may have a session of Spark in memory.
WORKERS = -n $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? n + 1 : 4))) --dist worksteal --durations=25

.PHONY: help run run-flights test test-more test-4.2 integration beside-spark soak soak-store fuzz questions simulate soak-native soak-restarts chaos long mutants audit bench picture lint docs docs-check dist wheels ci prepare clean java

help: ## what can be made
	@grep -hE '^[a-z0-9.-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 16

java:
	@command -v java >/dev/null 2>&1 && java -version 2>&1 | grep -qE 'version "(1[7-9]|[2-9][0-9])' || \
	  { echo "timestream needs Java 17 or newer on PATH for Spark: install one (Debian: apt-get install openjdk-17-jre-headless)."; exit 1; }

PYTHON_IS_NEW = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "timestream needs Python 3.11 or newer: run make PYTHON=/path/to/python3.11."; exit 1; }
# pip is silent while it downloads Spark (430 MB), so progress.py prints a line meanwhile. pip compiles
# nothing: few modules are ever imported, and Python compiles those when it imports them.
PIP_INSTALL = $(PYTHON) sources/pyspark_timestream/demo/progress.py "Installing Spark and what else is needed into $(1)" 60 \
	  sh -c '$(1)/bin/python -m pip install --upgrade "pip>=25.1" && $(1)/bin/python -m pip install --no-compile $(2)'

$(READY): pyproject.toml $(COMPILED)
	@$(PYTHON_IS_NEW)
	@$(PYTHON) -m venv $(VENV)
	@$(call PIP_INSTALL,$(VENV),--group test --group lint -e .)
	@touch $@

$(READY42): pyproject.toml $(COMPILED)
	@$(PYTHON_IS_NEW)
	@$(PYTHON) -m venv $(VENV42)
	@$(call PIP_INSTALL,$(VENV42),--group test pyspark==$(OLDEST) "pandas<3" -e .)
	@touch $@

$(READY_RELEASE): pyproject.toml
	@$(PYTHON_IS_NEW)
	@$(PYTHON) -m venv $(RELEASE)
	@$(RELEASE)/bin/python -m pip install -q --upgrade "pip>=25.1"
	@$(RELEASE)/bin/python -m pip install -q --group release
	@touch $@

prepare: java $(READY) $(READY42) $(CLASSES) ## install what the tests need; with -j2 several at a time

run run-flights $(CLASSES): export PYTHONPATH := $(SUPPORT)
run: java $(READY) ## simulate a day in seconds: clock -> hourly windows -> tseries
	@$(BIN)/python integration/support/jobs/day.py

run-flights: java $(READY) ## the flights of 2013 through a real Kafka broker
	@$(BIN)/python integration/support/jobs/flights.py

$(CLASSES): export JVM_FLAGS := $(JVM_FLAGS)
$(CLASSES): $(READY)
	@$(PYTHON) sources/pyspark_timestream/demo/progress.py "Keeping Spark's classes for sessions of tests" 70 \
	  $(BIN)/python integration/support/sessions/archive_classes.py $(CURDIR)/$@

test test-more test-4.2 integration: export JVM_FLAGS := $(JVM_FLAGS)
# NumPy's threads of linear algebra busy-wait when they start, a tenth of a second in each process.
test test-more test-4.2 integration: export OPENBLAS_NUM_THREADS := 1
test test-more integration: export SPARK_SUBMIT_OPTS := $(JVM_FLAGS) $(SHARED_CLASSES)
test-4.2: export SPARK_SUBMIT_OPTS := $(JVM_FLAGS)
# Compiling a query takes longer than interpreting it for the few rows of a test. `make soak` compiles,
# as users' sessions do.
test test-more test-4.2 integration: export PYSPARK_SUBMIT_ARGS := --conf spark.sql.codegen.wholeStage=false \
	--conf spark.sql.codegen.factoryMode=NO_CODEGEN pyspark-shell
# It starts too few sessions of Spark for the archive of classes to pay off.
test: java $(READY) ## the fast tests: all rules, and a store or a stream of Spark for each thing that users rely on
	$(BIN)/python -m pytest tests -m "(not session and not disk or everyday) and not thorough and not outside_ci and not soak" $(WORKERS) -raR

# `.ci/run` sets SHORT=1, because all recipes share one machine there; in `ci.yml` each has its own.
test-more integration: FEWER := $(if $(SHORT), and not outside_ci)
test-4.2: FEWER := $(if $(SHORT), and not outside_ci and (everyday or not session))

test-more: java $(CLASSES) ## the other tests with a store, Spark or an S3 server, and those that kill, damage, crowd memory or plant bugs; SHORT=1: without the longest
	$(BIN)/python -m pytest tests -m "((session or disk) and not everyday or thorough or outside_ci) and not soak$(FEWER)" $(WORKERS) -raR

test-4.2: export PYSPARK_PYTHON := $(CURDIR)/$(VENV42)/bin/python
test-4.2: export PYSPARK_DRIVER_PYTHON := $(CURDIR)/$(VENV42)/bin/python
test-4.2: java $(READY42) ## the fast tests that touch Spark or pandas, on the oldest Spark that is supported and on pandas 2; SHORT=1: with few of those that start Spark
	$(VENV42)/bin/python -m pytest tests -m "(spark or pandas) and not soak$(FEWER)" $(WORKERS) -raR

integration: java $(CLASSES) ## the real thing: a Kafka broker, kills, restarts, a cluster; SHORT=1: without the longest
	$(BIN)/python -m pytest integration -m "not soak$(FEWER)" $(WORKERS) $(RERUNS)

beside-spark: java $(READY) ## all cases of Spark's own Kafka suites, by its source and by ours; one of each kind is part of CI
	$(BIN)/python -m pytest integration/spark/test_beside_*.py integration/spark/test_watermark.py $(RERUNS)

soak: export FULL_LENGTH := 1
soak: java $(READY) ## all tests at full length: every example, kill and commit; for an hour and a half; not part of CI
	$(BIN)/python -m pytest tests integration $(WORKERS) $(RERUNS)

soak-store: export STORE_KILLS := 50
soak-store: export MODEL_SECONDS := 600
soak-store: export DAMAGES := 3000
soak-store: java $(READY) ## a store against its model for ten minutes, 6,000 damaged files, four writers for ten minutes, 50 kills; not part of CI
	$(BIN)/python -m pytest tests/tseries/test_store_model.py -s
	$(BIN)/python -m pytest tests/tseries/maintain/test_damage.py -k no_damage -s
	$(BIN)/python -m pytest integration/faults/test_store_soak.py integration/faults/test_store_kills.py \
	  -k "ten_minutes or any_kill" $(RERUNS)

questions: export QUESTIONS := 3000
questions: export FULL_LENGTH := 1
questions: java $(READY) ## thousands of random stores are asked every question, beside DuckDB over the deliveries; an hour; not part of CI
	$(BIN)/python -m pytest tests/tseries/test_raw_questions.py -s

fuzz: export FUZZ_MINUTES := $(or $(MINUTES),10)
fuzz: java $(READY) ## hostile options, schemas, records and stored files for ten minutes, or MINUTES=; a minute of it is part of CI
	$(BIN)/python -m pytest -n0 tests/test_fuzz.py -k hostile -s

# The seed decides everything: SEED=n repeats a run, FAULTS=m injects no fault after m steps.
simulate: export PYTHONPATH := $(CURDIR)/tests/lib
simulate: $(READY) ## a query, its brokers, its disk and all that may go wrong with them, by seed; MINUTES=2, HOURS=8 or SEED=n
	@$(BIN)/python -m simulation $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS)) \
	  $(if $(MINUTES),--minutes $(MINUTES)) $(if $(HOURS),--hours $(HOURS))

soak-native: export SOAK_SECONDS := 1800
soak-native: java $(READY) ## the native reader for half an hour under the address sanitizer; twelve seconds of it are part of CI
	$(BIN)/python -m pytest integration/kafka/test_native.py -k sanitizer $(RERUNS)

soak-restarts: export RESTART_ROUNDS := 10
soak-restarts: java $(READY) ## three brokers, each restarted or killed ten times under production; one round is part of make soak
	$(BIN)/python -m pytest integration/faults/test_rolling_restarts.py $(RERUNS)

# Each seed runs a whole chain, for minutes, and then stores and clients without Spark. Kinds of faults
# that the kept results have seldom seen come first.
chaos: SEEDS ?= 20
chaos: FIRST ?= 1
chaos: export PYTHONPATH := bench/measuring:$(SUPPORT)
chaos: export OPENBLAS_NUM_THREADS := 1
chaos: java $(CLASSES) ## real faults from SEEDS seeds, the FIRST being 1, on a whole chain, each checked; an hour; not part of CI
	$(BIN)/python integration/support/chaos/chaos_campaign.py .work/chaos/faults.jsonl --kept .work/chaos/chaos.json $$(seq $(FIRST) $$(($(FIRST) + $(SEEDS) - 1)))
	$(BIN)/python integration/support/chaos/chaos_campaign.py .work/chaos/stores.jsonl --without-spark --rounds 4 --pause 8 $$(seq $$(($(FIRST) + 1000)) $$(($(FIRST) + 999 + $(SEEDS))))
	$(BIN)/python integration/support/chaos/chaos_results.py .work/chaos/chaos.json .work/chaos/faults.jsonl .work/chaos/stores.jsonl

$(READY_DOCS): $(READY)
	@$(BIN)/python -m pip install -q --group docs
	@touch $@

# A build needs no network, so links to other sites are not checked.
docs: $(READY_DOCS) ## the documentation as a site in docs/_build/html; a warning or a broken link fails
	$(BIN)/python -m sphinx -q -n -W -E --keep-going -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

# Needs a browser on this machine.
docs-check: docs ## a browser searches the site and opens every page; pictures are in docs/_build/screenshots
	@$(BIN)/python -m pip install -q --group docs-check
	$(BIN)/python docs/browse.py

# pip-audit has an environment of its own, so that it audits what users install and not itself.
audit: $(READY) ## known vulnerabilities of all dependencies, as installed and the oldest that are allowed, and their licences
	@$(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/python -m pip install -q --upgrade "pip>=25.1"
	@$(AUDIT)/bin/python -m pip install -q --group audit
	$(AUDIT)/bin/python tests/audit/dependencies.py "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" $(AUDIT)/bin/pip-audit

# A week of event time passes in HOURS of wall-clock time.
long: HOURS ?= 4
long: export LONG_HOURS = $(HOURS)
long: export BENCH_LIMIT_S := 1000000
long: java $(READY) ## a week of event time in one query, in HOURS=4 by the clock: what it holds must stay flat; not part of CI
	$(BIN)/python bench long_query

# mutmut wants the package under src and its settings in the working directory.
mutants: java $(READY) ## mutation tests of the pure rules, for half an hour or more; not part of CI
	$(BIN)/python -m pip install -q --group mutation
	rm -rf .work/mutation && mkdir -p .work/mutation/src .work/mutation/tests
	cp -r sources/pyspark_timestream .work/mutation/src && cp -r tests/timestream tests/lib .work/mutation/tests
	cp tests/mutation/setup.cfg .work/mutation
	cp tests/mutation/working_copy_conftest.py .work/mutation/tests/conftest.py
	cd .work/mutation && PATH=$(CURDIR)/$(BIN):$$PATH nice -n 15 timeout 7200 mutmut run --max-children 2
	cd .work/mutation && PATH=$(CURDIR)/$(BIN):$$PATH python $(CURDIR)/tests/mutation/score.py

picture: java $(READY) ## measure and draw what a lagging partition loses under Spark's watermark, and under CTIs
	@PYTHONPATH=bench/measuring:$(SUPPORT) $(BIN)/python bench/kafka/lagging_partition.py

bench: export BENCH_QUICK := $(QUICK)
# Small runs end before Java's second compiler pays off; it would take half of their time.
bench: export JVM_FLAGS := $(if $(QUICK),$(JVM_FLAGS))
bench: export SPARK_SUBMIT_OPTS := $(if $(QUICK),$(JVM_FLAGS),$(SPARK_SUBMIT_OPTS))
bench: java $(READY) ## side by side with Spark's own sources and sinks; QUICK=1: small ones for ten minutes, kept in .work/bench only
	$(BIN)/python bench

lint: $(READY) ## ruff, mypy, and which folder imports from which
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

dist: $(READY_RELEASE) ## the source distribution and the wheel in dist/, checked as PyPI checks them
	rm -rf dist
	$(RELEASE)/bin/python -m build --outdir dist
	$(RELEASE)/bin/python -m twine check --strict dist/*

wheels: $(READY_RELEASE) ## this platform's wheel in dist/, built by cibuildwheel in a container; needs a Docker engine
	$(RELEASE)/bin/python -m cibuildwheel --platform linux --output-dir dist
	$(RELEASE)/bin/python -m twine check --strict dist/*.whl

ci: lint docs test test-more test-4.2 integration ## all that CI runs

clean: ## remove what the recipes made
	rm -rf $(VENV) $(VENV42) $(RELEASE) $(AUDIT) .work docs/_build dist
