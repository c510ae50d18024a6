// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"wangell.loutres.me/api/v1alpha1"
	"wangell.loutres.me/internal/base/monotime"
	"wangell.loutres.me/internal/decide/reservation"
)

// Phase is a step of the start of a pod.
type Phase string

// The phases that a runtime reports, in the order in which they usually end.
const (
	PhaseImage   Phase = "image"   // the image is on the machine and unpacked
	PhaseSandbox Phase = "sandbox" // network namespace, device and address exist
	PhaseCreated Phase = "created" // the container exists, its process is not started
	PhaseStarted Phase = "started" // the process is started
)

// Pod is one running copy of a service: one container, or several that share a network namespace.
type Pod struct {
	// ID is unique among all pods that this machine has ever had.
	ID string
	// Name is what users call the pod; empty if that is the ID.
	Name string
	// Service is the service that the pod belongs to.
	Service v1alpha1.Key
	// SpecHash is v1alpha1.Hash of the spec from which the pod was started.
	SpecHash string
	// Addr is the pod's address.
	Addr netip.Addr
	// Ports are the ports on which the pod listens, in the order of the ports of its service; 0 means the target port of
	// the service's current spec.
	Ports [v1alpha1.MaxPorts]uint16
	// Netns is the path of the pod's network namespace, valid on the pod's node.
	Netns string
	// HostDevice is the interface index of the host's end of the pod's veth; 0 if known only on the pod's node.
	HostDevice int
	// Cgroup is the path, below the root of the hierarchies, of a cgroup with all processes of the pod and no others,
	// by which a daemon freezes the pod; empty if it cannot be frozen.
	Cgroup string
	// Node is the name of the home node; empty on one machine.
	Node string
	// NodeAddr is the home node's address; the zero value on one machine.
	NodeAddr netip.Addr
	// Started is the start time of the process; zero while it does not run.
	Started monotime.Time
	// ImageDigest is the digest of the image that the pod runs; empty if that is not known, and in a cluster.
	ImageDigest string
	// Leaving is set while something other than Wangell is removing the pod. Only a Cluster has such pods.
	Leaving bool
}

// Exit reports the end of a pod's process.
type Exit struct {
	PodID   string
	Service v1alpha1.Key
	// Code is the exit status; 128+n for signal n.
	Code uint32
	At   time.Time
	// Cause says why the process ended, where Code does not; empty if that is not known.
	Cause string
	// Outside is set if Cause says who ended the pod: it did not crash, and Code means little.
	Outside bool
	// Explains is set if the same exit was delivered before, when its Cause was not known.
	Explains bool
	// LogTail is the end of the process's output, at most 2 KiB, for messages to the user.
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
	// Name is the pod's name in its namespace, Container the name of the container that the event concerns.
	Name, Container string
	At              monotime.Time
	// Code is the exit status of PodContainerExited; 128+n for signal n.
	Code uint32
	// LogPath is the path of the container's log on the pod's node, in PodContainerExited; empty if the container runtime
	// keeps none.
	LogPath string
}

// MaxPodLog is the size in bytes of a PodLog.
const MaxPodLog = 16 << 10

// PodLog is the end of what a container of a pod has written, as the daemon of its node has read it when the container
// ended. It may come again, with more.
type PodLog struct {
	PodID, Container string
	// Node is the node whose daemon has read it.
	Node string
	// Text is at most MaxPodLog bytes of whole lines; empty if the container has written nothing.
	Text string
}

// Ending reports that a pod gets its stop signal.
type Ending struct {
	PodID string
	// Signal is the time until its process is due to get the signal, Grace the time from then until it is killed.
	Signal, Grace time.Duration
	// Ended reports whether the process has ended, which the Exit may report later. It is nil if only the Exit reports it.
	Ended func() bool
}

// Leave is a pod that something else is removing.
type Leave struct {
	PodID string
	// Cause says who removes it, and why; empty if that is not known, as with kubectl delete.
	Cause string
}

