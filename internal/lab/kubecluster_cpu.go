// SPDX-License-Identifier: Apache-2.0

package lab

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

// cgroupMounts are where processor time of cgroups is told: version 1, version 2 beside it, version 2 alone.
var cgroupMounts = []string{"/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"}

// podCPU returns the processor time that a pod has used so far, as the kernel counts it for the pod's cgroup.
func (c *proxyCluster) podCPU(pod *corev1.Pod) (time.Duration, error) {
	for i, n := range c.file.Nodes {
		if n.Name == pod.Spec.NodeName {
			return podCPU(cgroupMounts, c.places.Nodes[i].Cgroup, string(pod.UID))
		}
	}
	return 0, fmt.Errorf("pod %s is on no node", pod.Name)
}

// podCPU looks below a node's cgroup, in which kubelet makes kubepods/[QOS/]podUID.
func podCPU(mounts []string, node, uid string) (time.Duration, error) {
	for _, mount := range mounts {
		for _, qos := range []string{"", "burstable", "besteffort"} {
			dir := filepath.Join(mount, node, "kubepods", qos, "pod"+uid)
			if data, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage")); err == nil {
				ns, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
				return time.Duration(ns), err
			}
			if data, err := os.ReadFile(filepath.Join(dir, "cpu.stat")); err == nil && strings.Contains(string(data), "usage_usec ") {
				return time.Duration(value(string(data), "usage_usec")) * time.Microsecond, nil
			}
		}
	}
	return 0, errors.New("its cgroup is not there")
}

// cpuMeter turns the processor times of pods into their mean use of a core.
type cpuMeter struct {
	at   time.Time
	used map[string]time.Duration // by the pod's UID
}

// observe takes the processor times of all pods that serve. It returns the mean use, in cores for each pod, since the last
// call, of those that were there then; ok is false if there was none.
func (m *cpuMeter) observe(at time.Time, used map[string]time.Duration) (cores float64, ok bool) {
	known := 0
	for uid, now := range used {
		if before, there := m.used[uid]; there && now >= before {
			cores += (now - before).Seconds()
			known++
		}
	}
	passed := at.Sub(m.at).Seconds()
	m.at, m.used = at, used
	if known == 0 || passed <= 0 {
		return 0, false
	}
	return cores / passed / float64(known), true
}
