#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, by apt on Debian and Ubuntu; elsewhere says what is missing.
# Usage: hack/install-deps.sh run|demo|test
# Nothing is done when all is there. No service is started.
set -euo pipefail

# need SET: lines "what to look for" "package": a program in PATH, or a file.
need() {
    case $1 in
    run)
        echo "containerd containerd"
        echo "runc runc"
        ;;
    demo)
        need run
        echo "ip iproute2"
        echo "nsenter util-linux"
        echo "curl curl"
        echo "jq jq"
        ;;
    test)
        need demo
        echo "git git"
        echo "gcc gcc"
        echo "/usr/include/stdlib.h libc6-dev"
        echo "clang-19 clang-19"
        echo "llvm-strip-19 llvm-19"
        echo "/usr/include/bpf/bpf_helpers.h libbpf-dev"
        echo "ab apache2-utils"
        echo "wrk wrk"
        echo "redis-cli redis-tools"
        echo "psql postgresql-client"
        echo "ssh openssh-client"
        echo "tcpdump tcpdump"
        echo "nft nftables"
        echo "iptables iptables"
        echo "mount mount"
        echo "arping iputils-arping"
        echo "python3 python3"
        echo "pip3 python3-pip"
        ;;
    *)
        echo "usage: $0 run|demo|test" >&2
        exit 2
        ;;
    esac
}

# Programs of the system are not in every user's PATH.
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

there() {
    case $1 in
    /*) [ -e "$1" ] ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

apt() { DEBIAN_FRONTEND=noninteractive $sudo apt-get -qq -o Dpkg::Use-Pty=0 "$@" </dev/null; }

# Go is not taken from apt unless apt's is new enough to fetch the version in go.mod by itself (1.21).
check_go() {
    local version
    if version=$(go env GOVERSION 2>/dev/null) && [ "$(printf '%s\n' go1.21 "$version" | sort -V | head -1)" = go1.21 ]; then
        return
    fi
    echo "Go ${version:-is} missing or too old: install Go $(awk '$1 == "go" { print $2 }' "$(dirname "$0")/../go.mod") or later" \
        "from https://go.dev/dl and put its bin folder into PATH." >&2
    exit 1
}

set_name=${1:-run}
list=$(need "$set_name")
packages=()
while read -r what package; do
    if ! there "$what"; then packages+=("$package"); fi
done <<<"$list"
if [ "$set_name" != run ]; then check_go; fi
if [ ${#packages[@]} -eq 0 ]; then
    echo "all there: $(awk '{ print $2 }' <<<"$list" | sort -u | paste -sd ' ')"
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "missing (names of the Debian packages): ${packages[*]}" >&2
    echo "This script installs on Debian and Ubuntu only: install them with your system's package manager." >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    sudo=sudo
    command -v sudo >/dev/null || { echo "missing: ${packages[*]}: run as root to install them" >&2; exit 1; }
fi
echo "installing: ${packages[*]}"

# invoke-rc.d and deb-systemd-invoke ask this program before they start a service; 101 forbids it.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap '$sudo rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
    $sudo chmod 755 $policy
fi
if ! apt install --no-install-recommends --simulate "${packages[@]}" >/dev/null 2>&1; then
    echo "the lists of packages are missing or old: apt-get update"
    apt update
fi
apt install --no-install-recommends "${packages[@]}" >/dev/null
while read -r what package; do
    there "$what" || { echo "$package is installed, but $what is still missing" >&2; exit 1; }
done <<<"$list"
echo "installed: ${packages[*]}"
