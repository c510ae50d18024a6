#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every native fuzz test of the module for some time, and compares the gate (as root) with its model for seeds that
# "make test" does not use. Usage: hack/fuzz.sh [TIME]   (default 10s)
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-10s}
go=${GO:-go}

# go test -list also prints an "ok" line per package.
grep -rlE --include='*_test.go' '^func Fuzz' . | xargs -r -n 1 dirname | sort -u | while read -r package; do
    "$go" test -list '^Fuzz' "$package" | grep '^Fuzz' | while read -r test; do
        printf '== %s %s\n' "$package" "$test"
        "$go" test -run '^$' -fuzz "^$test\$" -fuzztime "$time" "$package" </dev/null
    done
done
printf '== the gate and its model\n'
"$go" test -count=1 -run '^TestModel' ./internal/gate -args -model.first=0 -model.seeds=300
