#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs Helm at a pinned version with the given arguments, building it from its Go module on first use.
set -euo pipefail
version=v3.22.0
# The Kubernetes release of Helm's libraries, which "helm template" assumes for the cluster.
kubernetes=37
go=${GO:-go}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/wangell/tools
helm=$cache/helm-$version-k$kubernetes/helm
if [ ! -x "$helm" ]; then
    mkdir -p "${helm%/*}"
    # Concurrent callers wait for one build.
    exec 9>"${helm%/*}/lock"
    flock 9
    if [ ! -x "$helm" ]; then
        echo "building helm $version in ${helm%/*}" >&2
        flags="-s -w"
        for package in pkg/lint/rules pkg/chartutil; do
            flags+=" -X helm.sh/helm/v3/$package.k8sVersionMajor=1"
            flags+=" -X helm.sh/helm/v3/$package.k8sVersionMinor=$kubernetes"
        done
        built=$(mktemp -d "${helm%/*}/build.XXXXXX")
        trap 'rm -rf "$built"' EXIT
        # The caller's flags and target platform do not apply to a tool.
        GOFLAGS='' GOOS='' GOARCH='' CGO_ENABLED=0 GOBIN=$built "$go" install -trimpath \
            -ldflags "$flags -X helm.sh/helm/v3/internal/version.version=$version" \
            "helm.sh/helm/v3/cmd/helm@$version" >&2
        mv "$built/helm" "$helm"
        rm -rf "$built"
        trap - EXIT
    fi
    exec 9>&-
fi
exec "$helm" "$@"
