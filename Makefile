# One front door: `make` lists what can be done. Each step says in one line what it does.

.DEFAULT_GOAL := help
.PHONY: help build run test tools format lint tidy deny schedules orders unit python python-libraries python-ray wheel mutants callgrind test-import versions test-brokers-tls test-tls fuzz interleaved sim tables dynamo coverage bench bench-cache clean

DATA ?= ./data
FUZZ_SECONDS ?= 60
SCHEDULES ?= 20
SMALL ?= 100
USUAL ?= 200
LINTED ?= --all-targets
ORDERS ?= 10000
HISTORIES ?= 2000
REQUESTS ?= 20000
VERSIONS ?= 1000000
SEED ?= 1

# One more at a time than there are processors: tests of processes wait for disks, answers and each other for a third
# of their time. What runs beside them needs the rest, and twice as many had requests miss their deadlines.
export RUST_TEST_THREADS ?= $(shell expr 1 + $$(getconf _NPROCESSORS_ONLN))

# Steps name the whole workspace even where they run a part of it: with other packages, cargo would choose other
# features of what they have in common, and build it all again.
INTERLEAVED := holdfast-interleaved/interleaved

help: ## list what can be done
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the optimised binary, target/release/holdfast (FEATURES=kafka-tls: for brokers over TLS)
	@echo "== build: target/release/holdfast, optimised across all crates: this takes its time"
	@.ci/tools build
	cargo build --release --package holdfast $(if $(FEATURES),--features $(FEATURES))

run: ## build in a hurry, and start a node that keeps its data in ./data (DATA=DIR)
	@.ci/tools build
	@echo "== run: target/quick/holdfast, less optimised than what \`make build\` makes"
	cargo build --profile quick --package holdfast
	@echo "== run: a whole node with its data in $(DATA), until interrupted"
	./target/quick/holdfast up --data $(DATA)

