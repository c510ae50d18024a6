// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Network returns the IPv4 address and the path of the network namespace of the running pod with a UID, and when it was
// created. It fails if there is none.
func (w *Watcher) Network(ctx context.Context, uid string) (
	addr netip.Addr, netns string, created time.Time, err error,
) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := w.client.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{
		State: &criv1.PodSandboxStateValue{State: criv1.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return addr, "", created, fmt.Errorf("listing pods: %w", err)
	}
	for _, s := range list.Items {
		if s.GetMetadata().GetUid() != uid {
			continue
		}
		r, err := w.client.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: s.Id, Verbose: true})
		if err != nil {
			return addr, "", created, fmt.Errorf("status of pod %s: %w", s.Id, err)
		}
		if addr, err = address(r.Status.GetNetwork()); err != nil {
			return addr, "", created, fmt.Errorf("pod %s: %w", s.Id, err)
		}
		netns, err = namespace(r.Info)
		return addr, netns, time.Unix(0, r.Status.GetCreatedAt()), err
	}
	return addr, "", created, fmt.Errorf("the container runtime runs no pod with the UID %q", uid)
}

// address returns a pod's IPv4 address.
func address(n *criv1.PodSandboxNetworkStatus) (netip.Addr, error) {
	all := []string{n.GetIp()}
	for _, ip := range n.GetAdditionalIps() {
		all = append(all, ip.Ip)
	}
	for _, text := range all {
		if a, err := netip.ParseAddr(text); err == nil && a.Unmap().Is4() {
			return a.Unmap(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no IPv4 address among %q", all)
}

// info is the verbose status of a pod in containerd and CRI-O: JSON under the key "info".
type info struct {
	PID         int `json:"pid"` // of the pod's pause process
	RuntimeSpec struct {
		Linux struct {
			Namespaces []struct {
				Type string `json:"type"`
				Path string `json:"path"`
			} `json:"namespaces"`
		} `json:"linux"`
	} `json:"runtimeSpec"`
}

// namespace returns the path of a pod's network namespace: the runtime's, or if that does not exist here (in a daemon
// with a mount namespace of its own) the one of the pod's pause process.
func namespace(verbose map[string]string) (string, error) {
	var i info
	if err := json.Unmarshal([]byte(verbose["info"]), &i); err != nil {
		return "", fmt.Errorf("parse the runtime's verbose status: %w", err)
	}
	var paths []string
	for _, n := range i.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" && n.Path != "" {
			paths = append(paths, n.Path)
		}
	}
	if i.PID > 0 {
		paths = append(paths, fmt.Sprintf("/proc/%d/ns/net", i.PID))
	}
	errs := []error{errors.New("no network namespace found")}
	for _, p := range paths {
		_, err := os.Stat(p)
		if err == nil {
			return p, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}
