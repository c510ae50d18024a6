# SPDX-License-Identifier: Apache-2.0
# "make build" and "make demo" are all that a user needs; "make help" lists the rest, CONTRIBUTING.md explains it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# The file VERSION, with the commit as build metadata unless this is the tagged release: see hack/version.sh.
VERSION := $(shell hack/version.sh)
COMMIT  := $(shell git rev-parse --verify --quiet HEAD 2>/dev/null)
BUILDINFO := wangell.loutres.me/internal/base/buildinfo
# As in hack/release.sh, so that "make image-push" gives the image of the release.
LDFLAGS := -s -w -X $(BUILDINFO).Version=$(VERSION) -X $(BUILDINFO).commit=$(COMMIT)

# The same flags for every target, so that each package is compiled once. Without DWARF, and with a compiler that collects
# garbage less often, compiling takes 30 % less time. Only the race detector needs C.
export GOFLAGS := -trimpath -gcflags=all=-dwarf=false
export CGO_ENABLED := 0
COMPILE := GOGC=400 $(GO)

# Tests that need root run under sudo if make does not run as root. The compiler needs no root.
ROOT := $(shell [ "$$(id -u)" = 0 ] || echo '-exec "sudo -E"')

# go test with a closing line of what passed, failed and was skipped. In CI a skipped test fails the run, except for
# reasons that the test chooses itself, and for a container's lack of /dev/fuse.
ALLOWED_SKIPS := runs on demand|not run with -short|only run by|no FUSE here
GOTEST = $(GO) run ./hack/gotest -allow '$(ALLOWED_SKIPS)' -label $@ -- $(AGAIN)
# Packages that compress and draw run several times as long with the race detector, and share nothing among goroutines:
# it does not look into them. Accesses of their callers are checked as ever. None of them may use sync.Map or another
# generic type that synchronises: the linker could take its code from there for all packages, and races would be
# reported where there are none.
COMPUTING := compress/... image/... golang.org/x/image/... github.com/golang/freetype/... gonum.org/v1/plot/... \
	$(addprefix github.com/klauspost/compress/,flate gzip zstd/... huff0/... fse internal/...) \
	git.sr.ht/~sbinet/gg/... codeberg.org/go-fonts/... codeberg.org/go-latex/... codeberg.org/go-pdf/...
DETECT    := -race $(foreach package,$(COMPUTING),-gcflags='$(package)=-dwarf=false -race=false')
# "go list -export" compiles the packages and their tests without linking every program, as "go build ./..." would. What
# does not compile is reported by go test, which runs the other packages.
RACE   = CGO_ENABLED=1 $(COMPILE) list $(DETECT) -export -test $(1) >/dev/null 2>&1 || true; \
	CGO_ENABLED=1 $(GOTEST) $(DETECT) $(CHEAP) -timeout 45m $(2) $(1)
# golangci-lint runs vet, and the program of a test needs no symbol table: linking takes most of the time of small tests.
CHEAP  = -vet=off -ldflags='-s -w'
# Tests of programs and clusters run each time: the go command does not see all of their files, and would take a result
# of another build from its cache.
AFRESH = -count=1
# What make test-repeat adds to all runs of tests.
AGAIN  =
# Two runs of tests in one target: the second also runs after the first has failed.
both   = @failed=0; $(strip $(1)) || failed=1; $(strip $(2)) || failed=1; exit $$failed
# Runs append their totals to this file during make test, and hack/lane.sh the targets that failed.
TOTALS := $(CURDIR)/bin/test-totals

# A section heading in the output of make test.
say = @printf '\n== %s\n' "$(1)"

.PHONY: help
help: ## print this help
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Build and try

