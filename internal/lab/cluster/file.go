// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"os"
)

// File is the cluster.json of a cluster of test/cluster, as far as experiments use it.
type File struct {
	Name       string `json:"name"`
	Dir        string `json:"dir"`
	Kubeconfig string `json:"kubeconfig"`
	Registry   struct {
		Address     string `json:"address"`
		PushAddress string `json:"pushAddress"`
	} `json:"registry"`
	LAN struct {
		Subnet string `json:"subnet"`
	} `json:"lan"`
	Client struct {
		NetnsPath string `json:"netnsPath"`
		Interface string `json:"interface"`
	} `json:"client"`
	Nodes     []Node            `json:"nodes"`
	CNI       string            `json:"cni"`
	ProxyMode string            `json:"proxyMode"`
	Versions  map[string]string `json:"versions"`
}

// Node is a node in a File.
type Node struct {
	Name             string `json:"name"`
	IP               string `json:"ip"`
	PodCIDR          string `json:"podCIDR"`
	ContainerdSocket string `json:"containerdSocket"`
	Cgroup           string `json:"cgroup"`
}

// readFile reads a cluster.json and checks that it has what every experiment needs.
func readFile(file string) (File, error) {
	var f File
	data, err := os.ReadFile(file)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, err
	}
	if f.Kubeconfig == "" || f.Registry.PushAddress == "" || f.Client.NetnsPath == "" || len(f.Nodes) == 0 {
		return f, errors.New("kubeconfig, registry.pushAddress, client.netnsPath or nodes is missing")
	}
	return f, nil
}

// CheckFlag returns an error unless --cluster is given.
func CheckFlag(file string) error {
	if file == "" {
		return errors.New("--cluster is missing: name the cluster.json of a cluster started by test/cluster")
	}
	return nil
}

// FlagUsage describes --cluster.
const FlagUsage = "cluster.json of a cluster started by test/cluster (required)"
