#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lints the chart, and fails if a generated file is not what hack/chart-generate.sh gives. What the chart renders to and
# which values it refuses is tested by "go test ./deploy".
set -euo pipefail
cd "$(dirname "$0")/.."

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
hack/chart-generate.sh "$fresh"
for part in chart/Chart.yaml chart/crds manifests; do
    if ! diff -r "deploy/$part" "$fresh/$part"; then
        echo "deploy/$part is stale: run hack/chart-generate.sh and commit." >&2
        exit 1
    fi
done
hack/helm.sh lint --strict --quiet deploy/chart
echo "the chart is sound; its version, its definitions and the plain manifests are up to date"
