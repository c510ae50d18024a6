#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the packages of a group, by what their tests need: a package belongs to the first group that fits.
#
#   kube   etcd and kube-apiserver, which "make cluster-build" builds
#   gate   root, for network namespaces, eBPF programs and containers
#   unit   nothing but Go
#
# "sequential" is a part of unit: no code of this module that is linked into the tests of such a package starts a
# goroutine, so that the race detector has nothing to find there.
#
# Usage: hack/packages.sh unit|sequential|gate|kube
set -euo pipefail
cd "$(dirname "$0")/.."

roots=(api cmd deploy examples hack internal lab test/testutil)
with() { # with PATTERN: folders of packages whose tests match
    { grep -rlE --include='*_test.go' "$1" "${roots[@]}" || true; } | xargs -r -n 1 dirname | sort -u
}
all=$(find "${roots[@]}" -name '*.go' -not -path '*/testdata/*' -print0 | xargs -0 -n 1 dirname | sort -u)
kube=$(with 'KUBEBUILDER_ASSETS|envtest')
gate=$(comm -23 <(with 'testutil/(ownns|netlab|debimage|containerdtest)|need\.Root') <(echo "$kube"))

unit=$(comm -23 <(echo "$all") <(printf '%s\n' "$kube" "$gate" | sort -u))
sequential() {
    local module starts
    module=wangell.loutres.me
    starts=$({ grep -rlE --include='*.go' '\bgo (func|[a-zA-Z_][a-zA-Z_0-9.]*)\(|\.Go\(|AfterFunc\(|\.Parallel\(' \
        "${roots[@]}" test || true; } | xargs -r -n 1 dirname | sort -u)
    # The test program PACKAGE.test depends on "PACKAGE" or, with test files, on "PACKAGE [PACKAGE.test]".
    # shellcheck disable=SC2046
    go list -test -f '{{if .ForTest}}{{else}}{{.ImportPath}} {{join .Deps " "}}{{end}}' $(sed 's,^,./,' <<<"$unit") |
        awk -v module="$module/" -v starts="$starts" '
            BEGIN { n = split(starts, list, "\n"); for (i = 1; i <= n; i++) concurrent[module list[i]] = 1 }
            $1 ~ /\.test$/ {
                for (i = 2; i <= NF; i++) if ($i in concurrent) next
                print substr($1, length(module) + 1, length($1) - length(module) - length(".test"))
            }' | sort
}

# Their tests take longest, so they come first: each of them would run alone at the end.
longest=(
    internal/gate internal/runtime/containerd internal/images/peer internal/node lab/pull internal/images/lazy lab/sleep
    internal/images/pullstat/live internal/images/convert lab/storage
)
longest_first() {
    { printf '%s\n' "${longest[@]}" | grep -Fx "$1"; echo "$1"; } | awk '!seen[$0]++'
}

case ${1:-} in
kube) echo "$kube" ;;
gate) longest_first "$gate" ;;
unit) echo "$unit" ;;
sequential) sequential ;;
*)
    echo "usage: $0 unit|sequential|gate|kube" >&2
    exit 2
    ;;
esac | sed 's,^,./,'
