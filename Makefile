# Every target in one line: make help.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

TOOLS := $(CURDIR)/.cache/tools
PYTHON := $(CURDIR)/.cache/python
ENVOY := $(PYTHON)/envoy
export PATH := $(TOOLS):$(PYTHON)/bin:$(PATH)
export HEDDLE_TEST_ENVOY := $(ENVOY)

CARGO := cargo --color never
CARGO_FLAGS := --manifest-path proxy/Cargo.toml --locked
VERSION := $(shell git describe --always --dirty --tags 2>/dev/null || echo unknown)
GO_BUILD := go build -trimpath -ldflags "-s -w -X heddle.io/heddle/control/cli.version=$(VERSION)"
# Binaries that the end-to-end tests drive: the same sources, built fast instead of small.
E2E_BIN := $(CURDIR)/.cache/e2e/bin
# What the tests of `make test` wrote, for the list of those that were skipped.
RESULTS := $(CURDIR)/.cache/results
# Clusters are started by root.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

.PHONY: build
build: prerequisites ## build bin/heddle, bin/heddle-launch, bin/heddle-proxy (release) and bin/boutique, with what they need to run; PGO=1 has the proxy optimized by what it executes under load, in twice the time
	@scripts/packages.sh build run demo $(if $(PGO),pgo)
	$(GO_BUILD) -o bin/heddle ./control/cmd/heddle
	$(GO_BUILD) -o bin/heddle-launch ./control/cmd/heddle-launch
	$(GO_BUILD) -o bin/boutique ./demo/boutique/cmd/boutique
	$(if $(PGO),scripts/pgo.sh build $(PYTHON),$(CARGO) build $(CARGO_FLAGS) --release -p heddle-proxy)
	install -m 0755 proxy/target/release/heddle-proxy bin/heddle-proxy

.PHONY: demo
demo: demo-binaries ## two clusters, one global namespace, a shop in both, until Ctrl-C
	$(SUDO) bin/demo up

.PHONY: demo-once
demo-once: demo-binaries ## the same without staying: start, buy, check, remove
	$(SUDO) bin/demo once

.PHONY: demo-down
demo-down: ## remove what a demo made, also a killed one
	@[ -x bin/demo ] || { echo "bin/demo is not built, so no demo of this folder was started; to remove a cluster: heddle down --name <name>"; exit 1; }
	$(SUDO) bin/demo down

.PHONY: demo-binaries
demo-binaries: build
	$(GO_BUILD) -o bin/demo ./demo/cmd/demo

.PHONY: test
test: packages test-go test-rust hostile conformance interop instructions impostors test-e2e ## everything, from a fresh machine with the prerequisites
	@go run ./test/skipped $(RESULTS)

.PHONY: test-go
test-go: packages ## Go unit tests and golden scenarios
	@mkdir -p $(RESULTS)
	gotestsum --format pkgname --jsonfile $(RESULTS)/go.json -- ./...

.PHONY: test-rust
test-rust: packages ## Rust unit tests, and the golden scenarios read by the proxy
	@mkdir -p $(RESULTS)
	@# What tests that passed say is for the list of skipped ones alone.
	$(CARGO) test $(CARGO_FLAGS) --workspace --quiet -- --show-output 2>&1 | tee $(RESULTS)/rust.log | sed '/^successes:$$/,/^\(failures:\|test result\)/{/^\(failures:\|test result\)/!d}'

.PHONY: test-e2e
test-e2e: packages e2e-binaries ## end to end in network namespaces: real browser, Redis, Envoy (needs root); LONG=1 for every way of each proxy
	@mkdir -p $(RESULTS)
	HEDDLE_E2E_BIN=$(E2E_BIN) HEDDLE_E2E_LONG=$(LONG) gotestsum --format standard-verbose --hide-summary=output --jsonfile $(RESULTS)/e2e.json -- -tags e2e -count=1 -p 1 -timeout 40m ./test/e2e/...

