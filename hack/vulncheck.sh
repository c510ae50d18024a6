#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Looks for known vulnerabilities in what the programs call, with govulncheck. Exits with status 3 where its database
# cannot be reached, which says nothing about the programs.
set -euo pipefail
cd "$(dirname "$0")/.."
database=${GOVULNDB:-https://vuln.go.dev}
if ! curl --silent --fail --max-time 20 --output /dev/null "$database/index/db.json"; then
    echo "vulncheck: $database cannot be reached: set GOVULNDB to a copy, or try another machine" >&2
    exit 3
fi
hack/tool.sh govulncheck ./cmd/...
hack/tool.sh govulncheck -C lab ./cmd/...
