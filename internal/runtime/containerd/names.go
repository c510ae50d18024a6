// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"crypto/rand"
	"encoding/hex"
	"path/filepath"
	"strings"

	"wangell.loutres.me/internal/runtime"
)

// Labels of a container.
const (
	labelInstance   = "wangell.loutres.me/instance"
	labelService    = "wangell.loutres.me/service"
	labelSpecHash   = "wangell.loutres.me/spec-hash"
	labelStopSignal = "wangell.loutres.me/stop-signal"
)

const (
	snapshotter = "overlayfs"
	runtimeName = "io.containerd.runc.v2"
)

// maxID is containerd's limit of an identifier's length.
const maxID = 76

// newPodID makes an ID that no pod had before: NAME-RANDOM, the name cut to what containerd allows.
func newPodID(k runtime.Key) string {
	var random [6]byte
	_, _ = rand.Read(random[:])
	_, name, _ := strings.Cut(string(k), "/")
	suffix := "-" + hex.EncodeToString(random[:])
	return strings.TrimRight(name[:min(len(name), maxID-len(suffix))], "-.") + suffix
}

// hostname is the service's name.
func hostname(k runtime.Key) string {
	_, name, _ := strings.Cut(string(k), "/")
	return name[:min(len(name), 64)] // sethostname(2)
}

func (r *Runtime) podDir(id string) string { return filepath.Join(r.cfg.podsDir(), id) }

// netnsLink is a symbolic link to the network namespace of the pod, which thus can be created before it is known
// which network it gets.
func (r *Runtime) netnsLink(id string) string { return filepath.Join(r.podDir(id), "netns") }

// logFile is the log of a service: one file, to which all its pods append.
func (r *Runtime) logFile(k runtime.Key) string {
	return filepath.Join(r.cfg.logDir(), strings.ReplaceAll(string(k), "/", "_")+".log")
}
