#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes what is derived of the chart: its copy of the CustomResourceDefinition, and the plain manifests.
# Usage: hack/chart-generate.sh [FOLDER]   (default: deploy, of this repository)
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-deploy}

mkdir -p "$out/chart/crds" "$out/manifests"
rm -f "$out"/chart/crds/*.yaml
cp deploy/crd/*.yaml "$out/chart/crds/"

{
    cat <<'EOF'
# Wangell for a cluster, without Helm. Made by hack/chart-generate.sh from deploy/chart; do not edit.
# The key of the wire is yours to make, once, before this is applied:
#   kubectl create namespace wangell-system
#   head -c 32 /dev/urandom | kubectl -n wangell-system create secret generic wangell-wire --from-file=wire.key=/dev/stdin
EOF
    for crd in deploy/crd/*.yaml; do
        echo ---
        sed '/^---$/d' "$crd"
    done
    cat <<'EOF'
---
apiVersion: v1
kind: Namespace
metadata:
  name: wangell-system
  labels:
    # The daemon is on the host network and mounts folders of the node.
    pod-security.kubernetes.io/enforce: privileged
EOF
    # Nobody shall take these objects for those of a release of Helm.
    hack/helm.sh template wangell deploy/chart --namespace wangell-system --set wire.existingSecret=wangell-wire |
        sed -e '/^ *helm\.sh\/chart: /d' -e '/^ *app\.kubernetes\.io\/managed-by: /d' -e '/^# Source: /d'
} >"$out/manifests/wangell.yaml"
