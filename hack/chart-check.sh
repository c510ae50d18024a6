#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lints the chart and fails if what is derived of it is not what is committed. What the chart renders to, and which values
# it refuses, is tested by "go test ./deploy".
set -euo pipefail
cd "$(dirname "$0")/.."

hack/helm.sh lint --strict --quiet deploy/chart
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
hack/chart-generate.sh "$fresh"
for part in chart/crds manifests/wangell.yaml; do
    if ! diff -r "$fresh/$part" "deploy/$part"; then
        echo "deploy/$part is stale: run hack/chart-generate.sh and commit." >&2
        exit 1
    fi
done
echo "the chart is sound, and deploy/manifests and deploy/chart/crds belong to it"
