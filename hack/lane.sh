#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs make targets one after another, and goes on after one that fails. Failed targets are recorded in the file
# $GOTEST_TOTALS, beside the totals of the tests, for "go run ./hack/gotest -sum". Exits with status 1 if one failed.
# Usage: GOTEST_TOTALS=FILE hack/lane.sh TARGET...
set -euo pipefail
cd "$(dirname "$0")/.."

running=
# make ends what it runs when it is terminated; the shell alone would leave it behind.
trap '[ -z "$running" ] || kill "$running" 2>/dev/null || true; exit 143' TERM INT HUP
failed=0
for target; do
    ${MAKE:-make} --no-print-directory "$target" &
    running=$!
    if ! wait "$running"; then
        failed=1
        printf '{"label":"%s","target_failed":true}\n' "$target" >>"$GOTEST_TOTALS"
    fi
    running=
done
exit "$failed"
