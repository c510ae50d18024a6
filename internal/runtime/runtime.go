// SPDX-License-Identifier: Apache-2.0

// Package runtime is what runs a service's containers. It says what Wangell asks of a runtime, in
// one interface, which containerd/ implements for one machine and kube/ for a cluster.
package runtime

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"time"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/monotime"
)

// Phase is a step of starting a pod.
type Phase string

// The phases a runtime reports, in the order in which they usually end.
const (
	PhaseImage   Phase = "image"   // the image is on the machine and unpacked
	PhaseSandbox Phase = "sandbox" // network namespace, device and address exist
	PhaseCreated Phase = "created" // the container exists, its process is not started
	PhaseStarted Phase = "started" // the process is started
)

// Key names a service: "namespace/name".
type Key string

// KeyOf returns the key of a service.
func KeyOf(s *v1alpha1.WangellService) Key { return Key(s.Namespace + "/" + s.Name) }

// Pod is one running copy of a service. On one machine it is one container with a network
// namespace of its own.
type Pod struct {
	// ID is unique among all pods that ever were on this machine.
	ID string
	// Service is whose copy it is.
	Service Key
	// SpecHash is Hash of the service from which it was started: another one means another spec.
	SpecHash string
	// Addr is the pod's address.
	Addr netip.Addr
	// Port is the port on which it listens; 0 if it is that of its service's present spec.
	Port uint16
	// Netns is the path of the pod's network namespace, valid on the pod's node.
	Netns string
	// HostDevice is the index of the host's end of the pod's veth; 0 if only its node knows.
	HostDevice int
	// Node is the name of its home node; empty on one machine, where there is only one.
	Node string
	// NodeAddr is the home node's address; the zero value on one machine.
	NodeAddr netip.Addr
	// Started is when the process was started, zero while it is not.
	Started monotime.Time
	// Leaving: somebody else takes it away already. Only a Cluster has such.
	Leaving bool
}

// Exit tells that a pod's process ended.
type Exit struct {
	PodID   string
	Service Key
	// Code is the exit status; 128+n for signal n.
	Code uint32
	At   time.Time
	// LogTail is the end of what the process wrote (at most 2 KiB), to tell a user why.
	LogTail string
}

// PodEvent is a step in the life of a pod, as the daemon of its home node observes it.
type PodEvent uint8

// The events of a pod, in the order in which they happen. The wire carries these numbers.
const (
	PodNetworkReady     PodEvent = 1 // its network exists: address and namespace are known
	PodContainerCreated PodEvent = 2 // a container exists, its process is not started
	PodContainerStarted PodEvent = 3 // the container's process runs
	PodContainerExited  PodEvent = 4 // the container's process ended
	PodNetworkGone      PodEvent = 5 // its network is gone
)

// PodReport is a PodEvent with the pod that it happened to. Pod's address and namespace are set in every report.
type PodReport struct {
	Event PodEvent
	Pod   Pod
	// Name is the pod's name in its namespace, Container that of the container that it is about.
	Name, Container string
	At              monotime.Time
	// Code is the exit status of PodContainerExited; 128+n for signal n.
	Code uint32
}

// Cluster is a Runtime whose pods also come and go by others' hands (a rollout, kubectl delete, an eviction), on
// several nodes. It starts pods by wanting one more, and replaces those of an old spec by itself.
type Cluster interface {
	Runtime
	// Appeared delivers pods for which no Start waits. They are as Network hooks give them.
	Appeared() <-chan Pod
	// Leaving delivers the IDs of pods that somebody else takes away; their processes may still run. An Exit
	// follows when they are gone.
	Leaving() <-chan string
	// ReportPod handles an event that a node's daemon observed. The same event may be reported several times. It must
	// not block.
	ReportPod(PodReport)
	// SetNodes tells the names of all nodes that have a daemon: a pod elsewhere serves nobody, and a Start does not
	// wait for it. It must not block.
	SetNodes(names []string)
	// Rolling tells whether pods of a service are being replaced by those of another spec just now: then there may be
	// more of them than were started, and that is no reason to stop one.
	Rolling(Key) bool
}

// StartHooks are called during Start, on Start's goroutine; they must be quick. Either may be nil.
type StartHooks struct {
	// Phase tells that a phase has ended, and when.
	Phase func(Phase, monotime.Time)
	// Network is called when the pod's network exists and before its process runs, so that whoever
	// waits for the process to listen can look in time.
	Network func(Pod)
}

// Progress receives the state of an image pull: done and total bytes of all layers; total is 0 while
// not known. It is called a few times a second.
type Progress func(image string, done, total int64)

// Errors that a runtime's callers tell apart, with errors.Is.
var (
	// ErrImage: the image cannot be had.
	ErrImage = errors.New("image not available")
	// ErrNotFound: no such pod or service.
	ErrNotFound = errors.New("not found")
	// ErrUnavailable: the runtime itself does not answer; the same call may work later.
	ErrUnavailable = errors.New("runtime not available")
)

// Runtime runs pods. Its methods may be called from several goroutines at once.
type Runtime interface {
	// Prepare makes sure that the image of s is on the machine, as its pull policy says, and keeps
	// whatever else can be kept ready at no running cost. progress may be nil.
	Prepare(ctx context.Context, s *v1alpha1.WangellService, progress Progress) error
	// Forget drops what Prepare kept for a service.
	Forget(ctx context.Context, k Key) error
	// Start starts one pod of s and returns when its process runs (not: when it listens). On error,
	// nothing of the pod remains.
	Start(ctx context.Context, s *v1alpha1.WangellService, hooks StartHooks) (Pod, error)
	// Stop ends a pod: SIGTERM, then SIGKILL after grace, and removes all of it. A pod that does
	// not exist is not an error.
	Stop(ctx context.Context, podID string, grace time.Duration) error
	// List tells the pods that run, also those that an earlier process started.
	List(ctx context.Context) ([]Pod, error)
	// Exits delivers the end of every pod's process, those ended by Stop too. A pod that exits by
	// itself stays listed as not running until Stop removes its remains.
	Exits() <-chan Exit
	// Logs copies what the service's current or last pods wrote to w; follow goes on until ctx ends.
	Logs(ctx context.Context, k Key, w io.Writer, tail int, follow bool) error
	// Versions names the programs behind the runtime, for reports: "containerd": "1.6.20", ...
	Versions(ctx context.Context) map[string]string
	// Close lets go of what the process holds; pods go on.
	Close() error
	// Destroy ends every pod and removes everything that the runtime made on this machine.
	Destroy(ctx context.Context) error
}
