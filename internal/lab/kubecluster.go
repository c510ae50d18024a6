// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"wangell.loutres.me/internal/testutil/netlab"
)

// Modes: who brings a connection to a pod.
const (
	ModeIptables = "iptables" // kube-proxy
	ModeNftables = "nftables" // kube-proxy
	ModeWangell  = "wangell"
	// ModeDirect is nobody: clients connect to pods. It is the limit.
	ModeDirect = "direct"
)

// clusterPlaces is what else a cluster.json says: where things are on the machine.
type clusterPlaces struct {
	Name string `json:"name"`
	Dir  string `json:"dir"`
	LAN  struct {
		Subnet string `json:"subnet"`
	} `json:"lan"`
	Nodes []struct {
		Cgroup string `json:"cgroup"`
	} `json:"nodes"`
}

// proxyCluster is a cluster whose kube-proxy is measured.
type proxyCluster struct {
	*labCluster
	places clusterPlaces
	mode   string // kube-proxy's at present
	image  string // of the load server
	given  int    // addresses of the LAN for kube-proxy's services
	closer []func() error
}

// openProxyCluster connects to a cluster, makes the namespace, and puts the hello image on the nodes.
func openProxyCluster(ctx context.Context, file string) (_ *proxyCluster, err error) {
	c := &proxyCluster{}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	if err := json.Unmarshal(data, &c.places); err != nil {
		return nil, fmt.Errorf("cluster %s: %w", file, err)
	}
	if c.labCluster, err = openCluster(ctx, file); err != nil {
		return nil, err
	}
	c.mode = c.file.ProxyMode
	first := c.mode
	c.closer = append(c.closer, c.labCluster.close, func() error { return c.setProxyMode(context.Background(), first) })
	if c.image, err = c.pushHello(ctx); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// onClose has f called by close, before what was given earlier.
func (c *proxyCluster) onClose(f func() error) { c.closer = append(c.closer, f) }

// close undoes everything, kube-proxy's mode too.
func (c *proxyCluster) close() error {
	var errs []error
	for i := len(c.closer) - 1; i >= 0; i-- {
		errs = append(errs, c.closer[i]())
	}
	c.closer = nil
	return errors.Join(errs...)
}

// setProxyMode has every kube-proxy run in a mode; the rules of the other one are gone then. It does nothing if they do
// already.
func (c *proxyCluster) setProxyMode(ctx context.Context, mode string) error {
	if mode == c.mode || (mode != ModeIptables && mode != ModeNftables) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(c.places.Dir, "cluster"), "restart-proxy", "--name", c.places.Name, "--dir", c.places.Dir, "--proxy-mode", mode)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("restart kube-proxy in mode %s: %w: %s", mode, err, strings.TrimSpace(string(out)))
	}
	c.mode = mode
	return nil
}

// lanAddress returns an address of the LAN, counted from its end; those are nobody's.
func (c *proxyCluster) lanAddress(fromEnd int) (netip.Addr, error) {
	prefix, err := netip.ParsePrefix(c.places.LAN.Subnet)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the cluster's LAN: %w", err)
	}
	return addressFromEnd(prefix, fromEnd), nil
}

// addressFromEnd counts back from the last address of an IPv4 prefix, the one for broadcasts.
func addressFromEnd(prefix netip.Prefix, n int) netip.Addr {
	b := prefix.Masked().Addr().As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += 1<<(32-prefix.Bits()) - 1 - uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// podNamespace returns the network namespace of a pod that runs.
func podNamespace(pod *corev1.Pod) (*netlab.Namespace, error) {
	pid, err := podProcess(string(pod.UID))
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", pod.Name, err)
	}
	return netlab.Existing(fmt.Sprintf("/proc/%d/ns/net", pid))
}

// podProcess finds a process of a pod by its cgroup, which kubelet names by the pod's UID.
func podProcess(uid string) (int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(data), "/pod"+uid) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/cgroup", &pid); err == nil {
			return pid, nil
		}
	}
	return 0, errors.New("no process is in its cgroup")
}

// podsWith returns the pods that have a label, those that are ending too.
func (c *labCluster) podsWith(ctx context.Context, selector string) ([]corev1.Pod, error) {
	list, err := c.kube.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return list.Items, nil
}

// readyPods counts the pods that are ready; the others start or end.
func readyPods(pods []corev1.Pod) (n, others int) {
	for i := range pods {
		if ready(&pods[i]) {
			n++
		} else {
			others++
		}
	}
	return n, others
}

// get asks for / once and returns the name of the pod that answered.
func get(ctx context.Context, dial dialFunc, address string) (string, error) {
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s", address, resp.Status)
	}
	return resp.Header.Get("Served-By"), nil
}
