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

// PodMemory returns the memory in bytes that the processes of a pod have of their own at present, without files.
func (c *Cluster) PodMemory(pod *corev1.Pod) (int64, error) {
	for _, n := range c.File.Nodes {
		if n.Name == pod.Spec.NodeName {
			return podMemory(memoryMounts, n.Cgroup, string(pod.UID))
		}
	}
	return 0, fmt.Errorf("pod %s is on no node", pod.Name)
}

// memoryMounts are the possible places of memory by cgroup, as cgroupMounts.
var memoryMounts = []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"}

// podMemory is podCPU for memory: total_rss of version 1, or anon of version 2.
func podMemory(mounts []string, node, uid string) (int64, error) {
	for _, mount := range mounts {
		for _, qos := range qosClasses {
			data, err := os.ReadFile(filepath.Join(mount, node, "kubepods", qos, "pod"+uid, "memory.stat"))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(data)) {
				if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == "total_rss" || key == "anon" {
					return strconv.ParseInt(value, 10, 64)
				}
			}
		}
	}
	return 0, errors.New("its cgroup does not exist")
}

// qosClasses are the folders of pods below kubepods.
var qosClasses = []string{"", "burstable", "besteffort"}

// podCPU looks below a node's cgroup, where kubelet makes kubepods/[QOS/]podUID.
func podCPU(mounts []string, node, uid string) (time.Duration, error) {
	for _, mount := range mounts {
		for _, qos := range qosClasses {
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
