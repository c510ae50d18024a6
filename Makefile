# Wangell. "make build" and "make demo" are all that a user needs; "make test" proves the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO      ?= go
# The file VERSION, with the commit as build metadata unless this is the tagged release: see hack/version.sh.
VERSION := $(shell hack/version.sh)
LDFLAGS := -s -w -X wangell.loutres.me/internal/buildinfo.Version=$(VERSION)

# The same for all, so that every package is compiled once. The race detector alone needs C. Without DWARF, and with
# compilers that collect less garbage, it takes 30 % less time.
export GOFLAGS := -trimpath -gcflags=all=-dwarf=false
export CGO_ENABLED := 0
COMPILE := GOGC=400 $(GO)

# Test programs run as root, in network namespaces that they make; the compiler needs no root.
ROOT := $(shell [ "$$(id -u)" = 0 ] || echo '-exec "sudo -E"')
# A section heading in the output of make test.
say = @printf '\n== %s\n' "$(1)"

.PHONY: help
help: ## print this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/wangell
	$(COMPILE) build -ldflags '$(LDFLAGS)' -o bin/wangell ./cmd/wangell

.PHONY: demo
demo: ## install what is missing, build, and show a cold and a warm request (needs root)
	@hack/install-deps.sh demo
	@$(MAKE) --no-print-directory build
	@hack/demo.sh

.PHONY: demo-kubernetes
demo-kubernetes: ## the same on a real Kubernetes of three nodes (needs root; compiles Kubernetes the first time)
	@hack/install-deps.sh demo-kubernetes
	@$(MAKE) --no-print-directory build
	@hack/demo-kubernetes.sh

.PHONY: test
test: ## install what is missing and run everything (needs root)
	$(call say,What the tests need)
	@hack/install-deps.sh test
	$(call say,Build)
	@$(MAKE) --no-print-directory build
	$(call say,Kubernetes and Knative are built; meanwhile: is generated code fresh; lint; end to end on one machine)
	@$(MAKE) --no-print-directory cluster-build & built=$$!; trap "kill $$built 2>/dev/null || true" EXIT; \
	checks=0; $(MAKE) --no-print-directory check-generated chart-check lint release-check e2e || checks=$$?; \
	wait $$built && exit $$checks
	$(call say,Unit packet and network-namespace tests with the race detector)
	@$(MAKE) --no-print-directory race
	$(call say,End to end on Kubernetes)
	@$(MAKE) --no-print-directory kube

.PHONY: lint
lint: ## gofmt, go vet, staticcheck
	@unformatted=$$(gofmt -l $$(git ls-files --cached --others --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted (run gofmt -w):"; echo "$$unformatted"; exit 1; fi
	$(COMPILE) vet ./...
	hack/tool.sh staticcheck ./...

.PHONY: race
race: ## unit, packet and network-namespace tests and fuzz seeds, with the race detector
	CGO_ENABLED=1 $(COMPILE) build -race ./...
	CGO_ENABLED=1 $(GO) test -race -timeout 30m $(ROOT) ./api/... ./cmd/... ./deploy/... ./hack/... ./internal/...

.PHONY: e2e
e2e: ## end-to-end tests with the built program and real servers
	$(GO) test -p 1 -timeout 60m $(ROOT) ./test/e2e/...

.PHONY: kube
kube: ## end-to-end tests on a real Kubernetes of three nodes, and beside Knative
	$(GO) test -short ./test/cluster ./test/knative
	$(GO) test -p 1 -timeout 60m $(ROOT) ./test/kube/...

.PHONY: fuzz
fuzz: ## run every fuzz test for 10 s
	@hack/fuzz.sh 10s

.PHONY: bench
bench: ## run the benchmarks, ns per packet among them
	$(GO) test -run '^$$' -bench . -benchmem $(ROOT) ./internal/...

.PHONY: generate
generate: ## compile the gate, and generate its Go side, the definition of the kind, and the manifests (clang-19)
	$(GO) generate ./internal/gate ./api/...
	@hack/chart-generate.sh

.PHONY: check-generated
check-generated: ## fail if the generated code does not belong to its sources
	@hack/check-generated.sh

.PHONY: chart-check
chart-check: ## lint the chart; fail if the plain manifests or the chart's definition are stale
	@hack/chart-check.sh

IMAGE     ?= registry.loutres.me/wangell
PLATFORMS ?= linux/amd64,linux/arm64
IMAGE_TOOL = $(GO) run ./hack/image --version '$(VERSION)' --ldflags '$(LDFLAGS)' --platforms '$(PLATFORMS)'

.PHONY: image
image: ## build the container image for amd64 and arm64, without Docker (bin/wangell-image.tar)
	@mkdir -p bin
	@$(IMAGE_TOOL) --name '$(IMAGE)' --out bin/wangell-image.tar

.PHONY: image-push
image-push: ## build and push the container image: make image-push REF=REGISTRY/NAME[:TAG] [PLAIN_HTTP=1]
	@test -n '$(REF)' || { echo 'REF is missing: make image-push REF=REGISTRY/NAME' >&2; exit 2; }
	@$(IMAGE_TOOL) --name '$(REF)' --push $(if $(PLAIN_HTTP),--plain-http)

.PHONY: release
release: ## build everything of a release from VERSION into dist/: see RELEASE.md
	@hack/release.sh

.PHONY: release-check
release-check: ## build a release twice for this architecture, compare the two, and try the Debian package
	@hack/release-check.sh

# A real Kubernetes on this machine: see test/cluster/README.md.
NODES      ?= 1
PROXY_MODE ?= iptables
CNI        ?= bridge

.PHONY: cluster-build
cluster-build: ## build Kubernetes and Knative for tests, unless they are in the cache
	$(COMPILE) run -C test/cluster . build
	$(COMPILE) run -C test/knative . build

.PHONY: cluster
cluster: ## start a real Kubernetes of NODES nodes for tests (needs root): make cluster NODES=3
	$(GO) run -C test/cluster . build
	$(GO) run -C test/cluster $(ROOT) . up --nodes $(NODES) --proxy-mode $(PROXY_MODE) --cni $(CNI)

.PHONY: cluster-down
cluster-down: ## remove every trace of it
	$(GO) run -C test/cluster $(ROOT) . down

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
