#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The check "service": wangell.service as the Debian package installs it, under systemd with control groups of version 2
# and Debian's containerd. It wakes a service, freezes and thaws its control group, kills and stops wangell, and compares
# what is there before and after. Limits are long, as an emulated processor is slow.
set -euo pipefail

say() { echo "$(cut -d' ' -f1 /proc/uptime) s: $*"; }

finish() {
    status=$?
    if [ "$status" != 0 ]; then
        say "FAILED with status $status"
        systemctl --no-pager --full status wangell containerd || true
        journalctl --no-pager -u wangell -u containerd | tail -150 || true
    fi
    exit "$status"
}
trap finish EXIT

# until_true SECONDS WHAT COMMAND... tries a command once a second.
until_true() {
    local limit=$1 what=$2
    shift 2
    for ((i = 0; i < limit; i++)); do
        if "$@"; then
            say "$what"
            return 0
        fi
        sleep 1
    done
    say "not within $limit s: $what"
    return 1
}

inventory() {
    ip -o link | cut -d: -f2 | cut -d@ -f1 | sort
    ip netns list | sort
    ip rule
    ip route show table all | grep -v '^local\|^broadcast\|^multicast\|^ff00' | sort || true
    find /sys/fs/bpf /run/wangell 2>/dev/null | sort || true
    find /sys/fs/cgroup -maxdepth 1 -name 'wangell-*' | sort
    cut -d' ' -f2 /proc/mounts | grep -v '^/proc/sys/fs/binfmt_misc\|^/run/credentials' | sort
}

containerd=(--containerd /run/containerd/containerd.sock)
status() { wangell ps -o json | jq -r '.[0].service.status.'"$1"; }
serves() { wangell ps >/dev/null 2>&1; }
is() { [ "$(status state)" = "$1" ]; }
ask() { ip netns exec client curl --silent --show-error --fail --max-time 300 --output /tmp/answer "http://$address/"; }
cgroup() { find /sys/fs/cgroup/wangell-* -mindepth 1 -type d 2>/dev/null | head -n 1; }
processes() { find /sys/fs/cgroup/wangell-* -name cgroup.procs -exec cat {} + | sort; }
restarted() {
    local now
    now=$(systemctl show --property MainPID --value wangell)
    [ "$now" != 0 ] && [ "$now" != "$1" ] && serves
}

[ "$(stat --file-system --format %T /sys/fs/cgroup)" = cgroup2fs ]
say "$(systemctl --version | head -n 1), $(uname -r), $(containerd --version)"

install -m 0755 /payload/wangell /usr/bin/wangell
install -D -m 0644 /payload/hello.yaml /etc/wangell/services/hello.yaml
install -m 0644 /payload/wangell.service /etc/systemd/system/wangell.service
# Clients are behind a device of their own.
ip netns add client
ip link add towards type veth peer name eth0 netns client
ip addr add 10.46.254.1/30 dev towards
ip link set towards up
ip -n client addr add 10.46.254.2/30 dev eth0
ip -n client link set eth0 up
ip -n client route add default via 10.46.254.1
echo 'WANGELL_FLAGS="--interface towards"' >/etc/default/wangell
systemctl daemon-reload
systemctl start containerd
wangell image build --tag wangell.local/hello:v1 --file /payload/hello=/hello --entrypoint /hello --user 65532:65532 \
    --out /tmp/hello.tar
wangell image load "${containerd[@]}" /tmp/hello.tar
inventory >/tmp/before

systemctl start wangell
until_true 300 "wangell.service serves" serves
until_true 300 "the service sleeps" is Cold
address=$(status loadBalancerIP)
ask
say "a cold request was answered: $(cat /tmp/answer)"
ask
say "a warm request was answered"
is Warm

group=$(cgroup)
echo 1 >"$group/cgroup.freeze"
until_true 60 "its control group is frozen" grep -q 'frozen 1' "$group/cgroup.events"
ask &
client=$!
sleep 2
kill -0 "$client" # it waits
echo 0 >"$group/cgroup.freeze"
wait "$client"
say "a request to the frozen service was answered once it was thawed"

before=$(processes)
main=$(systemctl show --property MainPID --value wangell)
kill -KILL "$main"
until_true 300 "systemd has started the killed wangell again" restarted "$main"
until_true 300 "the service is warm" is Warm
ask
[ "$(processes)" = "$before" ]
say "the pod was adopted and answers"

until_true 300 "the service sleeps again" is Cold
until_true 60 "its control group is gone" test -z "$(cgroup)"
ask
say "a second cold request was answered"

systemctl stop wangell
inventory >/tmp/after
diff /tmp/before /tmp/after
[ "$(systemctl is-failed wangell || true)" = inactive ]
say "wangell.service has stopped and left nothing"
