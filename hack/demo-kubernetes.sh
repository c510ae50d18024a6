#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows Wangell on a real Kubernetes of three nodes: build and push the image, install the chart, apply a service, and
# send cold and warm requests from outside the cluster and from a pod. The cluster (test/cluster) runs in namespaces of
# this machine and is removed at the end. Usage: hack/demo-kubernetes.sh   (from "make demo-kubernetes"; needs root)
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
# Root needs the caller's Go: sudo resets PATH.
if [ "$(id -u)" != 0 ]; then exec sudo -E env "PATH=$PATH" "$0" "$@"; fi
export PATH=$PATH:/usr/sbin:/sbin

name=demo-$$
dir=/var/tmp/wangell-cluster-$name
work=$(mktemp -d "/tmp/wangell-$name.XXXXXX")
wangell=$PWD/bin/wangell
repository=registry.cluster.local:5000/wangell
began=$SECONDS

bold= plain=
if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); fi
say() { printf '\n%s== %s%s\n' "$bold" "$*" "$plain"; }
# show COMMAND...: print a command as a person types it, then run it.
show() {
    local word line='$'
    for word in "$@"; do
        if [[ $word == *[{}\ ]* ]]; then word="'$word'"; fi
        line+=" $word"
    done
    printf '%s%s%s\n' "$bold" "$line" "$plain"
    "$@"
}

cluster() { # cluster COMMAND ARGUMENTS...: test/cluster, which finds its sources in the working folder
    (cd test/cluster && "$work/cluster" "$1" --name "$name" --dir "$dir" "${@:2}")
}
kubectl() { "$bin/kubectl" --kubeconfig "$dir/admin.conf" "$@"; }
helm() { hack/helm.sh "$@" --kubeconfig "$dir/admin.conf"; }