.PHONY: build
build: ## build the programs into bin/
	$(COMPILE) build -ldflags '$(LDFLAGS)' -o bin/ $(patsubst %,./%,$(wildcard cmd/* lab/cmd/*))

.PHONY: demo
demo: ## one machine: install what is missing, build, show a cold and a warm request (root)
	@hack/install-deps.sh demo
	@$(MAKE) --no-print-directory build
	@hack/demo.sh

.PHONY: demo-kubernetes
demo-kubernetes: ## the same on a real Kubernetes of three nodes, which the first run compiles (root)
	@hack/install-deps.sh demo-kubernetes
	@$(MAKE) --no-print-directory build
	@hack/demo-kubernetes.sh

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist

##@ Test

.PHONY: unit
unit: ## tests that need neither root nor Kubernetes; those with goroutines run with the race detector
	$(eval SEQUENTIAL := $(shell hack/packages.sh sequential))
	$(call both,{ $(call RACE,$(filter-out $(SEQUENTIAL),$(shell hack/packages.sh unit)),); },$(GOTEST) $(CHEAP) $(SEQUENTIAL))

.PHONY: gate
gate: ## packet, network-namespace and container tests, with the race detector (root)
	@$(call RACE,$(shell hack/packages.sh gate),$(ROOT))

.PHONY: race
race: unit gate operator ## unit, gate and the tests of the operator

.PHONY: operator
operator: ## tests against an API server, with the race detector (root; needs cluster-build)
	@$(call RACE,$(shell hack/packages.sh kube),$(ROOT))

# The second run has no network: mkfs.erofs is in the cache after the first.
.PHONY: erofs
erofs: ## tests with the snapshotter erofs, by the containerd of the cluster (root; needs cluster-build)
	@export WANGELL_TEST_CONTAINERD="$$($(GO) run -C test/cluster . build | tail -1)/containerd"; failed=0; \
	$(GOTEST) $(AFRESH) $(CHEAP) $(ROOT) -run Erofs ./internal/images/convert ./lab/pull || failed=1; \
	$(GOTEST) $(AFRESH) $(CHEAP) $(ROOT) -run Erofs ./internal/runtime/containerd || failed=1; exit $$failed

.PHONY: e2e
e2e: ## end to end on one machine: the built program and real servers (root)
	@$(GOTEST) $(AFRESH) -p 1 -timeout 60m $(ROOT) ./test/e2e/...

.PHONY: kube
kube: ## end to end on a real Kubernetes of three nodes, and beside Knative (root)
	$(call both,$(GOTEST) $(AFRESH) -short ./test/cluster ./test/knative,\
		$(GOTEST) $(AFRESH) -p 1 -timeout 60m $(ROOT) ./test/kube/...)

.PHONY: smoke
smoke: smoke-machine smoke-kubernetes ## a few of the tests of e2e and kube (root)

.PHONY: smoke-machine
smoke-machine: ## one machine: a wake, a sleep, a freeze, a killed daemon (root)
	@$(GOTEST) $(AFRESH) $(ROOT) -run '$(SMOKE_MACHINE)' ./test/e2e

.PHONY: smoke-kubernetes
smoke-kubernetes: ## Kubernetes: an upgrade to this tree, and a service that wakes and sleeps (root)
	@$(GOTEST) $(AFRESH) $(ROOT) -timeout 20m -run '$(SMOKE_KUBERNETES)' ./test/kube

CORE = $(filter-out ./lab/% ./internal/images/% ./test/%,$(shell hack/packages.sh gate))

.PHONY: gate-core
gate-core: ## the tests of gate without those of images and of the lab (root)
	@$(call RACE,$(CORE),$(ROOT))

.PHONY: check
check: ## for each change: unit, gate-core, operator and smoke, then what failed (root)
	@hack/install-deps.sh test
	@mkdir -p $(dir $(TOTALS)) && : >$(TOTALS)
	@export GOTEST_TOTALS=$(TOTALS) MAKE='$(MAKE)'; hack/lane.sh unit gate-core kubernetes-build operator smoke || true
	@$(GO) run ./hack/gotest -sum $(TOTALS)

.PHONY: docs-check
docs-check: ## run the commands of README.md for one machine as they are written (root)
	@hack/readme-check.sh one-machine

.PHONY: docs-check-kubernetes
docs-check-kubernetes: ## run those for Kubernetes, and the demos (root; needs cluster-build)
	$(call both,hack/readme-check.sh kubernetes,hack/readme-check.sh demo)

SMOKE_MACHINE    := TestServiceWakesServesAndSleepsAgain|TestIdleServiceFreezesAndAPacketThawsIt|TestKilledDaemonLosesNoRequest
SMOKE_KUBERNETES := /service/(minimal|everywhere|idle)

KUBERNETES_VERSIONS ?= v1.30.14 v1.37.2

.PHONY: kube-versions
kube-versions: ## smoke-kubernetes on the oldest and the newest Kubernetes: make kube-versions [KUBERNETES_VERSIONS=v1.30.14] (root)
	@failed=0; for version in $(KUBERNETES_VERSIONS); do \
		echo "== Kubernetes $$version"; \
		$(COMPILE) run -C test/cluster . build --kubernetes $$version && \
		WANGELL_TEST_KUBERNETES=$$version $(GOTEST) $(AFRESH) $(ROOT) -timeout 20m -run '$(SMOKE_KUBERNETES)' ./test/kube || \
			failed=1; \
	done; exit $$failed

CILIUM_TESTS ?= /(service|access|removal)/(minimal|everywhere|idle|volume|Policies|comes_before|scaled|deleted|rollouts|drained)

.PHONY: cilium
cilium: ## end to end on Kubernetes with Cilium as pod network: make cilium [CILIUM_TESTS=.] (root)
	$(COMPILE) run -C test/cluster . build --cni cilium
	WANGELL_TEST_CNI=cilium $(GOTEST) $(AFRESH) -p 1 -timeout 60m $(ROOT) -run '$(CILIUM_TESTS)' ./test/kube/...

KERNELS ?= oldest 6.12 newest
ARCH    ?= amd64
CHECKS  ?=

.PHONY: vm
vm: ## other kernels, in emulated VMs: make vm [KERNELS="6.12 newest"] [ARCH=arm64] [CHECKS=load,fixtures] (root)
	@hack/install-deps.sh vm
	$(COMPILE) run $(ROOT) ./test/vm --kernels '$(KERNELS)' --arch '$(ARCH)' --checks '$(CHECKS)'

# Tests that start containers and measure come first; the others have a smaller share of the processors, and what only
# compiles or checks has what is left: a program under test must not starve. Knative is built beside the first tests on
# Kubernetes, which do without it. The operator's tests wait for the build of Kubernetes, which runs at the same time.
# What only compiles has a lane of its own, so that with empty caches no test waits for it, and ends about when the
# tests do.
COMPUTE := nice -n 5
BACKGROUND := nice -n 15
COMPILE_AND_CHECK := knative-build check-generated chart-check lint release-check
MORE_TESTS := gate kubernetes-build operator erofs docs-check-kubernetes

.PHONY: test
test: ## everything, as CI runs it: install what is missing, lint, all tests (root)
	$(call say,What the tests need)
	@hack/install-deps.sh test
	$(call say,Build)
	@$(MAKE) --no-print-directory build
	@mkdir -p $(dir $(TOTALS)) && : >$(TOTALS)
	$(call say,Side by side: Kubernetes; one machine end to end; checks and all other tests)
	@export GOTEST_TOTALS=$(TOTALS) WANGELL_BIN=$(CURDIR)/bin/wangell MAKE='$(MAKE)'; lanes=(); \
	trap 'kill "$${lanes[@]}" 2>/dev/null || true' EXIT; \
	hack/lane.sh kubernetes-build kube & lanes+=($$!); \
	{ hack/lane.sh docs-check e2e & wait $$! || true; exec $(COMPUTE) hack/lane.sh unit; } & lanes+=($$!); \
	$(COMPUTE) hack/lane.sh $(MORE_TESTS) & lanes+=($$!); \
	$(BACKGROUND) hack/lane.sh $(COMPILE_AND_CHECK) & lanes+=($$!); \
	for lane in "$${lanes[@]}"; do wait "$$lane" || true; done
	$(call say,All tests)
	@$(GO) run ./hack/gotest -sum $(TOTALS)

N       ?= 10
TARGETS ?= test
REPEAT  := $(CURDIR)/bin/repeat

.PHONY: test-repeat
test-repeat: ## all tests several times, and a table of what failed how often: make test-repeat [N=10] [TARGETS="unit gate"]
	@rm -rf $(REPEAT)
	@mkdir -p $(REPEAT)
	@for i in $$(seq $(N)); do \
		echo "== run $$i of $(N): $(TARGETS)"; totals=$(REPEAT)/$$i; : >$$totals; \
		CI=true GOTEST_TOTALS=$$totals MAKE="$(MAKE) TOTALS=$$totals AGAIN=$(AFRESH)" \
			hack/lane.sh $(TARGETS) >$$totals.log 2>&1 || tail -n 20 $$totals.log; \
	done
	@$(GO) run ./hack/gotest -table $$(seq -f '$(REPEAT)/%.0f' $(N))

.PHONY: fuzz
fuzz: ## run every fuzz test for 10 s, and the gate against its model with other seeds (root)
	@hack/fuzz.sh 10s

.PHONY: bench
bench: ## run the benchmarks, ns per packet among them (root)
	$(GO) test -run '^$$' -bench . -benchmem $(ROOT) ./internal/... ./lab/...

##@ Check and generate

.PHONY: lint
lint: ## license headers; licenses of libraries; large files; borders of rooms; workflows; golangci-lint: gofmt, go vet, staticcheck, comments, spelling, 120 columns
	@hack/spdx-check.sh
	@hack/size-check.sh
	$(GO) run ./hack/borders
	$(GO) run ./hack/licenses
	hack/tool.sh actionlint -shellcheck= -pyflakes= .github/workflows/*.yaml
	hack/tool.sh golangci-lint run --allow-parallel-runners ./... ./lab/...

.PHONY: vulncheck
vulncheck: ## known vulnerabilities in what the programs call (needs https://vuln.go.dev)
	@hack/vulncheck.sh

.PHONY: generate
generate: ui ## compile the gate (clang-19), and generate its Go side, the CRD, the chart's copies, the manifests and the wire's messages
	$(GO) generate ./internal/gate ./internal/runtime/containerd/podinit ./api/...
	@hack/chart-generate.sh
	@$(GO) generate ./hack/protocol

.PHONY: ui
ui: ## build the dashboard of ui/ into internal/show/dashboard/assets (Node.js, npm)
	@hack/ui.sh build

.PHONY: check-generated
check-generated: ## fail if generated code is not what its sources give
	@hack/check-generated.sh

.PHONY: chart-check
chart-check: ## lint the chart; fail if its generated files or the plain manifests are stale
	@hack/chart-check.sh

##@ Image and release

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

##@ A real Kubernetes on this machine: see test/cluster/README.md

NODES      ?= 1
PROXY_MODE ?= iptables
CNI        ?= bridge

.PHONY: cluster-build
cluster-build: kubernetes-build knative-build ## build Kubernetes and Knative for tests, unless they are in the cache

.PHONY: kubernetes-build
kubernetes-build:
	$(COMPILE) run -C test/cluster . build

.PHONY: knative-build
knative-build:
	$(COMPILE) run -C test/knative . build

.PHONY: cluster
cluster: ## start a cluster: make cluster NODES=3 [PROXY_MODE=nftables] [CNI=flannel] (root)
	$(GO) run -C test/cluster . build
	$(GO) run -C test/cluster $(ROOT) . up --nodes $(NODES) --proxy-mode $(PROXY_MODE) --cni $(CNI)

.PHONY: cluster-down
cluster-down: ## remove every trace of it (root)
	$(GO) run -C test/cluster $(ROOT) . down