// Cluster is a Runtime on several nodes, whose pods are also created and deleted by others: by a rollout, kubectl
// delete or an eviction. It starts a pod by raising the number of replicas, and replaces pods of an old spec by itself.
type Cluster interface {
	Runtime
	// Appeared delivers pods for which no Start waits, with the fields that a Network hook receives.
	Appeared() <-chan Pod
	// Leaving delivers pods that something else is removing. Their processes may still run; an Exit follows once they are
	// gone.
	Leaving() <-chan Leave
	// ReportPod handles an event that the daemon of Pod.Node observed. The same event may be reported several times.
	// Nothing but the node is to be believed of a report before the cluster itself has the pod on that node. ReportPod
	// must not block.
	ReportPod(PodReport)
	// ReportLog keeps the end of a container's log, for Logs and for the Exit of the pod. It must not block.
	ReportLog(PodLog)
	// SetNodes sets the names of all nodes that have a daemon. A pod on another node cannot serve, and a Start does not
	// wait for it. SetNodes must not block.
	SetNodes(names []string)
	// DescribeNode returns the properties that decide which pods could run on a node. The error is ErrNotFound if there
	// is no such node.
	DescribeNode(ctx context.Context, name string) (labels map[string]string, taints []corev1.Taint, err error)
	// NodeAddrs returns the addresses that the cluster knows of a node: what its daemon reports as its address must be one
	// of them. None means that the cluster keeps no addresses, and believes daemons. The error is ErrNotFound if there is
	// no such node.
	NodeAddrs(ctx context.Context, name string) ([]netip.Addr, error)
	// PreferNodes sets the nodes on which the next pods of a service should run if they fit there, because these have its
	// images. It must not block.
	PreferNodes(k v1alpha1.Key, names []string)
	// PullImage makes the node's own agent pull an image, with its credentials and those of a service's pods, which
	// no other program needs to read. It returns once the node has the image, or with the reason why it cannot be
	// pulled: a cri.ImageError if users can fix it.
	PullImage(ctx context.Context, pull ImagePull) error
	// Rolling reports whether a rollout is replacing the pods of a service. During one there may be more pods than were
	// started, and the surplus must not be stopped.
	Rolling(v1alpha1.Key) bool
	// Inherited returns the IDs, sorted, of the pods of a service that an earlier process started and that still run
	// according to the API. Until the daemons have reported them, the service only seems to have no pods. Returns none
	// once daemons have had enough time for that.
	Inherited(v1alpha1.Key) []string
	// SetFrozen tells the runtime whether a pod is frozen, so that it gives back resource requests, or gets them
	// again when it runs. It must not block.
	SetFrozen(podID string, frozen bool)
	// Reservations returns how freezing has changed the requests of a service's pods.
	Reservations(v1alpha1.Key) reservation.Summary
}

// ImagePull is an image that a node should pull as for a pod of a service.
type ImagePull struct {
	Service *v1alpha1.WangellService
	Node    string
	// Image is one of the service's images, maybe by its digest.
	Image  string
	Policy corev1.PullPolicy
	// Lazy is set if pods should start before the image is complete.
	Lazy bool
}

// StartHooks are called during Start, on its goroutine. They must return quickly. Either may be nil.
type StartHooks struct {
	// Phase is called at the end of each phase, with the time of the end.
	Phase func(Phase, monotime.Time)
	// Network is called once the pod's network exists and before its process runs, so that the watch for the listening
	// socket is in place in time.
	Network func(Pod)
	// Waits is called with what the start waits for, in words for a message, when that changes. A runtime need not call
	// it.
	Waits func(why string)
}

// Progress receives the state of an image pull a few times a second: the bytes of all layers that are done, and their
// total, which is 0 while unknown.
type Progress func(image string, done, total int64)

// LogOptions says what of a log is wanted.
type LogOptions struct {
	// Container is the name of a container; empty for the main one.
	Container string
	// Tail is the number of lines from the end; all if it is negative.
	Tail int
	// Follow adds what is written from then on.
	Follow bool
}

// Errors of a runtime, for errors.Is.
var (
	// ErrImage means that the image is not available.
	ErrImage = errors.New("image not available")
	// ErrNotFound means that there is no such pod or service.
	ErrNotFound = errors.New("not found")
	// ErrUnavailable means that the runtime itself does not answer. The same call may succeed later.
	ErrUnavailable = errors.New("runtime not available")
)

// Runtime runs pods. Its methods may be called from several goroutines at once.
type Runtime interface {
	// Prepare ensures that the image of s is on the machine, following its pull policy, and prepares whatever costs
	// nothing while it waits. progress may be nil.
	Prepare(ctx context.Context, s *v1alpha1.WangellService, progress Progress) error
	// Forget drops what Prepare has prepared for a service.
	Forget(ctx context.Context, k v1alpha1.Key) error
	// Start starts a pod of s and returns once its process runs, which is before it listens. On error nothing of the pod
	// remains.
	Start(ctx context.Context, s *v1alpha1.WangellService, hooks StartHooks) (Pod, error)
	// Stop stops a pod with SIGTERM, and with SIGKILL after grace, and removes it. A frozen pod is thawed first. A pod
	// that does not exist is not an error.
	Stop(ctx context.Context, podID string, grace time.Duration) error
	// List returns the pods, including those that an earlier process started.
	List(ctx context.Context) ([]Pod, error)
	// Exits delivers the end of every pod's process, also if Stop caused it. A pod that exits by itself stays listed, as
	// not running, until Stop removes its remains.
	Exits() <-chan Exit
	// Ending delivers the pods whose processes get their stop signal, whatever has asked for it, unless the time of the
	// signal is unknown.
	Ending() <-chan Ending
	// Logs copies what a container of the service's current or last pods has written to w. With Follow it continues until
	// ctx ends.
	Logs(ctx context.Context, k v1alpha1.Key, w io.Writer, options LogOptions) error
	// Versions returns the versions of the programs behind the runtime by name, for reports: "containerd": "1.6.20".
	Versions(ctx context.Context) map[string]string
	// Close releases what the process holds. Pods keep running.
	Close() error
	// Destroy kills every pod and removes everything that the runtime has made on this machine.
	Destroy(ctx context.Context) error
}
