#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails if a source file does not name its license in its first three lines. Without arguments it checks all files of the
# repository. Generated Go files are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -gt 0 ]; then files=("$@"); else mapfile -t files < <(git ls-files '*.go' '*.c' '*.h' '*.sh' '*.ts' '*.tsx' '*.mjs' '*.css' .ci/run); fi

missing=()
for file in "${files[@]}"; do
    if [ ! -e "$file" ]; then continue; fi # deleted, and not staged yet
    case $file in
    bpf/*) want='SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0' ;;
    *) want='SPDX-License-Identifier: Apache-2.0' ;;
    esac
    begin=$(head -3 "$file") # no pipe: a search that ends early would end head with SIGPIPE, in a long line
    if [[ $begin == *"$want"* ]]; then continue; fi
    if grep -q '^// Code generated .* DO NOT EDIT\.$' <<<"$begin"; then continue; fi
    missing+=("$file: want \"$want\" in lines 1 to 3")
done
if [ ${#missing[@]} -gt 0 ]; then
    printf '%s\n' "${missing[@]}" >&2
    exit 1
fi