up=
clean() {
    local status=$?
    trap - EXIT INT TERM
    if [ -n "$up" ]; then
        if [ $status -ne 0 ]; then diagnose || true; fi
        cluster down || status=1
    fi
    rm -rf --one-file-system "$work"
    exit $status
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# diagnose prints what explains a failure in the cluster.
diagnose() {
    say "The demo failed; this is what the cluster says"
    kubectl get nodes,pods,wgs -A -o wide
    kubectl logs -n wangell-system -l app.kubernetes.io/name=wangell --all-containers --prefix --tail=20
}

# traces lists what a cluster of this name has on the machine.
traces() {
    { ip netns list | awk -v name="$name" 'index($1, name) { print "namespace", $1 }'
      awk -v dir="$dir" 'index($2, dir) { print "mount", $2 }' /proc/self/mounts
      find /sys/fs/cgroup -maxdepth 3 -type d -name "*$name*" 2>/dev/null | sed 's/^/cgroup /'
      pgrep -af "$dir" | sed 's/^/process /'
      if [ -e "$dir" ]; then echo "folder $dir"; fi
    } || true
}

say "A Kubernetes of three nodes"
$go build -C test/cluster -o "$work/cluster" .
echo "The first time, this compiles Kubernetes, which takes about ten minutes on two cores."
up=1
cluster up --nodes 3 | sed '$d'
state=$dir/cluster.json
field() { jq -r "$1" "$state"; }
bin=$(field .bin)
addresses=$(field .lan.serviceAddresses)
outside() { nsenter --net="$(field .client.netnsPath)" -- "$@"; }
show kubectl get nodes

say "Wangell's image, pushed to the cluster's registry"
platform=linux/$($go env GOARCH)
show make --no-print-directory image-push REF="$(field .registry.pushAddress)/wangell" PLAIN_HTTP=1 \
    PLATFORMS="$platform"

say "Two more images: the hello service, and curl for a client pod"
"$wangell" image build hello --out "$work/hello.tar"
# curl and the libraries that it is linked with, as this machine has them.
mkdir -p "$work/root/usr/bin" "$work/root/etc" "$work/root/tmp"
for file in "$(command -v curl)" "$(command -v sleep)"; do cp -L "$file" "$work/root/usr/bin/"; done
for program in curl sleep; do ldd "$work/root/usr/bin/$program"; done | grep -oE '/[^ ]+' | sort -u |
    xargs cp -L --parents -t "$work/root"
"$wangell" image build --tag wangell.local/client:v1 --base "$work/root" --entrypoint /usr/bin/sleep --cmd infinity \
    --out "$work/client.tar"
for image in hello client; do cluster push "$work/$image.tar" "wangell.local/$image:v1"; done

say "helm install, as README.md has it"
show helm install wangell deploy/chart --namespace wangell-system --create-namespace \
    --set "addresses={$addresses}" --set image.repository="$repository" --wait --timeout 5m
show kubectl -n wangell-system get pods -o wide

say "A service: examples/hello.yaml, the same manifest as on one machine"
show kubectl apply -f examples/hello.yaml
kubectl wait --for=condition=Ready --timeout=60s wgs/hello >/dev/null
show kubectl get wgs
address=$(kubectl get wgs hello -o jsonpath='{.status.loadBalancerIP}')

timing='  %{http_code} in %{time_total} s'
timing+=' (connected after %{time_connect} s, first byte after %{time_starttransfer} s)\n'
request() { # request COMMAND...: run curl by COMMAND, and print the answer and how long it took
    "$@" curl -sS --max-time 60 -w "$timing" "$url" | sed 's/^\([^ ]\)/  | \1/'
}
asleep() {
    echo "waiting until it sleeps again (idleTimeout: 10)"
    kubectl wait --for=jsonpath='{.status.state}'=Cold --timeout=90s wgs/hello >/dev/null
    kubectl wait --for=delete --timeout=60s pod -l wangell.loutres.me/service=hello >/dev/null
}

url=http://$address/
echo "The first wake also pulls the image."
say "From outside the cluster, cold: no pod exists; the kernel holds the SYN until one listens"
request outside
say "The same again, warm: only the kernel is in the path"
request outside
kubectl wait --for=condition=Ready --timeout=60s pod -l wangell.loutres.me/service=hello >/dev/null
show kubectl get pods -l wangell.loutres.me/service=hello -o wide

url=http://hello.default.svc.cluster.local/
say "By name, from a pod: first cold, then warm"
kubectl run client --image=wangell.local/client:v1 --restart=Never --overrides \
    '{"spec":{"terminationGracePeriodSeconds":0,"automountServiceAccountToken":false}}'
kubectl wait --for=condition=Ready --timeout=60s pod/client >/dev/null
asleep
echo "$url"
request kubectl exec client --
request kubectl exec client --

say "What Kubernetes shows of it"
# The status follows within about a second.
kubectl wait --for=jsonpath='{.status.state}'=Warm --timeout=30s wgs/hello >/dev/null
show kubectl get wgs
show kubectl describe wgs hello

say "Cleaning up"
kubectl delete pod client --wait=true
show kubectl delete -f examples/hello.yaml
show helm uninstall wangell --namespace wangell-system --wait --cascade foreground
traces_on_node='ip -o link show wangell0 2>/dev/null; find /sys/fs/bpf/wangell 2>/dev/null'
for node in node-1 node-2 node-3; do
    for _ in $(seq 100); do
        left=$(cluster exec --node "$node" -- sh -c "$traces_on_node") || true
        if [ -z "$left" ]; then break; fi
        sleep 0.1
    done
    if [ -n "$left" ]; then
        printf '%s still has:\n%s\n' "$node" "$left" >&2
        exit 1
    fi
    echo "$node: no device, no program and no map of Wangell is left"
done
cluster down
up=
left=$(traces)
if [ -n "$left" ]; then
    printf 'the cluster left something behind:\n%s\n' "$left" >&2
    exit 1
fi
echo "this machine: no namespace, mount, cgroup, process or folder of the cluster is left"
echo "the demo took $((SECONDS - began)) s"
