// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Cgroup is the cgroup of a pod, which contains those of its containers.
type Cgroup struct {
	// Path is below the root of the hierarchies.
	Path string
	// PID is a process inside: that of the pause container.
	PID int
}

// Cgroup returns the cgroup of the pod with a network namespace. kubelet names it by the pod's UID, and the name is
// checked. It is safe for concurrent use.
func (w *Watcher) Cgroup(ctx context.Context, netns string) (Cgroup, error) {
	id, uid := w.pods.sandboxAt(netns)
	if id == "" {
		return Cgroup{}, fmt.Errorf("the container runtime has no pod with the network namespace %s", netns)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	r, err := w.client.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return Cgroup{}, fmt.Errorf("status of pod %s: %w", id, err)
	}
	return cgroupOf(r.Info, uid)
}

// sandboxAt returns the runtime's ID, and the UID, of the pod with a network namespace; empty if there is none.
func (p *pods) sandboxAt(netns string) (id, uid string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, b := range p.known {
		if b.pod.Netns == netns {
			return id, b.pod.ID
		}
	}
	return "", ""
}

// cgroupOf finds the cgroup of a pod in its verbose status. The runtime's specification names the cgroup of the pause
// container: a path, or with systemd SLICE:PREFIX:NAME, see
// https://github.com/opencontainers/runc/blob/main/docs/systemd.md.
func cgroupOf(verbose map[string]string, uid string) (Cgroup, error) {
	var i struct {
		PID         int `json:"pid"`
		RuntimeSpec struct {
			Linux struct {
				CgroupsPath string `json:"cgroupsPath"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(verbose["info"]), &i); err != nil {
		return Cgroup{}, fmt.Errorf("parse the runtime's verbose status: %w", err)
	}
	given := i.RuntimeSpec.Linux.CgroupsPath
	pod := path.Dir(path.Clean("/" + given))
	if slice, _, ok := strings.Cut(given, ":"); ok {
		pod = slicePath(slice)
	}
	if !isPodCgroup(path.Base(pod), uid) {
		return Cgroup{}, fmt.Errorf("the cgroup %q of its pause container is not that of the pod with the UID %s", given, uid)
	}
	if i.PID <= 0 {
		return Cgroup{}, fmt.Errorf("the pause container of the pod with the UID %s does not run", uid)
	}
	return Cgroup{Path: pod, PID: i.PID}, nil
}

// isPodCgroup reports whether kubelet gives a cgroup with this name to the pod with a UID: podUID, or with systemd
// kubepods-QOS-podUID.slice with underscores in the UID.
func isPodCgroup(name, uid string) bool {
	if uid == "" {
		return false
	}
	if name == "pod"+uid {
		return true
	}
	return strings.HasSuffix(name, "-pod"+strings.ReplaceAll(uid, "-", "_")+".slice")
}

// slicePath returns the path of a slice of systemd: a-b.slice is in a.slice (systemd.slice(5)).
func slicePath(slice string) string {
	name, parts := strings.TrimSuffix(path.Base(slice), ".slice"), "/"
	for i, c := range name {
		if c == '-' {
			parts = path.Join(parts, name[:i]+".slice")
		}
	}
	return path.Join(parts, name+".slice")
}
