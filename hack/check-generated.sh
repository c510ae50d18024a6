#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Generates code in a temporary copy of the tree and compares it with what is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard |
    tar --null --files-from - --ignore-failed-read -cf - 2>/dev/null | tar -xf - -C "$copy"
(cd "$copy" && "$go" generate ./internal/gate ./internal/runtime/containerd/podinit ./api/... ./hack/protocol)

# Another release of the compiler may give another object for the same source. The Go side must be equal even then.
skip=()
if ! cmp -s internal/gate/gate_bpfel.clang "$copy/internal/gate/gate_bpfel.clang"; then
    echo "the committed object is from clang $(cat internal/gate/gate_bpfel.clang), this machine has" \
        "$(clang-19 -dumpversion): comparing the Go side only"
    skip=(--exclude='*.o' --exclude='*.clang')
fi
if ! diff -rq "${skip[@]}" internal/gate "$copy/internal/gate"; then
    echo "internal/gate is stale: run 'make generate' with $(clang-19 --version | head -1) and commit." >&2
    exit 1
fi
part=internal/runtime/containerd/podinit
if cmp -s $part/init.clang "$copy/$part/init.clang" && ! diff -rq $part "$copy/$part"; then
    echo "$part is stale: run 'make generate' and commit." >&2
    exit 1
fi
for part in api/v1alpha1 deploy/crd docs/manifest docs/protocol; do
    if ! diff -rq "$part" "$copy/$part"; then
        echo "$part is stale: run 'make generate' and commit." >&2
        exit 1
    fi
done
hack/ui.sh check
echo "generated code is up to date"
