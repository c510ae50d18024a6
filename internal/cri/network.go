// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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

// info is what containerd and CRI-O tell of a pod when asked to be verbose: JSON under the key "info".
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

// namespace returns the path of a pod's network namespace: as the runtime names it, or where that is not to be
// seen from here (a daemon in a mount namespace of its own), that of the pod's first process.
func namespace(verbose map[string]string) (string, error) {
	var i info
	if err := json.Unmarshal([]byte(verbose["info"]), &i); err != nil {
		return "", fmt.Errorf("the runtime's verbose status cannot be read: %w", err)
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
	errs := []error{errors.New("its network namespace is not to be found")}
	for _, p := range paths {
		_, err := os.Stat(p)
		if err == nil {
			return p, nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}
