#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Generates the gate's code anew in a temporary copy of the tree and compares it with what is committed.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z --cached --others --exclude-standard | tar --null --files-from - --ignore-failed-read -cf - 2>/dev/null |
    tar -xf - -C "$copy"
(cd "$copy" && "$go" generate ./internal/gate ./api/...)

# Another release of the compiler may give another object for the same source; the Go side must agree even so.
skip=()
if ! cmp -s internal/gate/gate_bpfel.clang "$copy/internal/gate/gate_bpfel.clang"; then
    echo "the object was made by clang $(cat internal/gate/gate_bpfel.clang), this is $(clang-19 -dumpversion): comparing the Go side only"
    skip=(--exclude='*.o' --exclude='*.clang')
fi
if ! diff -rq "${skip[@]}" internal/gate "$copy/internal/gate"; then
    echo "internal/gate is not what bpf/ and $(clang-19 --version | head -1) give: run 'make generate' and commit." >&2
    exit 1
fi
for part in api/v1alpha1 deploy/crd; do
    if ! diff -rq "$part" "$copy/$part"; then
        echo "$part is not what the types in api/v1alpha1 give: run 'make generate' and commit." >&2
        exit 1
    fi
done
echo "generated code is fresh"
