#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs Helm of a known version with the given arguments. It is built from its Go module when it is not in the cache yet.
set -euo pipefail
version=v3.22.0
# The release of Kubernetes that Helm's own libraries have, which "helm template" takes for the cluster's.
kubernetes=37
go=${GO:-go}

cache=${XDG_CACHE_HOME:-$HOME/.cache}/wangell/tools
helm=$cache/helm-$version-k$kubernetes/helm
if [ ! -x "$helm" ]; then
    mkdir -p "${helm%/*}"
    # Two that start at once build it once.
    exec 9>"${helm%/*}/lock"
    flock 9
    if [ ! -x "$helm" ]; then
        echo "building helm $version in ${helm%/*}" >&2
        flags="-s -w"
        for package in pkg/lint/rules pkg/chartutil; do
            flags+=" -X helm.sh/helm/v3/$package.k8sVersionMajor=1 -X helm.sh/helm/v3/$package.k8sVersionMinor=$kubernetes"
        done
        built=$(mktemp -d "${helm%/*}/build.XXXXXX")
        trap 'rm -rf "$built"' EXIT
        # Flags and environment of the caller are for another program.
        GOFLAGS='' GOOS='' GOARCH='' CGO_ENABLED=0 GOBIN=$built "$go" install -trimpath \
            -ldflags "$flags -X helm.sh/helm/v3/internal/version.version=$version" "helm.sh/helm/v3/cmd/helm@$version" >&2
        mv "$built/helm" "$helm"
        rm -rf "$built"
        trap - EXIT
    fi
    exec 9>&-
fi
exec "$helm" "$@"
