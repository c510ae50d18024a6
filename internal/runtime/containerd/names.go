// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"crypto/rand"
	"encoding/hex"
	"strings"

	"wangell.loutres.me/api/v1alpha1"
)

// Labels of a container.
const (
	labelInstance    = "wangell.loutres.me/instance"
	labelService     = "wangell.loutres.me/service"
	labelSpecHash    = "wangell.loutres.me/spec-hash"
	labelImageDigest = "wangell.loutres.me/image-digest"
	labelSnapshotter = "wangell.loutres.me/snapshotter" // of what instanceContainers returns only
	labelStopSignal  = "wangell.loutres.me/stop-signal"
	labelPrepared    = "wangell.loutres.me/prepared" // its first process waits before it becomes the program
	// Of containers beside the main one.
	labelPod       = "wangell.loutres.me/pod"
	labelContainer = "wangell.loutres.me/container"
	labelKind      = "wangell.loutres.me/kind"
)

const runtimeName = "io.containerd.runc.v2"

// maxID is containerd's limit for the length of an identifier, in bytes.
const maxID = 76

// newPodID returns a new unique ID: NAME-RANDOM, with the name cut to what containerd allows.
func newPodID(k v1alpha1.Key) string {
	var random [podSuffix / 2]byte
	_, _ = rand.Read(random[:])
	_, name := k.Split()
	suffix := "-" + hex.EncodeToString(random[:])
	return strings.TrimRight(name[:min(len(name), maxID-len(suffix))], "-.") + suffix
}

// hostname is the service's name, cut to the limit of sethostname(2).
func hostname(k v1alpha1.Key) string {
	_, name := k.Split()
	return name[:min(len(name), 64)] // sethostname(2)
}

// podSuffix is the length of the random end of a pod's ID, in bytes.
const podSuffix = 12
