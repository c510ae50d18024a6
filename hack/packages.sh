#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the packages of a group, by what their tests need: a package belongs to the first group that fits.
#
#   kube   etcd and kube-apiserver, which "make cluster-build" builds
#   gate   root, for network namespaces, eBPF programs and containers
#   unit   nothing but Go
#
# Usage: hack/packages.sh unit|gate|kube
set -euo pipefail
cd "$(dirname "$0")/.."

roots=(api cmd deploy examples hack internal)
with() { # with PATTERN: folders of packages whose tests match
    { grep -rlE --include='*_test.go' "$1" "${roots[@]}" || true; } | xargs -r -n 1 dirname | sort -u
}
all=$(find "${roots[@]}" -name '*.go' -not -path '*/testdata/*' -print0 | xargs -0 -n 1 dirname | sort -u)
kube=$(with 'KUBEBUILDER_ASSETS|envtest')
gate=$(comm -23 <(with 'testutil/(ownns|netlab|debimage|containerdtest)|need\.Root') <(echo "$kube"))

case ${1:-} in
kube) echo "$kube" ;;
gate) echo "$gate" ;;
unit) comm -23 <(echo "$all") <(printf '%s\n' "$kube" "$gate" | sort -u) ;;
*)
    echo "usage: $0 unit|gate|kube" >&2
    exit 2
    ;;
esac | sed 's,^,./,'
