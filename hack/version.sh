#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the version of this tree. VERSION holds the release that the tree leads to; a commit that is not tagged as that
# release, or a tree with local changes, adds the commit as build metadata: v0.3.0+gde681fd-dirty.
set -euo pipefail
cd "$(dirname "$0")/.."
version=v$(<VERSION)
# Without git, as in an unpacked source archive, there is only the release.
if ! commit=$(git describe --always --dirty --exclude='*' 2>/dev/null); then
    echo "$version"
elif [[ $commit != *-dirty ]] && [ "$(git describe --exact-match --match "$version" 2>/dev/null)" = "$version" ]; then
    echo "$version"
else
    echo "$version+g$commit"
fi
