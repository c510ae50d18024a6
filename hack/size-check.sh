#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails if a committed file is larger than 2 MiB, as are programs that "go build" leaves in the repository by accident:
# every clone has them for ever.
set -euo pipefail
cd "$(dirname "$0")/.."
most=$((2 << 20))

large=()
while IFS= read -r -d '' file; do
    if [ ! -f "$file" ]; then continue; fi # deleted, and not staged yet
    size=$(stat -c %s "$file")
    if [ "$size" -gt $most ]; then large+=("$file: $size bytes, want at most $most: git rm --cached $file"); fi
done < <(git ls-files -z)
if [ ${#large[@]} -gt 0 ]; then
    printf '%s\n' "${large[@]}" >&2
    exit 1
fi