# One after another even under `make -j`: the cheap checks first, each with the whole machine. But tests wait a
# third of their time, which is enough for all that nothing waits for. What takes long has a step of its own: callgrind
# (a second build, optimised) and `versions` are not run here, mutants and clippy in part; of the 300 schedules 40, and
# 20 more where they begin before the tests have ended, which the last line of each says: what runs beside the tests
# slows them where two processors are one core's.
test: ## everything that must hold before a change is merged
	@$(MAKE) --no-print-directory tools
	@$(MAKE) --no-print-directory format
	@$(MAKE) --no-print-directory tidy
	@$(MAKE) --no-print-directory deny DENY=--if-there
	@cargo test --quiet --workspace --no-run
	@.ci/beside "lint orders schedules LINTED= LEAST=20 SMALL=30 USUAL=30" $(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory python
	@$(MAKE) --no-print-directory mutants BUGS="--quick --share 20"
	@echo "== test: all steps passed"

tools: ## install what the other steps need and this machine lacks
	@echo "== tools: compilers, rustfmt, clippy, valgrind, what is tested with"
	@.ci/tools

format: ## check the formatting
	@echo "== format: cargo fmt --check"
	@cargo fmt --check

lint: ## check with clippy, tests too (LINTED=: without them)
	@echo "== lint: cargo clippy, warnings are errors"
	@cargo clippy --workspace $(LINTED) -- -D warnings
	@$(if $(LINTED),cargo clippy --workspace --features $(INTERLEAVED) --test interleaved -- -D warnings)

tidy: ## check the house rules
	@echo "== tidy: the order of the crates, unsafe code, leftovers, links, licences"
	@cargo xtask tidy

deny: ## check dependencies for licences, sources and known vulnerabilities, with cargo-deny
	@echo "== deny: cargo-deny check, by deny.toml"
	@.ci/deny $(DENY)

unit: ## run all tests, also behind one that fails (RUST_TEST_THREADS=N: so many at a time)
	@echo "== unit: cargo test --workspace, $(RUST_TEST_THREADS) tests at a time"
	@cargo test --workspace --no-fail-fast

python: ## build the Python package, install it, and run its tests against a node
	@echo "== python: a wheel as developers build it, in an environment of its own"
	@.ci/python test

python-libraries: ## the same with pandas, PyArrow, Polars, DuckDB, Dask, Zarr and PyTorch, which it installs
	@echo "== python-libraries: what reads and writes through the Python package"
	@.ci/python libraries

python-ray: ## the same with sort and MapReduce over the nodes of a Ray cluster, which it installs
	@echo "== python-ray: jobs over 1, 2 and 4 nodes of Ray on this machine"
	@.ci/python ray

wheel: ## build the Python package to ship, python/dist/*.whl, and try it
	@echo "== wheel: the optimised package, installed and tried"
	@.ci/tools build
	@.ci/python wheel

callgrind: ## compare the hot paths' instruction counts with their baselines
	@echo "== callgrind: instructions of the hot paths against callgrind-baselines.tsv"
	@if command -v valgrind >/dev/null; then cargo xtask callgrind; \
	else echo "!! callgrind: SKIPPED, valgrind is not installed: no hot path was checked"; fi

mutants: ## plant every bug of the catalogue in turn: its test must fail (BUGS="NAME...")
	@echo "== mutants: bugs planted at named points, each with the test that must fail"
	@cargo xtask mutants $(BUGS)

test-import: ## move 100,000 objects here from another S3 service, killed twice on the way
	@.ci/tools
	HOLDFAST_IMPORT_OBJECTS=100000 cargo test --package holdfast --test blackbox import::

versions: ## a key with a million versions in the views of a real node (VERSIONS=N)
	@echo "== versions: one key with $(VERSIONS) versions, put, read, ridden, passed by the horizon and begun with"
	HOLDFAST_VERSIONS=$(VERSIONS) cargo test --package holdfast --test blackbox views_versions -- --nocapture

test-brokers-tls: ## the log on brokers that want TLS and a password; builds OpenSSL
	@echo "== test-brokers-tls: a build with the feature kafka-tls (OpenSSL: two to five minutes)"
	@.ci/tools
	cargo test --package holdfast-kafka --features tls --test tls
	cargo check --package holdfast --features kafka-tls

test-tls: ## run the stories of whole clusters again, between nodes that have certificates
	@echo "== test-tls: clusters of processes over TLS"
	HOLDFAST_TEST_TLS=1 cargo test --package holdfast --test blackbox cluster

fuzz: ## fuzz every decoder for a minute each (FUZZ_SECONDS=N)
	@echo "== fuzz: every decoder for $(FUZZ_SECONDS) s, from a random seed"
	HOLDFAST_FUZZ_SECONDS=$(FUZZ_SECONDS) \
		cargo test --release --package holdfast-sim --test fuzz -- --nocapture --test-threads=2

sim: ## run simulated clusters under faults (SCHEDULES=N SEED=FIRST SIM=OPTIONS)
	@echo "== sim: $(SCHEDULES) schedules from seed $(SEED), a thread a core"
	@cargo build --quiet --workspace --bin holdfast-sim
	@$${CARGO_TARGET_DIR:-target}/debug/holdfast-sim \
		--schedules $(SCHEDULES) --seed $(SEED) $(if $(WHILE),--while $(WHILE) --least $(LEAST)) $(SIM)

schedules: ## run 300 simulated clusters, 100 of them with small limits: what must sometimes happen, did (SMALL=N USUAL=N)
	@$(MAKE) --no-print-directory sim SCHEDULES=$(SMALL) SEED=1
	@$(MAKE) --no-print-directory sim SCHEDULES=$(USUAL) SEED=1 SIM=--usual-limits

orders:
	@$(MAKE) --no-print-directory interleaved ORDERS=500 SEED=1

tables: ## run histories of tables over regions under faults (HISTORIES=N SEED=FIRST)
	@echo "== tables: $(HISTORIES) histories from seed $(SEED)"
	@HOLDFAST_TABLE_HISTORIES=$(HISTORIES) HOLDFAST_TABLE_SEED=$(SEED) cargo test --quiet --workspace \
		--test histories

dynamo: ## hold DynamoDB's API against moto and dynalite, which it installs (REQUESTS=N SEED=S)
	@echo "== dynamo: $(REQUESTS) requests from seed $(SEED), sent to three servers"
	@HOLDFAST_DYNAMO_REQUESTS=$(REQUESTS) HOLDFAST_SEED=$(SEED) .ci/dynamo

interleaved: ## run a store's and a log's threads in many orders of their steps (ORDERS=N SEED=S)
	@echo "== interleaved: $(ORDERS) orders of a store's and a log's threads from seed $(SEED)"
	@HOLDFAST_ORDERS=$(ORDERS) HOLDFAST_SEED=$(SEED) cargo test --quiet \
		--workspace --features $(INTERLEAVED) --test interleaved

coverage: ## which lines of the drivers simulated clusters reach (SCHEDULES=N SEED=FIRST)
	@echo "== coverage: $(SCHEDULES) schedules from seed $(SEED), instrumented"
	@.ci/tools coverage
	@.ci/coverage $(SCHEDULES) $(SEED)

bench: build ## measure the file system, with its limits in the same run
	@echo "== bench: holdfast bench iobench, JSON Lines on standard output"
	./target/release/holdfast --json bench iobench -t table

bench-cache: build ## measure the cache beside memcached, which it installs, and a null server
	@echo "== bench-cache: tables, latency, hits, memory, on a machine that does nothing else"
	@.ci/tools cache-peers
	./target/release/holdfast bench cache -t table -e 5 --seconds 0.7
	for t in ladder cores curve second; do ./target/release/holdfast bench cache -t $$t; done
	./target/release/holdfast bench cache -t crowd
	./target/release/holdfast bench cache -t items --keys 10000000
	./target/release/holdfast bench cache -t hits --memory 64 --seconds 40

clean: ## remove what was built; ./data stays
	@echo "== clean: target"
	cargo clean
