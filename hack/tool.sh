#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a development tool at a pinned version, building it from its Go module on first use. The program is cached, so
# later runs start at once. Usage: hack/tool.sh TOOL ARGUMENTS...
set -euo pipefail
go=${GO:-go}

tool=${1:-}
case $tool in
actionlint) version=v1.7.12 package=github.com/rhysd/actionlint/cmd/actionlint ;;
golangci-lint) version=v2.15.0 package=github.com/golangci/golangci-lint/v2/cmd/golangci-lint ;;
govulncheck) version=v1.9.0 package=golang.org/x/vuln/cmd/govulncheck ;;
hey) version=v0.1.4 package=github.com/rakyll/hey ;;
nfpm) version=v2.45.2 package=github.com/goreleaser/nfpm/v2/cmd/nfpm ;;
validate-krew-manifest) version=v0.4.3 package=sigs.k8s.io/krew/cmd/validate-krew-manifest ;;
conformance)
    version=v0.0.0-20260831232431-97274622c111 package=github.com/opencontainers/distribution-spec/conformance
    ;;
*)
    echo "usage: $0 actionlint|golangci-lint|govulncheck|nfpm|validate-krew-manifest|conformance|hey ARGUMENTS..." >&2
    exit 2
    ;;
esac
shift

# Linters type-check with the libraries of the Go release that built them, so each release has its own copy.
goversion=$("$go" env GOVERSION)
program=${XDG_CACHE_HOME:-$HOME/.cache}/wangell/tools/$tool-$version-$goversion/$tool
if [ ! -x "$program" ]; then
    mkdir -p "${program%/*}"
    # Concurrent callers wait for one build.
    exec 9>"${program%/*}/lock"
    flock 9
    if [ ! -x "$program" ]; then
        echo "building $tool $version in ${program%/*}" >&2
        built=$(mktemp -d "${program%/*}/build.XXXXXX")
        trap 'rm -rf "$built"' EXIT
        # The caller's flags and target platform do not apply to a tool.
        GOFLAGS='' GOOS='' GOARCH='' CGO_ENABLED=0 GOBIN=$built GOTOOLCHAIN=$goversion \
            "$go" install -trimpath -gcflags=all=-dwarf=false -ldflags '-s -w' "$package@$version" >&2
        mv "$built/$tool" "$program"
        rm -rf "$built"
        trap - EXIT
    fi
    exec 9>&-
fi
exec "$program" "$@"
