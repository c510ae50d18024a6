// SPDX-License-Identifier: Apache-2.0

package containerd

import (
	"sync"

	"wangell.loutres.me/internal/runtime"
	"wangell.loutres.me/internal/runtime/podnet"
)

// pod is the state of one pod. Its fields are guarded by Runtime.mu, except stop.
type pod struct {
	runtime.Pod
	net podnet.Network
	// image is the image that it runs; zero if an earlier process started it.
	image imageInfo
	// snapshotter has its layer. If that is lazySnapshotter, lost says why its files are gone.
	snapshotter string
	lost        string
	// exited is set once its process has exited and the Exit was delivered.
	exited bool
	// logBegin is the size of the service's log file when the pod was started.
	logBegin int64
	// cgroup is the path of the main container's cgroup.
	cgroup string
	// stop serializes the calls of Stop for the pod.
	stop sync.Mutex
}
