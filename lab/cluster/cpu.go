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

// memoryMounts are the same for memory.
var memoryMounts = []string{"/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"}

// PodCPU returns the processor time that a pod has used so far, as the kernel counts it for the pod's cgroup.
func (c *Cluster) PodCPU(pod *corev1.Pod) (time.Duration, error) {
	node, err := c.cgroupOfNode(pod)
	if err != nil {
		return 0, err
	}
	return podCPU(cgroupMounts, node, string(pod.UID))
}

// PodMemory returns the memory in bytes that the processes of a pod have of their own at present, without files.
func (c *Cluster) PodMemory(pod *corev1.Pod) (int64, error) {
	node, err := c.cgroupOfNode(pod)
	if err != nil {
		return 0, err
	}
	return podMemory(memoryMounts, node, string(pod.UID))
}

// cgroupOfNode returns the cgroup of the node that a pod is on.
func (c *Cluster) cgroupOfNode(pod *corev1.Pod) (string, error) {
	for _, n := range c.File.Nodes {
		if n.Name == pod.Spec.NodeName {
			return n.Cgroup, nil
		}
	}
	return "", fmt.Errorf("pod %s is on no node", pod.Name)
}

// errNoCgroup is returned for a pod that has ended.
var errNoCgroup = errors.New("its cgroup does not exist")

// podDirs returns where the cgroup of a pod may be below a node's, in which kubelet makes kubepods/[QOS/]podUID.
func podDirs(mounts []string, node, uid string) (dirs []string) {
	for _, mount := range mounts {
		for _, qos := range []string{"", "burstable", "besteffort"} {
			dirs = append(dirs, filepath.Join(mount, node, "kubepods", qos, "pod"+uid))
		}
	}
	return dirs
}

// podMemory reads total_rss of version 1, or anon of version 2.
func podMemory(mounts []string, node, uid string) (int64, error) {
	for _, dir := range podDirs(mounts, node, uid) {
		data, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == "total_rss" || key == "anon" {
				return strconv.ParseInt(value, 10, 64)
			}
		}
	}
	return 0, errNoCgroup
}

// podCPU reads cpuacct.usage of version 1, or usage_usec of version 2.
func podCPU(mounts []string, node, uid string) (time.Duration, error) {
	for _, dir := range podDirs(mounts, node, uid) {
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
	return 0, errNoCgroup
}
