#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows a cold and a warm request in network namespaces of its own: a node, a link and a client. It does not touch the
# machine's devices, routes or firewall, and leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PATH:/usr/sbin:/sbin
if [ "$(id -u)" != 0 ]; then exec sudo -E env "PATH=$PATH" "$0" "$@"; fi

wangell=$PWD/bin/wangell
id=wgdemo$$
node=$id-node link=$id-link client=$id-client
dir=$(mktemp -d "/tmp/$id.XXXXXX")
run=$dir/run state=$dir/state log=$dir/up.log
up=

bold= plain=
if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
inside() { nsenter --net="/run/netns/$1" -- "${@:2}"; }
wg() { "$wangell" "$@" --run-dir "$run"; }

# Deleting a namespace deletes its devices. Whatever runs in it was started by this script.
clean() {
    local status=$?
    trap - EXIT INT TERM
    if [ -n "$up" ] && kill -TERM "$up" 2>/dev/null; then wait "$up" || true; fi
    if [ -d "$run" ] && [ -e "/run/netns/$node" ]; then
        inside "$node" "$wangell" down --run-dir "$run" --state-dir "$state" || true
    fi
    for ns in "$node" "$link" "$client"; do ip netns del "$ns" 2>/dev/null || true; done
    if [ $status -ne 0 ] && [ -e "$log" ]; then
        say "Output of wangell up"
        cat "$log"
    fi
    rm -rf --one-file-system "$dir"
    exit $status
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# what_there_is prints everything that this instance could leave on the machine. The names of its cgroups contain the
# beginning of the run folder's SHA-256.
cgroups=wangell-$(printf %s "$run" | sha256sum | cut -c 1-8)
what_there_is() {
    { ip netns list | awk -v id="$id" 'index($1, id) { print "namespace", $1 }'
      ip -o link show | awk -F': ' '$2 ~ /^w(angell|g)/ { print "device", $2 }'
      awk -v id="$id" 'index($2, id) { print "mount", $2 }' /proc/self/mounts
      find /sys/fs/cgroup -type d -name "$cgroups" 2>/dev/null | sed 's/^/cgroup /'
      pgrep -af "$dir" | sed 's/^/process /' || true
    } | sort
}
before=$(what_there_is)

say "A node and a client on one link (network namespaces)"
for ns in "$node" "$link" "$client"; do ip netns add "$ns"; inside "$ns" ip link set lo up; done
inside "$link" ip link add br0 type bridge
inside "$link" ip link set br0 up
join() { # join NAMESPACE PORT ADDRESS
    inside "$link" ip link add "$2" type veth peer name eth0 netns "$1"
    inside "$link" ip link set "$2" master br0 up
    inside "$1" ip addr add "$3" dev eth0
    inside "$1" ip link set eth0 up
}
join "$node" node 10.46.200.1/24
join "$client" client 10.46.200.10/24
# The client resolves service addresses on the link by ARP, and the gate answers.
inside "$client" ip route add 10.46.100.0/24 dev eth0
echo "node 10.46.200.1, client 10.46.200.10, services 10.46.100.0/24"

say "An image, without Docker or a registry"
image=${WANGELL_DEMO_IMAGE:-} # built elsewhere, where there is no Go
if [ -z "$image" ]; then
    image=$dir/hello.tar
    "$wangell" image build hello --out "$image"
fi

say "wangell up -f examples/hello.yaml"
inside "$node" "$wangell" image load "$image" --run-dir "$run" --state-dir "$state" --containerd own
# Not through a function, so that $! is wangell itself.
nsenter --net="/run/netns/$node" -- "$wangell" up -f examples/hello.yaml --run-dir "$run" --state-dir "$state" \
    --containerd own --interface eth0 </dev/null >"$log" 2>&1 &
up=$!
for _ in $(seq 3000); do
    if grep -qx ready "$log"; then break; fi
    kill -0 "$up" 2>/dev/null || { echo "wangell up exited" >&2; exit 1; }
    sleep 0.1
done
wg ps

address=$(wg ps -o json | jq -r '.[0].service | "\(.status.loadBalancerIP):\(.spec.port)"')
timing='  %{http_code} in %{time_total} s'
timing+=' (connected after %{time_connect} s, first byte after %{time_starttransfer} s)\n'
request() {
    inside "$client" curl -sS --max-time 300 -o "$dir/body" \
        -w "$timing" "http://$address/"
    sed 's/^/  | /' "$dir/body"
}
say "A cold request: no container exists; the kernel holds the SYN until one listens"
request
say "A warm request: only the kernel is in the path"
request
say "wangell ps"
wg ps
say "wangell wakes hello"
wg wakes hello

say "wangell down, and what it leaves"
wg down
wait "$up"
up=
for ns in "$node" "$link" "$client"; do ip netns del "$ns"; done
after=$(what_there_is)
if [ "$before" = "$after" ]; then
    echo "nothing: namespaces, devices, mounts, cgroups and processes are the same as before"
else
    diff <(echo "$before") <(echo "$after") || true
    exit 1
fi