.PHONY: hostile
hostile: packages $(if $(LONG),build,e2e-binaries) ## hostile bytes and floods, beside Envoy; make hostile LONG=1 for an hour, of the release build
	go test -c -tags hostile -o $(E2E_BIN)/hostile.test ./test/hostile
	@mkdir -p $(RESULTS)
	cd test/hostile && HEDDLE_E2E_BIN=$(if $(LONG),$(CURDIR)/bin,$(E2E_BIN)) HEDDLE_HOSTILE_LONG=$(LONG) $(E2E_BIN)/hostile.test -test.timeout 100m | tee $(RESULTS)/hostile.log

.PHONY: conformance
conformance: packages e2e-binaries ## requests to the proxy and to Envoy in the same configuration, compared
	go test -c -tags conformance -o $(E2E_BIN)/conformance.test ./test/conformance
	@mkdir -p $(RESULTS)
	cd test/conformance && HEDDLE_E2E_BIN=$(E2E_BIN) $(E2E_BIN)/conformance.test -test.timeout 10m | tee $(RESULTS)/conformance.log

.PHONY: interop
interop: packages e2e-binaries ## HTTP/2 and TLS with clients and servers of others, heddle-proxy between them
	@mkdir -p $(RESULTS)
	HEDDLE_E2E_BIN=$(E2E_BIN) gotestsum --format pkgname --jsonfile $(RESULTS)/interop.json -- -tags interop -count=1 -timeout 10m ./test/interop

.PHONY: instructions
instructions: packages $(if $(RELEASE),build,e2e-binaries) ## instructions per request, held against those kept; make instructions RELEASE=1 of the release build, or RELEASE=1 PGO=1, UPDATE=1 to keep them, PROFILES=/folder for callgrind_annotate
	cd test/instructions && HEDDLE_INSTRUCTIONS_PROXY=$(if $(RELEASE),$(CURDIR)/bin,$(E2E_BIN))/heddle-proxy HEDDLE_INSTRUCTIONS_KEPT=$(if $(RELEASE),$(if $(PGO),pgo,release),dev) HEDDLE_INSTRUCTIONS_UPDATE=$(UPDATE) HEDDLE_INSTRUCTIONS_PROFILES=$(PROFILES) go test -tags instructions -count=1 -v .

.PHONY: e2e-binaries
e2e-binaries: build-packages
	go build -o $(E2E_BIN)/ ./control/cmd/heddle ./control/cmd/heddle-launch ./demo/boutique/cmd/boutique ./demo/cmd/demo
	$(CARGO) build $(CARGO_FLAGS) -p heddle-proxy
	install -m 0755 proxy/target/debug/heddle-proxy $(E2E_BIN)/heddle-proxy

.PHONY: impostors
impostors: packages e2e-binaries ## forged certificates, shown to heddle-proxy and to Envoy
	HEDDLE_E2E_BIN=$(E2E_BIN) go test -count=1 -run '^TestImpostors$$' ./test/scenarios

.PHONY: golden
golden: ## refresh the expected files of test/scenarios
	go test ./test/scenarios -update

.PHONY: generate
generate: packages ## regenerate the committed generated files
	go generate ./...

.PHONY: check
check: packages format-check lint generated-check licences vulnerabilities pgo-check ## format, lint, generated files, licences, vulnerabilities, that PGO=1 can work

.PHONY: format
format: ## format Go and Rust sources
	gofmt -w $$(git ls-files '*.go')
	cargo fmt --manifest-path proxy/Cargo.toml --all

.PHONY: format-check
format-check:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$unformatted" ] || { echo "not formatted (run make format): $$unformatted"; exit 1; }
	cargo fmt --manifest-path proxy/Cargo.toml --all --check

.PHONY: lint
lint: packages ## golangci-lint and clippy
	golangci-lint run ./...
	$(CARGO) clippy $(CARGO_FLAGS) --workspace --all-targets --quiet -- -D warnings

.PHONY: generated-check
generated-check: packages
	scripts/generated-check.sh

.PHONY: licences
licences: packages ## every dependency's licence against the allowed ones
	scripts/licences.sh

.PHONY: vulnerabilities
vulnerabilities: packages ## known vulnerabilities, where the databases can be had
	scripts/vulnerabilities.sh

