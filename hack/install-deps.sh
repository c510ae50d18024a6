#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs missing packages with apt on Debian and Ubuntu, and lists them elsewhere. It starts no service.
# Usage: hack/install-deps.sh run|demo|demo-kubernetes|test|vm
set -euo pipefail

# need SET prints lines of a program in PATH, or a file, and the Debian package that has it.
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
    demo-kubernetes)
        need demo
        echo "git git"
        echo "gcc gcc"
        echo "/usr/include/stdlib.h libc6-dev"
        echo "nft nftables"
        echo "iptables iptables"
        echo "mount mount"
        ;;
    test)
        need demo-kubernetes
        echo "clang-19 clang-19"
        echo "llvm-strip-19 llvm-19"
        echo "/usr/include/bpf/bpf_helpers.h libbpf-dev"
        echo "ab apache2-utils"
        echo "wrk wrk"
        echo "redis-cli redis-tools"
        echo "psql postgresql-client"
        echo "ssh openssh-client"
        echo "tcpdump tcpdump"
        echo "arping iputils-arping"
        echo "mkfs.ext4 e2fsprogs"
        echo "mkfs.btrfs btrfs-progs"
        echo "fio fio"
        echo "iostat sysstat"
        echo "python3 python3"
        echo "pip3 python3-pip"
        echo "chromium chromium"
        echo "/usr/share/fonts/opentype/noto/NotoSansCJK-Regular.ttc fonts-noto-cjk"
        echo "node nodejs"
        echo "npm npm"
        ;;
    vm)
        echo "qemu-system-x86_64 qemu-system-x86"
        echo "qemu-system-aarch64 qemu-system-arm"
        echo "mmdebstrap mmdebstrap"
        echo "/usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring"
        echo "depmod kmod"
        echo "mke2fs e2fsprogs"
        echo "xz xz-utils"
        ;;
    *)
        echo "usage: $0 run|demo|demo-kubernetes|test|vm" >&2
        exit 2
        ;;
    esac
}

# System programs are not in the PATH of every user.
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

there() {
    case $1 in
    /*) [ -e "$1" ] ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

apt() { DEBIAN_FRONTEND=noninteractive $sudo apt-get -qq -o Dpkg::Use-Pty=0 "$@" </dev/null; }

# check_go fails unless there is a Go that can fetch the version in go.mod by itself (1.21). apt may have an older one.
check_go() {
    local version wanted
    if version=$(go env GOVERSION 2>/dev/null) &&
        [ "$(printf '%s\n' go1.21 "$version" | sort -V | head -1)" = go1.21 ]; then
        return
    fi
    wanted=$(awk '$1 == "go" { print $2 }' "$(dirname "$0")/../go.mod")
    echo "Go is missing or too old: ${version:-none found}. Install Go $wanted or later from https://go.dev/dl and" \
        "put its bin folder into PATH." >&2
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
    echo "nothing to install: $(awk '{ print $2 }' <<<"$list" | sort -u | paste -sd ' ')"
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "missing (Debian's package names): ${packages[*]}" >&2
    echo "This script installs on Debian and Ubuntu only: use the package manager of this system." >&2
    exit 1
fi
sudo=
if [ "$(id -u)" != 0 ]; then
    sudo=sudo
    command -v sudo >/dev/null || {
        echo "missing: ${packages[*]}; run as root to install them" >&2
        exit 1
    }
fi
echo "installing: ${packages[*]}"

# invoke-rc.d and deb-systemd-invoke run this program before they start a service; status 101 forbids the start.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap '$sudo rm -f $policy' EXIT
    printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
    $sudo chmod 755 $policy
fi
if ! apt install --no-install-recommends --simulate "${packages[@]}" >/dev/null 2>&1; then
    echo "package lists are missing or old: apt-get update"
    apt update
fi
apt install --no-install-recommends "${packages[@]}" >/dev/null
while read -r what package; do
    there "$what" || {
        echo "$package is installed, but $what is still missing" >&2
        exit 1
    }
done <<<"$list"
echo "installed: ${packages[*]}"
