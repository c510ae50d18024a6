// SPDX-License-Identifier: Apache-2.0

package cri

import (
	"path/filepath"
	"regexp"
	"strings"
)

// containerID matches the ID of a container in the name of its cgroup: the ID itself, or with systemd
// cri-containerd-ID.scope.
var containerID = regexp.MustCompile(`(?:^|-)([0-9a-f]{64})(?:\.scope)?$`)

// StdinPipes returns the named pipes into which containerd writes the standard input of containers, as for kubectl
// attach --stdin. Containers are given by the folders of their cgroups; others are ignored, as are containers that have
// no standard input. With another container runtime, and with a containerd whose socket is not in its state folder, it
// returns none. For the paths see newFifos in containerd's internal/node/cri/io and NewFIFOSetInDir in pkg/cio.
func (w *Watcher) StdinPipes(cgroups []string) (pipes []string) {
	state := filepath.Join(filepath.Dir(strings.TrimPrefix(w.cfg.Endpoint, "unix://")), "io.containerd.grpc.v1.cri")
	for _, dir := range cgroups {
		m := containerID.FindStringSubmatch(filepath.Base(dir))
		if m == nil {
			continue
		}
		// The only error is that of a malformed pattern.
		found, _ := filepath.Glob(filepath.Join(state, "containers", m[1], "io", "*", m[1]+"-stdin"))
		pipes = append(pipes, found...)
	}
	return pipes
}
