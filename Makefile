# make run | test | soak [SHORT=1] | test-pythons | check-install | lint
# | compiled | test-compiled | bench [ORIGINAL=dir] [COMPILED=1]
# | capacity | stalls | simulate [SEEDS=n] | simulate-mutants | sweep | sweep-mutants | mutants
# | drill | drill-kill | drill-repeats | drill-cluster | drill-spark | fuzz | hostile
# | interop ORIGINAL=dir [GO_NSQ=dir] [NSQJS=dir] | format | lock | clean | man | docs
# Each sets up what it needs; a second time that costs nothing.

PY := .venv/bin/python
INSTALLED := .venv/.installed
# Processes among which the tests are divided; 0 runs them in one, as a debugger needs it. Four for
# two cores: about half of the time a test waits for daemons that it started.
WORKERS ?= 4
CHECKED := trionsq lookupd admin pipelines deploy tests benchmarks

# The tests start hundreds of Python processes. Without bytecode on the disk each of them compiles
# all that it imports, and each worker of pytest all tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := test
.PHONY: run test compiled test-compiled bytecode soak test-pythons check-install lint format bench capacity stalls simulate simulate-mutants sweep sweep-mutants drill drill-kill drill-repeats drill-cluster drill-spark fuzz hostile mutants interop lock compiler network machine clean

$(INSTALLED): pyproject.toml requirements-dev.txt scripts/setup.sh
	@scripts/setup.sh

compiler:
	@scripts/setup.sh compiler

network:
	@scripts/setup.sh network

# A local cluster with data flowing through it; Ctrl-C stops it. ARGS: flags of `trionsq up`.
run: $(INSTALLED)
	@$(PY) -m trionsq.local.demo $(ARGS)

# What the machine lacks is installed meanwhile, one package after the other: apt takes turns.
test: $(INSTALLED)
	$(MAKE) --no-print-directory --jobs=3 lint machine bytecode
	$(PY) -m pytest --numprocesses=$(WORKERS) --durations=15 $(ARGS)
	$(if $(ARGS),,$(ON_LOG) $(LOG_TEST))

# The same tests with topics that have a log: tests/engines.py says which have nothing to ask there.
ON_LOG = TRIONSQ_TEST_STORAGE=log $(PY) -m pytest --numprocesses=$(WORKERS)
LOG_TEST := tests/golden/test_in_process.py tests/drill tests/simulation/test_swarm.py \
	-k "whole or every_day or (broken and kill and not start)"
LOG_SHORT := tests/golden/test_in_process.py tests/drill tests/simulation/test_swarm.py \
	tests/broker/test_restart.py tests/broker/test_chaos.py tests/broker/test_topics.py
LOG_FULL := $(addprefix tests/,golden drill simulation foreign broker http client)

# The packages with their hot path compiled by mypyc, which takes minutes: docs/compiled.md.
# MYPYC_OPT_LEVEL=0 takes half of that, for tests.
BUILT := build/compiled$(MYPYC_OPT_LEVEL)/.built
compiled: $(BUILT)
$(BUILT): $(INSTALLED) scripts/compile_hook.py $(shell find trionsq -name '*.py')
	@scripts/setup.sh compiler
	@scripts/setup.sh headers
	rm -rf $(@D)
	HATCH_BUILD_HOOK_ENABLE_CUSTOM=true PIP_CONSTRAINT=requirements-dev.txt \
		$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --target $(@D) .
	@touch $@

# Tests of behaviour, with the compiled packages ahead of the sources, in this process and in others.
# Tests that patch a compiled function, or count its calls, can't be among them.
test-compiled: $(BUILT)
	TRIONSQ_TEST_COMPILED=1 PYTHONSAFEPATH=1 PYTHONPATH=$(abspath $(dir $(BUILT))):$(CURDIR) \
		$(PY) -m pytest --numprocesses=$(WORKERS) -o pythonpath= $(or $(ARGS),$(COMPILED_TESTS))
COMPILED_TESTS := $(addprefix tests/,test_compiled.py drill golden/test_in_process.py golden/test_process.py wire \
	simulation/test_swarm.py foreign broker/test_idempotent.py broker/test_idempotent_crash.py \
	http/test_policies.py http/test_statistics.py core/test_queue.py core/test_topic.py)

# What takes long: tests that `make test` leaves out, and some that do more here; hours.
# SHORT=1 is the part that continuous integration runs.
soak: $(INSTALLED) machine
	TRIONSQ_SOAK=$(if $(SHORT),short,full) $(PY) -m pytest --numprocesses=$(WORKERS) --durations=40 $(ARGS)
	$(if $(ARGS),,TRIONSQ_SOAK=$(if $(SHORT),short,full) $(ON_LOG) $(if $(SHORT),$(LOG_SHORT),$(LOG_FULL)))

# The parts that know no browser, no Spark and no foreign client, on each Python from 3.11 on that is
# found; an environment for each is kept in build/.
test-pythons: $(INSTALLED)
	@scripts/test_pythons.sh $(ARGS)

# Else each worker compiles all tests anew; mypy leaves a core free meanwhile. An error of the
# collection is told by the tests themselves.
bytecode: $(INSTALLED)
	@test -d tests/__pycache__ || $(PY) -m pytest --collect-only -q >/dev/null 2>&1 || true

machine:
	@scripts/setup.sh compiler
	@scripts/setup.sh browser
	@scripts/setup.sh network

lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(CHECKED)

