#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the dashboard of ui/. "install" fetches what that and its tests need with npm, unless it is there.
# Usage: hack/ui.sh install|build|check
set -euo pipefail
cd "$(dirname "$0")/../ui"

install() {
    # Tests of several packages may come at the same time.
    exec 9<package-lock.json
    flock 9
    if ! cmp -s package-lock.json node_modules/.installed; then
        npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
        cp package-lock.json node_modules/.installed
    fi
    flock -u 9
}

case ${1:-} in
install) install ;;
build)
    install
    node_modules/.bin/tsc --noEmit
    node build.mjs
    ;;
check)
    install
    node_modules/.bin/tsc --noEmit
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
    node build.mjs "$out"
    if ! diff -rq "$out" ../internal/show/dashboard/assets; then
        echo "internal/show/dashboard/assets is stale: run 'make generate' and commit." >&2
        exit 1
    fi
    ;;
*)
    echo "usage: $0 install|build|check" >&2
    exit 2
    ;;
esac
