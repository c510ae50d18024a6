// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// cgroupMounts are the possible places of processor time by cgroup: version 1, version 2 beside it, version 2 alone.
var cgroupMounts = []string{"/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"}

// PodCPU returns the processor time that a pod has used so far, as the kernel counts it for the pod's cgroup.
func (c *Cluster) PodCPU(pod *corev1.Pod) (time.Duration, error) {
	for _, n := range c.File.Nodes {
		if n.Name == pod.Spec.NodeName {
			return podCPU(cgroupMounts, n.Cgroup, string(pod.UID))
		}
	}
	return 0, fmt.Errorf("pod %s is on no node", pod.Name)
}

// podCPU looks below a node's cgroup, where kubelet makes kubepods/[QOS/]podUID.
func podCPU(mounts []string, node, uid string) (time.Duration, error) {
	for _, mount := range mounts {
		for _, qos := range []string{"", "burstable", "besteffort"} {
			dir := filepath.Join(mount, node, "kubepods", qos, "pod"+uid)
			if data, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage")); err == nil {
				ns, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
				return time.Duration(ns), err
			}
			data, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
			if err != nil {
				continue
			}
			if _, rest, ok := strings.Cut(string(data), "usage_usec "); ok {
				line, _, _ := strings.Cut(rest, "\n")
				us, err := strconv.ParseInt(line, 10, 64)
				return time.Duration(us) * time.Microsecond, err
			}
		}
	}
	return 0, errors.New("its cgroup does not exist")
}