# On each Python that this machine has: the wheel, with the dependencies that pip finds today. Needs
# a registry, about 20 s for each; ARGS="--only 3.13".
check-install: $(INSTALLED)
	@$(PY) -m tests.install $(ARGS)

# The manual pages of the command trionsq.
.PHONY: man
man: $(INSTALLED)
	@$(PY) -m trionsq.local.main manual build/man

# The pages of docs/ as a site in build/site. A warning, or a link that leads nowhere, is an error.
.PHONY: docs
docs: $(INSTALLED)
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs --quiet build $(ARGS)
	@echo build/site/index.html

format: $(INSTALLED)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(INSTALLED) compiler $(if $(COMPILED),$(BUILT))
	$(PY) -m benchmarks $(if $(ORIGINAL),--original $(ORIGINAL)) $(if $(COMPILED),--packages $(dir $(BUILT))) $(ARGS)

# Seconds of `pip install` into an empty environment, of Spark's start, and to the first row.
# ARGS="--runs 3". Needs a registry.
.PHONY: first-row
first-row: $(INSTALLED)
	@$(PY) -m benchmarks.first_row $(ARGS)

# The tables of docs/capacity.md for this machine, less than 10 minutes; ARGS="--only sizes,disk".
capacity: $(INSTALLED) compiler
	@$(PY) -m benchmarks.capacity $(ARGS)

# What holds the event loops up, about 10 minutes; ARGS="--only late,pages", "--base DIR".
stalls: $(INSTALLED) compiler
	@$(PY) -m benchmarks.stalls $(ARGS)

# Days of a whole cluster in one process, each from one seed, with faults of 30 kinds: about eight a
# second for each core. tests/simulation/README.md. ARGS="--first-seed=N", "--shrink plan.json".
SEEDS ?= 1000
simulate: $(INSTALLED)
	@$(PY) -m tests.simulation --seeds $(SEEDS) $(ARGS)

# Known bad changes of the product that the simulation has to find. ARGS="--only NAME".
simulate-mutants: $(INSTALLED)
	@$(PY) -m tests.simulation.mutants $(ARGS)

# Crashes of the log engine on a simulated disk, a million at random operations: no promise may be
# broken. ARGS="--points 10000 --seed 7". Takes an hour.
sweep: $(INSTALLED)
	@$(PY) -m tests.storage.log.sweep $(ARGS)

# Known bad changes of the log engine, each fsync and each rule, that the sweep has to find.
sweep-mutants: $(INSTALLED)
	@$(PY) -m tests.storage.log.sweep.mutants $(ARGS)

# Kills nsqd 200 times under load, with --storage=log --durability=always: nothing may be lost.
drill-kill: $(INSTALLED)
	$(PY) -m tests.drill --kind kill-log --runs 200 $(ARGS)

# 100,000 publishes with keys of each kind (Producer, TCP, HTTP), of which more than 1 % are repeated,
# because connections, answers and nsqd (20 times by kill -9) get lost: each is stored once.
# ARGS="--only HTTP --count 10000 --kills 3".
drill-repeats: $(INSTALLED)
	$(PY) -m tests.daemon.repeats $(ARGS)

# Stops, kills and pauses nsqd under load, 20 times in each of seven ways: no promise may be broken.
# ARGS="--kind kill --seed 7".
drill: $(INSTALLED)
	$(PY) -m tests.drill --runs 20 $(ARGS)

# Breaks the cluster of deploy/compose.yaml under load, in network namespaces: deploy/README.md.
# ARGS="--runs 10", "--only cut-off". As root on Linux.
drill-cluster: $(INSTALLED) network
	$(PY) -m tests.deploy.drill $(ARGS)

# 200,000 messages through a Spark standalone cluster to Parquet, while drivers, an executor, nsqd
# and the disk fail: each row once. As root, for a disk that can be filled.
drill-spark: $(INSTALLED)
	$(PY) -m tests.pipelines.drill $(ARGS)

# Malformed input of all kinds, 145,000 cases: nsqd stays up and serves others.
fuzz: $(INSTALLED)
	$(PY) -m tests.fuzz $(ARGS)

# Bombs of 1 GiB, half-open connections, auth servers that lie: a table of what they do to nsqd.
# Takes a good half hour; ARGS="--mib 64 --short" less.
hostile: $(INSTALLED)
	$(PY) -m tests.hostile $(ARGS)

# 500 small changes to the code, each of which a test has to notice; about an hour.
# ARGS="--count 100 --seed 3", "--only trionsq/wire", "--resume FILE".
mutants: $(INSTALLED)
	$(PY) -m tests.mutants $(ARGS)

# A mixed cluster with the original's programs, whose folder is given; the suites of clients in other
# languages, where Go and Node are and GO_NSQ=dir, NSQJS=dir name the sources of these clients.
interop: $(INSTALLED)
	ORIGINAL=$(ORIGINAL) GO_NSQ=$(GO_NSQ) NSQJS=$(NSQJS) $(PY) -m pytest tests/interop $(ARGS)

# Pins anew what pyproject.toml allows, then, of that, what the images install; needs uv
# (pip install uv).
PIN := uv pip compile --quiet --universal --python-version 3.11 --custom-compile-command 'make lock'
lock:
	$(PIN) --upgrade --extra all --group dev --output-file requirements-dev.txt pyproject.toml
	$(PIN) --upgrade --generate-hashes --constraint requirements-dev.txt --extra server \
		--output-file requirements.txt pyproject.toml
	$(PIN) --upgrade --generate-hashes --constraint requirements-dev.txt --extra all \
		--output-file deploy/requirements-spark.txt pyproject.toml

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
