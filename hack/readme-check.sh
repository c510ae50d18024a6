#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the commands of the documentation, so that they stay true. A fenced sh block is run if the line before it is
#
#   <!-- run: ENVIRONMENT -->              runs it, and fails if a command of it fails
#   <!-- run: ENVIRONMENT until TEXT -->   runs it in the background, continues with the next block once it has printed
#                                          the line TEXT, and interrupts it (Ctrl-C) after the last block
#
# Blocks of one environment run in order, in one copy of the repository, as root; sudo just runs its arguments. The
# environments:
#
#   demo         this machine, for commands that create their own namespaces
#   one-machine  new network and mount namespaces with a device "eth0" and a default route; /run and /var/lib/wangell are
#                empty
#   kubernetes   a new cluster of three nodes, in the network namespace of its client, with helm, kubectl and KUBECONFIG.
#                REGISTRY and 10.46.100.0/24 become the registry and the addresses of the cluster. The hello server stands
#                in for public images, which the nodes cannot pull
#
# The blocks of a translation (README.*.md) do not run, but must have the same commands as those of README.md.
#
# Usage: hack/readme-check.sh ENVIRONMENT|--list [FILE.md...]   (default: README.md, deploy/README.md and docs/*.md)
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
export PATH=$PATH:/usr/sbin:/sbin
environment=${1:?usage: $0 demo|one-machine|kubernetes|--list [FILE.md...]}
shift
if [ $# -eq 0 ]; then set -- README.md deploy/README.md docs/*.md; fi

# blocks FOLDER FILES...: write each marked block to FOLDER/N.sh, and print its file, place, environment and TEXT.
blocks() {
    awk -v folder="$1" '
        FNR == 1 { wanted = ""; inside = 0 }
        inside && /^ *```/ { close(out); inside = 0; wanted = ""; next }
        inside { sub("^" indent, ""); print > out; next }
        match($0, /^ *<!-- run: .* -->$/) {
            wanted = $0; sub(/^ *<!-- run: /, "", wanted); sub(/ -->$/, "", wanted); at = FILENAME ":" FNR; next
        }
        /^ *```sh$/ && wanted != "" {
            indent = $0; sub(/```sh$/, "", indent); inside = 1; out = sprintf("%s/%03d.sh", folder, ++n)
            environment = wanted; text = ""
            if (match(wanted, / until /)) {
                text = substr(wanted, RSTART + RLENGTH); environment = substr(wanted, 1, RSTART - 1)
            }
            printf "%s\t%s\t%s\t%s\n", out, at, environment, text
            next
        }
        wanted != "" && NF { print at ": no sh block follows" > "/dev/stderr"; bad = 1; wanted = "" }
        END { exit bad }' "${@:2}"
}

work=$(mktemp -d /tmp/wangell-readme.XXXXXX)
background=()
cluster=
clean() {
    local status=$?
    trap - EXIT
    for pid in "${background[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
    if [ -n "$cluster" ]; then (cd test/cluster && "$work/cluster" down --name "$cluster" --dir "$work/cluster-dir"); fi
    rm -rf --one-file-system "$work"
    exit $status
}

mkdir "$work/blocks"
list=$(blocks "$work/blocks" "$@") || { rm -rf "$work"; exit 1; }
if [ "$environment" = --list ]; then
    cut -f 2- <<<"$list"
    rm -rf "$work"
    exit
fi
for translation in README.*.md; do
    mkdir "$work/original" "$work/translation"
    blocks "$work/original" README.md >/dev/null
    blocks "$work/translation" "$translation" >/dev/null
    sed -i -E 's/ +#.*//' "$work"/original/* "$work"/translation/*
    diff -r "$work/original" "$work/translation" || {
        echo "$translation has other commands than README.md" >&2
        rm -rf "$work"
        exit 1
    }
    rm -r "$work/original" "$work/translation"
done
list=$(awk -F '\t' -v environment="$environment" '$3 == environment' <<<"$list")
if [ -z "$list" ]; then
    rm -rf "$work"
    echo "no block is marked with <!-- run: $environment -->" >&2
    exit 1
fi
if [ "$environment" = one-machine ] && [ -z "${READMECHECK_INSIDE:-}" ]; then
    rm -rf "$work"
    READMECHECK_INSIDE=1 exec unshare --net --mount --propagation private "$0" "$environment" "$@"
fi
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A copy, because blocks write files. It has no .git: its version is the one in VERSION.
mkdir "$work/tree" "$work/bin"
git ls-files -z --cached --others --exclude-standard |
    tar --null --files-from - --ignore-failed-read -cf - 2>/dev/null | tar -xf - -C "$work/tree"
# shellcheck disable=SC2016
printf '#!/bin/sh\nexec "$@"\n' >"$work/bin/sudo"
chmod +x "$work/bin/sudo"
export PATH=$work/bin:$PATH
enter=()

case $environment in
demo) ;;
one-machine)
    mount -t tmpfs none /run
    mkdir -p /var/lib/wangell
    mount -t tmpfs none /var/lib/wangell
    ip link set lo up
    ip link add eth0 type veth peer name far-end
    ip addr add 10.46.200.1/24 dev eth0
    ip link set eth0 up
    ip link set far-end up
    ip route add default via 10.46.200.254
    ;;
kubernetes)
    go build -C test/cluster -o "$work/cluster" .
    make --no-print-directory build >/dev/null
    cluster=readme-$$
    (cd test/cluster && "$work/cluster" up --nodes 3 --name "$cluster" --dir "$work/cluster-dir") >"$work/up.log" ||
        { cat "$work/up.log" >&2; exit 1; }
    field() { jq -r "$1" "$work/cluster-dir/cluster.json"; }
    enter=(nsenter "--net=$(field .client.netnsPath)" --)
    KUBECONFIG=$(field .kubeconfigLAN)
    export KUBECONFIG PLAIN_HTTP=1
    export PLATFORMS=linux/$(go env GOARCH)
    ln -s "$(field .bin)/kubectl" "$work/bin/kubectl"
    ln -s "$root/hack/helm.sh" "$work/bin/helm"
    registry=$(field .registry.lan) addresses=$(field .lan.serviceAddresses)
    sed -i -e "s,REGISTRY,$registry,g" -e "s,10\.46\.100\.0/24,$addresses,g" "$work"/blocks/*.sh
    go build -o "$work/hello" ./internal/images/image/hello
    for image in docker.io/library/nginx:1.28; do
        bin/wangell image build --tag "$image" --file "$work/hello=/hello" --entrypoint /hello --env PORT=80 \
            --out "$work/image.tar" >/dev/null
        (cd test/cluster && "$work/cluster" push --name "$cluster" --dir "$work/cluster-dir" "$work/image.tar" "$image")
    done
    ;;
*)
    echo "no environment $environment" >&2
    exit 2
    ;;
esac

number=0
while IFS=$'\t' read -r script at _ text; do
    number=$((number + 1))
    printf '== %s (%s)\n' "$at" "$environment"
    sed 's/^/  $ /' "$script"
    if [ -z "$text" ]; then
        (cd "$work/tree" && "${enter[@]}" bash -euo pipefail "$script") </dev/null
        continue
    fi
    output=$work/$number.log
    (cd "$work/tree" && exec "${enter[@]}" setsid bash -euo pipefail "$script") </dev/null >"$output" 2>&1 &
    background+=($!)
    for _ in $(seq 3000); do
        if grep -qxF -- "$text" "$output"; then break; fi
        if ! kill -0 $! 2>/dev/null; then break; fi
        sleep 0.1
    done
    cat "$output"
    grep -qxF -- "$text" "$output" || { echo "$at did not print \"$text\"" >&2; exit 1; }
done <<<"$list"

# Ctrl-C reaches the whole process group of a terminal.
for pid in "${background[@]}"; do
    kill -INT -- "-$pid"
    wait "$pid" || { echo "a background block ended with status $? after Ctrl-C" >&2; exit 1; }
done
background=()
echo "$number blocks of $environment ran as written"