.PHONY: pgo-check
pgo-check: packages
	@scripts/packages.sh pgo
	scripts/pgo.sh check $(PYTHON)

.PHONY: bench
bench: PGO := 1
bench: packages build ## measure against nginx, HAProxy, Envoy: make bench S=http1; PGO= for a build that is not optimized by what it executes
	$(if $(findstring relay,$(BENCH_FLAGS)),$(CARGO) build $(CARGO_FLAGS) --release -p heddle-net --example relay)
	go run ./bench/cmd/bench $(if $(S),-scenario $(S)) -heddle bin/heddle -heddle-proxy bin/heddle-proxy -envoy $(ENVOY) $(BENCH_FLAGS)

.PHONY: prerequisites
prerequisites:
	@scripts/prerequisites.sh

.PHONY: build-packages
build-packages: prerequisites
	@scripts/packages.sh build

.PHONY: packages
packages: prerequisites
	@scripts/packages.sh build run test
	@scripts/tools.sh $(TOOLS) $(PYTHON)

.PHONY: sidecar-memory
sidecar-memory: packages build ## what the boutique's sidecars have resident under traffic, release build (needs root)
	HEDDLE_E2E_BIN=$(CURDIR)/bin HEDDLE_E2E_RELEASE=1 go test -tags e2e -count=1 -v -run '^TestMemoryOfSidecars$$' ./test/e2e

.PHONY: rsa-operations
rsa-operations: build-packages ## a million private RSA operations in vector registers, each compared with BoringSSL: OPERATIONS=1000000
	HEDDLE_RSA_OPERATIONS=$(or $(OPERATIONS),1000000) $(CARGO) test $(CARGO_FLAGS) --release -p heddle-simd --test boringssl -- --nocapture random_operations_agree

.PHONY: ecdsa-operations
ecdsa-operations: build-packages ## a million ECDSA signatures in vector registers, each verified by BoringSSL: OPERATIONS=1000000
	HEDDLE_ECDSA_OPERATIONS=$(or $(OPERATIONS),1000000) $(CARGO) test $(CARGO_FLAGS) --release -p heddle-simd --test ecdsa -- --nocapture random_signatures_verify

.PHONY: x25519-operations
x25519-operations: build-packages ## a million X25519 operations, one by one and in vector registers, compared with BoringSSL, and RFC 7748's million iterations: OPERATIONS=1000000
	HEDDLE_X25519_OPERATIONS=$(or $(OPERATIONS),1000000) $(CARGO) test $(CARGO_FLAGS) --release -p heddle-x25519 --test operations --test batches -- --nocapture random_operations_agree
	HEDDLE_X25519_ITERATIONS=1000000 $(CARGO) test $(CARGO_FLAGS) --release -p heddle-x25519 --test exchange -- --nocapture iterated_exchanges

.PHONY: kernel-operations
kernel-operations: rsa-operations ecdsa-operations x25519-operations ## all of these: a million operations each of RSA, ECDSA and X25519 against BoringSSL, in about an hour

.PHONY: sanitize
sanitize: build-packages ## the tests of the crates that compute with keys, vector kernels and twins, under AddressSanitizer
	@# The stable toolchain has the sanitizer's runtime; only the option's name is unstable. The triple is named so that build scripts go without.
	@# Not looked for: tables that BoringSSL's objects have twice, and QuickAssist's instances, which live as long as the process.
	ASAN_OPTIONS=detect_odr_violation=0:detect_leaks=0 RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address $(CARGO) test $(CARGO_FLAGS) --target $$(rustc -vV | sed -n 's/^host: //p') -p heddle-simd -p heddle-keys -p heddle-x25519

.PHONY: fuzz
fuzz: packages ## fuzz every parser that reads a peer's bytes: make fuzz SECONDS=20
	proxy/fuzz/run.sh $(or $(SECONDS),20)

.PHONY: clean
clean: ## remove everything that was built
	rm -rf bin .cache proxy/target proxy/fuzz/target proxy/fuzz/found proxy/fuzz/artifacts
